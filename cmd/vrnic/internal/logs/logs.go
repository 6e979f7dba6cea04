// Package logs is what becomes of a daemon's records: text or JSON, from the level on that is set
// for the part of the daemon that they come from.
package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// Part is the attribute that says which part of a daemon a logger is of; one without is the
// daemon's itself.
const Part = "part"

// Parts are the values of Part.
var Parts = []string{"clients", "rdma", "ipoib", "metrics"}

// Formats of records.
const (
	Text = "text"
	JSON = "json"
)

// CheckFormat says whether there is such a format; "" is Text.
func CheckFormat(s string) error {
	if s != Text && s != JSON && s != "" {
		return fmt.Errorf("log-format %q is neither %s nor %s", s, Text, JSON)
	}
	return nil
}

// Levels say from which level on records are written: of all parts, and of some.
type Levels struct {
	All slog.Level
	Of  map[string]slog.Level
}

// Set changes l by s, which is LEVEL for all parts, or PART=LEVEL, or several with commas between.
func (l *Levels) Set(s string) error {
	of := maps.Clone(l.Of)
	if of == nil {
		of = make(map[string]slog.Level)
	}
	all := l.All
	for item := range strings.SplitSeq(s, ",") {
		part, name, one := strings.Cut(item, "=")
		if !one {
			name = item
		}
		var level slog.Level
		if i := slices.Index(names, strings.ToLower(name)); i >= 0 {
			level = slog.LevelDebug + 4*slog.Level(i)
		} else {
			return fmt.Errorf("log-level %q: %q is none of %s", s, name, strings.Join(names, ", "))
		}
		switch {
		case !one:
			all = level
		case !slices.Contains(Parts, part):
			return fmt.Errorf("log-level %q: %q is none of %s", s, part, strings.Join(Parts, ", "))
		default:
			of[part] = level
		}
	}
	l.All, l.Of = all, of
	return nil
}

// names are slog's levels from debug on, each four above the one before.
var names = []string{"debug", "info", "warn", "error"}

// A handler passes records on from a level on.
type handler struct {
	slog.Handler
	levels *Levels
	level  slog.Level
}

// New writes records to w.
func New(w io.Writer, format string, l Levels) slog.Handler {
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	h := handler{levels: &l, level: l.All}
	if format == JSON {
		h.Handler = slog.NewJSONHandler(w, options)
	} else {
		h.Handler = slog.NewTextHandler(w, options)
	}
	return h
}

// Enabled implements slog.Handler.
func (h handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

// WithAttrs implements slog.Handler: Part decides on the level.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if level, ok := h.levels.Of[a.Value.String()]; ok && a.Key == Part {
			h.level = level
		}
	}
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}
