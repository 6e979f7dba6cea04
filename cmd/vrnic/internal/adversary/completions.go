package adversary

import (
	"math/rand/v2"
	"sync"
	"time"
)

// maxLate is how long an event comes after its completion at most.
const maxLate = 3 * time.Millisecond

// Completions has those of several queue pairs come to a queue in another order than that in which
// they happened, and late; of one queue pair they stay in theirs. Events come later than that.
type Completions struct {
	after func(time.Duration, func()) (stop func() bool)

	mu     sync.Mutex
	rand   *rand.Rand
	held   func() // nil: none
	heldQP uint32
	stop   func() bool // of the time that held has
}

// Completions are those of the next completion queue that is made.
func (d *Device) Completions() *Completions {
	return &Completions{
		after: func(t time.Duration, f func()) func() bool { return time.AfterFunc(t, f).Stop },
		// Numbers of regions and of queues are apart.
		rand: rand.New(rand.NewPCG(d.seed, 1<<63|d.queues.Add(1))),
	}
}

// Push has a completion of a queue pair delivered: now, or if there is room for one more later.
// What deliver says is the answer, true for later.
func (c *Completions) Push(qp uint32, room bool, deliver func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != nil && c.heldQP == qp {
		c.releaseLocked()
	}
	if c.held == nil && room && c.rand.IntN(2) == 0 {
		c.held, c.heldQP = func() { deliver() }, qp
		c.stop = c.after(time.Duration(1+c.rand.Int64N(int64(maxPause))), c.Flush)
		return true
	}
	ok := deliver()
	if c.held != nil {
		c.releaseLocked() // behind a later one of another queue pair
	}
	return ok
}

// Flush delivers what is held.
func (c *Completions) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked()
}

func (c *Completions) releaseLocked() {
	if held := c.held; held != nil {
		c.held = nil
		c.stop()
		held()
	}
}

// Held is how many completions are.
func (c *Completions) Held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != nil {
		return 1
	}
	return 0
}

// Event has the event of a completion come. It is called within deliver.
func (c *Completions) Event(notify func()) {
	c.after(time.Duration(1+c.rand.Int64N(int64(maxLate))), notify)
}
