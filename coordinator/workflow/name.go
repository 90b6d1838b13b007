package workflow

import "fmt"

// CheckName says why s cannot name a workflow or job; nil when it can.
func CheckName(s string) error {
	if why := badName(s); why != "" {
		return fmt.Errorf("%q is not a name: %s; %s", s, why, nameHint)
	}
	return nil
}
