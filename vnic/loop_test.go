package vnic_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// An order is a CQSink that notes whose completion came when.
type order struct {
	name string
	log  *[]string
}

func (o order) Push(wc *rdma.WC, _, _ uint32, _ bool) bool {
	*o.log = append(*o.log, o.name) // one goroutine at a time: nothing is posted but one message
	return true
}

// Two ends of a device whose Sends wait for each other's receives leave it at that: they do not
// wake each other all the time.
func TestLoopBothWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vnictest.NewNet().Device(t, "vnic0", []string{"10.0.0.1/24"})
		x := vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}), vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}), vnictest.PeerConfig{})
		vnictest.Connect(t, x, y)
		x.Send(1, 0, 100)
		y.Send(2, 0, 100)
		synctest.Wait() // for ever, if they do
		x.WantNone("there is no receive")
		y.WantNone("there is no receive")
		x.Recv(3, 200, 100)
		y.Recv(4, 200, 100)
		x.WantSend("there is a receive now", is(1, ok))
		y.WantSend("there is a receive now", is(2, ok))
		x.WantRecv("of y's", is(3, ok))
		y.WantRecv("of x's", is(4, ok))
	})
}

// Within a device the completion of a Send is there before the receiver knows of it, so that it
// comes before that of any answer: ib_send_lat -e waits for events of both on one channel, and
// takes the first for that of the Send.
func TestLoopSendCompletesFirst(t *testing.T) {
	for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpSendImm, rdma.OpWriteImm} {
		synctest.Test(t, func(t *testing.T) {
			d := vnictest.NewNet().Device(t, "vnic0", []string{"10.0.0.1/24"})
			x := vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}), ext)
			y := vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}), ext)
			var log []string
			for _, p := range []*vnictest.Peer{x, y} {
				name := map[*vnictest.Peer]string{x: "sent", y: "received"}[p]
				cq, err := p.Ctx.NewCQ(vnic.CQOptions{Depth: 8, Sink: order{name, &log}})
				if err != nil {
					t.Fatal(err)
				}
				cfg := p.QP.Config()
				p.QP.Close()
				cfg.SendCQ, cfg.RecvCQ = cq, cq
				if p.QP, err = p.PD.NewQP(vnic.QPOptions{QPConfig: cfg}); err != nil {
					t.Fatal(err)
				}
			}
			vnictest.Connect(t, x, y)
			y.Recv(1, 0, 100)
			n := 100
			if op == rdma.OpSendImm {
				n = 0
			}
			x.Post(rdma.SendWR{ID: 2, Op: op, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}, 0, n)
			synctest.Wait()
			if got := strings.Join(log, " "); got != "sent received" {
				t.Errorf("%v: completions %q", op, got)
			}
		})
	}
}
