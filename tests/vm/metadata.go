package vm

import (
	"fmt"
	"net/http"
	"strings"

	"substrate/tests/fakecloud"
)

// metadata is an instance's metadata service, version 2: who has no token learns nothing. What it does not know itself it asks another one
// for, if there is any.
type metadata struct {
	fakecloud.Instance
	token string
	other http.Handler
}

func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/latest/api/token" {
		if r.Method != http.MethodPut || r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == "" {
			http.Error(w, "a token is asked for by PUT, with its life", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, m.token)
		return
	}
	if r.Header.Get("X-Aws-Ec2-Metadata-Token") != m.token {
		http.Error(w, "no token", http.StatusUnauthorized)
		return
	}
	switch strings.TrimPrefix(r.URL.Path, "/latest/") {
	case "user-data":
		_, _ = w.Write(m.UserData)
	case "meta-data/instance-id":
		fmt.Fprint(w, m.ID)
	case "meta-data/instance-type":
		fmt.Fprint(w, m.Type)
	default:
		if m.other == nil {
			http.NotFound(w, r)
			return
		}
		m.other.ServeHTTP(w, r)
	}
}
