package gvisor

import (
	"bytes"
	"io"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/vrnic/vrnic/internal/needtest"
)

const bufferSize = 1 << 20

func plainTCP(st *stack.Stack) stack.TransportProtocol { return NewTCP(st, nil) }

// connected is a connection between two of gVisor's stacks, without anything of netstack between
// them.
func connected(t *testing.T) (a, b *tcp.Endpoint) {
	t.Helper()
	a, b, _ = connectedTo(t)
	return a, b
}

// connectedTo is connected, and the stack of b.
func connectedTo(t *testing.T) (a, b *tcp.Endpoint, peer *stack.Stack) {
	t.Helper()
	left, right := pipe.New("\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02", 1500)
	var stacks [2]*stack.Stack
	addrs := [2]tcpip.Address{tcpip.AddrFrom4([4]byte{10, 0, 0, 1}),
		tcpip.AddrFrom4([4]byte{10, 0, 0, 2})}
	for i, link := range []stack.LinkEndpoint{left, right} {
		st := stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{plainTCP},
		})
		t.Cleanup(func() { st.Close(); st.Wait() })
		if err := TuneTCP(st, bufferSize, bufferSize); err != nil {
			t.Fatal(err)
		}
		if err := st.CreateNIC(1, link); err != nil {
			t.Fatal(err)
		}
		own := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
			AddressWithPrefix: addrs[i].WithPrefix()}
		if err := st.AddProtocolAddress(1, own, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		st.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
		stacks[i] = st
	}
	endpoint := func(st *stack.Stack, wq *waiter.Queue) *tcp.Endpoint {
		ep, err := st.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, wq)
		if err != nil {
			t.Fatal(err)
		}
		TuneEndpoint(ep, bufferSize)
		return ep.(*tcp.Endpoint)
	}
	var wqs [2]waiter.Queue
	listener := endpoint(stacks[1], &wqs[1])
	if err := listener.Bind(tcpip.FullAddress{Port: 7}); err != nil {
		t.Fatal(err)
	}
	if err := listener.Listen(Backlog(1)); err != nil {
		t.Fatal(err)
	}
	a = endpoint(stacks[0], &wqs[0])
	err := a.Connect(tcpip.FullAddress{Addr: addrs[1], Port: 7})
	if _, started := err.(*tcpip.ErrConnectStarted); !started {
		t.Fatal("no connection begins")
	}
	soon(t, "a connection", func() bool {
		ep, _, err := listener.Accept(nil)
		if err == nil {
			b = ep.(*tcp.Endpoint)
			TuneEndpoint(b, bufferSize)
		}
		return err == nil
	})
	soon(t, "both ends established", func() bool {
		return a.EndpointState() == tcp.StateEstablished && b.EndpointState() == tcp.StateEstablished
	})
	t.Cleanup(func() { a.Close(); b.Close(); listener.Close() })
	return a, b, stacks[1]
}

func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !needtest.Becomes(is) {
		t.Fatalf("gVisor has changed: waited in vain for %s", what)
	}
}

func write(t *testing.T, ep *tcp.Endpoint, n int) {
	t.Helper()
	if _, err := ep.Write(bytes.NewReader(make([]byte, n)), tcpip.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func readable(ep *tcp.Endpoint) bool { return ep.Readiness(waiter.ReadableEvents) != 0 }

// TestHandleSegments: while an endpoint is locked its segments stay queued, and HandleSegments
// handles them on the caller's goroutine.
func TestHandleSegments(t *testing.T) {
	a, b := connected(t)
	b.LockUser()
	write(t, a, 64)
	time.Sleep(20 * time.Millisecond) // for a processor that would handle it
	if readable(b) {
		t.Error("gVisor has changed: it handles segments of an endpoint that the user has locked")
	}
	err := HandleSegments(b)
	if err != nil || !readable(b) {
		t.Errorf("gVisor has changed: handling a segment, error %v, readable %v", err, readable(b))
	}
	b.UnlockUser()
	if r, err := b.Read(io.Discard, tcpip.ReadOptions{}); err != nil || r.Count != 64 {
		t.Errorf("read %d octets, %v", r.Count, err)
	}
}

// TestStartTimeWait: an endpoint that HandleSegments has brought to TIME-WAIT stays there for as
// long as it should, and no longer.
func TestStartTimeWait(t *testing.T) {
	a, b, st := connectedTo(t)
	short := tcpip.TCPTimeWaitTimeoutOption(10 * time.Millisecond)
	if err := st.SetTransportProtocolOption(tcp.ProtocolNumber, &short); err != nil {
		t.Fatal(err)
	}
	if err := b.Shutdown(tcpip.ShutdownWrite); err != nil {
		t.Fatal(err)
	}
	soon(t, "a FIN that is acknowledged",
		func() bool { return b.EndpointState() == tcp.StateFinWait2 })
	b.LockUser()
	if err := a.Shutdown(tcpip.ShutdownWrite); err != nil {
		t.Fatal(err)
	}
	err := HandleSegments(b)
	if s := b.EndpointState(); err != nil || s != tcp.StateTimeWait {
		t.Errorf("gVisor has changed: behind both FINs an endpoint is in state %v, %v", s, err)
	}
	StartTimeWait(b)
	b.UnlockUser()
	soon(t, "the end of TIME-WAIT", func() bool { return b.EndpointState() == tcp.StateClose })
}

// TestResetConnection: a connection that is reset so is in the error state, and can be drained.
func TestResetConnection(t *testing.T) {
	_, b := connected(t)
	b.LockUser()
	ResetConnection(b, &tcpip.ErrConnectionReset{})
	b.UnlockUser()
	DrainSegments(b)
	if s := b.EndpointState(); s != tcp.StateError {
		t.Errorf("gVisor has changed: a connection that is reset is in state %v", s)
	}
}

// TestSegmentQueue: gVisor's TCP has the method that its demultiplexer looks for.
func TestSegmentQueue(t *testing.T) {
	st := stack.New(stack.Options{TransportProtocols: []stack.TransportProtocolFactory{plainTCP}})
	defer func() { st.Close(); st.Wait() }()
	if SegmentQueueOf(st.TransportProtocolInstance(tcp.ProtocolNumber)) == nil {
		t.Error("gVisor has changed: its TCP has no QueuePacket")
	}
}

// TestSegmentSize: a segment is what the MTU leaves, but for room for all options.
func TestSegmentSize(t *testing.T) {
	a, _ := connected(t)
	if n := SegmentSize(a); n != 1500-header.IPv4MinimumSize-header.TCPHeaderMaximumSize {
		t.Errorf("gVisor has changed: segments of %d octets at an MTU of 1500", n)
	}
}

// TestGSOMaxSize: what gVisor leaves of it is a whole number of segments.
func TestGSOMaxSize(t *testing.T) {
	for _, mtu := range []uint32{1280, 1500, 9000} {
		segment := mtu - header.IPv4MinimumSize - header.TCPHeaderMaximumSize
		if n := GSOMaxSize(mtu) - header.TCPTotalHeaderMaximumSize - 1; n%segment != 0 || n == 0 {
			t.Errorf("MTU %d: super-frames of %d octets, segments of %d", mtu, n, segment)
		}
	}
}

// TestOptions: the options are taken, and a send buffer that was set keeps its size in use.
func TestOptions(t *testing.T) {
	st := stack.New(stack.Options{TransportProtocols: []stack.TransportProtocolFactory{plainTCP}})
	defer func() { st.Close(); st.Wait() }()
	if err := TuneTCP(st, bufferSize, bufferSize); err != nil {
		t.Fatal(err)
	}
	var recovery tcpip.TCPRecovery
	var congestion tcpip.CongestionControlOption
	for _, o := range []tcpip.GettableTransportProtocolOption{&recovery, &congestion} {
		if err := st.TransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			t.Fatal(err)
		}
	}
	if recovery&tcpip.TCPRACKLossDetection != 0 || congestion != "reno" {
		t.Errorf("gVisor has changed: recovery %v, congestion control %q", recovery, congestion)
	}
	a, b := connected(t)
	for range 4 {
		write(t, a, bufferSize/4)
		for got := 0; got < bufferSize/4; {
			r, err := b.Read(io.Discard, tcpip.ReadOptions{})
			if err == nil {
				got += r.Count
			} else {
				time.Sleep(time.Millisecond) // until more has come
			}
		}
	}
	if n := a.SocketOptions().GetSendBufferSize(); n != bufferSize {
		t.Errorf("gVisor has changed: a send buffer of %d octets became one of %d", bufferSize, n)
	}
}

// TestLiveness: a peer that is gone is given up, while something is outstanding and while not.
func TestLiveness(t *testing.T) {
	const limit = 250 * time.Millisecond
	for name, tt := range map[string]struct {
		l     Liveness
		write bool
	}{
		"nothing outstanding": {l: Liveness{KeepAlive: 10 * time.Millisecond, UserTimeout: limit}},
		"octets outstanding":  {l: Liveness{UserTimeout: limit}, write: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, peer := connectedTo(t)
			if err := tt.l.Apply(a); err != nil {
				t.Fatalf("gVisor has changed: %v", err)
			}
			if err := peer.DisableNIC(1); err != nil {
				t.Fatal(err)
			}
			if tt.write {
				write(t, a, 64)
			}
			soon(t, "the end of a connection whose peer is gone", func() bool {
				return a.EndpointState() == tcp.StateError
			})
		})
	}
}

// A tooBig is what IP makes of an ICMP message.
type tooBig struct {
	stack.TransportError
	mtu uint32
}

func (tooBig) Kind() stack.TransportErrorKind { return stack.PacketTooBigTransportError }
func (e tooBig) Info() uint32                 { return e.mtu }

// TestPathMTU: gVisor still believes any MTU. When it does not, AbsurdPathMTU can go.
func TestPathMTU(t *testing.T) {
	a, _ := connected(t)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{})
	defer pkt.DecRef()
	a.HandleError(tooBig{mtu: 1}, pkt)
	soon(t, "segments of one octet", func() bool { return SegmentSize(a) == 1 })
}

// A recorder is a CongestionControl that lets everything through, and notes what it is told.
type recorder struct {
	state             *tcp.TCPSenderState
	updates, timeouts int
}

func (r *recorder) HandleLossDetected()       {}
func (r *recorder) HandleRTOExpired()         { r.timeouts++ }
func (r *recorder) PostRecovery()             {}
func (r *recorder) Update(int, time.Duration) { r.updates++ }

// TestSender: gVisor's congestion control can be another one, which is told of ACKs, and what was
// sent can be sent again, in other pieces.
func TestSender(t *testing.T) {
	a, b := connected(t)
	a.LockUser()
	s := SenderOf(a)
	r := &recorder{state: s.State()}
	s.SetControl(r)
	segment, una := s.State().MaxPayloadSize, uint32(s.State().SndUna)
	s.State().SndCwnd = 1000
	a.UnlockUser()

	b.LockUser() // nothing is acknowledged
	write(t, a, 10*segment)
	a.LockUser()
	st := s.State()
	if st.Outstanding != 10 || st.SndNxt != st.SndUna.Add(seqnum.Size(10*segment)) || s.ZeroWindow() {
		t.Errorf("gVisor has changed: %d packets under way of 10", st.Outstanding)
	}
	before := a.Stats().(*tcp.Stats).SendErrors.Retransmits.Value()
	s.Rewind()
	s.Resend(una+uint32(2*segment), una+uint32(3*segment))
	s.Resend(una+uint32(5*segment), una+uint32(5*segment+100))
	if n := a.Stats().(*tcp.Stats).SendErrors.Retransmits.Value() - before; n != 2 {
		t.Errorf("gVisor has changed: %d retransmissions, want 2", n)
	}
	if st.Outstanding < 10 || st.Outstanding > 12 {
		t.Errorf("gVisor has changed: %d packets under way after two were sent again", st.Outstanding)
	}
	if n := s.Forward(); n < 10*segment || st.Outstanding < 10 {
		t.Errorf("gVisor has changed: %d octets were sent again", n)
	}
	if now := Timestamp(a); now == 0 {
		t.Error("gVisor has changed: no timestamp")
	}
	a.UnlockUser()
	b.UnlockUser()
	soon(t, "an ACK for all", func() bool {
		a.LockUser()
		defer a.UnlockUser()
		return s.State().SndUna == s.State().SndNxt
	})
	if r.updates == 0 {
		t.Error("gVisor has changed: its congestion control is not told of ACKs")
	}
	if s.RTT().SRTT == 0 {
		t.Error("gVisor has changed: no round trip was measured")
	}
	var got bytes.Buffer
	for got.Len() < 10*segment {
		if _, err := b.Read(&got, tcpip.ReadOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWindow: what is told to the peer now is what SendAck tells it.
func TestWindow(t *testing.T) {
	a, b := connected(t)
	write(t, a, 10*SegmentSize(a))
	acknowledged := func() (window int, all bool) {
		a.LockUser()
		defer a.UnlockUser()
		s := SenderOf(a)
		st := s.State()
		return int(st.SndWnd), st.SndUna == st.SndNxt
	}
	soon(t, "an ACK for all", func() bool { _, all := acknowledged(); return all })
	before, _ := acknowledged()
	if _, err := b.Read(io.Discard, tcpip.ReadOptions{}); err != nil {
		t.Fatal(err)
	}
	b.LockUser()
	s := SenderOf(b)
	now, scale := int(Window(b)), s.Receiver().RcvWndScale
	s.SendAck()
	b.UnlockUser()
	if now <= before || scale == 0 {
		t.Errorf("gVisor has changed: a window of %d octets in units of 1<<%d, %d before reading", now,
			scale, before)
	}
	soon(t, "an ACK with the window", func() bool {
		window, _ := acknowledged()
		return window == now>>scale<<scale
	})
}

// TestCuts: a peer that has every other octet sent again cuts what was sent so often and no more.
// When all is acknowledged it may be cut again.
//
// +checklocksignore: the ends' locks are taken and given in turns.
func TestCuts(t *testing.T) {
	a, b := connected(t)
	a.LockUser()
	s := SenderOf(a)
	s.SetControl(&recorder{state: s.State()})
	segment := s.State().MaxPayloadSize
	s.State().SndCwnd = 1000
	a.UnlockUser()
	pieces := func() (n int) {
		for seg := s.front(); seg != nil; seg = next(seg) {
			n++
		}
		return n
	}
	const packets = 20
	for round := range 2 {
		b.LockUser() // nothing is acknowledged
		write(t, a, packets*segment)
		a.LockUser()
		una, all := uint32(s.State().SndUna), packets*segment
		retransmits := &a.Stats().(*tcp.Stats).SendErrors.Retransmits
		before := retransmits.Value()
		for first := range uint32(2) {
			s.Rewind()
			for i := first; i < uint32(all); i += 2 {
				s.Resend(una+i, una+i+1)
			}
		}
		if n := pieces(); n > packets+2*maxCuts || n < maxCuts/2 {
			t.Errorf("round %d: %d pieces of %d packets, want no more than %d", round, n, packets,
				packets+2*maxCuts)
		}
		if n := int(retransmits.Value() - before); n > 2*(packets+2*maxCuts) || n < maxCuts {
			t.Errorf("round %d: %d packets were sent again", round, n)
		}
		if st := s.State(); st.Outstanding > pieces() || st.Outstanding < packets {
			t.Errorf("round %d: %d packets under way in %d pieces", round, st.Outstanding, pieces())
		}
		a.UnlockUser()
		b.UnlockUser()
		soon(t, "an ACK for all", func() bool {
			a.LockUser()
			defer a.UnlockUser()
			return s.State().SndUna == s.State().SndNxt
		})
		var got bytes.Buffer
		for got.Len() < all {
			if _, err := b.Read(&got, tcpip.ReadOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
