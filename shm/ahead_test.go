package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/rpc"
)

// An aheadDaemon plays the daemon's side of a channel: a queue of events, and the octets for them
// in a pipe that has room for so many.
type aheadDaemon struct {
	t    testing.TB
	ch   *cmEvents
	conn *net.UnixConn
	room int

	mu     sync.Mutex
	queue  []uint32 // ids, guarded by mu as all below
	octets int
	ids    []*cmID      // of the client: each has one event
	drops  map[int]bool // those whose event has been dropped
	during func()       // called before each reply to CM_GET_EVENT
	gone   bool         // the channel has been destroyed
}

func newAheadDaemon(t testing.TB, room int) *aheadDaemon {
	c, conn := pairedClient(t)
	d := &aheadDaemon{t: t, conn: conn, room: room, drops: map[int]bool{}}
	d.ch = &cmEvents{d: &Device{c: c, closed: make(chan struct{})}, ids: map[uint32]*cmID{}}
	d.ch.d.cm = d.ch
	go d.serve()
	return d
}

// push has an event come for a new id, whose private data say which.
func (d *aheadDaemon) push() {
	id := &cmID{ch: d.ch, handle: uint32(len(d.ids) + 1), events: make(chan *rpc.CMEvent, idEvents)}
	d.ch.mu.Lock()
	d.ch.ids[id.handle] = id
	d.ch.mu.Unlock()
	d.ids = append(d.ids, id)
	d.queue = append(d.queue, id.handle)
	d.octets = min(d.octets+1, d.room)
}

// drop forgets the oldest event, as that of an id that is destroyed; its octet stays.
func (d *aheadDaemon) drop() {
	if len(d.queue) > 0 {
		d.drops[int(d.queue[0])-1] = true
		d.queue = d.queue[1:]
	}
}

// with has f change what the daemon has.
func (d *aheadDaemon) with(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// private are the private data of the event of an id.
func private(handle uint32) string { return fmt.Sprintf("event of %d", handle) }

func (d *aheadDaemon) serve() {
	buf := make([]byte, rpc.MaxMessage)
	for {
		n, err := d.conn.Read(buf)
		if err != nil || n == 0 {
			return
		}
		h, _, err := rpc.ParseMessage(buf[:n])
		if err != nil {
			d.t.Error(err)
			return
		}
		h = rpc.Header{Op: h.Op, Seq: h.Seq}
		var rep rpc.Message = &rpc.Empty{}
		if h.Op == rpc.OpCMGetEvent {
			d.mu.Lock()
			if d.during != nil {
				d.during()
			}
			switch {
			case d.gone:
				h.Status = -int32(syscall.ENOENT)
			case len(d.queue) == 0:
				h.Status = -int32(syscall.EAGAIN)
			default:
				ev := &rpc.CMEvent{Type: rpc.EvRejected, ID: d.queue[0]}
				ev.Param.SetPrivateData([]byte(private(ev.ID)))
				d.queue = d.queue[1:]
				rep = ev
			}
			d.mu.Unlock()
		}
		if _, err := d.conn.Write(rpc.AppendMessage(nil, h, rep)); err != nil {
			return
		}
	}
}

// read takes octets out of the pipe, as much as a buffer holds.
func (d *aheadDaemon) read(buffer int) (n int) {
	d.with(func() {
		n = min(d.octets, buffer)
		d.octets -= n
	})
	return n
}

// early makes a request that brings an event, perhaps.
func (d *aheadDaemon) early() {
	other := &call{op: rpc.OpCMAccept, what: "accept", req: &rpc.Empty{}, rep: &rpc.Empty{}, fd: -1}
	d.ch.d.c.rpcs(other, d.ch.earlyEventCall())
	if other.err != nil {
		d.t.Error(other.err)
	}
}

// rest reads until the pipe is empty. Then no event may lie at the daemon, as nobody would ask for
// it: each is where it belongs.
func (d *aheadDaemon) rest(buffer int) {
	d.t.Helper()
	for n := d.read(buffer); n > 0; n = d.read(buffer) {
		d.ch.takeEvents(n, n == buffer)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) > 0 {
		d.t.Fatalf("%d events lie at the daemon, %d are ahead of octets", len(d.queue),
			d.ch.takenEarly.Load())
	}
	for i, id := range d.ids {
		select {
		case ev := <-id.events:
			if pd, _ := ev.Param.PrivateData(); d.drops[i] || string(pd) != private(id.handle) {
				d.t.Fatalf("id %d has event %q", id.handle, pd)
			}
		default:
			if !d.drops[i] {
				d.t.Fatalf("id %d has no event", id.handle)
			}
		}
	}
}

// Whatever comes when, each event is taken that is not dropped with its id, once: with a request,
// while octets that have been read are answered for, and also where the pipe had no room for its
// octet.
func TestClientEventsAhead(t *testing.T) {
	for _, sizes := range []struct{ scripts, steps, most, buffer, room int }{
		{1500, 12, 2, 256, 4096}, // few events
		{100, 20, 60, 64, 100},   // more than the pipe has room for
	} {
		for seed := range uint64(sizes.scripts) {
			d := newAheadDaemon(t, sizes.room)
			r := rand.New(rand.NewPCG(seed, 1))
			dice := rand.New(rand.NewPCG(seed, 2)) // the daemon's
			d.with(func() {
				d.during = func() {
					switch dice.IntN(6) {
					case 0:
						d.push()
					case 1:
						d.drop()
					}
				}
			})
			held := 0 // octets that have been read, for which events have not been asked yet
			for range sizes.steps {
				switch n := 1 + r.IntN(sizes.most); r.IntN(7) {
				case 0, 1:
					for range n {
						d.with(d.push)
					}
				case 2:
					d.with(d.drop)
				case 3:
					for range n {
						d.with(d.push)
						d.early()
					}
				case 4:
					for range n {
						d.early()
					}
				case 5:
					if held == 0 {
						held = d.read(sizes.buffer)
					}
				case 6:
					if held == 0 {
						held = d.read(sizes.buffer)
					}
					if held == 0 {
						break
					}
					var both sync.WaitGroup
					for range n % 3 {
						both.Go(d.early)
					}
					d.ch.takeEvents(held, held == sizes.buffer)
					both.Wait()
					held = 0
				}
			}
			if held > 0 {
				d.ch.takeEvents(held, held == sizes.buffer)
			}
			d.with(func() { d.during = nil })
			d.rest(sizes.buffer)
			d.with(d.push) // and the next one comes
			d.ids = d.ids[len(d.ids)-1:]
			d.drops = nil
			d.rest(sizes.buffer)
			d.ch.d.c.die(errGone)
			d.conn.Close()
			if t.Failed() {
				t.Fatalf("script %d of %+v", seed, sizes)
			}
		}
	}
}

// Events that are taken while there is no room in the pipe have no octet: who counts them as ahead
// passes over later ones.
func TestClientEventsWithoutRoom(t *testing.T) {
	const buffer, room = 256, 4096
	d := newAheadDaemon(t, room)
	for range room + 1000 {
		d.with(d.push)
		d.early()
	}
	d.rest(buffer)
	d.with(d.push)
	d.ids = d.ids[len(d.ids)-1:]
	d.rest(buffer)
}

// Octets have been read for more events than are asked for at once, and all of these have been
// taken by then.
func TestClientEventsTakenMeanwhile(t *testing.T) {
	const buffer, many = 256, 3 * seqpacket.MaxOutstanding
	d := newAheadDaemon(t, buffer)
	for range many {
		d.with(d.push)
	}
	n := d.read(buffer)
	d.with(func() {
		d.during = func() { // as others that come before fetch's calls, and after it has looked
			for range d.queue {
				d.drop()
				d.ch.takenEarly.Add(1)
			}
		}
	})
	d.ch.takeEvents(n, false)
	d.with(func() { d.during = nil })
	d.with(d.push)
	d.rest(buffer)
}

// A device can be closed while another goroutine connects, which asks for events of a channel that
// is no more: the client's other devices stay.
func TestClientEventsOfClosedDevice(t *testing.T) {
	d := newAheadDaemon(t, 1)
	d.with(func() { d.gone = true })
	d.early()
	if err := d.ch.d.c.gone(); err != nil {
		t.Error(err)
	}
}

// A connection is over, too, that is told of when all others have been ended: who talks to the
// daemon has read that before.
func TestClientEstablishedAtTheEnd(t *testing.T) {
	c := fuzzClient(t)
	c.die(errGone)
	ch := &cmEvents{d: &Device{c: c, closed: make(chan struct{})}, ids: map[uint32]*cmID{}}
	id := &cmID{ch: ch, handle: 1, events: make(chan *rpc.CMEvent, idEvents)}
	ch.ids[1] = id
	ch.finishAll(c.gone())
	ch.dispatch(&rpc.CMEvent{Type: rpc.EvEstablished, ID: 1,
		Src: rpc.MakeSockAddr(netip.MustParseAddrPort("10.0.0.1:1"))})
	if id.conn != nil {
		select {
		case <-id.conn.Done():
			if !errors.Is(id.conn.Err(), errGone) {
				t.Error(id.conn.Err())
			}
		default:
			t.Error("a connection of a session that is over does not end")
		}
	}
}
