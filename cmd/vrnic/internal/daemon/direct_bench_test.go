package daemon_test

import (
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
)

// What it costs to register a region and deregister it, with peers that have its keys and do
// nothing meanwhile: each has written there directly, or by the daemon.
func BenchmarkDeregister(b *testing.B) {
	for _, direct := range []bool{false, true} {
		d := daemontest.Start(b, withDirect(direct))
		for _, peers := range []int{0, 1, 8} {
			b.Run(fmt.Sprintf("direct=%v/peers=%d", direct, peers), func(b *testing.B) {
				owner := newIdle(b, d, peers, direct)
				mem := owner.Buf.Bytes()
				for b.Loop() {
					mr, err := owner.PD.RegisterMemory(mem, moverAll)
					if err == nil {
						err = mr.Close()
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// newIdle is an end with so many peers, each of which has reached its memory.
func newIdle(b *testing.B, d *daemontest.Daemon, peers int, direct bool) *daemontest.End {
	client := d.Dial()
	b.Cleanup(func() { client.Close() })
	owner := daemontest.NewEnd(b, daemontest.Open(b, client, "vrnic0"), 4096)
	var wc [1]rdma.WC
	for range peers {
		other := d.Dial()
		b.Cleanup(func() { other.Close() })
		peer := daemontest.NewEnd(b, daemontest.Open(b, other, "vrnic0"), 4096)
		with := *owner
		var err error
		if with.QP, err = owner.PD.CreateQP(rdma.QPConfig{SendCQ: owner.CQ, RecvCQ: owner.CQ,
			MaxSendWR: 16, MaxRecvWR: 4}); err != nil {
			b.Fatal(err)
		}
		daemontest.Connect(b, peer, &with, daemontest.Addr(b, with.Dev, false, 0))
		for tries := 0; ; tries++ {
			peer.Write(0, 0, 64, &with, 0)
			n, err := peer.CQ.Poll(wc[:])
			if err != nil || tries == 10000 {
				b.Fatalf("what is written does not become direct: %v", err)
			}
			if n == 1 { // at once
				break
			}
			peer.WantOK("a Write", 0, rdma.WCWrite)
			if !direct {
				break
			}
		}
	}
	return owner
}
