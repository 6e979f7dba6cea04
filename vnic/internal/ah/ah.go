// Package ah holds the address handles of a context: where datagrams go to, and how.
package ah

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// An AH is an address handle. It implements rdma.AH. It does not change, but its Route follows the
// network.
type AH struct {
	table  *Table
	pd     *mem.PD
	attr   rdma.AHAttr
	flow   udp.Flow
	route  datagram.Route
	handle uint32
	settle func()
}

// Config is what an AH is made of.
type Config struct {
	PD    *mem.PD // has been checked to be the same context's
	Attr  rdma.AHAttr
	Flow  udp.Flow // all but the source port
	Route datagram.Route
	// Settle has queue pairs send what they have to send by it; Close calls it.
	Settle func()
}

// Attr implements rdma.AH.
func (a *AH) Attr() rdma.AHAttr { return a.attr }

// Handle implements rdma.AH.
func (a *AH) Handle() uint32 { return a.handle }

// Route is the way to the peer or the group.
func (a *AH) Route() datagram.Route { return a.route }

// PD is the protection domain whose queue pairs may use a.
func (a *AH) PD() *mem.PD { return a.pd }

// Flow is a's with the source port of a queue pair.
func (a *AH) Flow(qpn packet.QPN) udp.Flow {
	f := a.flow
	f.SrcPort = udp.SourcePort(qpn)
	return f
}

// Close implements rdma.AH: requests that are posted from now on cannot use it. It may be called
// twice.
func (a *AH) Close() error {
	a.settle()
	a.table.remove(a)
	return nil
}

// Max is how many address handles a Table can hold.
const Max = 1 << indexBits

// A handle is an index, and above it a number that is another one when the index is used again.
const (
	indexBits = 16
	chunkBits = 8
	chunkLen  = 1 << chunkBits
	chunkMask = chunkLen - 1
)

// keepFree is how many indices are left alone for a while when their handles are gone.
const keepFree = 256

type chunk [chunkLen]atomic.Pointer[AH]

// A Table has the address handles of a context by their handles. The zero Table is empty. Any
// goroutine may use it.
type Table struct {
	chunks [Max / chunkLen]atomic.Pointer[chunk]

	mu    sync.Mutex
	used  uint32   // +checklocks:mu
	fresh uint32   // +checklocks:mu
	free  []uint32 // handles that are gone, the oldest first; guarded by mu
}

// Find is the address handle h, nil: there is none. It takes no lock.
func (t *Table) Find(h uint32) *AH {
	i := h & (Max - 1)
	c := t.chunks[i>>chunkBits].Load()
	if c == nil {
		return nil
	}
	if a := c[i&chunkMask].Load(); a != nil && a.handle == h {
		return a
	}
	return nil
}

// Add makes an address handle; rdma.ErrLimit if limit are there, rdma.ErrClosed if its protection
// domain is gone.
func (t *Table) Add(cfg Config, limit int) (*AH, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= uint32(min(limit, Max)) {
		return nil, fmt.Errorf("%d address handles are there: %w", t.used, rdma.ErrLimit)
	}
	if err := cfg.PD.AddAH(); err != nil {
		return nil, err
	}
	a := &AH{table: t, pd: cfg.PD, attr: cfg.Attr, flow: cfg.Flow, route: cfg.Route,
		settle: cfg.Settle}
	if len(t.free) < keepFree && t.fresh < Max {
		a.handle = 1<<indexBits | t.fresh
		t.fresh++
	} else {
		a.handle = t.free[0] + 1<<indexBits
		t.free = t.free[1:]
		if a.handle>>indexBits == 0 { // 0 is not a handle
			a.handle += 1 << indexBits
		}
	}
	t.used++
	i := a.handle & (Max - 1)
	c := t.chunks[i>>chunkBits].Load()
	if c == nil {
		c = new(chunk)
		t.chunks[i>>chunkBits].Store(c)
	}
	c[i&chunkMask].Store(a)
	return a, nil
}

func (t *Table) remove(a *AH) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Find(a.handle) != a {
		return
	}
	i := a.handle & (Max - 1)
	t.chunks[i>>chunkBits].Load()[i&chunkMask].Store(nil)
	t.free = append(t.free, a.handle)
	t.used--
	a.pd.RemoveAH()
}

// Len is how many address handles there are.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int(t.used)
}
