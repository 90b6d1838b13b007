package azure

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	clouds "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"substrate/coordinator/provision/cloud"
)

// credentialsFor is for how long what a file of credentials says is used before it is read again: secrets are changed in place.
const credentialsFor = 5 * time.Minute

// mostOfFile bounds a file of credentials, in bytes.
const mostOfFile = 64 << 10

// principal is a file of credentials, as the vendor's tool writes it for a service principal: in the form for programs, or in that for people.
type principal struct {
	Tenant       string `json:"tenantId"`
	Client       string `json:"clientId"`
	Secret       string `json:"clientSecret"`
	Certificate  string `json:"clientCertificate"` // path of a PEM or PKCS12 file, with the key
	Subscription string `json:"subscriptionId"`
	Authority    string `json:"activeDirectoryEndpointUrl"`
	Endpoint     string `json:"resourceManagerEndpointUrl"`
}

// readPrincipal reads a file of credentials.
func readPrincipal(path string) (principal, error) {
	f, err := os.Open(path)
	if err != nil {
		return principal{}, fmt.Errorf("cannot read credentials: %w", err)
	}
	defer func() { _ = f.Close() }()
	p, err := decodePrincipal(io.LimitReader(f, mostOfFile))
	if err != nil {
		return principal{}, fmt.Errorf("cannot read credentials: %s: %w", path, err)
	}
	return p, nil
}

func decodePrincipal(r io.Reader) (principal, error) {
	var p struct {
		principal
		App      string `json:"appId"`
		Password string `json:"password"`
		Of       string `json:"tenant"`
		File     string `json:"fileWithCertAndPrivateKey"`
	}
	if err := json.NewDecoder(r).Decode(&p); err != nil {
		return principal{}, fmt.Errorf("it is no JSON object: %w", err)
	}
	out := p.principal
	out.Client, out.Secret, out.Tenant = cmp.Or(out.Client, p.App), cmp.Or(out.Secret, p.Password), cmp.Or(out.Tenant, p.Of)
	out.Certificate = cmp.Or(out.Certificate, p.File)
	switch {
	case out.Tenant == "":
		return principal{}, errors.New("it has no tenantId")
	case out.Client == "":
		return principal{}, errors.New("it has no clientId")
	case out.Secret == "" && out.Certificate == "":
		return principal{}, errors.New("it has neither clientSecret nor clientCertificate")
	}
	return out, nil
}

// options are those of all clients: which cloud it is, and that nothing is repeated here.
func options(o Options, said principal) azcore.ClientOptions {
	out := azcore.ClientOptions{Retry: policy.RetryOptions{MaxRetries: -1}, Transport: cmp.Or[policy.Transporter](o.HTTPClient, cloud.BoundedDoer{Doer: &http.Client{}}), Telemetry: policy.TelemetryOptions{ApplicationID: "substrate"}}
	endpoint := strings.TrimSuffix(cmp.Or(o.Backend.Endpoint, said.Endpoint), "/")
	switch {
	case strings.HasSuffix(endpoint, ".usgovcloudapi.net"):
		out.Cloud = clouds.AzureGovernment
	case strings.HasSuffix(endpoint, ".chinacloudapi.cn"):
		out.Cloud = clouds.AzureChina
	case endpoint != "" || said.Authority != "":
		public := clouds.AzurePublic.Services[clouds.ResourceManager]
		public.Endpoint = cmp.Or(endpoint, public.Endpoint)
		out.Cloud = clouds.Configuration{ActiveDirectoryAuthorityHost: cmp.Or(said.Authority, clouds.AzurePublic.ActiveDirectoryAuthorityHost),
			Services: map[clouds.ServiceName]clouds.ServiceConfiguration{clouds.ResourceManager: public}}
	}
	out.InsecureAllowCredentialWithHTTP = strings.HasPrefix(endpoint, "http://")
	return out
}

// credentials are those of the backend's file, or of what the SDK finds: variables, the machine's identity, the vendor's own tools.
func credentials(o Options) (azcore.TokenCredential, principal, error) {
	path := o.Backend.CredentialFile
	if path == "" {
		keys, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: options(o, principal{})})
		if err != nil {
			return nil, principal{}, fmt.Errorf("cannot find credentials: %w", err)
		}
		return marked{keys}, principal{}, nil
	}
	f := &fileCredential{path: path, now: o.Now, options: func(said principal) azcore.ClientOptions { return options(o, said) }}
	said, err := f.read()
	return marked{f}, said, err
}

// marked tells of tokens that could not be had as noToken: the SDK marks them as much else.
type marked struct{ azcore.TokenCredential }

func (m marked) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	token, err := m.TokenCredential.GetToken(ctx, o)
	if err != nil {
		return token, &noToken{err}
	}
	return token, nil
}

// noToken is why there is no token for a call. None was made.
type noToken struct{ error }

func (n *noToken) Unwrap() error { return n.error }

// fileCredential is a service principal's, read anew from time to time.
type fileCredential struct {
	path    string
	now     func() time.Time
	options func(principal) azcore.ClientOptions

	mu   sync.Mutex
	said principal
	text []byte // of the certificate
	as   azcore.TokenCredential
	at   time.Time
}

// GetToken asks for a token as the file says by now.
func (f *fileCredential) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	f.mu.Lock()
	stale := f.now().Sub(f.at) > credentialsFor
	f.mu.Unlock()
	if stale {
		if _, err := f.read(); err != nil {
			return azcore.AccessToken{}, err
		}
	}
	f.mu.Lock()
	as := f.as
	f.mu.Unlock()
	return as.GetToken(ctx, o)
}

// read takes over what the file says. What is the same keeps its tokens.
func (f *fileCredential) read() (principal, error) {
	said, err := readPrincipal(f.path)
	if err != nil {
		return said, err
	}
	var text []byte
	if said.Secret == "" {
		if text, err = os.ReadFile(said.Certificate); err != nil {
			return said, fmt.Errorf("cannot read credentials: %w", err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = f.now()
	if f.as != nil && said == f.said && bytes.Equal(text, f.text) {
		return said, nil
	}
	with, elsewhere := f.options(said), said.Authority != ""
	var as azcore.TokenCredential
	if said.Secret != "" {
		as, err = azidentity.NewClientSecretCredential(said.Tenant, said.Client, said.Secret,
			&azidentity.ClientSecretCredentialOptions{ClientOptions: with, DisableInstanceDiscovery: elsewhere})
	} else {
		certs, key, bad := azidentity.ParseCertificates(text, nil)
		if bad != nil {
			return said, fmt.Errorf("cannot read credentials: %s: %w", said.Certificate, bad)
		}
		as, err = azidentity.NewClientCertificateCredential(said.Tenant, said.Client, certs, key,
			&azidentity.ClientCertificateCredentialOptions{ClientOptions: with, DisableInstanceDiscovery: elsewhere})
	}
	if err != nil {
		return said, fmt.Errorf("cannot read credentials: %s: %w", f.path, err)
	}
	f.said, f.text, f.as = said, text, as
	return said, nil
}
