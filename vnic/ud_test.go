package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Of the tests' datagrams: the Q_Key, and what is in front of a receive.
const (
	udQKey = 0x11111111
	grhLen = 40
)

// A datagrammer is a UD queue pair that is RTS.
type datagrammer struct {
	*vnictest.Peer
	t *testing.T
}

func newDatagrammer(t *testing.T, c *vnic.Context, cfg vnictest.PeerConfig) datagrammer {
	t.Helper()
	cfg.QP.Type = rdma.UD
	p := vnictest.NewPeer(t, c, cfg)
	toRTS(t, p)
	return datagrammer{p, t}
}

// toRTS has a new UD queue pair RTS.
func toRTS(t testing.TB, p *vnictest.Peer) {
	t.Helper()
	for _, m := range []struct {
		a    rdma.QPAttr
		mask rdma.QPAttrMask
	}{
		{rdma.QPAttr{State: rdma.QPInit, Port: 1, QKey: udQKey},
			rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrQKey},
		{rdma.QPAttr{State: rdma.QPRTR}, 0},
		{rdma.QPAttr{State: rdma.QPRTS, SQPSN: 0xfffffe}, rdma.AttrSQPSN},
	} {
		if err := p.QP.Modify(&m.a, m.mask|rdma.AttrState); err != nil {
			t.Fatal(err)
		}
	}
}

// modify is Modify to a.State, with the attributes of mask.
func (d datagrammer) modify(a rdma.QPAttr, mask rdma.QPAttrMask) {
	d.t.Helper()
	if err := d.QP.Modify(&a, mask|rdma.AttrState); err != nil {
		d.t.Fatal(err)
	}
}

// gidIndex is that of an IPv4 or IPv6 address of the devices of roceHosts.
func gidIndex(to netip.Addr) uint8 {
	if to.Is4() {
		return 1
	}
	return 2
}

func (d datagrammer) ah(to string) rdma.AH {
	d.t.Helper()
	a := netip.MustParseAddr(to)
	h, err := d.PD.CreateAH(rdma.AHAttr{GID: rdma.GIDOf(a), GIDIndex: gidIndex(a), Port: 1,
		Global: true, TrafficClass: 0x68, HopLimit: 9})
	if err != nil {
		d.t.Fatal(err)
	}
	return h
}

// to posts a Send of n octets of d's buffer at off.
func (d datagrammer) to(h rdma.AH, qpn uint32, id uint64, off, n int) {
	d.t.Helper()
	d.Post(rdma.SendWR{ID: id, Op: rdma.OpSend, To: rdma.Datagram{AH: h.Handle(), QPN: qpn,
		QKey: udQKey}}, off, n)
}

// roceHosts are two devices of RoCE on a network of their own, opened.
func roceHosts(t *testing.T, opts ...vnictest.Option) (a, b *vnic.Context) {
	t.Helper()
	n := newRoCENet()
	opts = append([]vnictest.Option{func(c *vnic.Config) { c.RoCE, c.MTU = true, 1500 }}, opts...)
	one, two := n.Pair(t, opts...)
	return vnictest.Open(t, one, vnic.ContextConfig{}), vnictest.Open(t, two, vnic.ContextConfig{})
}

// onUDPaths runs body with two queue pairs, on two devices and on one; to is where the second is.
func onUDPaths(t *testing.T, body func(t *testing.T, x, y datagrammer, from, to string)) {
	for _, same := range []bool{false, true} {
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("one device %t, IPv6 %t", same, six), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := roceHosts(t)
					from, to := "10.0.0.1", "10.0.0.2"
					if six {
						from, to = "fd00::1", "fd00::2"
					}
					if same {
						b, to = a, from
					}
					body(t, newDatagrammer(t, a, vnictest.PeerConfig{}),
						newDatagrammer(t, b, vnictest.PeerConfig{}), from, to)
				})
			})
		}
	}
}

// ROCE-043, 175, 176, 179, 182, 186: datagrams arrive as they were sent, with the header of the
// network in front, and their completions say who has sent them.
func TestUD(t *testing.T) {
	onUDPaths(t, func(t *testing.T, x, y datagrammer, from, to string) {
		h := x.ah(to)
		fill(x.Buf, 3)
		for i, n := range []int{0, 1, 2, 3, 64, 1023, 1024} {
			clear(y.Buf)
			y.Recv(uint64(i), 0, 4096)
			x.to(h, y.QP.Num(), uint64(i), 7, n)
			x.WantSend("sent", is(uint64(i), ok))
			wc := y.WantRecv("received", is(uint64(i), ok))[0]
			if wc.SrcQP != x.QP.Num() || wc.Flags != rdma.WCGRH || int(wc.ByteLen) != grhLen+n ||
				wc.Op != rdma.WCRecv {
				t.Errorf("%d octets: %+v, from QP %d", n, wc, x.QP.Num())
			}
			if !bytes.Equal(y.Buf[grhLen:][:n], x.Buf[7:][:n]) || y.Buf[grhLen+n] != 0 {
				t.Errorf("%d octets: they differ", n)
			}
			src, dst := netip.MustParseAddr(from).AsSlice(), netip.MustParseAddr(to).AsSlice()
			addrs, tos, ttl := y.Buf[8:40], y.Buf[0]<<4|y.Buf[1]>>4, y.Buf[7]
			if len(src) == 4 {
				addrs, tos, ttl = y.Buf[32:40], y.Buf[21], y.Buf[28]
			}
			if !bytes.Equal(addrs, append(src, dst...)) || tos != 0x68 || ttl != 9 {
				t.Errorf("the header is % x", y.Buf[:40])
			}
		}
		y.Recv(1, 0, 100)
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpSendImm, Imm: 0x01020304, To: rdma.Datagram{AH: h.Handle(),
			QPN: y.QP.Num(), QKey: 1 << 31}}, 0, 12)
		x.WantSend("with immediate data, and the queue pair's own Q_Key", is(2, ok))
		wc := y.WantRecv("with immediate data", is(1, ok))[0]
		if wc.Imm != 0x01020304 || wc.Flags != rdma.WCGRH|rdma.WCWithImm || wc.ByteLen != grhLen+12 ||
			wc.Op != rdma.WCRecv {
			t.Errorf("immediate data: %+v", wc)
		}
		// Back to who has sent it, as programs do.
		x.Recv(3, 0, 100)
		attr, err := rdma.ReplyTo(y.Ctx, y.Buf[:grhLen])
		if err != nil {
			t.Fatal(err)
		}
		back, err := y.PD.CreateAH(attr)
		if err != nil {
			t.Fatal(err)
		}
		y.to(back, wc.SrcQP, 4, 0, 50)
		y.WantSend("back", is(4, ok))
		if wc := x.WantRecv("back", is(3, ok))[0]; wc.SrcQP != y.QP.Num() {
			t.Errorf("back: %+v", wc)
		}
	})
}

// ROCE-177, 180, 181: what cannot be delivered is dropped, and hurts nobody.
func TestUDDropped(t *testing.T) {
	onUDPaths(t, func(t *testing.T, x, y datagrammer, _, to string) {
		h := x.ah(to)
		drop := func(why string, d rdma.Datagram, n int) {
			t.Helper()
			d.AH = h.Handle()
			x.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, To: d}, 0, n)
			x.WantSend(why, is(1, ok))
			synctest.Wait()
			y.WantNone(why)
		}
		drop("no receive", rdma.Datagram{QPN: y.QP.Num(), QKey: udQKey}, 10)
		y.Recv(5, 0, grhLen+10)
		drop("another Q_Key", rdma.Datagram{QPN: y.QP.Num(), QKey: udQKey + 1}, 10)
		drop("nobody's number", rdma.Datagram{QPN: y.QP.Num() ^ 0x800, QKey: udQKey}, 10)
		drop("the number of groups", rdma.Datagram{QPN: 0xffffff, QKey: udQKey}, 10)
		drop("longer than the receive", rdma.Datagram{QPN: y.QP.Num(), QKey: udQKey}, 11)
		x.to(h, y.QP.Num(), 2, 0, 10)
		x.WantSend("fits", is(2, ok))
		y.WantRecv("fits", is(5, ok))
		// Those for nobody are sent, and come to no queue pair.
		p, q := x.Ctx.Device().DevInfo().Packets, y.Ctx.Device().DevInfo().Packets
		if p.Sent+p.Copied != 6 || q.Received+p.Copied != 3 || q.WrongQKey != 1 || q.WrongPKey != 0 {
			t.Errorf("one side has counted %+v, the other %+v", p, q)
		}
	})
}

// ROCE-175, 183: a request that cannot be sent takes the queue pair to SQE: what is behind it
// flushes, receives go on, and Modify has it send again.
func TestUDSendErrors(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(x datagrammer, wr *rdma.SendWR)
		want  rdma.WCStatus
	}{
		"longer than the MTU": {func(x datagrammer, wr *rdma.SendWR) {
			wr.SGEs = []rdma.SGE{x.SGE(0, 1025)}
		}, rdma.WCLocLen},
		"a key that is not there": {func(_ datagrammer, wr *rdma.SendWR) {
			wr.SGEs[0].LKey ^= 1
		}, rdma.WCLocProt},
		"no such address handle": {func(_ datagrammer, wr *rdma.SendWR) {
			wr.To.AH += 1 << 16
		}, rdma.WCLocQPOp},
		"the handle of another protection domain": {func(x datagrammer, wr *rdma.SendWR) {
			pd, err := x.Ctx.NewPD()
			if err != nil {
				x.t.Fatal(err)
			}
			h, err := pd.CreateAH(rdma.AHAttr{GID: rdma.GIDOf(netip.MustParseAddr("10.0.0.2")),
				GIDIndex: 1, Port: 1, Global: true})
			if err != nil {
				x.t.Fatal(err)
			}
			wr.To.AH = h.Handle()
		}, rdma.WCLocQPOp},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := roceHosts(t)
				x := newDatagrammer(t, a, vnictest.PeerConfig{})
				y := newDatagrammer(t, b, vnictest.PeerConfig{})
				h, back := x.ah("10.0.0.2"), y.ah("10.0.0.1")
				good := rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled,
					SGEs: []rdma.SGE{x.SGE(0, 100)},
					To:   rdma.Datagram{AH: h.Handle(), QPN: y.QP.Num(), QKey: udQKey}}
				bad := good
				bad.ID = 2
				bad.SGEs = append([]rdma.SGE(nil), good.SGEs...)
				c.spoil(x, &bad)
				y.Recv(11, 0, 200)
				y.Recv(12, 0, 200)
				x.Recv(13, 0, 200)
				x.Recv(14, 0, 200)
				for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpWriteImm, rdma.OpSendInv,
					rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpLocalInv, rdma.OpBindMW, rdma.OpRegMR} {
					other := good
					other.Op = op
					if err := x.QP.PostSend(&other); !errors.Is(err, rdma.ErrInvalid) {
						t.Errorf("post %v: %v", op, err)
					}
				}
				if n, err := x.QP.PostSends([]rdma.SendWR{good, bad, good}); n != 3 || err != nil {
					t.Fatal(n, err)
				}
				x.WantSend("one goes, one fails", is(1, ok), is(2, c.want), is(1, rdma.WCFlush))
				x.WantState("a Send has failed", rdma.QPSQE)
				y.WantRecv("the good one", is(11, ok))
				y.to(back, x.QP.Num(), 3, 0, 10)
				y.WantSend("to who is in SQE", is(3, ok))
				x.WantRecv("in SQE", is(13, ok))
				if err := x.QP.PostSend(&good); err != nil {
					t.Fatal(err)
				}
				x.WantSend("posted in SQE", is(1, rdma.WCFlush))
				x.modify(rdma.QPAttr{State: rdma.QPRTS}, 0)
				x.to(h, y.QP.Num(), 4, 0, 10)
				x.WantSend("in RTS again", is(4, ok))
				y.WantRecv("in RTS again", is(12, ok))
				x.modify(rdma.QPAttr{State: rdma.QPError}, 0)
				x.WantRecv("in Error", is(14, rdma.WCFlush))
			})
		})
	}
}

// In Init nothing is taken, and behind Reset nothing of before is there.
func TestUDStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := roceHosts(t)
		x := newDatagrammer(t, a, vnictest.PeerConfig{})
		y := newDatagrammer(t, b, vnictest.PeerConfig{})
		h := x.ah("10.0.0.2")
		y.Recv(1, 0, 100)
		y.modify(rdma.QPAttr{State: rdma.QPReset}, 0)
		y.modify(rdma.QPAttr{State: rdma.QPInit, Port: 1, QKey: 5},
			rdma.AttrPKeyIndex|rdma.AttrPort|rdma.AttrQKey)
		y.Recv(2, 0, 100)
		x.to(h, y.QP.Num(), 1, 0, 10)
		x.WantSend("to who is in Init", is(1, ok))
		synctest.Wait()
		y.WantNone("in Init")
		y.modify(rdma.QPAttr{State: rdma.QPRTR, QKey: udQKey}, rdma.AttrQKey)
		x.to(h, y.QP.Num(), 2, 0, 10)
		x.WantSend("to who is in RTR", is(2, ok))
		y.WantRecv("in RTR", is(2, ok))
		y.Recv(3, 0, 100)
		y.modify(rdma.QPAttr{State: rdma.QPRTS, QKey: 6}, rdma.AttrQKey|rdma.AttrSQPSN)
		x.to(h, y.QP.Num(), 3, 0, 10)
		x.WantSend("with the Q_Key of before", is(3, ok))
		synctest.Wait()
		y.WantNone("with the Q_Key of before")
		x.modify(rdma.QPAttr{State: rdma.QPSQD}, 0)
		x.to(h, y.QP.Num(), 4, 0, 10)
		synctest.Wait()
		x.WantNone("in SQD")
		y.modify(rdma.QPAttr{State: rdma.QPRTS, QKey: udQKey}, rdma.AttrQKey)
		x.modify(rdma.QPAttr{State: rdma.QPRTS}, 0)
		x.WantSend("in RTS again", is(4, ok))
		y.WantRecv("in RTS again", is(3, ok))
	})
}

// ROCE-184, RVB-040: what an address handle needs, how many there are, and that they end.
func TestAddressHandles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		one, _ := n.Pair(t, func(c *vnic.Config) { c.RoCE = true })
		c := vnictest.Open(t, one, vnic.ContextConfig{Limits: vnic.Limits{AH: 3}})
		x := newDatagrammer(t, c, vnictest.PeerConfig{})
		good := rdma.AHAttr{GID: rdma.GIDOf(netip.MustParseAddr("10.0.0.2")), GIDIndex: 1, Port: 1,
			Global: true, SL: 3}
		for name, tt := range map[string]struct {
			spoil func(*rdma.AHAttr)
			want  error
		}{
			"no GRH":         {func(a *rdma.AHAttr) { a.Global = false }, rdma.ErrInvalid},
			"port 0":         {func(a *rdma.AHAttr) { a.Port = 0 }, rdma.ErrInvalid},
			"port 2":         {func(a *rdma.AHAttr) { a.Port = 2 }, rdma.ErrInvalid},
			"an empty entry": {func(a *rdma.AHAttr) { a.GIDIndex = 9 }, rdma.ErrInvalid},
			"another family": {func(a *rdma.AHAttr) { a.GIDIndex = 2 }, rdma.ErrInvalid},
			"no address":     {func(a *rdma.AHAttr) { a.GID = rdma.GID{} }, rdma.ErrInvalid},
			"everybody": {func(a *rdma.AHAttr) {
				a.GID = rdma.GIDOf(netip.MustParseAddr("255.255.255.255"))
			}, rdma.ErrInvalid},
			"nobody": {func(a *rdma.AHAttr) {
				a.GID = rdma.GIDOf(netip.MustParseAddr("10.0.0.99"))
			}, syscall.EHOSTUNREACH},
		} {
			a := good
			tt.spoil(&a)
			if h, err := x.PD.CreateAH(a); !errors.Is(err, tt.want) || h != nil {
				t.Errorf("%s: %v, %v", name, h, err)
			}
		}
		var all []rdma.AH
		for range 3 {
			h, err := x.PD.CreateAH(good)
			if err != nil || h.Attr() != good {
				t.Fatal(h, err)
			}
			all = append(all, h)
		}
		if _, err := x.PD.CreateAH(good); !errors.Is(err, rdma.ErrLimit) {
			t.Errorf("one too many: %v", err)
		}
		x.to(all[0], 17, 1, 0, 10)
		x.WantSend("while it is there", is(1, ok))
		for _, h := range all {
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
		}
		x.to(all[0], 17, 2, 0, 10)
		x.WantSend("an address handle that is gone", is(2, rdma.WCLocQPOp))
		pd, err := c.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		h, err := pd.CreateAH(good)
		if err != nil {
			t.Fatal(err)
		}
		if err := pd.Close(); !errors.Is(err, rdma.ErrBusy) {
			t.Errorf("a protection domain with an address handle: %v", err)
		}
		h.Close()
		if err := pd.Close(); err != nil {
			t.Error(err)
		}
	})
	a, _ := vnictest.Pair(t)
	p := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{})
	if _, err := p.PD.CreateAH(rdma.AHAttr{}); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("on a device of iWARP: %v", err)
	}
}

// Who waits for a next hop that does not answer waits no longer when the device goes, nor when its
// owner does, who cannot shut the device down as long as it waits.
func TestWaitsForWays(t *testing.T) {
	lost := rdma.AHAttr{GID: rdma.GIDOf(netip.MustParseAddr("10.0.0.77")), GIDIndex: 1, Port: 1,
		Global: true}
	for call, wait := range map[string]func(x *vnictest.Peer) error{
		"CreateAH": func(x *vnictest.Peer) error {
			_, err := x.PD.CreateAH(lost)
			return err
		},
		"Modify": func(x *vnictest.Peer) error {
			return x.QP.Modify(&rdma.QPAttr{State: rdma.QPRTR, Path: lost, PathMTU: rdma.MTU1024,
				MaxDestRead: 1, MinRNRTimer: 1}, rdma.AttrState|vnictest.ToRTR)
		},
	} {
		for _, owner := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, owner %t", call, owner), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := vnictest.NewNet()
					one, _ := n.Pair(t, func(c *vnic.Config) { c.RoCE = true })
					n.Blackhole(lost.GID.Addr())
					life, end := context.WithCancel(context.Background())
					c := vnictest.Open(t, one, vnic.ContextConfig{Lifetime: life})
					x := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
					toInit(t, x)
					errs := make(chan error)
					begun := time.Now()
					go func() { errs <- wait(x) }()
					synctest.Wait()
					if !owner {
						c.Shutdown()
					}
					end()
					if err := <-errs; !errors.Is(err, rdma.ErrClosed) || time.Since(begun) != 0 {
						t.Errorf("%v after %v", err, time.Since(begun))
					}
				})
			})
		}
	}
}

// Who is not to wait is told that a next hop is looked for, and then that nobody answers, and his
// queue pair is where it was. RVB-006.
func TestImpatient(t *testing.T) {
	lost := rdma.AHAttr{GID: rdma.GIDOf(netip.MustParseAddr("10.0.0.77")), GIDIndex: 1, Port: 1,
		Global: true}
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		one, _ := n.Pair(t, func(c *vnic.Config) { c.RoCE = true })
		n.Blackhole(lost.GID.Addr())
		x := vnictest.NewPeer(t, vnictest.Open(t, one, vnic.ContextConfig{Impatient: true}),
			vnictest.PeerConfig{})
		toInit(t, x)
		near := lost
		near.GID = rdma.GIDOf(netip.MustParseAddr("10.0.0.1"))
		for i, call := range []func() error{
			func() error { _, err := x.PD.CreateAH(lost); return err },
			func() error {
				return x.QP.Modify(&rdma.QPAttr{State: rdma.QPRTR, Path: lost, PathMTU: rdma.MTU1024,
					MaxDestRead: 1, MinRNRTimer: 1}, rdma.AttrState|vnictest.ToRTR)
			},
		} {
			begun := time.Now()
			err, calls := call(), 1
			for ; errors.Is(err, syscall.EINPROGRESS); calls++ {
				if took := time.Since(begun); took > 11*time.Second {
					t.Fatalf("call %d: after %v it is still looked for", i, took)
				}
				h, err2 := x.PD.CreateAH(near) // others go on
				if err2 != nil || h.Close() != nil {
					t.Fatal(err2)
				}
				x.WantState("while it is looked for", rdma.QPInit)
				time.Sleep(100 * time.Millisecond)
				err = call()
			}
			if !errors.Is(err, syscall.ETIMEDOUT) || calls < 50 {
				t.Errorf("call %d: %v after %d calls", i, err, calls)
			}
		}
		x.WantState("nobody answers", rdma.QPInit)
	})
}

// ROCE-189 to ROCE-193, 195: what is sent to a group comes to every queue pair that is attached and
// has the Q_Key, on any device, the sender's own and the sender among them.
func TestMulticast(t *testing.T) {
	for _, group := range []string{"239.1.2.3", "ff15::1:3"} {
		t.Run(group, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := roceHosts(t)
				g := rdma.GIDOf(netip.MustParseAddr(group))
				x := newDatagrammer(t, a, vnictest.PeerConfig{})
				all := []datagrammer{x}
				for _, c := range []*vnic.Context{a, b, b} {
					all = append(all, newDatagrammer(t, c, vnictest.PeerConfig{}))
				}
				other := newDatagrammer(t, b, vnictest.PeerConfig{})
				other.modify(rdma.QPAttr{State: rdma.QPRTS, QKey: 5}, rdma.AttrQKey)
				outside := newDatagrammer(t, b, vnictest.PeerConfig{})
				h := x.ah(group)
				round := func(why string, members ...datagrammer) {
					t.Helper()
					fill(x.Buf[5000:], byte(len(why)))
					x.to(h, 0xffffff, 1, 5000, 500)
					x.WantSend(why, is(1, ok))
					for _, y := range members {
						wc := y.WantRecv(why, is(7, ok))[0]
						if wc.SrcQP != x.QP.Num() || wc.ByteLen != 540 || wc.Flags != rdma.WCGRH ||
							!bytes.Equal(y.Buf[40:540], x.Buf[5000:5500]) {
							t.Errorf("%s: %+v", why, wc)
						}
						y.Recv(7, 0, 1000)
					}
					synctest.Wait()
					for _, y := range append(all, other, outside) {
						y.WantNone(why)
					}
				}
				for _, y := range append(all, other, outside) {
					y.Recv(7, 0, 1000)
				}
				round("nobody is attached")
				for _, y := range append(all, other) {
					for range 2 { // the second time does nothing
						if err := y.QP.AttachMulticast(g); err != nil {
							t.Fatal(err)
						}
					}
				}
				round("all are", all...)
				x.to(h, all[2].QP.Num(), 1, 0, 10)
				x.WantSend("the number of a queue pair at the address of a group", is(1, ok))
				synctest.Wait()
				all[2].WantNone("the number of a queue pair at the address of a group")
				if err := all[2].QP.DetachMulticast(g); err != nil {
					t.Fatal(err)
				}
				round("one is not any more", x, all[1], all[3])
				if err := all[3].QP.Close(); !errors.Is(err, rdma.ErrBusy) {
					t.Errorf("destroy who is attached: %v", err)
				}
				round("it was not destroyed", x, all[1], all[3])
				if err := all[3].QP.DetachMulticast(g); err != nil {
					t.Fatal(err)
				}
				if err := all[3].QP.Close(); err != nil {
					t.Error(err)
				}
				round("and now it is", x, all[1])
				b.Shutdown()
				<-b.Done()
				round("a device is gone", x, all[1])
			})
		})
	}
}

// ROCE-192: what cannot be attached, and what is not.
func TestAttachRefused(t *testing.T) {
	a, _ := roceHosts(t)
	x := newDatagrammer(t, a, vnictest.PeerConfig{})
	rc := vnictest.NewPeer(t, a, vnictest.PeerConfig{})
	g := rdma.GIDOf(netip.MustParseAddr("239.1.2.3"))
	for why, err := range map[string]error{
		"no group":                 x.QP.AttachMulticast(rdma.GIDOf(netip.MustParseAddr("10.0.0.2"))),
		"RC":                       rc.QP.AttachMulticast(g),
		"detach RC":                rc.QP.DetachMulticast(g),
		"detach who is not":        x.QP.DetachMulticast(g),
		"detach from what is none": x.QP.DetachMulticast(rdma.GID{}),
	} {
		if !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", why, err)
		}
	}
	if err := x.QP.Close(); err != nil {
		t.Fatal(err)
	}
	if err := x.QP.AttachMulticast(g); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("a queue pair that is destroyed: %v", err)
	}
}

// ROCE-188: of what a datagram has in front of it only a header of IPv4 or IPv6 leads back, from
// the address that it came to, or from any if that was a group.
func TestReplyTo(t *testing.T) {
	a, _ := roceHosts(t)
	header := func(from, to string) []byte {
		src, dst := netip.MustParseAddr(from), netip.MustParseAddr(to)
		b := make([]byte, 40)
		if src.Is6() {
			b[0], b[1], b[2], b[3] = 0x61, 0x23, 0x45, 0x67
			copy(b[8:], src.AsSlice())
			copy(b[24:], dst.AsSlice())
			return b
		}
		copy(b[20:], []byte{0x45, 0x12, 0, 100, 0, 0, 0, 0, 64, 17})
		copy(b[32:], src.AsSlice())
		copy(b[36:], dst.AsSlice())
		sum := uint32(0)
		for i := 20; i < 40; i += 2 {
			sum += uint32(b[i])<<8 | uint32(b[i+1])
		}
		sum = ^(sum>>16 + sum&0xffff)
		b[30], b[31] = byte(sum>>8), byte(sum)
		return b
	}
	for _, tt := range []struct {
		from, to string
		want     rdma.AHAttr
	}{
		{"10.0.0.9", "10.0.0.1", rdma.AHAttr{GIDIndex: 1, TrafficClass: 0x12}},
		{"10.0.0.9", "239.1.1.1", rdma.AHAttr{GIDIndex: 1, TrafficClass: 0x12}},
		{"fd00::9", "fd00::1", rdma.AHAttr{GIDIndex: 2, TrafficClass: 0x12, FlowLabel: 0x34567}},
		{"fd00::9", "ff15::1", rdma.AHAttr{GIDIndex: 2, TrafficClass: 0x12, FlowLabel: 0x34567}},
		{"fe80::9", "ff15::1", rdma.AHAttr{TrafficClass: 0x12, FlowLabel: 0x34567}},
	} {
		tt.want.GID, tt.want.Port = rdma.GIDOf(netip.MustParseAddr(tt.from)), 1
		tt.want.Global = true
		got, err := rdma.ReplyTo(a, header(tt.from, tt.to))
		if err != nil || got != tt.want {
			t.Errorf("from %s to %s: %+v, %v, want %+v", tt.from, tt.to, got, err, tt.want)
		}
	}
	spoilt := header("10.0.0.9", "10.0.0.1")
	spoilt[39]++
	for why, b := range map[string][]byte{
		"nothing": nil, "cut": header("fd00::9", "fd00::1")[:39], "zeros": make([]byte, 40),
		"a wrong checksum": spoilt, "to somebody else": header("10.0.0.9", "10.0.0.2"),
	} {
		if got, err := rdma.ReplyTo(a, b); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %+v, %v", why, got, err)
		}
	}
}

// What was posted before an address handle is destroyed, or the queue pair itself, still goes out:
// mckey destroys both right behind its last post, which the RNIC may not have seen by then.
func TestUDSettled(t *testing.T) {
	for _, handleFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("address handle first %t", handleFirst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := roceHosts(t)
				y := newDatagrammer(t, b, vnictest.PeerConfig{})
				r := &ring{room: 64}
				x := datagrammer{onRing(t, a, r, rdma.UD, 8), t}
				toRTS(t, x.Peer)
				h := x.ah("10.0.0.2")
				for id := range uint64(5) {
					y.Recv(id, 0, 100)
					r.sq = append(r.sq, rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled,
						To:   rdma.Datagram{AH: h.Handle(), QPN: y.QP.Num(), QKey: udQKey},
						SGEs: []rdma.SGE{{Addr: x.MR.Addr(), Length: 10, LKey: x.MR.LKey()}}})
				}
				if handleFirst {
					if err := h.Close(); err != nil {
						t.Fatal(err)
					}
					if got := r.statuses(); !slices.Equal(got, make([]rdma.WCStatus, 5)) {
						t.Errorf("completed with %v", got)
					}
				}
				if err := x.QP.Close(); err != nil {
					t.Fatal(err)
				}
				y.WantRecv("sent before", is(0, ok), is(1, ok), is(2, ok), is(3, ok), is(4, ok))
			})
		})
	}
}
