package vnic

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
)

// A PD is a protection domain. It implements rdma.PD.
type PD struct {
	dev    *Device
	ctx    *Context
	handle uint32

	// guarded by ctx.mu
	mrs       int
	srqs      int
	slotCount int // windows and regions for fast registration
	closed    bool

	keyMu sync.Mutex
	slots map[uint32]*keySlot // guarded by keyMu, by prefix

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

// openLocked is an error if nothing more can be made in pd. ctx.mu is held.
func (pd *PD) openLocked() error {
	if err := pd.ctx.openLocked(); err != nil {
		return err
	}
	if pd.closed {
		return fmt.Errorf("the protection domain is gone: %w", rdma.ErrClosed)
	}
	return nil
}

// Close frees pd; rdma.ErrBusy while it has MRs, MWs, SRQs or QPs.
func (pd *PD) Close() error {
	pd.ctx.mu.Lock()
	defer pd.ctx.mu.Unlock()
	if pd.closed {
		return nil
	}
	if qps := pd.qps.Load(); pd.mrs+pd.slotCount+pd.srqs > 0 || qps > 0 {
		return fmt.Errorf("free a protection domain with %d MRs, %d windows or fast MRs, %d SRQs and %d QPs: %w", pd.mrs, pd.slotCount, pd.srqs, qps, rdma.ErrBusy)
	}
	pd.closed = true
	pd.ctx.pds.remove(pd.handle)
	return nil
}

// shared reports whether more than one stream can use the regions of pd. Then no peer may
// invalidate one of them: RFC 5040, section 8.1.1 (7).
func (pd *PD) shared() bool { return pd.qps.Load() > 1 }
