package azure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

const (
	codeNotAllowed = "OperationNotAllowed" // of quotas too: the text tells
	codeExists     = "PreconditionFailed"  // of a call that only makes
	codeChange     = "PropertyChangeNotAllowed"
)

// faultOf is what the cloud's answers mean here: those to calls, with their status, and the failures of machines that it was to make, with 0. Codes that
// differ in their ends only, as for one zone, mean the same.
func faultOf(status int, code, message string) provision.Fault {
	switch code {
	case "SkuNotAvailable", "AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest", "SubnetIsFull",
		"NotEnoughCapacity", "InsufficientCapacity", "VMAllocationFailed", "DiskAllocationFailed":
		return provision.FaultNoCapacity
	case "QuotaExceeded", "ResourceQuotaExceeded", "CoresQuotaExceeded", "LowPriorityQuotaHasBeenReached", "SpotQuotaExceeded":
		return provision.FaultQuota
	case codeNotAllowed, "Conflict", "BadRequest", "InternalExecutionError", "InvalidParameter":
		if about(message, "quota") {
			return provision.FaultQuota
		}
	case "TooManyRequests", "SubscriptionRequestsThrottled", "ResourceRequestsThrottled", "OperationThrottled", "RateLimitExceeded":
		return provision.FaultThrottled
	case "AuthorizationFailed", "LinkedAuthorizationFailed", "LinkedAccessCheckFailed", "AuthenticationFailed", "InvalidAuthenticationToken", "ExpiredAuthenticationToken",
		"InvalidAuthenticationTokenTenant", "AuthenticationFailedMissingToken", "RequestDisallowedByPolicy", "RequestDisallowedByAzure", "ScopeLocked", "SubscriptionNotFound", "DisabledSubscription",
		"ReadOnlyDisabledSubscription", "MissingSubscriptionRegistration", "MarketplacePurchaseEligibilityFailed", "ResourcePurchaseValidationFailed", "ResourcePurchaseCanceled":
		return provision.FaultDenied
	case "ResourceNotFound", "ResourceGroupNotFound", "NotFound":
		return provision.FaultNotFound
	case "OperationPreempted", "PreemptedByAnotherOperation", "EvictedBySpot", "SpotEviction": // it was ended while it was made
		return provision.FaultInterrupted
	case "AnotherOperationInProgress", "RetryableError", "RetryableErrorDueToAnotherOperation", "NicReservedForAnotherVm", "ReferencedResourceNotProvisioned", "InUseSubnetCannotBeUpdated",
		"InternalServerError", "InternalOperationError", "NetworkingInternalOperationError", "VMStartTimedOut", "OSProvisioningTimedOut", "OSProvisioningInternalError", "OSProvisioningClientError",
		"ProvisioningTimeout", "VMExtensionProvisioningTimeout":
		return provision.FaultTransient
	}
	switch {
	case status == http.StatusTooManyRequests:
		return provision.FaultThrottled
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return provision.FaultDenied
	case status == http.StatusNotFound:
		return provision.FaultNotFound
	case status == http.StatusConflict, status == http.StatusRequestTimeout: // something else changes the same thing, or is late
		return provision.FaultTransient
	case status >= 400 && status < 500: // nothing was made
		return provision.FaultInvalid
	}
	return provision.FaultTransient
}

func about(message, word string) bool { return strings.Contains(strings.ToLower(message), word) }

// refusal is the cloud's own answer in an error.
type refusal struct {
	status        int
	code, message string
	header        http.Header
	err           error
}

// refusalOf finds the cloud's answer; nil when there is none. A code that only says that there are others in it gives way to the first of them.
func refusalOf(err error) *refusal {
	var no *azcore.ResponseError
	if !errors.As(err, &no) {
		return nil
	}
	out := &refusal{status: no.StatusCode, code: no.ErrorCode, header: http.Header{}, err: err}
	if no.RawResponse == nil {
		return out
	}
	out.header = no.RawResponse.Header
	body, _ := runtime.Payload(no.RawResponse)
	type detail struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	var said struct {
		Error struct {
			detail
			Details []detail `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &said) != nil {
		return out
	}
	out.message = said.Error.Message
	general := out.code == "" || out.code == "DeploymentFailed" || out.code == "Conflict" || out.code == "BadRequest"
	if d := said.Error.Details; general && len(d) > 0 && d[0].Code != "" {
		out.code, out.message = d[0].Code, d[0].Message
	}
	return out
}

func (r *refusal) fault() provision.Fault { return faultOf(r.status, r.code, r.message) }

func (r *refusal) text() string {
	message, _, _ := strings.Cut(r.message, "\n")
	switch {
	case r.code == "" && message == "":
		return fmt.Sprintf("status %d", r.status)
	case message == "":
		return r.code
	}
	return r.code + ": " + strings.TrimSpace(message)
}

// explain makes the cloud's answer, or its absence, a fault.
func (p *Provisioner) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	no := refusalOf(err)
	if no == nil {
		return p.keyless(op, err)
	}
	said := cloud.Answer(no.text(), err)
	out := provision.Errorf(no.fault(), op, "%w", said)
	switch {
	case out.Fault == provision.FaultThrottled:
		cloud.Throttled(out, no.header)
	case no.status == http.StatusUnauthorized:
		if skewed := cloud.Skewed(op, said, no.header, p.now()); skewed != nil {
			return skewed
		}
	case no.code == "MissingSubscriptionRegistration":
		out.Hint = "register Microsoft.Compute and Microsoft.Network with the subscription: the coordinator does not do that itself"
	case no.code == "ScopeLocked":
		out.Hint = "a lock on the resource group or above keeps the coordinator from ending what it has launched"
	}
	return out
}

// keyless explains that no call was made, as there is no token for it, or that one had no answer.
func (p *Provisioner) keyless(op string, err error) error {
	var none *noToken
	var no *azidentity.AuthenticationFailedError
	text, _, _ := strings.Cut(err.Error(), "\n")
	switch {
	case !errors.As(err, &none), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case errors.As(err, &no) && no.RawResponse == nil: // the sign-in was not reached
	case no != nil:
		status := no.RawResponse.StatusCode
		said := cloud.Answer(signIn(no.RawResponse), err)
		if status >= 500 || status == http.StatusTooManyRequests {
			return provision.Errorf(provision.FaultTransient, op, "%w", said)
		}
		if skewed := cloud.Skewed(op, said, no.RawResponse.Header, p.now()); skewed != nil {
			return skewed
		}
		return withoutKeys(op, said)
	default: // there are no credentials
		return withoutKeys(op, cloud.Answer(text, err))
	}
	return provision.Errorf(provision.FaultTransient, op, "%w", cloud.Answer(text, err))
}

func withoutKeys(op string, why error) error {
	out := provision.Errorf(provision.FaultDenied, op, "%w", why)
	out.Hint = "give the backend a credentialFile, the coordinator AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or its machine an identity"
	return out
}

// signIn is what the vendor's sign-in says.
func signIn(resp *http.Response) string {
	body, _ := runtime.Payload(resp)
	var said struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	if json.Unmarshal(body, &said) != nil || said.Error == "" {
		return fmt.Sprintf("no token: status %d", resp.StatusCode)
	}
	first, _, _ := strings.Cut(said.Description, "\n")
	return "no token: " + said.Error + ": " + strings.TrimSpace(first)
}

// tooMany is a list without an end.
func tooMany(what string) error {
	return fmt.Errorf("cannot list %s: more than %d pages", what, mostPages)
}
