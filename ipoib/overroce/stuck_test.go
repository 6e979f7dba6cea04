package overroce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A neighbour that takes nothing any more, for which neither a stream nor RNR retries end, does not
// keep the slots for good. IPOIB-044.
func TestStuckNeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		b := newEnd(t, device(t, net, 2), 2, nil)
		a.sends("by a connection", b, MaxMTU, 1)
		synctest.Wait()
		var stuck *sender
		a.mu.Lock()
		for _, c := range a.byQPN {
			stuck = c.qp
		}
		a.mu.Unlock()
		first := a.trySlot()
		for { // the others are the connection's, as if they were posted
			i := a.trySlot()
			if i < 0 {
				break
			}
			a.slots.mu.Lock()
			a.slots.user[i] = stuck
			a.slots.mu.Unlock()
		}
		timer, begin := time.NewTimer(time.Hour), time.Now()
		time.AfterFunc(stuckTime-1, func() { a.slots.drop(first) })
		if i := a.takeSlot(timer); i != first || a.neighbour(b).Conn != "open" {
			t.Errorf("slot %d, want %d, which is free now: %+v", i, first, a.neighbour(b))
		}
		second := a.takeSlot(timer)
		if d := time.Since(begin); second < 0 || d != 2*stuckTime-1 || a.neighbour(b).Conn != "none" {
			t.Errorf("slot %d after %v: %+v", second, d, a.neighbour(b))
		}
		a.slots.drop(first)
		a.slots.drop(second)
		time.Sleep(time.Minute)
		a.sends("there is another connection", b, MaxMTU, 2)
		a.close()
		b.close()
	})
}

// Where requests cannot be listened for there is no carrier, and nothing of it to close.
func TestNoCarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		for _, e := range []*end{newEnd(t, device(t, net, 1), 1, nil), newStreamEnd(t, net, 2, nil)} {
			own := ipoib.LinkAddr{QPN: e.ud.Num(), GID: e.Info().Addr.GID}
			e.carrier.close()
			e.carrier = nil
			e.connSide.ctx.Shutdown()
			if err := e.listen(own); err == nil || e.carrier != nil {
				t.Errorf("%v, a carrier: %v", err, e.carrier != nil)
			}
			e.close()
		}
	})
}
