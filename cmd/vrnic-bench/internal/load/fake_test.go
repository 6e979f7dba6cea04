package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"github.com/vrnic/vrnic/rdma"
)

// A fakeNet is an RNIC that moves data by copy, at once, under one lock, and can be told to get
// it wrong. Requests of an ended connection flush.
type fakeNet struct {
	mu       sync.Mutex
	mrs      []*fakeMR
	qps      []*fakeQP
	listener *fakeListener
	// damage, if set, may change what a message writes. n counts messages.
	damage func(n int, op rdma.Opcode, b []byte)
	moved  int
	failAt int // this message fails, if not 0

	wrongImm    uint32 // changes immediate data
	wrongAtomic int    // this message leaves something else
	refuse      bool   // connections
	noSCTP      bool   // they are TCP, whatever is asked
}

func (n *fakeNet) device(name string) rdma.Device { return &fakeDevice{n: n, name: name} }

type fakeDevice struct {
	rdma.Device
	n    *fakeNet
	name string
}

type fakeBuffer []byte

func (b fakeBuffer) Bytes() []byte { return b }
func (b fakeBuffer) Close() error  { return syscall.Munmap(b) }

type fakePD struct {
	rdma.PD
	n *fakeNet
}

type fakeMR struct {
	rdma.MR
	b   []byte
	key uint32
}

func (m *fakeMR) LKey() uint32  { return m.key }
func (m *fakeMR) RKey() uint32  { return m.key }
func (m *fakeMR) Addr() uint64  { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b)))) }
func (m *fakeMR) Bytes() []byte { return m.b }
func (m *fakeMR) Close() error  { return nil }

// AllocBuffer gives memory off the Go heap: a ping-pong of Writes watches it while it is written,
// as memory shared with a daemon, which the race detector does not know either.
func (d *fakeDevice) AllocBuffer(n int) (rdma.Buffer, error) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	return fakeBuffer(b), err
}

func (d *fakeDevice) AllocPD() (rdma.PD, error) { return &fakePD{n: d.n}, nil }
func (p *fakePD) Close() error                  { return nil }

func (p *fakePD) RegisterMemory(b []byte, _ rdma.Access) (rdma.MR, error) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	m := &fakeMR{b: b, key: uint32(len(p.n.mrs) + 1)}
	p.n.mrs = append(p.n.mrs, m)
	return m, nil
}

// mem finds n octets at addr of the region key.
func (n *fakeNet) mem(key uint32, addr uint64, length uint32) []byte {
	m := n.mrs[key-1]
	off := addr - m.Addr()
	return m.b[off : off+uint64(length)]
}

type fakeCQ struct {
	mu    sync.Mutex
	wcs   []rdma.WC
	armed bool
	event chan struct{}
	depth int
	n     *fakeNet
}

func (d *fakeDevice) CreateCQ(depth int) (rdma.CQ, error) {
	return &fakeCQ{n: d.n, event: make(chan struct{}, 1), depth: depth}, nil
}

func (c *fakeCQ) push(wc rdma.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wcs = append(c.wcs, wc); len(c.wcs) > c.depth {
		panic("completion queue overrun")
	}
	if c.armed {
		c.armed = false
		select {
		case c.event <- struct{}{}:
		default: // the one before has not been taken yet
		}
	}
}

func (c *fakeCQ) Poll(wc []rdma.WC) (int, error) {
	c.mu.Lock()
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[n:]
	c.mu.Unlock()
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for i := range wc[:n] {
		if q := c.n.qps[wc[i].QPN]; wc[i].Op&rdma.WCRecv == 0 {
			q.retired = max(q.retired, int(wc[i].VendorErr))
		}
	}
	return n, nil
}

func (c *fakeCQ) Arm(bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
	return nil
}

func (c *fakeCQ) Wait(ctx context.Context) error {
	select {
	case <-c.event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (c *fakeCQ) Depth() int   { return c.depth }
func (c *fakeCQ) Close() error { return nil }

type fakeQP struct {
	rdma.QP
	n            *fakeNet
	num          uint32
	cfg          rdma.QPConfig
	send, recv   *fakeCQ
	peer         *fakeQP
	recvs        []rdma.RecvWR
	waiting      []rdma.SendWR // Sends for which peer has no receive
	posted       int           // requests
	retired      int           // of them: up to the last whose completion was polled
	ended        bool
	done         chan struct{}
	disconnected sync.Once
}

func (p *fakePD) CreateQP(cfg rdma.QPConfig) (rdma.QP, error) {
	q := &fakeQP{n: p.n, cfg: cfg, send: cfg.SendCQ.(*fakeCQ), recv: cfg.RecvCQ.(*fakeCQ),
		done: make(chan struct{})}
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	q.num = uint32(len(p.n.qps))
	p.n.qps = append(p.n.qps, q)
	return q, nil
}

func (q *fakeQP) Num() uint32 { return q.num }

func (q *fakeQP) PostRecv(wr *rdma.RecvWR) error {
	q.n.mu.Lock()
	defer q.n.mu.Unlock()
	if len(q.recvs) == q.cfg.MaxRecvWR {
		return rdma.ErrQueueFull
	}
	q.recvs = append(q.recvs, rdma.RecvWR{ID: wr.ID, SGEs: append([]rdma.SGE(nil), wr.SGEs...)})
	if q.ended {
		q.flush()
	} else if q.peer != nil && len(q.peer.waiting) > 0 {
		w := q.peer.waiting[0]
		q.peer.waiting = q.peer.waiting[1:]
		q.peer.do(&w)
	}
	return nil
}

func (q *fakeQP) PostRecvs(wrs []rdma.RecvWR) (int, error) {
	for i := range wrs {
		if err := q.PostRecv(&wrs[i]); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (q *fakeQP) PostSends(wrs []rdma.SendWR) (int, error) {
	for i := range wrs {
		if err := q.PostSend(&wrs[i]); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (q *fakeQP) PostSend(wr *rdma.SendWR) error {
	q.n.mu.Lock()
	defer q.n.mu.Unlock()
	if q.posted-q.retired == q.cfg.MaxSendWR {
		return fmt.Errorf("%d requests posted and not retired: %w", q.cfg.MaxSendWR, rdma.ErrQueueFull)
	}
	q.posted++
	if q.ended {
		q.send.push(rdma.WC{ID: wr.ID, QPN: q.num, Status: rdma.WCFlush})
		return nil
	}
	w := *wr
	w.InvKey = uint32(q.posted) // unused else: which request it is
	w.SGEs = append([]rdma.SGE(nil), wr.SGEs...)
	if (w.Op == rdma.OpSend || w.Op == rdma.OpWriteImm) && (len(q.peer.recvs) == 0 ||
		len(q.waiting) > 0) {
		q.waiting = append(q.waiting, w)
		return nil
	}
	q.do(&w)
	return nil
}

// do moves wr's message. A Write lands last octet first, which an RNIC may do.
func (q *fakeQP) do(wr *rdma.SendWR) {
	var local []byte
	if len(wr.SGEs) == 1 {
		local = q.n.mem(wr.SGEs[0].LKey, wr.SGEs[0].Addr, wr.SGEs[0].Length)
	}
	q.n.moved++
	if q.n.moved == q.n.failAt {
		q.send.push(rdma.WC{ID: wr.ID, QPN: q.num, Status: rdma.WCRemAccess})
		q.end()
		q.peer.end()
		return
	}
	dst := local
	switch wr.Op {
	case rdma.OpWrite:
		dst = q.n.mem(wr.RKey, wr.RemoteAddr, uint32(len(local)))
		copy(dst, local)
	case rdma.OpRead:
		copy(dst, q.n.mem(wr.RKey, wr.RemoteAddr, uint32(len(local))))
	case rdma.OpSend:
		r := q.peer.recvs[0]
		dst = nil
		if len(local) > 0 {
			dst = q.n.mem(r.SGEs[0].LKey, r.SGEs[0].Addr, r.SGEs[0].Length)[:len(local)]
		}
		copy(dst, local)
		defer q.arrive(rdma.WC{Op: rdma.WCRecv, ByteLen: uint32(len(local))})
	case rdma.OpWriteImm:
		dst = q.n.mem(wr.RKey, wr.RemoteAddr, uint32(len(local)))
		copy(dst, local)
		defer q.arrive(rdma.WC{Op: rdma.WCRecvImm, Imm: wr.Imm ^ q.n.wrongImm, Flags: rdma.WCWithImm})
	case rdma.OpFetchAdd, rdma.OpCompareSwap:
		target := q.n.mem(wr.RKey, wr.RemoteAddr, 8)
		old := binary.NativeEndian.Uint64(target)
		binary.NativeEndian.PutUint64(dst, old)
		if wr.Op == rdma.OpFetchAdd {
			binary.NativeEndian.PutUint64(target, old+wr.Atomic.CompareAdd)
		} else if old == wr.Atomic.CompareAdd {
			binary.NativeEndian.PutUint64(target, wr.Atomic.Swap)
		}
		if q.n.moved == q.n.wrongAtomic {
			target[0] ^= 1
		}
	default:
		panic("fake: " + wr.Op.String())
	}
	if q.n.damage != nil {
		q.n.damage(q.n.moved, wr.Op, dst)
	}
	if wr.Flags&rdma.Signaled != 0 {
		q.send.push(rdma.WC{ID: wr.ID, QPN: q.num, VendorErr: wr.InvKey})
	}
}

// arrive completes the peer's next receive.
func (q *fakeQP) arrive(wc rdma.WC) {
	wc.ID, wc.QPN = q.peer.recvs[0].ID, q.peer.num
	q.peer.recvs = q.peer.recvs[1:]
	q.peer.recv.push(wc)
}

func (q *fakeQP) end() {
	q.disconnected.Do(func() { close(q.done) })
	q.ended = true
	q.flush()
}

func (q *fakeQP) flush() {
	for _, r := range q.recvs {
		q.recv.push(rdma.WC{ID: r.ID, QPN: q.num, Op: rdma.WCRecv, Status: rdma.WCFlush})
	}
	q.recvs = nil
}

func (q *fakeQP) Abort() error {
	q.n.mu.Lock()
	defer q.n.mu.Unlock()
	q.end()
	if q.peer != nil {
		q.peer.end()
	}
	return nil
}
func (q *fakeQP) Close() error { return q.Abort() }

type fakeConn struct {
	rdma.Conn
	q    *fakeQP
	peer rdma.ConnParam
}

func (c fakeConn) Done() <-chan struct{} { return c.q.done }
func (c fakeConn) Err() error            { return nil }
func (c fakeConn) Param() rdma.ConnParam { return c.peer }

type fakeListener struct {
	rdma.Listener
	reqs chan *fakeRequest
}

func (l *fakeListener) Addr() netip.AddrPort { return netip.MustParseAddrPort("10.0.0.2:1") }
func (l *fakeListener) Close() error         { return nil }
func (l *fakeListener) Next(ctx context.Context) (rdma.ConnRequest, error) {
	select {
	case r := <-l.reqs:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type fakeRequest struct {
	rdma.ConnRequest
	from   *fakeQP
	param  rdma.ConnParam
	answer chan fakeConn // A's
}

func (r *fakeRequest) Param() rdma.ConnParam { return r.param }

func (r *fakeRequest) Reject([]byte) error {
	close(r.answer)
	return nil
}

func (r *fakeRequest) Accept(_ context.Context, qp rdma.QP, p rdma.ConnParam) (rdma.Conn, error) {
	a, b := r.from, qp.(*fakeQP)
	a.n.mu.Lock()
	a.peer, b.peer = b, a
	a.n.mu.Unlock()
	r.answer <- fakeConn{q: a, peer: p}
	return fakeConn{q: b, peer: r.param}, nil
}

func (d *fakeDevice) Listen(netip.AddrPort, int) (rdma.Listener, error) {
	d.n.listener = &fakeListener{reqs: make(chan *fakeRequest)}
	return d.n.listener, nil
}

func (d *fakeDevice) Connect(
	ctx context.Context, qp rdma.QP, _ netip.AddrPort, p rdma.ConnParam,
) (rdma.Conn, error) {
	if d.n.refuse {
		return nil, errors.New("refused")
	}
	p.SCTP = p.SCTP && !d.n.noSCTP
	r := &fakeRequest{from: qp.(*fakeQP), param: p, answer: make(chan fakeConn, 1)}
	select {
	case d.n.listener.reqs <- r:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c, ok := <-r.answer
	if !ok {
		return nil, errors.New("rejected")
	}
	return c, nil
}

func (c *fakeCQ) Resize(int) error { return rdma.ErrUnsupported }
