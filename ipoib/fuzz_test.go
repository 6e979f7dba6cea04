package ipoib

import (
	"bytes"
	"net/netip"
	"testing"
	"time"
)

// What parses is what it is made into again.
func FuzzCodec(f *testing.F) {
	a := LinkAddr{Flags: FlagRC, QPN: 0x100, GID: gid(1)}
	p := arpPacket{op: arpReply, sender: a, target: a, senderIP: netip.MustParseAddr("10.0.0.1"),
		targetIP: netip.MustParseAddr("10.0.0.2")}
	f.Add(a.Append(nil))
	f.Add(Private{QPN: 7, MTU: 65524}.Append(nil))
	f.Add(StreamPrivate{Private: Private{QPN: 7, MTU: 65524}, GID: gid(1), Reason: 28}.Append(nil))
	f.Add(p.append(nil))
	f.Add(appendOption(nil, sourceAddr, a))
	f.Add(frame(IPv4, packet(p.senderIP, p.targetIP, 60)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := ParseLinkAddr(b); ok {
			if again, ok := ParseLinkAddr(a.Append(nil)); !ok || again != a {
				t.Errorf("%+v, again %+v", a, again)
			}
			if got, ok := linkOption(appendOption(nil, targetAddr, a), targetAddr); !ok || got != a {
				t.Errorf("%+v, in an option %+v", a, got)
			}
		}
		if p, ok := ParsePrivate(b); ok {
			if again, ok := ParsePrivate(p.Append(nil)); !ok || again != p {
				t.Errorf("%+v, again %+v", p, again)
			}
		}
		if p, ok := ParseStreamPrivate(b); ok {
			if again, ok := ParseStreamPrivate(p.Append(nil)); !ok || again != p {
				t.Errorf("%+v, again %+v", p, again)
			}
		}
		if p, ok := parseARP(b); ok {
			c := p.append(nil)
			again, ok := parseARP(c)
			if p.target == (LinkAddr{}) {
				again.target = LinkAddr{}
			}
			if !ok || again != p || len(c) != arpLen {
				t.Errorf("%+v, again %+v", p, again)
			}
		}
		linkOption(b, sourceAddr)
		if typ, p, ok := ParseHeader(b); ok {
			if got := frame(typ, p); !bytes.Equal(got[:2], b[:2]) || !bytes.Equal(got[4:], p) {
				t.Errorf("% x, again % x", b, got)
			}
		}
		if h, ok := parseIP(b); ok {
			if h.header > h.length || h.length > len(b) {
				t.Errorf("%+v of %d octets", h, len(b))
			}
			h.body(b)
			if e := complain(b, &h, tooBig, 1500); e != nil {
				if eh, ok := parseIP(e); !ok || eh.length != len(e) || eh.dst != h.src || len(e) > minMTU6 {
					t.Errorf("an error that is no packet: % x", e)
				}
			}
		}
	})
}

// Whatever comes, in whatever order: nothing is sent that is longer than its way takes, no peer has
// two connections, and the tables and their counts agree.
func FuzzInterface(f *testing.F) {
	a := LinkAddr{Flags: FlagRC, QPN: 0x700, GID: gid(7)}
	p := arpPacket{op: arpRequest, sender: a, senderIP: netip.MustParseAddr("10.0.0.7"),
		targetIP: netip.MustParseAddr("10.0.0.1")}
	arp := frame(ARP, p.append(nil))
	f.Add(append([]byte{1, byte(len(arp))}, arp...))
	f.Add([]byte{0, 200, 0, 250, 3, 0, 0, 4, 0, 0, 5, 0, 6, 1, 2, 250, 0, 99, 7, 9, 8, 40})
	f.Fuzz(func(t *testing.T, script []byte) {
		s := newFuzzed(t)
		s.in = script
		for len(s.in) > 0 {
			s.step()
			s.check()
		}
		s.Close()
		s.check()
		if s.Interface.conns != 0 {
			t.Errorf("closed, with %d connections", s.Interface.conns)
		}
	})
}

// A fuzzed interface has peers that do what octets say.
type fuzzed struct {
	*Interface
	t     *testing.T
	in    []byte
	now   time.Time
	conns []*Conn // all that there have been
}

func newFuzzed(t *testing.T) *fuzzed {
	i := New(Config{QPN: 0x100, GID: gid(5), PKey: 0xffff, Scope: 2, LinkMTU: 2044, Connected: true,
		MTU: 9000, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"),
			netip.MustParsePrefix("fd00::1/64")}})
	i.Joined()
	return &fuzzed{Interface: i, t: t, now: time.Unix(1e9, 0)}
}

func (s *fuzzed) octet() byte {
	if len(s.in) == 0 {
		return 0
	}
	b := s.in[0]
	s.in = s.in[1:]
	return b
}

// peer is one of few, on both sides of the own address.
func (s *fuzzed) peer() (LinkAddr, netip.Addr) {
	n := 3 + s.octet()%4
	return LinkAddr{Flags: FlagRC, QPN: 0x700, GID: gid(n)}, netip.AddrFrom4([4]byte{10, 0, 0, n})
}

func (s *fuzzed) conn() *Conn {
	if len(s.conns) == 0 {
		return nil
	}
	return s.conns[int(s.octet())%len(s.conns)]
}

func (s *fuzzed) step() {
	i := s.Interface
	op := s.octet() % 10
	switch op {
	case 0:
		_, ip := s.peer()
		p := packet(netip.MustParseAddr("10.0.0.1"), ip, 20+40*int(s.octet()))
		if s.octet()%2 == 0 {
			p[6] = 0 // it may be cut
		}
		if way, ok := i.Send(s.now, p); ok {
			s.fits(way, len(p))
		}
		return
	case 1:
		n := min(int(s.octet()), len(s.in))
		i.ReceiveDatagram(s.now, gid(7), 0x700, s.in[:n])
		s.in = s.in[n:]
		return
	case 2:
		a, ip := s.peer()
		i.learn(s.now, ip, a, true)
		return
	case 3:
		a, _ := s.peer()
		mtu := 36 * uint32(s.octet())
		s.conns = append(s.conns, i.Requested(s.now, a.GID, Private{a.QPN, mtu}.Append(nil), nil))
		return
	case 4:
		s.now = s.now.Add(time.Duration(s.octet()) * time.Second)
		i.Expire(s.now)
		return
	case 5:
		_, ip := s.peer()
		if n := i.neighbours[ip]; n != nil {
			i.forget(n)
		}
		return
	}
	c := s.conn()
	switch {
	case c == nil:
	case op == 6:
		a, _ := s.peer()
		i.Replied(s.now, c, Private{a.QPN, 36 * uint32(s.octet())}.Append(nil))
	case op == 7:
		i.Established(s.now, c)
	case op == 8 && s.octet()%2 == 0:
		i.Refused(s.now, c)
	case op == 8:
		i.Ended(s.now, c)
	default:
		n := min(int(s.octet()), len(s.in))
		i.ReceiveConnected(s.now, c, s.in[:n])
		s.in = s.in[n:]
	}
}

// fits says whether an IP packet of n octets may go that way.
func (s *fuzzed) fits(way Way, n int) {
	most := s.cfg.LinkMTU
	if c := way.Conn; c != nil {
		most = c.MTU()
		if c.state != connOpen {
			s.t.Errorf("over a connection in state %d", c.state)
		}
	}
	if n > most {
		s.t.Errorf("%d octets go %+v, which takes %d", n, way, most)
	}
}

func (s *fuzzed) check() {
	for _, o := range s.Outputs() {
		switch o.Kind {
		case OutSend:
			s.fits(o.Way, len(o.Frame)-HeaderLen)
		case OutConnect:
			s.conns = append(s.conns, o.Conn)
		default:
		}
	}
	n, kept := 0, 0
	for addr, x := range s.peers {
		for _, p := range x.waiting {
			kept += len(p)
		}
		if x.addr != addr || x.neighbours == 0 && x.conn == nil && x.asking == nil {
			s.t.Fatalf("peer %v: %+v", addr, x)
		}
		for _, c := range []*Conn{x.conn, x.asking} {
			if c == nil {
				continue
			}
			n++
			if c.peer != x || c.state == connOver || (c == x.asking) != (c.state == connAsking) {
				s.t.Fatalf("peer %v: %+v", addr, c)
			}
		}
		if x.asking != nil && x.conn != nil && !x.asking.yielded {
			s.t.Fatalf("peer %v: two connections", addr)
		}
		if len(x.waiting) > 0 && !x.deciding() {
			s.t.Fatalf("peer %v: %d packets wait for nothing", addr, len(x.waiting))
		}
	}
	if n != s.Interface.conns {
		s.t.Fatalf("%d connections, counted as %d", n, s.Interface.conns)
	}
	for ip, x := range s.neighbours {
		for _, p := range x.waiting {
			kept += len(p)
		}
		if x.ip != ip || x.known() != (x.peer != nil) || x.peer != nil && s.peers[x.peer.addr] != x.peer {
			s.t.Fatalf("neighbour %v: %+v", ip, x)
		}
	}
	if kept != s.kept {
		s.t.Fatalf("%d octets wait, counted as %d", kept, s.kept)
	}
}
