package vnic_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Idle connections can be seen, and ended by a call: both ends come to a graceful end, and those
// that are in use are left alone. SEC-025.
func TestIdle(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		p, q := e.plain()
		d := y.Ctx.Device()
		use := func() {
			q.Recv(1, 0, 10)
			p.Send(2, 0, 10)
			q.WantRecv("in use", is(1, ok))
			p.WantSend("in use", is(2, ok))
		}
		use()
		time.Sleep(10 * time.Second) // a start-up has messages of its own
		y.QP.Info()                  // the first look
		q.QP.Info()
		for range 10 {
			time.Sleep(time.Minute)
			use()
			q.QP.Info()
		}
		if i := y.QP.Info(); i.Idle != 10*time.Minute || time.Since(i.Connected) != 10*time.Minute+
			10*time.Second {
			t.Errorf("idle for %v, connected %v", i.Idle, i.Connected)
		}
		if i := q.QP.Info(); i.Idle != 0 {
			t.Errorf("the one in use is idle for %v", i.Idle)
		}
		if n := d.Reap(11 * time.Minute); n != 0 {
			t.Errorf("%d connections were reaped too early", n)
		}
		most := 1
		if x.Ctx.Device() == d { // and its other end, if that has not ended with it meanwhile
			most = 2
		}
		n := d.Reap(10 * time.Minute)
		if n < 1 || n > most {
			t.Errorf("%d connections were reaped, want 1 to %d", n, most)
		}
		for _, z := range []*vnictest.Peer{x, y} {
			if err := z.WantDone("reaped"); err != nil {
				t.Errorf("not graceful: %v", err)
			}
		}
		if i := d.DevInfo(); i.Reaped != uint64(n) {
			t.Errorf("reaped %d, not %d", i.Reaped, n)
		}
		use()
	})
}

// With a time set the device ends idle connections by itself, and one whose peer answers nothing is
// reset in the end. SEC-025.
func TestIdleTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}, func(c *vnic.Config) {
			c.Timeouts.Idle = time.Minute
		}), vnic.ContextConfig{})
		p := rawDial(t, n, c, vnictest.PeerConfig{})
		for range 8 { // zero-length Writes keep it alive
			time.Sleep(30 * time.Second)
			p.send(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 0, 0))
		}
		synctest.Wait()
		p.y.WantState("it is used", rdma.QPRTS)
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if s := p.y.QP.State(); s == rdma.QPRTS {
			t.Errorf("the QP is in state %v", s)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		p.y.WantState("the peer did not close", rdma.QPError)
	})
}

// A device that is strict about CQs refuses a QP whose queues could overflow one, counting an SRQ
// once; another takes it. SEC-031.
func TestStrictCQ(t *testing.T) {
	for _, strict := range []bool{true, false} {
		t.Run(fmt.Sprintf("strict=%v", strict), func(t *testing.T) {
			a, _ := vnictest.Pair(t, func(c *vnic.Config) { c.StrictCQ = strict })
			c := vnictest.Open(t, a, vnic.ContextConfig{})
			pd, err := c.NewPD()
			if err != nil {
				t.Fatal(err)
			}
			cq, err := c.NewCQ(vnic.CQOptions{Depth: 16})
			if err != nil {
				t.Fatal(err)
			}
			srq, err := pd.NewSRQ(srqConfig(5, 0))
			if err != nil {
				t.Fatal(err)
			}
			need := func(want int) {
				t.Helper()
				if i := a.CQs(c)[0]; i.Need != want || i.Depth != 16 {
					t.Errorf("CQ: %+v, want a need of %d", i, want)
				}
			}
			create := func(send, recv int, s rdma.SRQ) (*vnic.QP, error) {
				return pd.NewQP(vnic.QPOptions{QPConfig: rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: send,
					MaxRecvWR: recv, SRQ: s}})
			}
			must := func(qp *vnic.QP, err error) *vnic.QP {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				return qp
			}
			one := must(create(2, 4, nil))
			two := must(create(1, 0, srq))
			three := must(create(1, 0, srq))
			need(2 + 4 + 1 + 1 + 5)
			qp, err := create(3, 1, nil)
			if !strict {
				must(qp, err).Close()
				return
			}
			if !isErr(err, rdma.ErrLimit) {
				t.Errorf("one too many: %v", err)
			}
			need(13)
			must(create(2, 1, nil)).Close()
			two.Close()
			need(12)
			three.Close()
			need(6)
			one.Close()
			need(0)
		})
	}
}

// The slots of an SRQ are free when completions have been polled, not before, so that its part in a
// CQ's size holds; a QP that is gone holds none. SEC-031.
func TestSRQSlots(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		p := e.pool(2, srqConfig(2, -1))
		p.post(t, 0, 1)
		full := func(why string) {
			t.Helper()
			e.settle()
			if err := p.PostRecv(p.wr(2)); !isErr(err, rdma.ErrQueueFull) {
				t.Fatalf("%s: %v", why, err)
			}
		}
		full("two are posted")
		p.xs[0].Send(1, 0, 1)
		p.xs[1].Send(1, 0, 1)
		full("two wait to be polled")
		p.ys[0].Next(p.ys[0].RecvCQ, 1)
		p.post(t, 3)
		full("one is posted, one waits to be polled")
		p.ys[1].QP.Close()
		p.post(t, 4)
		full("two are posted")
	})
}

// What costs time and ends nothing can be seen for each connection. SEC-037.
func TestSlowPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newRawPeer(t)
		y := p.y
		for i := range 3 {
			p.send(iwarp.AppendReadRequest(iwarp.AppendUntagged(nil, true, iwarp.OpReadRequest, 1,
				iwarp.MSN(i+1), 0), 1, 0, 0, 0, 0))
		}
		for i := range 4 {
			p.send(append(iwarp.AppendTagged(nil, i == 3, iwarp.OpWrite, iwarp.STag(y.MR.RKey()),
				y.MR.Addr()+uint64(i)), 7))
		}
		p.send(append(iwarp.AppendUntagged(nil, true, iwarp.OpSendSE, 0, 1, 0), 1))
		synctest.Wait()
		y.Recv(1, 0, 100) // it has waited
		y.WantRecv("delivered", is(1, ok))
		y.Recv(2, 0, 100)
		for i := range 10 { // a Send in segments of one octet
			p.send(append(iwarp.AppendUntagged(nil, i == 9, iwarp.OpSend, 0, 2, uint32(i)), 7))
		}
		y.WantRecv("delivered", is(2, ok))
		c := y.QP.Info().Counters
		if c.EmptyReads != 3 || c.EmptyWrites != 1 || c.Stalls != 1 || c.Solicited != 1 || c.Tiny < 3+8 ||
			c.InReads != 3 {
			t.Errorf("counters %+v", c)
		}
		if d := p.d.DevInfo().Counters; d != c {
			t.Errorf("of the device: %+v", d)
		}
		y.WantState("well", rdma.QPRTS)
	})
	// What honest peers do is none of it.
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{})
		y.Recv(1, 0, 20000)
		x.Write(2, 0, 20001, y, 0)
		x.Read(3, 0, 20001, y, 0)
		x.Send(4, 0, 20000)
		y.WantRecv("delivered", is(1, ok))
		x.WantSend("sent", is(2, ok), is(3, ok), is(4, ok))
		for _, p := range []*vnictest.Peer{x, y} {
			c := p.QP.Info().Counters
			if c.Tiny+c.EmptyReads+c.Stalls+c.Solicited != 0 {
				t.Errorf("counters %+v", c)
			}
		}
	})
}

// A peer that goes on sending behind its mistake gets time to come to our Terminate, but not for
// ever. RDMAP-108.
func TestTerminateLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rounds := range []int{5, 100} {
			p := newRawPeer(t)
			begin := time.Now()
			p.send(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 1, 0)[:13]) // shorter than its header
			synctest.Wait()
			p.y.WantState("a mistake", rdma.QPTerminate)
			for i := 1; i <= 9*rounds; i++ {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				if p.y.QP.State() != rdma.QPTerminate {
					break
				}
				if i%9 == 0 {
					p.send(make([]byte, 14))
					synctest.Wait()
				}
			}
			for p.y.QP.State() == rdma.QPTerminate {
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
			want := time.Duration(rounds)*900*time.Millisecond + time.Second
			if d := time.Since(begin); d != min(want, 10*time.Second) {
				t.Errorf("%d rounds: the connection ended after %v, want %v", rounds, d,
					min(want, 10*time.Second))
			}
		}
	})
}
