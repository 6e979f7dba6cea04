package iwarp_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// A scarce Host has no receive.
type scarce struct{ Host }

func (scarce) PlaceWrite(STag, uint64, []byte, bool) error { return nil }
func (scarce) BeginReceive() (uint32, bool)                { return 0, false }
func (scarce) EndReadSource(Payload)                       {}

// behindStream is what a peer has sent: Sends and Writes of some lengths, with a Terminate at the
// end, from where a Write has been taken on.
func behindStream(lens []int, markers, crc bool, term []byte) (b []byte) {
	pos := uint32(0)
	add := func(seg []byte) {
		n := len(b)
		if markers {
			b = AppendMarkedFPDU(b, seg, crc, pos)
		} else {
			b = AppendFPDU(b, seg, crc)
		}
		pos += uint32(len(b) - n)
	}
	add(append(AppendUntagged(nil, true, OpSend, 0, 1, 0), 1, 2, 3))
	for i, n := range lens {
		h := AppendTagged(nil, true, OpWrite, 1, 2)
		if i%2 > 0 {
			h = AppendUntagged(nil, true, OpSend, 0, MSN(i), 0)
		}
		add(append(h, make([]byte, n)...))
	}
	add(term)
	return b
}

// A Terminate behind a Send that waits is found, wherever what is shown begins and ends, and
// nothing else ends the stream. RDMAP-075, RDMAP-126.
func TestLookout(t *testing.T) {
	want := TermCode{LayerRDMAP, 1, 2}
	term := (&Terminate{Cause: want}).Append(AppendUntagged(nil, true, OpTerminate, 2, 1, 0))
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		markers, crc := i&1 > 0, i&2 > 0
		lens := make([]int, rng.IntN(6))
		for j := range lens {
			lens[j] = rng.IntN(1 << rng.IntN(12))
		}
		b := behindStream(lens, markers, crc, term)
		e := NewEndpoint(Params{CRC: crc, MarkersIn: markers, Initiator: true}, scarce{}, Config{})
		n := 0
		for step := 1; !e.Stalled(); step++ { // some of the Send, up to all of what there is
			k, err := e.Write(b[n:min(n+rng.IntN(1<<rng.IntN(14))+1, len(b))])
			if n += k; e.Stalled() != errors.Is(err, ErrNoReceive) || step > len(b) {
				t.Fatalf("try %d: %v behind %d octets", i, err, n)
			}
		}
		for shown := n; shown < len(b); {
			if err := e.Err(); err != nil {
				t.Fatalf("try %d: %v behind %d octets of %d", i, err, shown, len(b))
			}
			shown = min(shown+rng.IntN(1<<rng.IntN(14))+1, len(b))
			l := e.Lookout()
			for at := n; at < shown; {
				k := min(rng.IntN(1<<rng.IntN(12))+1, shown-at)
				if m, err := l.Write(b[at : at+k]); m != k || err != nil {
					t.Fatalf("try %d: %d, %v of %d", i, m, err, k)
				}
				at += k
			}
		}
		var peer *PeerError
		if !errors.As(e.Err(), &peer) || peer.Cause != want {
			t.Fatalf("try %d, markers %t, CRC %t, lengths %v: %v", i, markers, crc, lens, e.Err())
		}
	}
}

// A slow Host has one receive now and then.
type slow struct {
	scarce
	has *bool
}

func (s slow) BeginReceive() (uint32, bool) {
	had := *s.has
	*s.has = false
	return 1 << 20, had
}
func (slow) PlaceReceive(uint32, []byte) error { return nil }
func (slow) EndReceive(Received) error         { return nil }

// One Send after the other waits, and what was gone through behind one is not behind the next,
// wherever that ends: the Terminate at the end is found, and nothing before it.
func TestLookoutGoesOn(t *testing.T) {
	term := (&Terminate{}).Append(AppendUntagged(nil, true, OpTerminate, 2, 1, 0))
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 500 {
		markers := i&1 > 0
		pos, b := uint32(0), []byte(nil)
		for msn := range MSN(20) {
			seg := append(AppendUntagged(nil, true, OpSend, 0, msn+1, 0), make([]byte, rng.IntN(2000))...)
			if msn == 19 {
				seg = term
			}
			n := len(b)
			if markers {
				b = AppendMarkedFPDU(b, seg, true, pos)
			} else {
				b = AppendFPDU(b, seg, true)
			}
			pos += uint32(len(b) - n)
		}
		has := false
		e := NewEndpoint(Params{CRC: true, MarkersIn: markers, Initiator: true}, slow{has: &has},
			Config{})
		n, shown, held := 0, 0, 0
		for e.Err() == nil && n < len(b) {
			shown = min(max(shown, n)+rng.IntN(3000)+1, len(b))
			if e.Stalled() && rng.IntN(2) == 0 {
				_, _ = e.Lookout().Write(b[n:shown])
				continue
			}
			if e.Stalled() {
				has = true
				held++
				if err := e.Resume(); err != nil {
					t.Fatal(err)
				}
			}
			k, _ := e.Write(b[n:shown])
			n += k
		}
		var peer *PeerError
		if !errors.As(e.Err(), &peer) || shown < len(b) {
			t.Fatalf("try %d, markers %t: %v with %d octets shown of %d", i, markers, e.Err(), shown, len(b))
		}
		if i > 10 && held == 0 {
			t.Fatal("no Send waited")
		}
	}
}

// What looks like a Terminate and is none ends nothing.
func TestLookoutFindsNothing(t *testing.T) {
	good := (&Terminate{}).Append(AppendUntagged(nil, true, OpTerminate, 2, 1, 0))
	for name, tt := range map[string]struct {
		seg    []byte
		change int // an octet of the FPDU from its end on
	}{
		"a wrong CRC":  {good, 1},
		"its MSN is 2": {AppendUntagged(nil, true, OpTerminate, 2, 2, 0), 0},
		"on queue 0":   {AppendUntagged(nil, true, OpTerminate, 0, 1, 0), 0},
		"it is cut": {(&Terminate{}).Append(AppendUntagged(nil, false, OpTerminate, 2, 1, 0)),
			0},
		"it is too short":       {good[:19], 0},
		"a Send":                {append(AppendUntagged(nil, true, OpSend, 0, 2, 0), good...), 0},
		"shorter than a header": {good[:17], 0},
		"nothing":               {nil, 0},
	} {
		b := behindStream(nil, false, true, tt.seg)
		if tt.change > 0 {
			b[len(b)-tt.change] ^= 1
		}
		e := NewEndpoint(Params{CRC: true, Initiator: true}, scarce{}, Config{})
		n, _ := e.Write(b)
		if _, _ = e.Lookout().Write(b[n:]); e.Err() != nil || !e.Stalled() {
			t.Errorf("%s: %v", name, e.Err())
		}
	}
}

// No octets harm a Lookout, and how they are cut makes no difference to what it finds.
func FuzzLookout(f *testing.F) {
	term := (&Terminate{}).Append(AppendUntagged(nil, true, OpTerminate, 2, 1, 0))
	for _, markers := range []bool{false, true} {
		f.Add(behindStream([]int{10, 700, 3}, markers, true, term), uint16(30), markers)
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16, markers bool) {
		first := behindStream(nil, markers, true, nil)
		var ends [2]string
		for i := range ends {
			e := NewEndpoint(Params{CRC: true, MarkersIn: markers, Initiator: true}, scarce{}, Config{})
			e.Write(first)
			if i == 0 {
				e.Lookout().Write(b)
			} else {
				k := int(cut) % (len(b) + 1)
				e.Lookout().Write(b[:k])
				l := e.Lookout()
				l.Write(b[:k/2])
				l.Write(b[k/2:])
			}
			if err := e.Err(); err != nil {
				ends[i] = err.Error()
			}
		}
		if ends[0] != ends[1] {
			t.Fatalf("in one piece %q, cut at %d %q", ends[0], cut, ends[1])
		}
	})
}
