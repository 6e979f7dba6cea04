package vnic_test

import (
	"bytes"
	"testing"

	"github.com/vrnic/vrnic/rdma"
)

// A region that may only be written, or only be read, by the peer: what is allowed works, the other
// ends the connection and changes nothing. SEC-019, SEC-021, DDP-085, RDMAP-017, RDMAP-124.
func TestOneWayRights(t *testing.T) {
	for name, tt := range map[string]struct {
		access      rdma.Access
		may, mayNot rdma.Opcode
		want        term
	}{
		"write-only": {rdma.LocalWrite | rdma.RemoteWrite, rdma.OpWrite, rdma.OpRead, term{0, 1, 2}},
		"read-only":  {rdma.RemoteRead, rdma.OpRead, rdma.OpWrite, term{1, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.plain()
				fill(x.Buf, 1)
				fill(y.Buf[1000:2000], 2)
				m := y.Register(y.Buf[1000:2000], tt.access)
				x.Post(rdma.SendWR{ID: 1, Op: tt.may, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, 500)
				// An empty Read waits for the Write before it to be placed.
				x.Post(rdma.SendWR{ID: 2, Op: rdma.OpRead, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, 0)
				x.WantSend("allowed", is(1, ok), is(2, ok))
				if !bytes.Equal(x.Buf[:500], y.Buf[1000:1500]) {
					t.Error("the octets differ")
				}
				fill(x.Buf, 3)
				before, mine := bytes.Clone(y.Buf), bytes.Clone(x.Buf)
				x.Post(rdma.SendWR{ID: 3, Op: tt.mayNot, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, 500)
				e.wantTerm("refused", y.WantDone("over"), false, tt.want)
				e.wantTerm("there", x.WantDone("over"), true, tt.want)
				if !bytes.Equal(before, y.Buf) || !bytes.Equal(mine, x.Buf) {
					t.Error("memory was changed")
				}
			})
		})
	}
}
