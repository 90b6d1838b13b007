// Package daemon holds what the two daemons do alike at their start: flags from the environment and
// the log. It starts nothing.
package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"
)

// Lookup is os.LookupEnv.
type Lookup func(name string) (value string, ok bool)

// FromEnvironment sets the flags that were not given from their variables: with the prefix "X_",
// --data-dir is X_DATA_DIR.
func FromEnvironment(flags *pflag.FlagSet, prefix string, lookup Lookup) error {
	var failed []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := lookup(name)
		if !ok || f.Changed {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = append(failed, fmt.Errorf("cannot read environment variable %s: %w", name, err))
		}
	})
	return errors.Join(failed...)
}

// Logger writes lines of text. Those that the journal takes have no time: it adds its own.
func Logger(w io.Writer, level string, lookup Lookup) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{}
	switch strings.ToLower(level) {
	case "debug":
		opts.Level = slog.LevelDebug
	case "info":
		opts.Level = slog.LevelInfo
	case "warn":
		opts.Level = slog.LevelWarn
	case "error":
		opts.Level = slog.LevelError
	default:
		return nil, fmt.Errorf("cannot read --log-level: unknown level %q, expected debug, info, warn or error", level)
	}
	if stream, _ := lookup("JOURNAL_STREAM"); stream != "" {
		opts.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(slog.NewTextHandler(w, opts)), nil
}
