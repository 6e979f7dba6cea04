package ethswitch

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/netstack/frame"
)

// maxLearned is how many addresses are remembered for one port, so that one that makes them up
// cannot fill the memory or push out those of other ports.
const maxLearned = 1024

// seenEvery is how old the time in an entry may get before it is written again: most frames only
// read the table.
const seenEvery = time.Second

// A table remembers behind which port an address is.
type table struct {
	now    func() time.Time
	ageing time.Duration

	mu      sync.RWMutex
	entries map[frame.MAC]*entry // guarded by mu
}

type entry struct {
	to   *Attachment
	own  bool         // the port's own address: it stays where it is
	seen atomic.Int64 // when, in Unix nanoseconds
}

func (t *table) old(e *entry, now time.Time) bool {
	return !e.own && now.UnixNano()-e.seen.Load() > int64(t.ageing)
}

// pin makes m the port's own.
func (t *table) pin(m frame.MAC, to *Attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(m)
	t.entries[m] = &entry{to: to, own: true}
}

// lookup returns where m is, nil if that is not known.
func (t *table) lookup(m frame.MAC) *Attachment {
	t.mu.RLock()
	e := t.entries[m]
	t.mu.RUnlock()
	if e == nil {
		return nil
	}
	if !e.own && t.old(e, t.now()) {
		return nil
	}
	return e.to
}

// learn notes that m is behind from. It reports false if m is another port's own address.
func (t *table) learn(m frame.MAC, from *Attachment) bool {
	now := t.now()
	t.mu.RLock()
	e := t.entries[m]
	t.mu.RUnlock()
	if e != nil {
		if e.own {
			return e.to == from
		}
		if e.to == from {
			if seen := e.seen.Load(); now.UnixNano()-seen > int64(seenEvery) {
				e.seen.Store(now.UnixNano())
			}
			return true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[m]; e != nil && e.own {
		return e.to == from
	}
	t.remove(m)
	if from.learned >= maxLearned {
		t.expire(from, now)
	}
	if from.learned < maxLearned {
		e := &entry{to: from}
		e.seen.Store(now.UnixNano())
		t.entries[m] = e
		from.learned++
	}
	return true // if there was no room its frames are flooded
}

// remove forgets m. The caller holds mu.
func (t *table) remove(m frame.MAC) {
	if e := t.entries[m]; e != nil {
		if !e.own {
			e.to.learned--
		}
		delete(t.entries, m)
	}
}

// expire forgets what is too old behind a. The caller holds mu.
func (t *table) expire(a *Attachment, now time.Time) {
	for m, e := range t.entries {
		if e.to == a && t.old(e, now) {
			t.remove(m)
		}
	}
}

// forget forgets every address behind a.
func (t *table) forget(a *Attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for m, e := range t.entries {
		if e.to == a {
			t.remove(m)
		}
	}
}

// behind lists the addresses behind a.
func (t *table) behind(a *Attachment) []frame.MAC {
	now := t.now()
	t.mu.RLock()
	defer t.mu.RUnlock()
	var macs []frame.MAC
	for m, e := range t.entries {
		if e.to == a && !t.old(e, now) {
			macs = append(macs, m)
		}
	}
	slices.SortFunc(macs, func(a, b frame.MAC) int { return bytes.Compare(a[:], b[:]) })
	return macs
}
