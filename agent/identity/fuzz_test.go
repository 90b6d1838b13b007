package identity

import (
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"testing"
)

// FuzzAnswer: whatever a coordinator answers to a join or a renewal, an identity comes of it only where the certificate
// is of the node's own key and signed by the CA of the pin.
func FuzzAnswer(f *testing.F) {
	a, other := newAuthority(f), newAuthority(f)
	key := newKey(f)
	good, pin := a.node(f, key, "/node/gpu-07"), PinOf(a.cert)
	f.Add(good, a.pem())
	f.Add(good, other.pem())
	f.Add(other.node(f, key, "/node/gpu-07"), other.pem())
	f.Add(a.node(f, newKey(f), "/node/gpu-07"), a.pem())
	f.Add(a.node(f, key, "/node/"), a.pem())
	f.Add(a.node(f, key, "/node/a/b"), a.pem())
	f.Add(a.node(f, key, "/coordinator"), a.pem())
	f.Add(append(good, good...), a.pem())
	f.Add(a.pem(), good)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), a.pem())
	f.Add([]byte{}, []byte{})
	server := leafTemplate("/node/gpu-07", x509.ExtKeyUsageServerAuth)
	server.URIs = append(server.URIs, &url.URL{Scheme: uriScheme, Host: "x", Path: "/node/y"})
	f.Add(asPEM(issue(f, server, a.cert, &key.private.PublicKey, a.key)), a.pem())
	f.Fuzz(func(t *testing.T, certificate, ca []byte) {
		id, err := New(key, certificate, ca, pin, start())
		if err != nil {
			return
		}
		if id.Node == "" || id.Cluster == "" || !key.private.PublicKey.Equal(id.leaf.PublicKey) || PinOf(id.ca) != pin || id.leaf.CheckSignatureFrom(a.cert) != nil {
			t.Fatalf("%q was taken", certificate)
		}
		block, _ := pem.Decode(certificate)
		if block == nil || string(block.Bytes) != string(id.leaf.Raw) {
			t.Fatalf("%q is not what was read", certificate)
		}
	})
}
