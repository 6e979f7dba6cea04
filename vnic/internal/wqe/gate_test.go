package wqe

import (
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/queue"
)

// nobody owns Requests.
type nobody struct{}

func (nobody) Violation(error)    {}
func (nobody) Wake()              {}
func (nobody) Log(string, ...any) {}

// numbered is a send queue of requests with the numbers from 1 to n.
type numbered struct{ last, n uint64 }

func (q *numbered) Next(wr *rdma.SendWR) (bool, error) {
	if q.last == q.n {
		return false, nil
	}
	q.last++
	*wr = rdma.SendWR{ID: q.last}
	return true, nil
}

func (q *numbered) Retire(int) {}

// gates is how many of them there are in front of a queue.
func gates(q queue.SendQueue) (n int) {
	for g, ok := q.(*gate); ok; g, ok = q.(*gate) {
		n, q = n+1, g.SendQueue
	}
	return n
}

func always() bool { return true }
func never() bool  { return false }

// However often doorbells were late: a queue has no more in front of it than are late now, and what
// is over.
func TestGatesThatAreOver(t *testing.T) {
	r := &Requests{owner: nobody{}}
	r.Queues.Send = &numbered{n: 3}
	late := func(*rdma.SendWR) time.Duration { return Lost }
	for range 100 {
		r.Gate(late, always, never)
	}
	if n := gates(r.Queues.Send); n != 1 {
		t.Errorf("%d gates, all of which are over", n)
	}
	// One that holds a request has it until it was taken, and so has what is behind it.
	over := false
	r.Gate(late, func() bool { return over }, never)
	var wr rdma.SendWR
	if ok, err := r.Queues.Send.Next(&wr); ok || err != nil {
		t.Fatalf("request %d is not late, %v", wr.ID, err)
	}
	over = true
	for range 100 {
		r.Gate(late, always, never)
	}
	if n := gates(r.Queues.Send); n != 2 {
		t.Errorf("%d gates, of which one holds a request and another is the last", n)
	}
	for id := range uint64(3) {
		if ok, err := r.Queues.Send.Next(&wr); !ok || err != nil || wr.ID != id+1 {
			t.Errorf("%v, %v: request %d, want %d", ok, err, wr.ID, id+1)
		}
	}
	r.Gate(late, always, never)
	if n := gates(r.Queues.Send); n != 1 {
		t.Errorf("%d gates, and none holds anything", n)
	}
}

// Those whose time is to come, since there is no connection yet, stay.
func TestGatesOfNoConnection(t *testing.T) {
	r := &Requests{owner: nobody{}}
	r.Queues.Send = &numbered{n: 1}
	down := true
	for range 3 {
		r.Gate(func(*rdma.SendWR) time.Duration { return Lost }, never, func() bool { return down })
	}
	if n := gates(r.Queues.Send); n != 3 {
		t.Errorf("%d gates of 3", n)
	}
	down = false
	var wr rdma.SendWR
	if ok, err := r.Queues.Send.Next(&wr); ok || err != nil {
		t.Errorf("request %d is not late, %v", wr.ID, err)
	}
}
