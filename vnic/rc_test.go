package vnic_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A fabric is two devices of RoCE on a network of their own.
type fabric struct {
	*vnictest.Net
	t    testing.TB
	a, b *vnic.Context
}

func newFabric(t testing.TB, link vnictest.RoCELink) *fabric {
	f := &fabric{Net: newRoCENet(), t: t}
	f.RoCE = link
	a, b := f.Net.Pair(t, vnictest.RoCE)
	f.a, f.b = vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.Open(t, b, vnic.ContextConfig{})
	return f
}

// pair is two queue pairs of type typ, connected.
func (f *fabric) pair(typ rdma.QPType, change func(*rdma.QPAttr)) (x, y *vnictest.Peer) {
	f.t.Helper()
	cfg := vnictest.PeerConfig{QP: rdma.QPConfig{Type: typ}}
	x, y = vnictest.NewPeer(f.t, f.a, cfg), vnictest.NewPeer(f.t, f.b, cfg)
	vnictest.ConnectByNumber(f.t, x, y, change)
	return x, y
}

// links are the networks that what a reliable connection does is the same on.
var links = map[string]vnictest.RoCELink{
	"direct":     {},
	"delay":      {Delay: time.Millisecond},
	"loss":       {Delay: time.Millisecond, Loss: 0.05, Seed: 1},
	"duplicates": {Delay: time.Millisecond, Duplicate: 0.3, Seed: 2},
	"reordering": {Delay: time.Millisecond, Reorder: 0.1, Late: 5 * time.Millisecond, Seed: 3},
	"all": {Delay: time.Millisecond, Loss: 0.03, Duplicate: 0.1, Reorder: 0.05,
		Late: 3 * time.Millisecond, Seed: 4},
}

// onLinks runs body on each of them, in fake time.
func onLinks(t *testing.T, body func(t *testing.T, f *fabric)) {
	for name, link := range links {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { body(t, newFabric(t, link)) })
		})
	}
}

// refill fills p's buffer with octets of its own.
func refill(p *vnictest.Peer, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range p.Buf {
		p.Buf[i] = byte(r.Uint32())
	}
}

// ROCE-054, ROCE-056, ROCE-130, ROCE-136, ROCE-140, ROCE-141, ROCE-230 to 232, RVB-026: each
// operation does once what it is for, whatever the network does.
func TestRCOperations(t *testing.T) {
	onLinks(t, func(t *testing.T, f *fabric) {
		x, y := f.pair(rdma.RC, nil)
		refill(x, 1)
		sizes := []int{0, 1, 3, 4095, 4096, 4097, 8192, 20000}
		for i, n := range sizes {
			id := uint64(10 * i)
			clear(y.Buf)
			y.Recv(id, 0, n)
			x.Send(id, 0, n)
			wc := y.WantRecv(fmt.Sprint("a Send of ", n), is(id, ok))[0]
			if int(wc.ByteLen) != n || wc.Op != rdma.WCRecv || wc.Flags != 0 || wc.SrcQP != 0 ||
				!bytes.Equal(y.Buf[:n], x.Buf[:n]) {
				t.Errorf("a Send of %d: %+v, or other octets", n, wc)
			}
			x.WantSend("sent", is(id, ok))

			y.Recv(id+1, 0, n)
			x.Post(rdma.SendWR{ID: id + 1, Op: rdma.OpSendImm, Imm: 0x01020304}, 0, n)
			wc = y.WantRecv(fmt.Sprint("with immediate data, ", n), is(id+1, ok))[0]
			if int(wc.ByteLen) != n || wc.Op != rdma.WCRecv || wc.Flags != rdma.WCWithImm ||
				wc.Imm != 0x01020304 {
				t.Errorf("a Send with immediate data of %d: %+v", n, wc)
			}
			x.WantSend("sent", is(id+1, ok))

			clear(y.Buf)
			x.Write(id+2, 0, n, y, 100)
			x.WantSend("written", is(id+2, ok))
			if !bytes.Equal(y.Buf[100:100+n], x.Buf[:n]) {
				t.Errorf("a Write of %d: other octets", n)
			}

			clear(y.Buf)
			y.Recv(id+3, 40000, 8)
			x.Post(rdma.SendWR{ID: id + 3, Op: rdma.OpWriteImm, Imm: 7, RemoteAddr: y.MR.Addr() + 100,
				RKey: y.MR.RKey()}, 0, n)
			wc = y.WantRecv("a Write with immediate data", is(id+3, ok))[0]
			if int(wc.ByteLen) != n || wc.Op != rdma.WCRecvImm || wc.Flags != rdma.WCWithImm ||
				wc.Imm != 7 || !bytes.Equal(y.Buf[100:100+n], x.Buf[:n]) ||
				!bytes.Equal(y.Buf[40000:40008], make([]byte, 8)) {
				t.Errorf("a Write with immediate data of %d: %+v, or other octets", n, wc)
			}
			x.WantSend("written", is(id+3, ok))

			refill(y, uint64(i))
			at := len(x.Buf) - n
			x.Read(id+4, at, n, y, 50)
			wc = x.WantSend("read", is(id+4, ok))[0]
			if int(wc.ByteLen) != n || !bytes.Equal(x.Buf[at:], y.Buf[50:50+n]) {
				t.Errorf("a Read of %d: %+v, or other octets", n, wc)
			}
		}
		word := y.Buf[256:264]
		binary.NativeEndian.PutUint64(word, 40)
		atomic := func(op rdma.Opcode, add, swap uint64) uint64 {
			t.Helper()
			x.Post(rdma.SendWR{ID: 1, Op: op, RemoteAddr: y.MR.Addr() + 256, RKey: y.MR.RKey(),
				Atomic: rdma.AtomicArgs{CompareAdd: add, Swap: swap}}, 0, 8)
			if wc := x.WantSend("an atomic", is(1, ok))[0]; wc.ByteLen != 8 {
				t.Errorf("an atomic's completion: %+v", wc)
			}
			return binary.NativeEndian.Uint64(x.Buf)
		}
		for i := range uint64(5) {
			if was := atomic(rdma.OpFetchAdd, 2, 0); was != 40+2*i {
				t.Errorf("Fetch & Add %d found %d", i, was)
			}
		}
		if was := atomic(rdma.OpCompareSwap, 1, 99); was != 50 {
			t.Errorf("Compare & Swap found %d, want 50", was)
		}
		if was := atomic(rdma.OpCompareSwap, 50, 99); was != 50 {
			t.Errorf("Compare & Swap found %d, want 50", was)
		}
		if got := binary.NativeEndian.Uint64(word); got != 99 {
			t.Errorf("the word is %d, want 99", got)
		}
	})
}

// ROCE-053, ROCE-054, ROCE-074: many requests of all kinds at once complete in their order, on both
// sides at a time.
func TestRCMixed(t *testing.T) {
	onLinks(t, func(t *testing.T, f *fabric) {
		x, y := f.pair(rdma.RC, func(a *rdma.QPAttr) { a.MaxRead, a.MaxDestRead = 2, 2 })
		refill(x, 1)
		refill(y, 2)
		const n, octets = 24, 9000
		for _, p := range []*vnictest.Peer{x, y} {
			for i := range uint64(n) {
				p.Recv(100+i, 0, octets)
			}
		}
		var want []vnictest.Want
		for i := range uint64(n) {
			want = append(want, is(i, ok))
			for _, e := range [][2]*vnictest.Peer{{x, y}, {y, x}} {
				switch i % 3 {
				case 0:
					e[0].Send(i, 10000, octets)
				case 1:
					e[0].Write(i, 10000, octets, e[1], 20000)
				case 2:
					e[0].Read(i, 30000, octets, e[1], 10000)
				}
			}
		}
		for _, p := range []*vnictest.Peer{x, y} {
			p.WantSend("in their order", want...)
			var recv []vnictest.Want
			for i := range uint64(n / 3) {
				recv = append(recv, is(100+i, ok))
			}
			p.WantRecv("in their order", recv...)
		}
		for _, e := range [][2]*vnictest.Peer{{x, y}, {y, x}} {
			for _, at := range []int{0, 20000, 30000} {
				p := e[0]
				if !bytes.Equal(p.Buf[at:at+octets], e[1].Buf[10000:10000+octets]) {
					t.Errorf("other octets at %d", at)
				}
			}
		}
	})
}

// A connected queue pair with nothing under way is closed; its peer's requests are not answered any
// more.
func TestCloseConnected(t *testing.T) {
	for _, typ := range []rdma.QPType{rdma.RC, rdma.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y := newFabric(t, vnictest.RoCELink{}).pair(typ, nil)
				for _, p := range []*vnictest.Peer{x, y} {
					if err := p.QP.Close(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}
