package logs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"

	"substrate/coordinator"
)

const (
	// longName keeps a file name with its suffix well below the 255 bytes of common file systems.
	longName = 200
	keptName = 120 // what stays readable of a longer one
	maxRunID = 4096
)

// ErrName: a run id, workflow id or stream that none of ours has.
var ErrName = errors.New("bad name")

// encodeName makes any text a safe file name: small letters, digits and '-' stay, every other byte
// is "_xx". It never gives "..", a separator or a dot, and differs for different texts even on a
// file system that ignores case.
func encodeName(text string) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}

// decodeName undoes encodeName and refuses what encodeName would not give.
func decodeName(name string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '_' {
			b.WriteByte(name[i])
			continue
		}
		if i+3 > len(name) {
			return "", fmt.Errorf("%w: %q ends within an escape", ErrName, name)
		}
		c, err := hex.DecodeString(name[i+1 : i+3])
		if err != nil {
			return "", fmt.Errorf("%w: %q: %v", ErrName, name, err)
		}
		b.WriteByte(c[0])
		i += 2
	}
	if encodeName(b.String()) != name {
		return "", fmt.Errorf("%w: %q is not of our making", ErrName, name)
	}
	return b.String(), nil
}

// fileName is encodeName with long results cut and told apart by a hash, after "_h", which no
// plain encoding contains.
func fileName(text string) string {
	name := encodeName(text)
	if len(name) <= longName {
		return name
	}
	sum := sha256.Sum256([]byte(text))
	return name[:keptName] + "_h" + hex.EncodeToString(sum[:16])
}

// splitRun takes "<workflow>/<job…>#<attempt>" apart; rest names the run within its workflow.
func splitRun(run coordinator.RunID) (workflow coordinator.WorkflowID, rest string, err error) {
	w, rest, _ := strings.Cut(string(run), "/")
	job, attempt, _ := cutLast(rest, '#')
	if w == "" || job == "" || len(run) > maxRunID || !digits(attempt) {
		return "", "", fmt.Errorf("%w: run id %.80q is not <workflow>/<job>#<attempt>", ErrName, run)
	}
	return coordinator.WorkflowID(w), rest, nil
}

func cutLast(s string, sep byte) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// workflowDir is "<shard>/<workflow>": the shard keeps the top directory small.
func workflowDir(w coordinator.WorkflowID) (string, error) {
	name := encodeName(string(w))
	if name == "" || len(name) > longName {
		return "", fmt.Errorf("%w: workflow id %.80q", ErrName, w)
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	return filepath.Join(fmt.Sprintf("%02x", h.Sum32()&0xff), name), nil
}

// runPath is the path of the run's files below the top directory, without the stream's suffix.
func runPath(run coordinator.RunID) (workflow coordinator.WorkflowID, path string, err error) {
	w, rest, err := splitRun(run)
	if err != nil {
		return "", "", err
	}
	dir, err := workflowDir(w)
	if err != nil {
		return "", "", err
	}
	return w, filepath.Join(dir, fileName(rest)), nil
}
