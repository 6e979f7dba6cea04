package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Q3, Q11, Q13, V12: a graceful disconnect flushes the receives on both sides and brings both QPs
// back to Idle, without an error.
func TestDisconnect(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		x.Recv(1, 0, 10)
		y.Recv(2, 0, 10)
		y.Recv(3, 0, 10)
		if err := x.Conn.Disconnect(); err != nil {
			t.Fatal(err)
		}
		x.WantRecv("flushed", is(1, flush))
		y.WantRecv("flushed", is(2, flush), is(3, flush))
		for _, p := range []*vnictest.Peer{x, y} {
			if err := p.WantDone("over"); err != nil {
				t.Errorf("a graceful end has the cause %v", err)
			}
			p.WantState("Q13", rdma.QPIdle)
			if err := p.Conn.Disconnect(); err != nil {
				t.Errorf("a second disconnect: %v", err)
			}
			if err := p.QP.PostSend(&rdma.SendWR{Op: rdma.OpSend}); !isErr(err, rdma.ErrNotConnected) {
				t.Errorf("post in Idle: %v", err)
			}
		}
		// And it can be connected again: Q1.
		vnictest.Connect(t, x, y)
		y.Recv(4, 0, 10)
		x.Send(5, 0, 10)
		y.WantRecv("works again", is(4, ok))
		x.WantSend("works again", is(5, ok))
	})
}

// Q14, V12: a QP of a verbs program is in Error after a graceful disconnect of either side, and
// what is posted then flushes. It can be reset.
func TestDisconnectToError(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		x.QP.Close()
		var err error
		x.QP, err = x.PD.NewQP(vnic.QPOptions{
			QPConfig: rdma.QPConfig{SendCQ: x.SendCQ, RecvCQ: x.RecvCQ, MaxSendWR: 8, MaxRecvWR: 8,
				MaxSendSGE: 1, MaxRecvSGE: 1},
			EndInError: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []*vnictest.Peer{x, y} {
			vnictest.Connect(t, x, y)
			x.Recv(1, 0, 10)
			y.Recv(8, 0, 10)
			x.Send(9, 0, 10)
			y.WantRecv("before the end", is(8, ok)) // and so the ready-to-receive message is behind it
			x.WantSend("before the end", is(9, ok))
			if err := end.Conn.Disconnect(); err != nil {
				t.Fatal(err)
			}
			x.WantRecv("flushed", is(1, flush))
			if err := x.WantDone("over"); err != nil {
				t.Errorf("a graceful end has the cause %v", err)
			}
			if err := y.WantDone("over"); err != nil {
				t.Errorf("a graceful end has the cause %v at the peer", err)
			}
			x.WantState("Q14", rdma.QPError)
			y.WantState("Q13", rdma.QPIdle)
			x.Recv(2, 0, 10)
			x.Send(3, 0, 10)
			x.WantRecv("posted later", is(2, flush))
			x.WantSend("posted later", is(3, flush))
			if err := x.QP.ModifyState(rdma.QPIdle); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Q4: what was posted before goes out first.
func TestDisconnectDrains(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{Buffer: 4 << 20}, vnictest.PeerConfig{Buffer: 4 << 20})
		fill(x.Buf, 1)
		y.Recv(1, 0, 10)
		var ws []want
		for i := range 5 {
			x.Write(uint64(i), 0, len(x.Buf), y, 0)
			ws = append(ws, is(uint64(i), ok))
		}
		x.Read(5, 0, 1000, y, 0)
		x.Send(6, 0, 10)
		x.Conn.Disconnect()
		x.WantSend("all went out", append(ws, is(5, ok), is(6, ok))...)
		y.WantRecv("and arrived", is(1, ok))
		if err := errors.Join(x.WantDone("over"), y.WantDone("over")); err != nil {
			t.Error(err)
		}
	})
}

// Q4 on timeout Q8: what cannot go out flushes. Within a device the peer is told of the disconnect
// before, and gives up the Send that waits.
func TestDrainTimeout(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{Buffer: 4 << 20}, vnictest.PeerConfig{})
		x.Send(1, 0, 4<<20) // no receive: it is held
		x.Conn.Disconnect()
		start := time.Now()
		x.WantSend("flushed", is(1, flush))
		timeout := 2 * time.Second
		if e.loop {
			timeout = lastCall
		}
		if d := time.Since(start); d != timeout {
			t.Errorf("flushed after %v, want %v", d, timeout)
		}
		x.WantState("Q8", rdma.QPError)
		if x.WantDone("over") == nil {
			t.Error("it was not graceful")
		}
		y.WantDone("the peer sees the end")
	}, func(c *vnic.Config) { c.Timeouts.Drain = 2 * time.Second })
}

// Q8: Abort ends the connection at once and flushes everything; the peer, with work outstanding,
// comes to Error (Q12). Posts in Error flush.
func TestAbort(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{Buffer: 4 << 20}, vnictest.PeerConfig{Buffer: 4 << 20})
		y.Send(1, 0, 4<<20) // held: x has posted no receive
		e.settle()
		x2 := []want{is(3, flush), is(4, flush)}
		x.QP.Abort()
		x.WantState("Q8", rdma.QPError)
		y.WantDone("the peer sees it")
		y.WantState("Q12", rdma.QPError)
		y.WantSend("its work flushes", is(1, flush))
		x.Send(3, 0, 1)
		x.Send(4, 0, 1)
		x.WantSend("posts in Error flush", x2...)
		x.Recv(5, 0, 1)
		x.WantRecv("receives too", is(5, flush))
		if err := x.QP.ModifyState(rdma.QPRTS); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("modify to RTS: %v", err) // V9
		}
		// Q16
		if err := x.QP.ModifyState(rdma.QPIdle); err != nil {
			t.Fatal(err)
		}
		x.WantState("reset", rdma.QPIdle)
	})
}

// Q7: modify to SQE sends Terminate 0/0/FF.
func TestModifyTerminate(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		if err := x.QP.ModifyState(rdma.QPTerminate); err != nil {
			t.Fatal(err)
		}
		e.wantTerm("here", x.WantDone("over"), false, term{0, 0, 0xff})
		e.wantTerm("there", y.WantDone("over"), true, term{0, 0, 0xff})
		x.WantState("Q15", rdma.QPError)
		y.WantState("Q9, Q15", rdma.QPError)
	})
}

// Q2: an Idle QP can be moved to Error, and flushes its receives.
func TestIdleToError(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		x.Recv(1, 0, 1)
		if err := x.QP.ModifyState(rdma.QPTerminate); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("Idle to Terminate: %v", err)
		}
		if err := x.QP.ModifyState(rdma.QPError); err != nil {
			t.Fatal(err)
		}
		x.WantRecv("flushed", is(1, flush))
	})
}

// A Send longer than the receive: LOC_LEN_ERR at the sink, the Send itself is complete, QP_REQ_ERR
// at the source. 1/2/05.
func TestSendTooLong(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		y.Recv(1, 0, 10)
		y.Recv(2, 0, 100)
		fill(x.Buf, 9)
		x.Send(3, 0, 11)
		wr := rdma.SendWR{ID: 4, Op: rdma.OpWrite, SGEs: []rdma.SGE{x.SGE(0, 8)},
			RemoteAddr: y.MR.Addr() + 5000, RKey: y.MR.RKey()}
		x.QP.PostSend(&wr) // behind the error: nothing of it is placed (DDP-091)
		x.WantSend("complete", is(3, ok))
		wc := y.WantRecv("too long", is(1, rdma.WCLocLen), is(2, flush))
		if wc[0].VendorErr != 0x1205 {
			t.Errorf("vendor error %#x", wc[0].VendorErr)
		}
		e.wantTerm("there", x.WantDone("over"), true, term{1, 2, 5})
		e.wantTerm("here", y.WantDone("over"), false, term{1, 2, 5})
		y.WantEvent("", rdma.EventQPFatal)
		x.WantEvent("", rdma.EventQPReqErr)
		if !bytes.Equal(y.Buf[5000:5008], make([]byte, 8)) {
			t.Error("a Write behind the error was placed")
		}
	})
}

// V15, A29: without a receive the stream is held; a receive posted in time goes on, else 1/2/02.
func TestReceiveHold(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		x.Send(1, 0, 10)
		time.Sleep(4 * time.Second)
		y.WantNone("held")
		y.Recv(2, 0, 10)
		y.WantRecv("in time", is(2, ok))
		x.WantSend("complete", is(1, ok))

		start := time.Now()
		x.Send(3, 0, 10)
		e.wantTerm("here", y.WantDone("too late"), false, term{1, 2, 2})
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("after %v, want 5 s", d)
		}
		e.wantTerm("there", x.WantDone("too late"), true, term{1, 2, 2})
		x.WantEvent("", rdma.EventQPFatal)
		y.WantEvent("", rdma.EventQPFatal)
	})
}

// Flush order and completeness (15.3): one completion for each request, in order, none twice.
func TestFlush(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{Buffer: 4 << 20}, vnictest.PeerConfig{})
		for i := range 4 {
			x.Recv(uint64(100+i), 0, 1)
		}
		var ws []want
		x.Send(0, 0, 4<<20) // held at y, and more than the network takes
		ws = append(ws, is(0, flush))
		for i := uint64(1); i < 10; i++ {
			wr := rdma.SendWR{ID: i, Op: rdma.OpSend, SGEs: []rdma.SGE{x.SGE(0, 10)}}
			if i%2 == 0 {
				wr = rdma.SendWR{ID: i, Op: rdma.OpRead, SGEs: wr.SGEs, RemoteAddr: y.MR.Addr(),
					RKey: y.MR.RKey()}
			}
			if err := x.QP.PostSend(&wr); err != nil { // unsignaled: errors are visible all the same
				t.Fatal(err)
			}
			ws = append(ws, is(i, flush))
		}
		e.settle()
		y.QP.Close()
		x.WantSend("all, in order", ws...)
		x.WantRecv("all, in order", is(100, flush), is(101, flush), is(102, flush), is(103, flush))
		e.settle()
		x.WantNone("none twice")
	})
}

// SEC-032: a CQ that overruns raises CQ_ERR and ends its QPs, and no other.
func TestCQOverrun(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{CQDepth: 4, QP: rdma.QPConfig{MaxSendWR: 16}},
			vnictest.PeerConfig{})
		other, far := e.plain()
		for i := range 8 {
			x.Write(uint64(i), 0, 1, y, 0)
		}
		ev, err := x.Ctx.NextAsyncEvent(context.Background())
		if err != nil || ev.Type != rdma.EventCQErr || ev.Object != x.SendCQ.Handle() {
			t.Fatalf("event %+v, %v", ev, err)
		}
		x.WantEvent("its QP", rdma.EventQPFatal)
		x.WantDone("ended")
		x.WantState("ended", rdma.QPError)
		y.WantDone("ended")
		far.Recv(1, 0, 1)
		other.Send(2, 0, 1)
		far.WantRecv("others are not harmed", is(1, ok))
	})
}

// What was made has to be closed in order: V7.
func TestBusy(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, _ := e.plain()
		for name, c := range map[string]interface{ Close() error }{"PD": x.PD, "send CQ": x.SendCQ,
			"receive CQ": x.RecvCQ} {
			if err := c.Close(); !isErr(err, rdma.ErrBusy) {
				t.Errorf("close the %s in use: %v", name, err)
			}
		}
		x.QP.Close()
		for _, c := range []interface{ Close() error }{x.MR, x.SendCQ, x.RecvCQ, x.PD} {
			if err := c.Close(); err != nil {
				t.Errorf("close in order: %v", err)
			}
		}
	})
}

// Closing a context while traffic flows: the peers see it at once, nothing is left.
func TestContextClose(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		type pair struct{ x, y *vnictest.Peer }
		var ps []pair
		for range 5 {
			x, y := e.pair(vnictest.PeerConfig{Buffer: 2 << 20}, vnictest.PeerConfig{Buffer: 2 << 20})
			for i := range 20 {
				x.Write(uint64(i), 0, 1<<20, y, 0)
				y.Read(uint64(i), 1<<20, 1<<20, x, 1<<20)
			}
			ps = append(ps, pair{x, y})
		}
		start := time.Now()
		e.b.Close()
		for _, p := range ps {
			p.x.WantDone("the peer is gone")
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("seen after %v", d)
		}
		i := e.b.Device().DevInfo()
		if !e.loop && e.a.Device() != e.b.Device() && i.QPs+i.MRs+i.CQs+i.PDs+i.CMIDs+i.Contexts != 0 {
			t.Errorf("something is left: %+v", i)
		}
		if _, err := e.b.NewPD(); !isErr(err, rdma.ErrClosed) {
			t.Errorf("a PD of a closed context: %v", err)
		}
	})
}

// Once a QP has ended its connection nothing of the peer's is placed any more, even if the peer
// has not noticed.
func TestNoPlacementAfterEnd(t *testing.T) {
	for name, end := range map[string]func(y *vnictest.Peer){
		"terminate": func(y *vnictest.Peer) { y.QP.ModifyState(rdma.QPTerminate) },
		"error":     func(y *vnictest.Peer) { y.QP.ModifyState(rdma.QPError) },
		"destroy":   func(y *vnictest.Peer) { y.QP.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.plain()
				e.settle()
				fill(x.Buf, 1)
				end(y)
				for i := range 10 {
					wr := rdma.SendWR{ID: uint64(i), Op: rdma.OpWrite, SGEs: []rdma.SGE{x.SGE(0, 100)},
						RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
					if x.QP.PostSend(&wr) != nil {
						break // it has noticed
					}
				}
				x.WantDone("over")
				if !bytes.Equal(y.Buf[:100], make([]byte, 100)) {
					t.Error("a Write was placed")
				}
			})
		})
	}
}

// A request that cannot be accepted fails as soon as the Read before it has been answered, though
// nothing else happens on the connection.
func TestBadRequestBehindRead(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		e.settle()
		if !e.local() {
			e.hold(true)
		}
		x.Read(1, 0, 10, y, 0)
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpSend, SGEs: []rdma.SGE{{Addr: 1, Length: 1, LKey: 1}}}, 0, 0)
		e.settle()
		start := time.Now()
		if !e.local() {
			x.WantNone("the Read is not answered")
			e.hold(false)
		}
		x.WantSend("in order", is(1, ok), is(2, rdma.WCLocProt))
		if d := time.Since(start); d != 0 {
			t.Errorf("after %v", d)
		}
	})
}
