package coreweave

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/tests/fakecloud"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	p := newAccount(t, fakecloud.Options{}).open(t, cluster)
	pools, one := poolResource().GroupResource(), "substrate-l1"
	cases := []struct {
		name string
		err  error
		want provision.Fault
	}{
		{"no error", nil, provision.FaultNone},
		{"unauthorized", apierrors.NewUnauthorized("Unauthorized"), provision.FaultDenied},
		{"forbidden", apierrors.NewForbidden(pools, one, errors.New("User cannot create")), provision.FaultDenied},
		{"counted", apierrors.NewForbidden(pools, one, errors.New("exceeded quota: pools, requested: 1, used: 2, limited: 2")), provision.FaultQuota},
		{"too many requests", apierrors.NewTooManyRequests("slow down", 7), provision.FaultThrottled},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Group: "compute.coreweave.com", Kind: "NodePool"}, one, nil), provision.FaultInvalid},
		{"bad request", apierrors.NewBadRequest("no"), provision.FaultInvalid},
		{"too large", apierrors.NewRequestEntityTooLargeError("no"), provision.FaultInvalid},
		{"already exists", apierrors.NewAlreadyExists(pools, one), provision.FaultTransient},
		{"conflict", apierrors.NewConflict(pools, one, errors.New("changed")), provision.FaultTransient},
		{"timeout", apierrors.NewTimeoutError("late", 3), provision.FaultTransient},
		{"server timeout", apierrors.NewServerTimeout(pools, "get", 3), provision.FaultTransient},
		{"internal error", apierrors.NewInternalError(errors.New("etcd")), provision.FaultTransient},
		{"service unavailable", apierrors.NewServiceUnavailable("starting"), provision.FaultTransient},
		{"expired", apierrors.NewResourceExpired("continue token"), provision.FaultTransient},
		{"gone", apierrors.NewGone("old"), provision.FaultTransient},
		{"not found", apierrors.NewNotFound(pools, one), provision.FaultNotFound},
		{"no resource", apierrors.NewGenericServerResponse(404, "POST", pools, "", "404 page not found", 0, true), provision.FaultUnsupported},
		{"method", apierrors.NewMethodNotSupported(pools, "patch"), provision.FaultUnsupported},
		{"teapot", apierrors.NewGenericServerResponse(418, "GET", pools, one, "", 0, true), provision.FaultInvalid},
		{"bad gateway", apierrors.NewGenericServerResponse(502, "GET", pools, one, "<html>", 0, true), provision.FaultTransient},
		{"no answer", errors.New("connection reset by peer"), provision.FaultTransient},
	}
	for _, tt := range cases {
		err := p.explain("launch l1", tt.err, nil)
		if got := provision.FaultOf(err); got != tt.want {
			t.Errorf("%s is %s, expected %s", tt.name, got, tt.want)
		}
		if err != nil && (!strings.HasPrefix(err.Error(), "cannot launch l1: ") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s reads %q", tt.name, err)
		}
	}
	var e *provision.Error
	for _, tt := range []struct {
		header http.Header
		in     int
		want   time.Duration
	}{{http.Header{"Retry-After": {"90"}}, 7, 90 * time.Second}, {nil, 7, 7 * time.Second}, {nil, 0, cloud.UnsaidPause}} {
		err := p.explain("x", apierrors.NewTooManyRequests("slow", tt.in), &heard{tt.header})
		if !errors.As(err, &e) || e.After != tt.want {
			t.Errorf("a pause of %v, %d is %s", tt.header, tt.in, e.After)
		}
	}
}

// TestWrongClock: a certificate that begins later than now, and a token that is refused at another time.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p, now := a.open(t, cluster), a.cloud.Now()
	for _, tt := range []struct {
		name        string
		from, until time.Time
		want        provision.Fault
	}{
		{"not yet valid", now.Add(time.Hour), now.Add(48 * time.Hour), provision.FaultClockSkew},
		{"expired", now.Add(-48 * time.Hour), now.Add(-time.Hour), provision.FaultTransient},
	} {
		bad := x509.CertificateInvalidError{Cert: &x509.Certificate{NotBefore: tt.from, NotAfter: tt.until}, Reason: x509.Expired}
		err := p.explain("list node pools", fmt.Errorf("Get: tls: failed to verify certificate: %w", bad), nil)
		var e *provision.Error
		if !errors.As(err, &e) || e.Fault != tt.want || e.Hint == "" {
			t.Errorf("%s: %v, %+v", tt.name, err, e)
		}
	}
	a.cloud.Fail(fakecloud.OpList, fakecloud.Fault{Refuse: fakecloud.ClockSkew})
	_, err := p.List(t.Context())
	var e *provision.Error
	if !errors.As(err, &e) || e.Fault != provision.FaultClockSkew || !strings.Contains(err.Error(), "seconds off") {
		t.Errorf("a token at another time: %v", err)
	}
}

// TestConditions: what conditions come to, whatever they are called.
func TestConditions(t *testing.T) {
	t.Parallel()
	type is = map[string]any
	for _, tt := range []struct {
		name       string
		conditions []any
		want       provision.Fault
	}{
		{"none", nil, provision.FaultNone},
		{"all is well", []any{is{"type": "Valid", "status": "True", "reason": "Valid"}, is{"type": "Quota", "status": "True", "reason": "Under", "message": "nodePool is under quota for instance type x"},
			is{"type": "Capacity", "status": "True", "reason": "Sufficient"}, is{"type": "AtTarget", "status": "False", "reason": "BelowTarget"}}, provision.FaultNone},
		{"no quota", []any{is{"type": "Quota", "status": "False", "reason": "NotSet", "message": "quota limit is 0 for instance type x"}}, provision.FaultQuota},
		{"quota by its opposite", []any{is{"type": "OverQuota", "status": "True"}}, provision.FaultQuota},
		{"not over quota", []any{is{"type": "OverQuota", "status": "False"}}, provision.FaultNone},
		{"quota in the reason", []any{is{"type": "AtTarget", "status": "False", "reason": "QuotaExceeded"}}, provision.FaultQuota},
		{"quota in the message", []any{is{"type": "Provisioned", "status": "False", "reason": "Blocked", "message": "quota for x is used up"}}, provision.FaultQuota},
		{"under quota in the message", []any{is{"type": "AtTarget", "status": "False", "reason": "Waiting", "message": "nodePool is under quota"}}, provision.FaultNone},
		{"invalid", []any{is{"type": "Valid", "status": "False", "reason": "InvalidInstanceType"}}, provision.FaultInvalid},
		{"invalid by another name", []any{is{"type": "Validated", "status": "False", "reason": "Rejected"}}, provision.FaultInvalid},
		{"capacity", []any{is{"type": "Capacity", "status": "False", "reason": "QueuedAwaitingCapacity"}}, provision.FaultNoCapacity},
		{"capacity that is awaited", []any{is{"type": "Capacity", "status": "True", "reason": "QueuedAwaitingCapacity"}}, provision.FaultNoCapacity},
		{"capacity by its opposite", []any{is{"type": "InsufficientCapacity", "status": "True"}}, provision.FaultNoCapacity},
		{"what is for good counts first", []any{is{"type": "Capacity", "status": "False"}, is{"type": "Quota", "status": "False"}}, provision.FaultQuota},
		{"nobody knows", []any{is{"type": "Quota", "status": "Unknown"}}, provision.FaultNone},
		{"target reached", []any{is{"type": "TargetReached", "status": "True"}}, provision.FaultNone},
		{"recovering", []any{is{"type": "Recovering", "status": "True", "reason": "Recovered"}}, provision.FaultNone},
		{"odd", []any{"text", is{"type": 3}, is{"status": "False"}}, provision.FaultNone},
	} {
		u := &unstructured.Unstructured{Object: is{"spec": is{"targetNodes": int64(1)}, "status": is{"conditions": tt.conditions}}}
		if v := judge(u); v.fault != tt.want || (v.why == "") != (tt.want == provision.FaultNone) {
			t.Errorf("%s: %s %q, expected %s", tt.name, v.fault, v.why, tt.want)
		}
		u.Object["status"].(is)["currentNodes"] = int64(1)
		if v := judge(u); v.fault != provision.FaultNone {
			t.Errorf("%s, with its node: %s", tt.name, v.fault)
		}
	}
}
