package trace

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
)

// fpdus is a stream of n FPDUs, and the first octet of the payload of each.
func fpdus(n int, rnd *rand.Rand) (b []byte, firsts []byte) {
	for i := range n {
		seg := iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, iwarp.MSN(i+1), 0)
		seg = append(seg, byte(i))
		seg = append(seg, make([]byte, rnd.IntN(1400))...)
		fpdu := binary.BigEndian.AppendUint16(nil, uint16(len(seg)))
		fpdu = append(fpdu, seg...)
		b = append(b, append(fpdu, make([]byte, iwarp.FPDULen(len(seg))-len(fpdu))...)...)
		firsts = append(firsts, byte(i))
	}
	return b, firsts
}

// A reader notes what a stream finds.
type reader struct {
	stream
	firsts      []byte
	starts      []string
	again, lost int
}

func (r *reader) take(seq uint32, b []byte) {
	again, lost := r.add(seq, b, func(s string) { r.starts = append(r.starts, s) },
		func(ulpdu []byte) { r.firsts = append(r.firsts, ulpdu[iwarp.UntaggedHeaderLen]) })
	if again {
		r.again++
	}
	if lost {
		r.lost++
	}
}

// However a stream is cut, overtaken or sent again, each FPDU is found once, and in its order; the
// numbers of octets go through 0.
func TestStream(t *testing.T) {
	again := 0
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b, firsts := fpdus(30, rnd)
		seq := uint32(0) - uint32(len(b)/2)
		type segment struct {
			seq uint32
			b   []byte
		}
		var segs []segment
		for at := 0; at < len(b); {
			n := min(1+rnd.IntN(2000), len(b)-at)
			segs = append(segs, segment{seq + uint32(at), b[at : at+n]})
			at += n
		}
		for range 5 {
			i := rnd.IntN(len(segs))
			if j := i + 1; i > 0 && j < len(segs) && seed%2 == 0 {
				segs[i], segs[j] = segs[j], segs[i]
			}
			segs = slices.Insert(segs, i+1, segs[i])
		}
		var r reader
		for _, s := range segs {
			r.take(s.seq, s.b)
		}
		if !slices.Equal(r.firsts, firsts) || r.lost != 0 {
			t.Fatalf("seed %d: %v, %d lost", seed, r.firsts, r.lost)
		}
		again += r.again
	}
	if again == 0 {
		t.Error("nothing was seen to have come before")
	}
}

// Who begins in the middle begins at a segment that begins with an FPDU, and where octets are lost
// the same happens again.
func TestStreamResyncs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	var r reader
	r.take(1, make([]byte, 1000)) // the middle of one
	var at uint32 = 1001
	var all []byte
	for i := range 200 {
		b, firsts := fpdus(1, rnd)
		if i != 50 { // which is lost
			all = append(all, firsts...)
			r.take(at, b)
		}
		at += uint32(len(b))
	}
	if r.lost != 1 || len(r.firsts) < len(all)-maxLater-2 || len(r.firsts) > len(all) {
		t.Errorf("%d of %d FPDUs, %d times lost", len(r.firsts), len(all), r.lost)
	}
	r = reader{}
	b, _ := fpdus(1, rnd)
	r.take(1, append(b, 0xff, 0xff, 0xff, 0xff)) // what follows is none
	if len(r.firsts) != 1 || r.lost != 1 || r.synced {
		t.Errorf("%+v", r)
	}
}

// Start frames are shown in their place, whole or cut.
func TestStreamStart(t *testing.T) {
	frame := []byte("MPA ID Req Frame\x40\x01\x00\x05hello")
	b, firsts := fpdus(2, rand.New(rand.NewPCG(1, 1)))
	for cut := range len(frame) {
		if cut > 0 && cut < len(startKey) {
			continue // nobody cuts there: what begins so is looked at as a whole
		}
		var r reader
		r.take(5, frame[:cut])
		r.take(5+uint32(cut), append(frame[cut:len(frame):len(frame)], b...))
		if len(r.starts) != 1 || !slices.Equal(r.firsts, firsts) || r.lost != 0 {
			t.Errorf("cut at %d: %q, %v, %d lost", cut, r.starts, r.firsts, r.lost)
		}
	}
}

// What begins as a start frame and is none is not kept for ever.
func TestStreamBadStart(t *testing.T) {
	b := append([]byte("MPA ID Req Frame\x40\x01\xff\xff"), make([]byte, 100)...)
	var r reader
	for i := range uint32(100) {
		r.take(1+i*uint32(len(b)), b)
		if len(r.buf) > 2*maxStart {
			t.Fatalf("%d octets are kept", len(r.buf))
		}
	}
}

// Whatever a peer sends, a Tracer goes on.
func FuzzStream(f *testing.F) {
	b, _ := fpdus(3, rand.New(rand.NewPCG(1, 1)))
	f.Add(b[:200], uint16(100))
	f.Add([]byte("MPA ID Req Frame\x40\x01\x02\x05hello"), uint16(3))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		var r reader
		n := int(cut) % (len(b) + 1)
		got := func(ulpdu []byte) {
			if len(ulpdu) < iwarp.TaggedHeaderLen {
				t.Errorf("a ULPDU of %d octets", len(ulpdu))
			}
			_ = iwarp.DescribeSegment(ulpdu)
			_ = new(Tracer).ofSegment(0, ulpdu)
			_ = new(Tracer).ofSegment(1, ulpdu)
		}
		r.add(1, b[:n], func(string) {}, got)
		r.add(1+uint32(n), b[n:], func(string) {}, got)
		if len(r.buf) > len(b) {
			t.Errorf("%d octets are kept of %d", len(r.buf), len(b))
		}
	})
}
