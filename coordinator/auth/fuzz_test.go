package auth

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"strings"
	"testing"
	"time"
)

func FuzzParseLaunch(f *testing.F) {
	for _, text := range []string{"", "i-0123456789abcdef0", "ocid1.instance.oc1/a:b_c", "a b", "ä", "a\nb", strings.Repeat("x", maxLaunch), strings.Repeat("x", maxLaunch+1)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseLaunch(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r\x00\x1b") || len(err.Error()) > 1024 {
				t.Fatalf("%q makes the error %q", text, err)
			}
			return
		}
		if got != text || len(got) > maxLaunch || strings.ContainsAny(got, " \t\n\r\x00\"'`$\\<>&;|*") {
			t.Fatalf("%q was read as %q", text, got)
		}
		if (Binding{Launch: got}).Accepts(text) != nil || text != "" && (Binding{Launch: got}).Accepts(text+"x") == nil {
			t.Fatalf("a token that is bound to %q does not tell its launch from others", got)
		}
	})
}

// anyCertificates are seeds: of a node, a coordinator, a Federate, a CA, and some with names of more or of others.
func anyCertificates(f *testing.F) (ca *CA, ders [][]byte) {
	ca = newCA(f, cluster)
	csr, key := newCSR(f, &x509.CertificateRequest{})
	node, err := ca.SignNode(csr, "gpu-07", start(), time.Hour, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	federate, err := ca.SignFederate(csr, "11111111-2222-4333-8444-555555555555", start(), time.Hour, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	server, err := ca.ServerCertificate([]string{"gpu-07"}, start(), time.Hour, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	ders = append(ders, ca.cert.Raw, server.Certificate[0])
	for _, data := range [][]byte{node, federate} {
		block, _ := pem.Decode(data)
		ders = append(ders, block.Bytes)
	}
	for _, uri := range []string{"substrate://" + cluster + "/node/a/../b", "substrate://" + cluster + "/node/a%2fb", "substrate://x@" + cluster + "/node/a",
		"substrate://" + cluster + "/node/a?b#c", "substrate:///node/a", "https://" + cluster + "/node/a"} {
		u, err := url.Parse(uri)
		if err != nil {
			f.Fatal(err)
		}
		template, err := ca.leaf(start(), time.Hour, rand.Reader)
		if err != nil {
			f.Fatal(err)
		}
		template.URIs, template.ExtKeyUsage = []*url.URL{u}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
		if err != nil {
			f.Fatal(err)
		}
		ders = append(ders, der)
	}
	return ca, ders
}

// FuzzCertificateNames: whatever a certificate says, it names a node, a Federate or nobody, in the one spelling there is.
func FuzzCertificateNames(f *testing.F) {
	ca, ders := anyCertificates(f)
	for _, der := range ders {
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		node, err := NodeFromCertificate(cert)
		if err == nil {
			if _, perr := ParseNodeName(string(node)); perr != nil || cert.IsCA || !strings.HasSuffix(cert.URIs[0].String(), nodePath+string(node)) {
				t.Fatalf("%x is taken for node %q", der, node)
			}
		}
		federate, ferr := ca.federateOf(cert)
		if ferr == nil && (err == nil || checkFederate(federate) != nil || cert.URIs[0].String() != uriScheme+"://"+cluster+federatePath+federate) {
			t.Fatalf("%x is taken for Federate %q, node %q", der, federate, node)
		}
	})
}

// FuzzClusterCredentials: what a cluster answers a Federate that enrols is used only where it fits the key and the pinned CA.
func FuzzClusterCredentials(f *testing.F) {
	ca, ders := anyCertificates(f)
	key, err := NewFederateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	csr, err := key.CSR(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	good, err := ca.SignFederate(csr, "11111111-2222-4333-8444-555555555555", start(), time.Hour, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	pin := Pin(ca)
	f.Add(good, ca.CertificatePEM())
	f.Add(ca.CertificatePEM(), good)
	f.Add(append(good, good...), ca.CertificatePEM())
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte{})
	for _, der := range ders {
		f.Add(pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), ca.CertificatePEM())
	}
	f.Fuzz(func(t *testing.T, certificate, authority []byte) {
		if err := CheckCA(authority, cluster, pin); err == nil {
			got, err := oneCertificate(authority)
			if err != nil || keyPin(got.RawSubjectPublicKeyInfo) != pin {
				t.Fatalf("%q passes for the CA", authority)
			}
		}
		m := ClusterCredentials{Cluster: cluster, Key: key, Certificate: certificate, CA: authority}
		if conf, _, err := m.TLS(time.Now); err == nil {
			leaf := conf.Certificates[0].Leaf
			if !key.private.PublicKey.Equal(leaf.PublicKey) {
				t.Fatalf("%q was taken", certificate)
			}
		}
	})
}

// FuzzParseCA: what is read back from the store is a CA with its own key, or nothing.
func FuzzParseCA(f *testing.F) {
	ca := newCA(f, cluster)
	good, err := ca.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-40])
	f.Add(append(good, '\n', ' '))
	f.Add(append(good, "x"...))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := ParseCA(data)
		if err == nil && (!got.cert.IsCA || !got.key.PublicKey.Equal(got.cert.PublicKey) || got.cluster == "") {
			t.Fatalf("%q was read as %v", data, got)
		}
	})
}

// FuzzFederateKey reads keys as they are stored.
func FuzzFederateKey(f *testing.F) {
	key, err := NewFederateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	text, err := key.MarshalText()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		var key FederateKey
		if err := key.UnmarshalText(text); err != nil || len(text) == 0 {
			return
		}
		again, err := key.MarshalText()
		var copied FederateKey
		if err != nil || copied.UnmarshalText(again) != nil || !copied.private.Equal(key.private) {
			t.Fatalf("%q does not come back: %v", text, err)
		}
	})
}
