package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vrnic/vrnic/rdma"
)

// A store is a client's view of the table. One goroutine uses it.
type store struct {
	cq   rdma.CQ
	qp   rdma.QP
	conn rdma.Conn

	mr  rdma.MR
	old slot // where atomics put the old value of the lock; of slot.lock's length
	buf slot // what is read and written

	table uint64 // the server's: its address and its key
	key   uint32
}

// tries is how often a client looks at a slot that another one writes. One that died while it
// held the lock holds it for good: a store for more than an example would put a lease there.
const tries = 10000

// withStore calls f with the table of the server at addr.
func withStore(ctx context.Context, dev rdma.Device, addr netip.AddrPort,
	f func(*store) error) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	memory, err := dev.AllocBuffer(lockLen + slotLen)
	if err != nil {
		return err
	}
	s := &store{old: memory.Bytes()[:lockLen], buf: memory.Bytes()[lockLen:]}
	if s.mr, err = pd.RegisterMemory(memory.Bytes(), rdma.LocalWrite); err != nil {
		return err
	}
	if s.cq, err = dev.CreateCQ(1); err != nil {
		return err
	}
	s.qp, err = pd.CreateQP(rdma.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, SignalAll: true})
	if err != nil {
		return err
	}
	// Atomics are an extension of iWARP (RFC 7306), which both ends have to want.
	s.conn, err = dev.Connect(ctx, s.qp, addr, rdma.ConnParam{Extensions: true})
	if refused, ok := errors.AsType[*rdma.RejectedError](err); ok {
		return fmt.Errorf("%w: %s", err, refused.PrivateData)
	}
	if err != nil {
		return err
	}
	if s.table, s.key, err = parseWhere(s.conn.Param().PrivateData); err != nil {
		return err
	}
	if err := f(s); err != nil {
		return err
	}
	if err := s.conn.Disconnect(); err != nil {
		return err
	}
	<-s.conn.Done()
	return s.conn.Err()
}

// get returns the value of key.
func (s *store) get(ctx context.Context, key string) (string, error) {
	_, value, found, err := s.find(ctx, key)
	if err == nil && !found {
		err = fmt.Errorf("there is no %q", key)
	}
	return value, err
}

// put sets the value of key.
func (s *store) put(ctx context.Context, key, value string) error {
	if err := make(slot, slotLen).set(key, value); err != nil {
		return err
	}
	for range tries {
		// The slot is what find has read if its lock goes from the even number of then to the next.
		i, _, _, err := s.find(ctx, key)
		if err != nil {
			return err
		}
		free := s.buf.lock()
		locked, err := s.compareSwap(ctx, i, free, free+1)
		if err != nil {
			return err
		}
		if !locked {
			continue // somebody else was first, perhaps with another key
		}
		if err := s.buf.set(key, value); err != nil {
			return err
		}
		if err := s.transfer(ctx, rdma.OpWrite, i, lockLen); err != nil {
			return err
		}
		_, err = s.compareSwap(ctx, i, free+1, free+2)
		return err
	}
	return fmt.Errorf("%q: %w", key, errTorn)
}

// find reads the slot of key into buf, or the free one where key belongs.
func (s *store) find(ctx context.Context, key string) (
	i uint64, value string, found bool, err error) {
	for n := range uint64(numSlots) {
		i = (home(key) + n) % numSlots
		k, v, err := s.read(ctx, i)
		if err != nil || k == "" || k == key {
			return i, v, k != "", err
		}
	}
	return 0, "", false, errors.New("the table is full")
}

// read reads a slot, again and again while somebody writes there.
func (s *store) read(ctx context.Context, i uint64) (key, value string, err error) {
	for range tries {
		if err := s.transfer(ctx, rdma.OpRead, i, 0); err != nil {
			return "", "", err
		}
		if key, value, err = s.buf.parse(); err == nil {
			return key, value, nil
		}
	}
	return "", "", fmt.Errorf("slot %d: %w", i, err)
}

// transfer reads or writes slot i of the table from an offset on.
func (s *store) transfer(ctx context.Context, op rdma.Opcode, i, from uint64) error {
	mine := rdma.SGE{
		Addr: s.mr.Addr() + lockLen + from, Length: uint32(slotLen - from), LKey: s.mr.LKey(),
	}
	return s.do(ctx, &rdma.SendWR{
		Op:         op,
		SGEs:       []rdma.SGE{mine},
		RemoteAddr: s.table + i*slotLen + from,
		RKey:       s.key,
	})
}

// compareSwap changes the lock of slot i if it is old.
func (s *store) compareSwap(ctx context.Context, i, old, new uint64) (done bool, err error) {
	err = s.do(ctx, &rdma.SendWR{
		Op:         rdma.OpCompareSwap,
		SGEs:       []rdma.SGE{{Addr: s.mr.Addr(), Length: lockLen, LKey: s.mr.LKey()}},
		RemoteAddr: s.table + i*slotLen,
		RKey:       s.key,
		Atomic:     rdma.AtomicArgs{CompareAdd: old, Swap: new},
	})
	return s.old.lock() == old, err
}

// do posts a request and waits for its completion.
func (s *store) do(ctx context.Context, wr *rdma.SendWR) error {
	if err := s.qp.PostSend(wr); err != nil {
		return err
	}
	wc, err := next(ctx, s.cq)
	if err != nil {
		return err
	}
	if wc.Status != rdma.WCSuccess {
		<-s.conn.Done() // which knows more
		return errors.Join(fmt.Errorf("%v: %v", wr.Op, wc.Status), s.conn.Err())
	}
	return nil
}

// next waits for the next completion of cq.
func next(ctx context.Context, cq rdma.CQ) (rdma.WC, error) {
	var wc [1]rdma.WC
	for {
		for _, arm := range []bool{true, false} {
			if n, err := cq.Poll(wc[:]); n > 0 || err != nil {
				return wc[0], err
			}
			// Only what comes after Arm raises an event: look once more before sleeping.
			if arm {
				if err := cq.Arm(false); err != nil {
					return wc[0], err
				}
			}
		}
		if err := cq.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}
