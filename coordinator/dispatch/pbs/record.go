package pbs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// record is what a listing says of one job, as it says it. What it does not say is "".
type record struct {
	id                                                 string
	owner, state, substate, holds, comment, depend     string
	created, started, obit, modified, waits, remembers string
	runs, exit, hosts, walltime, rerunnable, mark      string
	seen                                               uint32 // of the attributes, by their place in attribute
}

// attribute is where the value of an attribute belongs, and its number; nil for one that means nothing here.
func (r *record) attribute(key []byte) (*string, uint32) {
	switch string(key) { // does not allocate
	case "Job_Owner":
		return &r.owner, 0
	case "job_state":
		return &r.state, 1
	case "substate":
		return &r.substate, 2
	case "Hold_Types":
		return &r.holds, 3
	case "comment":
		return &r.comment, 4
	case "depend":
		return &r.depend, 5
	case "ctime":
		return &r.created, 6
	case "stime":
		return &r.started, 7
	case "obittime":
		return &r.obit, 8
	case "mtime":
		return &r.modified, 9
	case "Execution_Time":
		return &r.waits, 10
	case "history_timestamp":
		return &r.remembers, 11
	case "run_count":
		return &r.runs, 12
	case "Exit_status":
		return &r.exit, 13
	case "exec_host":
		return &r.hosts, 14
	case "Rerunable":
		return &r.rerunnable, 15
	case "Resource_List.walltime":
		return &r.walltime, 16
	case "Variable_List":
		return nil, 17
	case "Resource_List":
		return nil, 18
	}
	return nil, 31
}

// once notes an attribute. A second one of the same name is somebody's text.
func (r *record) once(n uint32) error {
	if n == 31 {
		return nil
	}
	if r.seen&(1<<n) != 0 {
		return fmt.Errorf("%s: %w", r.id, errTwice)
	}
	r.seen |= 1 << n
	return nil
}

// likelyLimit bounds what is set aside for as many jobs as a listing seems to have, which somebody's text may have made up.
const likelyLimit = 4096

// parseJSON reads qstat -f -F json, and gives the records that keep wants.
func parseJSON(data []byte, keep func(*record) bool) ([]record, error) {
	s := scanner{data: data}
	var r record // one for all: it is as long as a page of text, and most are not kept
	likely := min(bytes.Count(data, []byte(`"job_state":`)), likelyLimit)
	list, ids := make([]record, 0, likely), make(map[string]bool, likely)
	err := s.whole("Jobs", func(id string) error {
		if ids[id] {
			return fmt.Errorf("%.40q: %w", id, errTwice)
		}
		ids[id] = true
		r = record{id: id}
		if err := s.object(func(key []byte) error { return s.job(&r, key) }); err != nil {
			return err
		}
		if keep(&r) {
			list = append(list, r)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the listing is no JSON that can be trusted: %w", err)
	}
	return list, nil
}

func (s *scanner) job(r *record, key []byte) error {
	into, n := r.attribute(key)
	if err := r.once(n); err != nil {
		return err
	}
	nested := s.next() == '{'
	switch {
	case n == 17 && nested:
		marks := 0
		err := s.object(func(key []byte) error {
			if string(key) != markVariable {
				return s.skip(0)
			}
			marks++
			text, _, err := s.scalar()
			r.mark = text
			return err
		})
		if marks > 1 {
			r.mark = ""
		}
		return err
	case n == 18 && nested:
		return s.object(func(key []byte) error {
			if string(key) != "walltime" {
				return s.skip(0)
			}
			if err := r.once(16); err != nil {
				return err
			}
			text, _, err := s.scalar()
			r.walltime = text
			return err
		})
	case into == nil:
		return s.skip(0)
	}
	text, _, err := s.scalar()
	*into = text
	return err
}

// parseDSV reads qstat -f -F dsv with a delimiter that stands in no value.
func parseDSV(data []byte, delimiter string, keep func(*record) bool) ([]record, error) {
	var list []record
	ids := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		rest, ok := strings.CutPrefix(line, "Job Id: ")
		if !ok {
			return nil, fmt.Errorf("a line of the listing is no job: %.60q", line)
		}
		id, rest, _ := strings.Cut(rest, delimiter)
		if ids[id] {
			return nil, fmt.Errorf("%.40q: %w", id, errTwice)
		}
		ids[id] = true
		r := record{id: id}
		for field := range strings.SplitSeq(rest, delimiter) {
			if err := r.field(field); err != nil {
				return nil, err
			}
		}
		if keep(&r) {
			list = append(list, r)
		}
	}
	return list, nil
}

func (r *record) field(field string) error {
	key, value, ok := strings.Cut(field, "=")
	if !ok {
		return nil // the end of a value of somebody else's that holds what we take for the end of a field
	}
	into, n := r.attribute([]byte(key))
	if err := r.once(n); err != nil {
		return err
	}
	switch {
	case n == 17:
		// Commas in values are not told from those between variables. Ours holds none, and one that stands twice is none of ours.
		marks := 0
		for v := range strings.SplitSeq(value, ",") {
			if text, is := strings.CutPrefix(v, markVariable+"="); is {
				r.mark, marks = text, marks+1
			}
		}
		if marks > 1 {
			r.mark = ""
		}
	case into != nil:
		*into = valid(value)
	}
	return nil
}

// clockText is how PBS writes times, in the zone of its client, which we make UTC.
const clockText = "Mon Jan _2 15:04:05 2006"

func parseTime(text string) time.Time {
	if t, err := time.Parse(clockText, text); err == nil {
		return t
	}
	return parseEpoch(text)
}

func parseEpoch(text string) time.Time {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 && n < 1<<40 {
		return time.Unix(n, 0).UTC()
	}
	return time.Time{}
}

var errDuration = errors.New("no duration")

// parseDuration reads "hh:mm:ss" with any number of hours, and seconds alone.
func parseDuration(text string) (time.Duration, error) {
	var total int64
	parts := strings.Split(text, ":")
	if len(parts) > 3 {
		return 0, fmt.Errorf("%.40q: %w", text, errDuration)
	}
	for _, p := range parts {
		n, err := strconv.ParseUint(p, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("%.40q: %w", text, errDuration)
		}
		total = total*60 + int64(n)
	}
	const most = 1 << 33 // seconds, which fit into a time.Duration
	if total > most {
		return 0, fmt.Errorf("%.40q: %w", text, errDuration)
	}
	return time.Duration(total) * time.Second, nil
}

// formatDuration writes a walltime, rounded up to a second.
func formatDuration(d time.Duration) string {
	s := int64((d + time.Second - 1) / time.Second)
	return fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
}

// number is a count, or otherwise.
func number(text string, otherwise int) int {
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	return otherwise
}

// nodes are the hosts of exec_host, "n1/0*4+n2/1", each once in its order.
func (r *record) nodes() []string {
	if r.hosts == "" {
		return nil
	}
	var list []string
	seen := map[string]bool{}
	one := !strings.Contains(r.hosts, "+")
	for part := range strings.SplitSeq(r.hosts, "+") {
		host, _, _ := strings.Cut(part, "/")
		switch {
		case host != "" && one:
			return []string{host}
		case host != "" && !seen[host]:
			seen[host] = true
			list = append(list, host)
		}
	}
	return list
}

// user is the account of "alice@host".
func (r *record) user() string {
	user, _, _ := strings.Cut(r.owner, "@")
	return user
}

// sequence is the number of an id that a submission of ours can have; arrays and what names no server are none.
func sequence(id dispatch.ObjectID) (uint64, bool) {
	digits, server, ok := strings.Cut(string(id), ".")
	if !ok || server == "" || len(server) > 200 || len(digits) == 0 || len(digits) > 12 || len(digits) > 1 && digits[0] == '0' {
		return 0, false
	}
	for i := range len(server) {
		c := server[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && digits[0] != '+'
}

func checkID(op string, id dispatch.ObjectID) error {
	if _, ok := sequence(id); !ok {
		return fmt.Errorf("cannot %s: %w: %.40q is no job's identifier with its server", op, dispatch.ErrNotFound, string(id))
	}
	return nil
}
