package vnic_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A record is a CQSink that writes down what comes: s or r, the ID, and how it failed. then, if
// set, is called behind each.
type record struct {
	name string
	b    *batch
	then func(*rdma.WC)
}

func (r *record) Push(wc *rdma.WC, _, _ uint32, _ bool) bool {
	s := fmt.Sprint(r.name, wc.ID)
	if wc.Status != rdma.WCSuccess {
		s += fmt.Sprint("!", wc.Status)
	}
	r.b.mu.Lock()
	r.b.log = append(r.b.log, s)
	r.b.mu.Unlock()
	if r.then != nil {
		r.then(wc)
	}
	return true
}

// A batch is a connection on loopback whose completions are written down, in one log. Of receives
// there is one record, of send requests another.
type batch struct {
	t          *testing.T
	x, y       *vnictest.Peer
	mu         sync.Mutex // for two CQs at the same time; tests look when nothing moves
	log        []string
	sent, rcvd *record
}

const batchDepth = 300 // more than one step of a QP has

func newBatch(t *testing.T) *batch {
	t.Helper()
	b := &batch{t: t}
	b.sent, b.rcvd = &record{name: "s", b: b}, &record{name: "r", b: b}
	d := vnictest.NewNet().Device(t, "vnic0", []string{"10.0.0.1/24"})
	cfg := ext
	cfg.QP.MaxSendWR, cfg.QP.MaxRecvWR = batchDepth, batchDepth
	b.x = vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}), cfg)
	b.y = vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}), cfg)
	for _, p := range []*vnictest.Peer{b.x, b.y} {
		sink := map[*vnictest.Peer]*record{b.x: b.sent, b.y: b.rcvd}[p]
		cq, err := p.Ctx.NewCQ(vnic.CQOptions{Depth: 2 * batchDepth, Sink: sink})
		if err != nil {
			t.Fatal(err)
		}
		c := p.QP.Config()
		p.QP.Close()
		c.SendCQ, c.RecvCQ = cq, cq
		if p.QP, err = p.PD.NewQP(vnic.QPOptions{QPConfig: c}); err != nil {
			t.Fatal(err)
		}
	}
	vnictest.Connect(t, b.x, b.y)
	synctest.Wait()
	return b
}

// recvs posts n receives of 64 octets, from ID 0 on.
func (b *batch) recvs(n int) {
	for i := range n {
		b.y.Recv(uint64(i), 64*i, 64)
	}
}

// sends makes n Sends of 64 octets, from ID 0 on.
func (b *batch) sends(n int) []rdma.SendWR {
	wrs := make([]rdma.SendWR, n)
	for i := range wrs {
		wrs[i] = rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{
			b.x.SGE(64*i, 64)}}
	}
	return wrs
}

// post posts wrs with one doorbell, which runs the QP, and no other goroutine does.
func (b *batch) post(wrs []rdma.SendWR) {
	b.t.Helper()
	if n, err := b.x.QP.PostSends(wrs); n != len(wrs) || err != nil {
		b.t.Fatalf("%d of %d requests were posted: %v", n, len(wrs), err)
	}
}

// want compares what was written down of one kind.
func (b *batch) want(why, kind, want string) {
	b.t.Helper()
	var got []string
	for _, s := range b.log {
		if s[:1] == kind {
			got = append(got, s[1:])
		}
	}
	if s := strings.Join(got, " "); s != want {
		b.t.Errorf("%s: of %q there came %q, want %q", why, kind, s, want)
	}
}

func upTo(n int) string {
	s := make([]string, n)
	for i := range s {
		s[i] = fmt.Sprint(i)
	}
	return strings.Join(s, " ")
}

// Of small messages that are posted together nobody is told one by one, but of all when the
// doorbell is over, in order, of each Send its sender first; and they have been counted by then.
func TestLoopBatch(t *testing.T) {
	for _, n := range []int{1, 2, 15, 16, 17, 18, 40, 256} {
		synctest.Test(t, func(t *testing.T) {
			b := newBatch(t)
			b.recvs(n)
			fill(b.x.Buf, 1)
			sent, rcvd := 0, 0
			b.sent.then = func(*rdma.WC) {
				if sent++; b.x.QP.Counted().Sends < uint64(sent) || b.x.QP.Counted().SentOctets < uint64(
					64*sent) {
					t.Errorf("%d Sends: after %d completions %+v are counted", n, sent, b.x.QP.Counted())
				}
			}
			b.rcvd.then = func(*rdma.WC) {
				if rcvd++; rcvd > sent {
					t.Errorf("%d Sends: %d have come before their senders knew, of %d", n, rcvd, sent)
				}
				if b.y.QP.Counted().Receives < uint64(rcvd) || b.y.QP.Counted().ReceivedOctets < uint64(
					64*rcvd) {
					t.Errorf("%d Sends: after %d receives %+v are counted", n, rcvd, b.y.QP.Counted())
				}
			}
			b.post(b.sends(n))
			b.want(fmt.Sprint(n, " Sends"), "s", upTo(n))
			b.want(fmt.Sprint(n, " Sends"), "r", upTo(n))
			if !bytes.Equal(b.x.Buf[:64*n], b.y.Buf[:64*n]) {
				t.Errorf("%d Sends: the octets are others", n)
			}
		})
	}
}

// Nor do they wait for the next step.
func TestLoopBatchSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(t)
		b.recvs(batchDepth)
		b.post(b.sends(batchDepth))
		synctest.Wait()
		b.want("two steps", "s", upTo(batchDepth))
		b.want("two steps", "r", upTo(batchDepth))
		step := fmt.Sprint("s", vnic.StepMessages)
		if i := slices.Index(b.log, step); i < 1 || b.log[i-1] != fmt.Sprint("r", vnic.StepMessages-1) {
			t.Errorf("before the second step, which begins with %s, not all of the first are told of: %q",
				step, b.log)
		}
	})
}

// What is behind small messages does not keep them: one that has no receive, one that fails at
// either end, one of another kind.
func TestLoopBatchEnds(t *testing.T) {
	const n = 5
	for _, c := range []struct {
		name       string
		recvs      int
		next       func(b *batch, wr *rdma.SendWR)
		sent, rcvd string
	}{
		{"no receive", n, func(*batch, *rdma.SendWR) {}, "0 1 2 3 4", "0 1 2 3 4"},
		{"no region", n + 1, func(_ *batch, wr *rdma.SendWR) { wr.SGEs[0].LKey ^= 1 << 20 },
			"0 1 2 3 4 5!" + rdma.WCLocProt.String(), "0 1 2 3 4 5!" + rdma.WCFlush.String()},
		{"too long", n + 1, func(b *batch, wr *rdma.SendWR) { wr.SGEs[0].Length = 65 }, "0 1 2 3 4 5",
			"0 1 2 3 4 5!" + rdma.WCLocLen.String()},
		{"a Read", n, func(b *batch, wr *rdma.SendWR) {
			wr.Op, wr.RemoteAddr, wr.RKey = rdma.OpRead, b.y.MR.Addr(), b.y.MR.RKey()
		}, "0 1 2 3 4 5", "0 1 2 3 4"},
		{"a Write", n, func(b *batch, wr *rdma.SendWR) {
			wr.Op, wr.RemoteAddr, wr.RKey = rdma.OpWrite, b.y.MR.Addr(), b.y.MR.RKey()
		}, "0 1 2 3 4 5", "0 1 2 3 4"},
		{"a Write that is refused", n + 1, func(b *batch, wr *rdma.SendWR) {
			wr.Op, wr.RemoteAddr = rdma.OpWrite, 1
		}, "0 1 2 3 4 5!" + rdma.WCRemAccess.String(), "0 1 2 3 4 5!" + rdma.WCFlush.String()},
		{"a key that is none", n, func(_ *batch, wr *rdma.SendWR) {
			wr.Op, wr.SGEs, wr.InvKey = rdma.OpLocalInv, nil, 1<<30
		}, "0 1 2 3 4 5!" + rdma.WCLocQPOp.String(), "0 1 2 3 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBatch(t)
				b.recvs(c.recvs)
				wrs := b.sends(n + 1)
				c.next(b, &wrs[n])
				b.post(wrs)
				synctest.Wait()
				b.want(c.name, "s", c.sent)
				b.want(c.name, "r", c.rcvd)
			})
		})
	}
}

// Nor does a long one: it is not there yet when they are told of.
func TestLoopBatchLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatch(t)
		b.recvs(2)
		fill(b.x.Buf, 1)
		const to, long = 32 << 10, 16 << 10
		b.rcvd.then = func(*rdma.WC) {
			if b.y.Buf[to] != 0 {
				t.Error("who is sent a small message is told behind the copy of a long one")
			}
		}
		b.post(append(b.sends(2), rdma.SendWR{
			ID: 2, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{b.x.SGE(0, long)},
			RemoteAddr: b.y.MR.Addr() + to, RKey: b.y.MR.RKey(),
		}))
		b.want("a long Write behind two Sends", "s", "0 1 2")
		b.want("a long Write behind two Sends", "r", "0 1")
		if !bytes.Equal(b.y.Buf[to:to+long], b.x.Buf[:long]) {
			t.Error("the Write has not arrived")
		}
	})
}

// A receiver that goes while messages are there of which nobody has been told yet is told, before
// what flushes, and nothing comes behind its end.
func TestLoopBatchReceiverGoes(t *testing.T) {
	for name, end := range map[string]func(*vnic.QP) error{"close": (*vnic.QP).Close,
		"abort": (*vnic.QP).Abort} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBatch(t)
				b.recvs(8)
				wrs := b.sends(6)
				wrs[5].SGEs[0].LKey ^= 1 << 20 // the run ends here
				atEnd := 0
				b.sent.then = func(wc *rdma.WC) {
					if wc.ID == 0 { // its receiver does not know yet
						done := make(chan error)
						go func() { done <- end(b.y.QP) }()
						if err := <-done; err != nil {
							t.Error(err)
						}
						b.mu.Lock()
						atEnd = len(b.log) - 1
						b.mu.Unlock()
					}
				}
				b.post(wrs)
				synctest.Wait()
				want := "0 1 2 3 4"
				if name == "abort" {
					flush := "!" + rdma.WCFlush.String()
					want += " 5" + flush + " 6" + flush + " 7" + flush
				}
				b.want(name, "r", want)
				if n := len(b.log) - len(wrs); atEnd != n {
					t.Errorf("%d completions had come when the QP was gone, want all %d", atEnd, n)
				}
			})
		})
	}
}

// A CQ that is armed has one event for what comes together, and one that is armed for solicited
// completions has it wherever that stands.
func TestLoopBatchEvent(t *testing.T) {
	for _, solicited := range []int{-1, 0, 2, 4} {
		synctest.Test(t, func(t *testing.T) {
			d := vnictest.NewNet().Device(t, "vnic0", []string{"10.0.0.1/24"})
			b := &batch{t: t}
			b.x, b.y = vnictest.NewQPs(t, vnictest.Open(t, d, vnic.ContextConfig{}),
				vnictest.Open(t, d, vnic.ContextConfig{}), ext, ext)
			synctest.Wait()
			b.recvs(5)
			wrs := b.sends(5)
			if solicited >= 0 {
				wrs[solicited].Flags |= rdma.Solicited
			}
			for cq, only := range map[*vnic.CQ]bool{b.x.SendCQ: false, b.y.RecvCQ: true} {
				if err := cq.Arm(only); err != nil {
					t.Fatal(err)
				}
			}
			b.post(wrs)
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if err := b.x.SendCQ.Wait(gone); err != nil {
				t.Errorf("the sender's event: %v", err)
			}
			if err := b.x.SendCQ.Wait(gone); err == nil {
				t.Error("the sender has two events")
			}
			if err := b.y.RecvCQ.Wait(gone); (err == nil) != (solicited >= 0) {
				t.Errorf("the receiver's event, solicited %d: %v", solicited, err)
			}
			b.x.Next(b.x.SendCQ, 5)
			b.y.Next(b.y.RecvCQ, 5)
		})
	}
}
