package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

const allRTR = RTRWrite | RTRRead | RTRSend

// Every set of kinds that one end can offer and the other take, with and without Reads, between two
// of our own: what is agreed, or 2/0/7. EMPA-020, 030, 033, 034, 035, 036, 038, 039, 040.
func TestRTRMatrix(t *testing.T) {
	for offer := RTRWrite; offer <= allRTR; offer++ {
		for take := RTRWrite; take <= allRTR; take++ {
			for _, reads := range []uint16{0, 1, 32} {
				name := fmt.Sprintf("%v to %v, %d Reads", offer, take, reads)
				in, req := startInitiator(t, config(func(c *StartConfig) {
					c.RTR, c.IRD, c.ORD = offer, reads, reads
				}), "")
				if f, _, err := ParseStartFrame(req); err != nil || !f.Data.PeerToPeer || f.Data.RTR != offer {
					t.Fatalf("%s: Request %v, %v", name, f, err)
				}
				re, _ := NewResponder(config(func(c *StartConfig) { c.RTR = take }))
				re.Write(req)
				pb, err := re.Accept(0, 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				rep := drain(re)
				f, _, err := ParseStartFrame(rep)
				want := offer & take
				if want == 0 {
					want = take // EMPA-038
				}
				if err != nil || !f.Data.PeerToPeer || f.Data.RTR != want || pb.RTR != want {
					t.Fatalf("%s: Reply %v, %v, %v", name, f, pb, err)
				}
				in.Write(rep)
				pa, err := in.Result()
				if offer&take == 0 {
					var le *LocalError
					if !errors.As(err, &le) || le.Cause != TermNoRTR || !bytes.Equal(drain(in), unhex(term7)) {
						t.Errorf("%s: %v, %v", name, pa, err)
					}
					continue
				}
				kind := RTRSend
				if common := offer & take; common&RTRWrite != 0 {
					kind = RTRWrite
				} else if common&RTRRead != 0 {
					kind = RTRRead
				}
				if err != nil || pa.RTR != kind || kind == RTRRead && (pb.IRD < 1 || f.Data.IRD < 1) {
					t.Errorf("%s: %v, %v; want %v", name, pa, err, kind)
				}
			}
		}
	}
}

// Every Reply that an Initiator can get to each of its offers: 16 flag patterns and the corner
// values of IRD and ORD. One model decides what has to come out. EMPA-023, 024, 027, 028, 032, 037,
// 039, 040, 049, 050.
func TestReplyMatrix(t *testing.T) {
	corners := []uint16{0, 1, 5, 127, 128, 129, 0x3ffe, NotNegotiated}
	for offer := RTRKinds(0); offer <= allRTR; offer++ { // 0: client-server
		for flags := range 16 {
			for _, ird := range corners {
				for _, ord := range corners {
					cfg := config(func(c *StartConfig) {
						c.RTR, c.ClientServer, c.IRD, c.ORD = offer, offer == 0, 3, 7
					})
					in, _ := startInitiator(t, cfg, "")
					x, y := ird|uint16(flags&3)<<14, ord|uint16(flags>>2)<<14
					in.Write(append(unhex(repKey+"50 02 0004"), byte(x>>8), byte(x), byte(y>>8), byte(y)))
					p, err := in.Result()
					got := fmt.Sprintf("%v ird=%d ord=%d", p.RTR, p.IRD, p.ORD)
					var le *LocalError
					if errors.As(err, &le) {
						got = fmt.Sprintf("%d/%d/%d", le.Cause.Layer, le.Cause.Type, le.Cause.Code)
						if in.Len() == 0 {
							t.Error("no Terminate")
						}
					}
					wantORD, wantIRD := uint16(7), uint16(3)
					if ird != NotNegotiated {
						wantORD = min(7, ird)
					}
					if ord != NotNegotiated && ord > 3 { // a power of two: S10
						for wantIRD = 1; wantIRD < ord; wantIRD *= 2 {
						}
					}
					a := flags&2 != 0
					var kinds RTRKinds
					if flags&1 != 0 {
						kinds |= RTRSend
					}
					if flags&8 != 0 {
						kinds |= RTRWrite
					}
					if flags&4 != 0 && ird != 0 {
						kinds |= RTRRead
					}
					kinds &= offer
					pick := RTRKinds(0)
					for _, k := range []RTRKinds{RTRWrite, RTRRead, RTRSend} {
						if pick == 0 {
							pick = kinds & k
						}
					}
					want := fmt.Sprintf("%v ird=%d ord=%d", pick, wantIRD, wantORD)
					switch {
					case ord != NotNegotiated && ord > MaxReads:
						want = "2/0/6"
					case a != (offer != 0), a && pick == 0:
						want = "2/0/7"
					}
					if got != want {
						t.Fatalf("offer %v, Reply flags %04b, IRD %#x, ORD %#x: %s, want %s", offer, flags, ird, ord,
							got, want)
					}
				}
			}
		}
	}
}

// The same for Requests: 16 flag patterns and the corner values against a Responder that has 3 and
// 7 Reads of its own. EMPA-018, 019, 020, 025, 026, 032, 033, 035, 049; M14.
func TestRequestMatrix(t *testing.T) {
	corners := []uint16{0, 1, 5, 127, 128, 129, 0x3ffe, NotNegotiated}
	for flags := range 16 {
		for _, ird := range corners {
			for _, ord := range corners {
				re, _ := NewResponder(DefaultStartConfig())
				x, y := ird|uint16(flags&3)<<14, ord|uint16(flags>>2)<<14
				re.Write(append(unhex(reqKey+"50 02 0004"), byte(x>>8), byte(x), byte(y>>8), byte(y)))
				if q, ok := re.Request(); !ok || q.IRD != ird || q.ORD != ord { // EMPA-017
					t.Fatalf("%+v, %v", q, re.Err())
				}
				p, err := re.Accept(3, 7, nil)
				if err != nil {
					t.Fatal(err)
				}
				f, _, err := ParseStartFrame(drain(re))
				if err != nil || !f.Enhanced || f.Revision != 2 || f.Data.PeerToPeer != (flags&2 != 0) {
					t.Fatalf("Reply %v, %v", f, err)
				}
				where := fmt.Sprintf("flags %04b, IRD %#x, ORD %#x: %v, %v", flags, ird, ord, f, p)
				if !f.Data.PeerToPeer && (f.Data.RTR != 0 || p.RTR != 0) || f.Data.PeerToPeer &&
					f.Data.RTR == 0 {
					t.Errorf("%s: RTR", where)
				}
				switch {
				case ird == NotNegotiated && (p.ORD != 7 || f.Data.ORD != NotNegotiated),
					ird != NotNegotiated && (p.ORD != min(7, ird) || f.Data.ORD != p.ORD):
					t.Errorf("%s: ORD", where)
				}
				switch {
				case ord == NotNegotiated && (p.IRD != 3 || f.Data.IRD != NotNegotiated),
					ord != NotNegotiated && (p.IRD < min(ord, MaxReads) || p.IRD < 3 || p.IRD > MaxReads ||
						f.Data.IRD != p.IRD):
					t.Errorf("%s: IRD", where)
				}
			}
		}
	}
}

// Private data of every length, plain and enhanced, accepted and rejected, cut at random places:
// MPA-052, 070, 071, 073, 074, 077; EMPA-001, 002, 008.
func TestPrivateDataLengths(t *testing.T) {
	for _, rev := range []uint8{1, 2} {
		extra := 0
		if rev == 2 {
			extra = 4
		}
		for n := 0; n <= 513-extra; n++ {
			pd := pattern(n, byte(n))
			in, err := NewInitiator(config(func(c *StartConfig) { c.Revision = rev }), pd)
			if n+extra > 512 {
				if !errors.Is(err, ErrPrivateData) {
					t.Errorf("revision %d, %d octets: %v", rev, n, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			req := drain(in)
			if len(req) != 20+extra+n || int(req[18])<<8|int(req[19]) != n+extra ||
				!bytes.Equal(req[20+extra:], pd) {
				t.Fatalf("revision %d, %d octets: Request %x", rev, n, req)
			}
			for _, reject := range []bool{false, true} {
				re, _ := NewResponder(DefaultStartConfig())
				cut := n * 7 % len(req)
				re.Write(req[:cut])
				re.Write(req[cut:])
				q, ok := re.Request()
				if !ok || !bytes.Equal(q.PrivateData, pd) || q.Revision != rev {
					t.Fatalf("revision %d, %d octets: %+v, %v", rev, n, q, re.Err())
				}
				var errAnswer error
				if reject {
					errAnswer = re.Reject(pd)
				} else {
					_, errAnswer = re.Accept(1, 1, pd)
				}
				rep := drain(re)
				if errAnswer != nil || len(rep) != len(req) {
					t.Fatalf("revision %d, %d octets: %v, %d octets", rev, n, errAnswer, len(rep))
				}
				in, _ := NewInitiator(config(func(c *StartConfig) { c.Revision = rev }), nil)
				in.Write(rep[:cut])
				in.Write(rep[cut:])
				p, err := in.Result()
				r, ok := errors.AsType[*RejectedError](err)
				if ok != reject || reject && !bytes.Equal(r.PrivateData, pd) ||
					!reject && !bytes.Equal(p.PrivateData, pd) {
					t.Fatalf("revision %d, %d octets: %v, %v", rev, n, p, err)
				}
			}
		}
	}
}

// What a Responder's answer may still be changed to.
func TestReconfigure(t *testing.T) {
	re, _ := NewResponder(DefaultStartConfig())
	re.Write(unhex(reqKey + "10 02 0004 c004 c004"))
	if err := re.Reconfigure(config(func(c *StartConfig) { c.IRD = 1000 })); !errors.Is(err,
		ErrConfig) {
		t.Error(err)
	}
	if err := re.Reconfigure(config(func(c *StartConfig) {
		c.Revision, c.CRC, c.Markers, c.RTR = 1, CRCOff, true, RTRSend
	})); err != nil {
		t.Fatal(err)
	}
	p, err := re.Accept(4, 4, nil)
	if b := drain(re); err != nil || !bytes.Equal(b, unhex(repKey+"90 02 0004 c004 0004")) || p.CRC ||
		!p.MarkersIn {
		t.Errorf("%x, %v, %v", b, p, err)
	}
	if err := re.Reconfigure(DefaultStartConfig()); !errors.Is(err, ErrState) {
		t.Error(err)
	}
}
