package shm

import (
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
)

// A regionTable has the regions of a PD by their lkeys, for what the client itself reads and writes
// of its program's memory: docs/direct.md. Those of AllocMR, whose keys change, are not in it.
type regionTable struct {
	mu    sync.RWMutex
	byKey map[uint32]*memRegion // +checklocks:mu
}

func (t *regionTable) add(mr *memRegion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byKey == nil {
		t.byKey = make(map[uint32]*memRegion)
	}
	t.byKey[mr.lkey] = mr
}

// remove has key, of a region that has been deregistered or invalidated, or of none, open nothing.
func (t *regionTable) remove(key uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mr := t.byKey[key]; mr != nil {
		mr.ended.Store(true)
		delete(t.byKey, key)
	}
}

func (t *regionTable) find(key uint32) *memRegion {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byKey[key]
}

// A regionFinder finds where the octets of SGEs are. It belongs to a queue, and remembers the
// region that was found last.
type regionFinder struct {
	table *regionTable
	last  *memRegion
}

// octets are those of s; false: the daemon knows what is wrong with it. They are good while the
// lock of the queue is held: Device.settle waits for that.
func (f *regionFinder) octets(s *abi.SGE, access rdma.Access) ([]byte, bool) {
	if s.Length == 0 {
		return nil, true
	}
	mr := f.last
	if mr == nil || mr.lkey != s.LKey || mr.ended.Load() {
		if mr = f.table.find(s.LKey); mr == nil {
			return nil, false
		}
		f.last = mr
	}
	off := s.Addr - mr.addr
	if s.Addr < mr.addr || off > uint64(len(mr.b)) || uint64(s.Length) > uint64(len(mr.b))-off ||
		mr.access&access != access {
		return nil, false
	}
	return mr.b[off : off+uint64(s.Length)], true
}

// settle returns when no queue uses what it had found before.
func (d *Device) settle() {
	for _, q := range keys(d, d.direct) {
		q.pause()
	}
}

// pause returns when who had a lock of q's queues has given it back.
func (q *queuePair) pause() {
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	q.rq.mu.Lock()
	defer q.rq.mu.Unlock()
}
