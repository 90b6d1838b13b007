package pbs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"substrate/coordinator/dispatch"
)

// node is what pbsnodes says of a host that counts here.
type node struct {
	name  string
	state string // a list with commas
	mom   string
	host  string
}

// silent reports whether the server has lost it. Just after its own start it shows nodes as down that it has not heard of yet.
func (n node) silent() bool {
	states := strings.Split(n.state, ",")
	return slices.Contains(states, "down") && !slices.Contains(states, "state-unknown")
}

// parseNodesJSON reads pbsnodes -a -F json.
func parseNodesJSON(data []byte) ([]node, error) {
	s := scanner{data: data}
	var list []node
	err := s.whole("nodes", func(name string) error {
		n := node{name: name}
		err := s.object(func(key []byte) error {
			switch string(key) {
			case "state":
				return s.into(&n.state)
			case "Mom":
				return s.into(&n.mom)
			case "resources_available":
				if s.next() != '{' {
					return s.skip(0)
				}
				return s.object(func(key []byte) error {
					if string(key) != "host" {
						return s.skip(0)
					}
					return s.into(&n.host)
				})
			}
			return s.skip(0)
		})
		list = append(list, n)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the list of nodes is no JSON: %w", err)
	}
	return list, nil
}

func (s *scanner) into(text *string) (err error) {
	*text, _, err = s.scalar()
	return err
}

// parseNodesDSV reads pbsnodes -a -F dsv: "Name=n1|Mom=n1|…" in a line for each.
func parseNodesDSV(data []byte, delimiter string) ([]node, error) {
	var list []node
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		var n node
		for field := range strings.SplitSeq(line, delimiter) {
			key, value, _ := strings.Cut(field, "=")
			switch key {
			case "Name":
				n.name = valid(value)
			case "state":
				n.state = valid(value)
			case "Mom":
				n.mom = valid(value)
			case "resources_available.host":
				n.host = valid(value)
			}
		}
		if n.name == "" {
			return nil, fmt.Errorf("a line of the list of nodes names none: %.60q", line)
		}
		list = append(list, n)
	}
	return list, nil
}

// silentNodes asks which hosts the server has lost, when one of the jobs has any. The server shows their jobs as running.
func (b *Backend) silentNodes(ctx context.Context, op string, records []record) (func(string) bool, error) {
	if !slices.ContainsFunc(records, func(r record) bool { return r.hosts != "" && strings.Contains("RSUE", r.state) }) {
		return nobody, nil
	}
	r, err := b.read(ctx, op, "pbsnodes", "-a", "-F", "json")
	if err != nil {
		return nil, err
	}
	list, err := parseNodesJSON(r.Stdout)
	if err != nil {
		delimiter := b.delimiter()
		if r, err = b.read(ctx, op, "pbsnodes", "-a", "-F", "dsv", "-D", delimiter); err != nil {
			return nil, err
		}
		if list, err = parseNodesDSV(r.Stdout, delimiter); err != nil {
			return nil, fmt.Errorf("cannot %s: %w: %w", op, dispatch.ErrUnavailable, err)
		}
	}
	lost := map[string]bool{}
	for _, n := range list {
		if !n.silent() {
			continue
		}
		// exec_host has the host's name as its own commands say it, which may be shorter than the node's.
		for _, name := range []string{n.name, n.mom, n.host} {
			if name != "" {
				short, _, _ := strings.Cut(name, ".")
				lost[name], lost[short] = true, true
			}
		}
	}
	return func(name string) bool { return lost[name] }, nil
}
