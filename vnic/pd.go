package vnic

import (
	"fmt"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
)

// A PD is a protection domain. It implements rdma.PD.
type PD struct {
	dev    *Device
	ctx    *Context
	handle uint32

	// guarded by ctx.mu
	mrs    int
	srqs   int
	closed bool

	qps   atomic.Int32       // changes with ctx.mu held
	hint  atomic.Pointer[MR] // the region of the last SGE: most often also of the next
	rhint atomic.Pointer[MR] // and that of the last access of a peer
}

// NewPD makes a protection domain.
func (c *Context) NewPD() (*PD, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return nil, err
	}
	pd := &PD{dev: c.dev, ctx: c}
	h, err := c.pds.add(pd, c.limits.PD)
	if err != nil {
		return nil, fmt.Errorf("allocate a protection domain: %w", err)
	}
	pd.handle = h
	return pd, nil
}

// AllocPD is NewPD.
func (c *Context) AllocPD() (rdma.PD, error) {
	pd, err := c.NewPD()
	if err != nil {
		return nil, err // not a nil *PD in the interface
	}
	return pd, nil
}

func (pd *PD) Handle() uint32 { return pd.handle }

// CreateQP is NewQP with queues in this process.
func (pd *PD) CreateQP(cfg rdma.QPConfig) (rdma.QP, error) {
	qp, err := pd.NewQP(QPOptions{QPConfig: cfg})
	if err != nil {
		return nil, err
	}
	return qp, nil
}

// Close frees pd; rdma.ErrBusy while it has MRs, SRQs or QPs.
func (pd *PD) Close() error {
	pd.ctx.mu.Lock()
	defer pd.ctx.mu.Unlock()
	if pd.closed {
		return nil
	}
	if qps := pd.qps.Load(); pd.mrs > 0 || pd.srqs > 0 || qps > 0 {
		return fmt.Errorf("free a protection domain with %d MRs, %d SRQs and %d QPs: %w", pd.mrs, pd.srqs, qps, rdma.ErrBusy)
	}
	pd.closed = true
	pd.ctx.pds.remove(pd.handle)
	return nil
}

// shared reports whether more than one stream can use the regions of pd. Then no peer may
// invalidate one of them: RFC 5040, section 8.1.1 (7).
func (pd *PD) shared() bool { return pd.qps.Load() > 1 }

// AllocMR implements rdma.PD.
func (pd *PD) AllocMR(uint64) (rdma.MR, error) { return nil, rdma.ErrUnsupported }

// AllocMW implements rdma.PD.
func (pd *PD) AllocMW(rdma.MWType) (rdma.MW, error) { return nil, rdma.ErrUnsupported }
