package limitlog

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
	h := New(slog.NewTextHandler(&out, nil)).WithAttrs([]slog.Attr{slog.String("a", "b")})
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
	if lines() != Burst {
		t.Fatalf("a thousand messages made %d lines, want %d", lines(), Burst)
	}
	log("another kind")
	if lines() != Burst+1 {
		t.Fatal("one noisy kind has silenced another")
	}
	now = now.Add(Interval)
	log("violation")
	log("violation")
	if lines() != Burst+2 || !strings.Contains(out.String(), "dropped_before=990") {
		t.Fatalf("after the interval: want one line that counts what was dropped:\n%s", out.String())
	}
	now = now.Add(time.Hour)
	for range 1000 {
		log("violation")
	}
	if want := 2*Burst + 2; lines() != want {
		t.Fatalf("after a quiet hour: %d lines, want %d", lines(), want)
	}
	for i := range 10 * maxKinds {
		log(fmt.Sprint("made up ", i))
	}
	if s := h.(*handler).state; len(s.kinds) > maxKinds+1 {
		t.Fatalf("%d kinds are remembered, want at most %d", len(s.kinds), maxKinds+1)
	}
}
