//go:build !race

package vnic_test

import (
	"fmt"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// No allocation per message in steady state: design, section 7. The race detector allocates by
// itself, so this runs without it.
func TestAllocs(t *testing.T) {
	for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead} {
		for _, loop := range []bool{true, false} {
			for _, size := range []int{64, 60000} {
				t.Run(fmt.Sprintf("%v/loop=%v/%d", op, loop, size), func(t *testing.T) {
					a, b := real(t, loop)
					x, y := vnictest.NewQPs(t, a, b, vnictest.PeerConfig{}, vnictest.PeerConfig{})
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
