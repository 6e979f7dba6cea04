package vnic_test

import (
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
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

// BenchmarkRoCE is BenchmarkWire on devices of RoCE, and BenchmarkRoCELoop BenchmarkLoop.
func BenchmarkRoCE(b *testing.B)     { benchmarkRoCE(b, nil) }
func BenchmarkRoCELoop(b *testing.B) { benchmarkRoCE(b, new(vnic.Beside)) }

func benchmarkRoCE(b *testing.B, beside *vnic.Beside) {
	bench := func(name string, op rdma.Opcode, n int) {
		b.Run(name, func(b *testing.B) {
			x, y := plainRC(b, n, beside)
			f := steady(b, x, y, op, n)
			f()
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
	bench("Send64", rdma.OpSend, 64)
	bench("Write64", rdma.OpWrite, 64)
	bench("Read64", rdma.OpRead, 64)
	bench("FetchAdd", rdma.OpFetchAdd, 8)
	bench("WriteImm64", rdma.OpWriteImm, 64)
	bench("Write1M", rdma.OpWrite, 1<<20)
	bench("Read1M", rdma.OpRead, 1<<20)
}

// plainRC is two reliable connections of RoCE on a network that costs next to nothing, with buffers
// of n octets.
func plainRC(tb testing.TB, n int, beside *vnic.Beside) (x, y *vnictest.Peer) {
	tb.Helper()
	net := vnictest.NewNet()
	net.Plain, net.Beside = true, beside
	c, d := net.Pair(tb, vnictest.RoCE)
	cfg := vnictest.PeerConfig{Buffer: n}
	x = vnictest.NewPeer(tb, vnictest.Open(tb, c, vnic.ContextConfig{}), cfg)
	y = vnictest.NewPeer(tb, vnictest.Open(tb, d, vnic.ContextConfig{}), cfg)
	vnictest.ConnectByNumber(tb, x, y, nil)
	return x, y
}
