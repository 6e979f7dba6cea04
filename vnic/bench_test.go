package vnic_test

import (
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// messages measures messages of all kinds between the QPs of peers that pair makes.
func messages(b *testing.B, pair func(b *testing.B, buffer int) (x, y *vnictest.Peer)) {
	for _, m := range []struct {
		name string
		op   rdma.Opcode
		n    int
	}{
		{"Send64", rdma.OpSend, 64}, {"Write64", rdma.OpWrite, 64}, {"Read64", rdma.OpRead, 64},
		{"FetchAdd", rdma.OpFetchAdd, 8}, {"WriteImm64", rdma.OpWriteImm, 64},
		{"Write1M", rdma.OpWrite, 1 << 20}, {"Read1M", rdma.OpRead, 1 << 20},
	} {
		b.Run(m.name, func(b *testing.B) {
			x, y := pair(b, m.n)
			f := steady(b, x, y, m.op, m.n)
			f()
			b.SetBytes(int64(m.n))
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}

func onIWARP(loop bool) func(b *testing.B, buffer int) (x, y *vnictest.Peer) {
	return func(b *testing.B, buffer int) (x, y *vnictest.Peer) {
		c, d := real(b, loop)
		cfg := vnictest.PeerConfig{Buffer: buffer, Param: ext.Param}
		return vnictest.NewQPs(b, c, d, cfg, cfg)
	}
}

func BenchmarkLoop(b *testing.B) {
	messages(b, onIWARP(true))
	b.Run("Memcpy1M", func(b *testing.B) { // what Write1M is measured by
		from, to := make([]byte, 1<<20), make([]byte, 1<<20)
		b.SetBytes(1 << 20)
		for b.Loop() {
			copy(to, from)
		}
	})
}

func BenchmarkWire(b *testing.B) { messages(b, onIWARP(false)) }

// BenchmarkRoCE is BenchmarkWire on devices of RoCE, and BenchmarkRoCELoop BenchmarkLoop.
func BenchmarkRoCE(b *testing.B)     { benchmarkRoCE(b, nil) }
func BenchmarkRoCELoop(b *testing.B) { benchmarkRoCE(b, new(vnic.Beside)) }

func benchmarkRoCE(b *testing.B, beside *vnic.Beside) {
	messages(b, func(b *testing.B, buffer int) (x, y *vnictest.Peer) {
		return plainRC(b, buffer, beside)
	})
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
