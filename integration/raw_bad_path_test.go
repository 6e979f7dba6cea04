package integration

import (
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/rdma"
)

// A peer that has made a mistake and goes on sending, more than its window, still gets the
// Terminate and then a FIN: what it sends is taken and dropped, so nothing resets the connection.
// RDMAP-108.
func TestRawTerminateArrives(t *testing.T) { newRig(t).both(t, rawTerminateArrives) }

func rawTerminateArrives(t *testing.T, r *rig) {
	v := newVictim(t, r, 3)
	p := v.ready()
	bad := rawpeer.Write(v.rw.RKey(), v.rw.Addr()+4090, octets(10, 1))
	v.run(p, rawpeer.Put(bad))
	var good []byte
	for range 64 {
		good = p.Out.Append(good, rawpeer.Write(v.rw.RKey(), v.rw.Addr(), octets(1024, 9)).ULPDU(),
			rawpeer.Lie{})
	}
	for range 64 { // 4 MiB; a window is 2
		v.run(p, rawpeer.PutOctets(good))
	}
	v.run(p, rawpeer.Want(rawpeer.Terminate(1, 1, 0x01, ddp, bad)), rawpeer.WantFIN())
	p.Close()
	v.over(rdma.WCFlush, access, false, 1, 1, 0x01)
	v.unharmed()
	v.close()
}

// Whichever frame of a connection is lost, it comes up and works: TCP's rules hold through it. How
// many there are depends on which ACKs find data to go with. MPA-056.
func TestRawBadPath(t *testing.T) { newRig(t).both(t, rawBadPath) }

func rawBadPath(t *testing.T, r *rig) {
	newVictim(t, r, 1).comeUp() // the neighbours know each other
	lost := int32(0)
	for ; lost < 40; lost++ {
		var n atomic.Int32
		nth := lost + 1
		r.host.SetFilter(func(f rawhost.Frame) [][]byte {
			if n.Add(1) == nth {
				return nil
			}
			return [][]byte{f.Octets}
		})
		newVictim(t, r, 1).comeUp()
		if n.Load() < nth {
			break // fewer were enough
		}
	}
	// SYN, SYN and ACK; MPA's request and reply; the first FPDU, the peer's; a FIN each.
	if least := int32(8); lost < least || lost == 40 {
		t.Errorf("frames 1 to %d could be lost, want %d at least, and an end", lost, least)
	}
}

// comeUp connects, moves data, and ends.
func (v *victim) comeUp() {
	v.t.Helper()
	p := v.ready()
	v.pong(p)
	v.leave(p)
}
