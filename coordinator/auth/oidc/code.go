package oidc

import (
	"context"
	"errors"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// Attempt is one login through a browser that has begun. It is kept by who sent the browser away, and used once.
type Attempt struct{ State, Nonce, Verifier string }

// Begin is where a browser is sent to log in, and what has to be kept until it is back (code flow with PKCE).
func (p *Provider) Begin(ctx context.Context, redirect string) (to string, attempt Attempt, err error) {
	known, err := p.discovered(ctx)
	if err != nil {
		return "", Attempt{}, err
	}
	attempt = Attempt{State: oauth2.GenerateVerifier(), Nonce: oauth2.GenerateVerifier(), Verifier: oauth2.GenerateVerifier()}
	return p.oauth(known, redirect).AuthCodeURL(attempt.State, oidc.Nonce(attempt.Nonce), oauth2.S256ChallengeOption(attempt.Verifier)), attempt, nil
}

// Finish takes what the browser came back with.
func (p *Provider) Finish(ctx context.Context, redirect, state, code string, attempt Attempt) (auth.External, error) {
	if state == "" || state != attempt.State {
		return auth.External{}, refused(errors.New("the answer belongs to another login"))
	}
	known, err := p.discovered(ctx)
	if err != nil {
		return auth.External{}, err
	}
	within, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.client), answerIn)
	defer cancel()
	token, err := p.oauth(known, redirect).Exchange(within, code, oauth2.VerifierOption(attempt.Verifier))
	var answered *oauth2.RetrieveError
	switch {
	case errors.As(err, &answered):
		return auth.External{}, refused(err)
	case err != nil:
		return auth.External{}, coordinator.Errorf(coordinator.ErrUnavailable, "reach the identity provider "+p.cfg.Issuer, "%w", err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return auth.External{}, refused(errors.New("the provider gave no ID token"))
	}
	return p.Verify(ctx, raw, token.AccessToken, attempt.Nonce)
}

func (p *Provider) oauth(known *oidc.Provider, redirect string) *oauth2.Config {
	return &oauth2.Config{ClientID: p.cfg.ClientID, ClientSecret: p.cfg.ClientSecret, Endpoint: known.Endpoint(), RedirectURL: redirect, Scopes: p.scopes()}
}
