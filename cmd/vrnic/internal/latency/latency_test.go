package latency_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/latency"
	"github.com/vrnic/vrnic/rdma"
)

// end has a request of a queue pair complete.
func end(q *latency.QP, op rdma.Opcode, st rdma.WCStatus, took time.Duration) {
	q.Completed(time.Now(), &rdma.SendWR{Op: op}, st, took)
}

// near says that got is want, but for the one part in a hundred that histograms leave out.
func near(got, want time.Duration) bool {
	return got >= want-want/100 && got <= want+want/100
}

// Percentiles are those of what was measured, of each queue pair and operation by itself; what has
// failed is counted and has no time, and what took longer than can be is as the longest.
func TestRows(t *testing.T) {
	var s latency.Set
	one, other := s.Of("vrnic0", 7), s.Of("vrnic0", 8)
	for i := range 1000 {
		end(one, rdma.OpSend, rdma.WCSuccess, time.Duration(i+1)*time.Microsecond)
	}
	end(one, rdma.OpSend, rdma.WCFlush, time.Hour)
	end(one, rdma.OpRead, rdma.WCSuccess, 40*time.Nanosecond)
	end(other, rdma.OpSend, rdma.WCSuccess, 1000*time.Hour)
	end(other, rdma.Opcode(77), rdma.WCLocQPOp, time.Second)
	end(other, rdma.Opcode(78), rdma.WCLocQPOp, time.Second)
	rows := s.Rows()
	if len(rows) != 4 {
		t.Fatalf("%+v", rows)
	}
	read, send, long, wrong := rows[0], rows[1], rows[3], rows[2]
	us := time.Microsecond
	if send.Op != "SEND" || send.QPN != 7 || send.Count != 1000 || send.Failed != 1 ||
		!near(send.P50, 500*us) || !near(send.P90, 900*us) || !near(send.P99, 990*us) ||
		!near(send.P999, 999*us) || !near(send.Max, 1000*us) {
		t.Errorf("%+v", send)
	}
	if read.Op != "READ" || read.Count != 1 || read.P50 != 40 || read.Max != 40 {
		t.Errorf("%+v", read)
	}
	if long.Op != "SEND" || long.QPN != 8 || !near(long.Max, 10*time.Minute) {
		t.Errorf("%+v", long)
	}
	if wrong.Count != 0 || wrong.Failed != 2 {
		t.Errorf("numbers that are no operation: %+v", wrong)
	}
	var b strings.Builder
	if err := latency.Write(&b, rows); err != nil || strings.Count(b.String(), "\n") != 5 ||
		!strings.Contains(b.String(), " 40ns ") || !strings.Contains(b.String(), " SEND ") {
		t.Errorf("%v\n%s", err, &b)
	}
}

// However many queue pairs there are, a Set has so many histograms; what has none of its own is
// counted with others, and nothing is lost. Queue pairs are moved by several goroutines.
func TestBound(t *testing.T) {
	const qps, each = 2000, 3
	var s latency.Set
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for i := range uint32(qps / 4) {
				q := s.Of("vrnic0", uint32(part)*qps+i+1)
				for range each {
					end(q, rdma.OpWrite, rdma.WCSuccess, time.Millisecond)
				}
			}
			_ = s.Rows()[0]
		})
	}
	wg.Wait()
	rows := s.Rows()
	var n int64
	for _, r := range rows {
		n += r.Count
	}
	if len(rows) != 513 || n != qps*each || rows[0].Dev != "" || rows[0].Op != "WRITE" {
		t.Errorf("%d rows with %d requests, the first is %+v", len(rows), n, rows[0])
	}
	var b strings.Builder
	if err := latency.Write(&b, rows[:1]); err != nil || !strings.Contains(b.String(), "others") {
		t.Errorf("%v\n%s", err, &b)
	}
}

// Buckets hold what took as long as they say or less, and the last one that Prometheus adds by
// itself the rest.
func TestTotals(t *testing.T) {
	var l latency.Totals
	add := func(op rdma.Opcode, took time.Duration) {
		l.Completed(time.Now(), &rdma.SendWR{Op: op}, rdma.WCSuccess, took)
	}
	add(rdma.OpSend, 0)
	add(rdma.OpSendInv, 1024)
	add(rdma.OpSendImm, 1025)
	add(rdma.OpSend, time.Hour)
	add(rdma.OpFetchAdd, time.Millisecond)
	l.Completed(time.Now(), &rdma.SendWR{Op: rdma.OpSend}, rdma.WCFlush, time.Hour)
	add(rdma.Opcode(77), time.Hour)
	kind := func(name string) int { return slices.Index(latency.Kinds[:], name) }
	h := l.Histogram(kind("send"))
	if h.Count != 4 || h.Buckets[1024e-9] != 2 || h.Buckets[2048e-9] != 3 || len(h.Buckets) != 24 ||
		h.Seconds < 3600 || h.Seconds > 3601 {
		t.Errorf("%+v", h)
	}
	last := uint64(0)
	for _, n := range h.Buckets {
		last = max(last, n)
	}
	if last != 3 {
		t.Errorf("the largest bucket has %d, want what took less than an hour: %+v", last, h)
	}
	if h := l.Histogram(kind("atomic")); h.Count != 1 || h.Seconds != 1e-3 {
		t.Errorf("%+v", h)
	}
	if h := l.Histogram(kind("read")); h.Count != 0 {
		t.Errorf("%+v", h)
	}
}

// Who moves messages allocates nothing for metrics, nor, of an operation that was seen, for others.
func TestAllocs(t *testing.T) {
	var l latency.Totals
	q := new(latency.Set).Of("vrnic0", 1)
	wr := &rdma.SendWR{Op: rdma.OpSend}
	at := time.Now()
	if n := testing.AllocsPerRun(1000, func() {
		l.Completed(at, wr, rdma.WCSuccess, 1000)
		q.Completed(at, wr, rdma.WCSuccess, 1000)
	}); n != 0 {
		t.Errorf("%v allocations for a completion", n)
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "-", 999: "999ns", 1234: "1.23us",
		45678: "45.7us", 999900: "1000us", 1500 * time.Microsecond: "1.50ms",
		12 * time.Second: "12.0s"} {
		if got := latency.Short(d); got != want {
			t.Errorf("%d ns are %q, want %q", d, got, want)
		}
	}
}
