package integration

import (
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/integration/rawpeer"
	"github.com/vrnic/vrnic/rdma"
)

// A peer that has made a mistake and goes on sending, more than its window, still gets the Terminate and
// then a FIN: what it sends is taken and dropped, so nothing resets the connection. RDMAP-108.
func TestRawTerminateArrives(t *testing.T) {
	r := newRig(t)
	v := newVictim(t, r, 3)
	p := v.ready()
	bad := rawpeer.Write(v.rw.RKey(), v.rw.Addr()+4090, octets(10, 1))
	v.run(p, rawpeer.Put(bad))
	good := rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(1024, 9))
	for range 8 << 10 { // 8 MiB; a window is 2
		v.run(p, rawpeer.Put(good))
	}
	v.run(p, rawpeer.Want(rawpeer.Terminate(1, 1, 0x01, ddp, bad)), rawpeer.WantFIN())
	p.Close()
	v.over(rdma.WCFlush, access, false, 1, 1, 0x01)
	v.unharmed()
	v.close()
}

// Whichever frame of a start-up is lost, the connection comes up and works: TCP's rules hold through it.
// MPA-056.
func TestRawBadPath(t *testing.T) {
	r := newRig(t)
	newVictim(t, r, 1).comeUp() // the neighbours know each other
	for lost := range int32(12) {
		var n atomic.Int32
		r.host.SetFilter(func(f rawpeer.Frame) [][]byte {
			if n.Add(1) == lost+1 {
				return nil
			}
			return [][]byte{f.Octets}
		})
		newVictim(t, r, 1).comeUp()
		if n.Load() <= lost {
			t.Errorf("%d frames were enough: the one of number %d was not lost", n.Load(), lost)
		}
	}
}

// comeUp connects, moves data, and ends.
func (v *victim) comeUp() {
	v.t.Helper()
	p := v.ready()
	v.pong(p)
	v.leave(p)
}
