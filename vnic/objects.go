package vnic

import (
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
	"github.com/vrnic/vrnic/vnic/internal/stats"
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
	// Publisher, Grant, Lent: see PD.Publish.
	Publisher = mem.Publisher
	Grant     = mem.Grant
	Lent      = mem.Lent
	// Memory is registered memory that is reached by calls.
	Memory = mem.Memory
	// A LastWriter is Memory that can write the end of a message behind the rest of it.
	LastWriter = mem.LastWriter
)

// Counters count what one QP, or all QPs of a device, did, PacketCounters the packets of RoCE, and
// CMMessages its messages of connection management.
type (
	Counters       = stats.Counters
	PacketCounters = stats.PacketCounters
	CMMessages     = cm.Stats // by the kind of message, in the order of their numbers
)

// A PD is a protection domain: of its methods, those for memory are mem.PD's. It implements
// rdma.PD.
type PD struct {
	*mem.PD
	ctx *Context
}

// Queues that several QPs can have in common, and how users bring their own.
type (
	// A CQ is a completion queue. It implements rdma.CQ.
	CQ = queue.CQ
	// CQOptions describe a CQ.
	CQOptions = queue.CQOptions
	// A CQSink is a completion queue that somebody else reads.
	CQSink = queue.CQSink
	// A CountingSink is a CQSink that knows what its reader has taken.
	CountingSink = queue.CountingSink
	// An SRQ is a shared receive queue. It implements rdma.SRQ.
	SRQ = queue.SRQ
	// SRQOptions say what an SRQ is made of.
	SRQOptions = queue.SRQOptions
	// A SharedQueue is a RecvQueue that several QPs take from.
	SharedQueue = queue.SharedQueue
	// A SendQueue is where a QP takes its send requests from.
	SendQueue = queue.SendQueue
	// A RecvQueue is where a QP takes receive buffers from.
	RecvQueue = queue.RecvQueue
)

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

// NewSRQ makes a shared receive queue.
func (pd *PD) NewSRQ(o SRQOptions) (*SRQ, error) { return pd.ctx.queues.NewSRQ(pd.PD, o) }

// CreateSRQ is NewSRQ with a queue in this process.
func (pd *PD) CreateSRQ(cfg rdma.SRQConfig) (rdma.SRQ, error) {
	s, err := pd.NewSRQ(SRQOptions{SRQConfig: cfg})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewCQ makes a completion queue for at least o.Depth completions.
func (c *Context) NewCQ(o CQOptions) (*CQ, error) { return c.queues.NewCQ(o) }

// CreateCQ is NewCQ with a queue in this process.
func (c *Context) CreateCQ(depth int) (rdma.CQ, error) {
	cq, err := c.NewCQ(CQOptions{Depth: depth})
	if err != nil {
		return nil, err
	}
	return cq, nil
}
