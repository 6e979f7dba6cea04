package sctpddptest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

func send(t *testing.T, a *sctpddptest.Assoc, text string) uint64 {
	t.Helper()
	id, err := a.Send(1, 16, bytes.NewReader([]byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Everything arrives, once, in an order that the seed gives; what is missing and what is
// acknowledged is told as SCTP would.
func TestAssoc(t *testing.T) {
	for _, l := range []sctpddptest.Link{{}, {Seed: 3, Reorder: 10},
		{Seed: 3, Reorder: 10, Shuffle: true}} {
		a, b := sctpddptest.NewPair(l)
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprintf("message %02d", i))
			if id := send(t, a, want[i]); id != uint64(i+1) {
				t.Fatalf("id %d", id)
			}
		}
		var got []string
		var kept [][]byte
		seen, highest := map[string]bool{}, 0
		for {
			m, ok := b.Next()
			if !ok {
				break
			}
			var n int
			fmt.Sscanf(string(m.Data), "message %d", &n)
			got, kept = append(got, string(m.Data)), append(kept, m.Data)
			seen[string(m.Data)] = true
			highest = max(highest, n+1)
			if missing := highest - len(got); m.Missing != missing && !l.Shuffle || l.Shuffle &&
				m.Missing != 0 {
				t.Fatalf("%d missing, want %d", m.Missing, missing)
			}
			cum := 0
			for cum < 100 && seen[want[cum]] {
				cum++
			}
			if a.Acked() != uint64(cum) || !m.Unordered || m.Stream != 1 || m.PPID != 16 {
				t.Fatalf("%d acknowledged, want %d; %+v", a.Acked(), cum, m)
			}
		}
		if slices.Equal(got, want) != (l.Reorder == 0) {
			t.Errorf("%+v: order %q", l, got[:10])
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %q", l, got)
		}
		if !bytes.Equal(kept[0], bytes.Repeat([]byte{0xdb}, len(kept[0]))) {
			t.Errorf("what was shown is still %q", kept[0])
		}
	}
}

func TestAssocControls(t *testing.T) {
	a, b := sctpddptest.NewPair(sctpddptest.Link{Room: 2, Out: 3, In: 5})
	send(t, a, "0123")
	send(t, a, "4567")
	if id := send(t, a, "no room"); id != 0 || a.UnderWay() != 2 {
		t.Errorf("id %d, %d under way", id, a.UnderWay())
	}
	a.Hold()
	if _, ok := b.Next(); ok {
		t.Error("a held message arrived")
	}
	a.Release()
	a.HoldAcks()
	if i := b.Find(1, 16, '4'<<8|'5'); i != 1 {
		t.Errorf("found at %d", i)
	}
	if m := b.Pick(1); string(m.Data) != "4567" || m.Missing != 1 {
		t.Errorf("%+v", m)
	}
	b.Next()
	if a.Acked() != 0 {
		t.Error("an acknowledgement that is held")
	}
	a.ReleaseAcks()
	if a.Acked() != 2 || b.Find(1, 16, 0) != -1 {
		t.Errorf("%d acknowledged", a.Acked())
	}
	if out, in := b.Streams(); out != 5 || in != 3 {
		t.Errorf("%d out, %d in", out, in)
	}
	b.Code, b.None = 7, true
	if code, ok := a.PeerAdaptation(); code != 7 || ok {
		t.Errorf("%d, %t", code, ok)
	}
	a.Fail = io.ErrClosedPipe
	if _, err := a.Send(0, 0, bytes.NewReader([]byte("x"))); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	a.SetMaxPayload(99)
	if a.Shutdown(); a.MaxPayload() != 99 || b.MaxPayload() != 1432 || a.Downs != 1 ||
		len(a.Log()) != 2 {
		t.Errorf("%d, %d, %d, %d", a.MaxPayload(), b.MaxPayload(), a.Downs, len(a.Log()))
	}
}
