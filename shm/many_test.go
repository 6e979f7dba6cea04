package shm_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// Many goroutines of a program connect at once, through one session at each end, while others make
// and end what they use: each gets what it asked for, and nobody another's answer.
func TestClientConnectsManyAtOnce(t *testing.T) {
	h := newHost(t)
	a, b := h.open("loop0"), h.open("loop1")
	const many, busy = 64, 4
	ctx := testContext(t)
	l := must(b.Listen(netip.AddrPortFrom(b.Attr().Addrs[0].Addr(), 0), many))(t)
	defer l.Close()
	na, nb := newNode(t, a, 4), newNode(t, b, 4)
	qps := func(n *node) (qps []rdma.QP) {
		for range many {
			qps = append(qps, must(n.pd.CreateQP(rdma.QPConfig{SendCQ: n.scq, RecvCQ: n.rcq, MaxSendWR: 1,
				MaxRecvWR: 1}))(t))
		}
		return qps
	}
	as, bs := qps(na), qps(nb)

	var wg sync.WaitGroup
	errs := make(chan error, 3*many+busy)
	do := func(f func() error) { wg.Go(func() { errs <- f() }) }
	do(func() error {
		for range many {
			req, err := l.Next(ctx)
			if err != nil {
				return err
			}
			private := req.Param().PrivateData
			n := binary.BigEndian.Uint32(private)
			do(func() error {
				_, err := req.Accept(ctx, bs[n], rdma.ConnParam{PrivateData: private})
				return err
			})
		}
		return nil
	})
	for i, qp := range as {
		do(func() error {
			private := binary.BigEndian.AppendUint32(nil, uint32(i))
			conn, err := a.Connect(ctx, qp, l.Addr(), rdma.ConnParam{PrivateData: private})
			if err != nil {
				return err
			}
			if got := conn.Param().PrivateData; string(got) != string(private) || qp.State() != rdma.QPRTS {
				return fmt.Errorf("QP %d is %v and has private data %x", i, qp.State(), got)
			}
			return nil
		})
	}
	for range busy {
		do(func() error {
			for range many {
				pd, err := a.AllocPD()
				if err != nil {
					return err
				}
				cq, err := a.CreateCQ(2) // the answer comes with a descriptor
				if err != nil {
					return err
				}
				if _, err := b.Listen(l.Addr(), 1); !errors.Is(err, syscall.EADDRINUSE) { // it is refused
					return fmt.Errorf("listen where somebody does: %v", err)
				}
				if err := errors.Join(cq.Close(), pd.Close()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		check(t, err)
	}
}

// A hundred programs of one user, one of which has as much as a large one, meet no limit that is
// not set.
func TestClientManyClients(t *testing.T) {
	h := newHost(t)
	var all []*shm.Device
	for range 100 {
		all = append(all, h.open("loop0"))
	}
	d := all[0]
	for range 300 {
		must(d.AllocPD())(t)
		must(d.AllocBuffer(1))(t)
	}
	n := newNode(t, d, 4)
	for range 2000 {
		must(n.pd.CreateQP(rdma.QPConfig{SendCQ: n.scq, RecvCQ: n.rcq, MaxSendWR: 1, MaxRecvWR: 1}))(t)
		must(n.pd.RegisterMemory(n.buf.Bytes(), 0))(t)
	}
}
