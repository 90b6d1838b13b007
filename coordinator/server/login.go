package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

// OpenID has users log in at an identity provider.
type OpenID struct {
	Provider openIDProvider
	// What a command line needs to log in there.
	Issuer, ClientID, ClientSecret string
	Scopes                         []string
	CreateIn                       string // organisation of who logs in for the first time and is not known; "" refuses them
	Mappings                       []auth.Mapping
	Session                        time.Duration // how long a token is good
}

// openIDProvider is *oidc.Provider.
type openIDProvider interface {
	Verify(ctx context.Context, idToken, accessToken, nonce string) (auth.External, error)
}

type loginAPI interface {
	LogIn(context.Context, engine.LogIn) (string, engine.TokenView, error)
}

type loginService struct {
	apiv1.UnimplementedLoginServer
	engine loginAPI
	openID *OpenID // nil: there is none
	gate   *gate
}

func (s loginService) GetLoginOptions(context.Context, *apiv1.GetLoginOptionsRequest) (*apiv1.LoginOptions, error) {
	if s.openID == nil {
		return &apiv1.LoginOptions{}, nil
	}
	o := s.openID
	return &apiv1.LoginOptions{Openid: &apiv1.OpenIDProvider{Issuer: o.Issuer, ClientId: o.ClientID, ClientSecret: o.ClientSecret, Scopes: o.Scopes}}, nil
}

func (s loginService) LogIn(ctx context.Context, r *apiv1.LogInRequest) (*apiv1.LogInResponse, error) {
	const op = "log in"
	if s.openID == nil {
		return nil, coordinator.Errorf(coordinator.ErrUnsupported, op, "this cluster has no identity provider").
			WithHint("log in with a token")
	}
	from, now := callerOf(ctx).From, s.gate.now()
	if s.gate.failures.blocked(sourceOf(from), now) {
		return nil, s.gate.failures.judge(op, from, now, coordinator.Errorf(coordinator.ErrUnauthenticated, op, "refused"))
	}
	who, err := s.openID.Provider.Verify(ctx, r.GetIdToken(), r.GetAccessToken(), "")
	if err != nil {
		return nil, s.gate.failures.judge(op, from, now, err)
	}
	text, token, err := s.engine.LogIn(ctx, engine.LogIn{External: who, CreateIn: s.openID.CreateIn, Mappings: s.openID.Mappings, TTL: s.openID.Session})
	if err != nil {
		return nil, s.gate.failures.judge(op, from, now, err)
	}
	return &apiv1.LogInResponse{Token: text, ExpiresAt: timestamppb.New(token.Expires), User: token.UserName, UserId: string(token.User)}, nil
}
