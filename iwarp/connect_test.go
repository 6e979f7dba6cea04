package iwarp_test

import (
	"bytes"
	"fmt"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
)

// flush sends what s has to say.
func flush(t *testing.T, st *iwarptest.Stream, s interface {
	Source
	Commit(int)
}) {
	t.Helper()
	for s.Len() > 0 {
		n, err := st.WriteFrom(s)
		s.Commit(n)
		if n == 0 || err != nil {
			t.Fatal(n, err)
		}
	}
}

// A whole connection from the Request to data both ways, over every combination that two of our
// own ends can come to and every way of cutting the octets. MPA-019, 020, 031, 074,
// 079, 083; EMPA-004, 012, 023, 041, 043.
func TestConnect(t *testing.T) {
	configs := map[string]StartConfig{
		"default":       DefaultStartConfig(),
		"revision 1":    config(func(c *StartConfig) { c.Revision = 1 }),
		"no CRC":        config(func(c *StartConfig) { c.CRC = CRCOff }),
		"client-server": config(func(c *StartConfig) { c.ClientServer = true }),
		"RTR by Read":   config(func(c *StartConfig) { c.RTR = RTRRead; c.ORD = 1 }),
		"one Read":      config(func(c *StartConfig) { c.IRD, c.ORD = 1, 1 }),
		"markers":       config(func(c *StartConfig) { c.Markers = true }),
	}
	for ni, ci := range configs {
		for nr, cr := range configs {
			for _, l := range []iwarptest.Link{{}, {CutEvery: 1}, {CutEvery: 5, WriteMax: 3, TakeLess: 1}} {
				name := fmt.Sprintf("%s to %s, %+v", ni, nr, l)
				if ci.Revision == 2 && cr.Revision == 1 {
					continue // see TestResponderRefuses
				}
				if ni == "default" && nr == "RTR by Read" || ni == "RTR by Read" {
					name += " by Read"
				}
				sa, sb := iwarptest.NewPair(l)
				in, err := NewInitiator(ci, []byte("ping"))
				if err != nil {
					t.Fatal(err)
				}
				re, err := NewResponder(cr)
				if err != nil {
					t.Fatal(err)
				}
				flush(t, sa, in)
				sb.ReadInto(re)
				req, ok := re.Request()
				if !ok || string(req.PrivateData) != "ping" {
					t.Fatalf("%s: %+v, %v", name, req, re.Err())
				}
				pb, err := re.Accept(cr.IRD, cr.ORD, []byte("pong"))
				if err != nil {
					t.Fatal(err)
				}
				b := &side{h: newHost(), s: sb, Endpoint: nil}
				b.Endpoint = NewEndpoint(pb, b.h, Config{EMSS: sb.EMSS()})
				flush(t, sb, re)
				sa.ReadInto(in)
				pa, err := in.Result()
				if ni != "RTR by Read" && nr == "RTR by Read" || ni == "RTR by Read" {
					// the kinds have to meet; RTRWrite is in all other sets and RTRRead too
					if err == nil && pa.PeerToPeer && pa.RTR != RTRRead {
						t.Errorf("%s: RTR by %v", name, pa.RTR)
					}
				}
				if err != nil || string(pa.PrivateData) != "pong" {
					t.Fatalf("%s: %v, %v", name, pa, err)
				}
				if pa.MarkersIn != ci.Markers || pa.MarkersOut != cr.Markers || pb.MarkersIn != cr.Markers ||
					pb.MarkersOut != ci.Markers {
					t.Errorf("%s: markers\n%v\n%v", name, pa, pb)
				}
				if pa.CRC != pb.CRC || pa.CRC != (ci.CRC != CRCOff || cr.CRC != CRCOff) ||
					pa.Enhanced && (pa.ORD > pb.IRD || pb.ORD > pa.IRD) {
					t.Errorf("%s:\n%v\n%v", name, pa, pb)
				}
				a := &side{h: newHost(), s: sa}
				a.Endpoint = NewEndpoint(pa, a.h, Config{EMSS: sa.EMSS()})

				// The Responder has its Send ready at once and holds it for the first FPDU.
				b.PostSend(1, OpSend, 0, &payload{b: []byte("from b")}, 6)
				a.h.posted = [][]byte{make([]byte, 100)}
				run(a, b)
				if !pa.PeerToPeer {
					if len(a.h.received) > 0 {
						t.Errorf("%s: the Responder spoke first", name)
					}
					a.PostWrite(1, 0, 0, nil, 0)
					run(a, b)
				}
				if len(a.h.received) != 1 || a.h.received[0].Length != 6 {
					t.Fatalf("%s: %v, %v, %v", name, a.h.received, a.Err(), b.Err())
				}
				b.h.mem[0x10] = pattern(3000, 1)
				a.h.sinks[2], a.h.order = make([]byte, 3000), []uint64{2}
				if err := a.PostRead(2, 0x99, 0, 3000, 0x10, 0); err != nil {
					t.Fatal(err)
				}
				run(a, b)
				if !bytes.Equal(a.h.sinks[2], pattern(3000, 1)) || a.Err() != nil || b.Err() != nil ||
					!a.Idle() || !b.Idle() {
					t.Errorf("%s: %v, %v", name, a.Err(), b.Err())
				}
			}
		}
	}
}

// A refused set-up ends with the Terminate of RFC 6581 at the Responder's Endpoint.
func TestSetupTerminate(t *testing.T) {
	sa, sb := iwarptest.NewPair(iwarptest.Link{})
	in, _ := NewInitiator(config(func(c *StartConfig) { c.IRD, c.MaxIRD = 1, 1 }), nil)
	flush(t, sa, in)
	// a Responder that wants more than it was offered
	b := &side{h: newHost(), s: sb}
	b.Endpoint = NewEndpoint(Params{CRC: true, IRD: 1, ORD: 8}, b.h, Config{})
	st := bytes.NewReader(unhex(repKey + "50 02 0004 8001 8008"))
	sb.WriteFrom(st)
	sa.ReadInto(in)
	if _, err := in.Result(); err == nil {
		t.Fatal("no error")
	}
	flush(t, sa, in)
	re, _ := NewResponder(DefaultStartConfig())
	sb.ReadInto(limit{re, 24})
	sb.ReadInto(b.Endpoint)
	if fmt.Sprint(b.Err()) != "iwarp: peer terminated: 2/0/06 insufficient IRD resources" {
		t.Error(b.Err())
	}
}

// limit takes the Request alone.
type limit struct {
	r *Responder
	n int
}

func (l limit) Write(p []byte) (int, error) { return l.r.Write(p[:min(l.n, len(p))]) }
