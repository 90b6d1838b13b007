package hwinfo

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// parseUname reads a snapshot's uname file: lines "sysname: Linux" for each field of uname(2), unknown ones ignored.
// It exists because no file under proc holds the machine name.
func parseUname(r io.Reader) (u Uname, node string, err error) {
	data, err := readLimited(r, maxAttr)
	if err != nil {
		return Uname{}, "", err
	}
	for line := range lines(data) {
		key, value, ok := keyValue(line)
		if !ok {
			continue
		}
		value = clean(value)
		switch key {
		case "sysname":
			u.Sysname = value
		case "nodename":
			node = value
		case "release":
			u.Release = value
		case "version":
			u.Version = value
		case "machine":
			u.Machine = value
		}
	}
	return u, node, nil
}

func formatUname(u Uname, node string) []byte {
	return fmt.Appendf(nil, "sysname: %s\nnodename: %s\nrelease: %s\nversion: %s\nmachine: %s\n",
		u.Sysname, node, u.Release, u.Version, u.Machine)
}

const hostsFile = "etc/hosts"

// readFQDN takes a node name with a dot as it is, else the full name that etc/hosts gives it.
func (r *reader) readFQDN(node string) string {
	if node == "" || strings.Contains(node, ".") {
		return node
	}
	data, err := r.t.readRaw(hostsFile, maxHosts)
	if err != nil {
		if !absent(err) {
			r.warn(hostsFile, err)
		}
		return ""
	}
	fqdn, err := parseHosts(bytes.NewReader(data), node)
	if err != nil {
		r.warn(hostsFile, err)
		return ""
	}
	if r.t.rec != nil && fqdn != "" { // the other lines and the address are nobody's business
		r.t.rec.files[hostsFile] = []byte("127.0.1.1 " + fqdn + " " + node + "\n")
	}
	return fqdn
}

// parseHosts finds the name "node.domain" on a line of hosts(5) that names the node.
func parseHosts(r io.Reader, node string) (string, error) {
	data, err := readLimited(r, maxHosts)
	if err != nil {
		return "", err
	}
	for line := range lines(data) {
		line, _, _ = strings.Cut(line, "#")
		if !strings.Contains(line, node+".") {
			continue
		}
		names := strings.Fields(line)
		if len(names) < 2 {
			continue
		}
		for _, name := range names[1:] {
			full := clean(name)
			if rest, ok := strings.CutPrefix(strings.ToLower(full), strings.ToLower(node)+"."); ok &&
				rest != "" && !strings.HasPrefix(rest, "localdomain") {
				return strings.TrimSuffix(full, "."), nil
			}
		}
	}
	return "", nil
}
