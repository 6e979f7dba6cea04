package vnic_test

import (
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

func benchmark(b *testing.B, loop bool, op rdma.Opcode, n int) {
	c, d := real(b, loop)
	x, y := vnictest.NewQPs(b, c, d, vnictest.PeerConfig{Buffer: n, Param: ext.Param},
		vnictest.PeerConfig{Buffer: n, Param: ext.Param})
	f := steady(b, x, y, op, n)
	f()
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
}

func BenchmarkLoop(b *testing.B) {
	b.Run("Send64", func(b *testing.B) { benchmark(b, true, rdma.OpSend, 64) })
	b.Run("Write64", func(b *testing.B) { benchmark(b, true, rdma.OpWrite, 64) })
	b.Run("Read64", func(b *testing.B) { benchmark(b, true, rdma.OpRead, 64) })
	b.Run("FetchAdd", func(b *testing.B) { benchmark(b, true, rdma.OpFetchAdd, 8) })
	b.Run("WriteImm64", func(b *testing.B) { benchmark(b, true, rdma.OpWriteImm, 64) })
	b.Run("Write1M", func(b *testing.B) { benchmark(b, true, rdma.OpWrite, 1<<20) })
	b.Run("Read1M", func(b *testing.B) { benchmark(b, true, rdma.OpRead, 1<<20) })
	b.Run("Memcpy1M", func(b *testing.B) { // what Write1M is measured by
		from, to := make([]byte, 1<<20), make([]byte, 1<<20)
		b.SetBytes(1 << 20)
		for b.Loop() {
			copy(to, from)
		}
	})
}

func BenchmarkWire(b *testing.B) {
	b.Run("Send64", func(b *testing.B) { benchmark(b, false, rdma.OpSend, 64) })
	b.Run("Write64", func(b *testing.B) { benchmark(b, false, rdma.OpWrite, 64) })
	b.Run("Read64", func(b *testing.B) { benchmark(b, false, rdma.OpRead, 64) })
	b.Run("FetchAdd", func(b *testing.B) { benchmark(b, false, rdma.OpFetchAdd, 8) })
	b.Run("WriteImm64", func(b *testing.B) { benchmark(b, false, rdma.OpWriteImm, 64) })
	b.Run("Write1M", func(b *testing.B) { benchmark(b, false, rdma.OpWrite, 1<<20) })
}
