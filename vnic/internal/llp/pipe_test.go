package llp

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
)

// A segment is an iwarp.Source of one, read in parts.
type segment struct {
	b    []byte
	err  error // instead of its second half
	some int   // octets at once; 0: all
}

func (s *segment) Len() int { return len(s.b) }

func (s *segment) Read(p []byte) (int, error) {
	if s.err != nil && len(s.b) < 100 {
		return 0, s.err
	}
	if s.some > 0 {
		p = p[:min(len(p), s.some)]
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}

// A taker is what an Endpoint is to a pipe.
type taker struct {
	got    [][]byte
	refuse bool
}

func (k *taker) Write(p []byte) (int, error) { panic("not by segments") }

func (k *taker) Segment(seg []byte, size int) error {
	if k.refuse {
		return iwarp.ErrNoReceive
	}
	k.got = append(k.got, bytes.Clone(seg))
	return nil
}

// Segments of any length arrive as they were, in order, however the ring goes round; one that finds
// no room is told when there is some, and one that is refused comes again.
func TestPipe(t *testing.T) {
	x, y := NewPipe(netip.AddrPort{}, netip.AddrPort{})
	told := 0
	x.SetNotify(func() { told++ })
	rng := rand.New(rand.NewPCG(1, 2))
	k := &taker{}
	var want [][]byte
	full := 0
	for len(want) < 5000 {
		n := 1 + rng.IntN(200)
		if rng.IntN(4) == 0 {
			n = 1 + rng.IntN(iwarp.MaxRecord)
		}
		b := octets(n, byte(len(want)))
		sent, err := x.WriteFrom(&segment{b: b, some: rng.IntN(3) * 10000})
		switch {
		case err != nil:
			t.Fatal(err)
		case sent == n:
			want = append(want, b)
			if rng.IntN(8) > 0 {
				continue
			}
		case sent != 0:
			t.Fatalf("%d of %d octets taken", sent, n)
		default:
			full++
		}
		before := told
		k.refuse = true
		if n, err := y.ReadInto(k); n != 0 || err != nil {
			t.Fatalf("refused, and %d octets, %v", n, err)
		}
		k.refuse = false
		for len(k.got) < len(want) {
			if n, err := y.ReadInto(k); n == 0 || err != nil {
				t.Fatalf("%d segments of %d came: %d, %v", len(k.got), len(want), n, err)
			}
		}
		if sent == 0 && told == before {
			t.Fatal("nobody was told that there is room")
		}
		for i := range want {
			if !bytes.Equal(k.got[i], want[i]) {
				t.Fatalf("segment %d differs", i)
			}
		}
		want, k.got = want[:0], k.got[:0]
		if full > 50 {
			break
		}
	}
	if full <= 50 {
		t.Error("it was never full")
	}
	// A segment that cannot be read leaves nothing; the end comes behind what was sent.
	broken := errors.New("no such page")
	if n, err := x.WriteFrom(&segment{b: octets(200, 1), err: broken, some: 60}); n != 0 ||
		!errors.Is(err, broken) {
		t.Errorf("a segment that cannot be read: %d, %v", n, err)
	}
	x.WriteFrom(&segment{b: octets(10, 1)})
	x.CloseWrite()
	if n, err := x.WriteFrom(&segment{b: octets(10, 1)}); n != 0 || err == nil {
		t.Errorf("behind the end: %d, %v", n, err)
	}
	if n, err := y.ReadInto(k); n != 10 || err != nil || len(k.got) != 1 {
		t.Errorf("the last segment: %d, %v", n, err)
	}
	if n, err := y.ReadInto(k); n != 0 || err != io.EOF {
		t.Errorf("the end: %d, %v", n, err)
	}
	y.Abort()
	if _, err := x.ReadInto(k); !errors.Is(err, errPipeReset) {
		t.Errorf("reset: %v", err)
	}
}

func octets(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
	return b
}
