package latency

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// Kinds are what Totals count requests by.
var Kinds = [...]string{"send", "write", "read", "atomic", "local"}

// kindOf is the number of op in Kinds; -1: no queue pair has such an operation.
func kindOf(op rdma.Opcode) int {
	switch op {
	case rdma.OpSend, rdma.OpSendImm, rdma.OpSendInv:
		return 0
	case rdma.OpWrite, rdma.OpWriteImm:
		return 1
	case rdma.OpRead:
		return 2
	case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
		return 3
	case rdma.OpLocalInv, rdma.OpBindMW, rdma.OpRegMR:
		return 4
	default:
		return -1
	}
}

// Buckets double from the first, a microsecond or so, to the last, some ten seconds.
const (
	firstBucket = 10 // as a power of two, in nanoseconds
	nBuckets    = 24
)

// Totals are what the requests of a device took, in buckets. It is a vnic.RequestWatcher for all of
// its queue pairs; who moves messages adds to some counters, and takes no lock. The zero value has
// none.
type Totals struct{ kinds [len(Kinds)]total }

type total struct {
	buckets [nBuckets + 1]atomic.Uint64 // the last is for what took longer
	nanos   atomic.Uint64
}

// Taken implements vnic.RequestWatcher.
func (t *Totals) Taken(time.Time, *rdma.SendWR, int) {}

// Received implements vnic.RequestWatcher.
func (t *Totals) Received(time.Time, *rdma.WC) {}

// Completed implements vnic.RequestWatcher.
func (t *Totals) Completed(_ time.Time, wr *rdma.SendWR, st rdma.WCStatus, took time.Duration) {
	kind := kindOf(wr.Op)
	if st != rdma.WCSuccess || kind < 0 {
		return
	}
	k := &t.kinds[kind]
	b := bits.Len64(uint64(max(took, 1))-1) - firstBucket
	k.buckets[min(max(b, 0), nBuckets)].Add(1)
	k.nanos.Add(uint64(took))
}

// A Histogram is what requests of one kind took.
type Histogram struct {
	Count   uint64
	Seconds float64            // in all
	Buckets map[float64]uint64 // how many took so many seconds at most
}

// Histogram is what requests of that kind took, until now.
func (t *Totals) Histogram(kind int) Histogram {
	k := &t.kinds[kind]
	h := Histogram{Buckets: make(map[float64]uint64, nBuckets)}
	for i := range k.buckets {
		h.Count += k.buckets[i].Load()
		if i < nBuckets {
			h.Buckets[time.Duration(1<<(firstBucket+i)).Seconds()] = h.Count
		}
	}
	h.Seconds = time.Duration(k.nanos.Load()).Seconds()
	return h
}
