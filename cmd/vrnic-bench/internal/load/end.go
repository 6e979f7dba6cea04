package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
)

// IDs of work requests are slots, but for the notice.
const idNotice = 1 << 32

// unsignaled is how many requests of a ping-pong go without a completion before one with.
const unsignaled = 32

// An end is one side of a connection. One goroutine uses it.
type end struct {
	name   string
	dev    rdma.Device
	buf    rdma.Buffer
	pd     rdma.PD
	mr     rdma.MR
	sendCQ rdma.CQ
	recvCQ rdma.CQ
	qp     rdma.QP
	conn   rdma.Conn
	layout layout
	peer   *end // for its addresses only
	quiet  int  // requests posted by postQuiet since it last settled

	sendIdle, recvIdle idler

	// Room that calls through interfaces would otherwise allocate.
	wc      [64]rdma.WC
	recvWR  rdma.RecvWR
	recvSGE [1]rdma.SGE
}

// layout says where things are in an end's memory: sources, then targets. Each target has a
// receive posted, whatever the operation: for Sends, or for notices only.
type layout struct {
	size, sources, targets int
}

func (l layout) source(i int) int { return i * l.size }
func (l layout) target(i int) int { return (l.sources + i) * l.size }
func (l layout) total() int       { return (l.sources + l.targets) * l.size }

func newEnd(name string, dev rdma.Device, spec Spec) (e *end, err error) {
	e = &end{name: name, dev: dev, layout: layout{size: spec.Size, sources: spec.Depth, targets: spec.Depth}}
	e.sendIdle.elsewhere, e.recvIdle.elsewhere = spec.Elsewhere, spec.Elsewhere
	if spec.Op == Send {
		// One lap can be under way while the one before is posted again; one more for the notice.
		e.layout.targets = 2*spec.Depth + 1
	}
	recvs := e.layout.targets
	defer func() {
		if err != nil {
			e.close()
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	if e.buf, err = dev.AllocBuffer(e.layout.total()); err != nil {
		return nil, err
	}
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.RegisterMemory(e.buf.Bytes(), rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead); err != nil {
		return nil, err
	}
	// Requests without a completion keep their slots until a later completion has been polled.
	sends := max(spec.Depth, 2*unsignaled) + 8
	if e.sendCQ, err = dev.CreateCQ(sends); err != nil {
		return nil, err
	}
	if e.recvCQ, err = dev.CreateCQ(recvs + 8); err != nil {
		return nil, err
	}
	e.qp, err = e.pd.CreateQP(rdma.QPConfig{SendCQ: e.sendCQ, RecvCQ: e.recvCQ, MaxSendWR: sends, MaxRecvWR: recvs})
	return e, err
}

func (e *end) close() {
	if e.qp != nil {
		e.qp.Close()
	}
	if e.mr != nil {
		e.mr.Close()
	}
	for _, cq := range []rdma.CQ{e.sendCQ, e.recvCQ} {
		if cq != nil {
			cq.Close()
		}
	}
	if e.pd != nil {
		e.pd.Close()
	}
	if e.buf != nil {
		e.buf.Close()
	}
}

// connectEnds connects a to b, which listens at addr with any port.
func connectEnds(ctx context.Context, a, b *end, addr netip.Addr, param rdma.ConnParam) error {
	l, err := b.dev.Listen(netip.AddrPortFrom(addr, 0), 1)
	if err != nil {
		return fmt.Errorf("listen at %v: %w", addr, err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			b.conn, err = req.Accept(ctx, b.qp, param)
		}
		accepted <- err
	}()
	conn, err := a.dev.Connect(ctx, a.qp, l.Addr(), param)
	if err != nil {
		l.Close() // ends Next
		<-accepted
		return fmt.Errorf("connect to %v: %w", l.Addr(), err)
	}
	a.conn = conn
	if err := <-accepted; err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	a.peer, b.peer = b, a
	return nil
}

func (e *end) bytes(off, n int) []byte { return e.buf.Bytes()[off : off+n] }

// sge makes the one SGE of a request, in space that is there already.
func (e *end) sge(s *[1]rdma.SGE, off, n int) []rdma.SGE {
	s[0] = rdma.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
	return s[:]
}

func (e *end) postRecv(id uint64, off, n int) error {
	e.recvWR = rdma.RecvWR{ID: id, SGEs: e.sge(&e.recvSGE, off, n)}
	return e.qp.PostRecv(&e.recvWR)
}

// slotWR makes wr the request for slot i of op.
func (e *end) slotWR(wr *rdma.SendWR, s *[1]rdma.SGE, op Op, i int) {
	*wr = rdma.SendWR{ID: uint64(i), Flags: rdma.Signaled}
	l := e.layout
	switch op {
	case Write:
		wr.Op, wr.SGEs = rdma.OpWrite, e.sge(s, l.source(i), l.size)
		wr.RemoteAddr, wr.RKey = e.peer.mr.Addr()+uint64(l.target(i)), e.peer.mr.RKey()
	case Read:
		wr.Op, wr.SGEs = rdma.OpRead, e.sge(s, l.target(i), l.size)
		wr.RemoteAddr, wr.RKey = e.peer.mr.Addr()+uint64(l.source(i)), e.peer.mr.RKey()
	case Send:
		wr.Op, wr.SGEs = rdma.OpSend, e.sge(s, l.source(i), l.size)
	}
}

// poll waits for completions of cq and returns them; they are good until the next call.
func (e *end) poll(ctx context.Context, cq rdma.CQ, idle *idler) ([]rdma.WC, error) {
	for {
		n, err := cq.Poll(e.wc[:])
		if err != nil {
			return nil, fmt.Errorf("%s: poll: %w", e.name, err)
		}
		if n > 0 {
			idle.reset()
			for i := range e.wc[:n] {
				if e.wc[i].Status != rdma.WCSuccess {
					return nil, e.failed(&e.wc[i])
				}
			}
			return e.wc[:n], nil
		}
		if idle.yield() {
			continue
		}
		if !idle.armed {
			idle.armed = true
			if err := cq.Arm(false); err != nil {
				return nil, fmt.Errorf("%s: arm: %w", e.name, err)
			}
			continue // look again: what came before causes no event
		}
		idle.armed = false
		if err := cq.Wait(ctx); err != nil {
			return nil, fmt.Errorf("%s: wait: %w", e.name, err)
		}
	}
}

func (e *end) failed(wc *rdma.WC) error {
	err := errors.New(wc.Status.String())
	if e.conn != nil && e.conn.Err() != nil {
		err = fmt.Errorf("%w: %w", err, e.conn.Err())
	}
	return fmt.Errorf("%s: work request %d: %w", e.name, wc.ID, err)
}

// An idler says how to wait: look again, let others run, and at last sleep.
type idler struct {
	looks     int
	armed     bool
	elsewhere bool // see Spec
}

const (
	looksFirst = 16  // without a pause
	looksMax   = 200 // in all, before sleeping
)

func (i *idler) reset() { i.looks, i.armed = 0, false }

// yield says whether to look again now.
func (i *idler) yield() bool {
	if i.looks++; i.looks > looksMax {
		return false
	}
	if i.looks > looksFirst {
		osYield(i.looks, i.elsewhere)
	}
	return true
}

// osYield lets others run: goroutines, and now and then other processes; with elsewhere processes
// only. Gosched would have the program's threads hand the goroutine round, a futex call each time.
func osYield(n int, elsewhere bool) {
	if n%2 == 0 && !elsewhere {
		runtime.Gosched()
	} else {
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}
