package vnic_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// allBeside has the devices of RoCE on networks of newRoCENet stand beside each other.
var allBeside bool

func newRoCENet() *vnictest.Net {
	n := vnictest.NewNet()
	if allBeside {
		n.Beside = new(vnic.Beside)
	}
	return n
}

// What tests say of queue pairs whose devices have a network between them holds where they are of
// one process, too, and messages are copied; but what they say of octets that the network loses, or
// still has.
func TestBeside(t *testing.T) {
	allBeside = true
	defer func() { allBeside = false }()
	for name, test := range map[string]func(*testing.T){
		"RCOperations": TestRCOperations, "RCMixed": TestRCMixed, "RCFaults": TestRCFaults,
		"RNR": TestRNR, "SilentPeer": TestSilentPeer, "CommEst": TestCommEst, "SQD": TestSQD,
		"ModifyAccess":     TestModifyAccess,
		"RCSharedReceives": TestRCSharedReceives, "RCOverrun": TestRCOverrun, "RCWindow": TestRCWindow,
		"CloseConnected": TestCloseConnected, "UCOperations": TestUCOperations,
		"UCSendError": TestUCSendError, "ModifyInHandler": TestModifyInHandler,
		"ReconnectWhileHandled": TestReconnectWhileHandled, "ModifyConnected": TestModifyConnected,
		"RoCEConnect": TestRoCEConnect, "RoCEAccess": TestRoCEAccess,
		"RoCEDisconnect": TestRoCEDisconnect, "RoCEGone": TestRoCEGone, "UD": TestUD,
		"UDDropped": TestUDDropped, "UDSendErrors": TestUDSendErrors, "UDStates": TestUDStates,
		"Multicast": TestMulticast, "ReplyTo": TestReplyTo, "UDSettled": TestUDSettled,
	} {
		t.Run(name, test)
	}
}

// A nearPair is two connected queue pairs of one process, whose messages are copied: each has heard
// the other.
type nearPair struct {
	*fabric
	x, y *vnictest.Peer
}

// onNear runs body with a pair of typ on one device, and on two beside each other.
func onNear(t *testing.T, typ rdma.QPType, change func(*rdma.QPAttr),
	body func(t *testing.T, p nearPair)) {
	for _, devices := range []int{1, 2} {
		t.Run(fmt.Sprintf("%v on %d", typ, devices), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				allBeside = true
				f := newFabric(t, vnictest.RoCELink{})
				allBeside = false
				if devices == 1 {
					f.b = vnictest.Open(t, f.a.Device(), vnic.ContextConfig{})
				}
				p := nearPair{fabric: f}
				p.x, p.y = f.pair(typ, change)
				p.greet(t)
				body(t, p)
			})
		})
	}
}

// greet has each hear the other.
func (p *nearPair) greet(t *testing.T) {
	t.Helper()
	for _, e := range [][2]*vnictest.Peer{{p.x, p.y}, {p.y, p.x}} {
		e[0].Write(1, 0, 8, e[1], 0)
		e[0].WantSend("a first message", is(1, ok))
	}
}

// counted is how many packets and messages that needed none p's devices have sent.
func (p *nearPair) counted() (packets, copied uint64) {
	c, d := p.a.Device().DevInfo().Packets, p.b.Device().DevInfo().Packets
	if p.a.Device() == p.b.Device() {
		return c.Sent, c.Copied
	}
	return c.Sent + d.Sent, c.Copied + d.Copied
}

// want says how many packets, and messages that needed none, do is to send.
func (p *nearPair) want(t *testing.T, why string, packets, copied uint64, do func()) {
	t.Helper()
	wasPackets, wasCopied := p.counted()
	do()
	synctest.Wait()
	nowPackets, nowCopied := p.counted()
	if nowPackets-wasPackets != packets || nowCopied-wasCopied != copied {
		t.Errorf("%s: %d packets and %d messages without, want %d and %d", why, nowPackets-wasPackets,
			nowCopied-wasCopied, packets, copied)
	}
}

// ROCE-109: all that a connection carries is copied once both ends have heard each other, and PSNs
// count on.
func TestCopied(t *testing.T) {
	for _, typ := range []rdma.QPType{rdma.RC, rdma.UC} {
		onNear(t, typ, nil, func(t *testing.T, p nearPair) {
			x, y := p.x, p.y
			fill(x.Buf, 1)
			before, _ := x.QP.Query()
			sizes := []int{0, 1, 4096, 20000}
			p.want(t, "all kinds", 0, uint64(4*len(sizes)), func() {
				for i, n := range sizes {
					id := uint64(10 * i)
					for k := range uint64(3) {
						y.Recv(id+k, 0, n)
					}
					x.Send(id, 0, n)
					x.Post(rdma.SendWR{ID: id + 1, Op: rdma.OpSendImm, Imm: 77}, 0, n)
					x.Write(id+2, 0, n, y, 20000)
					x.Post(rdma.SendWR{ID: id + 3, Op: rdma.OpWriteImm, Imm: 78, RKey: y.MR.RKey(),
						RemoteAddr: y.MR.Addr() + 40000}, 0, n)
					x.WantSend("copied", is(id, ok), is(id+1, ok), is(id+2, ok), is(id+3, ok))
					wc := y.WantRecv("copied", is(id, ok), is(id+1, ok), is(id+2, ok))
					if int(wc[0].ByteLen) != n || wc[1].Imm != 77 || wc[1].Op != rdma.WCRecv ||
						wc[2].Imm != 78 || wc[2].Op != rdma.WCRecvImm || int(wc[2].ByteLen) != n {
						t.Errorf("%d octets: %+v", n, wc)
					}
					for _, at := range []int{0, 20000, 40000} {
						if !bytes.Equal(y.Buf[at:at+n], x.Buf[:n]) {
							t.Errorf("%d octets: others at %d", n, at)
						}
					}
				}
			})
			after, _ := x.QP.Query()
			if want := before.SQPSN + 4*(1+1+1+5); after.SQPSN != want&0xffffff {
				t.Errorf("from PSN %#x to %#x, want %#x", before.SQPSN, after.SQPSN, want)
			}
			if peer, _ := y.QP.Query(); peer.RQPSN != after.SQPSN {
				t.Errorf("the peer expects PSN %#x, the next is %#x", peer.RQPSN, after.SQPSN)
			}
			if c := x.QP.Counted(); c.SentOctets != 4*(1+4096+20000)+8 {
				t.Errorf("%d octets are counted as sent", c.SentOctets)
			}
			c := y.QP.Counted()
			if want := uint64(4 * (1 + 4096 + 20000)); c.Receives != 12 || c.InWrites != 9 ||
				c.ReceivedOctets != want+8 {
				t.Errorf("the peer has counted %+v", c)
			}
		})
	}
	onNear(t, rdma.RC, nil, func(t *testing.T, p nearPair) {
		x, y := p.x, p.y
		fill(y.Buf, 2)
		p.want(t, "Reads and atomics", 0, 4, func() {
			x.Read(1, 100, 20000, y, 7)
			x.Read(2, 0, 0, y, 0)
			x.WantSend("read", is(1, ok), is(2, ok))
			if !bytes.Equal(x.Buf[100:20100], y.Buf[7:20007]) {
				t.Error("the Read has other octets")
			}
			binary.NativeEndian.PutUint64(y.Buf, 40)
			x.Post(rdma.SendWR{ID: 3, Op: rdma.OpFetchAdd, RKey: y.MR.RKey(), RemoteAddr: y.MR.Addr(),
				Atomic: rdma.AtomicArgs{CompareAdd: 2}}, 0, 8)
			x.Post(rdma.SendWR{ID: 4, Op: rdma.OpCompareSwap, RKey: y.MR.RKey(),
				RemoteAddr: y.MR.Addr(), Atomic: rdma.AtomicArgs{CompareAdd: 42, Swap: 9}}, 8, 8)
			x.WantSend("atomics", is(3, ok), is(4, ok))
		})
		for what, b := range map[[8]byte]uint64{[8]byte(x.Buf): 40, [8]byte(x.Buf[8:]): 42,
			[8]byte(y.Buf): 9} {
			if got := binary.NativeEndian.Uint64(what[:]); got != b {
				t.Errorf("a word is %d, want %d", got, b)
			}
		}
	})
}

// A Write with immediate data counts once, as packets and as a copy.
func TestWriteImmCounted(t *testing.T) {
	for _, copies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			allBeside = copies
			x, y := newFabric(t, vnictest.RoCELink{}).pair(rdma.RC, nil)
			allBeside = false
			const rounds = 3
			for i, n := range []int{0, 100, 5000} {
				y.Recv(uint64(i), 0, 8)
				x.Post(rdma.SendWR{ID: uint64(i), Op: rdma.OpWriteImm, RemoteAddr: y.MR.Addr(),
					RKey: y.MR.RKey()}, 0, n)
				x.WantSend("written", is(uint64(i), ok))
				y.WantRecv("told", is(uint64(i), ok))
			}
			if c := y.QP.Counted(); c.Receives != rounds || c.InWrites != rounds ||
				c.InImmediates != rounds || c.ReceivedOctets != 5100 {
				t.Errorf("copied %t: counted %+v", copies, c)
			}
		})
	}
}

// What something is amiss with goes as packets, and what comes behind it is copied again.
func TestNotCopied(t *testing.T) {
	onNear(t, rdma.RC, nil, func(t *testing.T, p nearPair) {
		x, y := p.x, p.y
		p.want(t, "no receive", 6, 1, func() {
			x.Send(1, 0, 5000) // two packets and an RNR NAK, then two packets and an ACK
			x.Write(2, 0, 64, y, 0)
			y.Recv(1, 0, 5000)
			x.WantSend("once there is one", is(1, ok), is(2, ok))
			y.WantRecv("once there is one", is(1, ok))
		})
	})
}

// Whoever goes away is gone: its peer's requests are not answered, and a new connection is one.
func TestBesideGone(t *testing.T) {
	onNear(t, rdma.RC, func(a *rdma.QPAttr) { a.RetryCount = 1 }, func(t *testing.T, p nearPair) {
		x, y := p.x, p.y
		for i, end := range []func(){
			func() { y.Move(rdma.QPError, rdma.QPAttr{}, 0); y.Move(rdma.QPReset, rdma.QPAttr{}, 0) },
			func() { y.Move(rdma.QPReset, rdma.QPAttr{}, 0) },
			func() { y.QP.Close() },
		} {
			end()
			x.Write(2, 0, 64, y, 0)
			x.WantSend("nobody is there", is(2, rdma.WCRetryExc))
			x.Move(rdma.QPReset, rdma.QPAttr{}, 0)
			if i < 2 {
				vnictest.ConnectByNumber(t, x, y, func(a *rdma.QPAttr) { a.RetryCount = 1 })
				p.greet(t)
				p.want(t, "connected anew", 0, 1, func() {
					x.Write(3, 0, 64, y, 0)
					x.WantSend("connected anew", is(3, ok))
				})
			}
		}
	})
}

// With path MTUs or numbers that differ, or rights that are missing, nothing is copied.
func TestBesideMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allBeside = true
		f := newFabric(t, vnictest.RoCELink{})
		allBeside = false
		for _, e := range []struct {
			why    string
			change func(a *rdma.QPAttr) // of y
			status rdma.WCStatus
		}{
			{"an MTU of its own", func(a *rdma.QPAttr) { a.PathMTU = rdma.MTU1024 }, ok},
			{"another PSN", func(a *rdma.QPAttr) { a.RQPSN++ }, rdma.WCRetryExc},
			{"another's number", func(a *rdma.QPAttr) { a.DestQPN ^= 0x800 }, rdma.WCRetryExc},
		} {
			x, y := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, f.b,
				vnictest.PeerConfig{})
			a, b := vnictest.Attrs(t, x, y, 1), vnictest.Attrs(t, y, x, 1)
			a.RetryCount = 1
			e.change(&b)
			x.ToRTS(a)
			y.ToRTS(b)
			for i := range uint64(3) {
				x.Write(i, 0, 8, y, 0)
				x.WantSend(e.why, is(i, e.status))
				if e.status != ok {
					break
				}
			}
			if n := f.a.Device().DevInfo().Packets.Copied; n != 0 {
				t.Errorf("%s: %d messages are copied", e.why, n)
			}
		}
	})
}

// Memory that can block is for its own context's goroutines: what is there, or goes there, goes as
// packets, and the rest is copied, also by who posts in such a context.
func TestBesideMode0(t *testing.T) {
	onNear(t, rdma.RC, nil, func(t *testing.T, p nearPair) {
		h := &hanging{b: make([]byte, 20000)}
		if err := p.b.AllowBlocking(); err != nil {
			t.Fatal(err)
		}
		y, m := staged(t, p.b, h)
		x := vnictest.NewPeer(t, p.a, vnictest.PeerConfig{})
		vnictest.ConnectByNumber(t, x, y, nil)
		p.x, p.y = x, y
		p.greet(t)
		fill(x.Buf, 1)
		sge := []rdma.SGE{{Addr: m.Addr(), Length: 20000, LKey: m.LKey()}}
		p.want(t, "into it", 6+6, 0, func() {
			x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, RemoteAddr: m.Addr(), RKey: m.RKey()}, 0, 20000)
			x.WantSend("written", is(1, ok))
			if err := y.QP.PostRecv(&rdma.RecvWR{ID: 2, SGEs: sge}); err != nil {
				t.Fatal(err)
			}
			x.Send(2, 0, 20000)
			x.WantSend("sent", is(2, ok))
			y.WantRecv("sent", is(2, ok))
		})
		if !bytes.Equal(h.b, x.Buf[:20000]) {
			t.Error("other octets")
		}
		fill(h.b, 9)
		p.want(t, "out of it", 6, 0, func() {
			y.Post(rdma.SendWR{ID: 3, Op: rdma.OpWrite, SGEs: sge, RemoteAddr: x.MR.Addr(),
				RKey: x.MR.RKey()}, 0, 0)
			y.WantSend("written", is(3, ok))
		})
		if !bytes.Equal(h.b, x.Buf[:20000]) {
			t.Error("other octets")
		}
		calls := h.calls.Load()
		p.want(t, "beside it", 0, 3, func() {
			y.Recv(4, 0, 20000)
			x.Send(4, 0, 20000)
			y.Write(5, 0, 20000, x, 0)
			y.Read(6, 0, 20000, x, 0)
			x.WantSend("copied", is(4, ok))
			y.WantRecv("copied", is(4, ok))
			y.WantSend("copied", is(5, ok), is(6, ok))
		})
		if h.calls.Load() != calls {
			t.Error("memory that can block was touched")
		}
	})
}

// Both ends of connections send, write and read at once, while one is asked for its attributes,
// which has packets go on: each octet arrives, each request completes once and in order.
func TestBesideStress(t *testing.T) {
	for _, devices := range []int{1, 2} {
		t.Run(fmt.Sprint(devices), func(t *testing.T) {
			n := vnictest.NewNet()
			n.Plain, n.Beside = true, new(vnic.Beside)
			c, d := n.Pair(t, vnictest.RoCE)
			if devices == 1 {
				d = c
			}
			a, b := vnictest.Open(t, c, vnic.ContextConfig{}), vnictest.Open(t, d, vnic.ContextConfig{})
			var wg, asking sync.WaitGroup
			stop := make(chan struct{})
			for pair := range 3 {
				x, y := vnictest.NewPeer(t, a, vnictest.PeerConfig{}), vnictest.NewPeer(t, b,
					vnictest.PeerConfig{})
				vnictest.ConnectByNumber(t, x, y, func(a *rdma.QPAttr) { a.MinRNRTimer, a.Timeout = 1, 12 })
				for side, p := range []*vnictest.Peer{x, y} {
					fill(p.Buf[out:written], byte(side))
				}
				for side, e := range [][2]*vnictest.Peer{{x, y}, {y, x}} {
					wg.Go(func() { talk(t, e[0], e[1], uint64(pair*2+side)) })
				}
				asking.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(100 * time.Microsecond): // now and then
							if _, err := y.QP.Query(); err != nil {
								t.Error(err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			close(stop)
			asking.Wait()
			if n := c.DevInfo().Packets.Copied; n == 0 {
				t.Error("nothing is copied")
			}
		})
	}
}

// Datagrams are copied, with the header that their packets would have had, unless something is in
// the way.
func TestDatagramsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allBeside = true
		a, b := roceHosts(t)
		allBeside = false
		x, y := newDatagrammer(t, a, vnictest.PeerConfig{}), newDatagrammer(t, b, vnictest.PeerConfig{})
		fill(x.Buf, 1)
		h := x.ah("10.0.0.2")
		p := nearPair{fabric: &fabric{a: a, b: b}}
		for _, e := range []struct {
			why             string
			n, recv         int
			change          func(*rdma.Datagram)
			packets, copied uint64
		}{
			{"as it should be", 1000, 1040, nil, 0, 1},
			{"no octets", 0, 40, nil, 0, 1},
			{"the queue pair's own Q_Key", 64, 104, func(d *rdma.Datagram) { d.QKey = 1 << 31 }, 0, 1},
			{"a receive that is too short", 64, 103, nil, 1, 0},
			{"another Q_Key", 64, 0, func(d *rdma.Datagram) { d.QKey++ }, 1, 0},
			{"nobody's number", 64, 0, func(d *rdma.Datagram) { d.QPN ^= 0x800 }, 1, 0},
		} {
			p.want(t, e.why, e.packets, e.copied, func() {
				if e.recv > 0 {
					y.Recv(7, 0, e.recv)
				}
				to := rdma.Datagram{AH: h.Handle(), QPN: y.QP.Num(), QKey: udQKey}
				if e.change != nil {
					e.change(&to)
				}
				x.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, To: to}, 0, e.n)
				x.WantSend(e.why, is(1, ok))
				if e.copied == 0 {
					return
				}
				wc := y.WantRecv(e.why, is(7, ok))[0]
				if int(wc.ByteLen) != grhLen+e.n || wc.SrcQP != x.QP.Num() || wc.Flags != rdma.WCGRH ||
					!bytes.Equal(y.Buf[grhLen:grhLen+e.n], x.Buf[:e.n]) {
					t.Errorf("%s: %+v, or other octets", e.why, wc)
				}
			})
		}
	})
}

// While something of a queue pair is under way as packets its peer answers as packets, too: what is
// copied would overtake the ACK, and the answer to a Send completes before the Send. ROCE-054.
func TestNotCopiedPastACK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allBeside = true
		f := newFabric(t, vnictest.RoCELink{Delay: 10 * time.Millisecond})
		allBeside = false
		p := nearPair{fabric: f}
		p.x, p.y = f.pair(rdma.RC, func(a *rdma.QPAttr) { a.MinRNRTimer, a.Timeout = 1, 20 })
		p.greet(t)
		p.x.Recv(1, 0, 8)
		p.x.Send(2, 0, 8) // finds no receive, and is sent again after 20 ms
		time.Sleep(25 * time.Millisecond)
		p.y.Recv(3, 0, 8)
		time.Sleep(7 * time.Millisecond)
		p.y.WantRecv("received after 30 ms", is(3, ok))
		p.y.Send(4, 0, 8)
		time.Sleep(5 * time.Millisecond)
		p.x.WantNone("the ACK comes after 40 ms, and the answer is not before it")
		time.Sleep(10 * time.Millisecond)
		p.x.WantSend("acknowledged", is(2, ok))
		p.x.WantRecv("answered", is(1, ok))
		time.Sleep(50 * time.Millisecond)
		p.y.WantSend("acknowledged", is(4, ok))
		p.want(t, "nothing is under way", 0, 1, func() { p.x.Write(5, 0, 8, p.y, 0) })
		p.x.WantSend("copied", is(5, ok))
	})
}

// What is copied has turns as packets have, whatever the length of the messages: who posts many
// leaves the goroutine to others that wait for it.
func TestCopiedTurn(t *testing.T) {
	onNear(t, rdma.RC, nil, func(t *testing.T, p nearPair) {
		const n, most = 64, 256 << 10 // messages; link.TurnOctets
		r := &ring{room: n}
		x, y := onRing(t, p.a, r, rdma.RC, n), vnictest.NewPeer(t, p.b, vnictest.PeerConfig{})
		vnictest.ConnectByNumber(t, x, y, nil)
		write := rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.Signaled, RemoteAddr: y.MR.Addr(),
			RKey: y.MR.RKey(), SGEs: []rdma.SGE{{Addr: x.MR.Addr(), Length: 64 << 10, LKey: x.MR.LKey()}}}
		r.sq = append(r.sq, write)
		x.QP.Ring()
		y.Write(1, 0, 8, x, 0)
		y.WantSend("a first message", is(1, ok))
		p.x, p.y = x, y
		p.want(t, "in turns", 0, n-1, func() {
			for range n - 1 {
				r.sq = append(r.sq, write)
			}
			was, turns := x.QP.Counted().SentOctets, 0
			x.QP.RingBeside(func() bool {
				turns++
				if moved := x.QP.Counted().SentOctets - was; moved > most {
					t.Errorf("a turn has %d octets, want at most %d", moved, most)
				}
				return true
			})
			if turns != 1 {
				t.Errorf("%d turns, want 1", turns)
			}
		})
	})
}

// No memory is held while a datagram goes out as a packet, which can take a while: who deregisters
// it waits for the copies, and for nothing else.
func TestDatagramHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allBeside = true
		n := newRoCENet()
		allBeside = false
		var closed func()
		n.RoCE.Lost = func([]byte) bool {
			closed()
			return true
		}
		c, d := n.Pair(t, vnictest.RoCE)
		a, b := vnictest.Open(t, c, vnic.ContextConfig{}), vnictest.Open(t, d, vnic.ContextConfig{})
		x, y := newDatagrammer(t, a, vnictest.PeerConfig{}), newDatagrammer(t, b, vnictest.PeerConfig{})
		closed = func() {
			done := make(chan error)
			go func() { done <- y.MR.Close() }()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("the memory of a receive that has completed is held")
				go func() { <-done }()
			}
		}
		y.Recv(1, 0, 100)
		wr := rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled,
			To:   rdma.Datagram{AH: x.ah("10.0.0.2").Handle(), QPN: y.QP.Num(), QKey: udQKey},
			SGEs: []rdma.SGE{{Addr: x.MR.Addr(), Length: 8, LKey: x.MR.LKey()}}}
		if _, err := x.QP.PostSends([]rdma.SendWR{wr, wr}); err != nil { // the second finds no receive
			t.Fatal(err)
		}
		x.WantSend("sent", is(0, ok), is(0, ok))
		y.WantRecv("copied", is(1, ok))
	})
}

// Nor while packets of RC go out, which may run the peer, and a handler of its program's.
func TestPacketsHoldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newRoCENet()
		var closed func()
		n.RoCE.Lost = func([]byte) bool {
			if f := closed; f != nil {
				closed = nil
				f()
			}
			return false
		}
		c, d := n.Pair(t, vnictest.RoCE)
		a, b := vnictest.Open(t, c, vnic.ContextConfig{}), vnictest.Open(t, d, vnic.ContextConfig{})
		x := vnictest.NewPeer(t, a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, b, vnictest.PeerConfig{})
		vnictest.ConnectByNumber(t, x, y, nil)
		closed = func() {
			done := make(chan error)
			go func() { done <- x.MR.Close() }()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("the memory of a Send whose packets are made is held")
				go func() { <-done }()
			}
		}
		y.Recv(1, 0, 100)
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpSend}, 0, 100)
		x.WantSend("sent", is(2, ok))
		y.WantRecv("received", is(1, ok))
	})
}

// What would be copied goes as packets while somebody looks at a device, on connections that there
// are and on those that begin meanwhile, between two and within one.
func TestBesideWatched(t *testing.T) {
	onNear(t, rdma.RC, nil, func(t *testing.T, p nearPair) {
		x, y := p.x, p.y
		again := func() {
			for _, e := range []*vnictest.Peer{x, y} {
				e.Move(rdma.QPError, rdma.QPAttr{}, 0)
				e.Move(rdma.QPReset, rdma.QPAttr{}, 0)
			}
			vnictest.ConnectByNumber(t, x, y, nil)
			p.greet(t)
		}
		write := func() {
			x.Write(2, 0, 64, y, 0)
			x.WantSend("a Write", is(2, ok))
		}
		for _, c := range []*vnic.Context{p.a, p.b} {
			stop := c.Device().Watch()
			for _, begin := range []func(){synctest.Wait, again} {
				begin()
				p.want(t, "watched, a Write and its acknowledgement", 2, 0, write)
			}
			stop()
			stop()
			p.greet(t)
			p.want(t, "not watched any more", 0, 1, write)
			again()
			p.want(t, "not watched any more, connected anew", 0, 1, write)
		}
	})
}

// Datagrams between two devices are copied or packets as it is when each is sent, however long they
// have gone the same way.
func TestDatagramsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allBeside = true
		a, b := roceHosts(t)
		allBeside = false
		x, y := newDatagrammer(t, a, vnictest.PeerConfig{}), newDatagrammer(t, b, vnictest.PeerConfig{})
		p := nearPair{fabric: &fabric{a: a, b: b}}
		to := rdma.Datagram{AH: x.ah("10.0.0.2").Handle(), QPN: y.QP.Num(), QKey: udQKey}
		send := func() {
			y.Recv(7, 0, 104)
			x.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, To: to}, 0, 64)
			x.WantSend("sent", is(1, ok))
			y.WantRecv("sent", is(7, ok))
		}
		p.want(t, "at first", 0, 1, send)
		for _, c := range []*vnic.Context{a, b} {
			stop := c.Device().Watch()
			p.want(t, "watched", 1, 0, send)
			stop()
			p.want(t, "not watched any more", 0, 1, send)
		}
	})
}

// Two queue pairs of RoCE are near if they are RC ones of one device that know each other, nobody
// looks, and neither has had another connection since. What one reaches is what both agreed on.
func TestNearRoCE(t *testing.T) {
	for _, typ := range []rdma.QPType{rdma.RC, rdma.UC} {
		onNear(t, typ, nil, func(t *testing.T, p nearPair) {
			x, y := p.x.QP, p.y.QP
			want := func(why string, near bool) {
				t.Helper()
				if got := x.Near() == y && y.Near() == x; got != near ||
					!near && (x.Near() != nil || y.Near() != nil) {
					t.Errorf("%s: near %v, want %v", why, got, near)
				}
			}
			could := typ == rdma.RC && p.a.Device() == p.b.Device()
			want("connected", could)
			stop := p.a.Device().Watch()
			synctest.Wait()
			want("somebody looks", false)
			stop()
			synctest.Wait()
			want("nobody looks any more", could)
			if !could {
				return
			}
			const all = rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic
			if got := x.Reaches(y); got != all {
				t.Errorf("it reaches %v, want %v", got, all)
			}
			p.y.Move(rdma.QPRTS, rdma.QPAttr{Access: rdma.RemoteRead}, rdma.AttrAccess)
			if got := x.Reaches(y); got != rdma.RemoteRead {
				t.Errorf("it reaches %v, want what is left", got)
			}
			p.x.Move(rdma.QPSQD, rdma.QPAttr{}, 0)
			want("one sends no more", false)
			p.x.Move(rdma.QPRTS, rdma.QPAttr{}, 0)
			want("it goes on", true)
			p.x.Move(rdma.QPReset, rdma.QPAttr{}, 0)
			want("one is reset", false)
			p.x.ToRTS(vnictest.Attrs(t, p.x, p.y, 1))
			want("it has another connection", false)
		})
	}
}
