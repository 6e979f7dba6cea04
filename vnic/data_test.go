package vnic_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Each operation moves its octets, and nothing else changes.
func TestOperations(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		const size = 1 << 20
		for _, n := range []int{1, 7, 64, 1000, 4096, 65536, 300_000} {
			x, y := e.pair(vnictest.PeerConfig{Buffer: size}, vnictest.PeerConfig{Buffer: size})
			fill(x.Buf, 1)
			fill(y.Buf, 77)

			y.Recv(1, 100, n)
			x.Send(2, 5, n)
			x.WantSend("a Send completes", is(2, ok))
			wc := y.WantRecv("and is delivered", is(1, ok))
			if wc[0].ByteLen != uint32(n) || wc[0].Op != rdma.WCRecv {
				t.Fatalf("the receive is %+v, want %d octets", wc[0], n)
			}
			expect := make([]byte, size)
			fill(expect, 77)
			copy(expect[100:], x.Buf[5:5+n])
			if !bytes.Equal(y.Buf, expect) {
				t.Fatalf("Send of %d octets: the buffer differs", n)
			}

			x.Write(3, 9, n, y, 400_000)
			y.Recv(4, 0, 0)
			x.Send(5, 0, 0)
			x.WantSend("a Write completes, then a Send", is(3, ok), is(5, ok))
			y.WantRecv("the Send implies the Write", is(4, ok))
			copy(expect[400_000:], x.Buf[9:9+n])
			if !bytes.Equal(y.Buf, expect) {
				t.Fatalf("Write of %d octets: the buffer differs", n)
			}

			mine := bytes.Clone(x.Buf)
			x.Read(6, 500_000, n, y, 3)
			wc = x.WantSend("a Read completes", is(6, ok))
			if wc[0].ByteLen != uint32(n) || wc[0].Op != rdma.WCRead {
				t.Fatalf("the Read is %+v", wc[0])
			}
			copy(mine[500_000:], y.Buf[3:3+n])
			if !bytes.Equal(x.Buf, mine) || !bytes.Equal(y.Buf, expect) {
				t.Fatalf("Read of %d octets: a buffer differs", n)
			}
			x.QP.Close()
			y.QP.Close()
		}
	})
}

// Several SGEs are one message, on both sides, cut differently; zero-length SGEs need no key.
func TestScatterGather(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		fill(x.Buf, 3)
		if err := y.QP.PostRecv(&rdma.RecvWR{ID: 1, SGEs: []rdma.SGE{y.SGE(0, 3), {LKey: 99},
			y.SGE(100, 500), y.SGE(1000, 600)}}); err != nil {
			t.Fatal(err)
		}
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpSend, SGEs: []rdma.SGE{x.SGE(10, 400), x.SGE(2000, 1),
			x.SGE(3000, 599)}}, 0, 0)
		y.WantRecv("delivered", is(1, ok))
		msg := append(append(bytes.Clone(x.Buf[10:410]), x.Buf[2000]), x.Buf[3000:3599]...)
		got := append(append(bytes.Clone(y.Buf[:3]), y.Buf[100:600]...), y.Buf[1000:1497]...)
		if !bytes.Equal(got, msg) {
			t.Fatal("the message differs")
		}
		x.Post(rdma.SendWR{ID: 3, Op: rdma.OpRead, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
			SGEs: []rdma.SGE{x.SGE(0, 2), x.SGE(50, 98)}}, 0, 0)
		x.WantSend("a Read into two pieces", is(2, ok), is(3, ok))
		if !bytes.Equal(append(bytes.Clone(x.Buf[:2]), x.Buf[50:148]...), y.Buf[:100]) {
			t.Fatal("the Read differs")
		}
	})
}

// Inline octets are taken by the post; the memory may be used again at once and needs no key.
func TestInline(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		b := []byte("inline data")
		y.Recv(1, 0, 64)
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpWrite, Flags: rdma.Inline, Inline: b,
			RemoteAddr: y.MR.Addr() + 200, RKey: y.MR.RKey()}, 0, 0)
		x.Post(rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Inline, Inline: b}, 0, 0)
		clear(b)
		y.WantRecv("delivered", is(1, ok))
		for _, off := range []int{0, 200} {
			if got := string(y.Buf[off : off+11]); got != "inline data" {
				t.Errorf("at %d: %q", off, got)
			}
		}
	})
}

// A solicited Send raises the event of a CQ armed for solicited ones; another does not.
func TestSolicited(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		for i := range 3 {
			y.Recv(uint64(i), 0, 64)
		}
		y.RecvCQ.Arm(true)
		x.Send(1, 0, 8)
		x.WantSend("sent", is(1, ok))
		waits := make(chan error, 1)
		go func() { waits <- y.RecvCQ.Wait(context.Background()) }()
		e.settle()
		select {
		case <-waits:
			t.Fatal("an unsolicited Send raised the event")
		default:
		}
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.Solicited}, 0, 8)
		if err := <-waits; err != nil {
			t.Fatal(err)
		}
		y.WantRecv("both are there", is(0, ok), is(1, ok))
	})
}

// V13, RDMAP-095: completions come in posting order, though Sends are done before earlier Reads.
func TestCompletionOrder(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		for i := range 8 {
			y.Recv(uint64(100+i), 1000*i, 1000)
		}
		var ws []want
		for i := range 8 {
			id := uint64(3 * i)
			x.Read(id, 1000*i, 1000, y, 30000)
			x.Send(id+1, 40000, 1000)
			x.Write(id+2, 40000, 900, y, 50000)
			ws = append(ws, is(id, ok), is(id+1, ok), is(id+2, ok))
		}
		x.WantSend("in posting order", ws...)
	})
}

// Unsignaled requests complete silently and give their slots back.
func TestUnsignaled(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{QP: rdma.QPConfig{MaxSendWR: 4}}, vnictest.PeerConfig{})
		for i := range 100 {
			wr := rdma.SendWR{ID: uint64(i), Op: rdma.OpWrite, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
				SGEs: []rdma.SGE{x.SGE(0, 100)}}
			if err := x.QP.PostSend(&wr); err != nil {
				t.Fatalf("post %d: %v", i, err)
			}
			e.settle()
		}
		x.WantNone("none was signaled")
		x.Write(7, 0, 10, y, 0)
		x.WantSend("but this one", is(7, ok))
	})
}

// A queue takes what it was made for, and no more until completions have been polled.
func TestQueueFull(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{QP: rdma.QPConfig{MaxSendWR: 3, MaxRecvWR: 3}},
			vnictest.PeerConfig{})
		wr := rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.Signaled, RemoteAddr: y.MR.Addr(),
			RKey: y.MR.RKey(), SGEs: []rdma.SGE{x.SGE(0, 100)}}
		wrs := []rdma.SendWR{wr, wr, wr, wr, wr}
		n, err := x.QP.PostSends(wrs)
		if n != 3 || !isErr(err, rdma.ErrQueueFull) {
			t.Fatalf("%d were taken: %v", n, err)
		}
		e.settle()
		if err := x.QP.PostSend(&wr); !isErr(err, rdma.ErrQueueFull) {
			t.Fatalf("a slot was free before its completion was polled: %v", err)
		}
		x.Next(x.SendCQ, 1)
		if err := x.QP.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		rs := make([]rdma.RecvWR, 5)
		if n, err := x.QP.PostRecvs(rs); n != 3 || !isErr(err, rdma.ErrQueueFull) {
			t.Fatalf("%d receives were taken: %v", n, err)
		}
	})
}

// Fence: a request waits until earlier Reads have completed, so it sends what they brought.
func TestFence(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		fill(y.Buf[:5000], 9)
		y.Recv(1, 10000, 5000)
		x.Read(2, 0, 5000, y, 0)
		x.Post(rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Fence}, 0, 5000)
		x.WantSend("in order", is(2, ok), is(3, ok))
		y.WantRecv("delivered", is(1, ok))
		if !bytes.Equal(y.Buf[:5000], y.Buf[10000:15000]) {
			t.Fatal("the fenced Send went out before the Read had completed")
		}
	})
}

// More Reads than ORD wait in the queue; all complete.
func TestORD(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{Param: rdma.ConnParam{ORD: 2}, QP: rdma.QPConfig{
			MaxSendWR: 20}}, vnictest.PeerConfig{})
		if got := x.Conn.Param().ORD; got != 2 {
			t.Fatalf("ORD is %d, want 2", got)
		}
		fill(y.Buf, 5)
		var ws []want
		for i := range 20 {
			x.Read(uint64(i), 100*i, 100, y, 100*i)
			ws = append(ws, is(uint64(i), ok))
		}
		x.WantSend("all complete", ws...)
		if !bytes.Equal(x.Buf[:2000], y.Buf[:2000]) {
			t.Fatal("the Reads differ")
		}
	})
}

// With no Reads agreed on, a Read fails here and the peer sees the end.
func TestNoReads(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{Param: rdma.ConnParam{ORD: rdma.NoReads}},
			vnictest.PeerConfig{})
		x.Read(1, 0, 10, y, 0)
		x.Send(2, 0, 10)
		x.WantSend("refused here", is(1, rdma.WCLocQPOp), is(2, flush))
		y.WantDone("the peer sees the end")
	})
}
