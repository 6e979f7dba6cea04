package vnic_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// ROCE-107: inline octets are taken by the post, though they go out, and out again, long after it;
// more than the queue pair takes are refused.
func TestRCInline(t *testing.T) {
	onLinks(t, func(t *testing.T, f *fabric) {
		x, y := f.pair(rdma.RC, nil)
		inline := []byte("inline data")
		for i := range uint64(20) {
			y.Recv(i, 0, 64)
			b := bytes.Clone(inline)
			x.Post(rdma.SendWR{ID: 2 * i, Op: rdma.OpWrite, Flags: rdma.Inline, Inline: b,
				RemoteAddr: y.MR.Addr() + 200, RKey: y.MR.RKey()}, 0, 0)
			x.Post(rdma.SendWR{ID: 2*i + 1, Op: rdma.OpSend, Flags: rdma.Inline, Inline: b}, 0, 0)
			clear(b)
			y.WantRecv("delivered", is(i, ok))
			x.WantSend("sent", is(2*i, ok), is(2*i+1, ok))
			for _, off := range []int{0, 200} {
				if !bytes.Equal(y.Buf[off:][:len(inline)], inline) {
					t.Errorf("at %d: %q", off, y.Buf[off:][:len(inline)])
				}
			}
			clear(y.Buf)
		}
		most := x.QP.Config().MaxInline
		wr := rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Inline, Inline: make([]byte, most+1)}
		if err := x.QP.PostSend(&wr); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("%d inline octets where %d are taken: %v", most+1, most, err)
		}
	})
}

// ROCE-108: messages are gathered from several elements and scattered over others; elements without
// octets are skipped.
func TestRCGather(t *testing.T) {
	onLinks(t, func(t *testing.T, f *fabric) {
		x, y := f.pair(rdma.RC, nil)
		refill(x, 1)
		refill(y, 2)
		from := []rdma.SGE{x.SGE(7, 5000), x.SGE(0, 0), x.SGE(30000, 1), x.SGE(20000, 4099)}
		want := slices.Concat(x.Buf[7:5007], x.Buf[30000:30001], x.Buf[20000:24099])
		into := []rdma.SGE{y.SGE(1, 0), y.SGE(50001, 3), y.SGE(40001, 4096), y.SGE(10, 9000)}
		got := func() []byte {
			return slices.Concat(y.Buf[50001:50004], y.Buf[40001:44097], y.Buf[10:9010])
		}
		if err := y.QP.PostRecv(&rdma.RecvWR{ID: 1, SGEs: into}); err != nil {
			t.Fatal(err)
		}
		post := func(wr rdma.SendWR) {
			t.Helper()
			wr.SGEs, wr.Flags, wr.RKey = from, rdma.Signaled, y.MR.RKey()
			if err := x.QP.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
			x.WantSend("gathered", is(wr.ID, ok))
		}
		behind := bytes.Clone(y.Buf[len(want)-4099+10 : 9010])
		post(rdma.SendWR{ID: 2, Op: rdma.OpSend})
		if wc := y.WantRecv("scattered", is(1, ok))[0]; int(wc.ByteLen) != len(want) ||
			!bytes.Equal(got(), append(bytes.Clone(want), behind...)) {
			t.Errorf("a Send of %d octets: %+v, or other octets", len(want), wc)
		}
		post(rdma.SendWR{ID: 3, Op: rdma.OpWrite, RemoteAddr: y.MR.Addr() + 15000})
		if !bytes.Equal(y.Buf[15000:][:len(want)], want) {
			t.Error("a Write has other octets")
		}
		refill(y, 3)
		post(rdma.SendWR{ID: 4, Op: rdma.OpRead, RemoteAddr: y.MR.Addr() + 100})
		if !bytes.Equal(slices.Concat(x.Buf[7:5007], x.Buf[30000:30001], x.Buf[20000:24099]),
			y.Buf[100:][:len(want)]) {
			t.Error("a Read has other octets")
		}
	})
}

// fired reports whether an Arm of cq has had its event by now.
func fired(cq *vnic.CQ) bool {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	synctest.Wait()
	return cq.Wait(gone) == nil
}

// RVB-030: a CQ that is armed for solicited completions has its event for a message that was sent
// so, of every type of queue pair, and for any that failed; for another it has none.
func TestRoCESolicited(t *testing.T) {
	for _, typ := range []rdma.QPType{rdma.RC, rdma.UC, rdma.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFabric(t, vnictest.RoCELink{})
				var x, y *vnictest.Peer
				var to rdma.Datagram
				if typ == rdma.UD {
					from := newDatagrammer(t, f.a, vnictest.PeerConfig{})
					x, y = from.Peer, newDatagrammer(t, f.b, vnictest.PeerConfig{}).Peer
					to = rdma.Datagram{AH: from.ah("10.0.0.2").Handle(), QPN: y.QP.Num(), QKey: udQKey}
				} else {
					x, y = f.pair(typ, nil)
				}
				ops := []rdma.SendWR{{Op: rdma.OpSend}, {Op: rdma.OpSendImm}}
				if typ != rdma.UD {
					ops = append(ops, rdma.SendWR{Op: rdma.OpWriteImm, RemoteAddr: y.MR.Addr(),
						RKey: y.MR.RKey()})
				}
				for i, wr := range ops {
					wr.To = to
					for _, flags := range []rdma.SendFlags{0, rdma.Solicited} {
						y.Recv(uint64(i), 0, 64)
						if err := y.RecvCQ.Arm(true); err != nil {
							t.Fatal(err)
						}
						wr.ID, wr.Flags = uint64(i), flags
						x.Post(wr, 0, 8)
						x.WantSend("sent", is(uint64(i), ok))
						if got := fired(y.RecvCQ); got != (flags != 0) {
							t.Errorf("%v with flags %v: the event has come: %t", wr.Op, flags, got)
						}
						y.WantRecv("received", is(uint64(i), ok))
					}
				}
				y.Recv(9, 0, 64)
				if err := y.RecvCQ.Arm(true); err != nil {
					t.Fatal(err)
				}
				if err := y.QP.ModifyState(rdma.QPError); err != nil {
					t.Fatal(err)
				}
				if !fired(y.RecvCQ) {
					t.Error("a receive that was flushed has no event")
				}
				y.WantRecv("flushed", is(9, flush))
			})
		})
	}
}

// RVB-031: an Arm has one event, for what completes behind it.
func TestRoCEArm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := newFabric(t, vnictest.RoCELink{}).pair(rdma.RC, nil)
		write := func(id uint64) {
			x.Write(id, 0, 8, y, 0)
			synctest.Wait()
		}
		arm := func() {
			if err := x.SendCQ.Arm(false); err != nil {
				t.Fatal(err)
			}
		}
		write(1)
		if fired(x.SendCQ) {
			t.Error("an event without an Arm")
		}
		arm()
		if fired(x.SendCQ) {
			t.Error("an event for what was there before the Arm")
		}
		write(2)
		write(3)
		if !fired(x.SendCQ) {
			t.Error("no event for what has completed behind the Arm")
		}
		if fired(x.SendCQ) {
			t.Error("two events for one Arm")
		}
		write(4)
		if fired(x.SendCQ) {
			t.Error("an event, and no Arm since the last one")
		}
		arm()
		arm()
		write(5)
		if !fired(x.SendCQ) || fired(x.SendCQ) {
			t.Error("armed twice, the CQ has not one event")
		}
		x.WantSend("all of them", is(1, ok), is(2, ok), is(3, ok), is(4, ok), is(5, ok))
	})
}

// RVB-036: a region that a window is bound to stays, whatever type the window is of.
func TestRoCERegionBusy(t *testing.T) {
	for _, typ := range []rdma.MWType{rdma.MWType1, rdma.MWType2} {
		t.Run(fmt.Sprint("type ", typ), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFabric(t, vnictest.RoCELink{})
				x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
				y := vnictest.NewPeer(t, f.b, vnictest.PeerConfig{Access: vnictest.Full | rdma.MWBind})
				vnictest.ConnectByNumber(t, x, y, nil)
				w, key := window(t, y, typ, 0, 100, rdma.RemoteRead)
				x.Post(rdma.SendWR{ID: 1, Op: rdma.OpRead, RemoteAddr: y.MR.Addr(), RKey: key}, 0, 100)
				x.WantSend("through the window", is(1, ok))
				if err := y.MR.Close(); !isErr(err, rdma.ErrBusy) {
					t.Errorf("closed below a window: %v", err)
				}
				x.Post(rdma.SendWR{ID: 2, Op: rdma.OpRead, RemoteAddr: y.MR.Addr(), RKey: key}, 0, 100)
				x.WantSend("the refusal has changed nothing", is(2, ok))
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				if err := y.MR.Close(); err != nil {
					t.Errorf("without the window: %v", err)
				}
			})
		})
	}
}

// RVB-038: the limit and size of a shared receive queue, and that it stays while a queue pair takes
// from it.
func TestRoCESRQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t, vnictest.RoCELink{})
		p := newPool(t, f.b, srqConfig(4, -1))
		x := vnictest.NewPeer(t, f.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, f.b, p.config())
		vnictest.ConnectByNumber(t, x, y, nil)
		limit := func(why string, want int) {
			t.Helper()
			if n, err := p.Limit(); n != want || err != nil {
				t.Errorf("%s: the limit is %d, %v, want %d", why, n, err, want)
			}
		}
		limit("a new SRQ", 0)
		p.post(t, 0, 1, 2, 3)
		if err := p.PostRecv(p.wr(4)); !isErr(err, rdma.ErrQueueFull) {
			t.Errorf("a receive more than there is room for: %v", err)
		}
		if err := p.SetLimit(5); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("a limit above the size: %v", err)
		}
		if err := p.SetLimit(3); err != nil {
			t.Fatal(err)
		}
		limit("set", 3)
		for i := range uint64(2) {
			x.Send(i, 0, 8)
			x.WantSend("sent", is(i, ok))
			y.WantRecv("taken", is(i, ok))
			synctest.Wait()
			if i == 0 {
				noEvent(t, f.b)
				limit("three are left", 3)
			}
		}
		if ev := event(t, f.b); ev.Type != rdma.EventSRQLimitReached || ev.Object != p.Num() {
			t.Errorf("two are left: event %+v", ev)
		}
		limit("the event has come", 0)
		if err := p.Close(); !isErr(err, rdma.ErrBusy) {
			t.Errorf("closed below a queue pair: %v", err)
		}
		x.Send(2, 0, 8)
		x.WantSend("the refusal has changed nothing", is(2, ok))
		y.WantRecv("taken", is(2, ok))
		if err := y.QP.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("without the queue pair: %v", err)
		}
	})
}
