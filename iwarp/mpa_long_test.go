package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// MPA-031: CRCs if either end asks, and to the end: a bad one behind 10000 good ones is found. Only
// if neither asks is it not looked at.
func TestCRCToTheEnd(t *testing.T) {
	for _, reqCRC := range []bool{false, true} {
		for _, repCRC := range []bool{false, true} {
			mode := func(on bool) CRCMode {
				if on {
					return CRCWanted
				}
				return CRCOff
			}
			in, req := startInitiator(t, config(func(c *StartConfig) { c.CRC = mode(reqCRC) }), "")
			re, _ := NewResponder(config(func(c *StartConfig) { c.CRC = mode(repCRC) }))
			re.Write(req)
			pb, err := re.Accept(1, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			in.Write(drain(re))
			pa, err := in.Result()
			want := reqCRC || repCRC
			if err != nil || pa.CRC != want || pb.CRC != want {
				t.Fatalf("Request %t, Reply %t: %v, %v, %v", reqCRC, repCRC, pa, pb, err)
			}
			for _, p := range []Params{pa, pb} {
				r := newRaw(p, false)
				good := AppendFPDU(nil, writeSeg(OpWrite, true, 0x10, 0, 9), p.CRC)
				for range 10_000 {
					r.Write(good)
					r.h.log = nil
				}
				bad := bytes.Clone(good)
				bad[len(bad)-1] ^= 1
				r.Write(bad)
				if got := cause(r.Err()); want && got != "2/0/02" || !want && got != "<nil>" ||
					r.Stats().FPDUsIn < 10_000 {
					t.Errorf("Request %t, Reply %t, %v: %s", reqCRC, repCRC, p, got)
				}
			}
		}
	}
}

// MPA-047: 10^5 FPDUs of any size, with and without markers, in pieces of any size: each
// ULPDU_Length leads to the next one.
func TestFramingLong(t *testing.T) {
	for _, marked := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(5044, 1))
		p := responder
		p.MarkersIn = marked
		h := &virtualWrites{}
		e := NewEndpoint(p, h, Config{})
		buf := pattern(4000, 0)
		var in []byte
		pos, want := uint32(0), uint64(0)
		for i := range 100_000 {
			n := rng.IntN(60)
			if i%50 == 0 {
				n = rng.IntN(3000)
			}
			seg := append(AppendTagged(nil, true, OpWrite, 1, want), buf[:n]...)
			from := len(in)
			if marked {
				in = AppendMarkedFPDU(in, seg, true, pos)
			} else {
				in = AppendFPDU(in, seg, true)
			}
			pos += uint32(len(in) - from)
			want += uint64(n)
			for len(in) > 5000 || i == 99_999 && len(in) > 0 {
				k := min(1+rng.IntN(3000), len(in))
				if n, err := e.Write(in[:k]); n != k || err != nil || e.Err() != nil {
					t.Fatalf("markers %t, FPDU %d: %v, %v", marked, i, err, e.Err())
				}
				in = in[:copy(in, in[k:])]
			}
		}
		if e.Stats().FPDUsIn != 100_000 || h.next != want || h.bad != nil || e.InMessage() {
			t.Errorf("markers %t: %+v, %d of %d octets, %v", marked, e.Stats(), h.next, want, h.bad)
		}
	}
}

// virtualWrites takes Writes that follow each other.
type virtualWrites struct {
	host
	next uint64
	bad  error
}

func (v *virtualWrites) PlaceWrite(_ STag, to uint64, chunk []byte, _ bool) error {
	if to != v.next && len(chunk) > 0 {
		v.bad = fmt.Errorf("TO %d, want %d", to, v.next)
	}
	v.next += uint64(len(chunk))
	return v.bad
}

// MPA-054: the end that took the TCP connection is the Initiator, the one that made it the
// Responder.
func TestRolesWithoutSYN(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	active, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer active.Close()
	passive, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer passive.Close()

	in, err := NewInitiator(DefaultStartConfig(), []byte("from the listener"))
	if err != nil {
		t.Fatal(err)
	}
	re, err := NewResponder(DefaultStartConfig())
	if err != nil {
		t.Fatal(err)
	}
	// pump has c give octets to w until over says so.
	pump := func(c net.Conn, w io.Writer, over func() bool) {
		t.Helper()
		for b := make([]byte, 1); !over(); {
			if _, err := c.Read(b); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(b); err != nil && !errors.Is(err, io.ErrShortWrite) {
				t.Fatal(err)
			}
		}
	}
	passive.Write(drain(in))
	pump(active, re, func() bool { _, ok := re.Request(); return ok })
	pb, err := re.Accept(1, 1, []byte("from the dialer"))
	if err != nil {
		t.Fatal(err)
	}
	active.Write(drain(re))
	pump(passive, in, in.Done)
	pa, err := in.Result()
	if err != nil || string(pa.PrivateData) != "from the dialer" ||
		string(pb.PrivateData) != "from the listener" {
		t.Fatalf("%v, %v, %v", pa, pb, err)
	}
	ha, hb := newHost(), newHost()
	a, b := NewEndpoint(pa, ha, Config{}), NewEndpoint(pb, hb, Config{})
	ha.posted, hb.posted = [][]byte{make([]byte, 9)}, [][]byte{make([]byte, 9)}
	a.PostSend(1, OpSend, 0, &payload{b: []byte("ping")}, 4)
	passive.Write(drain(a))
	pump(active, b, func() bool { return len(hb.received) == 1 })
	b.PostSend(1, OpSend, 0, &payload{b: []byte("pong")}, 4)
	active.Write(drain(b))
	pump(passive, a, func() bool { return len(ha.received) == 1 })
	if a.Err() != nil || b.Err() != nil {
		t.Error(a.Err(), b.Err())
	}
}
