//go:build !race

package vnic_test

import (
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// No allocation per message in steady state: design, section 7. The race detector allocates by
// itself, so this runs without it.
func TestAllocs(t *testing.T) {
	for op, sizes := range map[rdma.Opcode][]int{
		rdma.OpSend: {64, 60000}, rdma.OpWrite: {64, 60000}, rdma.OpRead: {64, 60000},
		rdma.OpWriteImm: {64, 60000}, rdma.OpSendImm: {0}, rdma.OpFetchAdd: {8}, rdma.OpCompareSwap: {8},
	} {
		for _, loop := range []bool{true, false} {
			for _, size := range sizes {
				t.Run(fmt.Sprintf("%v/loop=%v/%d", op, loop, size), func(t *testing.T) {
					a, b := real(t, loop)
					x, y := vnictest.NewQPs(t, a, b, ext, ext)
					f := steady(t, x, y, op, size)
					for range 100 {
						f()
					}
					if n := testing.AllocsPerRun(1000, f); n != 0 {
						t.Errorf("%v allocations per message", n)
					}
				})
			}
		}
	}
}

// Nor with memory that is reached by calls, over the wire and within a device.
func TestAllocsMode0(t *testing.T) {
	for op, sizes := range map[rdma.Opcode][]int{rdma.OpSend: {64, 60000, 200000}, rdma.OpWrite: {64, 60000, 200000}, rdma.OpRead: {64, 60000}} {
		for _, loop := range []bool{true, false} {
			for _, size := range sizes {
				t.Run(fmt.Sprintf("%v/loop=%v/%d", op, loop, size), func(t *testing.T) {
					a, b := real(t, loop)
					x, y := vnictest.NewQPs(t, a, b, ext, ext)
					for _, p := range []*vnictest.Peer{x, y} {
						if err := p.Ctx.SetStaged(); err != nil {
							t.Fatal(err)
						}
						m, err := p.PD.RegisterRegion(vnic.Region{Mem: &hanging{b: make([]byte, size)}}, 1<<32, uint64(size), vnictest.Full)
						if err != nil {
							t.Fatal(err)
						}
						p.MR = m
					}
					f := steady(t, x, y, op, size)
					for range 100 {
						f()
					}
					if n := testing.AllocsPerRun(1000, f); n != 0 {
						t.Errorf("%v allocations per message", n)
					}
				})
			}
		}
	}
}
