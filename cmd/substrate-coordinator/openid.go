package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"substrate/coordinator/auth"
	"substrate/coordinator/auth/oidc"
	"substrate/coordinator/server"
)

// openIDSettings say which identity provider users log in at; without an issuer there is none.
type openIDSettings struct {
	issuer, clientID, secretFile, createIn string
	scopes                                 []string
	usernameClaim, unixUserClaim           string
	groupsClaim                            string
	mappings                               []string
	session                                time.Duration
}

func (s *openIDSettings) flags(f *pflag.FlagSet) {
	f.StringVar(&s.issuer, "oidc-issuer", "", "OpenID Connect provider at which users may log in, as https://login.example.org/realms/site")
	f.StringVar(&s.clientID, "oidc-client-id", "", "client id there; the client needs the device flow")
	f.StringVar(&s.secretFile, "oidc-client-secret-file", "", "file that holds the client's secret, if it has one; users' command lines get to know it")
	f.StringSliceVar(&s.scopes, "oidc-scope", []string{"profile", "email"}, "scopes beyond openid")
	f.StringVar(&s.createIn, "oidc-create-in", "", "organisation for users who log in for the first time and are not known; without it they are refused")
	f.StringVar(&s.usernameClaim, "oidc-username-claim", "preferred_username", "claim that newcomers are named after")
	f.StringVar(&s.unixUserClaim, "oidc-unix-user-claim", "", "claim that holds the account that users' jobs run as")
	f.StringVar(&s.groupsClaim, "oidc-groups-claim", "", "claim that holds the names of a user's groups at the provider; --oidc-map says what they are here")
	f.StringArrayVar(&s.mappings, "oidc-map", nil, "what a group of the provider gives here: CLAIM=ORGANISATION/GROUP, with :owner its owner; CLAIM=ORGANISATION[:owner]; CLAIM=cluster-admin (repeatable)")
	f.DurationVar(&s.session, "oidc-session", 12*time.Hour, "how long a log-in is good")
}

// maxSecret bounds the secret's file, bytes.
const maxSecret = 4096

func (s *openIDSettings) provider() (*server.OpenID, error) {
	if s.issuer == "" {
		if s.clientID != "" || len(s.mappings) > 0 || s.createIn != "" || s.secretFile != "" {
			return nil, errors.New("cannot use an identity provider: --oidc-issuer is missing")
		}
		return nil, nil
	}
	if s.session < time.Minute || s.session > 30*24*time.Hour {
		return nil, fmt.Errorf("cannot use an identity provider: --oidc-session %s is not between a minute and 30 days", s.session)
	}
	mappings, err := s.mapped()
	if err != nil {
		return nil, err
	}
	secret := ""
	if s.secretFile != "" {
		data, err := os.ReadFile(s.secretFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the identity provider's secret: %w", err)
		}
		if secret = strings.TrimSpace(string(data)); secret == "" || len(secret) > maxSecret {
			return nil, fmt.Errorf("cannot read the identity provider's secret: %s holds none", s.secretFile)
		}
	}
	p, err := oidc.New(oidc.Config{Issuer: s.issuer, ClientID: s.clientID, ClientSecret: secret, Scopes: s.scopes,
		UsernameClaim: s.usernameClaim, UnixUserClaim: s.unixUserClaim, GroupsClaim: s.groupsClaim}, nil, time.Now)
	if err != nil {
		return nil, err
	}
	return &server.OpenID{Provider: p, Issuer: s.issuer, ClientID: s.clientID, ClientSecret: secret, Scopes: s.scopes,
		CreateIn: s.createIn, Mappings: mappings, Session: s.session}, nil
}

// mapped reads what is declared of the provider's groups.
func (s *openIDSettings) mapped() ([]auth.Mapping, error) {
	switch {
	case len(s.mappings) > 0 && s.groupsClaim == "":
		return nil, errors.New("cannot use an identity provider: --oidc-map without --oidc-groups-claim maps nothing")
	case len(s.mappings) == 0 && s.groupsClaim != "":
		return nil, errors.New("cannot use an identity provider: --oidc-groups-claim without --oidc-map gives nothing")
	case len(s.mappings) > auth.MaxMappings:
		return nil, fmt.Errorf("cannot use an identity provider: %d times --oidc-map, at most %d", len(s.mappings), auth.MaxMappings)
	}
	out := make([]auth.Mapping, 0, len(s.mappings))
	for _, text := range s.mappings {
		m, err := auth.ParseMapping(text)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}
