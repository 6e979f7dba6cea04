//go:build !race

package vnic_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// allocations counts those of n calls of f. testing.AllocsPerRun rounds down, so that one in every
// second call would be none; and a collection in the midst would empty pools, which is no message's
// doing.
func allocations(n int, f func()) uint64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	f()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		f()
	}
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

// wantNone wants n calls of f that allocate nothing at all. The runtime may allocate meanwhile,
// records of goroutines that wait and such, more of them on a busy machine; but what messages
// allocate, be it one of a thousand, is in each of twenty runs.
func wantNone(t *testing.T, n int, f func()) {
	t.Helper()
	var counts []uint64
	for range 20 {
		c := allocations(n, f)
		if c == 0 {
			return
		}
		counts = append(counts, c)
	}
	t.Errorf("%d calls allocate %d times, run by run", n, counts)
}

// Messages that come together, one doorbell for all, allocate nothing either.
func TestAllocsBatch(t *testing.T) {
	const batch = 16
	for _, loop := range []bool{true, false} {
		t.Run(fmt.Sprintf("loop=%v", loop), func(t *testing.T) {
			a, b := real(t, loop)
			x, y := vnictest.NewQPs(t, a, b, ext, ext)
			sends, recvs, wc := make([]rdma.SendWR, batch), make([]rdma.RecvWR, batch),
				make([]rdma.WC, batch)
			for i := range batch {
				sends[i] = rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{x.SGE(0, 64)}}
				recvs[i] = rdma.RecvWR{SGEs: []rdma.SGE{y.SGE(0, 64)}}
			}
			take := func(cq *vnic.CQ) {
				for left := batch; left > 0; {
					n, err := cq.Poll(wc)
					if err != nil {
						t.Fatal(err)
					}
					if left -= n; n == 0 {
						runtime.Gosched()
					}
				}
			}
			f := func() {
				if _, err := y.QP.PostRecvs(recvs); err != nil {
					t.Fatal(err)
				}
				if _, err := x.QP.PostSends(sends); err != nil {
					t.Fatal(err)
				}
				take(x.SendCQ)
				take(y.RecvCQ)
			}
			for range 20 {
				f()
			}
			wantNone(t, 100, f)
		})
	}
}

// steadySizes are the messages of which none may allocate.
var steadySizes = map[rdma.Opcode][]int{
	rdma.OpSend: {64, 60000}, rdma.OpWrite: {64, 60000}, rdma.OpRead: {64, 60000},
	rdma.OpWriteImm: {64, 60000}, rdma.OpSendImm: {0}, rdma.OpFetchAdd: {8}, rdma.OpCompareSwap: {8},
}

// No message allocates in steady state. The race detector allocates by itself, so this runs without
// it.
func TestAllocs(t *testing.T) {
	for op, sizes := range steadySizes {
		for _, loop := range []bool{true, false} {
			for _, size := range sizes {
				t.Run(fmt.Sprintf("%v/loop=%v/%d", op, loop, size), func(t *testing.T) {
					a, b := real(t, loop)
					x, y := vnictest.NewQPs(t, a, b, ext, ext)
					f := steady(t, x, y, op, size)
					for range 100 {
						f()
					}
					wantNone(t, 1000, f)
				})
			}
		}
	}
}

// Nor with memory that is reached by calls, over the wire and within a device.
func TestAllocsMode0(t *testing.T) {
	for op, sizes := range map[rdma.Opcode][]int{rdma.OpSend: {64, 60000, 200000},
		rdma.OpWrite: {64, 60000, 200000}, rdma.OpRead: {64, 60000}} {
		for _, loop := range []bool{true, false} {
			for _, size := range sizes {
				t.Run(fmt.Sprintf("%v/loop=%v/%d", op, loop, size), func(t *testing.T) {
					a, b := real(t, loop)
					x, y := vnictest.NewQPs(t, a, b, ext, ext)
					for _, p := range []*vnictest.Peer{x, y} {
						if err := p.Ctx.AllowBlocking(); err != nil {
							t.Fatal(err)
						}
						m, err := p.PD.RegisterRegion(vnic.Region{Mem: &hanging{b: make([]byte, size)}}, 1<<32,
							uint64(size), vnictest.Full)
						if err != nil {
							t.Fatal(err)
						}
						p.MR = m
					}
					f := steady(t, x, y, op, size)
					for range 100 {
						f()
					}
					wantNone(t, 1000, f)
				})
			}
		}
	}
}
