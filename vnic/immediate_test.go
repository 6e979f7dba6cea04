package vnic_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Immediate data: eight octets that take a receive and leave its buffer alone, alone or behind a
// Write, which is placed before. EXT-035, EXT-037, EXT-041, EXT-042.
func TestImmediate(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		rng := rand.New(rand.NewPCG(1, 7))
		big := ext
		big.Buffer = 1 << 20
		x, y := e.pair(big, big)
		fill(x.Buf, 1)
		want := bytes.Clone(y.Buf)
		for i, tt := range []struct {
			op   rdma.Opcode
			n    int // octets of the Write
			recv int // of the receive
		}{
			{rdma.OpSendImm, 0, 0}, {rdma.OpSendImm, 0, 100}, {rdma.OpWriteImm, 0, 0},
			{rdma.OpWriteImm, 1, 50},
			{rdma.OpWriteImm, 3000, 0}, {rdma.OpWriteImm, 1 << 20, 0},
		} {
			id := uint64(i)
			y.Recv(100+id, 0, tt.recv)
			wr := rdma.SendWR{ID: id, Op: tt.op, Imm: rng.Uint32(), ImmLow: rng.Uint32(),
				RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
			x.Post(wr, 0, tt.n)
			swc := x.WantSend("sent", is(id, ok))[0]
			wc := y.WantRecv("delivered", is(100+id, ok))[0]
			if wc.Op != rdma.WCRecvImm || wc.Flags != rdma.WCWithImm || wc.Imm != wr.Imm ||
				wc.ImmLow != wr.ImmLow || wc.ByteLen != 0 {
				t.Errorf("%+v: received %+v", wr, wc)
			}
			if op := map[rdma.Opcode]rdma.WCOpcode{rdma.OpSendImm: rdma.WCSend,
				rdma.OpWriteImm: rdma.WCWrite}[tt.op]; swc.Op != op {
				t.Errorf("%v completes as %v", tt.op, swc.Op)
			}
			copy(want, x.Buf[:tt.n])
			if !bytes.Equal(y.Buf, want) {
				t.Errorf("%v of %d octets: memory differs", tt.op, tt.n)
			}
		}
		x.WantNone("one completion each")
		y.WantNone("one completion each")
		for i := range 3 {
			y.Recv(uint64(i), 0, 0)
		}
		// Who looks for a completion may have armed the queue just as that came, and leaves it armed, or
		// an event: one more message, and none of both is left.
		y.RecvCQ.Arm(false)
		x.Post(rdma.SendWR{ID: 0, Op: rdma.OpSendImm}, 0, 0)
		x.WantSend("sent", is(0, ok))
		e.settle()
		if err := y.RecvCQ.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		y.RecvCQ.Arm(true)
		x.Post(rdma.SendWR{ID: 1, Op: rdma.OpSendImm}, 0, 0)
		x.WantSend("sent", is(1, ok))
		e.settle()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if y.RecvCQ.Wait(ctx) == nil {
			t.Error("an unsolicited one raised the event")
		}
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpWriteImm, Flags: rdma.Solicited, RemoteAddr: y.MR.Addr(),
			RKey: y.MR.RKey()}, 0, 10)
		if err := y.RecvCQ.Wait(context.Background()); err != nil {
			t.Error(err)
		}
		c, d := x.QP.Info().Counters, y.QP.Info().Counters
		if c.Immediates != 9 || d.InImmediates != 9 || d.Receives != 9 || c.Sends != 0 || c.Writes != 5 {
			t.Errorf("counters %+v, %+v", c, d)
		}
	})
}

// Immediate data is in order with Sends and Writes, many of each, through a short queue. EXT-038,
// EXT-039, EXT-043.
func TestImmediateOrder(t *testing.T) {
	for _, loop := range []bool{true, false} {
		t.Run(map[bool]string{true: "loop", false: "wire"}[loop], func(t *testing.T) {
			const rounds = 10000
			a, b := real(t, loop)
			cfg := ext
			cfg.QP.MaxSendWR = 3
			x, y := vnictest.NewQPs(t, a, b, cfg, ext)
			for i := range 16 {
				y.Recv(uint64(i), 64*i, 64)
			}
			place := func(i uint32) uint64 { return uint64(2000 + i%256) } // x is at most 16 ahead
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := range uint32(2 * rounds) {
					wr := rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Inline,
						Inline: binary.BigEndian.AppendUint32(nil, i)}
					switch i % 4 {
					case 1:
						wr = rdma.SendWR{ID: uint64(i), Op: rdma.OpSendImm, Imm: i, ImmLow: ^i}
					case 3:
						wr.Op, wr.Imm, wr.ImmLow, wr.RemoteAddr, wr.RKey = rdma.OpWriteImm, i, ^i,
							y.MR.Addr()+place(i), y.MR.RKey()
					}
					x.Post(wr, 0, 0)
					x.WantSend("sent", is(uint64(i), ok))
				}
			})
			wg.Go(func() {
				for i := range uint32(2 * rounds) {
					wc := y.Next(y.RecvCQ, 1)[0]
					got := wc.Imm
					if i%2 == 0 {
						got = binary.BigEndian.Uint32(y.Buf[64*wc.ID:])
					}
					imm := wc.Flags&rdma.WCWithImm != 0 && wc.ImmLow == ^i
					if wc.Status != ok || got != i || imm != (i%2 == 1) {
						t.Errorf("receive %d holds %d: %+v", i, got, wc)
						return
					}
					if i%4 == 3 && binary.BigEndian.Uint32(y.Buf[place(i):]) != i {
						t.Errorf("immediate data %d came before its Write", i)
						return
					}
					y.Recv(wc.ID, 64*int(wc.ID), 64)
				}
			})
			wg.Wait()
		})
	}
}

// Immediate data without a receive is held and then ends the connection as a Send does; the request
// that sent it may be complete. What has a payload is no Immediate Data. EXT-036.
func TestImmediateRefused(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.ext()
		for _, wr := range []rdma.SendWR{
			{Op: rdma.OpSendImm, SGEs: []rdma.SGE{x.SGE(0, 1)}},
			{Op: rdma.OpSendImm, Flags: rdma.Inline, Inline: []byte{1}},
		} {
			if err := x.QP.PostSend(&wr); !isErr(err, rdma.ErrInvalid) {
				t.Errorf("%+v: %v", wr, err)
			}
		}
		x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWriteImm, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
			Imm: 6}, 0, 10)
		e.settle()
		y.WantState("held", rdma.QPRTS)
		y.Recv(2, 0, 0)
		if wc := y.WantRecv("a receive was posted", is(2, ok))[0]; wc.Imm != 6 {
			t.Errorf("received %+v", wc)
		}
		x.WantSend("sent", is(1, ok))
		x.Post(rdma.SendWR{ID: 3, Op: rdma.OpSendImm}, 0, 0)
		e.settle()
		time.Sleep(10 * time.Second)
		e.wantTerm("no receive", y.WantDone("held for too long"), false, term{1, 2, 2})
		e.wantTerm("no receive", x.WantDone("held for too long"), true, term{1, 2, 2})
	})
}

// Writes with immediate data through a queue that is full between their two messages: each Write is
// sent once.
func TestWriteImmFullQueue(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		cfg := ext
		cfg.QP.MaxSendWR = 4
		x, y := e.pair(cfg, ext)
		for i := range 4 {
			y.Recv(uint64(i), 0, 10)
		}
		e.settle()
		before := y.QP.Info().Counters.InWrites
		wrs := []rdma.SendWR{{Op: rdma.OpSend, SGEs: []rdma.SGE{x.SGE(0, 10)}, Flags: rdma.Signaled}}
		for i := range 3 {
			wrs = append(wrs, rdma.SendWR{
				ID: uint64(i + 1), Op: rdma.OpWriteImm, Flags: rdma.Signaled, SGEs: []rdma.SGE{x.SGE(0, 10)},
				RemoteAddr: y.MR.Addr() + 100, RKey: y.MR.RKey(),
			})
		}
		if n, err := x.QP.PostSends(wrs); n != 4 {
			t.Fatal(err)
		}
		x.WantSend("sent", is(0, ok), is(1, ok), is(2, ok), is(3, ok))
		y.WantRecv("delivered", is(0, ok), is(1, ok), is(2, ok), is(3, ok))
		if n := y.QP.Info().Counters.InWrites - before; n != 3 {
			t.Errorf("%d Writes were delivered, want 3", n)
		}
	})
}

// A Write with immediate data whose Write is refused, or cannot be read: nothing is delivered, and
// the request completes once. EXT-036.
func TestWriteImmFails(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.ext()
		y.Recv(1, 0, 0)
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpWriteImm, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey() + 1}, 0,
			10)
		e.wantTerm("refused", y.WantDone("over"), false, term{1, 1, 0})
		y.WantRecv("not delivered", is(1, flush))
		x.WantDone("over")
		if n := len(x.Next(x.SendCQ, 1)); n != 1 {
			t.Errorf("%d completions", n)
		}
		x.WantNone("one completion")
	})
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.ext()
		y.Recv(1, 0, 0)
		wr := rdma.SendWR{ID: 2, Op: rdma.OpWriteImm, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
			SGEs: []rdma.SGE{x.SGE(0, 10)}}
		wr.SGEs[0].LKey++
		x.Post(wr, 0, 0)
		x.WantSend("not readable", is(2, rdma.WCLocProt))
		y.WantDone("over")
		y.WantRecv("not delivered", is(1, flush))
		x.WantNone("one completion")
	})
}
