package aws

import (
	"errors"
	"net/http"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

// faultOfCode is what EC2's codes mean here. Only those are listed that a call of this package can be answered with.
func faultOfCode(code string) (provision.Fault, bool) {
	switch code {
	case "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacity", "UnfulfillableCapacity", "InsufficientFreeAddressesInSubnet",
		"ReservationCapacityExceeded", "MaxSpotInstanceCountExceeded", "MaxFleetCountExceeded", "SpotMaxPriceTooLow",
		"Unsupported": // the type in this zone
		return provision.FaultNoCapacity, true
	case "VcpuLimitExceeded", "InstanceLimitExceeded", "VolumeLimitExceeded", "MaxIOPSLimitExceeded":
		return provision.FaultQuota, true
	case "RequestLimitExceeded", "Throttling", "ThrottlingException", "EC2ThrottledException", "TooManyRequestsException":
		return provision.FaultThrottled, true
	case "UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AuthFailure", "SignatureDoesNotMatch", "InvalidClientTokenId",
		"UnrecognizedClientException", "ExpiredToken", "RequestExpired", "RequestTimeTooSkewed", "OptInRequired", "Blocked", "PendingVerification":
		return provision.FaultDenied, true
	case "InvalidInstanceID.NotFound":
		return provision.FaultNotFound, true
	case "InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable", "InvalidUserData.Malformed", "InvalidParameter",
		"InvalidParameterValue", "InvalidParameterCombination", "InvalidInstanceType", "InvalidInstanceID.Malformed", "InvalidSubnetID.NotFound",
		"InvalidGroup.NotFound", "InvalidSecurityGroupID.NotFound", "InvalidIamInstanceProfileArn.Malformed", "MissingParameter", "UnknownParameter",
		"InvalidAvailabilityZone", "TagLimitExceeded", tokenMismatch:
		return provision.FaultInvalid, true
	case tokenSpent:
		return provision.FaultInterrupted, true
	case "InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "RequestTimeout":
		return provision.FaultTransient, true
	}
	return provision.FaultNone, false
}

const (
	tokenMismatch = "IdempotentParameterMismatch"
	tokenSpent    = "IdempotentInstanceTerminated"
)

// aboutTime reports whether a code may mean that the clocks differ: EC2 does not say so, and answers as to wrong keys.
func aboutTime(code string) bool {
	switch code {
	case "AuthFailure", "SignatureDoesNotMatch", "RequestExpired", "RequestTimeTooSkewed":
		return true
	}
	return false
}

func codeOf(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	return ""
}

// explain makes EC2's answer, or its absence, a fault.
func (p *Provisioner) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	code := codeOf(err)
	fault, known := faultOfCode(code)
	header, status := http.Header{}, 0
	var resp *awshttp.ResponseError
	if errors.As(err, &resp) && resp.Response != nil && resp.Response.Response != nil {
		header, status = resp.Response.Header, resp.Response.StatusCode
	}
	switch {
	case known:
	case code != "" && status >= 400 && status < 500: // a refusal: nothing was made
		fault = provision.FaultInvalid
	default:
		fault = provision.FaultTransient
	}
	out := provision.Errorf(fault, op, "%w", cloud.Answer(said(err), err))
	switch {
	case fault == provision.FaultThrottled:
		cloud.Throttled(out, header)
	case aboutTime(code):
		if skewed := cloud.Skewed(op, out.Err, header, p.now()); skewed != nil {
			return skewed
		}
	}
	return out
}

func said(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode() + ": " + e.ErrorMessage()
	}
	return err.Error()
}
