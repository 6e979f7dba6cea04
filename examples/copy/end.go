package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vrnic/vrnic/rdma"
)

// The memory of either end is a ring of slots: piece i of the file goes through slot i%slots of
// both. For each piece, and for the end of the file, which is a piece of no octets, the receiver
// gives a credit once it is done with the slot, so that at most slots pieces are under way.
const (
	slots   = 8
	slotLen = 64 << 10
)

// An end is one end of a transfer.
type end struct {
	buf  rdma.Buffer
	pd   rdma.PD
	mr   rdma.MR // all of buf
	cq   rdma.CQ
	qp   rdma.QP
	conn rdma.Conn
}

// newEnd makes an end that is not connected, with a receive posted for each slot.
func newEnd(dev rdma.Device, access rdma.Access) (e *end, err error) {
	e = &end{}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.buf, err = dev.AllocBuffer(slots * slotLen); err != nil {
		return nil, err
	}
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.RegisterMemory(e.buf.Bytes(), access); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(3 * slots); err != nil {
		return nil, err
	}
	// A credit can be answered by the next piece before its own completion has been seen.
	e.qp, err = e.pd.CreateQP(rdma.QPConfig{
		SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 2 * slots, MaxRecvWR: slots, SignalAll: true,
	})
	if err != nil {
		return nil, err
	}
	for range slots {
		if err := e.postRecv(); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// close gives back what there is; what is used goes after its user.
func (e *end) close() {
	if e.qp != nil {
		e.qp.Close()
	}
	if e.cq != nil {
		e.cq.Close()
	}
	if e.mr != nil {
		e.mr.Close()
	}
	if e.pd != nil {
		e.pd.Close()
	}
	if e.buf != nil {
		e.buf.Close()
	}
}

// slot is the memory of piece i.
func (e *end) slot(i int) []byte { return e.buf.Bytes()[i%slots*slotLen:][:slotLen] }

// postRecv posts a receive for immediate data, which needs no memory.
func (e *end) postRecv() error { return e.qp.PostRecv(&rdma.RecvWR{}) }

// next waits for the next completion, which is to be a success.
func (e *end) next(ctx context.Context) (rdma.WC, error) {
	var wc [1]rdma.WC
	for {
		for _, arm := range []bool{true, false} {
			if n, err := e.cq.Poll(wc[:]); n > 0 || err != nil {
				return wc[0], e.check(wc[0].Status, err)
			}
			// Only what comes after Arm raises an event: look once more before sleeping.
			if arm {
				if err := e.cq.Arm(false); err != nil {
					return wc[0], err
				}
			}
		}
		if err := e.cq.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}

func (e *end) check(status rdma.WCStatus, err error) error {
	if err != nil || status == rdma.WCSuccess {
		return err
	}
	<-e.conn.Done() // which knows more
	return errors.Join(fmt.Errorf("the connection has ended too early: %v", status), e.conn.Err())
}

// ended waits until the connection has ended.
func (e *end) ended(ctx context.Context) error {
	select {
	case <-e.conn.Done():
		return e.conn.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The sender's private data is an offer: the length of the file in 8 octets, then its name.

// maxName is what C's private data, whose length is an octet, have room for.
const maxName = 200

func putOffer(size int64, name string) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(size)), name...)
}

func parseOffer(b []byte) (size int64, name string, err error) {
	if len(b) <= 8 || len(b) > 8+maxName {
		return 0, "", errors.New("no offer of a file")
	}
	return int64(binary.BigEndian.Uint64(b)), string(b[8:]), nil
}

// The receiver's private data say where the slots are: address in 8 octets, key in 4.
const whereLen = 12

func putWhere(mr rdma.MR) []byte {
	b := binary.BigEndian.AppendUint64(nil, mr.Addr())
	return binary.BigEndian.AppendUint32(b, mr.RKey())
}

func parseWhere(b []byte) (addr uint64, key uint32, err error) {
	if len(b) != whereLen {
		return 0, 0, fmt.Errorf("the receiver says %q, not where its memory is", b)
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), nil
}
