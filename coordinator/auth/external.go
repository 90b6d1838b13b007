package auth

// External is who an identity provider says somebody is. Issuer and subject together are stable, all else may change.
type External struct {
	Issuer, Subject string
	Username        string
	Email           string // only if the provider has verified it
	UnixUser        string
	Groups          []string // nil: the provider does not say
}
