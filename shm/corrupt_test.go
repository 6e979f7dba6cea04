package shm_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
)

// putCQE writes a completion into the CQ's ring as the daemon would.
func putCQE(cq rdma.CQ, put func(slot []byte)) {
	mem := shm.CQMem(cq)
	prod := abi.Word(mem, abi.CQProd)
	i := prod.Load()
	off := abi.Word(mem, abi.CQCQEOff).Load() + i&uint32(cq.Depth()-1)*abi.CQELen
	put(mem[off : off+abi.CQELen])
	prod.Store(i + 1)
}

// What a daemon writes into shared memory is checked: an impossible value ends the session, and
// nothing of it reaches the program (docs/abi.md#threat-model).
func TestClientDistrustsRings(t *testing.T) {
	poll := func(cq rdma.CQ) error {
		_, err := cq.Poll(make([]rdma.WC, 4))
		return err
	}
	le := binary.LittleEndian
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, a *node) error
	}{
		{"CQ prod too far", func(t *testing.T, a *node) error {
			abi.Word(shm.CQMem(a.scq), abi.CQProd).Add(uint32(a.scq.Depth()) + 1)
			return poll(a.scq)
		}},
		{"CQ prod behind", func(t *testing.T, a *node) error {
			abi.Word(shm.CQMem(a.scq), abi.CQProd).Add(^uint32(0))
			return poll(a.scq)
		}},
		{"receive that is not there", func(t *testing.T, a *node) error {
			putCQE(a.rcq, func(b []byte) {
				le.PutUint32(b[abi.CQEQPN:], a.qp.Num())
				le.PutUint32(b[abi.CQEOpcode:], uint32(rdma.WCRecv))
				le.PutUint32(b[abi.CQECookie:], 1<<17|1)
			})
			return poll(a.rcq)
		}},
		{"receive twice", func(t *testing.T, a *node) error {
			check(t, a.qp.PostRecv(&rdma.RecvWR{ID: 1}))
			mem := shm.QPMem(a.qp)
			cookie := le.Uint32(mem[abi.Word(mem, abi.QPRQOff).Load()+abi.RQCookie:])
			for range 2 {
				putCQE(a.rcq, func(b []byte) {
					le.PutUint32(b[abi.CQEQPN:], a.qp.Num())
					le.PutUint32(b[abi.CQEOpcode:], uint32(rdma.WCRecv))
					le.PutUint32(b[abi.CQECookie:], cookie)
				})
			}
			if n, err := a.rcq.Poll(make([]rdma.WC, 4)); n != 1 || err != nil {
				t.Errorf("%d completions, %v", n, err)
			}
			return poll(a.rcq)
		}},
		{"receive with a cookie past the table", func(t *testing.T, a *node) error {
			putCQE(a.rcq, func(b []byte) {
				le.PutUint32(b[abi.CQEQPN:], a.qp.Num())
				le.PutUint32(b[abi.CQEOpcode:], uint32(rdma.WCRecv))
				le.PutUint32(b[abi.CQECookie:], 0xffffffff)
			})
			return poll(a.rcq)
		}},
		{"receive in the send CQ", func(t *testing.T, a *node) error {
			putCQE(a.scq, func(b []byte) {
				le.PutUint32(b[abi.CQEQPN:], a.qp.Num())
				le.PutUint32(b[abi.CQEOpcode:], uint32(rdma.WCRecv))
			})
			return poll(a.scq)
		}},
		{"more sends done than posted", func(t *testing.T, a *node) error {
			putCQE(a.scq, func(b []byte) {
				le.PutUint32(b[abi.CQEQPN:], a.qp.Num())
				le.PutUint32(b[abi.CQESQDone:], 1)
			})
			return poll(a.scq)
		}},
		{"sq_done past sq_prod", func(t *testing.T, a *node) error {
			abi.Word(shm.QPMem(a.qp), abi.QPSQDone).Add(1)
			return a.qp.PostSend(&rdma.SendWR{Op: rdma.OpSend})
		}},
		{"rq_head past rq_prod", func(t *testing.T, a *node) error {
			abi.Word(shm.QPMem(a.qp), abi.QPRQHead).Add(1)
			return a.qp.PostRecv(&rdma.RecvWR{})
		}},
		{"event ring too full", func(t *testing.T, a *node) error {
			abi.Word(shm.ChanMem(a.scq), abi.ChanProd).Add(abi.ChanSlots + 1)
			return a.scq.Wait(testContext(t))
		}},
		{"event of a CQ that is not there", func(t *testing.T, a *node) error {
			mem := shm.ChanMem(a.scq)
			abi.Word(mem, abi.Word(mem, abi.ChanOff).Load()).Store(4711)
			abi.Word(mem, abi.ChanProd).Add(1)
			return a.scq.Wait(testContext(t))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			a, _ := h.pair(4)
			if err := tt.do(t, a); !errors.Is(err, rdma.ErrDeviceGone) {
				t.Fatalf("got %v", err)
			}
			select {
			case <-a.dev.Client().Done():
			default:
				t.Error("the session lives on")
			}
			select {
			case <-a.conn.Done():
			case <-testContext(t).Done():
				t.Error("the connection never ended")
			}
			needtest.Eventually(t, "the daemon has heard of it",
				func() bool { return h.srv.Stats().Sessions == 1 })
		})
	}
}

// A completion of a QP that the client does not know is skipped: it may have been closed.
func TestClientSkipsUnknownQP(t *testing.T) {
	h := newHost(t)
	a, b := h.pair(4)
	putCQE(a.scq, func(s []byte) { binary.LittleEndian.PutUint32(s[abi.CQEQPN:], a.qp.Num()+1000) })
	if n, err := a.scq.Poll(make([]rdma.WC, 1)); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	_ = b
}
