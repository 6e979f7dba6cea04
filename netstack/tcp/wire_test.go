package tcp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// TestEMSS compares EMSS with the segments on the wire, and has it follow the path's MTU, but not
// to where no path can be.
func TestEMSS(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		var longest atomic.Int64
		sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
		porttest.Wire(t, sw1, sw2, false, func(r porttest.Received) bool {
			if n := int64(len(r.Octets)); n > longest.Load() {
				longest.Store(n) // one connection, one direction that matters
			}
			return true
		})
		s1, s2 := netstacktest.NewStack(t, sw1, 1, 1500), netstacktest.NewStack(t, sw2, 2, 1500)
		attacker := porttest.NewPort(t, sw1, "attacker", false)
		a, b := netstacktest.Connect(t, s1, s2, v6)
		headers := int64(14 + 20 + 20 + 12) // timestamps take 12
		const room = 40 - 12                // that gVisor keeps free for SACK blocks
		if v6 {
			headers += 20
		}
		bulk := func() {
			longest.Store(0)
			errc := make(chan error)
			go func() { errc <- netstacktest.Write(a, netstacktest.NewBell(a), 1<<20) }()
			if err := errors.Join(netstacktest.Read(b, netstacktest.NewBell(b), 1<<20), <-errc); err != nil {
				t.Fatal(err)
			}
		}
		bulk()
		if got := int64(a.EMSS()); got != longest.Load()-headers || got != 1500+14-headers-room {
			t.Errorf("v6=%v: EMSS %d, longest frame %d", v6, got, longest.Load())
		}
		was := a.EMSS()
		for _, mtu := range []int{0, 1, 68, 551} {
			if err := attacker.Send(netstacktest.TooBig(s1, a, mtu), frame.Offload{}); err != nil {
				t.Fatal(err)
			}
		}
		// A frame behind them in the stack's queue has been answered when they have been seen.
		if err := attacker.Send(netstacktest.TooBig(s1, a, 1300), frame.Offload{}); err != nil {
			t.Fatal(err)
		}
		needtest.Eventually(t, "path MTU 1300", func() bool { return a.EMSS() < was })
		if got := int64(a.EMSS()); got != 1300+14-headers-room {
			t.Errorf("v6=%v: EMSS %d with a path MTU of 1300", v6, got)
		}
		bulk()
		if got := int64(a.EMSS()); got != longest.Load()-headers {
			t.Errorf("v6=%v: EMSS %d, longest frame %d with a path MTU of 1300", v6, got, longest.Load())
		}
		a.Close()
		b.Close()
	}
}

// TestHiddenPathMTU: nor is a path MTU believed that stands behind extension headers, where gVisor
// finds it.
func TestHiddenPathMTU(t *testing.T) {
	fragment := []byte{60, 0, 0, 0, 1, 2, 3, 4} // the whole packet, and options in it
	options := func(n int) []byte {             // behind which is ICMPv6
		return append([]byte{58, byte(n/8 - 1), 1, byte(n - 4)}, make([]byte, n-4)...)
	}
	for name, x := range map[string]struct {
		next byte
		ext  []byte
	}{
		"options":           {60, options(8)},
		"long options":      {60, options(96)},
		"behind a fragment": {44, append(fragment, options(8)...)},
		"of an experiment":  {253, []byte{58, 0, 0, 0, 0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			sw := ethswitch.New(ethswitch.Config{})
			s1, s2 := netstacktest.NewStack(t, sw, 1, 1500), netstacktest.NewStack(t, sw, 2, 1500)
			attacker := porttest.NewPort(t, sw, "attacker", false)
			a, b := netstacktest.Connect(t, s1, s2, true)
			defer a.Close()
			defer b.Close()
			const headers = frame.EtherHeaderLen + frame.IPv6Len
			plain := netstacktest.TooBig(s1, a, 0)
			hidden := append(append(append([]byte(nil), plain[:headers]...), x.ext...),
				plain[headers:]...)
			hidden[20] = x.next
			binary.BigEndian.PutUint16(hidden[18:], uint16(len(hidden)-headers))
			was := a.EMSS()
			// The one behind it in the stack's queue has been answered when it has been seen.
			for _, m := range [][]byte{hidden, netstacktest.TooBig(s1, a, 1300)} {
				if err := attacker.Send(m, frame.Offload{}); err != nil {
					t.Fatal(err)
				}
			}
			needtest.Eventually(t, "path MTU 1300", func() bool { return a.EMSS() < was })
			if got := a.EMSS(); got != was-200 {
				t.Errorf("EMSS %d, was %d with 200 octets more", got, was)
			}
		})
	}
}

// TestFragmentedSegment: a segment in IP fragments arrives, but not with a wrong checksum.
func TestFragmentedSegment(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		const size = 800
		segment := make(chan []byte, 1)
		sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
		porttest.Wire(t, sw1, sw2, false, func(r porttest.Received) bool {
			if len(r.Octets) < size {
				return true
			}
			select {
			case segment <- bytes.Clone(r.Octets):
			default: // it is sent again
			}
			return false
		})
		s1, s2 := netstacktest.NewStack(t, sw1, 1, 1500), netstacktest.NewStack(t, sw2, 2, 1500)
		sender := porttest.NewPort(t, sw2, "sender", false)
		a, b := netstacktest.Connect(t, s1, s2, v6)
		if _, err := a.WriteFrom(netstacktest.NewSource(size)); err != nil {
			t.Fatal(err)
		}
		right := <-segment
		copy(right[6:], []byte{2, 0, 0, 0, 0, 0x66})
		wrong := bytes.Clone(right)
		wrong[len(wrong)-1] ^= 0xff
		// Fragments are taken one after the other: what comes first is delivered.
		send := func(f []byte, id byte, cuts ...int) {
			at := 0
			for _, end := range append(cuts, len(f)-headersLen(v6)) {
				if err := sender.Send(fragment(f, v6, id, at, end), frame.Offload{}); err != nil {
					t.Fatal(err)
				}
				at = end
			}
		}
		send(wrong, 1, 400)
		if v6 {
			send(wrong, 2) // all in one
		}
		send(right, 3, 400)
		var got bytes.Buffer
		for bell := netstacktest.NewBell(b); got.Len() < size; {
			if n, err := b.ReadInto(&got); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				<-bell
			}
		}
		if !bytes.Equal(got.Bytes(), netstacktest.Pattern(0, size)) {
			t.Errorf("v6=%v: octets with a wrong checksum are delivered", v6)
		}
		a.Abort()
		b.Abort()
	}
}

// headersLen is how long the headers before a transport header are.
func headersLen(v6 bool) int {
	if v6 {
		return frame.EtherHeaderLen + frame.IPv6Len
	}
	return frame.EtherHeaderLen + frame.IPv4MinLen
}

// fragment makes a fragment with identification id of octets at to end of f's IP payload.
func fragment(f []byte, v6 bool, id byte, at, end int) []byte {
	n := headersLen(v6)
	part, more := f[n+at:n+end], n+end < len(f)
	b := bytes.Clone(f[:n])
	field := uint16(at)
	if ip := b[frame.EtherHeaderLen:]; !v6 {
		if field /= 8; more {
			field |= 1 << 13
		}
		binary.BigEndian.PutUint16(ip[2:], uint16(frame.IPv4MinLen+len(part)))
		binary.BigEndian.PutUint16(ip[4:], uint16(id))
		binary.BigEndian.PutUint16(ip[6:], field)
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], frametest.InetChecksum(ip))
	} else {
		if more {
			field |= 1
		}
		binary.BigEndian.PutUint16(ip[4:], uint16(8+len(part)))
		b = append(b, ip[6], 0, byte(field>>8), byte(field), 0, 0, 0, id)
		b[frame.EtherHeaderLen+6] = 44
	}
	return append(b, part...)
}

// TestSuperFramesOfWholeSegments: a full super-frame ends where a segment does, so that those that
// follow begin where an FPDU does.
func TestSuperFramesOfWholeSegments(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		const most = 65535 - 161 // what gVisor lets a super-frame have
		var full, longer, emss atomic.Int64
		sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
		porttest.Wire(t, sw1, sw2, true, func(r porttest.Received) bool {
			if r.GSO == frame.GSONone {
				return true
			}
			switch payload, whole := int64(len(r.Octets))-int64(r.HdrLen), most/emss.Load()*emss.Load(); {
			case payload == whole && int64(r.GSOSize) == emss.Load():
				full.Add(1)
			case payload > whole:
				longer.Add(1)
			}
			return true
		})
		s1, s2 := netstacktest.NewStack(t, sw1, 1, mtu), netstacktest.NewStack(t, sw2, 2, mtu)
		a, b := netstacktest.Connect(t, s1, s2, false)
		emss.Store(int64(a.EMSS()))
		errc := make(chan error)
		go func() { errc <- netstacktest.Write(a, netstacktest.NewBell(a), 8<<20) }()
		if err := errors.Join(netstacktest.Read(b, netstacktest.NewBell(b), 8<<20), <-errc); err != nil {
			t.Fatal(err)
		}
		// The end of what was written at once ends a super-frame, too.
		if n := full.Load(); n < 50 || longer.Load() > 0 {
			t.Errorf("MTU %d, segments of %d octets: %d super-frames of 8 MiB are full, %d are longer", mtu,
				emss.Load(), n, longer.Load())
		}
		a.Close()
		b.Close()
	}
}

// TestListenBacklog: whatever backlog a listener was given, its handshakes agree on window scaling
// and SACK, several at once too.
func TestListenBacklog(t *testing.T) {
	for _, backlog := range []int{0, 1, 2} {
		var answers, bare atomic.Int64
		sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
		porttest.Wire(t, sw1, sw2, false, func(r porttest.Received) bool {
			const synAck = 0x12
			f := r.Octets
			if len(f) < 14+20+20 || f[12] != 8 || f[14+9] != 6 || f[34+13] != synAck {
				return true
			}
			answers.Add(1)
			kinds := make(map[byte]bool)
			for o := f[34+20 : 34+int(f[34+12]>>4)*4]; len(o) > 1 && o[0] != 0; {
				kinds[o[0]] = true
				if o[0] == 1 {
					o = o[1:]
				} else {
					o = o[o[1]:]
				}
			}
			if !kinds[3] || !kinds[4] { // RFC 7323, section 2.2; RFC 2018, section 2
				bare.Add(1)
			}
			return true
		})
		a, b := netstacktest.NewStack(t, sw1, 1, 1500), netstacktest.NewStack(t, sw2, 2, 1500)
		l, err := b.TCP().Listen(netip.AddrPortFrom(b.Addrs()[0].Addr(), 0), backlog)
		if err != nil {
			t.Fatal(err)
		}
		const n = 8
		errc := make(chan error)
		for range n {
			go func() {
				c, err := a.TCP().Dial(t.Context(), netip.Addr{}, l.Addr())
				if err == nil {
					c.Close()
				}
				errc <- err
			}()
		}
		for range n {
			if err := <-errc; err != nil {
				t.Error(err)
			}
		}
		l.Close()
		if answers.Load() < n || bare.Load() > 0 {
			t.Errorf("backlog %d: %d of %d answers without window scaling or SACK, want %d answers that "+
				"have them", backlog, bare.Load(), answers.Load(), n)
		}
	}
}

// TestLossyWire: TCP gets everything across a wire that loses frames, super-frames and plain.
func TestLossyWire(t *testing.T) {
	for _, offloads := range []bool{false, true} {
		var n atomic.Int64
		every := int64(401) // of the frames with data: without an ACK TCP may well do
		if offloads {
			every = 23 // there are few super-frames
		}
		sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
		porttest.Wire(t, sw1, sw2, offloads,
			func(f porttest.Received) bool { return len(f.Octets) < 1000 || n.Add(1)%every != 0 })
		s1, s2 := netstacktest.NewStack(t, sw1, 1, 1500), netstacktest.NewStack(t, sw2, 2, 1500)
		a, b := netstacktest.Connect(t, s1, s2, false)
		netstacktest.Exchange(t, a, b, 2<<20)
		a.Close()
		b.Close()
		if s1.Stats().TCPRetransmits+s2.Stats().TCPRetransmits == 0 {
			t.Errorf("offloads=%v: nothing was sent twice: %+v", offloads, s1.Stats())
		}
	}
}
