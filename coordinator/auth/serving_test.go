package auth

import (
	"crypto/rand"
	"crypto/tls"
	"testing"
	"time"
)

func TestServingIsRenewed(t *testing.T) {
	ca := newCA(t, cluster)
	now := start()
	s, err := ca.NewServing([]string{"coord.example"}, 10*time.Hour, func() time.Time { return now }, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	conf := s.Keep(ca.APITLS(tls.Certificate{}))
	serial := func() string {
		t.Helper()
		cert, err := conf.GetCertificate(nil)
		if err != nil || now.After(cert.Leaf.NotAfter) {
			t.Fatalf("%v, until %s", err, cert.Leaf.NotAfter)
		}
		return cert.Leaf.SerialNumber.String()
	}
	first := serial()
	if now = now.Add(5*time.Hour - time.Second); serial() != first {
		t.Error("renewed before half of its life")
	}
	for range 5 {
		now = now.Add(6 * time.Hour)
		next := serial()
		if next == first {
			t.Error("not renewed")
		}
		first = next
	}
}
