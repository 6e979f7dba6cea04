package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

var addrB = netip.MustParseAddr("10.0.0.2")

func connect(t *testing.T, n *fakeNet, spec Spec) *Pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	p, err := Connect(ctx, n.device("a"), n.device("b"), addrB, spec, rdma.ConnParam{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestRun(t *testing.T) {
	for _, op := range Ops {
		for _, depth := range []int{1, 2, 16} {
			for _, messages := range []int{2, 34, 200} {
				t.Run(fmt.Sprintf("%s depth %d, %d messages", op, depth, messages), func(t *testing.T) {
					p := connect(t, &fakeNet{}, Spec{Op: op, Size: 64, Depth: depth, Messages: messages})
					for range 2 { // a Pair can run more than once
						r, err := p.Run(ctxOf(t))
						if err != nil {
							t.Fatal(err)
						}
						if r.Messages != uint64(messages) || r.Elapsed <= 0 || r.BitsPerSecond(64) <= 0 {
							t.Errorf("%+v", r)
						}
						want := uint64(messages)
						if p.spec.PingPong() {
							want /= 2
						}
						if r.Times.Count() != want {
							t.Errorf("%d times, want %d", r.Times.Count(), want)
						}
					}
				})
			}
		}
	}
}

// Each octet that arrives changed is seen: before, and after.
func TestDamageIsSeen(t *testing.T) {
	for _, op := range Ops {
		for _, when := range []string{"before", "after"} {
			t.Run(fmt.Sprintf("%s %s", op, when), func(t *testing.T) {
				n := &fakeNet{}
				p := connect(t, n, Spec{Op: op, Size: 4096, Depth: 4, Messages: 8})
				bad := 3
				if when == "after" { // a lap, the messages, their notices
					bad += 4 + 8 + 2
				}
				n.damage = func(i int, _ rdma.Opcode, b []byte) {
					if i == bad {
						b[4095] ^= 0x80
					}
				}
				_, err := p.Run(ctxOf(t))
				if !errors.Is(err, errData) || !strings.HasPrefix(err.Error(), when) {
					t.Errorf("%v, want changed data %s", err, when)
				}
			})
		}
	}
}

// A request that fails ends the run at both ends.
func TestFailureEndsTheRun(t *testing.T) {
	for _, op := range Ops {
		for _, depth := range []int{1, 8} {
			for _, at := range []int{1, 5, 30, 60} {
				t.Run(fmt.Sprintf("%s depth %d message %d", op, depth, at), func(t *testing.T) {
					p := connect(t, &fakeNet{failAt: at}, Spec{Op: op, Size: 64, Depth: depth, Messages: 200})
					if _, err := p.Run(ctxOf(t)); err == nil {
						t.Error("the run succeeded")
					}
				})
			}
		}
	}
}

func TestCancelEndsTheRun(t *testing.T) {
	for _, op := range Ops {
		for _, depth := range []int{1, 8} {
			t.Run(fmt.Sprintf("%s depth %d", op, depth), func(t *testing.T) {
				n := &fakeNet{}
				p := connect(t, n, Spec{Op: op, Size: 64, Depth: depth, Time: time.Hour})
				ctx, cancel := context.WithCancel(t.Context())
				n.damage = func(i int, _ rdma.Opcode, _ []byte) {
					if i == 1000 {
						cancel()
					}
				}
				done := make(chan error)
				go func() {
					_, err := p.Measure(ctx)
					done <- err
				}()
				select {
				case err := <-done:
					if err == nil {
						t.Error("no error")
					}
				case <-time.After(30 * time.Second):
					t.Fatal("the run goes on")
				}
			})
		}
	}
}

func TestSpecCheck(t *testing.T) {
	ok := Spec{Op: Write, Size: 64, Depth: 1, Time: time.Second}
	if err := ok.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Spec){
		"op":        func(s *Spec) { s.Op = "atomic" },
		"size 0":    func(s *Spec) { s.Size = 0 },
		"size 12":   func(s *Spec) { s.Size = 12 },
		"too large": func(s *Spec) { s.Size = MaxSize + 8 },
		"depth 0":   func(s *Spec) { s.Depth = 0 },
		"too deep":  func(s *Spec) { s.Depth = MaxDepth + 1 },
		"memory":    func(s *Spec) { s.Size, s.Depth = MaxSize, MaxDepth },
		"no end":    func(s *Spec) { s.Time = 0 },
	} {
		s := ok
		if change(&s); s.Check() == nil {
			t.Errorf("%s: %+v is good", name, s)
		}
	}
}

func TestPattern(t *testing.T) {
	b := make([]byte, 1024)
	fill(b, 7)
	if err := verify(b, 7); err != nil {
		t.Error(err)
	}
	if verify(b, 8) == nil {
		t.Error("another seed has the same content")
	}
	for i := range b {
		b[i] ^= 1
		if verify(b, 7) == nil {
			t.Errorf("a change of octet %d is not seen", i)
		}
		b[i] ^= 1
	}
}
