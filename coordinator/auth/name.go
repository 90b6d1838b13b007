package auth

import (
	"fmt"
	"net/netip"
	"strings"

	"substrate/coordinator"
)

const (
	maxNodeName = 253
	maxLabel    = 63
)

// ParseNodeName takes lower-case RFC 1123 names: labels of letters, digits and inner hyphens.
// An IP address is refused, since it would read as one in a certificate and in a host list.
func ParseNodeName(name string) (coordinator.NodeID, error) {
	if err := checkNodeName(name); err != nil {
		return "", coordinator.Errorf(coordinator.ErrInvalid, fmt.Sprintf("use node name %.80q", name), "%w", err)
	}
	return coordinator.NodeID(name), nil
}

func checkNodeName(name string) error {
	if name == "" || len(name) > maxNodeName {
		return fmt.Errorf("it has %d bytes, expected 1 to %d", len(name), maxNodeName)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return fmt.Errorf("it is an address")
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel {
			return fmt.Errorf("a label has %d bytes, expected 1 to %d", len(label), maxLabel)
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("label %q begins or ends with a hyphen", label)
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return fmt.Errorf("label %q holds %q, expected a-z, 0-9 and hyphens", label, c)
			}
		}
	}
	return nil
}
