package llp

import (
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
)

// A bare stream is one of a Network that can do nothing beside; it counts how often it was aborted.
type bare struct {
	iwarp.Stream
	aborted int
}

func (b *bare) Abort() { b.aborted++ }

// A rich stream is one that can do all of it.
type rich struct {
	bare
	prompt   func(more func() bool)
	prefetch func()
}

func (r *rich) SetPrompt(f func(more func() bool)) { r.prompt = f }
func (r *rich) SetPrefetch(f func())               { r.prefetch = f }
func (r *rich) Prefetch()                          { r.prefetch() }

// A Network's stream has what it can do, and the defaults for the rest; a Stream is what it says.
func TestOf(t *testing.T) {
	b := &bare{}
	s := Of(b)
	s.SetPrompt(func(func() bool) { t.Error("called") })
	if s.SetPrefetch(func() { t.Error("called") }) {
		t.Error("a stream that cannot prefetch can")
	}
	s.Prefetch()
	if err := s.Peek(nil); err != nil {
		t.Error(err)
	}
	s.Flush()
	if err := s.Attach(nil); err != nil || s.Properties() != (Properties{}) {
		t.Errorf("attach: %v; properties %+v", err, s.Properties())
	}
	if s.Abandon(); b.aborted != 1 {
		t.Errorf("aborted %d times when it was abandoned", b.aborted)
	}

	r, n := &rich{}, 0
	s = Of(r)
	if !s.SetPrefetch(func() { n++ }) {
		t.Error("a stream that can prefetch cannot")
	}
	s.Prefetch()
	s.SetPrompt(func(func() bool) { n++ })
	if r.prompt(nil); n != 2 {
		t.Errorf("called %d times, want 2", n)
	}
	x, _ := NewPipe(netip.AddrPort{}, netip.AddrPort{})
	if p := x.Properties(); p.Transport != Memory || !p.Records || p.Ahead {
		t.Errorf("a pipe has properties %+v", p)
	}
}
