package vnic

import (
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/rdma"
)

// bare is a context of a device without a network, and what its QPs take to be made. It is closed
// at the end of the test.
type bare struct {
	*Context
	pd *PD
	cq *CQ
}

func newBare(t *testing.T) bare {
	t.Helper()
	d, err := New(Config{Name: "vnic0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	c, err := d.Open(ContextConfig{})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := c.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := c.NewCQ(CQOptions{Depth: 8})
	if err != nil {
		t.Fatal(err)
	}
	return bare{c, pd, cq}
}

// qp makes a QP that is not connected.
func (b bare) qp(t *testing.T, onState func(rdma.QPState)) *QP {
	t.Helper()
	qp, err := b.pd.NewQP(QPOptions{
		QPConfig: rdma.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, MaxSendWR: 1, MaxRecvWR: 1},
		OnState:  onState,
	})
	if err != nil {
		t.Fatal(err)
	}
	return qp
}
