package tcp

import (
	"bytes"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/vrnic/vrnic/netstack/tcp/recovery"
)

// What a peer sends nudges the silent connections to it, and those once in a while; to look at the
// others for each segment would be slow where there are thousands.
func TestNudge(t *testing.T) {
	clock := faketime.NewManualClock()
	s := losses{clock: clock}
	peers := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")}
	var conns []*lossControl
	silent := func(peer netip.Addr) *lossControl {
		l := &lossControl{c: &Conn{flow: flow{remote: netip.AddrPortFrom(peer, 7)}}}
		l.queued.Store(true) // nobody is to look at it
		s.setSilent(l, true)
		conns = append(conns, l)
		return l
	}
	nudged := func() (n int) {
		for _, l := range conns {
			if l.nudged.Swap(false) {
				n++
			}
		}
		return n
	}
	for i := range 20 {
		silent(peers[i%2])
	}
	stranger := netip.MustParseAddr("10.0.0.4")
	if n := testing.AllocsPerRun(10, func() { s.nudge(stranger) }); n > 0 || nudged() > 0 {
		t.Errorf("a peer without silent connections: %v allocations", n)
	}
	s.nudge(peers[0])
	if n := nudged(); n != 10 {
		t.Errorf("a peer has nudged %d connections of 10", n)
	}
	s.nudge(peers[0])
	if n := nudged(); n != 0 {
		t.Errorf("it has nudged %d at once again", n)
	}
	l := silent(peers[0])
	if s.nudge(peers[0]); !l.nudged.Load() || nudged() != 11 {
		t.Error("it has not nudged one that has become silent since")
	}
	clock.Advance(minRetry)
	if s.nudge(netip.Addr{}); nudged() != 21 {
		t.Error("the link has not nudged all")
	}
	for _, l := range conns {
		s.setSilent(l, false)
	}
	if n := s.n.Load(); n != 0 || len(s.silent) != 0 {
		t.Errorf("%d are silent still", n)
	}
}

// Of more ACKs than can wait the latest are kept.
func TestLatestACKs(t *testing.T) {
	var l lossControl
	for i := range 10 * maxACKs {
		l.keep(heardACK{number: recovery.Seq(i)})
		if n := len(l.acks); n > maxACKs || l.acks[n-1].number != recovery.Seq(i) {
			t.Fatalf("behind ACK %d %d wait, the last of which is %d", i, n, l.acks[n-1].number)
		}
	}
}

// FuzzClearSACK has options, as a peer sends them, parsed the same without their SACK blocks.
func FuzzClearSACK(f *testing.F) {
	f.Add([]byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2})
	f.Add([]byte{5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0})
	f.Add([]byte{5})
	f.Add([]byte{1, 5, 40, 0})
	f.Add([]byte{5, 3, 0, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}) // behind half a block nothing is read
	f.Fuzz(func(t *testing.T, o []byte) {
		o = bytes.Clone(o[:min(len(o), header.TCPOptionsMaximumSize)])
		was := header.ParseTCPOptions(o)
		clearSACK(o)
		is := header.ParseTCPOptions(o)
		if len(is.SACKBlocks) > 0 {
			t.Errorf("%x has SACK blocks still", o)
		}
		if is.TS != was.TS || is.TSVal != was.TSVal || is.TSEcr != was.TSEcr {
			t.Errorf("%x: timestamps %d and %d, were %d and %d", o, is.TSVal, is.TSEcr, was.TSVal, was.TSEcr)
		}
	})
}
