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

// sweepEvery is how often what is too old behind a port that is full is looked for: each frame of
// one that makes addresses up would be a reason to.
const sweepEvery = time.Second

// A table remembers behind which port an address is.
type table struct {
	now    func() time.Time
	ageing time.Duration

	mu      sync.RWMutex
	entries map[frame.MAC]*entry // guarded by mu
}

// behindPort is what a table knows of a port. It is guarded by the table's mu.
type behindPort struct {
	entries map[frame.MAC]*entry // those that point there
	learned int                  // how many of them are not the port's own
	swept   time.Time            // when those too old were looked for last
}

// full says whether there is no room for another one, and not worth looking for any.
func (b *behindPort) full(now time.Time) bool {
	return b.learned >= maxLearned && now.Sub(b.swept) < sweepEvery
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
	t.add(m, &entry{to: to, own: true})
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
	full := from.behind.full(now)
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
	} else if full {
		return true // its frames are flooded
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[m]; e != nil && e.own {
		return e.to == from
	}
	t.remove(m)
	if from.behind.learned >= maxLearned {
		t.expire(from, now)
	}
	if from.behind.learned < maxLearned {
		e := &entry{to: from}
		e.seen.Store(now.UnixNano())
		t.add(m, e)
	}
	return true
}

// add remembers m. The caller holds mu.
func (t *table) add(m frame.MAC, e *entry) {
	t.entries[m] = e
	b := &e.to.behind
	if b.entries == nil {
		b.entries = map[frame.MAC]*entry{}
	}
	b.entries[m] = e
	if !e.own {
		b.learned++
	}
}

// remove forgets m. The caller holds mu.
func (t *table) remove(m frame.MAC) {
	if e := t.entries[m]; e != nil {
		if !e.own {
			e.to.behind.learned--
		}
		delete(e.to.behind.entries, m)
		delete(t.entries, m)
	}
}

// expire forgets what is too old behind a, if that is not what it has done just now. The caller
// holds mu.
func (t *table) expire(a *Attachment, now time.Time) {
	if a.behind.full(now) {
		return
	}
	a.behind.swept = now
	for m, e := range a.behind.entries {
		if t.old(e, now) {
			t.remove(m)
		}
	}
}

// forget forgets every address behind a.
func (t *table) forget(a *Attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for m := range a.behind.entries {
		t.remove(m)
	}
}

// behind lists the addresses behind a.
func (t *table) behind(a *Attachment) []frame.MAC {
	now := t.now()
	t.mu.RLock()
	defer t.mu.RUnlock()
	var macs []frame.MAC
	for m, e := range a.behind.entries {
		if !t.old(e, now) {
			macs = append(macs, m)
		}
	}
	slices.SortFunc(macs, func(a, b frame.MAC) int { return bytes.Compare(a[:], b[:]) })
	return macs
}
