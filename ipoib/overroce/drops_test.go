package overroce

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Each kind of drop of the carrier has a counter of its own, which rises by one for it, and no
// other one does.
func TestDrops(t *testing.T) {
	for _, tt := range []struct {
		name string
		want Drops
		drop func(a, b *end)
	}{
		{"all buffers are in use", Drops{NoBuffer: 1}, func(a, b *end) {
			var all []int
			for i := a.trySlot(); i >= 0; i = a.trySlot() {
				all = append(all, i)
			}
			a.sendFrame(ipoib.Way{To: b.Info().Addr}, make([]byte, 60))
			for _, i := range all {
				a.slots.drop(i)
			}
		}},
		{"nobody has the neighbour's port", Drops{NoRoute: 1}, func(a, _ *end) {
			nobody := ipoib.GID(netip.MustParseAddr("fe80::bad").As16())
			a.sendFrame(ipoib.Way{To: ipoib.LinkAddr{QPN: 0x700, GID: nobody}}, make([]byte, 60))
			time.Sleep(time.Minute)
		}},
		{"the queue pair is closed", Drops{Refused: 1}, func(a, b *end) {
			a.mu.Lock()
			var qp *sender
			for _, c := range a.byQPN {
				qp = c.qp
			}
			a.mu.Unlock()
			if err := a.slots.close(qp); err != nil {
				t.Error(err)
			}
			a.host.in <- a.packet(b.ip, 3000, 2)
		}},
		{"the host takes nothing", Drops{Host: 1}, func(a, b *end) {
			a.host.full.Store(true)
			b.host.in <- b.packet(a.ip, 100, 2)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			net := vnictest.NewNet()
			a := newEnd(t, device(t, net, 1), 1, nil)
			b := newEnd(t, device(t, net, 2), 2, nil)
			a.sends("by a connection", b, MaxMTU, 1)
			synctest.Wait()
			tt.drop(a, b)
			synctest.Wait()
			if got := a.Info().Drops; got != tt.want {
				t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
			}
			a.close()
			b.close()
		})
	}
}

// Packets that hosts answer in turn over a connection wait for nothing but their way: not for a
// timer of the queue pairs, which would come to the rescue of one that nobody looks at.
func TestRoundsTakeNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		b := newEnd(t, device(t, net, 2), 2, nil)
		a.sends("by a connection", b, MaxMTU, 1)
		start := time.Now()
		for n := range 1000 {
			a.sends("there", b, 60+n*65, byte(n))
			b.sends("and back", a, 60+n, byte(n))
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("1000 rounds take %v where neither links nor programs take any time", took)
		}
		if s := a.Info().Stats; s.TxConnected < 1001 || s.RxConnected != 1000 {
			t.Errorf("not over the connection: %+v", s)
		}
		for _, e := range []*end{a, b} {
			if p := e.dev.DevInfo().Packets; p.Again != 0 || p.Duplicates != 0 {
				t.Errorf("packets went out again: %+v", p)
			}
			e.close()
		}
	})
}
