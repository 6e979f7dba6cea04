// Package latency measures how long send requests take, from when a daemon takes one from its ring
// until it completes: a Set for whoever asks, by queue pair, and Totals for metrics.
package latency

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/vrnic/vrnic/rdma"
)

// What histograms tell apart: two digits, so that a value is within one part in a hundred.
const (
	longest = 10 * time.Minute
	digits  = 2
)

// maxEntries bounds the histograms of a Set, of some 36 kB each. Queue pairs beyond that share one
// for each operation.
const maxEntries = 512

// A Set has a histogram for each queue pair and operation.
type Set struct {
	mu      sync.Mutex
	entries map[key]*entry // +checklocks:mu
}

// A key is which requests an entry is of. Of all other queue pairs it has only the operation.
type key struct {
	dev string
	qpn uint32
	op  rdma.Opcode
}

type entry struct {
	mu     sync.Mutex
	took   *hdrhistogram.Histogram // nil: of none yet; +checklocks:mu
	failed uint64                  // +checklocks:mu
}

// noOp stands for all numbers that are no operation.
const noOp = ^rdma.Opcode(0)

// A QP measures those of one queue pair. It is a vnic.RequestWatcher.
type QP struct {
	set  *Set
	dev  string
	num  uint32
	seen map[rdma.Opcode]*entry // the queue pair's owner's
}

// Of is what the queue pair num of device dev is to be watched by.
func (s *Set) Of(dev string, num uint32) *QP {
	return &QP{s, dev, num, make(map[rdma.Opcode]*entry)}
}

// entry is the one of k, or the one that it shares.
func (s *Set) entry(k key) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = make(map[key]*entry)
	}
	if s.entries[k] == nil && len(s.entries) >= maxEntries {
		k = key{op: k.op}
	}
	e := s.entries[k]
	if e == nil {
		e = new(entry)
		s.entries[k] = e
	}
	return e
}

// Taken implements vnic.RequestWatcher.
func (q *QP) Taken(time.Time, *rdma.SendWR, int) {}

// Received implements vnic.RequestWatcher.
func (q *QP) Received(time.Time, *rdma.WC) {}

// Completed implements vnic.RequestWatcher.
func (q *QP) Completed(_ time.Time, wr *rdma.SendWR, st rdma.WCStatus, took time.Duration) {
	op := wr.Op
	if kindOf(op) < 0 { // a program can write any number
		op = noOp
	}
	e := q.seen[op]
	if e == nil {
		e = q.set.entry(key{q.dev, q.num, op})
		q.seen[op] = e
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if st != rdma.WCSuccess {
		e.failed++
		return
	}
	if e.took == nil {
		e.took = hdrhistogram.New(1, int64(longest), digits)
	}
	_ = e.took.RecordValue(int64(min(took, longest))) // it is in range
}

// A Row is what requests of one operation took, of a queue pair or, with no device, of all that
// there was no room for. Times are of those that did not fail.
type Row struct {
	Dev    string        `json:"dev"`
	QPN    uint32        `json:"qpn"`
	Op     string        `json:"op"`
	Count  int64         `json:"count"`
	Failed uint64        `json:"failed"` // or flushed
	P50    time.Duration `json:"p50_ns"`
	P90    time.Duration `json:"p90_ns"`
	P99    time.Duration `json:"p99_ns"`
	P999   time.Duration `json:"p999_ns"`
	Max    time.Duration `json:"max_ns"`
}

// Rows are what was measured until now.
func (s *Set) Rows() []Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := make([]Row, 0, len(s.entries))
	for k, e := range s.entries {
		rows = append(rows, e.row(k))
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.QPN, b.QPN), cmp.Compare(a.Op, b.Op))
	})
	return rows
}

func (e *entry) row(k key) Row {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := Row{Dev: k.dev, QPN: k.qpn, Op: k.op.String(), Failed: e.failed}
	if h := e.took; h != nil {
		at := h.ValueAtPercentilesSlice([]float64{50, 90, 99, 99.9})
		r.Count, r.Max = h.TotalCount(), time.Duration(h.Max())
		r.P50, r.P90 = time.Duration(at[0]), time.Duration(at[1])
		r.P99, r.P999 = time.Duration(at[2]), time.Duration(at[3])
	}
	return r
}
