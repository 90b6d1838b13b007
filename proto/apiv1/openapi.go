// Package apiv1 is the wire form of the coordinator's API. It holds no behaviour.
package apiv1

import _ "embed"

//go:embed openapi.swagger.json
var openAPI string

// OpenAPI is the description of the REST form, as JSON.
func OpenAPI() string { return openAPI }
