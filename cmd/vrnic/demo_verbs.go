package main

import (
	"context"
	"fmt"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// Work requests and completions of a demoPeer.

func (p *demoPeer) bytes(s span) []byte { return p.buf.Bytes()[s.off : s.off+s.n] }

func (p *demoPeer) sge(s span) []rdma.SGE {
	return []rdma.SGE{{Addr: p.mr.Addr() + uint64(s.off), Length: uint32(s.n), LKey: p.mr.LKey()}}
}

// post posts op between part and the peer's region; its ID is id.
func (p *demoPeer) post(id demoOp, op rdma.Opcode, part span) error {
	wr := rdma.SendWR{ID: uint64(id), Op: op, Flags: rdma.Signaled, SGEs: p.sge(part)}
	if op != rdma.OpSend {
		wr.RemoteAddr, wr.RKey = p.remote.addr, p.remote.key
	}
	if err := p.qp.PostSend(&wr); err != nil {
		return fmt.Errorf("post %v: %w", op, err)
	}
	return nil
}

// sendMsg sends m and waits until it has left the buffer.
func (p *demoPeer) sendMsg(ctx context.Context, m demoMsg) error {
	ctl := span{demoCtlOff, demoMsgLen}
	m.put(p.bytes(ctl))
	if err := p.post(demoAnswer, rdma.OpSend, ctl); err != nil {
		return err
	}
	return p.await(ctx, demoAnswer)
}

func demoSlot(i int) span { return span{demoSlotOff + i*demoMaxSize, demoMaxSize} }

func (p *demoPeer) postRecv(slot int) error {
	return p.qp.PostRecv(&rdma.RecvWR{ID: uint64(demoRecv) + uint64(slot),
		SGEs: p.sge(demoSlot(slot))})
}

func (p *demoPeer) nextMsg(ctx context.Context) (m demoMsg, err error) {
	err = p.nextRecv(ctx, func(b []byte) error {
		m, err = parseDemoMsg(b)
		return err
	})
	return m, err
}

// nextRecv waits for the next Send, gives it to f and posts its buffer again.
func (p *demoPeer) nextRecv(ctx context.Context, f func(b []byte) error) error {
	for len(p.recv) == 0 {
		if err := p.poll(ctx); err != nil {
			return err
		}
	}
	wc := p.recv[0]
	p.recv = p.recv[1:]
	slot := int(wc.ID - uint64(demoRecv))
	err := f(p.bytes(demoSlot(slot))[:min(int(wc.ByteLen), demoMaxSize)])
	if perr := p.postRecv(slot); err == nil {
		err = perr
	}
	return err
}

// await waits until a request with that ID has completed.
func (p *demoPeer) await(ctx context.Context, id demoOp) error {
	for p.sent[id] == 0 {
		if err := p.poll(ctx); err != nil {
			return err
		}
	}
	p.sent[id]--
	return nil
}

// poll waits for completions and notes them.
func (p *demoPeer) poll(ctx context.Context) error {
	var wc [8]rdma.WC
	n, err := p.cq.Poll(wc[:])
	if n == 0 && err == nil {
		if err := p.cq.Arm(false); err != nil {
			return err
		}
		if n, err = p.cq.Poll(wc[:]); n == 0 && err == nil {
			return p.cq.Wait(ctx)
		}
	}
	if err != nil {
		return err
	}
	for i := range wc[:n] {
		if wc[i].Status != rdma.WCSuccess {
			return p.failed(&wc[i])
		}
		switch id := demoOp(wc[i].ID); {
		case id >= demoRecv && id < demoRecv+demoRecvs:
			p.recv = append(p.recv, wc[i])
		default:
			p.sent[id]++
		}
	}
	return nil
}

// failed says why a request failed: the connection knows more, once it has ended.
func (p *demoPeer) failed(wc *rdma.WC) error {
	select {
	case <-p.conn.Done():
		if err := p.conn.Err(); err != nil {
			return fmt.Errorf("%v: %w", wc.Status, err)
		}
		return fmt.Errorf("%v: the peer has disconnected", wc.Status)
	case <-time.After(time.Second):
		return fmt.Errorf("%v", wc.Status)
	}
}
