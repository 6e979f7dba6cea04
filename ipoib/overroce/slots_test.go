package overroce

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Who waits for a slot hears of each that becomes free without a completion: of one that was given
// back, and of those of a queue pair that is closed.
func TestFreedSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		defer a.close()
		s, on := newSlots(100), a.sides[0]
		d := &side{pd: on.pd}
		var err error
		if d.sendCQ, err = on.ctx.CreateCQ(s.n); err != nil {
			t.Fatal(err)
		}
		if err := s.register(d); err != nil {
			t.Fatal(err)
		}
		heard := func(why string) {
			t.Helper()
			select {
			case <-s.freed:
			default:
				t.Errorf("%s: nobody hears of it", why)
			}
		}
		qp, err := on.pd.CreateQP(rdma.QPConfig{Type: rdma.RC, SendCQ: d.sendCQ, RecvCQ: on.recvCQ,
			MaxSendWR: s.n, MaxSendSGE: 1, SignalAll: true})
		if err != nil {
			t.Fatal(err)
		}
		sent := &sender{QP: qp, slots: d.slots}
		var all []int
		for range s.n {
			i, _ := s.take()
			all = append(all, i)
		}
		if i, _ := s.take(); i >= 0 {
			t.Fatalf("slot %d, of %d that are all in use", i, s.n)
		}
		s.drop(all[0])
		heard("given back")
		s.mu.Lock()
		s.user[all[1]] = sent // as one that is posted to a peer that does not answer
		s.mu.Unlock()
		if err := s.close(sent); err != nil {
			t.Fatal(err)
		}
		heard("of a queue pair that is closed")
		for range 2 {
			if i, _ := s.take(); i < 0 {
				t.Error("a slot is lost")
			}
		}
	})
}

// An interface that looks for the way to a port which does not answer ends at once all the same,
// and tells its peers before it does.
func TestCloseWhileLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		b := newEnd(t, device(t, net, 2), 2, nil)
		silent := netip.MustParseAddr("fe80::bad")
		net.Blackhole(silent)
		a.sends("b is known, and connected", b, MaxMTU, 1)
		a.ways.look(ipoib.Way{To: ipoib.LinkAddr{QPN: 2, GID: silent.As16()}}, make([]byte, 60))
		synctest.Wait()
		start := time.Now()
		a.close()
		if d := time.Since(start); d != 0 {
			t.Errorf("it has taken %v", d)
		}
		synctest.Wait()
		if n := b.neighbour(a); n.Conn != "none" {
			t.Errorf("the peer has not heard of it: %+v", n)
		}
		b.close()
	})
}
