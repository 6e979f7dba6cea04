package load

import (
	"context"
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// A recvBatch is room for receives that are posted together.
type recvBatch struct {
	wrs  [64]rdma.RecvWR
	sges [64][1]rdma.SGE
	n    int
	lane *lane // whose they are
}

// recvWR makes wr the i-th receive of l: for a Send a target, else nothing but the taking of it.
func (l *lane) recvWR(wr *rdma.RecvWR, s *[1]rdma.SGE, i int) {
	*wr = rdma.RecvWR{ID: l.id(i)}
	if l.e.layout.recvTargets {
		wr.SGEs = l.sge(s, l.e.layout.target(i))
	}
}

// postRecv posts the i-th receive of l.
func (e *Local) postRecv(l *lane, i int) error {
	l.recvWR(&e.recv.wrs[0], &e.recv.sges[0], i)
	if err := l.qp.PostRecv(&e.recv.wrs[0]); err != nil {
		return fmt.Errorf("post receive: %w", err)
	}
	return nil
}

// add puts the receive that wc has taken into the batch, to be posted again.
func (b *recvBatch) add(l *lane, wc *rdma.WC) error {
	if b.lane != l {
		if err := b.post(); err != nil {
			return err
		}
		b.lane = l
	}
	l.recvWR(&b.wrs[b.n], &b.sges[b.n], int(wc.ID&slotMask))
	b.n++
	return nil
}

// post posts what is there.
func (b *recvBatch) post() error {
	if b.n == 0 {
		return nil
	}
	n := b.n
	b.n = 0
	if _, err := b.lane.qp.PostRecvs(b.wrs[:n]); err != nil {
		return fmt.Errorf("post receives: %w", err)
	}
	return nil
}

// take takes what comes, and posts the receives again, until there was a notice on each lane. each
// is called for what is no notice, if it is not nil.
func (e *Local) take(ctx context.Context, each func(*lane, *rdma.WC) error) error {
	for notices := 0; notices < len(e.lanes); {
		wcs, err := e.poll(ctx, e.recvCQ, &e.recvIdle, e.recvWC[:])
		if err != nil {
			return err
		}
		for i := range wcs {
			l := e.lanes[wcs[i].ID>>laneShift]
			if isNotice(&wcs[i]) {
				notices++
			} else if each != nil {
				if err := each(l, &wcs[i]); err != nil {
					return err
				}
			}
			if err := e.recv.add(l, &wcs[i]); err != nil {
				return err
			}
		}
		if err := e.recv.post(); err != nil {
			return err
		}
	}
	return nil
}

// takeOne waits for a message, posts its receive again, and says whether it was a notice.
func (e *Local) takeOne(ctx context.Context) (notice bool, err error) {
	wcs, err := e.poll(ctx, e.recvCQ, &e.recvIdle, e.recvWC[:])
	if err != nil {
		return false, err
	}
	if len(wcs) != 1 {
		return false, fmt.Errorf("%d messages at once in a ping-pong", len(wcs))
	}
	wc := &wcs[0]
	if err := e.postRecv(e.lanes[wc.ID>>laneShift], int(wc.ID&slotMask)); err != nil {
		return false, err
	}
	return isNotice(wc), nil
}
