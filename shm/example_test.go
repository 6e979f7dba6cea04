package shm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// A client connects to a server and sends it a message from a buffer that the daemon reads in
// place.
func ExampleDial() {
	c, err := shm.Dial("") // a daemon made by "vrnic up"
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	dev, err := c.Open("")
	if err != nil {
		log.Fatal(err)
	}
	if err := hello(context.Background(), dev, netip.MustParseAddrPort("10.77.0.3:7471")); err != nil {
		log.Fatal(err)
	}
}

// hello knows rdma.Device only, so it works as well on an RNIC in its own process.
func hello(ctx context.Context, dev rdma.Device, remote netip.AddrPort) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(16)
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	if err != nil {
		return err
	}
	buf, err := dev.AllocBuffer(1 << 20)
	if err != nil {
		return err
	}
	mr, err := pd.RegisterMemory(buf.Bytes(), rdma.LocalWrite)
	if err != nil {
		return err
	}
	conn, err := dev.Connect(ctx, qp, remote, rdma.ConnParam{})
	if err != nil {
		return err
	}
	defer conn.Disconnect() // the end of the example

	n := copy(buf.Bytes(), "hello")
	sge := rdma.SGE{Addr: mr.Addr(), Length: uint32(n), LKey: mr.LKey()}
	if err := qp.PostSend(&rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{
		sge}}); err != nil {
		return err
	}
	var wc [1]rdma.WC
	for {
		if err := cq.Arm(false); err != nil {
			return err
		}
		if n, err := cq.Poll(wc[:]); n != 0 || err != nil {
			fmt.Println(wc[0].Status, err)
			return err
		}
		if err := cq.Wait(ctx); err != nil {
			return err
		}
	}
}
