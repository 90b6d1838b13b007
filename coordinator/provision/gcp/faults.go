package gcp

import (
	"errors"
	"net/http"
	"strings"

	"cloud.google.com/go/auth"
	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

// faultOfReason is what the reason of a refused call means here, and its status where that tells more.
func faultOfReason(status int, reason string) provision.Fault {
	switch reason {
	case "rateLimitExceeded", "userRateLimitExceeded", "concurrentLimitExceeded":
		return provision.FaultThrottled
	case "quotaExceeded", "limitExceeded", "dailyLimitExceeded":
		return provision.FaultQuota
	case "resourceNotReady", "resourceInUseByAnotherResource", "conditionNotMet": // something else changes the same thing
		return provision.FaultTransient
	}
	switch {
	case status == http.StatusTooManyRequests:
		return provision.FaultThrottled
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return provision.FaultDenied
	case status >= 400 && status < 500: // nothing was made
		return provision.FaultInvalid
	}
	return provision.FaultTransient
}

// faultOfCode is what an operation's error means: the call was accepted, and then this.
func faultOfCode(code string, status int64) provision.Fault {
	switch {
	case strings.HasPrefix(code, "ZONE_RESOURCE_POOL_EXHAUSTED"), strings.HasPrefix(code, "RESOURCE_POOL_EXHAUSTED"), strings.HasPrefix(code, "IP_SPACE_EXHAUSTED"), code == "STOCKOUT":
		return provision.FaultNoCapacity
	case strings.HasSuffix(code, "QUOTA_EXCEEDED"), code == "LIMIT_EXCEEDED":
		return provision.FaultQuota
	case code == "RATE_LIMIT_EXCEEDED", code == "RESOURCE_OPERATION_RATE_EXCEEDED":
		return provision.FaultThrottled
	case code == "PERMISSIONS_ERROR", code == "PERMISSION_DENIED", code == "FORBIDDEN":
		return provision.FaultDenied
	case code == "UNSUPPORTED_OPERATION":
		return provision.FaultUnsupported
	case code == "CONFLICT", code == "OPERATION_CANCELED_BY_USER": // it was ended while it was made
		return provision.FaultInterrupted
	case code == "RESOURCE_NOT_FOUND", code == "CONDITION_NOT_MET", strings.HasPrefix(code, "INVALID_"):
		return provision.FaultInvalid
	case code == "INTERNAL_ERROR", strings.HasPrefix(code, "RESOURCE_NOT_READY"), strings.HasPrefix(code, "RESOURCE_IN_USE"):
		return provision.FaultTransient
	case status >= 400 && status < 500:
		return provision.FaultInvalid
	}
	return provision.FaultTransient
}

// reasonOf is what the cloud calls a refusal, and its status: 0 when it has answered nothing.
func reasonOf(err error) (status int, reason string) {
	var no *googleapi.Error
	if !errors.As(err, &no) {
		return 0, ""
	}
	if len(no.Errors) > 0 {
		reason = no.Errors[0].Reason
	}
	return no.Code, reason
}

// explain makes the cloud's answer, or its absence, a fault.
func (p *Provisioner) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	var no *googleapi.Error
	var keyless *auth.Error
	switch {
	case errors.As(err, &keyless) && keyless.Response != nil: // no call was made: the vendor gives no token for the credentials
		fault := provision.FaultDenied
		if s := keyless.Response.StatusCode; s >= 500 || s == http.StatusTooManyRequests {
			fault = provision.FaultTransient
		}
		return p.skewed(op, provision.Errorf(fault, op, "%w", err), keyless.Response.Header)
	case !errors.As(err, &no):
		return provision.Errorf(provision.FaultTransient, op, "%w", err)
	}
	status, reason := reasonOf(err)
	text := no.Message
	if reason != "" {
		text = reason + ": " + text
	}
	out := provision.Errorf(faultOfReason(status, reason), op, "%w", cloud.Answer(text, err))
	switch {
	case out.Fault == provision.FaultThrottled:
		cloud.Throttled(out, no.Header)
	case status == http.StatusUnauthorized:
		return p.skewed(op, out, no.Header)
	}
	return out
}

// skewed is a refusal of credentials, or what makes them look wrong: by the vendor's date the clock here is.
func (p *Provisioner) skewed(op string, refusal *provision.Error, header http.Header) error {
	if refusal.Fault == provision.FaultDenied {
		if e := cloud.Skewed(op, refusal.Err, header, p.now()); e != nil {
			return e
		}
	}
	return refusal
}

// failed is what an operation came to; nil is well, or not yet known.
func failed(op string, o *compute.Operation) *provision.Error {
	if o.Error == nil || len(o.Error.Errors) == 0 {
		if o.HttpErrorStatusCode >= 400 {
			return provision.Errorf(faultOfCode("", o.HttpErrorStatusCode), op, "%s", o.HttpErrorMessage)
		}
		return nil
	}
	e := o.Error.Errors[0]
	out := provision.Errorf(faultOfCode(e.Code, o.HttpErrorStatusCode), op, "%s: %s", e.Code, e.Message)
	if out.Fault == provision.FaultThrottled {
		out.After = cloud.UnsaidPause
	}
	return out
}
