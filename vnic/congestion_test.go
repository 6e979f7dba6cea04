package vnic_test

import (
	"bytes"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	roceproto "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A marker is a network that marks packets, those that say that they may be or all.
type marker struct {
	off, all bool
	cnps     int // that it has seen
}

// congested is a pair of connected queue pairs, of devices with congestion control or without.
func congested(t *testing.T, m *marker, typ rdma.QPType, sender, receiver bool) (x,
	y *vnictest.Peer) {
	t.Helper()
	n := vnictest.NewNet()
	n.RoCE.Delay = 10 * time.Microsecond
	n.RoCE.Lost = func(ip []byte) bool {
		p, err := udp.Parse(ip)
		if err != nil {
			t.Fatal(err)
		}
		if packet.Opcode(p.Datagram[0]) == packet.CNP {
			m.cnps++
		}
		if !m.off && p.TrafficClass()&udp.ECNMask == udp.ECT0 || m.all {
			ip[1] |= udp.CE
		}
		return false
	}
	var peers []*vnictest.Peer
	for i, on := range []bool{sender, receiver} {
		d := n.Device(t, "rocep0", []string{[]string{"10.0.0.1/24", "10.0.0.2/24"}[i]}, vnictest.RoCE,
			func(c *vnic.Config) { c.DCQCN = on })
		peers = append(peers, vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}),
			vnictest.PeerConfig{Buffer: 1 << 20, QP: rdma.QPConfig{Type: typ}}))
	}
	vnictest.ConnectByNumber(t, peers[0], peers[1], nil)
	return peers[0], peers[1]
}

// ROCE-223 to 227, 229: packets that are marked are taken as any; with congestion control their
// sender is told of it, not more than once in an interval, and slows down; without, nobody is, and
// who is told does not care. Of UC the sender is told in any case: that is what paces its packets
// (docs/decisions.md#R17).
func TestCongestion(t *testing.T) {
	for _, typ := range []rdma.QPType{rdma.RC, rdma.UC} {
		for _, tt := range []struct {
			name             string
			sender, receiver bool
			all              bool
		}{
			{"both ends", true, true, false}, {"neither", false, false, true},
			{"the receiver alone", false, true, true}, {"the sender alone", true, false, false},
		} {
			t.Run(typ.String()+", "+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := &marker{all: tt.all}
					x, y := congested(t, m, typ, tt.sender, tt.receiver)
					fill(x.Buf, 9)
					began := time.Now()
					const rounds = 8
					for i := range uint64(rounds) {
						y.Recv(i, 0, 1<<20)
						x.Send(i, 0, 1<<20)
						x.WantSend("a Send", is(i, ok))
						y.WantRecv("a Send", is(i, ok))
						if !bytes.Equal(x.Buf, y.Buf) {
							t.Fatal("the octets differ")
						}
						clear(y.Buf)
					}
					took := time.Since(began)
					synctest.Wait()
					sent, got := y.Ctx.Device().DevInfo(), x.Ctx.Device().DevInfo()
					told := tt.receiver || typ == rdma.UC
					if cnps := m.cnps; cnps > int(took/(50*time.Microsecond))+1 || (cnps > 0) != told ||
						tt.receiver && sent.CNPsSent != uint64(cnps) {
						t.Errorf("%d CNPs in %v, counted %d", cnps, took, sent.CNPsSent)
					}
					if heeded := got.CNPsHandled > 0; heeded != (tt.sender && told) {
						t.Errorf("%d CNPs were heeded", got.CNPsHandled)
					}
					if marked := sent.ECNMarked > 0; marked != tt.receiver {
						t.Errorf("%d packets came marked", sent.ECNMarked)
					}
					// On this network nothing else takes time but the way there, and back for RC, and for the
					// CNPs that pace a UC.
					limit := time.Millisecond
					if typ == rdma.UC {
						limit = 100 * time.Millisecond
					}
					if slow := took > limit; slow != (tt.sender && told) {
						t.Errorf("%d MiB took %v", rounds, took)
					}
				})
			})
		}
	}
}

// Whose marks have ended goes on at full speed.
func TestCongestionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &marker{}
		x, y := congested(t, m, rdma.RC, true, true)
		round := func() time.Duration {
			began := time.Now()
			x.Write(1, 0, 1<<20, y, 0)
			x.Read(2, 0, 1<<20, y, 0)
			x.WantSend("there and back", is(1, ok), is(2, ok))
			return time.Since(began)
		}
		for range 4 {
			round()
		}
		if d := round(); d < 2*time.Millisecond {
			t.Errorf("with marks there and back took %v", d)
		}
		if n := x.Ctx.Device().DevInfo().CNPsSent; n == 0 {
			t.Error("the peer was not told of answers to Reads that came marked")
		}
		m.off = true
		time.Sleep(time.Minute)
		if d := round(); d > time.Millisecond {
			t.Errorf("without marks there and back took %v", d)
		}
	})
}

// packetsOnce are packets that are sent once.
type packetsOnce [][]byte

func (p *packetsOnce) NextPacket(b []byte) ([]byte, bool) {
	if len(*p) == 0 {
		return nil, false
	}
	b = append(b, (*p)[0]...)
	*p = (*p)[1:]
	return b, true
}

type deaf struct{}

func (deaf) ReceiveRoCE(*vnic.RoCEPacket) {}

// ROCE-014, 199, 229: a packet with the right QP number from another address than the peer's does
// nothing; a CNP is heeded if it says that it comes from the peer.
func TestCNPOfOthers(t *testing.T) {
	n := vnictest.NewNet()
	a, b := n.Pair(t, vnictest.RoCE, func(c *vnic.Config) { c.DCQCN = true })
	x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{})
	y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{})
	vnictest.ConnectByNumber(t, x, y, nil)
	other := netip.MustParseAddr("10.0.0.7")
	port, err := n.Host(other).OpenRoCE([]netip.Addr{other}, deaf{})
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	peer, own := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
	route, err := port.Route(t.Context(), other, own)
	if err != nil {
		t.Fatal(err)
	}
	attr, err := x.QP.Query()
	if err != nil {
		t.Fatal(err)
	}
	send := packet.Header{Opcode: packet.SendOnly, PKey: packet.DefaultPKey, AckReq: true,
		Dest: packet.QPN(x.QP.Num()), PSN: packet.PSN(attr.RQPSN)}
	for _, from := range []netip.Addr{other, peer} {
		tmpl := udp.NewTemplate(udp.Flow{Src: from, Dst: own, SrcPort: udp.MinSourcePort})
		out := packetsOnce{
			tmpl.Finish(roceproto.AppendCNP(tmpl.Append(nil), packet.QPN(x.QP.Num()))),
		}
		if from == other {
			x.Recv(1, 0, 0)
			out = append(out, tmpl.Finish(send.Append(tmpl.Append(nil))))
		}
		if err := route.Send(&out); err != nil {
			t.Fatal(err)
		}
		want := uint64(0)
		if from == peer {
			want = 1
		}
		if got := a.DevInfo().CNPsHandled; got != want {
			t.Errorf("CNPs from %v: %d were heeded, want %d", from, got, want)
		}
		x.WantNone("a Send of somebody else")
	}
	y.Send(2, 0, 0)
	y.WantSend("the peer's own", is(2, ok))
	x.WantRecv("the peer's own", is(1, ok))
}
