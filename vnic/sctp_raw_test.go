package vnic_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// An sctpRaw is a peer over SCTP that sends what it is told to, with a session on stream 0.
type sctpRaw struct {
	*env
	y *vnictest.Peer
	a vnic.Association
}

// rawSession accepts a session of a raw peer.
func rawSession(t *testing.T, link vnictest.SCTPLink, buffer int, f func(p *sctpRaw)) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		n.SCTP = link
		e := &env{t: t, net: n, b: vnictest.Open(t, n.Device(t, "vnic1", []string{"10.0.0.2/24"}),
			vnic.ContextConfig{})}
		l := e.server()
		peer := netip.MustParseAddr("10.0.0.7")
		a, err := n.Host(peer).DialSCTP(t.Context(), peer, l.Addr(), vnic.SCTPForDDP,
			silent{})
		if err != nil {
			t.Fatal(err)
		}
		p := &sctpRaw{env: e, y: vnictest.NewPeer(t, e.b, vnictest.PeerConfig{Buffer: buffer}), a: a}
		c := sctpddp.Control{Function: sctpddp.FuncInitiate}
		b, err := c.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		p.send(0, sctpddp.PPIDControl, b[2:])
		r, err := l.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p.y.Conn, err = r.Accept(t.Context(), p.y.QP, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f(p)
	})
}

// send sends the message with a DDP-SSN.
func (p *sctpRaw) send(ssn uint16, ppid uint32, b []byte) {
	p.t.Helper()
	msg := append(binary.BigEndian.AppendUint16(nil, ssn), b...)
	if id, err := p.a.Send(0, ppid, bytes.NewReader(msg)); id == 0 || err != nil {
		p.t.Fatalf("send message %d: %d, %v", ssn, id, err)
	}
	p.a.Flush()
}

// write is an RDMA Write of one segment to offset off of y's buffer.
func (p *sctpRaw) write(off int, b []byte) []byte {
	return append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, iwarp.STag(p.y.MR.RKey()),
		p.y.MR.Addr()+uint64(off)), b...)
}

// What a segment is refused for when it is looked at ahead of order is no fault before its turn:
// one that comes first in order ends the connection for its own.
func TestSCTPFaultInOrder(t *testing.T) {
	rawSession(t, vnictest.SCTPLink{}, 64, func(p *sctpRaw) {
		p.send(2, sctpddp.PPIDSegment, append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 0x12345600, 0),
			1))
		synctest.Wait()
		bad := p.write(0, []byte{1})
		bad[0] ^= 3 // of another version of DDP
		p.send(1, sctpddp.PPIDSegment, bad)
		p.y.WantEvent("malformed, not refused", rdma.EventQPFatal)
	})
}

// What comes while a QP is in Closing is placed nowhere, and ends the connection as over TCP.
func TestSCTPDataInClosing(t *testing.T) {
	rawSession(t, vnictest.SCTPLink{}, 64, func(p *sctpRaw) {
		p.y.Conn.Disconnect()
		synctest.Wait()
		p.y.WantState("its Terminate is out", rdma.QPClosing)
		p.send(1, sctpddp.PPIDSegment, p.write(0, []byte("late")))
		p.y.WantDone("data behind the end")
		p.y.WantState("lost", rdma.QPError)
		if !bytes.Equal(p.y.Buf, make([]byte, 64)) {
			t.Errorf("%q was placed", p.y.Buf[:4])
		}
	})
}

// A flood of messages ahead of order is taken in steps, and all of it.
func TestSCTPFloodAheadOfOrder(t *testing.T) {
	const size, n = 1400, 2000
	rawSession(t, vnictest.SCTPLink{Window: 2 * n}, size, func(p *sctpRaw) {
		for i := range n {
			p.send(uint16(2+i), sctpddp.PPIDSegment, p.write(0, bytes.Repeat([]byte{byte(i)}, size)))
		}
		p.send(1, sctpddp.PPIDSegment, p.write(0, nil))
		synctest.Wait()
		if got := p.y.Buf[size-1]; got != byte((n-1)%256) {
			t.Errorf("the last octet that was placed is %#x", got)
		}
		p.y.WantState("all is well", rdma.QPRTS)
	})
}
