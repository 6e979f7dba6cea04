package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// wantEvents looks for the events that p's context has by now.
func wantEvents(t *testing.T, p *vnictest.Peer, why string, want ...rdma.AsyncEventType) {
	t.Helper()
	synctest.Wait()
	var got []rdma.AsyncEventType
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		ev, err := p.Ctx.NextAsyncEvent(ctx)
		cancel()
		if err != nil {
			break
		}
		got = append(got, ev.Type)
	}
	if len(got) != len(want) {
		t.Errorf("%s: events %v, want %v", why, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: events %v, want %v", why, got, want)
		}
	}
}

// ROCE-073, ROCE-089, ROCE-106, ROCE-125, ROCE-134, ROCE-135, ROCE-137, ROCE-144, ROCE-145,
// ROCE-150, ROCE-156 to 160, RVB-018, RVB-028: what each fault of a request does to both sides.
func TestRCFaults(t *testing.T) {
	const mine, theirs = 100, 200 // receives
	for _, tt := range []struct {
		why    string
		change func(*rdma.QPAttr) // of both
		access rdma.Access        // of the responder's region; 0: all
		recv   int                // octets of the responder's receive; 0: 64
		bad    bool               // and its key is wrong
		wr     rdma.SendWR
		n      int // octets of the request
		off    int // in the peer's buffer, of 64 KiB
		key    uint32
		lkey   uint32
		status rdma.WCStatus
		taken  rdma.WCStatus // of the responder's receive
		event  rdma.AsyncEventType
	}{
		{why: "no such key", wr: rdma.SendWR{Op: rdma.OpWrite}, n: 64, key: 0x100,
			status: rdma.WCRemAccess, taken: flush, event: rdma.EventQPAccessErr},
		{why: "another octet in the key's low eight bits", wr: rdma.SendWR{Op: rdma.OpWrite}, n: 64,
			key: 1, status: rdma.WCRemAccess, taken: flush, event: rdma.EventQPAccessErr},
		{why: "a Write beyond the region", wr: rdma.SendWR{Op: rdma.OpWrite}, n: 64, off: 65536 - 63,
			status: rdma.WCRemAccess, taken: flush, event: rdma.EventQPAccessErr},
		{why: "a long Write beyond the region", wr: rdma.SendWR{Op: rdma.OpWrite}, n: 20000,
			off: 65536 - 19999, status: rdma.WCRemAccess, taken: flush, event: rdma.EventQPAccessErr},
		{why: "a region that may not be written", wr: rdma.SendWR{Op: rdma.OpWrite}, n: 64,
			access: rdma.LocalWrite | rdma.RemoteRead, status: rdma.WCRemAccess, taken: flush,
			event: rdma.EventQPAccessErr},
		{why: "a QP that is not written to", wr: rdma.SendWR{Op: rdma.OpWrite}, n: 64,
			change: func(a *rdma.QPAttr) { a.Access &^= rdma.RemoteWrite }, status: rdma.WCRemInvReq,
			taken: flush, event: rdma.EventQPReqErr},
		{why: "a Read beyond the region", wr: rdma.SendWR{Op: rdma.OpRead}, n: 64, off: 65536 - 63,
			status: rdma.WCRemAccess, taken: flush, event: rdma.EventQPAccessErr},
		{why: "a region that may not be read", wr: rdma.SendWR{Op: rdma.OpRead}, n: 64,
			access: rdma.LocalWrite, status: rdma.WCRemAccess, taken: flush,
			event: rdma.EventQPAccessErr},
		{why: "a QP that is not read from", wr: rdma.SendWR{Op: rdma.OpRead}, n: 64,
			change: func(a *rdma.QPAttr) { a.Access &^= rdma.RemoteRead }, status: rdma.WCRemInvReq,
			taken: flush, event: rdma.EventQPReqErr},
		{why: "a Read of a QP that serves none", wr: rdma.SendWR{Op: rdma.OpRead}, n: 64,
			change: func(a *rdma.QPAttr) { a.MaxDestRead = 0 }, status: rdma.WCRemInvReq,
			taken: flush, event: rdma.EventQPReqErr},
		{why: "an atomic on a region that is not for them", wr: rdma.SendWR{Op: rdma.OpFetchAdd}, n: 8,
			access: rdma.LocalWrite | rdma.RemoteRead, status: rdma.WCRemAccess, taken: flush,
			event: rdma.EventQPAccessErr},
		{why: "an atomic on a QP that is not for them", wr: rdma.SendWR{Op: rdma.OpFetchAdd}, n: 8,
			change: func(a *rdma.QPAttr) { a.Access &^= rdma.RemoteAtomic }, status: rdma.WCRemInvReq,
			taken: flush, event: rdma.EventQPReqErr},
		{why: "a Send that is too long", wr: rdma.SendWR{Op: rdma.OpSend}, n: 65,
			status: rdma.WCRemInvReq, taken: rdma.WCLocLen},
		{why: "a Send of several packets that is too long", wr: rdma.SendWR{Op: rdma.OpSend}, n: 9000,
			recv: 8999, status: rdma.WCRemInvReq, taken: rdma.WCLocLen},
		{why: "a receive with a wrong key", wr: rdma.SendWR{Op: rdma.OpSend}, n: 64, bad: true, recv: 64,
			status: rdma.WCRemOp, taken: rdma.WCLocProt},
		{why: "invalidation of what is not there", wr: rdma.SendWR{Op: rdma.OpSendInv, InvKey: 77}, n: 8,
			status: rdma.WCRemAccess, taken: rdma.WCRemInvReq, event: rdma.EventQPAccessErr},
		{why: "a Send from a wrong key", wr: rdma.SendWR{Op: rdma.OpSend}, n: 64, lkey: 1,
			status: rdma.WCLocProt},
		{why: "a Read into a wrong key", wr: rdma.SendWR{Op: rdma.OpRead}, n: 64, lkey: 1,
			status: rdma.WCLocProt},
		{why: "a Read where none was agreed on", wr: rdma.SendWR{Op: rdma.OpRead}, n: 64,
			change: func(a *rdma.QPAttr) { a.MaxRead = 0 }, status: rdma.WCLocQPOp},
		{why: "a window of what is not there", status: rdma.WCMWBind,
			wr: rdma.SendWR{Op: rdma.OpBindMW, Range: rdma.MemRange{Length: 1}}},
		{why: "invalidation of what is not here", status: rdma.WCLocQPOp,
			wr: rdma.SendWR{Op: rdma.OpLocalInv, InvKey: 77}},
	} {
		t.Run(tt.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFabric(t, vnictest.RoCELink{Delay: time.Millisecond})
				x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
				y := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{Access: tt.access})
				vnictest.ConnectByNumber(t, x, y, tt.change)
				fill(x.Buf, 1)
				x.Recv(mine, 0, 8)
				// One before that is well, and one behind that has not a chance.
				y.Recv(theirs, 0, 8)
				x.Send(1, 0, 8)
				recv := rdma.RecvWR{ID: theirs + 1, SGEs: []rdma.SGE{y.SGE(0, max(tt.recv, 64))}}
				if tt.bad {
					recv.SGEs[0].LKey++
				}
				if err := y.QP.PostRecv(&recv); err != nil {
					t.Fatal(err)
				}
				wr := tt.wr
				wr.ID, wr.Flags = 2, rdma.Signaled
				wr.RemoteAddr, wr.RKey = y.MR.Addr()+uint64(tt.off), y.MR.RKey()+tt.key
				if tt.n > 0 {
					wr.SGEs = []rdma.SGE{x.SGE(0, tt.n)}
					wr.SGEs[0].LKey += tt.lkey
				}
				if err := x.QP.PostSend(&wr); err != nil {
					t.Fatal(err)
				}
				x.Send(3, 0, 8)
				x.WantSend(tt.why, is(1, ok), is(2, tt.status), is(3, flush))
				x.WantRecv(tt.why, is(mine, flush))
				x.WantState(tt.why, rdma.QPError)
				wantEvents(t, x, "the requester is told by the completion")
				y.WantRecv(tt.why, is(theirs, ok))
				if tt.taken == 0 { // the responder does not know
					y.WantState(tt.why, rdma.QPRTS)
					return
				}
				y.WantRecv(tt.why, is(theirs+1, tt.taken))
				y.WantState(tt.why, rdma.QPError)
				if tt.event == 0 {
					wantEvents(t, y, tt.why)
				} else {
					wantEvents(t, y, tt.why, tt.event)
				}
				if i := f.b.Device().DevInfo(); i.Packets.Received < 2 || i.Packets.Sent < 2 ||
					i.Dropped.Foreign+i.Dropped.ICRC+i.Dropped.Full != 0 {
					t.Errorf("%s: packets %+v, dropped %+v", tt.why, *i.Packets, *i.Dropped)
				}
				if tt.wr.Op == rdma.OpWrite && !bytes.Equal(y.Buf[8:], make([]byte, 65536-8)) {
					t.Errorf("%s: something was written", tt.why)
				}
			})
		})
	}
}

// ROCE-093, ROCE-094, ROCE-131, ROCE-132: a Send that finds no receive comes again, as often as was
// set.
func TestRNR(t *testing.T) {
	for _, retries := range []uint8{0, 2, 7} {
		synctest.Test(t, func(t *testing.T) {
			f := newFabric(t, vnictest.RoCELink{Delay: time.Millisecond})
			x, y := f.pair(rdma.RC, func(a *rdma.QPAttr) { a.RNRRetry, a.MinRNRTimer = retries, 17 })
			begin := time.Now()
			x.Send(1, 0, 8)
			x.Write(2, 0, 8, y, 0)
			if retries < 7 {
				x.WantSend("no receive", is(1, rdma.WCRNRRetry), is(2, flush))
				// Timer code 17 is 3.84 ms, and there and back are 2 ms.
				if d, least := time.Since(begin), time.Duration(retries)*5840*time.Microsecond; d < least ||
					d > least+3*time.Millisecond {
					t.Errorf("RNR retry count %d: over after %v, want %v", retries, d, least)
				}
				y.WantState("the responder waits", rdma.QPRTS)
				p, q := f.a.Device().DevInfo().Packets, f.b.Device().DevInfo().Packets
				if n := uint64(retries) + 1; p.RNRReceived != n || p.RNRExceeded != 1 || q.RNRSent != n {
					t.Errorf("RNR retry count %d: counted %+v and %+v", retries, *p, *q)
				}
				return
			}
			time.Sleep(10 * time.Second)
			y.Recv(1, 0, 8)
			x.WantSend("a receive", is(1, ok), is(2, ok))
			y.WantRecv("one", is(1, ok))
		})
	}
}

// ROCE-079 to 083: a peer that is silent is asked as often as was set, and no more.
func TestSilentPeer(t *testing.T) {
	for _, retries := range []uint8{0, 3, 7} {
		synctest.Test(t, func(t *testing.T) {
			copies := 0
			f := newFabric(t, vnictest.RoCELink{Lost: func([]byte) bool { copies++; return true }})
			x, y := f.pair(rdma.RC, func(a *rdma.QPAttr) { a.RetryCount = retries })
			begin := time.Now()
			x.Write(1, 0, 8, y, 0)
			x.WantSend("nobody answers", is(1, rdma.WCRetryExc))
			x.WantState("nobody answers", rdma.QPError)
			if p := f.a.Device().DevInfo().Packets; copies != int(retries)+1 ||
				p.Sent != uint64(copies) || p.Again != uint64(retries) || p.RetryExceeded != 1 {
				t.Errorf("retry count %d: %d copies, counted %+v", retries, copies, *p)
			}
			// Timeout code 14 is 67.1 ms.
			least := time.Duration(copies) * 67108864 * time.Nanosecond
			if d := time.Since(begin); d < least || d > 4*least {
				t.Errorf("retry count %d: over after %v, want %v to %v", retries, d, least, 4*least)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		copies := 0
		f := newFabric(t, vnictest.RoCELink{Lost: func([]byte) bool { copies++; return true }})
		x, y := f.pair(rdma.RC, func(a *rdma.QPAttr) { a.Timeout = 0 })
		x.Write(1, 0, 8, y, 0)
		time.Sleep(time.Hour)
		x.WantNone("without a timeout")
		x.WantState("without a timeout", rdma.QPRTS)
		if copies != 1 {
			t.Errorf("without a timeout: %d copies", copies)
		}
	})
}

// ROCE-164, RVB-032: the first packet of the peer that comes in RTR is an event, and is answered.
func TestCommEst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{})
		x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{})
		a, b := vnictest.Attrs(t, x, y, 1), vnictest.Attrs(t, y, x, 1)
		y.Move(rdma.QPInit, b, vnictest.ToInit)
		y.Recv(1, 0, 8)
		y.Move(rdma.QPRTR, b, vnictest.ToRTR)
		x.ToRTS(a)
		wantEvents(t, y, "nothing has come")
		x.Send(1, 0, 8)
		x.Write(2, 0, 8, y, 0)
		x.WantSend("answered in RTR", is(1, ok), is(2, ok))
		y.WantRecv("taken in RTR", is(1, ok))
		wantEvents(t, y, "once", rdma.EventCommEst)
		if err := y.QP.PostSend(&rdma.SendWR{Op: rdma.OpSend}); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("a Send in RTR: %v", err)
		}
		y.Move(rdma.QPRTS, b, vnictest.ToRTS)
		x.Recv(3, 0, 8)
		y.Send(3, 0, 8)
		x.WantRecv("from RTS", is(3, ok))
	})
}

// ROCE-103, ROCE-104, RVB-017: in SQD what was begun is finished, then nothing goes out until RTS.
func TestSQD(t *testing.T) {
	for _, typ := range []rdma.QPType{rdma.RC, rdma.UC} {
		synctest.Test(t, func(t *testing.T) {
			f := newFabric(t, vnictest.RoCELink{Delay: time.Millisecond})
			x, y := f.pair(typ, nil)
			fill(x.Buf, 1)
			modify := func(a rdma.QPAttr, mask rdma.QPAttrMask) error { return x.QP.Modify(&a, mask) }
			x.Write(1, 0, 20000, y, 0)
			if err := modify(rdma.QPAttr{State: rdma.QPSQD, DrainedEvent: true},
				rdma.AttrState|rdma.AttrDrainedEvent); err != nil {
				t.Fatal(err)
			}
			x.Write(2, 0, 100, y, 30000)
			if typ == rdma.RC {
				if a, err := x.QP.Query(); err != nil || !a.Draining {
					t.Errorf("while the Write is under way: %+v, %v", a, err)
				}
				if err := modify(rdma.QPAttr{State: rdma.QPRTS}, rdma.AttrState); !errors.Is(err,
					rdma.ErrInvalid) {
					t.Errorf("back while it drains: %v", err)
				}
			}
			x.WantSend("what was begun", is(1, ok))
			time.Sleep(time.Second)
			x.WantNone("what was not")
			wantEvents(t, x, "drained", rdma.EventSQDrained)
			if a, err := x.QP.Query(); err != nil || a.Draining || a.State != rdma.QPSQD {
				t.Errorf("drained: %+v, %v", a, err)
			}
			x.Recv(7, 0, 8)
			y.Send(7, 0, 8)
			x.WantRecv("what comes is taken", is(7, ok))
			if err := modify(rdma.QPAttr{State: rdma.QPRTS}, rdma.AttrState); err != nil {
				t.Fatal(err)
			}
			x.WantSend("on again", is(2, ok))
			y.Recv(8, 40000, 8)
			x.Send(8, 0, 8)
			y.WantRecv("behind all that", is(8, ok))
			if !bytes.Equal(y.Buf[:20000], x.Buf[:20000]) || !bytes.Equal(y.Buf[30000:30100], x.Buf[:100]) {
				t.Error("other octets")
			}
		})
	}
}

// RVB-011: rights that are taken away while the connection lives are gone at once.
func TestModifyAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{})
		x, y := f.pair(rdma.RC, nil)
		x.Write(1, 0, 8, y, 0)
		x.WantSend("allowed", is(1, ok))
		y.Move(rdma.QPRTS, rdma.QPAttr{Access: rdma.RemoteRead}, rdma.AttrAccess)
		x.Read(2, 0, 8, y, 0)
		x.WantSend("still allowed", is(2, ok))
		x.Write(3, 0, 8, y, 0)
		x.WantSend("not any more", is(3, rdma.WCRemInvReq))
	})
}

// RVB-012: a QP that was reset is as a new one, and connects anew, to somebody else.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{Delay: time.Millisecond})
		x, y := f.pair(rdma.RC, nil)
		for i := range uint64(3) {
			x.Recv(50, 0, 8)
			y.Recv(i, 0, 8)
			x.Send(i, 0, 8)
			x.WantSend("sent", is(i, ok))
			y.WantRecv("received", is(i, ok))
			x.Write(9, 0, 20000, y, 0) // under way
			for _, p := range []*vnictest.Peer{x, y} {
				if i == 1 {
					p.Move(rdma.QPError, rdma.QPAttr{}, 0)
				}
				p.Move(rdma.QPReset, rdma.QPAttr{}, 0)
			}
			if i == 1 {
				x.WantSend("flushed in Error", is(9, flush))
				x.WantRecv("flushed in Error", is(50, flush))
			}
			time.Sleep(time.Second)
			x.WantNone("Reset forgets")
			x, y = y, x
			vnictest.ConnectByNumber(t, x, y, nil)
		}
	})
}

// ROCE-166, ROCE-167: receives of an SRQ are taken one a message, and the end of a QP that takes
// them is told.
func TestRCSharedReceives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{Delay: time.Millisecond})
		y := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{})
		srq, err := y.PD.CreateSRQ(rdma.SRQConfig{MaxWR: 8, MaxPerQP: -1})
		if err != nil {
			t.Fatal(err)
		}
		y = vnictest.NewPeer(t, f.b, vnictest.PeerConfig{PD: y.PD, QP: rdma.QPConfig{SRQ: srq}})
		x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
		vnictest.ConnectByNumber(t, x, y, nil)
		for i := range uint64(3) {
			if err := srq.PostRecv(&rdma.RecvWR{ID: i, SGEs: []rdma.SGE{y.SGE(0, 64)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := srq.SetLimit(2); err != nil {
			t.Fatal(err)
		}
		x.Send(1, 0, 8)
		x.Send(2, 0, 8)
		x.WantSend("sent", is(1, ok), is(2, ok))
		y.WantRecv("in the order of the posts", is(0, ok), is(1, ok))
		wantEvents(t, y, "fewer than two are left", rdma.EventSRQLimitReached)
		x.Send(3, 0, 65)
		x.WantSend("too long", is(3, rdma.WCRemInvReq))
		y.WantRecv("it took a receive", is(2, rdma.WCLocLen))
		wantEvents(t, y, "it takes no more", rdma.EventLastWQEReached)
	})
}

// RVB-029: a CQ that has no room ends the QPs that complete there.
func TestRCOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{})
		x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{CQDepth: 4})
		y := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{})
		vnictest.ConnectByNumber(t, x, y, nil)
		for i := range uint64(5) {
			x.Write(i, 0, 8, y, 0)
		}
		wantEvents(t, x, "five of four", rdma.EventCQErr, rdma.EventQPFatal)
		x.WantState("five of four", rdma.QPError)
	})
}

// ROCE-155, ROCE-078: a window is bound, used, and ended by the peer's Send with Invalidate.
func TestRCWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{Delay: time.Millisecond})
		x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{Access: vnictest.Full | rdma.MWBind})
		vnictest.ConnectByNumber(t, x, y, nil)
		mw, err := y.PD.AllocMW(rdma.MWType2)
		if err != nil {
			t.Fatal(err)
		}
		key := rdma.NextKey(mw.RKey())
		bind := rdma.SendWR{ID: 1, Op: rdma.OpBindMW, RKey: key, RemoteAddr: 0x1000, Range: rdma.MemRange{
			Addr: y.MR.Addr(), Length: 64, LKey: y.MR.LKey(), Access: rdma.RemoteWrite}}
		y.Post(bind, 0, 0)
		y.WantSend("bound", is(1, ok))
		write := func(id uint64) {
			x.Post(rdma.SendWR{ID: id, Op: rdma.OpWrite, RemoteAddr: 0x1000, RKey: key}, 0, 64)
		}
		write(1)
		x.WantSend("into the window", is(1, ok))
		y.Recv(2, 100, 8)
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpSendInv, InvKey: key}, 0, 8)
		wc := y.WantRecv("invalidated", is(2, ok))[0]
		if wc.Flags != rdma.WCWithInv || wc.Imm != key {
			t.Errorf("a Send with Invalidate: %+v", wc)
		}
		write(3)
		x.WantSend("invalidated", is(2, ok), is(3, rdma.WCRemAccess))
	})
}

// An answer that is there when the local ACK timeout is over, and was not looked at yet, counts as
// one: who is late is not the peer.
func TestLateRequester(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{Delay: time.Millisecond})
		x, y := f.pair(rdma.RC, func(a *rdma.QPAttr) { a.RetryCount = 0 })
		for i := range uint64(3) {
			x.Write(i, 0, 20000, y, 0)
			x.QP.Hold(func() { time.Sleep(time.Second) }) // the timeout is 67.1 ms
			x.WantSend("answered", is(i, ok))
		}
		if n := f.a.Device().DevInfo().Packets.Again; n != 0 {
			t.Errorf("requests went out again %d times", n)
		}
	})
}
