package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// atOnce bounds an end that must not wait for a timer: those of the start-up are 5 s and 10 s. A
// machine with more to do may take most of the first; one that waits for it is late in any case. In
// package vnic's tests, whose clock is not the machine's, the same ends take no time, and the
// timers end to the nanosecond (TestConnectErrors, TestStartTimers).
const atOnce = 4500 * time.Millisecond

// within wants steps to take no longer than d.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	if took := time.Since(begin); took > d {
		t.Errorf("it took %v, want less than %v", took, d)
	}
}

// Requests that are none: TCP is closed at once and without a word, and the client hears nothing.
// MPA-059, 068, 072, 081, 102; EMPA-010, 049.
func TestRawBadRequests(t *testing.T) {
	r := newRig(t)
	v := newVictim(t, r, 0)
	l := v.listen(0)
	for _, tt := range iwarp.BadStarts() {
		r.each(t, tt.Name, func(t *testing.T, r *rig) {
			p := got[*rawpeer.Peer](t)(r.host.Dial(t.Context(), l.Addr()))
			defer p.Close()
			steps := []rawpeer.Step{rawpeer.PutOctets(tt.Octets)}
			if tt.FIN {
				steps = append(steps, rawpeer.CloseWrite())
			}
			within(t, atOnce, func() {
				if err := p.Run(append(steps, rawpeer.WantClosed())...); err != nil {
					t.Error(err)
				}
			})
		})
	}
	r.by.moves(t)
	// None of them was a request; the first that comes is this one's.
	p := got[*rawpeer.Peer](t)(r.host.Dial(t.Context(), l.Addr()))
	defer p.Close()
	if err := p.Run(rawpeer.PutStart(rawpeer.Request(rawpeer.FlagC, 42))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req := got[rdma.ConnRequest](t)(l.Next(ctx))
	if pd := req.Param().PrivateData; !bytes.Equal(pd, []byte{42}) {
		t.Errorf("the client was offered a request with private data % x", pd)
	}
	if err := req.Reject(octets(10, 4)); err != nil {
		t.Fatal(err)
	}
	// MPA-077: a rejecting Reply in the form of the Request.
	if err := p.Run(rawpeer.WantReply(rawpeer.FlagC|rawpeer.FlagR), rawpeer.WantFIN()); err != nil ||
		!bytes.Equal(p.Got.Private(), octets(10, 4)) || p.Got.Rev != 1 {
		t.Errorf("%v, %+v", err, p.Got)
	}
	l.Close()
	v.close()
}

// Requests with everything in them that a Responder must take, and the Reply to each. MPA-020, 031,
// 058, 063, 064, 065, 066, 070, 074, 079; EMPA-001, 002, 004, 005, 006, 011, 012, 018, 019, 020,
// 025, 026, 032, 033, 034, 035, 036, 038.
func TestRawRequests(t *testing.T) {
	r := newRig(t)
	const (
		a, b, c, d = rawpeer.WordA, rawpeer.WordB, rawpeer.WordC, rawpeer.WordD
		S, C, M    = rawpeer.FlagS, rawpeer.FlagC, rawpeer.FlagM
		none       = 0xffff0000 // no words
		notSaid    = rawpeer.NotNegotiated
	)
	words := func(first, second uint16) uint32 { return uint32(first)<<16 | uint32(second) }
	enhanced := func(first, second uint16, pd ...byte) rawpeer.Start {
		return rawpeer.Request(C, pd...).Enhanced(first, second)
	}
	flags := func(s rawpeer.Start, f byte) rawpeer.Start { s.Flags |= f; return s }
	rev2 := rawpeer.Request(C, octets(6, 1)...)
	rev2.Rev = 2
	for _, tt := range []struct {
		name  string
		req   rawpeer.Start
		param rdma.ConnParam
		flags byte
		rev   byte
		words uint32
	}{
		{"revision 1", rawpeer.Request(C), rdma.ConnParam{}, C, 1, none},
		{"revision 1 with 512 octets", rawpeer.Request(C, octets(512, 1)...), rdma.ConnParam{
			PrivateData: octets(512, 2)}, C, 1, none},
		{"revision 1, reserved bits", rawpeer.Request(0x5f, octets(4, 1)...), rdma.ConnParam{
			PrivateData: octets(1, 2)}, C, 1, none},
		{"revision 1, R", flags(rawpeer.Request(C), rawpeer.FlagR), rdma.ConnParam{}, C, 1, none},
		{"revision 1 without C", rawpeer.Request(0), rdma.ConnParam{}, C, 1, none},
		{"no CRC", rawpeer.Request(0), rdma.ConnParam{MPA: rdma.MPAParam{CRC: rdma.CRCOff}}, 0, 1, none},
		{"CRC for the peer's sake", rawpeer.Request(C), rdma.ConnParam{
			MPA: rdma.MPAParam{CRC: rdma.CRCOff}}, C, 1, none},
		{"M, and M in return", flags(rawpeer.Request(C), M), rdma.ConnParam{
			MPA: rdma.MPAParam{Markers: true}}, C | M, 1, none},
		{"M", flags(rawpeer.Request(C), M), rdma.ConnParam{}, C, 1, none},
		{"M in return", rawpeer.Request(C), rdma.ConnParam{MPA: rdma.MPAParam{Markers: true}}, C | M,
			1, none},
		{"revision 2 without S", rev2, rdma.ConnParam{PrivateData: octets(7, 2)}, C, 2, none},
		{"reserved bits and R", flags(enhanced(a|4, c|4), 0x2f), rdma.ConnParam{}, C | S, 2,
			words(a|32, c|4)},
		{"508 octets", enhanced(a|4, c|4, octets(508, 1)...), rdma.ConnParam{PrivateData: octets(508, 2)},
			C | S, 2, words(a|32, c|4)},
		{"all kinds of RTR", enhanced(a|b|4, c|d|4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2,
			words(a|b|8, c|d|4)},
		{"RTR B", enhanced(a|b|4, 4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(a|b|8, 4)},
		{"RTR C", enhanced(a|4, c|4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(a|8, c|4)},
		{"RTR D", enhanced(a|4, d|4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(a|8, d|4)},
		{"RTR B, C", enhanced(a|b|4, c|4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(a|b|8, c|4)},
		{"RTR B, D", enhanced(a|b|4, d|4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(a|b|8, d|4)},
		{"RTR C, D", enhanced(a|4, c|d|4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(a|8, c|d|4)},
		{"no RTR", enhanced(a|4, 4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(a|b|8, c|d|4)},
		{"an RTR that is not taken", enhanced(a|b|4, 4), rdma.ConnParam{IRD: 8, ORD: 8,
			MPA: rdma.MPAParam{RTR: rdma.RTRWrite}}, C | S, 2, words(a|8, c|4)},
		{"one of two RTRs is taken", enhanced(a|b|4, c|4), rdma.ConnParam{IRD: 8, ORD: 8,
			MPA: rdma.MPAParam{RTR: rdma.RTRWrite | rdma.RTRRead}}, C | S, 2, words(a|8, c|4)},
		{"A=0 and RTRs", enhanced(b|4, c|d|4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(8, 4)},
		{"A=0", enhanced(4, 4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(8, 4)},
		// The next power of two: siw has as many outstanding (S10).
		{"ORD above our IRD", enhanced(a|4, c|100), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2,
			words(a|128, c|4)},
		{"ORD above all limits", enhanced(a|4, c|0x3ffe), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2,
			words(a|128, c|4)},
		{"IRD 0", enhanced(a, c|4), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2, words(a|8, c)},
		{"Read RTR and ORD 0", enhanced(a|4, d), rdma.ConnParam{IRD: rdma.NoReads, ORD: 8}, C | S, 2,
			words(a|1, d|4)},
		{"IRD not said", enhanced(a|notSaid, c|1), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2,
			words(a|8, c|notSaid)},
		{"ORD not said", enhanced(a|1, c|notSaid), rdma.ConnParam{IRD: 8, ORD: 8}, C | S, 2,
			words(a|notSaid, c|1)},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 3)
			p := v.accept(tt.param, tt.req)
			first, second, ok := p.Got.Words()
			if ok && words(first, second) != tt.words || ok == (tt.words == none) ||
				p.Got.Flags != tt.flags || p.Got.Rev != tt.rev ||
				!bytes.Equal(p.Got.Private(), tt.param.PrivateData) {
				t.Errorf("the Reply is %+v, want flags %#02x, revision %d, words %#08x, private data % x",
					p.Got, tt.flags, tt.rev, tt.words, tt.param.PrivateData)
			}
			if pd := v.conn.Param().PrivateData; !bytes.Equal(pd, tt.req.Private()) {
				t.Errorf("the client got private data % x, want % x", pd, tt.req.Private())
			}
			v.run(p, rtr())
			v.alive(p, 1, 1)
			v.leave(p)
		})
	}
}

// Numbers and flags of all kinds in the enhanced data: a Reply that keeps the rules, and a
// connection that works. EMPA-033, 036, 049.
func TestRawWords(t *testing.T) { newRig(t).both(t, rawWords) }

func rawWords(t *testing.T, r *rig) {
	for flags := range uint16(16) {
		for _, n := range []uint16{0, 1, 0x3ffe, 0x3fff} {
			first, second := flags>>2<<14|n, flags<<14|0x3fff-n
			v := newVictim(t, r, 1)
			p := v.accept(rdma.ConnParam{}, rawpeer.Request(rawpeer.FlagC).Enhanced(first, second))
			if wrong := iwarp.RightReply(p.Sent, p.Got); len(wrong) > 0 {
				t.Errorf("words %#04x %#04x were answered with %+v: %v", first, second, p.Got, wrong)
			}
			if f, s, _ := p.Got.Words(); f&0x3fff > 128 && f&0x3fff != 0x3fff ||
				s&0x3fff > 128 && s&0x3fff != 0x3fff {
				t.Fatalf("words %#04x %#04x were answered with %#04x %#04x", first, second, f, s)
			}
			v.run(p, rtr())
			v.alive(p, 1, 1)
			v.leave(p)
		}
	}
	r.by.moves(t)
}

// A Responder says nothing before the first valid FPDU, whatever that is, and what was posted comes
// right behind it. MPA-084; EMPA-034, 043, 045, 046.
func TestRawGate(t *testing.T) {
	r := newRig(t)
	read := rawpeer.Read{SinkSTag: 0xdeadbeef, SinkTO: 1<<64 - 1, SrcSTag: 0xffffffff,
		SrcTO: 1<<64 - 1}
	for _, tt := range []struct {
		name   string
		first  seg
		answer []seg
		took   bool
	}{
		{"Write", rawpeer.Write(1, 0, nil), nil, false},
		{"Write to nowhere", rawpeer.Write(0xdeadbeef, 1<<64-1, nil), nil, false},
		{"Read", rawpeer.ReadRequest(1, read), []seg{rawpeer.ReadResponse(0xdeadbeef, 1<<64-1, nil)},
			false},
		{"Send", rawpeer.Send(1, 0, nil), nil, true},
		{"Send with octets", rawpeer.Send(1, 0, octets(9, 1)), nil, true},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 2)
			p := v.accept(rdma.ConnParam{}, plain(4, 4))
			data := octets(10, 3)
			v.send(rdma.SendWR{ID: 7, Op: rdma.OpSend, Flags: rdma.Inline, Inline: data})
			v.run(p, rawpeer.WantSilence(100*time.Millisecond), rawpeer.Put(tt.first))
			for want := append([]seg{rawpeer.Send(1, 0, data)}, tt.answer...); len(want) > 0; {
				s := got[seg](t)(p.Next())
				i := 0
				if s.Op() != want[0].Op() && len(want) == 2 {
					i = 1 // no order between the two
				}
				if !bytes.Equal(s.ULPDU(), want[i].ULPDU()) {
					t.Fatalf("got  %s\nwant %s", rawpeer.DumpSeg(s.ULPDU()), rawpeer.DumpSeg(want[i].ULPDU()))
				}
				want = append(want[:i], want[i+1:]...)
			}
			wcs := map[uint64]rdma.WC{}
			n := 1
			if tt.took {
				n = 2
			}
			for range n {
				wc := v.wc("the victim's Send, and what came")
				wcs[wc.ID] = wc
			}
			if wc, ok := wcs[7]; !ok || wc.Status != rdma.WCSuccess {
				t.Errorf("the victim's Send: %+v", wcs)
			}
			if tt.took {
				v.recvs--
				if wc := wcs[1]; wc.Status != rdma.WCSuccess || int(wc.ByteLen) != len(tt.first.Body) {
					t.Errorf("the receive: %+v", wcs)
				}
				v.expect(atRecv, tt.first.Body)
			}
			v.none("an RTR completes nothing")
			v.unharmed()
			v.leave(p)
		})
	}
	// M12: an invalid first FPDU closes without a Terminate; one that only DDP refuses opens the gate.
	r.each(t, "bad CRC first", func(t *testing.T, r *rig) {
		v := newVictim(t, r, 2)
		p := v.accept(rdma.ConnParam{}, plain(4, 4))
		v.run(p, rawpeer.PutLie(rawpeer.Write(0, 0, nil), rawpeer.Lie{CRC: func(c uint32) uint32 {
			return ^c
		}}), rawpeer.WantFIN())
		p.Close()
		v.over(rdma.WCFlush, fatal, false, 2, 0, 0x02)
		v.close()
	})
	r.each(t, "bad segment first", func(t *testing.T, r *rig) {
		v := newVictim(t, r, 2)
		p := v.accept(rdma.ConnParam{}, plain(4, 4))
		bad := rawpeer.Send(1, 0, nil).DDPVersion(2)
		v.run(p, rawpeer.Put(bad), rawpeer.WantTerminate(1, 2, 0x06, ddp, bad), rawpeer.WantFIN())
		p.Close()
		v.over(rdma.WCFlush, fatal, false, 1, 2, 0x06)
		v.close()
	})
}

// Peers that take too long, and those that say nothing: the time counts from the connection. A
// flood of them is bounded and disturbs nobody. MPA-076, 086; SEC-024.
func TestRawHalfOpen(t *testing.T) {
	r := newRig(t)
	t.Run("all", func(t *testing.T) { r.both(t, rawHalfOpen) })
}

func rawHalfOpen(t *testing.T, r *rig) {
	t.Parallel()
	v := newVictim(t, r, 1)
	wild := netip.MustParseAddrPort("[::]:0")
	l := got[rdma.Listener](t)(r.dev.Listen(wild, 0))
	at := func(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, l.Addr().Port()) }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const limit = 5 * time.Second
	timed := func(name string, d time.Duration) {
		if d < limit-100*time.Millisecond || d > limit+atOnce {
			t.Errorf("%s: it ended after %v, want %v", name, d, limit)
		}
	}
	// All at once; each is to end by itself.
	var wg sync.WaitGroup
	dial := func(name string, f func(p *rawpeer.Peer) error) {
		p := got[*rawpeer.Peer](t)(r.host.Dial(ctx, at(r.addr)))
		begin := time.Now()
		wg.Go(func() {
			defer p.Close()
			if err := f(p); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			timed(name, time.Since(begin))
		})
	}
	dial("silent", func(p *rawpeer.Peer) error { return p.Run(rawpeer.WantClosed()) })
	dial("slow", func(p *rawpeer.Peer) error {
		for _, o := range plain(1, 1).Append(nil)[:19] {
			if err := p.Write([]byte{o}); err != nil {
				return nil // it has been closed
			}
			if e, err := p.End(450 * time.Millisecond); err != nil || e != rawpeer.EndSilence {
				return err
			}
		}
		return errors.New("it is still open")
	})
	// A peer may have 128 half-open connections; the flood beyond that is reset.
	const flood, room = 300, 128
	var peers []*rawpeer.Peer
	begin, refused := time.Now(), 0
	for range flood {
		p, err := r.host.Dial(ctx, at(r.addr))
		if errors.Is(err, syscall.ECONNRESET) {
			refused++ // so early
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, p)
	}
	for _, p := range peers {
		if e, err := p.End(time.Millisecond); err == nil && e == rawpeer.EndReset {
			refused++
		}
	}
	if time.Since(begin) < limit && refused < flood-room {
		t.Errorf("%d of %d half-open connections were refused, want %d at least", refused, flood,
			flood-room)
	}
	r.by.moves(t)
	// Another peer is let in meanwhile, at the same listener. All of an IPv6 network are one.
	other := newEnd(t, r.open("vrnic1"))
	w := newVictim(t, r, 0)
	connected := make(chan error, 1)
	go func() {
		_, err := other.dev.Connect(ctx, other.qp, at(r.over(0).addr), rdma.ConnParam{})
		connected <- err
	}()
	asked := got[rdma.ConnRequest](t)(l.Next(ctx))
	conn := got[rdma.Conn](t)(asked.Accept(ctx, w.qp, rdma.ConnParam{}))
	if err := <-connected; err != nil {
		t.Errorf("another peer: %v", err)
	}
	if err := other.qp.Close(); err != nil {
		t.Error(err)
	}
	w.conn = conn
	w.ended()
	w.close()
	for i, p := range peers {
		wg.Go(func() {
			defer p.Close()
			if err := p.Run(rawpeer.WantClosed()); err != nil {
				t.Errorf("of the flood, %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	next := got[*rawpeer.Peer](t)(r.host.Dial(ctx, at(r.addr)))
	if err := next.Run(rawpeer.PutStart(plain(1, 1))); err != nil {
		t.Fatal(err)
	}
	req := got[rdma.ConnRequest](t)(l.Next(ctx))
	if err := req.Reject(nil); err != nil {
		t.Error(err)
	}
	next.Close()
	l.Close()
	p := v.ready()
	v.alive(p, 1, 1)
	v.leave(p)
}

// Replies that a program's Connect must not take: an error for it, TCP closed at once, and nothing
// sent but what enhanced set-up has a Terminate for. MPA-060, 061, 068, 072, 080, 081, 082;
// EMPA-010, 016, 024, 040, 047, 050.
func TestRawBadReplies(t *testing.T) {
	r := newRig(t)
	const a, b, c, d = rawpeer.WordA, rawpeer.WordB, rawpeer.WordC, rawpeer.WordD
	reply := func(first, second uint16) rawpeer.Start {
		return rawpeer.Reply(rawpeer.FlagC).Enhanced(first, second)
	}
	with := func(s rawpeer.Start, f func(*rawpeer.Start)) rawpeer.Start { f(&s); return s }
	key := func(k string) func(*rawpeer.Start) { return func(s *rawpeer.Start) { s.Key = k } }
	server := rdma.ConnParam{MPA: rdma.MPAParam{ClientServer: true}}
	for _, tt := range []struct {
		name  string
		param rdma.ConnParam
		reply rawpeer.Start
		code  byte // of the Terminate 2/0/code; 0: none
	}{
		{"Key differs in its first octet", rdma.ConnParam{},
			with(accepting(4, 4), key("mPA ID Rep Frame")), 0},
		{"Key differs in its last octet", rdma.ConnParam{},
			with(accepting(4, 4), key("MPA ID Rep Framf")), 0},
		{"a Request", rdma.ConnParam{}, with(accepting(4, 4), key(rawpeer.KeyRequest)), 0},
		{"an FPDU", rdma.ConnParam{}, rawpeer.Start{Key: "\x00\x0e\xc1\x40\x00\x00\x00\x01"}, 0},
		{"PD_Length 513", rdma.ConnParam{},
			with(accepting(4, 4), func(s *rawpeer.Start) { s.Claim = 513 }), 0},
		{"Rev 0", rdma.ConnParam{}, with(accepting(4, 4), func(s *rawpeer.Start) { s.Rev = 0 }), 0},
		{"Rev 1", rdma.ConnParam{}, with(accepting(4, 4), func(s *rawpeer.Start) { s.Rev = 1 }), 0},
		{"Rev 3", rdma.ConnParam{}, with(accepting(4, 4), func(s *rawpeer.Start) { s.Rev = 3 }), 0},
		{"S=0", rdma.ConnParam{}, with(accepting(4, 4), func(s *rawpeer.Start) {
			s.Flags &^= rawpeer.FlagS
		}), 0},
		{"plain", rdma.ConnParam{}, rawpeer.Reply(rawpeer.FlagC), 0},
		{"S=1 to a plain Request", rdma.ConnParam{MPA: rdma.MPAParam{Revision: 1}}, accepting(4, 4), 0},
		{"S=1 and PD_Length 0", rdma.ConnParam{}, rawpeer.Start{Key: rawpeer.KeyReply,
			Flags: rawpeer.FlagS | rawpeer.FlagC, Rev: 2, Claim: -1}, 0},
		{"S=1 and PD_Length 3", rdma.ConnParam{}, rawpeer.Start{Key: rawpeer.KeyReply,
			Flags: rawpeer.FlagS | rawpeer.FlagC, Rev: 2, Claim: -1, Data: octets(3, 0)}, 0},
		{"ORD 16000", rdma.ConnParam{}, reply(a|4, c|16000), 6},
		{"ORD 129", rdma.ConnParam{}, reply(a|4, c|129), 6},
		{"A=0", rdma.ConnParam{}, reply(4, 4), 7},
		{"A=0 and C", rdma.ConnParam{}, reply(4, c|4), 7},
		{"A=1 to a client", server, reply(a|4, c|4), 7},
		{"no RTR", rdma.ConnParam{}, reply(a|4, 4), 7},
		{"B when C, D were offered", rdma.ConnParam{
			MPA: rdma.MPAParam{RTR: rdma.RTRWrite | rdma.RTRRead}}, reply(a|b|4, 4), 7},
		{"D with IRD 0", rdma.ConnParam{MPA: rdma.MPAParam{RTR: rdma.RTRWrite | rdma.RTRRead}},
			reply(a, d|4), 7},
		{"M, and B when C was offered", rdma.ConnParam{MPA: rdma.MPAParam{RTR: rdma.RTRWrite}},
			with(reply(a|b|4, 4), func(s *rawpeer.Start) { s.Flags |= rawpeer.FlagM }), 7},
		{"no CRC when that was required", rdma.ConnParam{MPA: rdma.MPAParam{CRC: rdma.CRCRequired}},
			with(accepting(4, 4), func(s *rawpeer.Start) { s.Flags &^= rawpeer.FlagC }), 5},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 2)
			steps := []rawpeer.Step{rawpeer.PutStart(tt.reply)}
			if tt.code != 0 {
				steps = append(steps, rawpeer.WantTerminate(2, 0, tt.code, bare, seg{}), rawpeer.WantFIN())
			} else {
				steps = append(steps, rawpeer.WantClosed())
			}
			within(t, atOnce, func() {
				_, err := v.connect(tt.param, steps...)
				var rejected *rdma.RejectedError
				if err == nil || errors.As(err, &rejected) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Connect: %v", err)
				}
			})
			v.flushed(rdma.WCFlush)
			v.unharmed()
			v.close()
		})
	}
	r.by.moves(t)
}

// Replies that refuse, and what the program learns of them. MPA-082; EMPA-010, 017.
func TestRawRejections(t *testing.T) {
	r := newRig(t)
	refusing := func(s rawpeer.Start) rawpeer.Start { s.Flags |= rawpeer.FlagR; return s }
	for _, tt := range []struct {
		name  string
		param rdma.ConnParam
		reply rawpeer.Start
	}{
		{"enhanced", rdma.ConnParam{}, refusing(rawpeer.Reply(rawpeer.FlagC, octets(10, 1)...).Enhanced(
			rawpeer.WordA|4, rawpeer.WordC|4))},
		{"ORD 16000", rdma.ConnParam{}, refusing(rawpeer.Reply(rawpeer.FlagC).Enhanced(rawpeer.WordA|4,
			rawpeer.WordC|16000))},
		{"508 octets", rdma.ConnParam{},
			refusing(rawpeer.Reply(rawpeer.FlagC, octets(508, 1)...).Enhanced(rawpeer.WordA|4,
				rawpeer.WordC|4))},
		{"plain", rdma.ConnParam{MPA: rdma.MPAParam{Revision: 1}},
			refusing(rawpeer.Reply(rawpeer.FlagC, octets(512, 1)...))},
		{"S=1 and nothing", rdma.ConnParam{},
			refusing(rawpeer.Start{Key: rawpeer.KeyReply, Flags: rawpeer.FlagC | rawpeer.FlagS, Rev: 2,
				Claim: -1})},
		{"M", rdma.ConnParam{}, refusing(rawpeer.Reply(rawpeer.FlagC|rawpeer.FlagM).Enhanced(
			rawpeer.WordA|4, rawpeer.WordC|4))},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 1)
			_, err := v.connect(tt.param, rawpeer.PutStart(tt.reply), rawpeer.WantClosed())
			var rejected *rdma.RejectedError
			if !errors.As(err, &rejected) || !bytes.Equal(rejected.PrivateData, tt.reply.Private()) {
				t.Errorf("Connect: %v with % x, want a rejection with % x", err, rejected, tt.reply.Private())
			}
			v.flushed(rdma.WCFlush)
			v.close()
		})
	}
}

// Replies with everything in them that an Initiator must take, and its first FPDU after each.
// MPA-057, 062, 065, 075, 083; EMPA-023, 027, 028, 029, 030, 031, 032, 037, 039, 041.
func TestRawReplies(t *testing.T) {
	r := newRig(t)
	const (
		a, b, c, d = rawpeer.WordA, rawpeer.WordB, rawpeer.WordC, rawpeer.WordD
		notSaid    = rawpeer.NotNegotiated
	)
	reply := func(first, second uint16) rawpeer.Start {
		return rawpeer.Reply(rawpeer.FlagC).Enhanced(first, second)
	}
	flags := func(s rawpeer.Start, f byte) rawpeer.Start { s.Flags |= f; return s }
	only := func(k rdma.RTRKinds) rdma.ConnParam {
		return rdma.ConnParam{IRD: 8, ORD: 8, MPA: rdma.MPAParam{RTR: k}}
	}
	server := rdma.ConnParam{IRD: 8, ORD: 8, MPA: rdma.MPAParam{ClientServer: true}}
	write, send := rawpeer.Write(1, 0, nil), rawpeer.Send(1, 0, nil)
	read := rawpeer.ReadRequest(1, rawpeer.Read{SrcSTag: 1})
	all := only(0)
	for _, tt := range []struct {
		name     string
		param    rdma.ConnParam
		words    uint32 // of the Request; 0: none
		reply    rawpeer.Start
		rtr      *seg
		ird, ord uint16
	}{
		{"C", all, (a|b|8)<<16 | c | d | 8, reply(a|4, c|4), &write, 8, 4},
		{"D", all, (a|b|8)<<16 | c | d | 8, reply(a|4, d|4), &read, 8, 4},
		{"B", all, (a|b|8)<<16 | c | d | 8, reply(a|b|4, 4), &send, 8, 4},
		{"all of them", all, (a|b|8)<<16 | c | d | 8, reply(a|b|4, c|d|4), &write, 8, 4},
		{"B, and D with IRD 0", all, (a|b|8)<<16 | c | d | 8, reply(a|b, d|4), &send, 8, rdma.NoReads},
		{"B, C when C was offered", only(rdma.RTRWrite), (a|8)<<16 | c | 8, reply(a|b|4, c|4),
			&write, 8, 4},
		{"all when B was offered", only(rdma.RTRSend), (a|b|8)<<16 | 8, reply(a|b|4, c|d|4), &send, 8, 4},
		{"all when D was offered", only(rdma.RTRRead), (a|8)<<16 | d | 8, reply(a|b|4, c|d|4),
			&read, 8, 4},
		{"A=0 to a client", server, 8<<16 | 8, reply(4, 4), nil, 8, 4},
		{"A=0, B, C, D to a client", server, 8<<16 | 8, reply(b|4, c|d|4), nil, 8, 4},
		{"reserved bits", all, (a|b|8)<<16 | c | d | 8, flags(reply(a|4, c|4), 0x0f), &write, 8, 4},
		{"IRD not said", all, (a|b|8)<<16 | c | d | 8, reply(a|notSaid, c|4), &write, 8, 8},
		{"ORD not said", all, (a|b|8)<<16 | c | d | 8, reply(a|4, c|notSaid), &write, 8, 4},
		{"ORD above our IRD", all, (a|b|8)<<16 | c | d | 8, reply(a|4, c|128), &write, 128, 4},
		{"IRD above our ORD", all, (a|b|8)<<16 | c | d | 8, reply(a|0x3ffe, c|1), &write, 8, 8},
		{"M", all, (a|b|8)<<16 | c | d | 8, flags(reply(a|4, c|4), rawpeer.FlagM), &write, 8, 4},
		{"revision 1", rdma.ConnParam{IRD: 8, ORD: 8, PrivateData: octets(512, 1), MPA: rdma.MPAParam{
			Revision: 1}}, 0, rawpeer.Reply(0x5f, octets(512, 2)...), nil, 8, 8},
	} {
		r.each(t, tt.name, func(t *testing.T, r *rig) {
			v := newVictim(t, r, 2)
			steps := []rawpeer.Step{rawpeer.WantSilence(10 * time.Millisecond), rawpeer.PutStart(tt.reply)}
			if tt.rtr != nil {
				steps = append(steps, rawpeer.Want(*tt.rtr))
			}
			p, err := v.connect(tt.param, steps...)
			if err != nil {
				t.Fatal(err)
			}
			req := p.Got
			first, second, ok := req.Words()
			if w := uint32(first)<<16 | uint32(second); ok != (tt.words != 0) || w != tt.words ||
				req.Flags&^rawpeer.FlagS != rawpeer.FlagC {
				t.Errorf("the Request is %+v with words %#x, want %#x", req, w, tt.words)
			}
			if !bytes.Equal(req.Private(), tt.param.PrivateData) {
				t.Errorf("the Request has private data % x, want % x", req.Private(), tt.param.PrivateData)
			}
			cp := v.conn.Param()
			if cp.IRD != tt.ird || cp.ORD != tt.ord || !bytes.Equal(cp.PrivateData, tt.reply.Private()) {
				t.Errorf("the client has IRD %d, ORD %d, want %d, %d; private data % x", cp.IRD, cp.ORD, tt.ird,
					tt.ord, cp.PrivateData)
			}
			if tt.rtr == &read {
				v.run(p, rawpeer.Put(rawpeer.ReadResponse(0, 0, nil)))
			}
			v.aliveInitiator(p)
			v.leave(p)
		})
	}
}

// aliveInitiator is alive for a victim whose zero-length Writes may come in between: as initiator
// it reminds a peer that has been silent.
func (v *victim) aliveInitiator(p *rawpeer.Peer) {
	v.t.Helper()
	data := octets(33, 99)
	v.run(p, rawpeer.Put(rawpeer.Send(1, 0, octets(20, 1))))
	v.want("the peer's Send", 1, rdma.WCSuccess)
	v.recvs--
	v.expect(atRecv, octets(20, 1))
	v.send(rdma.SendWR{ID: 1000, Op: rdma.OpSend, Flags: rdma.Inline, Inline: data})
	v.run(p, wantBehindNudges(func(s seg) bool {
		return s.Op() == rawpeer.OpSend && bytes.Equal(s.Body, data)
	}))
	v.want("the victim's Send", 1000, rdma.WCSuccess)
	v.unharmed()
}

// wantBehindNudges waits for a segment, past zero-length Writes.
func wantBehindNudges(ok func(seg) bool) rawpeer.Step {
	return rawpeer.Step{Name: "want a segment behind empty Writes", Do: func(p *rawpeer.Peer) error {
		for {
			s, err := p.Next()
			if err != nil || ok(s) {
				return err
			}
			if s.Op() != rawpeer.OpWrite || len(s.Body) != 0 {
				return fmt.Errorf("got %s", rawpeer.DumpSeg(s.ULPDU()))
			}
		}
	}}
}

// A peer that takes the connection and never answers, and one that dies. MPA-080, 086, 089.
func TestRawNoReply(t *testing.T) {
	r := newRig(t)
	for i, tt := range []struct {
		name     string
		steps    []rawpeer.Step
		from, to time.Duration
		want     syscall.Errno
	}{
		{"silence", []rawpeer.Step{rawpeer.WantClosed()}, 9900 * time.Millisecond, patience,
			syscall.ETIMEDOUT},
		{"half a Reply", []rawpeer.Step{rawpeer.PutOctets(accepting(1, 1).Append(nil)[:21]),
			rawpeer.WantClosed()}, 9900 * time.Millisecond, patience, syscall.ETIMEDOUT},
		{"a FIN", []rawpeer.Step{rawpeer.CloseWrite(), rawpeer.WantClosed()}, 0, atOnce,
			syscall.ECONNRESET},
		{"half a Reply and a FIN", []rawpeer.Step{rawpeer.PutOctets(accepting(1, 1).Append(nil)[:21]),
			rawpeer.CloseWrite(), rawpeer.WantClosed()}, 0, atOnce, syscall.ECONNRESET},
		{"a RST", []rawpeer.Step{rawpeer.Reset()}, 0, atOnce, syscall.ECONNRESET},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := newVictim(t, r.over(i%2), 1) // in turn: it takes as long as a set-up may
			begin := time.Now()
			_, err := v.connect(rdma.ConnParam{}, tt.steps...)
			if d := time.Since(begin); err == nil || d < tt.from || d > tt.to {
				t.Errorf("Connect: %v after %v, want an error between %v and %v", err, d, tt.from, tt.to)
			}
			var rejected *rdma.RejectedError
			if !errors.Is(err, tt.want) || errors.As(err, &rejected) {
				t.Errorf("Connect: %v, want %v: no program has rejected anything", err, tt.want)
			}
			v.flushed(rdma.WCFlush)
			v.close()
		})
	}
}
