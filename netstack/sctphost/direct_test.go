package sctphost_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctphost"
)

// Packets of an association go past IP in both directions, with the headers that IP would give
// them, but for one now and then.
func TestDirect(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%v", v6), func(t *testing.T) {
			w := &headerWatch{}
			sw := [2]*ethswitch.Switch{ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})}
			porttest.Wire(t, sw[0], sw[1], true, w.frame)
			a, b := netstacktest.NewStack(t, sw[0], 1, 1500), netstacktest.NewStack(t, sw[1], 2, 1500)
			from, _ := sctpEnds(t, a.SCTP(), b.SCTP(), netip.AddrPortFrom(addrOf(b, v6), 7), nil)
			sctpEcho(t, from) // IP has come to know all it has to
			inA, outA := a.SCTP().IPPackets()
			inB, outB := b.SCTP().IPPackets()
			began := time.Now()
			const n = 500
			for i := range n {
				msg := netstacktest.Pattern(int64(i), 100)
				if id, err := from.conn.Send(sctp.SendOptions{}, bytes.NewReader(msg), false); id == 0 {
					t.Fatal(err)
				}
				if got := <-from.got; !bytes.Equal(got, msg) {
					t.Fatalf("%x sent, %x came back", msg, got)
				}
			}
			may := uint64(10 + 4*(time.Since(began)/sctphost.RenewAfter+1))
			inA2, outA2 := a.SCTP().IPPackets()
			inB2, outB2 := b.SCTP().IPPackets()
			for what, n := range map[string]uint64{"in to a": inA2 - inA, "out of a": outA2 - outA,
				"in to b": inB2 - inB, "out of b": outB2 - outB} {
				if n > may {
					t.Errorf("%s: %d packets of %d messages through IP", what, n, 500)
				}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.headers) != 2 || w.packets < 2*n || w.bad != "" {
				t.Errorf("%d packets with %d headers: %v; %s", w.packets, len(w.headers), w.headers, w.bad)
			}
		})
	}
}

// A headerWatch collects the headers of SCTP's packets, but for lengths and checksums.
type headerWatch struct {
	mu      sync.Mutex
	packets int
	headers map[string]bool
	bad     string
}

func (w *headerWatch) frame(r porttest.Received) bool {
	f := frame.New(r.Octets, frame.Offload{})
	defer f.Release()
	var p frame.Packet
	if err := p.Parse(f); err != nil || p.Protocol != frame.ProtoSCTP {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.packets++
	if !f.ChecksumsValid(&p) || p.End != f.Len() ||
		r.Offload != (frame.Offload{Csum: frame.CsumValid}) {
		w.bad = fmt.Sprintf("%x with %+v", r.Octets, r.Offload)
	}
	h := p.Headers
	if p.EtherType == frame.EtherIPv4 {
		clear(h[p.L3+2 : p.L3+4])
		clear(h[p.L3+10 : p.L3+12])
		if binary.BigEndian.Uint16(h[p.L3+6:]) != 0x4000 {
			return true // of the set-up: it may be fragmented, and has a number
		}
	} else {
		clear(h[p.L3+4 : p.L3+6])
	}
	if w.headers == nil {
		w.headers = map[string]bool{}
	}
	w.headers[string(h[:p.L4])] = true
	return true
}

// What comes from outside with an address of the stack's own goes through IP, which refuses it,
// also when the stack has an association with itself.
func TestDirectNotToItself(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		sw := ethswitch.New(ethswitch.Config{})
		s := netstacktest.NewStack(t, sw, 1, 1500)
		out := porttest.NewPort(t, sw, "out", false)
		from, to := sctpEnds(t, s.SCTP(), s.SCTP(), netip.AddrPortFrom(addrOf(s, v6), 7), nil)
		sctpEcho(t, from)
		strangers := func() uint64 { // packets: what the ends say to each other is not counted
			st := s.SCTP().Stats()
			return st.Malformed + st.BadChecksum + st.BadTag + st.OutOfTheBlue
		}
		// An SCTP packet between the two ends, with a wrong tag.
		src, dst := from.conn.LocalAddr(), to.conn.LocalAddr()
		send := func(src netip.AddrPort) {
			t.Helper()
			b := binary.BigEndian.AppendUint16(nil, src.Port())
			b = append(binary.BigEndian.AppendUint16(b, dst.Port()), make([]byte, 12)...)
			mac := s.MAC()
			f := append(mac[:], 2, 0, 0, 0, 0, 9)
			if v6 {
				f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(b)), frame.ProtoSCTP, 64)
				f = append(append(f, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
			} else {
				f = append(f, 0x08, 0x00, 0x45, 0, 0, byte(20+len(b)), 0, 0, 0x40, 0, 64, frame.ProtoSCTP, 0,
					0)
				f = append(append(f, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
				binary.BigEndian.PutUint16(f[24:], ^checksum.Checksum(f[14:], 0))
			}
			if err := out.Send(append(f, b...), frame.Offload{}); err != nil {
				t.Fatal(err)
			}
		}
		send(src)
		// From somebody else's address it does come, and behind the first.
		send(netip.AddrPortFrom(src.Addr().Next().Next(), src.Port()))
		needtest.Eventually(t, "a stranger's packet", func() bool { return strangers() > 0 })
		if n := strangers(); n != 1 {
			t.Errorf("v6=%v: a packet of a stranger with our address reaches SCTP", v6)
		}
	}
}
