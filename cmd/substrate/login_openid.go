package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"substrate/proto/apiv1"
)

// providerTimeout bounds one request to the identity provider; the person at the browser has as long as it says.
const providerTimeout = 30 * time.Second

// tokenByBrowser has the identity provider of a cluster say who this is (RFC 8628: a code that is typed into a browser
// on any machine), and the cluster give out a token for it.
func (a *app) tokenByBrowser(ctx context.Context) (string, error) {
	opts, err := get(ctx, a, "asking how to log in", (*connection).getLoginOptions, &apiv1.GetLoginOptionsRequest{})
	if err != nil {
		return "", err
	}
	p := opts.GetOpenid()
	if p == nil {
		return "", failf(exitFailed, "log in with a token: --token-file, SUBSTRATE_TOKEN or standard input", "cannot log in by browser: the cluster has no identity provider")
	}
	ctx = oidc.ClientContext(ctx, &http.Client{Timeout: providerTimeout})
	known, err := oidc.NewProvider(ctx, p.GetIssuer())
	if err != nil {
		return "", failf(exitUnavailable, "", "cannot reach the identity provider %s: %v", p.GetIssuer(), err)
	}
	cfg := oauth2.Config{ClientID: p.GetClientId(), ClientSecret: p.GetClientSecret(), Endpoint: known.Endpoint(), Scopes: p.GetScopes()}
	if !slices.Contains(cfg.Scopes, oidc.ScopeOpenID) {
		cfg.Scopes = append(cfg.Scopes, oidc.ScopeOpenID)
	}
	if cfg.Endpoint.DeviceAuthURL == "" {
		return "", failf(exitFailed, "log in with a token", "cannot log in by browser: %s does not know the device flow", p.GetIssuer())
	}
	device, err := cfg.DeviceAuth(ctx)
	if err != nil {
		return "", fmt.Errorf("cannot ask %s for a code: %w", p.GetIssuer(), err)
	}
	fmt.Fprintf(a.errOut, "Open %s in a browser and enter the code %s\n", device.VerificationURI, device.UserCode)
	if device.VerificationURIComplete != "" {
		fmt.Fprintf(a.errOut, "or open %s\n", device.VerificationURIComplete)
	}
	said, err := cfg.DeviceAccessToken(ctx, device)
	if err != nil {
		return "", refusedByProvider(err)
	}
	raw, ok := said.Extra("id_token").(string)
	if !ok {
		return "", failf(exitFailed, "the client needs the scope openid there", "cannot log in: %s gave no ID token", p.GetIssuer())
	}
	r, err := get(ctx, a, "logging in", (*connection).logIn, &apiv1.LogInRequest{IdToken: raw, AccessToken: said.AccessToken})
	if err != nil {
		return "", err
	}
	if at := r.GetExpiresAt(); at != nil {
		a.say("the token is good until %s", when(at))
	}
	return r.GetToken(), nil
}

func refusedByProvider(err error) error {
	var said *oauth2.RetrieveError
	if !errors.As(err, &said) {
		return fmt.Errorf("cannot log in: %w", err)
	}
	switch said.ErrorCode {
	case "access_denied":
		return failf(exitRefused, "", "cannot log in: it was denied in the browser")
	case "expired_token":
		return failf(exitFailed, "begin again", "cannot log in: the code was not entered in time")
	}
	return failf(exitFailed, "", "cannot log in: the identity provider says %s %s", said.ErrorCode, said.ErrorDescription)
}
