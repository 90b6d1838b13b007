package memory

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// launcher is the command that a script writes before what each process runs.
const launcher = "each"

// plan is what a script does from its start to its end.
type plan struct {
	pieces []piece
	length time.Duration
	code   int
	signal int
}

// piece is something written.
type piece struct {
	at     time.Duration
	stream dispatch.Stream
	data   string
}

// read works out what a script does. It knows these commands of a shell: true, false, :, exit, sleep, echo, printf of %s and plain text, pwd,
// kill of the script itself, and the launcher; with quotes, variables and >&2. Anything else is a command that is not there.
func read(script string, env map[string]string, workdir string, processes int) plan {
	r := reading{env: env, workdir: workdir, processes: processes}
	for line := range strings.Lines(script) {
		words, stream, ok := r.words(strings.TrimSuffix(line, "\n"))
		switch {
		case !ok:
			r.status = 2
			r.write(dispatch.Stderr, "sh: syntax error\n")
			return r.done(2)
		case len(words) == 0:
		case words[0] == "exit":
			return r.done(r.number(words, r.status))
		case words[0] == "kill" && len(words) == 3 && words[2] == "$$":
			signal, err := strconv.Atoi(strings.TrimPrefix(words[1], "-"))
			if err == nil && signal > 0 {
				r.plan.signal = signal
				return r.plan
			}
		default:
			r.run(words, stream)
		}
	}
	return r.done(r.status)
}

type reading struct {
	plan      plan
	env       map[string]string
	workdir   string
	processes int
	status    int
}

func (r *reading) done(code int) plan {
	r.plan.code = code & 0xff
	return r.plan
}

func (r *reading) write(s dispatch.Stream, text string) {
	if text != "" {
		r.plan.pieces = append(r.plan.pieces, piece{r.plan.length, s, text})
	}
}

func (r *reading) number(words []string, otherwise int) int {
	if len(words) > 1 {
		if n, err := strconv.Atoi(words[1]); err == nil {
			return n
		}
	}
	return otherwise
}

func (r *reading) run(words []string, stream dispatch.Stream) {
	r.status = 0
	switch words[0] {
	case ":", "true":
	case "false":
		r.status = 1
	case "sleep":
		r.plan.length += time.Duration(max(r.number(words, 0), 0)) * time.Second
	case "echo":
		r.write(stream, strings.Join(words[1:], " ")+"\n")
	case "printf":
		if len(words) > 1 {
			text := strings.ReplaceAll(words[1], `\n`, "\n")
			for _, arg := range words[2:] {
				text = strings.Replace(text, "%s", arg, 1)
			}
			r.write(stream, text)
		}
	case "pwd":
		r.write(stream, r.workdir+"\n")
	case launcher:
		for range r.processes {
			if len(words) > 1 {
				r.run(words[1:], stream)
			}
		}
	default:
		r.status = 127
		r.write(dispatch.Stderr, fmt.Sprintf("sh: %s: not found\n", words[0]))
	}
}

// words splits a line as a shell does.
func (r *reading) words(line string) (words []string, stream dispatch.Stream, ok bool) {
	var word strings.Builder
	in, quote := false, byte(0)
	end := func() {
		if in {
			words = append(words, word.String())
		}
		word.Reset()
		in = false
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == 0 && c == '#' && !in:
			i = len(line)
		case quote == 0 && (c == ' ' || c == '\t'):
			end()
		case quote == 0 && strings.HasPrefix(line[i:], ">&2"):
			end()
			stream = dispatch.Stderr
			i += 2
		case quote == 0 && (c == '"' || c == '\''):
			quote, in = c, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != '\'' && strings.HasPrefix(line[i:], "$$"):
			word.WriteString("$$")
			in = true
			i++
		case quote != '\'' && c == '$':
			name := variable(line[i+1:])
			word.WriteString(r.env[name])
			in = true
			i += len(name)
		default:
			word.WriteByte(c)
			in = true
		}
	}
	end()
	return words, stream, quote == 0
}

func variable(s string) string {
	n := 0
	for n < len(s) && (s[n] == '_' || s[n] >= 'A' && s[n] <= 'Z' || s[n] >= 'a' && s[n] <= 'z' || n > 0 && s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return s[:n]
}

// environment is what a script of an execution sees.
func environment(spec dispatch.Spec, id dispatch.ObjectID, n dispatch.Execution) map[string]string {
	env := map[string]string{"HOME": home}
	for _, k := range slices.Sorted(maps.Keys(spec.Env)) {
		env[k] = spec.Env[k]
	}
	env[dispatch.EnvJob] = string(spec.Ref.Job)
	env[dispatch.EnvSubmission] = fmt.Sprint(spec.Ref.Submission)
	env[dispatch.EnvAttempt] = fmt.Sprint(spec.Ref.Attempt)
	env[dispatch.EnvExecution] = fmt.Sprint(n)
	env[dispatch.EnvEpoch] = fmt.Sprintf("%d.%d", spec.Ref.Submission, n)
	env[dispatch.EnvObject] = string(id)
	return env
}

const home = "/home/user"
