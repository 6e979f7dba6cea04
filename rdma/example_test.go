package rdma_test

import (
	"context"
	"log"
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// rnic is the RNIC of all examples, in this process. A program beside a daemon has its Device from
// shm.Client.Open.
var rnic = sync.OnceValue(func() *vnic.Device {
	return must(vnic.New(vnic.Config{
		Name: "vrnic0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")},
	}))
})

// open opens a device. Closing it ends all that was made through it.
func open() rdma.Device { return must(rnic().Open(vnic.ContextConfig{})) }

// An end is one end of a connection: a QP with a CQ for all its completions, and 4 KiB of
// registered memory.
type end struct {
	dev  rdma.Device
	pd   rdma.PD
	mr   rdma.MR
	cq   rdma.CQ
	qp   rdma.QP
	conn rdma.Conn
}

// allRights are all that a peer and a window can be given.
const allRights = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic |
	rdma.MWBind

func newEnd(dev rdma.Device) *end {
	e := &end{dev: dev, pd: must(dev.AllocPD()), cq: must(dev.CreateCQ(16))}
	e.mr = must(e.pd.RegisterMemory(must(dev.AllocBuffer(4096)).Bytes(), allRights))
	e.qp = must(e.pd.CreateQP(rdma.QPConfig{
		SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxInline: 64, SignalAll: true,
	}))
	return e
}

// connected returns two ends that are connected to each other.
func connected() (a, b *end) {
	a, b = newEnd(open()), newEnd(open())
	a.conn, b.conn = join(a.dev, a.qp, b.dev, b.qp)
	return a, b
}

// join connects a QP to another one.
func join(dev rdma.Device, qp rdma.QP, toDev rdma.Device, to rdma.QP) (conn, toConn rdma.Conn) {
	ctx := context.Background()
	// Both ends ask for RFC 7306: atomics and immediate data.
	param := rdma.ConnParam{Extensions: true}
	l := must(toDev.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 1))
	defer l.Close()
	accepted := make(chan rdma.Conn)
	go func() { accepted <- must(must(l.Next(ctx)).Accept(ctx, to, param)) }()
	conn = must(dev.Connect(ctx, qp, l.Addr(), param))
	return conn, <-accepted
}

func (e *end) close() { e.dev.Close() }

// sge names n octets at the beginning of e's memory.
func (e *end) sge(n int) []rdma.SGE {
	return []rdma.SGE{{Addr: e.mr.Addr(), Length: uint32(n), LKey: e.mr.LKey()}}
}

// wait waits for e's next completion.
func (e *end) wait() rdma.WC { return wait(e.cq) }

// wait waits for the next completion of cq. ExampleCQ_Arm shows how a program does that.
func wait(cq rdma.CQ) rdma.WC {
	wc := make([]rdma.WC, 1)
	for must(cq.Poll(wc)) == 0 {
		check(cq.Arm(false))
		if must(cq.Poll(wc)) == 1 {
			break
		}
		check(cq.Wait(context.Background()))
	}
	return wc[0]
}

func must[T any](v T, err error) T { check(err); return v }

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
