package store

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sort"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger sends etcd's warnings and errors to log and drops the rest. What etcd calls fatal
// (a write to its log failed, a file is damaged) becomes a panic with the reason: while the store
// opens it turns into an error, later it ends the process, which must not go on without its disk.
func zapLogger(log *slog.Logger) *zap.Logger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	core := &slogCore{log: log.With("part", "etcd")}
	return zap.New(core, zap.WithFatalHook(panicHook{}))
}

type panicHook struct{}

// OnWrite implements zapcore.CheckWriteHook.
func (panicHook) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	text := e.Message
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	if cause, ok := enc.Fields["error"]; ok {
		text = fmt.Sprintf("%s: %v", text, cause)
	}
	panic(text)
}

type slogCore struct {
	log *slog.Logger
}

var _ zapcore.Core = (*slogCore)(nil)

// expected are warnings about what we chose on purpose.
func expected(message string) bool {
	return slices.Contains([]string{
		"Running http and grpc server on single port. This is not recommended for production.",
		"simple token is not cryptographically signed",
		"exceeded recommended request limit",
	}, message)
}

func (s *slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (s *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{log: s.log.With(attributes(fields)...)}
}

func (s *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if s.Enabled(e.Level) && !expected(e.Message) {
		return ce.AddCore(e, s)
	}
	return ce
}

func (s *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	s.log.Log(context.Background(), level, e.Message, attributes(fields)...)
	return nil
}

func (s *slogCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	keys := make([]string, 0, len(enc.Fields))
	for k := range enc.Fields {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	out := make([]any, 0, len(keys))
	for _, k := range keys {
		out = append(out, slog.Any(k, enc.Fields[k]))
	}
	return out
}
