package vnic_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// BenchmarkTurns is a Send of 64 octets and its answer on each of many connections in turn, by one
// goroutine that does all: with more of them than the caches hold, what a message costs is the
// lines that it touches.
func BenchmarkTurns(b *testing.B) {
	for _, n := range []int{1, 100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { turns(b, n) })
	}
}

// A turner is one end of many connections.
type turner struct {
	ctx  *vnic.Context
	pd   *vnic.PD
	scq  *vnic.CQ
	rcq  *vnic.CQ
	mr   rdma.MR
	qps  []*vnic.QP
	wr   rdma.SendWR
	rr   rdma.RecvWR
	wc   [8]rdma.WC
	sent int
}

const turnSlots = 2 // octets for a message and its answer

func newTurner(b *testing.B, c *vnic.Context, n int) *turner {
	t := &turner{ctx: c}
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	var err error
	t.pd, err = c.NewPD()
	must(err)
	t.scq, err = c.NewCQ(vnic.CQOptions{Depth: 1024})
	must(err)
	t.rcq, err = c.NewCQ(vnic.CQOptions{Depth: 1024})
	must(err)
	t.mr, err = t.pd.RegisterMemory(make([]byte, n*turnSlots*64), rdma.LocalWrite)
	must(err)
	for i := range n {
		qp, err := t.pd.NewQP(vnic.QPOptions{QPConfig: rdma.QPConfig{SendCQ: t.scq, RecvCQ: t.rcq,
			MaxSendWR: 72, MaxRecvWR: 3}})
		must(err)
		t.qps = append(t.qps, qp)
		for range 2 {
			t.recv(b, i)
		}
	}
	t.wr.SGEs, t.rr.SGEs = make([]rdma.SGE, 1), make([]rdma.SGE, 1)
	return t
}

func (t *turner) sge(i, slot int) rdma.SGE {
	return rdma.SGE{Addr: t.mr.Addr() + uint64((i*turnSlots+slot)*64), Length: 64, LKey: t.mr.LKey()}
}

func (t *turner) recv(b *testing.B, i int) {
	t.rr = rdma.RecvWR{ID: uint64(i), SGEs: append(t.rr.SGEs[:0], t.sge(i, 1))}
	if err := t.qps[i].PostRecv(&t.rr); err != nil {
		b.Fatal(err)
	}
}

func (t *turner) send(b *testing.B, i int) {
	t.wr = rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, SGEs: append(t.wr.SGEs[:0], t.sge(i, 0))}
	if t.sent++; t.sent%16 == 0 {
		t.wr.Flags = rdma.Signaled
	}
	if err := t.qps[i].PostSend(&t.wr); err != nil {
		b.Fatal(err)
	}
	if t.sent%16 == 0 {
		t.take(b, t.scq)
	}
}

func (t *turner) take(b *testing.B, cq *vnic.CQ) {
	n, err := cq.Poll(t.wc[:])
	if err != nil || n != 1 || t.wc[0].Status != rdma.WCSuccess {
		b.Fatal(n, err, t.wc[0])
	}
}

func turns(b *testing.B, n int) {
	d := vnictest.NewNet().Device(b, "vnic0", []string{"10.0.0.1/24"}, func(c *vnic.Config) {
		c.Limits = vnic.Limits{QP: 2 * n, CMID: 4*n + 64}
		c.MaxConnsPerPeer = 2*n + 64
	})
	c := vnictest.Open(b, d, vnic.ContextConfig{})
	x, y := newTurner(b, c, n), newTurner(b, c, n)
	l, err := c.Listen(netip.AddrPortFrom(c.Attr().Addrs[0].Addr(), 0), 0)
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		done := make(chan error, 1)
		go func() {
			r, err := l.Next(context.Background())
			if err == nil {
				_, err = r.Accept(context.Background(), y.qps[i], rdma.ConnParam{})
			}
			done <- err
		}()
		if _, err := c.Connect(context.Background(), x.qps[i], l.Addr(), rdma.ConnParam{}); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	l.Close()
	both := func(i int) {
		for _, t := range [2][2]*turner{{x, y}, {y, x}} {
			t[0].send(b, i)
			t[1].take(b, t[1].rcq)
			t[1].recv(b, i)
		}
	}
	for i := range 2 * n {
		both(i % n)
	}
	b.ResetTimer()
	i := 0
	for b.Loop() {
		both(i)
		if i++; i == n {
			i = 0
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/msg")
}
