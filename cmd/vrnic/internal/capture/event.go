package capture

import (
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// What happens to requests, for Event.
const (
	Post     = "post"     // the daemon has taken a send request from its ring
	Complete = "complete" // a send request has ended
	Receive  = "receive"  // a receive has
)

// An Event is what has happened to a request of a queue pair that somebody looks at.
type Event struct {
	Dev    string        `json:"dev"`
	QPN    uint32        `json:"qpn"`
	Kind   string        `json:"event"`
	WRID   uint64        `json:"wr_id"`
	Op     string        `json:"op"`
	Length uint64        `json:"length"`
	Behind int           `json:"behind,omitempty"` // of a post: so many before it have not ended
	Status string        `json:"status,omitempty"`
	Took   time.Duration `json:"took_ns,omitempty"`
}

// Requests has what happens to requests of a queue pair go where a capture goes, in its place among
// the packets. It is a vnic.RequestWatcher.
type Requests struct {
	s   *source
	dev string
	qpn uint32
}

// Of is that of queue pair qpn of dev.
func (r *Requests) Of(dev string, qpn uint32) *Requests { return &Requests{r.s, dev, qpn} }

// Taken implements vnic.RequestWatcher.
func (r *Requests) Taken(at time.Time, wr *rdma.SendWR, behind int) {
	r.happens(at, Event{Kind: Post, WRID: wr.ID, Op: wr.Op.String(), Length: lengthOf(wr),
		Behind: behind})
}

// Completed implements vnic.RequestWatcher.
func (r *Requests) Completed(at time.Time, wr *rdma.SendWR, st rdma.WCStatus,
	took time.Duration) {
	r.happens(at, Event{Kind: Complete, WRID: wr.ID, Op: wr.Op.String(), Length: lengthOf(wr),
		Status: st.String(), Took: took})
}

// Received implements vnic.RequestWatcher.
func (r *Requests) Received(at time.Time, wc *rdma.WC) {
	op := "RECV"
	if wc.Flags&rdma.WCWithImm != 0 {
		op = "RECV_WITH_IMM"
	}
	r.happens(at, Event{Kind: Receive, WRID: wc.ID, Op: op, Length: uint64(wc.ByteLen),
		Status: wc.Status.String()})
}

func lengthOf(wr *rdma.SendWR) (n uint64) {
	if wr.Flags&rdma.Inline != 0 {
		return uint64(len(wr.Inline))
	}
	for i := range wr.SGEs {
		n += uint64(wr.SGEs[i].Length)
	}
	return n
}

// happens puts an event into the queue, if there is room.
func (r *Requests) happens(at time.Time, e Event) {
	e.Dev, e.QPN = r.dev, r.qpn
	p := newSeen(0)
	p.at, p.event, p.octets = at, e, p.octets[:0]
	r.s.enqueue(p)
}
