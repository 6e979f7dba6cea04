package vnic_test

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Messages that go past the caches within a device arrive as others do, out of pieces and into
// pieces of any length and place, and nothing beside them is touched.
func TestLongMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const half = vnic.LongMessage/2 + 77
		d := vnictest.NewNet().Device(t, "vnic0", []string{"10.0.0.1/24"})
		cfg := vnictest.PeerConfig{Buffer: 3 * vnic.LongMessage}
		x, y := vnictest.NewQPs(t, vnictest.Open(t, d, vnic.ContextConfig{}),
			vnictest.Open(t, d, vnic.ContextConfig{}), cfg, cfg)
		for i, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpSend} {
			fill(x.Buf, byte(3*i+1))
			fill(y.Buf, byte(3*i+2))
			from, to := x.Buf, y.Buf
			if op == rdma.OpRead {
				from, to = to, from
			}
			// Two pieces, swapped on the way: at x in a Send also of other lengths than at y.
			want := bytes.Clone(to)
			wr := rdma.SendWR{ID: 1, Op: op, Flags: rdma.Signaled, SGEs: []rdma.SGE{x.SGE(half+9, half),
				x.SGE(5, half)}}
			switch op {
			case rdma.OpSend:
				y.QP.PostRecv(&rdma.RecvWR{ID: 2, SGEs: []rdma.SGE{y.SGE(3, half-40), y.SGE(half+1, half+40)}})
				msg := bytes.Join([][]byte{from[half+9:][:half], from[5:][:half]}, nil)
				copy(want[3:], msg[:half-40])
				copy(want[half+1:], msg[half-40:])
			case rdma.OpWrite:
				wr.RemoteAddr, wr.RKey = y.MR.Addr()+11, y.MR.RKey()
				copy(want[11:], from[half+9:][:half])
				copy(want[11+half:], from[5:][:half])
			default: // a Read
				wr.RemoteAddr, wr.RKey = y.MR.Addr()+11, y.MR.RKey()
				copy(want[half+9:], from[11:][:half])
				copy(want[5:], from[11+half:][:half])
			}
			if err := x.QP.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
			x.WantSend(op.String(), vnictest.Want{ID: 1})
			if op == rdma.OpSend {
				if wc := y.WantRecv("all of it", vnictest.Want{ID: 2})[0]; wc.ByteLen != 2*half {
					t.Errorf("%d octets received, want %d", wc.ByteLen, 2*half)
				}
			}
			if !bytes.Equal(to, want) {
				t.Errorf("%v: other octets than were sent, or elsewhere", op)
			}
		}
	})
}
