package coreweave

import (
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

// faultOf is what the API's answers mean here.
func faultOf(s metav1.Status) provision.Fault {
	switch s.Reason {
	case metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden:
		// What counts objects refuses in this way too, and so may a webhook of the vendor's.
		if has(s.Message, "exceeded quota", "quota exceeded", "over quota", "quota limit") {
			return provision.FaultQuota
		}
		return provision.FaultDenied
	case metav1.StatusReasonNotFound:
		return provision.FaultNotFound
	case metav1.StatusReasonTooManyRequests:
		return provision.FaultThrottled
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonNotAcceptable, metav1.StatusReasonUnsupportedMediaType,
		metav1.StatusReasonRequestEntityTooLarge:
		return provision.FaultInvalid
	case metav1.StatusReasonMethodNotAllowed:
		return provision.FaultUnsupported
	case metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict, metav1.StatusReasonGone, metav1.StatusReasonExpired, metav1.StatusReasonTimeout,
		metav1.StatusReasonServerTimeout, metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable:
		return provision.FaultTransient
	}
	if s.Code >= 400 && s.Code < 500 { // nothing was made
		return provision.FaultInvalid
	}
	return provision.FaultTransient
}

// noResource reports whether an answer is about the resource itself and not about an object.
func noResource(s metav1.Status) bool {
	if s.Reason != metav1.StatusReasonNotFound {
		return false
	}
	if s.Details == nil {
		return true
	}
	for _, c := range s.Details.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return false
}

// explain makes the API's answer, or its absence, a fault; nil for no error.
func (p *Provisioner) explain(op string, err error, h *heard) error {
	if err == nil {
		return nil
	}
	var no apierrors.APIStatus
	if !errors.As(err, &no) {
		return p.unanswered(op, err)
	}
	s := no.Status()
	said := cloud.Answer(strings.TrimSpace(string(s.Reason)+": "+short(s.Message)), err)
	out := provision.Errorf(faultOf(s), op, "%w", said)
	header := http.Header{}
	if h != nil {
		header = h.header
	}
	switch {
	case out.Fault == provision.FaultThrottled:
		cloud.Throttled(out, header)
		if s.Details != nil && s.Details.RetryAfterSeconds > 0 && header.Get("Retry-After") == "" {
			out.After = time.Duration(s.Details.RetryAfterSeconds) * time.Second
		}
	case noResource(s):
		out.Fault = provision.FaultUnsupported
		out.Hint = "the cluster that the kubeconfig leads to has no node pools of CoreWeave's: is it another one?"
	case s.Reason == metav1.StatusReasonUnauthorized:
		if skewed := cloud.Skewed(op, said, header, p.now()); skewed != nil {
			return skewed
		}
		out.Hint = "the token or certificate in the kubeconfig is not known, or has expired"
	case out.Fault == provision.FaultDenied:
		out.Hint = "docs/coreweave.md has the roles that the coordinator needs"
	}
	return out
}

// explainList is explain for what cannot be missing: a list of nothing is empty.
func (p *Provisioner) explainList(op string, err error, h *heard) error {
	out := p.explain(op, err, h)
	var e *provision.Error
	if errors.As(out, &e) && e.Fault == provision.FaultNotFound {
		e.Fault = provision.FaultUnsupported
	}
	return out
}

// unanswered is a call to which nobody answered.
func (p *Provisioner) unanswered(op string, err error) error {
	out := provision.Errorf(provision.FaultTransient, op, "%w", err)
	var bad x509.CertificateInvalidError
	if !errors.As(err, &bad) || bad.Reason != x509.Expired || bad.Cert == nil {
		return out
	}
	if now := p.now(); now.Before(bad.Cert.NotBefore) { // nobody serves a certificate of the future
		out.Fault = provision.FaultClockSkew
		out.Hint = "set the coordinator's clock: the server's certificate begins at " + bad.Cert.NotBefore.UTC().Format(time.RFC3339) + ", and here it is " + now.UTC().Format(time.RFC3339)
	} else {
		out.Hint = "the server's certificate has expired, or the coordinator's clock is ahead"
	}
	return out
}
