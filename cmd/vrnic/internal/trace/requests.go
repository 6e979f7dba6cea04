package trace

import (
	"slices"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/rdma"
)

// A kind is what the messages of a request are on the wire.
type kind uint8

const (
	local kind = iota // none
	send
	write
	read
	atomic
)

func kindOf(op string) kind {
	switch {
	case strings.HasPrefix(op, "SEND"):
		return send
	case strings.HasPrefix(op, "WRITE"):
		return write
	case op == "READ":
		return read
	case strings.Contains(op, "CMP_SWP") || strings.Contains(op, "FETCH_ADD"):
		return atomic
	}
	return local
}

// A request is a send request that was posted, and has not completed or not gone out.
type request struct {
	id       uint64
	op       string
	kind     kind
	sent     bool // its message has begun
	answered bool
	// unsure: what has gone before it was not seen, so nobody knows which message is its own.
	unsure bool
}

// maxRequests bounds those that are known.
const maxRequests = 1 << 16

// requests are in posting order, in which they complete, and their messages begin.
type requests struct {
	list []request
	done int // so many of the first have completed, and their messages have not begun
}

// post adds a request; behind is how many are before it.
func (r *requests) post(e *capture.Event) {
	open := len(r.list) - r.done
	if open > e.Behind || len(r.list) >= maxRequests { // a reset of the queue pair ends some silently
		r.list, r.done = r.list[len(r.list)-min(open, e.Behind, maxRequests-1):], 0
	}
	r.list = append(r.list, request{id: e.WRID, op: e.Op, kind: kindOf(e.Op),
		unsure: open < e.Behind}) // there are some that nobody has seen
}

// complete takes a request out, and those before it that have not completed. If late its message
// may come behind its completion.
func (r *requests) complete(e *capture.Event, late bool) {
	i := slices.IndexFunc(r.list[r.done:], func(q request) bool {
		return q.id == e.WRID && q.op == e.Op
	})
	if i < 0 {
		return
	}
	i += r.done
	q, begin := r.list[i], r.done
	if late && !q.sent && !q.unsure && q.kind != local && e.Status == rdma.WCSuccess.String() {
		r.list[begin] = q
		r.done++
		begin++
	}
	r.list = slices.Delete(r.list, begin, i+1)
}

// forget says that something was missed: of what is under way now nothing is sure.
func (r *requests) forget() {
	r.list, r.done = r.list[r.done:], 0
	for i := range r.list {
		r.list[i].unsure = true
	}
}

// waits says whether a message has gone out, or may have, whose request has not completed.
func (r *requests) waits() bool {
	return slices.ContainsFunc(r.list[r.done:], func(q request) bool { return q.sent || q.unsure })
}

// begin is the number of the request of which a message of kind k begins; nil: nobody knows.
func (r *requests) begin(k kind) *uint64 {
	for i := range r.list {
		switch q := &r.list[i]; {
		case q.unsure:
			return nil
		case q.sent || q.kind == local:
		case q.kind != k:
			return nil
		default:
			q.sent = true
			id := q.id
			if i < r.done {
				r.list = slices.Delete(r.list, i, i+1)
				r.done--
			}
			return &id
		}
	}
	return nil
}

// beginWrite is begin of a Write; immediate: that has immediate data, in a message behind it.
func (r *requests) beginWrite() (id *uint64, immediate bool) {
	i := slices.IndexFunc(r.list, func(q request) bool { return !q.sent && q.kind != local })
	immediate = i >= 0 && r.list[i].op == "WRITE_WITH_IMM"
	id = r.begin(write)
	return id, immediate && id != nil
}

// answer is the number of the request that an answer of kind k is for; last: it is over with that.
func (r *requests) answer(k kind, last bool) *uint64 {
	for i := r.done; i < len(r.list); i++ {
		switch q := &r.list[i]; {
		case q.unsure:
			return nil
		case q.kind == k && q.sent && !q.answered:
			q.answered = last
			id := q.id
			return &id
		}
	}
	return nil
}
