// Package limitlog limits what a log takes of each kind of message: whoever makes the daemon log, a
// peer or a client, cannot fill the disk.
package limitlog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// What one kind of message may write: Burst records at once, and then one each Interval.
const (
	Burst    = 10
	Interval = 5 * time.Second

	maxKinds = 256 // that are told apart; what comes beyond shares one budget
)

// A handler passes records on while their kind, which is level and message without the attributes,
// has budget left. What it drops it counts, and says so with the next that passes.
type handler struct {
	next  slog.Handler
	state *state
}

type state struct {
	mu    sync.Mutex
	kinds map[kind]*budget // guarded by mu
}

type kind struct {
	level slog.Level
	msg   string
}

type budget struct {
	*rate.Limiter
	dropped int
}

// New returns a handler that passes on to next what is within the limits, by the times of the
// records.
func New(next slog.Handler) slog.Handler {
	if _, ok := next.(*handler); ok {
		return next
	}
	return &handler{next, &state{kinds: make(map[kind]*budget)}}
}

func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

func (h *handler) WithAttrs(a []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(a), h.state}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.next.WithGroup(name), h.state}
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	dropped, pass := h.state.take(kind{r.Level, r.Message}, r.Time)
	if !pass {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("dropped_before", dropped))
	}
	return h.next.Handle(ctx, r)
}

// take spends one of k's budget, if there is some, and says how many were dropped since the last.
func (s *state) take(k kind, now time.Time) (dropped int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds[k] == nil && len(s.kinds) >= maxKinds {
		k = kind{}
	}
	b := s.kinds[k]
	if b == nil {
		b = &budget{Limiter: rate.NewLimiter(rate.Every(Interval), Burst)}
		s.kinds[k] = b
	}
	if !b.AllowN(now, 1) {
		b.dropped++
		return 0, false
	}
	dropped, b.dropped = b.dropped, 0
	return dropped, true
}
