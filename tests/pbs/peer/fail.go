package main

// fail is a refusal of the server: its number and what goes with the text. Exit codes are the number modulo 256.
type fail struct {
	Code  int
	Extra string // what follows the text
	Whole string // the text, if it is not the one of the number
	Bare  bool   // no job's id behind it
}

func (f *fail) Error() string { return f.text() }

func (f *fail) exit() int { return f.Code % 256 }

const (
	unknownJob      = 15001
	noAttribute     = 15002
	readOnly        = 15003
	badRequest      = 15004
	notPermitted    = 15007
	unknownHost     = 15008
	noServer        = 15010
	badSignal       = 15013
	badValue        = 15014
	notWhileRunning = 15015
	badState        = 15016
	unknownQueue    = 15018
	queueDisabled   = 15021
	badUser         = 15023
	unknownResource = 15035
	overLimits      = 15036
	notRerunnable   = 15038
	momUnreachable  = 15070
	unknownNode     = 15062
	arrayTooLong    = 15107
	selectWithOld   = 15109 // 5: "select" beside an old resource
	duplicateInPart = 15116 // 12
	hookRejected    = 15136
	jobFinished     = 15139
	queueFull       = 15142
)

func (f *fail) text() string {
	s := f.Whole
	if s == "" {
		s = failText(f.Code)
	}
	if f.Extra != "" {
		s += " " + f.Extra
	}
	return s
}

// failText is what the commands say for a number.
func failText(code int) string {
	switch code {
	case unknownJob:
		return "Unknown Job Id"
	case noAttribute:
		return "Error (15002) submitting job"
	case readOnly:
		return "Cannot set attribute, read only or insufficient permission "
	case badRequest:
		return "Invalid request"
	case notPermitted:
		return "Unauthorized Request "
	case badSignal:
		return "Unknown/illegal signal name"
	case badValue:
		return "Illegal attribute or resource value"
	case notWhileRunning:
		return "Cannot modify attribute while job running "
	case badState:
		return "Request invalid for state of job"
	case unknownQueue:
		return "Unknown queue"
	case queueDisabled:
		return "Queue is not enabled"
	case badUser:
		return "Bad UID for job execution"
	case unknownResource:
		return "Unknown resource"
	case overLimits:
		return "Job violates queue and/or server resource limits"
	case notRerunnable:
		return "job is not rerunnable"
	case momUnreachable:
		return "Server could not connect to MOM"
	case unknownNode:
		return "Unknown node "
	case arrayTooLong:
		return "Array job exceeds server or queue size limit"
	case jobFinished:
		return "Job has finished"
	}
	return "Unknown error"
}
