package vnic

import (
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// What users register, and how they lend memory.
type (
	// An MR is memory under one key: a registered region, or one binding of a window or of a fast
	// registration. It implements rdma.MR.
	MR = mem.MR
	// An MW is a memory window. It implements rdma.MW.
	MW = mem.MW
	// A FastMR is a region for fast registration: OpRegMR requests give it a part of a registered
	// region's memory, and a key. It implements rdma.MR.
	FastMR = mem.FastMR
	// A Region is memory that somebody else owns, lent to the RNIC.
	Region = mem.Region
	// Memory is registered memory that is reached by calls.
	Memory = mem.Memory
	// A LastWriter is Memory that can write the end of a message behind the rest of it.
	LastWriter = mem.LastWriter
)

// A PD is a protection domain: of its methods, those for memory are mem.PD's. It implements
// rdma.PD.
type PD struct {
	*mem.PD
	ctx *Context
}

// NewPD makes a protection domain.
func (c *Context) NewPD() (*PD, error) {
	pd, err := c.mem.NewPD()
	if err != nil {
		return nil, err
	}
	return &PD{pd, c}, nil
}

// AllocPD is NewPD.
func (c *Context) AllocPD() (rdma.PD, error) {
	pd, err := c.NewPD()
	if err != nil {
		return nil, err // not a nil *PD in the interface
	}
	return pd, nil
}

// CreateQP is NewQP with queues in this process.
func (pd *PD) CreateQP(cfg rdma.QPConfig) (rdma.QP, error) {
	qp, err := pd.NewQP(QPOptions{QPConfig: cfg})
	if err != nil {
		return nil, err
	}
	return qp, nil
}
