package vnic_test

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// looking calls see with each packet of RoCE that is sent, which loses those for which it is true.
func looking(t *testing.T, see func(p *udp.Packet, h *packet.Header) bool) func([]byte) bool {
	return func(ip []byte) bool {
		p, err := udp.Parse(ip)
		if err != nil {
			t.Errorf("a packet that is none: %v", err)
			return false
		}
		var h packet.Header
		if _, err := h.Parse(p.Datagram); err != nil {
			t.Errorf("a packet that is none: %v", err)
			return false
		}
		return see(&p, &h)
	}
}

// ROCE-128: what an answer acknowledges is in its memory when the answer is sent, be it the peer's
// own memory or some that is reached by calls.
func TestRCAnswersBehindMemory(t *testing.T) {
	for _, calls := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const mtu, packets = 4096, 5
			const n = mtu*packets - 100
			var memory, want []byte
			first, answers := packet.PSN(0), 0
			f := newFabric(t, vnictest.RoCELink{Lost: looking(t, func(p *udp.Packet,
				h *packet.Header) bool {
				if h.Opcode != packet.Acknowledge {
					return false
				}
				if !h.Syndrome.IsACK() {
					t.Errorf("answered by %v", h)
				}
				answers++
				done := min(mtu*(h.PSN.Sub(first)+1), n)
				if !bytes.Equal(memory[:done], want[:done]) {
					t.Errorf("calls %t: %v is sent before the octets are there", calls, h)
				}
				return false
			})})
			x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
			y := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{})
			mr, mem := y.MR, y.Buf
			if calls {
				if err := f.b.AllowBlocking(); err != nil {
					t.Fatal(err)
				}
				h := &hanging{b: make([]byte, 64<<10)}
				var err error
				if mr, err = y.PD.RegisterRegion(vnic.Region{Mem: h}, 0x7000_0000, uint64(len(h.b)),
					vnictest.Full); err != nil {
					t.Fatal(err)
				}
				mem = h.b
			}
			vnictest.ConnectByNumber(t, x, y, nil)
			first = packet.PSN(x.QP.Num() ^ 0xfffff0)
			for i, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpSend, rdma.OpWriteImm} {
				fill(x.Buf, byte(i))
				memory, want = mem[64:], x.Buf[:n]
				if err := y.QP.PostRecv(&rdma.RecvWR{ID: uint64(i), SGEs: []rdma.SGE{
					{Addr: mr.Addr() + 64, Length: n, LKey: mr.LKey()}}}); err != nil {
					t.Fatal(err)
				}
				before := answers
				x.Post(rdma.SendWR{ID: uint64(i), Op: op, RemoteAddr: mr.Addr() + 64, RKey: mr.RKey()},
					0, n)
				x.WantSend("acknowledged", is(uint64(i), ok))
				if answers == before {
					t.Errorf("calls %t: %v has no answer of its own", calls, op)
				}
				first = first.Add(packets)
			}
		})
	}
}

// ROCE-151: atomics of several queue pairs at a word, from the network and from the device itself,
// are each done as one.
func TestRCAtomicsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each, depth = 1000, 32
		f := newFabric(t, vnictest.RoCELink{})
		target := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{})
		var done sync.WaitGroup
		var xs []*vnictest.Peer
		for _, c := range []*vnic.Context{f.a, f.a, f.b} {
			x := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
			y := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{PD: target.PD})
			vnictest.ConnectByNumber(t, x, y, nil)
			xs = append(xs, x)
		}
		found := make([][]uint64, len(xs))
		for i, x := range xs {
			done.Go(func() {
				for left := each; left > 0; {
					n := min(left, depth)
					for k := range n {
						x.Post(rdma.SendWR{ID: uint64(k), Op: rdma.OpFetchAdd, RemoteAddr: target.MR.Addr(),
							RKey: target.MR.RKey(), Atomic: rdma.AtomicArgs{CompareAdd: 1}}, 8*k, 8)
					}
					for _, wc := range x.Next(x.SendCQ, n) {
						if wc.Status != ok {
							t.Errorf("%+v", wc)
						}
					}
					for k := range n {
						found[i] = append(found[i], binary.NativeEndian.Uint64(x.Buf[8*k:]))
					}
					left -= n
				}
			})
		}
		done.Wait()
		if got := binary.NativeEndian.Uint64(target.Buf); got != uint64(len(xs)*each) {
			t.Errorf("the word is %d, %d were added", got, len(xs)*each)
		}
		seen := make([]bool, len(xs)*each)
		for _, all := range found {
			for _, v := range all {
				if v >= uint64(len(seen)) || seen[v] {
					t.Fatalf("%d was found twice, or was never there", v)
				}
				seen[v] = true
			}
		}
	})
}

// ROCE-163: who has refused a request for good is silent from then on. If its NAK is lost the
// requester ends by its timeout, all the same.
func TestRCNAKLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, again := 0, 0
		f := newFabric(t, vnictest.RoCELink{Lost: looking(t, func(p *udp.Packet,
			h *packet.Header) bool {
			if h.Opcode == packet.Acknowledge && h.Syndrome.IsNAK() {
				lost++
				return true
			}
			if lost > 0 && h.Opcode == packet.WriteOnly {
				again++
			}
			return false
		})})
		x, y := f.pair(rdma.RC, func(a *rdma.QPAttr) { a.RetryCount = 2 })
		begin := time.Now()
		x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, RemoteAddr: y.MR.Addr(), RKey: ^y.MR.RKey()}, 0, 8)
		x.Write(2, 0, 8, y, 0)
		x.WantSend("the NAK is lost", is(1, rdma.WCRetryExc), is(2, flush))
		x.WantState("the NAK is lost", rdma.QPError)
		y.WantState("the NAK is sent", rdma.QPError)
		wantEvents(t, y, "once", rdma.EventQPAccessErr)
		if lost != 1 || again < 2 {
			t.Errorf("%d NAKs, and %d requests behind them: want 1, and those of 2 retries", lost, again)
		}
		// Timeout code 14 is 67.1 ms.
		if d := time.Since(begin); d < 3*67108864 || d > 12*67108864 {
			t.Errorf("it took %v", d)
		}
	})
}

// ROCE-168: an answer waits for nothing: it leaves in the instant in which its request has come,
// and so within any local CA ACK delay.
func TestRCAnswersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = time.Millisecond
		due := map[packet.PSN]time.Time{} // of what asks for an answer, by its PSN
		answers := 0
		f := newFabric(t, vnictest.RoCELink{Delay: delay, Lost: looking(t, func(p *udp.Packet,
			h *packet.Header) bool {
			switch {
			case !h.Opcode.IsResponse():
				if h.AckReq {
					due[h.PSN] = time.Now().Add(delay)
				}
			case h.Opcode != packet.ReadResponseMiddle && h.Opcode != packet.ReadResponseLast:
				answers++
				if at, asked := due[h.PSN]; !asked || !time.Now().Equal(at) {
					t.Errorf("%v is sent %v behind its request (asked for: %t)", h, time.Since(at), asked)
				}
			}
			return false
		})})
		x, y := f.pair(rdma.RC, nil)
		id := uint64(0)
		for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead, rdma.OpFetchAdd} {
			for _, n := range []int{8, 10000} {
				if op == rdma.OpFetchAdd {
					n = 8
				}
				id++
				if op == rdma.OpSend {
					y.Recv(id, 0, n)
				}
				x.Post(rdma.SendWR{ID: id, Op: op, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}, 0, n)
				x.WantSend("answered", is(id, ok))
			}
		}
		if answers < int(id) {
			t.Errorf("%d answers of %d requests", answers, id)
		}
	})
}

// ROCE-109: a queue pair that is its own peer, and two of one device.
func TestRCOfOneDevice(t *testing.T) {
	for _, self := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFabric(t, vnictest.RoCELink{})
			x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
			y := x
			if self {
				x.ToRTS(vnictest.Attrs(t, x, x, 1))
			} else {
				y = vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
				vnictest.ConnectByNumber(t, x, y, nil)
			}
			const n = 10000
			refill(x, 1)
			y.Recv(1, 20000, n)
			x.Send(2, 0, n)
			x.WantSend("a Send", is(2, ok))
			y.WantRecv("received", is(1, ok))
			word := binary.NativeEndian.Uint64(y.Buf[45000:])
			x.Write(3, 0, n, y, 30000)
			x.Read(4, 50000, n, y, 30000)
			x.Post(rdma.SendWR{ID: 5, Op: rdma.OpFetchAdd, RemoteAddr: y.MR.Addr() + 45000,
				RKey: y.MR.RKey(), Atomic: rdma.AtomicArgs{CompareAdd: 9}}, 40000, 8)
			x.WantSend("a Write, a Read and an atomic", is(3, ok), is(4, ok), is(5, ok))
			for p, off := range map[*vnictest.Peer][]int{y: {20000, 30000}, x: {50000}} {
				for _, at := range off {
					if !bytes.Equal(p.Buf[at:at+n], x.Buf[:n]) {
						t.Errorf("itself %t: at %d there are other octets", self, at)
					}
				}
			}
			if got := binary.NativeEndian.Uint64(x.Buf[40000:]); got != word ||
				binary.NativeEndian.Uint64(y.Buf[45000:]) != word+9 {
				t.Errorf("itself %t: an atomic found %d, want %d", self, got, word)
			}
			x.Post(rdma.SendWR{ID: 6, Op: rdma.OpRead, RemoteAddr: y.MR.Addr(), RKey: ^y.MR.RKey()}, 0, 8)
			status := rdma.WCRemAccess
			if self { // what it does as the responder ends it before it hears of that as the requester
				status = flush
			}
			x.WantSend("a fault", is(6, status))
			y.WantState("a fault", rdma.QPError)
		})
	}
}
