package sctphost_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctphost"
)

// An sctpPeer is one end of an association: it checks what comes and tells of the end.
type sctpPeer struct {
	conn  *sctphost.Conn
	echo  bool
	acked chan struct{} // something was acknowledged
	got   chan []byte
	down  chan error
}

func newSCTPPeer(echo bool) *sctpPeer {
	return &sctpPeer{echo: echo, acked: make(chan struct{}, 1), got: make(chan []byte, 16),
		down: make(chan error, 1)}
}

func (p *sctpPeer) Message(m *sctp.Message) {
	b := m.Append(nil)
	o := sctp.SendOptions{Stream: m.Stream, PPID: m.PPID, Unordered: m.Unordered}
	p.conn.Release(m, false)
	if p.echo {
		if id, err := p.conn.Send(o, bytes.NewReader(b), false); id == 0 {
			panic(fmt.Sprint("echo not sent: ", err))
		}
		return
	}
	p.got <- b
}

func (p *sctpPeer) Event(*sctp.Event) {
	select {
	case p.acked <- struct{}{}:
	default:
	}
}

func (p *sctpPeer) Down(err error) { p.down <- err }

// sctpEnds sets up an association from a to a listener of b at addr.
func sctpEnds(t *testing.T, a, b *sctphost.Host, at netip.AddrPort, o *sctp.Options) (from,
	to *sctpPeer) {
	t.Helper()
	to, from = newSCTPPeer(true), newSCTPPeer(false)
	accepted := make(chan struct{})
	l, err := b.Listen(sctphost.ListenConfig{Addr: at, Options: o,
		Accept: func(c *sctphost.Conn) sctphost.Handler {
			to.conn = c
			close(accepted)
			return to
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	from.conn, err = a.Dial(ctx, sctphost.DialConfig{Remote: l.Addr(), Options: o, Handler: from})
	if err != nil {
		t.Fatal(err)
	}
	<-accepted
	return from, to
}

// connector listens at b, which answers with what it gets. The function sets up an association from
// a, and returns its ends.
func connector(t *testing.T, a, b *netstack.Stack) func() (from, to *sctpPeer) {
	t.Helper()
	accepted := make(chan *sctpPeer, 1)
	l, err := b.SCTP().Listen(sctphost.ListenConfig{
		Addr: netip.AddrPortFrom(addrOf(b, false), 7), Accept: func(c *sctphost.Conn) sctphost.Handler {
			p := newSCTPPeer(true)
			p.conn = c
			accepted <- p
			return p
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func() (from, to *sctpPeer) {
		t.Helper()
		from = newSCTPPeer(false)
		from.conn, err = a.SCTP().Dial(t.Context(), sctphost.DialConfig{Remote: l.Addr(), Handler: from})
		if err != nil {
			t.Fatal(err)
		}
		return from, <-accepted
	}
}

// sctpEcho sends messages of many sizes and gets them back.
func sctpEcho(t *testing.T, from *sctpPeer) {
	t.Helper()
	for i, n := range []int{1, 3, 100, from.conn.MaxPayload(), from.conn.MaxPayload() + 1, 20_000,
		70_000} {
		msg := netstacktest.Pattern(int64(i), n)
		id, err := from.conn.Send(sctp.SendOptions{Stream: uint16(i), PPID: 16, Unordered: i%2 == 1},
			bytes.NewReader(msg), false)
		if id == 0 {
			t.Fatalf("%d octets: not sent: %v", n, err)
		}
		if got := <-from.got; !bytes.Equal(got, msg) {
			t.Fatalf("%d octets sent, %d others came back", n, len(got))
		}
	}
}

// ends waits until both ends have heard of the end.
func (p *sctpPeer) ends(t *testing.T, want error) {
	t.Helper()
	select {
	case err := <-p.down:
		if want == nil && err != nil || want != nil && err == nil {
			t.Errorf("%v: ended with %v, want %v", p.conn.LocalAddr(), err, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%v: no end", p.conn.LocalAddr())
	}
}

// TestSCTP: messages over gVisor, both families, with fragments and without.
func TestSCTP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%v", v6), func(t *testing.T) {
			a, b := netstacktest.Pair(t, 1500)
			from, to := sctpEnds(t, a.SCTP(), b.SCTP(), netip.AddrPortFrom(addrOf(b, v6), 7), nil)
			if want := from.conn.LocalAddr(); to.conn.RemoteAddr() != want ||
				to.conn.LocalAddr() != from.conn.RemoteAddr() {
				t.Errorf("%v-%v and %v-%v", from.conn.LocalAddr(), from.conn.RemoteAddr(), to.conn.LocalAddr(),
					to.conn.RemoteAddr())
			}
			sctpEcho(t, from)
			from.conn.Shutdown()
			from.ends(t, nil)
			to.ends(t, nil)
			if n := a.SCTP().Associations() + b.SCTP().Associations(); n != 0 {
				t.Errorf("%d associations are left", n)
			}
		})
	}
}

func addrOf(s *netstack.Stack, v6 bool) netip.Addr {
	for _, p := range s.Addrs() {
		if p.Addr().Is6() == v6 {
			return p.Addr()
		}
	}
	panic("no such address")
}

// TestSCTPOverUDP is the same over UDP sockets of the host, without privilege: RFC 6951.
// SCTP-176, SCTP-179.
func TestSCTPOverUDP(t *testing.T) {
	for _, hosts := range [][2]string{{"127.0.0.2", "127.0.0.3"}, {"::1", "::1"}} {
		t.Run(hosts[0], func(t *testing.T) {
			a, b := overUDP(t, hosts[0]), overUDP(t, hosts[1])
			to, from := newSCTPPeer(true), newSCTPPeer(false)
			l, err := b.s.Listen(sctphost.ListenConfig{Addr: netip.AddrPortFrom(b.addr.Addr(), 7),
				Accept: func(c *sctphost.Conn) sctphost.Handler {
					to.conn = c
					return to
				}})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			from.conn, err = a.s.Dial(t.Context(), sctphost.DialConfig{Remote: l.Addr(),
				Encap: b.addr.Port(), Handler: from})
			if err != nil {
				t.Fatal(err)
			}
			sctpEcho(t, from)
			from.conn.Abort("enough")
			from.ends(t, errors.New("aborted"))
			to.ends(t, errors.New("aborted"))
		})
	}
}

type udpEnd struct {
	s    *sctphost.Host
	addr netip.AddrPort // of the socket
}

// overUDP makes a Host at a free port of host: where another socket was a moment ago, unless
// somebody was quicker.
func overUDP(t *testing.T, host string) udpEnd {
	t.Helper()
	for tries := 10; ; tries-- {
		c, err := net.ListenUDP("udp",
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), 0)))
		if err != nil && host == "::1" {
			needtest.Lacking(t, "ipv6", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		at := c.LocalAddr().(*net.UDPAddr).AddrPort()
		c.Close()
		s, err := sctphost.NewOverUDP(at, nil, sctp.Options{})
		if errors.Is(err, syscall.EADDRINUSE) && tries > 1 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return udpEnd{s, at}
	}
}

// TestSCTPRefusals: errors that a program can tell apart. SCTP-151, SCTP-178.
func TestSCTPRefusals(t *testing.T) {
	a, b := netstacktest.Pair(t, 1500)
	closedPort := netip.AddrPortFrom(addrOf(b, false), 9)
	if _, err := a.SCTP().Dial(t.Context(), sctphost.DialConfig{Remote: closedPort,
		Handler: newSCTPPeer(false)}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("closed port: %v", err)
	}
	if _, err := a.SCTP().Dial(t.Context(), sctphost.DialConfig{
		Remote: netip.MustParseAddrPort("203.0.113.1:9"), Handler: newSCTPPeer(false)}); !errors.Is(err,
		syscall.ENETUNREACH) && !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("no route: %v", err)
	}
	accept := func(*sctphost.Conn) sctphost.Handler { return nil }
	l, err := b.SCTP().Listen(sctphost.ListenConfig{Addr: closedPort, Accept: accept})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.SCTP().Listen(sctphost.ListenConfig{Addr: closedPort, Accept: accept}); !errors.Is(
		err, syscall.EADDRINUSE) {
		t.Errorf("listened at twice: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.SCTP().Dial(ctx, sctphost.DialConfig{Remote: closedPort,
		Handler: newSCTPPeer(false)}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	l.Close()
	if _, err := a.SCTP().Dial(t.Context(), sctphost.DialConfig{Remote: closedPort,
		Handler: newSCTPPeer(false)}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("listener closed: %v", err)
	}
	b.SCTP().Close()
	if _, err := b.SCTP().Listen(sctphost.ListenConfig{Addr: closedPort, Accept: accept}); !errors.Is(
		err, net.ErrClosed) {
		t.Errorf("listen when closed: %v", err)
	}

	// Nobody hears us at the UDP port: the host's ICMP says so. A socket that is connected to somebody
	// else keeps the port.
	u := overUDP(t, "127.0.0.1")
	deaf, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)},
		&net.UDPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 9})
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	_, err = u.s.Dial(t.Context(), sctphost.DialConfig{
		Remote: netip.MustParseAddrPort("127.0.0.1:9"),
		Encap:  deaf.LocalAddr().(*net.UDPAddr).AddrPort().Port(), Handler: newSCTPPeer(false),
	})
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("UDP port with nobody there: %v", err)
	}
}

// TestSCTPProtocolUnreachable: a host without SCTP says so by ICMP, and the dial fails at once.
// SCTP-165, SCTP-167.
func TestSCTPProtocolUnreachable(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	a := netstacktest.NewStack(t, sw, 1, 1500)
	host := porttest.NewPort(t, sw, "host", false)
	self, peer := addrOf(a, false), netstacktest.Addresses(2)[0].Addr()
	done := make(chan error, 1)
	go func() {
		_, err := a.SCTP().Dial(t.Context(), sctphost.DialConfig{Remote: netip.AddrPortFrom(peer, 9),
			Handler: newSCTPPeer(false)})
		done <- err
	}()
	for answered := false; !answered; {
		f := (<-host.Frames).Octets
		reply := arpReply(f, peer)
		if reply == nil {
			reply = protocolUnreachable(f)
			answered = reply != nil
		}
		if reply != nil {
			if err := host.Send(reply, frame.Offload{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-done; !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, sctp.ErrUnreachable) {
		t.Errorf("%v: %v", self, err)
	}
}

// hostMAC is the made-up host's.
var hostMAC = []byte{2, 0, 0, 0, 0, 9}

// arpReply answers frame f if it asks for peer, else it is nil.
func arpReply(f []byte, peer netip.Addr) []byte {
	if len(f) < 42 || f[12] != 8 || f[13] != 6 || !bytes.Equal(f[38:42], peer.AsSlice()) {
		return nil
	}
	r := append([]byte(nil), f[6:12]...)
	r = append(append(r, hostMAC...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
	r = append(append(r, hostMAC...), f[38:42]...)
	return append(r, f[22:32]...)
}

// protocolUnreachable is the ICMP error for f if that holds SCTP over IPv4, else nil.
func protocolUnreachable(f []byte) []byte {
	if len(f) < 14+20+8 || f[12] != 8 || f[13] != 0 || f[14+9] != 132 {
		return nil
	}
	quote := f[14:min(len(f), 14+20+32)]
	r := append([]byte(nil), f[6:12]...)
	r = append(append(r, hostMAC...), 8, 0)
	ip := []byte{0x45, 0, 0, byte(20 + 8 + len(quote)), 0, 0, 0, 0, 64, 1, 0, 0}
	ip = append(append(ip, f[30:34]...), f[26:30]...)
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip, 0))
	icmp := append([]byte{3, 2, 0, 0, 0, 0, 0, 0}, quote...)
	binary.BigEndian.PutUint16(icmp[2:], ^checksum.Checksum(icmp, 0))
	return append(append(r, ip...), icmp...)
}

// TestSCTPTimers: retransmission runs on the stack's clock, and gives up after its ninth INIT.
// SCTP-050.
func TestSCTPTimers(t *testing.T) {
	clock := faketime.NewManualClock()
	sw := ethswitch.New(ethswitch.Config{})
	a, err := netstack.NewStack(sw, netstack.Config{Name: "a", Addrs: netstacktest.Addresses(1),
		Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	done := make(chan error, 1)
	go func() {
		_, err := a.SCTP().Dial(t.Context(), sctphost.DialConfig{
			Remote: netip.AddrPortFrom(netstacktest.Addresses(2)[0].Addr(), 9), Handler: newSCTPPeer(false)})
		done <- err
	}()
	for a.SCTP().Associations() == 0 {
		runtime.Gosched()
	}
	// 1, 2, 4 and six times 5 s: 37.
	for range 36 {
		clock.Advance(time.Second)
	}
	if n := a.SCTP().Associations(); n != 1 {
		t.Fatalf("%d associations before its time: %v", n, <-done)
	}
	// The clock's functions run on goroutines of their own, so a timer may be set later than it
	// should, and then fires later.
	for deadline := time.Now().Add(time.Minute); ; clock.Advance(10 * time.Second) {
		select {
		case err := <-done:
			if !errors.Is(err, syscall.ETIMEDOUT) || !errors.Is(err, sctp.ErrTimeout) {
				t.Errorf("ended with %v", err)
			}
			return
		default:
			runtime.Gosched()
		}
		if time.Now().After(deadline) {
			t.Fatal("no end")
		}
	}
}

// heard counts calls that a Journal hears of.
type heard struct{ begun [sctp.CallRelease + 1]int }

func (h *heard) Begin(c *sctp.Call) { h.begun[c.Kind]++ }
func (*heard) Drew([]byte)          {}
func (*heard) MTU(int)              {}
func (*heard) Admitted(bool)        {}
func (*heard) End(*sctp.Result)     {}

// Associations that a Journal does not hear of go on while it hears of others, at the same port, so
// do those that it has heard of when it does no more. There may be few such times at once.
func TestJournal(t *testing.T) {
	a, b := netstacktest.Pair(t, 1500)
	connect := connector(t, a, b)
	dial := func() *sctpPeer {
		t.Helper()
		from, _ := connect()
		return from
	}
	use := func(all ...*sctpPeer) {
		t.Helper()
		for _, p := range all {
			p.conn.Send(sctp.SendOptions{PPID: 16}, bytes.NewReader([]byte("hello")), false)
			if got := <-p.got; string(got) != "hello" {
				t.Fatalf("got %q", got)
			}
		}
	}
	first := dial()
	var h, g heard
	stop, err := b.SCTP().Journal(&h)
	if err != nil {
		t.Fatal(err)
	}
	stopG, err := a.SCTP().Journal(&g)
	if err != nil {
		t.Fatal(err)
	}
	use(first)
	if h.begun[sctp.CallInput] != 0 || h.begun[sctp.CallListen] != 1 || g.begun[sctp.CallNew] != 1 {
		t.Errorf("of an association that there was it hears %v", h.begun)
	}
	second := dial()
	use(first, second, first)
	if h.begun[sctp.CallInput] < 3 || g.begun[sctp.CallDial] != 1 || g.begun[sctp.CallSend] != 1 {
		t.Errorf("of a new association they hear %v and %v", h.begun, g.begun)
	}
	stop()
	stopG()
	was := h.begun
	third := dial()
	use(first, second, third)
	if h.begun != was {
		t.Errorf("behind the end it hears %v", h.begun)
	}
	for _, s := range []*sctphost.Host{a.SCTP(), b.SCTP()} {
		if n := s.Associations(); n != 3 {
			t.Errorf("%d associations", n)
		}
	}
	all := []*sctpPeer{first, second, third}
	for n := 0; ; n++ { // each has an association of its own
		if _, err := a.SCTP().Journal(&h); err != nil {
			break
		}
		if all = append(all, dial()); n == 100 {
			t.Fatal("there is no bound")
		}
	}
	use(all...)
	for _, p := range all {
		p.conn.Shutdown()
		if err := <-p.down; err != nil {
			t.Error(err)
		}
	}
	if _, err := a.SCTP().Journal(&h); err != nil {
		t.Errorf("all is over: %v", err)
	}
	if n := a.SCTP().Associations(); n != 0 {
		t.Errorf("%d associations are left", n)
	}
}
