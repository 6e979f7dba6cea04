package shm_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
)

// What posting and polling cost the program, with a daemon that costs nothing: the benchmark
// retires and completes what it has posted, and the Loop, which would, is held.
func BenchmarkClient(b *testing.B) {
	h := newHost(b)
	x, y := h.pair(64)
	hold := h.loop.Hold()
	defer hold()
	qp, cq := shm.QPMem(x.qp), shm.CQMem(x.scq)
	post, retire := abi.Word(qp, abi.QPSQProd), abi.Word(qp, abi.QPSQDone)
	done, prod := retire.Load(), abi.Word(cq, abi.CQProd).Load()
	mask, at := abi.Word(cq, abi.CQSize).Load()-1, abi.Word(cq, abi.CQCQEOff).Load()
	wc := make([]rdma.WC, 1)
	b.Run("post and poll", func(b *testing.B) {
		wr := &rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{x.sge(0, 64)}}
		defer onProcessor(b)()
		for b.Loop() {
			check(b, x.qp.PostSend(wr))
			done++
			if post.Load() != done {
				b.Fatal("not posted")
			}
			e := abi.CQE{QPN: x.qp.Num(), SQDone: done}
			e.Encode(cq[at+(prod&mask)*abi.CQELen:])
			prod++
			retire.Store(done)
			abi.Word(cq, abi.CQProd).Store(prod)
			if n, err := x.scq.Poll(wc); n != 1 || err != nil {
				b.Fatalf("poll: %d, %v", n, err)
			}
		}
	})
	b.Run("empty poll", func(b *testing.B) {
		defer onProcessor(b)()
		for b.Loop() {
			if n, err := y.rcq.Poll(wc); n != 0 || err != nil {
				b.Fatalf("poll: %d, %v", n, err)
			}
		}
	})
}

// onProcessor has b report what it has had of a processor, which says more than the clock where
// others have it meanwhile.
func onProcessor(b *testing.B) (report func()) {
	runtime.LockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		check(b, unix.Getrusage(unix.RUSAGE_THREAD, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ReportAllocs()
	start := used()
	return func() {
		b.ReportMetric(float64(used()-start)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}

// What a message costs both programs that goes directly.
func BenchmarkDirect(b *testing.B) {
	h := newDirectHost(b)
	x, y := directNodes(b, h)
	wr := &rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{x.sge(0, 64)}}
	rr := &rdma.RecvWR{SGEs: []rdma.SGE{y.sge(0, 64)}}
	wc := make([]rdma.WC, 1)
	for name, f := range map[string]func(){
		"message": func() {
			check(b, y.qp.PostRecv(rr))
			check(b, x.qp.PostSend(wr))
			for _, cq := range []rdma.CQ{y.rcq, x.scq} {
				if n, err := cq.Poll(wc); n != 1 || err != nil {
					b.Fatalf("poll: %d, %v", n, err)
				}
			}
		},
		"empty poll": func() {
			if n, err := y.rcq.Poll(wc); n != 0 || err != nil {
				b.Fatalf("poll: %d, %v", n, err)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			defer onProcessor(b)()
			for b.Loop() {
				f()
			}
		})
	}
}

// The same where so many QPs complete on one CQ, of which one has a message, and the others are
// silent.
func BenchmarkDirectMany(b *testing.B) {
	for _, qps := range []int{1, 16, 17, 100, 1000} {
		m := newMany(b, qps)
		i := qps - 1
		x, y := m.ends[0][i], m.ends[1][i]
		wr := &rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{x.sge(0, 64)}}
		rr := &rdma.RecvWR{SGEs: []rdma.SGE{y.sge(0, 64)}}
		wc := make([]rdma.WC, 1)
		for _, w := range []struct {
			name string
			f    func()
		}{
			{"message", func() {
				check(b, y.qp.PostRecv(rr))
				check(b, x.qp.PostSend(wr))
				for _, cq := range []rdma.CQ{y.rcq, x.scq} {
					if n, err := cq.Poll(wc); n != 1 || err != nil {
						b.Fatalf("poll: %d, %v", n, err)
					}
				}
			}},
			{"empty poll", func() {
				if n, err := y.rcq.Poll(wc); n != 0 || err != nil {
					b.Fatalf("poll: %d, %v", n, err)
				}
			}},
			{"arm", func() {
				check(b, y.rcq.Arm(false))
				if n, err := y.rcq.Poll(wc); n != 0 || err != nil {
					b.Fatalf("poll: %d, %v", n, err)
				}
			}},
		} {
			b.Run(fmt.Sprintf("%s/qps=%d", w.name, qps), func(b *testing.B) {
				defer onProcessor(b)()
				for b.Loop() {
					w.f()
				}
			})
		}
	}
}
