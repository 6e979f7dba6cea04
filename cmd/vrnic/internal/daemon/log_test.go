package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLogIsLimited(t *testing.T) {
	var out bytes.Buffer
	h := limitLog(slog.NewTextHandler(&out, nil)).WithAttrs([]slog.Attr{slog.String("a", "b")})
	now := time.Unix(1000, 0)
	log := func(msg string) {
		if err := h.Handle(context.Background(), slog.NewRecord(now, slog.LevelWarn, msg,
			0)); err != nil {
			t.Fatal(err)
		}
	}
	lines := func() int {
		n := strings.Count(out.String(), "\n")
		return n
	}
	for range 1000 {
		log("violation")
	}
	if lines() != logBurst {
		t.Fatalf("a thousand messages made %d lines, want %d", lines(), logBurst)
	}
	log("another kind")
	if lines() != logBurst+1 {
		t.Fatal("one noisy kind has silenced another")
	}
	now = now.Add(logInterval)
	log("violation")
	log("violation")
	if lines() != logBurst+2 || !strings.Contains(out.String(), "dropped_before=990") {
		t.Fatalf("after the interval: want one line that counts what was dropped:\n%s", out.String())
	}
	now = now.Add(time.Hour)
	for range 1000 {
		log("violation")
	}
	if want := 2*logBurst + 2; lines() != want {
		t.Fatalf("after a quiet hour: %d lines, want %d", lines(), want)
	}
	for i := range 10 * logKinds {
		log(fmt.Sprint("made up ", i))
	}
	if s := h.(*limitedHandler).state; len(s.kinds) > logKinds+1 {
		t.Fatalf("%d kinds are remembered, want at most %d", len(s.kinds), logKinds+1)
	}
}
