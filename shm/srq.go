package shm

import (
	"math"
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A sharedQueue implements rdma.SRQ.
type sharedQueue struct {
	d      *Device
	pd     *protDomain
	handle uint32
	cfg    rdma.SRQConfig
	rq     receiver

	closeMu sync.Mutex    // serialises Close
	mem     *osmem.Region // nil once closed; guarded by closeMu
}

// CreateSRQ implements rdma.PD.
func (pd *protDomain) CreateSRQ(cfg rdma.SRQConfig) (rdma.SRQ, error) {
	d := pd.d
	if err := d.usable(); err != nil {
		return nil, err
	}
	if cfg.MaxWR < 0 || cfg.MaxWR > abi.MaxDepth || cfg.MaxSGE < 0 || cfg.MaxSGE > abi.MaxSGE {
		return nil, errInvalid("SRQ of %d receives with %d SGEs", cfg.MaxWR, cfg.MaxSGE)
	}
	req := &rpc.CreateSRQRequest{
		PD: pd.handle, MaxWR: uint32(max(cfg.MaxWR, 1)), MaxSGE: uint32(max(cfg.MaxSGE, 1)),
		MaxPerQP: int32(min(max(cfg.MaxPerQP, -1), math.MaxInt32)),
	}
	pd.mu.Lock() // so that the PD cannot go meanwhile
	defer pd.mu.Unlock()
	if pd.closed || pd.ending {
		return nil, errClosed("PD")
	}
	var rep rpc.CreateSRQReply
	fds, err := d.c.rpc(rpc.OpCreateSRQ, "create SRQ", req, &rep, -1)
	if err != nil {
		return nil, err
	}
	mem, err := osmem.MapSealed(fds[0], abi.QPHeaderLen)
	if err != nil {
		return nil, d.c.die(goneBecause(err))
	}
	m, err := ring.OpenClientSRQ(mem.Mem)
	if err == nil && (m.Handle != rep.SRQ || rep.Bell >= d.c.bell.Bells() ||
		m.Layout.RQSize < req.MaxWR || m.Layout.RQMaxSGE() < req.MaxSGE) {
		err = errCorrupt("SRQ %d with bell %d and %+v, asked for %+v", m.Handle, rep.Bell, m.Layout, req)
	}
	if err != nil {
		mem.Release()
		return nil, d.c.die(goneBecause(err))
	}
	cfg.MaxWR, cfg.MaxSGE = int(m.Layout.RQSize), int(m.Layout.RQMaxSGE())
	q := &sharedQueue{d: d, pd: pd, handle: rep.SRQ, cfg: cfg, mem: mem}
	q.rq.init(d, rep.Bell, &m.RQ, errSRQClosed)
	pd.srqs[q] = struct{}{}
	return q, nil
}

// Num implements rdma.SRQ.
func (q *sharedQueue) Num() uint32 { return q.handle }

// Config implements rdma.SRQ.
func (q *sharedQueue) Config() rdma.SRQConfig { return q.cfg }

// PostRecv implements rdma.SRQ.
func (q *sharedQueue) PostRecv(wr *rdma.RecvWR) error { return q.rq.post(wr) }

// PostRecvs implements rdma.SRQ.
func (q *sharedQueue) PostRecvs(wrs []rdma.RecvWR) (n int, err error) { return q.rq.postAll(wrs) }

// SetLimit implements rdma.SRQ.
func (q *sharedQueue) SetLimit(n int) error {
	if n < 0 || n > q.cfg.MaxWR {
		return errInvalid("limit of %d for an SRQ of %d receives", n, q.cfg.MaxWR)
	}
	req := &rpc.ModifySRQRequest{SRQ: q.handle, Mask: rpc.ModifySRQLimit, Limit: uint32(n)}
	return q.d.c.call(rpc.OpModifySRQ, "set the limit of an SRQ", req, &rpc.Empty{})
}

// Limit implements rdma.SRQ.
func (q *sharedQueue) Limit() (int, error) {
	var rep rpc.QuerySRQReply
	if err := q.d.c.call(rpc.OpQuerySRQ, "query SRQ", &rpc.HandleRequest{Handle: q.handle},
		&rep); err != nil {
		return 0, err
	}
	return int(rep.Limit), nil
}

// Close implements rdma.SRQ. What is posted is forgotten.
func (q *sharedQueue) Close() error {
	q.closeMu.Lock()
	defer q.closeMu.Unlock()
	if q.mem == nil {
		return nil
	}
	if err := q.d.c.destroy(rpc.OpDestroySRQ, "destroy SRQ", q.handle); err != nil {
		return err
	}
	q.pd.mu.Lock()
	delete(q.pd.srqs, q)
	q.pd.mu.Unlock()
	q.rq.mu.Lock()
	defer q.rq.mu.Unlock()
	q.rq.ring = nil
	q.mem.Release()
	q.mem = nil
	return nil
}
