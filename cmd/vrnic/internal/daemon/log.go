package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// What one kind of message may write: a burst, and then one each interval. A peer or a client
// that makes the daemon log cannot fill the disk.
const (
	logBurst    = 10
	logInterval = 5 * time.Second
	logKinds    = 256 // kinds that are told apart; what comes beyond shares one budget
)

// A limitedHandler passes records on while their kind, which is level and message without the
// attributes, has budget left. What it drops it counts, and says so with the next that passes.
type limitedHandler struct {
	next  slog.Handler
	state *limitState
}

type limitState struct {
	mu    sync.Mutex
	kinds map[logKind]*logBudget // guarded by mu
}

type logKind struct {
	level slog.Level
	msg   string
}

type logBudget struct {
	left    int
	refill  time.Time // when left grows by one next
	dropped int
}

func limitLog(next slog.Handler) slog.Handler {
	return &limitedHandler{next, &limitState{kinds: make(map[logKind]*logBudget)}}
}

func (h *limitedHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.next.Enabled(ctx, l)
}

func (h *limitedHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return &limitedHandler{h.next.WithAttrs(a), h.state}
}

func (h *limitedHandler) WithGroup(name string) slog.Handler {
	return &limitedHandler{h.next.WithGroup(name), h.state}
}

func (h *limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	dropped, pass := h.state.take(logKind{r.Level, r.Message}, r.Time)
	if !pass {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("dropped_before", dropped))
	}
	return h.next.Handle(ctx, r)
}

// take spends one of kind's budget, if there is some, and says how many were dropped since the last.
func (s *limitState) take(kind logKind, now time.Time) (dropped int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.kinds[kind]
	if b == nil {
		if len(s.kinds) >= logKinds {
			kind = logKind{}
			b = s.kinds[kind]
		}
		if b == nil {
			b = &logBudget{left: logBurst, refill: now.Add(logInterval)}
			s.kinds[kind] = b
		}
	}
	if n := now.Sub(b.refill)/logInterval + 1; !now.Before(b.refill) {
		b.left = min(logBurst, b.left+int(min(n, logBurst)))
		b.refill = now.Add(logInterval)
	}
	if b.left == 0 {
		b.dropped++
		return 0, false
	}
	b.left--
	dropped, b.dropped = b.dropped, 0
	return dropped, true
}
