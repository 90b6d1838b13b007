package oci

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/oracle/oci-go-sdk/v65/common"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

const (
	codeNotFound   = "NotAuthorizedOrNotFound" // or not allowed: the cloud does not say which
	codeState      = "IncorrectState"
	codeSpent      = "InvalidatedRetryToken"
	codeNotTrusted = "NotAuthenticated"
)

// faultOf is what the cloud's answers mean here. Codes alone do not do: what is out of capacity is called an internal error.
func faultOf(status int, code, message string) provision.Fault {
	said := strings.ToLower(message)
	switch {
	case strings.Contains(said, "out of host capacity"), strings.Contains(said, "out of capacity"), code == "OutOfCapacity", code == "OutOfHostCapacity":
		return provision.FaultNoCapacity
	case code == "LimitExceeded", code == "QuotaExceeded", strings.Contains(said, "service limit"):
		return provision.FaultQuota
	case status == http.StatusTooManyRequests, code == "TooManyRequests":
		return provision.FaultThrottled
	case code == codeNotFound, code == codeNotTrusted, status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusPaymentRequired:
		return provision.FaultDenied
	case code == codeSpent:
		return provision.FaultInterrupted
	case status == http.StatusConflict: // something else changes the same thing
		return provision.FaultTransient
	case status >= 400 && status < 500: // nothing was made
		return provision.FaultInvalid
	}
	return provision.FaultTransient
}

// refusalOf is the cloud's own answer in an error; nil when there is none.
func refusalOf(err error) common.ServiceError {
	var no common.ServiceError
	if errors.As(err, &no) {
		return no
	}
	return nil
}

func codeOf(err error) string {
	if no := refusalOf(err); no != nil {
		return no.GetCode()
	}
	return ""
}

// aboutToken reports whether a launch was refused for what its token was used for before: another body, as after the coordinator's address has
// changed, or an instance that is over.
func aboutToken(err error) bool {
	no := refusalOf(err)
	return no != nil && (no.GetCode() == codeSpent || no.GetHTTPStatusCode() < 500 && strings.Contains(strings.ToLower(no.GetMessage()), "retry token"))
}

// explain makes the cloud's answer, or its absence, a fault. The response is nil where there was none.
func (p *Provisioner) explain(op string, err error, resp *http.Response) error {
	if err == nil {
		return nil
	}
	no := refusalOf(err)
	if no == nil {
		return provision.Errorf(provision.FaultTransient, op, "%w", err)
	}
	said := cloud.Answer(no.GetCode()+": "+no.GetMessage(), err)
	out := provision.Errorf(faultOf(no.GetHTTPStatusCode(), no.GetCode(), no.GetMessage()), op, "%w", said)
	header := http.Header{}
	if resp != nil {
		header = resp.Header
	}
	switch {
	case out.Fault == provision.FaultThrottled:
		cloud.Throttled(out, header)
	case no.GetHTTPStatusCode() == http.StatusUnauthorized:
		if skewed := cloud.Skewed(op, said, header, p.now()); skewed != nil {
			return skewed
		}
	case no.GetCode() == codeNotFound:
		out.Hint = "the image, the subnet, the shape or the compartment " + p.compartment + " is not there, or the coordinator's user may not use it: the cloud does not say which"
	}
	return out
}

// tooMany is a list without an end.
func tooMany(what string) error {
	return fmt.Errorf("cannot list %s: more than %d pages", what, mostPages)
}
