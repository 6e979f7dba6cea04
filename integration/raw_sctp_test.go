package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/rdma"
)

// An sctpRig is a daemon with a device that speaks SCTP, a listener of it, and, beside the two
// bystanders of a rig, an honest neighbour: a session in an association of its own.
type sctpRig struct {
	*rig
	l         rdma.Listener
	newPeer   func() (*rawsctp.Peer, error)
	neighbour *sctpSession
}

// overSCTP runs f with SCTP in UDP over IPv4, on addresses of the host, and with SCTP on IPv6, on
// the daemon's own stack.
func overSCTP(t *testing.T, f func(t *testing.T, s *sctpRig)) {
	for name, newRig := range map[string]func(*testing.T) *sctpRig{"in UDP": newUDPRig,
		"IPv6": newIPv6Rig} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newRig(t))
		})
	}
}

// newUDPRig starts everything, at addresses of 127/8 that nobody else uses.
func newUDPRig(t *testing.T) *sctpRig {
	t.Helper()
	host := netip.AddrFrom4([4]byte{127, byte(100 + rand.IntN(100)), byte(rand.IntN(256)), 2})
	s := &sctpRig{rig: &rig{rigged: &rigged{t: t, change: make(chan struct{}),
		events: map[uint32][]rdma.AsyncEvent{}}, addr: host, peer: host.Next()}}
	s.d = up(t, nil, "--device", deviceA, "--device", "vrnic1,addr=10.77.0.3/24", "--device",
		fmt.Sprintf("vrnic2,host=%v", host))
	t.Cleanup(s.empty)
	s.serve("vrnic2")
	s.newPeer = func() (*rawsctp.Peer, error) {
		udp, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.peer, 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.addr, 9899)))
		if err != nil {
			return nil, err
		}
		return rawsctp.New(udp, s.l.Addr().Port()), nil
	}
	s.begun()
	return s
}

// newIPv6Rig starts everything, with the raw peers on a link of the daemon's switch.
func newIPv6Rig(t *testing.T) *sctpRig {
	t.Helper()
	s := &sctpRig{rig: newRig(t).over(1)}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	station := rawsctp.NewStation()
	station.Send = got[*rawhost.Packets](t)(s.host.Packets(ctx, s.peer, s.addr, rawsctp.Protocol,
		station.Take)).Send
	s.newPeer = func() (*rawsctp.Peer, error) { return station.Peer(s.l.Addr().Port()), nil }
	s.begun()
	return s
}

// begun listens, and has the neighbour connected.
func (s *sctpRig) begun() {
	s.t.Helper()
	s.l = got[rdma.Listener](s.t)(s.dev.Listen(netip.AddrPortFrom(s.addr, 0), 16))
	s.t.Cleanup(func() { s.l.Close() })
	s.neighbour = s.session(s.t)
}

// raw makes a peer that has no association yet.
func (s *sctpRig) raw(t testing.TB) *rawsctp.Peer {
	t.Helper()
	p := got[*rawsctp.Peer](t)(s.newPeer())
	t.Cleanup(p.Close)
	return p
}

// established makes one with an association.
func (s *sctpRig) established(t testing.TB) *rawsctp.Peer {
	t.Helper()
	p := s.raw(t)
	check(t, p.Establish())
	// It does not wait for more: the daemon keeps it for 30 s otherwise.
	t.Cleanup(func() { p.Send(rawsctp.Make(rawsctp.Abort, 0)) })
	return p
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An sctpSession is a raw peer with an open session, and the victim at the other end of it.
type sctpSession struct {
	*rawsctp.Peer
	v      *victim
	stream uint16
	msn    uint32 // of the peer's last Send
}

// session opens a session on stream 0 of a new association.
func (s *sctpRig) session(t testing.TB) *sctpSession {
	t.Helper()
	return s.begin(t, s.established(t), 0)
}

// begin opens a session on a stream of p.
func (s *sctpRig) begin(t testing.TB, p *rawsctp.Peer, stream uint16) *sctpSession {
	t.Helper()
	x := &sctpSession{Peer: p, v: newVictim(t, s.rig, 8), stream: stream}
	t.Cleanup(x.v.close)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	x.Control(x.stream, rawsctp.Initiate, []byte("hello")...)
	req, err := s.l.Next(ctx)
	check(t, err)
	if got := string(req.Param().PrivateData); got != "hello" {
		t.Errorf("private data %q", got)
	}
	x.v.conn, err = req.Accept(ctx, x.v.qp, rdma.ConnParam{})
	check(t, err)
	check(t, x.WantControl(x.stream, 0, rawsctp.Accept))
	return x
}

// works has the session move data: a Write, and a Send that completes a receive.
func (x *sctpSession) works(t testing.TB) {
	t.Helper()
	b := octets(200, byte(x.msn))
	x.v.expect(atRW+7, b)
	x.Segment(x.stream, rawpeer.Write(x.v.rw.RKey(), x.v.rw.Addr()+7, b).ULPDU())
	x.msn++
	x.Segment(x.stream, rawpeer.Send(x.msn, 0, []byte("ping")).ULPDU())
	wc := x.v.wc("a Send")
	x.v.recvs--
	if wc.Status != rdma.WCSuccess || wc.ByteLen != 4 {
		t.Fatalf("a Send: %+v\n%s", wc, x.Transcript())
	}
	at := int(wc.ID-1) * recvLen
	x.v.expect(atRecv+at, []byte("ping"))
	x.v.unharmed()
	x.v.post(wc.ID, at, recvLen)
	// It reads what has come, too: an association whose HEARTBEATs nobody answers ends, whatever else
	// its peer sends (RFC 9260, section 8.1).
	check(t, x.Alive())
}

// A rawSCTPCase is something that no honest peer sends.
type rawSCTPCase struct {
	name string
	do   func(t *testing.T, s *sctpRig)
}

// initSilent sends something that must not be answered: the next that is heard is an INIT ACK.
func initSilent(send func(p *rawsctp.Peer)) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		p := s.raw(t)
		send(p)
		check(t, p.Establish())
		check(t, p.Alive())
		p.Send(rawsctp.Make(rawsctp.Abort, 0))
	}
}

// initRefused sends an INIT that is answered by an ABORT with its tag.
func initRefused(cause int, change func(*rawsctp.Setup)) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		p := s.raw(t)
		init := p.Setup()
		change(&init)
		p.Raw(0, init.Chunk())
		check(t, p.WantAbort(p.Own, false, cause))
	}
}

// assocIgnores sends something in an association that has no effect: it is alive, and nothing was
// answered.
func assocIgnores(send func(p *rawsctp.Peer)) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		p := s.established(t)
		send(p)
		check(t, p.Alive())
	}
}

// assocReports sends something that brings an ERROR with a cause, and has no other effect.
func assocReports(cause uint16, send func(p *rawsctp.Peer)) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		p := s.established(t)
		send(p)
		c, err := p.Want(rawsctp.Error)
		check(t, err)
		if got := c.Causes(); len(got) != 1 || got[0] != cause {
			t.Errorf("causes %d, want %d", got, cause)
		}
		check(t, p.Alive())
	}
}

// assocAborts sends something that ends the association with a cause.
func assocAborts(cause int, send func(p *rawsctp.Peer)) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		p := s.established(t)
		send(p)
		check(t, p.WantAbort(p.Own, false, cause))
		// It is gone: RFC 9260, section 8.4 (8).
		p.Send(p.Next(0, rawsctp.PPIDControl, rawsctp.Control(0, rawsctp.Initiate)))
		check(t, p.WantAbort(p.Tag, true, rawsctp.AnyCause))
	}
}

// outOfTheBlue sends something that belongs to no association.
func outOfTheBlue(c rawsctp.Chunk, wants func(p *rawsctp.Peer, tag uint32) error,
) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		p := s.raw(t)
		p.Raw(0xdecade, c)
		if wants != nil {
			check(t, wants(p, 0xdecade))
			return
		}
		_, _, err := p.Begin(p.Setup())
		check(t, err)
	}
}

// sessionEnds sends something in a session that ends it: the daemon says Terminate on its stream.
// Another session of the association goes on.
func sessionEnds(send func(x *sctpSession)) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		x := s.session(t)
		other := s.begin(t, x.Peer, 4)
		send(x)
		check(t, x.WantControl(x.stream, 1, rawsctp.Terminate))
		x.v.ended()
		x.v.flushed(rdma.WCFlush)
		x.v.unharmed()
		other.works(t)
		check(t, x.Alive())
	}
}

// streamRefuses sends something on a stream that has no session.
func streamRefuses(send func(p *rawsctp.Peer)) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		p := s.established(t)
		send(p)
		check(t, p.WantControl(3, 0, rawsctp.Terminate))
		check(t, p.Alive())
	}
}

// badSegment sends a bad segment: the daemon says which cause by a Terminate of RDMAP, and then
// that of the session.
func badSegment(layer, etype, code byte, copies rawpeer.Copies,
	seg func(x *sctpSession) rawpeer.Seg) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		x := s.session(t)
		bad := seg(x)
		x.Segment(x.stream, bad.ULPDU())
		u, err := x.WantSegment(x.stream, 1)
		check(t, err)
		got, ok := rawpeer.ParseSeg(u)
		if !ok || got.Op() != rawpeer.OpTerminate || len(got.Body) < 3 || got.Body[0] != layer<<4|etype ||
			got.Body[1] != code {
			t.Fatalf("a Terminate % x, want %d/%d/%02x\n%s", u, layer, etype, code, x.Transcript())
		}
		check(t, new(rawpeer.Checker).Check(u))
		if c := rawpeer.Copies(got.Body[2]); c != copies {
			t.Errorf("it has copies %#02x, want %#02x", c, copies)
		}
		check(t, x.WantControl(x.stream, 2, rawsctp.Terminate))
		x.v.ended()
		if layer == 1 && etype == 2 && code == 5 { // the message was too long for the first receive
			x.v.flushed(rdma.WCLocLen)
		} else {
			x.v.flushed(rdma.WCFlush)
		}
		x.v.unharmed()
		check(t, x.Alive())
	}
}

var rawSCTPCases = []rawSCTPCase{
	// Set-up: RFC 9260, sections 3.3.2, 5.1 and 8.4.
	{"INIT with tag 0: SCTP-020", initSilent(func(p *rawsctp.Peer) {
		init := p.Setup()
		init.Tag = 0
		p.Raw(0, init.Chunk())
	})},
	{"INIT with a verification tag: SCTP-032", initSilent(func(p *rawsctp.Peer) {
		p.Raw(1, p.Setup().Chunk())
	})},
	{"INIT and another chunk: SCTP-016", initSilent(func(p *rawsctp.Peer) {
		p.Raw(0, p.Setup().Chunk(), rawsctp.Make(rawsctp.CookieAck, 0))
	})},
	{"INIT cut in its fields: SCTP-012", initSilent(func(p *rawsctp.Peer) {
		p.Raw(0, rawsctp.Make(rawsctp.Init, 0, 1, 2, 3, 4))
	})},
	{"INIT with a wrong checksum: SCTP-005", initSilent(func(p *rawsctp.Peer) {
		b := rawsctp.Packet(p.Src, p.Dst, 0, p.Setup().Chunk())
		b[20] ^= 1
		p.Octets(b)
	})},
	{"port 0: SCTP-002", initSilent(func(p *rawsctp.Peer) {
		p.Octets(rawsctp.Packet(0, p.Dst, 0, p.Setup().Chunk()))
	})},
	{"packets that are none: SCTP-008", initSilent(func(p *rawsctp.Peer) {
		for n := range 20 {
			p.Octets(make([]byte, n))
		}
		p.Octets(rawsctp.Packet(p.Src, p.Dst, 0))
		p.Octets(rawsctp.Packet(p.Src, p.Dst, 0, p.Setup().Chunk().Length(3)))
		p.Octets(rawsctp.Packet(p.Src, p.Dst, 0, p.Setup().Chunk().Length(60000)))
	})},
	{"INIT with a window of 1499: SCTP-021",
		initRefused(rawsctp.AnyCause, func(s *rawsctp.Setup) { s.Window = 1499 })},
	{"INIT without streams out: SCTP-021",
		initRefused(rawsctp.AnyCause, func(s *rawsctp.Setup) { s.Out = 0 })},
	{"INIT without streams in: SCTP-021",
		initRefused(rawsctp.AnyCause, func(s *rawsctp.Setup) { s.In = 0 })},
	{"INIT with a host name: SCTP-030", initRefused(rawsctp.CauseAddress, func(s *rawsctp.Setup) {
		s.Params = append(s.Params, rawsctp.Param(rawsctp.ParamHostName, []byte("localhost\x00")...))
	})},
	{"INIT without an indication: SDDP-004, 008",
		initRefused(rawsctp.AnyCause, func(s *rawsctp.Setup) { s.Params = nil })},
	{"INIT with another indication: SDDP-005, 008", initRefused(rawsctp.AnyCause,
		func(s *rawsctp.Setup) {
			s.Params = [][]byte{rawsctp.Adaptation(7)}
		})},
	{"an indication of 12 octets: SDDP-006", initRefused(rawsctp.AnyCause, func(s *rawsctp.Setup) {
		s.Params = [][]byte{rawsctp.Param(rawsctp.ParamAdaptation, 0, 0, 0, 1, 0, 0, 0, 0)}
	})},
	{"an unknown parameter is reported: SCTP-014", func(t *testing.T, s *sctpRig) {
		p := s.raw(t)
		init := p.Setup()
		odd := rawsctp.Param(0xc0ff, 1, 2, 3, 4)
		init.Params = append(init.Params, odd)
		cookie, params, err := p.Begin(init)
		check(t, err)
		if string(params[rawsctp.ParamUnknown]) != string(odd) {
			t.Errorf("reported: % x", params[rawsctp.ParamUnknown])
		}
		// Each octet of a cookie counts: SCTP-037, 044; from another port it is worth nothing: SCTP-045.
		for i := 0; i < len(cookie); i += 7 {
			bad := append([]byte(nil), cookie...)
			bad[i] ^= 0x40
			p.Send(rawsctp.Make(rawsctp.CookieEcho, 0, bad...))
		}
		p.Send(rawsctp.Make(rawsctp.CookieEcho, 0, cookie[:len(cookie)-4]...))
		p.Send(rawsctp.Make(rawsctp.CookieEcho, 0))
		p.Octets(rawsctp.Packet(p.Src+1, p.Dst, p.Tag, rawsctp.Make(rawsctp.CookieEcho, 0, cookie...)))
		p.Send(rawsctp.Make(rawsctp.CookieEcho, 0, cookie...))
		_, err = p.Want(rawsctp.CookieAck)
		check(t, err)
		check(t, p.Alive())
		p.Send(rawsctp.Make(rawsctp.Abort, 0))
	}},
	{"INIT to a port without a listener: SCTP-151", func(t *testing.T, s *sctpRig) {
		p := s.raw(t)
		p.Dst ^= 1
		p.Raw(0, p.Setup().Chunk())
		check(t, p.WantAbort(p.Own, false, rawsctp.AnyCause))
	}},
	{"DATA of no association: SCTP-153",
		outOfTheBlue(rawsctp.DataChunk(3, 1, 0, 0, 16, []byte("x")),
			func(p *rawsctp.Peer, tag uint32) error { return p.WantAbort(tag, true, rawsctp.AnyCause) })},
	{"SHUTDOWN ACK of no association: SCTP-152",
		outOfTheBlue(rawsctp.Make(rawsctp.ShutdownAck, 0), func(p *rawsctp.Peer, tag uint32) error {
			c, err := p.Want(rawsctp.ShutdownComplete)
			if err == nil && c.Flags() != rawsctp.FlagT {
				err = fmt.Errorf("%v without T", c)
			}
			return err
		})},
	{"ABORT of no association: SCTP-150", outOfTheBlue(rawsctp.Make(rawsctp.Abort, 0), nil)},
	{"COOKIE ACK of no association: SCTP-152", outOfTheBlue(rawsctp.Make(rawsctp.CookieAck, 0), nil)},

	// An association: sections 3.2, 6.2, 6.5, 8.5.
	{"a wrong tag: SCTP-003", assocIgnores(func(p *rawsctp.Peer) {
		p.Raw(p.Tag+1, rawsctp.Make(rawsctp.Heartbeat, 0, rawsctp.Param(1, 1, 2, 3, 4)...))
		p.Raw(p.Tag+1, rawsctp.Make(rawsctp.Abort, 0))
		p.Raw(p.Tag, rawsctp.Make(rawsctp.Abort, rawsctp.FlagT))
	})},
	{"an ABORT with a format error: SCTP-155", assocIgnores(func(p *rawsctp.Peer) {
		p.Send(rawsctp.Make(rawsctp.Abort, 0, 0, 1, 0, 99))
	})},
	{"unknown chunks that end a packet: SCTP-009", assocIgnores(func(p *rawsctp.Peer) {
		p.Send(rawsctp.Make(0x3e, 0), rawsctp.Make(rawsctp.Heartbeat, 0, rawsctp.Param(1, 9)...))
	})},
	{"unknown chunks that end it and are reported: SCTP-009",
		assocReports(rawsctp.CauseUnrecognized, func(p *rawsctp.Peer) {
			p.Send(rawsctp.Make(0x7e, 0), rawsctp.Make(rawsctp.Heartbeat, 0, rawsctp.Param(1, 9)...))
		})},
	{"unknown chunks that are skipped and reported: SCTP-010",
		assocReports(rawsctp.CauseUnrecognized, func(p *rawsctp.Peer) {
			p.Send(rawsctp.Make(0xc1, 0), rawsctp.Make(0x84, 0, 0, 0))
		})},
	{"chunks that are cut: SCTP-008", assocIgnores(func(p *rawsctp.Peer) {
		for _, n := range []int{0, 3, 100, 65535} {
			p.Send(rawsctp.Make(rawsctp.Heartbeat, 0, rawsctp.Param(1, 9)...).Length(n))
		}
		p.Send(rawsctp.Make(rawsctp.Data, 3, 1, 2, 3, 4))
		p.Send(rawsctp.Make(rawsctp.Sack, 0, 1, 2, 3, 4))
		p.Send(rawsctp.Make(rawsctp.Shutdown, 0, 1))
	})},
	{"DATA without data: SCTP-099", assocAborts(rawsctp.CauseNoUserData, func(p *rawsctp.Peer) {
		p.Send(p.Next(0, rawsctp.PPIDControl, nil))
	})},
	{"a stream that there is not: SCTP-098",
		assocReports(rawsctp.CauseInvalidStream, func(p *rawsctp.Peer) {
			p.Send(p.Next(60000, rawsctp.PPIDControl, rawsctp.Control(0, rawsctp.Initiate)))
		})},
	{"a TSN far ahead: SCTP-071", assocIgnores(func(p *rawsctp.Peer) {
		p.Send(rawsctp.DataChunk(rawsctp.Unordered, p.TSN+70000, 0, 0, 17, []byte("xxxx")))
		p.Send(rawsctp.DataChunk(rawsctp.Unordered, p.TSN-1, 0, 0, 17, []byte("xxxx")))
	})},
	{"fragments that are of no message: P2", assocAborts(rawsctp.CauseProtocol, func(p *rawsctp.Peer) {
		p.Send(rawsctp.DataChunk(rawsctp.FlagB|rawsctp.FlagU, p.TSN, 0, 0, 17, []byte("xxxx")),
			rawsctp.DataChunk(rawsctp.FlagB|rawsctp.FlagU, p.TSN+1, 0, 0, 17, []byte("xxxx")))
	})},
	{"a SACK of what was not sent: SCTP-108", assocAborts(rawsctp.CauseProtocol,
		func(p *rawsctp.Peer) {
			p.Send(rawsctp.SackChunk(p.Cum()+5, 1<<20))
		})},
	{"a SACK with a block of what was not sent: SCTP-109",
		assocAborts(rawsctp.CauseProtocol, func(p *rawsctp.Peer) {
			p.Send(rawsctp.SackChunk(p.Cum(), 1<<20, 3, 4))
		})},
	{"a SHUTDOWN that acknowledges what was not sent: SCTP-108",
		assocAborts(rawsctp.CauseProtocol, func(p *rawsctp.Peer) {
			p.Send(rawsctp.Make(rawsctp.Shutdown, 0, rawsctp.Uint32(p.Cum()+9)...))
		})},
	{"a SACK with fewer blocks than it says: SCTP-012", assocIgnores(func(p *rawsctp.Peer) {
		c := rawsctp.SackChunk(p.Cum(), 1<<20)
		c[13] = 200
		p.Send(c)
	})},
	{"what nobody asked for: SCTP-048, 057, 156", assocIgnores(func(p *rawsctp.Peer) {
		p.Send(rawsctp.Make(rawsctp.CookieAck, 0))
		p.Send(rawsctp.Make(rawsctp.HeartbeatAck, 0, rawsctp.Param(1, make([]byte, 24)...)...))
		init := p.Setup().Chunk()
		init[0] = rawsctp.InitAck
		p.Send(init)
		for cause := range uint16(20) {
			p.Send(rawsctp.Make(rawsctp.Error, 0, rawsctp.Param(cause, 0, 0, 0, 0)...))
		}
		p.Send(rawsctp.Make(rawsctp.ShutdownAck, 0))
		p.Send(rawsctp.Make(rawsctp.ShutdownComplete, 0))
	})},
	{"twenty HEARTBEATs in a packet: SCTP-018", assocIgnores(func(p *rawsctp.Peer) {
		var all []rawsctp.Chunk
		for i := range 20 {
			all = append(all, rawsctp.Make(rawsctp.Heartbeat, 0, rawsctp.Param(1, byte(i))...))
		}
		p.Send(all...)
		p.Want(rawsctp.HeartbeatAck) // all answers are in its packet; another one disturbs Alive
	})},
	{"an INIT in an association: SCTP-055", func(t *testing.T, s *sctpRig) {
		p := s.established(t)
		tag, init := p.Tag, p.Setup()
		init.Tag++
		_, _, err := p.Begin(init)
		check(t, err)
		if p.Tag == tag {
			t.Error("the same tag again")
		}
		p.Tag = tag
		check(t, p.Alive())
	}},
	{"an INIT that adds an address: SCTP-056", func(t *testing.T, s *sctpRig) {
		p := s.established(t)
		init := p.Setup()
		init.Tag++
		more := rawsctp.Param(rawsctp.ParamIPv4, 192, 0, 2, 7)
		if s.addr.Is6() {
			more = rawsctp.Param(rawsctp.ParamIPv6, netip.MustParseAddr("2001:db8::7").AsSlice()...)
		}
		init.Params = append(init.Params, more)
		p.Raw(0, init.Chunk())
		check(t, p.WantAbort(init.Tag, false, rawsctp.CauseNewAddresses))
		check(t, p.Alive())
	}},

	// Sessions: RFC 5043, sections 5.2 and 6.
	{"a segment before an Initiate: SDDP-035", streamRefuses(func(p *rawsctp.Peer) {
		p.Segment(3, rawpeer.Send(1, 0, []byte("x")).ULPDU())
	})},
	{"an Accept of nothing: SDDP-035",
		streamRefuses(func(p *rawsctp.Peer) { p.Control(3, rawsctp.Accept) })},
	{"a Reject of nothing: SDDP-035",
		streamRefuses(func(p *rawsctp.Peer) { p.Control(3, rawsctp.Reject) })},
	{"an Initiate with 513 octets: SDDP-023", streamRefuses(func(p *rawsctp.Peer) {
		p.Control(3, rawsctp.Initiate, make([]byte, 513)...)
	})},
	{"function 0: SDDP-020", streamRefuses(func(p *rawsctp.Peer) { p.Control(3, 0) })},
	{"function 8: SDDP-020", streamRefuses(func(p *rawsctp.Peer) { p.Control(3, 8) })},
	{"function 0xffff: SDDP-020", streamRefuses(func(p *rawsctp.Peer) { p.Control(3, 0xffff) })},
	{"PPID 0: SDDP-011", streamRefuses(func(p *rawsctp.Peer) {
		p.Send(p.Next(3, 0, rawsctp.Control(0, rawsctp.Initiate)))
	})},
	{"a message of one octet: SDDP-018", streamRefuses(func(p *rawsctp.Peer) {
		p.Send(p.Next(3, rawsctp.PPIDControl, []byte{0}))
	})},
	{"a second Initiate: SDDP-035", sessionEnds(func(x *sctpSession) {
		x.Control(x.stream, rawsctp.Initiate)
	})},
	{"an Accept of the active side: SDDP-035", sessionEnds(func(x *sctpSession) {
		x.Control(x.stream, rawsctp.Accept)
	})},
	{"function 9 in a session: SDDP-020",
		sessionEnds(func(x *sctpSession) { x.Control(x.stream, 9) })},
	{"PPID 50 in a session: SDDP-011", sessionEnds(func(x *sctpSession) {
		x.Send(x.Next(x.stream, 50, rawsctp.Segment(1, make([]byte, 20))))
	})},
	{"a DDP-SSN for the second time: SDDP-034", sessionEnds(func(x *sctpSession) {
		x.Send(x.Next(x.stream, rawsctp.PPIDControl, rawsctp.Control(0, rawsctp.Initiate)))
	})},
	{"a DDP-SSN far ahead: SDDP-034", sessionEnds(func(x *sctpSession) {
		x.Send(x.Next(x.stream, rawsctp.PPIDSegment, rawsctp.Segment(9000, make([]byte, 20))))
	})},
	{"a message of one octet in a session: SDDP-018", sessionEnds(func(x *sctpSession) {
		x.Send(x.Next(x.stream, rawsctp.PPIDSegment, []byte{0}))
	})},

	// Segments: RFC 5041, section 7.2; RFC 5040, section 7.2.
	{"an STag that there is not: SDDP-038", badSegment(1, 1, 0, rawpeer.WithDDP,
		func(x *sctpSession) rawpeer.Seg { return rawpeer.Write(0xdead00, 0, []byte("x")) })},
	{"beyond the end: SDDP-038", badSegment(1, 1, 1, rawpeer.WithDDP,
		func(x *sctpSession) rawpeer.Seg {
			return rawpeer.Write(x.v.rw.RKey(), x.v.rw.Addr()+4090, []byte("more than six"))
		})},
	{"another PD: SDDP-031", badSegment(1, 1, 2, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
		return rawpeer.Write(x.v.foreign.RKey(), x.v.foreign.Addr(), []byte("x"))
	})},
	{"DDP version 2: SDDP-038", badSegment(1, 1, 4, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
		return rawpeer.Write(x.v.rw.RKey(), x.v.rw.Addr(), []byte("x")).DDPVersion(2)
	})},
	{"queue 7: SDDP-038", badSegment(1, 2, 1, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
		return rawpeer.Send(1, 0, []byte("x")).QueueNumber(7)
	})},
	{"a Send longer than its receive: SDDP-038",
		badSegment(1, 2, 5, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
			return rawpeer.Send(1, 0, make([]byte, recvLen+1))
		})},
	{"RDMAP version 3: SDDP-038", badSegment(0, 2, 5, rawpeer.WithDDP,
		func(x *sctpSession) rawpeer.Seg {
			return rawpeer.Send(1, 0, []byte("x")).RDMAPVersion(3)
		})},
	{"opcode 15: SDDP-038", badSegment(0, 2, 6, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
		return rawpeer.Send(1, 0, []byte("x")).Opcode(15)
	})},
}

// What no honest SCTP peer sends is answered as the RFCs say, or not at all; the daemon lives, and
// neither other associations nor other clients notice.
func TestRawSCTP(t *testing.T) {
	overSCTP(t, func(t *testing.T, s *sctpRig) {
		for _, c := range rawSCTPCases {
			t.Run(c.name, func(t *testing.T) {
				c.do(t, s)
				s.neighbour.works(t)
			})
		}
		s.by.moves(t)
	})
}
