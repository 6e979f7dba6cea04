package rdma_test

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// roceAddr is the address of the examples' device of RoCE, which is in this process, too.
var roceAddr = netip.MustParseAddr("10.0.0.1")

var roceRNIC = sync.OnceValue(func() *vnic.Device {
	return must(vnic.New(vnic.Config{
		Name: "rocep0", RoCE: true, Addrs: []netip.Prefix{netip.PrefixFrom(roceAddr, 24)},
		Network: vnictest.NewNet().Host(roceAddr), MTU: 1500,
	}))
})

// path is the way to an address, from the device's own GID of its family.
func path(dev rdma.Device, to netip.Addr) rdma.AHAttr {
	for i := range 16 {
		if g, err := dev.GID(i); err == nil && g.GID.Addr() == roceAddr {
			return rdma.AHAttr{GID: rdma.GIDOf(to), GIDIndex: uint8(i), Port: 1, Global: true}
		}
	}
	panic("the device has no such address")
}

// Programs on RoCE can connect their QPs by themselves: they tell each other QP numbers, PSNs and
// GIDs by whatever way they have, and take their QPs from state to state, as ibv_modify_qp does.
func ExampleQP_Modify() {
	dev := must(roceRNIC().Open(vnic.ContextConfig{}))
	defer dev.Close()
	a, b := newEnd(dev), newEnd(dev)
	connect := func(qp rdma.QP, toQPN, sqPSN, rqPSN uint32) {
		check(qp.Modify(&rdma.QPAttr{State: rdma.QPInit, Port: 1, Access: rdma.RemoteWrite},
			rdma.AttrState|rdma.AttrPKeyIndex|rdma.AttrPort|rdma.AttrAccess))
		check(qp.Modify(&rdma.QPAttr{
			State: rdma.QPRTR, Path: path(dev, roceAddr), PathMTU: rdma.MTU1024,
			DestQPN: toQPN, RQPSN: rqPSN, MaxDestRead: 1, MinRNRTimer: 12,
		}, rdma.AttrState|rdma.AttrPath|rdma.AttrPathMTU|rdma.AttrDestQPN|rdma.AttrRQPSN|
			rdma.AttrMaxDestRead|rdma.AttrMinRNRTimer))
		check(qp.Modify(&rdma.QPAttr{
			State: rdma.QPRTS, SQPSN: sqPSN, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRead: 1,
		}, rdma.AttrState|rdma.AttrSQPSN|rdma.AttrTimeout|rdma.AttrRetryCount|rdma.AttrRNRRetry|
			rdma.AttrMaxRead))
	}
	connect(a.qp, b.qp.Num(), 100, 200)
	connect(b.qp, a.qp.Num(), 200, 100)

	n := copy(a.mr.Bytes(), "connected by hand")
	check(b.qp.PostRecv(&rdma.RecvWR{SGEs: b.sge(100)}))
	check(a.qp.PostSend(&rdma.SendWR{Op: rdma.OpSend, SGEs: a.sge(n)}))
	fmt.Printf("%s\n", b.mr.Bytes()[:b.wait().ByteLen])
	// Output:
	// connected by hand
}

// A datagram goes to a QP that its request names: the way to it is an address handle. In front of
// its octets a receive has 40 for the header of the network layer, which tells who has sent it.
func ExampleAH() {
	dev := must(roceRNIC().Open(vnic.ContextConfig{}))
	defer dev.Close()
	const key = 0x1234 // whoever sends here has to know it
	datagrams := func() *end {
		e := newEnd(dev)
		e.qp = must(e.pd.CreateQP(rdma.QPConfig{
			Type: rdma.UD, SendCQ: e.cq, RecvCQ: e.cq, SignalAll: true,
		}))
		check(e.qp.Modify(&rdma.QPAttr{State: rdma.QPInit, Port: 1, QKey: key},
			rdma.AttrState|rdma.AttrPKeyIndex|rdma.AttrPort|rdma.AttrQKey))
		check(e.qp.Modify(&rdma.QPAttr{State: rdma.QPRTR}, rdma.AttrState))
		check(e.qp.Modify(&rdma.QPAttr{State: rdma.QPRTS}, rdma.AttrState|rdma.AttrSQPSN))
		return e
	}
	a, b := datagrams(), datagrams()
	check(b.qp.PostRecv(&rdma.RecvWR{SGEs: b.sge(100)}))

	to := must(a.pd.CreateAH(path(dev, roceAddr)))
	n := copy(a.mr.Bytes(), "to whom it may concern")
	check(a.qp.PostSend(&rdma.SendWR{
		Op: rdma.OpSend, SGEs: a.sge(n),
		To: rdma.Datagram{AH: to.Handle(), QPN: b.qp.Num(), QKey: key},
	}))
	wc := b.wait()
	fmt.Printf("%s\n", b.mr.Bytes()[40:wc.ByteLen])
	fmt.Println("from that QP:", wc.SrcQP == a.qp.Num())
	// Output:
	// to whom it may concern
	// from that QP: true
}
