package vnic_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// sibling is one more QP of y's protection domain, connected to a new peer of e.a.
func (e *env) sibling(y *vnictest.Peer) (x2, y2 *vnictest.Peer) {
	e.t.Helper()
	z := *y
	cfg := y.QP.Config()
	qp, err := y.PD.NewQP(vnic.QPOptions{QPConfig: cfg})
	if err != nil {
		e.t.Fatal(err)
	}
	z.QP = qp
	x2 = vnictest.NewPeer(e.t, e.a, vnictest.PeerConfig{})
	vnictest.Connect(e.t, x2, &z)
	return x2, &z
}

// bindablePair is plain, with a buffer of y that windows can be bound to.
func (e *env) bindablePair() (x, y *vnictest.Peer) {
	e.t.Helper()
	return e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{Access: bindable})
}

func localInv(key uint32) rdma.SendWR {
	return rdma.SendWR{ID: 77, Op: rdma.OpLocalInv, InvKey: key}
}

// access asks for n octets at addr under key, and says how it was answered.
func (e *env) access(x *vnictest.Peer, op rdma.Opcode, addr uint64, key uint32,
	n int) rdma.WCStatus {
	e.t.Helper()
	x.Post(rdma.SendWR{ID: 5, Op: op, RemoteAddr: addr, RKey: key}, 0, n)
	if op == rdma.OpWrite { // the answer to an empty Read comes behind it
		x.Post(rdma.SendWR{ID: 6, Op: rdma.OpRead}, 0, 0)
		wc := x.Next(x.SendCQ, 2)
		if wc[0].Status == ok {
			return wc[1].Status // it may have been on its way
		}
		return wc[0].Status
	}
	return x.Next(x.SendCQ, 1)[0].Status
}

func (e *env) wantAccess(why string, x *vnictest.Peer, op rdma.Opcode, addr uint64,
	key uint32, n int) {
	e.t.Helper()
	if s := e.access(x, op, addr, key, n); s != ok {
		e.t.Fatalf("%s: %v: %v", why, op, s)
	}
}

// wantRefused also says what ended both ends.
func (e *env) wantRefused(why string, x, y *vnictest.Peer, op rdma.Opcode, addr uint64, key uint32,
	n int, want term) {
	e.t.Helper()
	if s := e.access(x, op, addr, key, n); s == ok {
		e.t.Fatalf("%s: %v was carried out", why, op)
	}
	e.wantTerm(why, x.WantDone(why), true, want)
	e.wantTerm(why, y.WantDone(why), false, want)
}

// A window of type 2 is for one connection: on another of the same protection domain its key opens
// nothing and cannot be invalidated, neither by the peer nor from here. SEC-006, DDP-084, DDP-094,
// DDP-097, RDMAP-121, RDMAP-073, SEC-038.
func TestWindowOfOneStream(t *testing.T) {
	for name, try := range map[string]func(e *env, x, x2, y, y2 *vnictest.Peer, key uint32){
		"Write": func(e *env, x, x2, y, y2 *vnictest.Peer, key uint32) {
			e.wantRefused("another stream", x2, y2, rdma.OpWrite, y.MR.Addr(), key, 8, term{1, 1, 2})
		},
		"Read": func(e *env, x, x2, y, y2 *vnictest.Peer, key uint32) {
			e.wantRefused("another stream", x2, y2, rdma.OpRead, y.MR.Addr(), key, 8, term{0, 1, 3})
		},
		"Send with Invalidate": func(e *env, x, x2, y, y2 *vnictest.Peer, key uint32) {
			y2.Recv(1, 1000, 8)
			x2.Post(rdma.SendWR{ID: 9, Op: rdma.OpSendInv, InvKey: key}, 0, 8)
			e.wantTerm("another stream", y2.WantDone("over"), false, term{0, 1, 9})
		},
		"local invalidate": func(e *env, x, x2, y, y2 *vnictest.Peer, key uint32) {
			y2.Post(localInv(key), 0, 0)
			y2.WantSend("another QP's", is(77, rdma.WCLocQPOp))
			e.wantTerm("Q6", y2.WantDone("over"), false, term{0, 0, 0xff})
		},
	} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.bindablePair()
				x2, y2 := e.sibling(y)
				_, key := window(t, y, rdma.MWType2, 0, 100, rdma.RemoteRead|rdma.RemoteWrite)
				fill(x.Buf, 3)
				before := bytes.Clone(y.Buf)
				try(e, x, x2, y, y2, key)
				if !bytes.Equal(before, y.Buf) {
					t.Fatal("memory was changed")
				}
				e.wantAccess("its own stream", x, rdma.OpWrite, y.MR.Addr(), key, 100)
				e.wantAccess("its own stream", x, rdma.OpRead, y.MR.Addr(), key, 100)
				if !bytes.Equal(y.Buf[:100], x.Buf[:100]) {
					t.Fatal("the Write differs")
				}
			})
		})
	}
}

// A window of type 1 serves all QPs of its protection domain; binding it again ends the key before,
// binding it to nothing ends it at all; an invalidation does not.
func TestWindowType1(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.bindablePair()
		x2, y2 := e.sibling(y)
		w, k1 := window(t, y, rdma.MWType1, 0, 100, rdma.RemoteWrite)
		fill(x2.Buf, 1)
		e.wantAccess("its QP", x, rdma.OpWrite, y.MR.Addr(), k1, 10)
		e.wantAccess("another QP", x2, rdma.OpWrite, y.MR.Addr()+50, k1, 10)
		k2 := rdma.NextKey(k1)
		y2.Post(bindMW(y2, k2, 200, 100, rdma.RemoteRead), 0, 0)
		if wc := y2.WantSend("another QP binds it", is(regID, ok))[0]; wc.Op != rdma.WCBindMW {
			t.Errorf("opcode %v", wc.Op)
		}
		e.wantAccess("the new key", x, rdma.OpRead, y.MR.Addr()+200, k2, 100)
		e.wantRefused("the old key", x2, y2, rdma.OpWrite, y.MR.Addr(), k1, 1, term{1, 1, 0})
		unbind := rdma.SendWR{ID: 8, Op: rdma.OpBindMW, RKey: rdma.NextKey(k2)}
		y.Post(unbind, 0, 0)
		y.Post(unbind, 0, 0)
		y.WantSend("unbound, twice", is(8, ok), is(8, ok))
		if w.Bound() != nil {
			t.Error("still bound")
		}
		if err := y.MR.Close(); err != nil {
			t.Errorf("the region: %v", err)
		}
		e.wantRefused("the last key", x, y, rdma.OpRead, y.MR.Addr()+200, k2, 1, term{0, 1, 0})
	})
	onPaths(t, func(t *testing.T, e *env) {
		_, y := e.bindablePair()
		_, key := window(t, y, rdma.MWType1, 0, 100, rdma.RemoteWrite)
		y.Post(localInv(key), 0, 0)
		y.WantSend("not for type 1", is(77, rdma.WCLocQPOp))
	})
}

// What a window or a fast registration covers is exact to the octet, under the address and with the
// rights that were asked for, and not longer than it has to be. SEC-017, SEC-018, SEC-013, SEC-019,
// SEC-021, DDP-096.
func TestWindowRange(t *testing.T) {
	for _, fastMR := range []bool{false, true} {
		for _, tt := range []struct {
			name   string
			op     rdma.Opcode
			access rdma.Access
			at     uint64 // what the peer calls the first octet
			to     uint64
			n      int
			want   term // zero: allowed
		}{
			{"Write of all", rdma.OpWrite, rdma.RemoteWrite, 0, 0, 33, term{}},
			{"Read of all", rdma.OpRead, rdma.RemoteRead, 1 << 40, 1 << 40, 33, term{}},
			{"last octet of the address space", rdma.OpRead, rdma.RemoteRead, math.MaxUint64 - 33,
				math.MaxUint64 - 1, 1, term{}},
			{"Write of one more", rdma.OpWrite, rdma.RemoteWrite, 0, 0, 34, term{1, 1, 1}},
			{"Read of one more", rdma.OpRead, rdma.RemoteRead, 1 << 40, 1<<40 + 1, 33, term{0, 1, 1}},
			{"Write one below", rdma.OpWrite, rdma.RemoteWrite, 7, 6, 1, term{1, 1, 1}},
			{"Read without the right", rdma.OpRead, rdma.RemoteWrite, 0, 0, 1, term{0, 1, 2}},
			{"Write without the right", rdma.OpWrite, rdma.RemoteRead, 0, 0, 1, term{1, 1, 0}},
			{"wraps", rdma.OpWrite, rdma.RemoteWrite, 0, math.MaxUint64, 1, term{1, 1, 3}},
		} {
			t.Run(map[bool]string{false: "window/", true: "fast/"}[fastMR]+tt.name, func(t *testing.T) {
				onPaths(t, func(t *testing.T, e *env) {
					// The region itself is not open to peers at all.
					x, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{
						Access: rdma.LocalWrite | rdma.MWBind})
					fill(x.Buf, 1)
					fill(y.Buf, 9)
					var key uint32
					var wr rdma.SendWR
					if fastMR {
						f, _ := y.PD.NewFastMR(33)
						key = rdma.NextKey(f.RKey())
						wr = regMR(y, key, 1001, 33, tt.access|rdma.LocalWrite)
					} else {
						w, _ := y.PD.NewMW(rdma.MWType2)
						key = rdma.NextKey(w.RKey())
						wr = bindMW(y, key, 1001, 33, tt.access)
					}
					wr.RemoteAddr = tt.at
					y.Post(wr, 0, 0)
					y.WantSend("bound", is(regID, ok))
					want := bytes.Clone(y.Buf)
					if tt.want != (term{}) {
						e.wantRefused(tt.name, x, y, tt.op, tt.to, key, tt.n, tt.want)
					} else {
						e.wantAccess(tt.name, x, tt.op, tt.to, key, tt.n)
						off := 1001 + int(tt.to-tt.at)
						if tt.op == rdma.OpWrite {
							copy(want[off:], x.Buf[:tt.n])
						} else if !bytes.Equal(x.Buf[:tt.n], y.Buf[off:off+tt.n]) {
							t.Error("other octets were read")
						}
						y.Post(localInv(key), 0, 0)
						y.WantSend("revoked", is(77, ok))
						refused := map[rdma.Opcode]term{rdma.OpWrite: {1, 1, 0}, rdma.OpRead: {0, 1, 0}}[tt.op]
						e.wantRefused("at once", x, y, tt.op, tt.to, key, tt.n, refused)
					}
					if !bytes.Equal(want, y.Buf) {
						t.Error("other memory was changed")
					}
				})
			})
		}
	}
}

// A bind or a registration that cannot be fails, behind what was posted before, and ends the QP
// (Q6); what follows flushes, and the object is as it was.
func TestBindRefused(t *testing.T) {
	type objects struct {
		w1, w2  *vnic.MW
		f       *vnic.FastMR
		bound   uint32 // key of a window of type 2 that is bound
		foreign *vnictest.Peer
	}
	for name, wr := range map[string]func(y *vnictest.Peer, o *objects) rdma.SendWR{
		"key of nobody": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(y, 0x12345678, 0, 10, rdma.RemoteRead)
		},
		"key of a region": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(y, y.MR.RKey(), 0, 10, rdma.RemoteRead)
		},
		"another PD's window": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			w, _ := o.foreign.PD.NewMW(rdma.MWType1)
			return bindMW(y, w.RKey(), 0, 10, rdma.RemoteRead)
		},
		"another PD's region": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(o.foreign, o.w1.RKey(), 0, 10, rdma.RemoteRead)
		},
		"closed window": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			o.w1.Close()
			return bindMW(y, o.w1.RKey(), 0, 10, rdma.RemoteRead)
		},
		"closed region": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			m := y.Register(y.Buf, bindable)
			wr := bindMW(y, o.w1.RKey(), 0, 10, rdma.RemoteRead)
			wr.Range.LKey = m.LKey()
			m.Close()
			return wr
		},
		"register a window": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return regMR(y, o.w2.RKey(), 0, 10, rdma.RemoteRead)
		},
		"bind a fast region": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(y, o.f.RKey(), 0, 10, rdma.RemoteRead)
		},
		"type 2 is bound": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(y, rdma.NextKey(o.bound), 0, 10, rdma.RemoteRead)
		},
		"type 2 with 0 octets": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(y, o.w2.RKey(), 0, 0, rdma.RemoteRead)
		},
		"nothing": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return regMR(y, o.f.RKey(), 0, 0, rdma.RemoteRead)
		},
		"more than asked for": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return regMR(y, o.f.RKey(), 0, 101, rdma.RemoteRead)
		},
		"a window's memory": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			wr := bindMW(y, o.w1.RKey(), 0, 10, rdma.RemoteRead)
			wr.Range.LKey = o.bound
			return wr
		},
		"no MWBind": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			wr := bindMW(y, o.w1.RKey(), 0, 10, rdma.RemoteRead)
			wr.Range.LKey = y.Register(y.Buf, vnictest.Full).LKey()
			return wr
		},
		"write to what is not writable": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			wr := bindMW(y, o.w2.RKey(), 0, 10, rdma.RemoteWrite)
			wr.Range.LKey = y.Register(y.Buf, rdma.RemoteRead|rdma.MWBind).LKey()
			return wr
		},
		"local write to what is not writable": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			wr := regMR(y, o.f.RKey(), 0, 10, rdma.LocalWrite)
			wr.Range.LKey = y.Register(y.Buf, rdma.RemoteRead).LKey()
			return wr
		},
		"remote write without local write": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return regMR(y, o.f.RKey(), 0, 10, rdma.RemoteWrite)
		},
		"right that a window has not": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(y, o.w1.RKey(), 0, 10, rdma.LocalWrite)
		},
		"unknown right": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(y, o.w1.RKey(), 0, 10, 1<<20)
		},
		"one octet behind": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			return bindMW(y, o.w2.RKey(), len(y.Buf)-9, 10, rdma.RemoteRead)
		},
		"range wraps": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			wr := bindMW(y, o.w2.RKey(), 0, 10, rdma.RemoteRead)
			wr.Range.Length = math.MaxUint64
			return wr
		},
		"peer's addresses wrap": func(y *vnictest.Peer, o *objects) rdma.SendWR {
			wr := regMR(y, o.f.RKey(), 0, 10, rdma.RemoteRead)
			wr.RemoteAddr = math.MaxUint64 - 9
			return wr
		},
	} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.bindablePair()
				o := &objects{foreign: vnictest.NewPeer(t, e.b, vnictest.PeerConfig{Access: bindable})}
				o.w1, _ = y.PD.NewMW(rdma.MWType1)
				o.w2, _ = y.PD.NewMW(rdma.MWType2)
				o.f, _ = y.PD.NewFastMR(100)
				w, key := window(t, y, rdma.MWType2, 0, 50, rdma.RemoteRead)
				o.bound = key
				bad := wr(y, o)
				before := w.Bound()
				y.Read(1, 0, 8, x, 0)
				y.Post(bad, 0, 0)
				y.Send(2, 0, 8)
				if got := y.Next(y.SendCQ, 1); got[0].ID != 1 || got[0].Status != ok {
					t.Fatalf("what was before: %+v", got)
				}
				// The end of the connection, which is under way, takes the window's binding.
				if now := w.Bound(); o.w1.Bound() != nil || o.w2.Bound() != nil || o.f.Bound() != nil ||
					now != nil && now != before {
					t.Error("something was bound")
				}
				y.WantSend("in order", is(regID, rdma.WCMWBind), is(2, flush))
				e.wantTerm("Q6", y.WantDone("over"), false, term{0, 0, 0xff})
				e.wantTerm("there", x.WantDone("over"), true, term{0, 0, 0xff})
			})
		})
	}
}

// A window of type 2 ends with its connection, whoever ends it, and its key is not good on the next
// connection of the QP. The region can be closed then. SEC-006.
func TestWindowEndsWithStream(t *testing.T) {
	for name, end := range map[string]func(x, y *vnictest.Peer){
		"disconnect": func(x, y *vnictest.Peer) { x.Conn.Disconnect() },
		"abort":      func(x, y *vnictest.Peer) { y.QP.Abort() },
		"peer gone":  func(x, y *vnictest.Peer) { x.QP.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.bindablePair()
				w, key := window(t, y, rdma.MWType2, 0, 100, rdma.RemoteRead)
				w1, k1 := window(t, y, rdma.MWType1, 0, 100, rdma.RemoteRead)
				end(x, y)
				y.WantDone("over")
				e.settle()
				if w.Bound() != nil || w1.Bound() == nil {
					t.Fatalf("type 2 is bound: %v; type 1: %v", w.Bound() != nil, w1.Bound() != nil)
				}
				if y.QP.State() == rdma.QPError {
					if err := y.QP.ModifyState(rdma.QPIdle); err != nil {
						t.Fatal(err)
					}
				}
				x = vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
				vnictest.Connect(t, x, y)
				e.wantAccess("type 1", x, rdma.OpRead, y.MR.Addr(), k1, 10)
				if err := y.MR.Close(); !isErr(err, rdma.ErrBusy) {
					t.Errorf("close the region of a bound window: %v", err)
				}
				w1.Close()
				if err := y.MR.Close(); err != nil {
					t.Errorf("close the region: %v", err)
				}
				e.wantRefused("the key of the stream before", x, y, rdma.OpRead, y.MR.Addr(), key, 1,
					term{0, 1, 0})
			})
		})
	}
}

// Closing a QP, a window, a fast region: what stands on a region keeps it, and a PD keeps what is
// in it.
func TestRegionBusy(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		_, y := e.bindablePair()
		w, _ := window(t, y, rdma.MWType2, 0, 100, rdma.RemoteRead)
		f := fast(t, y, 0, 100, rdma.RemoteRead)
		for _, c := range []func() error{w.Close, f.Close} {
			if err := y.MR.Close(); !isErr(err, rdma.ErrBusy) {
				t.Errorf("close: %v", err)
			}
			if err := c(); err != nil {
				t.Error(err)
			}
			if err := c(); err != nil {
				t.Errorf("again: %v", err)
			}
		}
		w2, _ := window(t, y, rdma.MWType2, 0, 100, rdma.RemoteRead)
		y.QP.Close()
		if w2.Bound() != nil {
			t.Error("bound to a QP that is gone")
		}
		if err := y.MR.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := y.PD.Close(); !isErr(err, rdma.ErrBusy) {
			t.Errorf("free the PD of a window: %v", err)
		}
		w2.Close()
		if err := y.PD.Close(); err != nil {
			t.Errorf("free the PD: %v", err)
		}
		if _, err := y.PD.NewMW(rdma.MWType1); !isErr(err, rdma.ErrClosed) {
			t.Errorf("a window of a PD that is gone: %v", err)
		}
		if _, err := y.PD.NewFastMR(1); !isErr(err, rdma.ErrClosed) {
			t.Errorf("a fast region of a PD that is gone: %v", err)
		}
	})
	// An invalidation cannot take what a window stands on.
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.bindablePair()
		w, key := window(t, y, rdma.MWType1, 0, 100, rdma.RemoteRead)
		e.wantAccess("bound", x, rdma.OpRead, y.MR.Addr(), key, 1)
		y.Post(localInv(y.MR.LKey()), 0, 0)
		y.WantSend("refused", is(77, rdma.WCLocQPOp))
		if w.Bound() == nil {
			t.Error("unbound")
		}
	})
}

// A fast region is good for local and remote work between its registration and its invalidation,
// and again after another one. What is posted at once is carried out in order.
func TestFastRegistration(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		f, err := y.PD.NewFastMR(1000)
		if err != nil {
			t.Fatal(err)
		}
		key := f.RKey()
		for round := range 300 { // more than there are keys
			key = rdma.NextKey(key)
			fill(y.Buf, byte(round))
			reg := regMR(y, key, 100, 1000, vnictest.Full)
			reg.RemoteAddr = 1 << 50
			sge := []rdma.SGE{{Addr: 1<<50 + 10, Length: 20, LKey: key}}
			if n, err := y.QP.PostSends([]rdma.SendWR{
				reg,
				{ID: 1, Op: rdma.OpWrite, SGEs: sge, RemoteAddr: x.MR.Addr(), RKey: x.MR.RKey(),
					Flags: rdma.Signaled},
				{ID: 2, Op: rdma.OpRead, SGEs: sge, RemoteAddr: x.MR.Addr() + 500, RKey: x.MR.RKey(),
					Flags: rdma.Signaled},
			}); n != 3 {
				t.Fatal(err)
			}
			y.WantSend("used at once", is(1, ok), is(2, ok)) // reg was not signaled
			if f.LKey() != key || f.Addr() != 1<<50 {
				t.Fatalf("key %#x and address %#x, want %#x", f.LKey(), f.Addr(), key)
			}
			e.wantAccess("by the peer", x, rdma.OpRead, 1<<50, key, 100)
			if !bytes.Equal(x.Buf[:100], y.Buf[100:200]) {
				t.Fatal("the Read differs")
			}
			y.Post(localInv(key), 0, 0)
			y.Post(localInv(key), 0, 0)
			y.WantSend("gone, and gone already", is(77, ok), is(77, ok))
		}
		y.Post(localInv(rdma.NextKey(key)), 0, 0)
		y.WantSend("never a key of it, this round", is(77, rdma.WCLocQPOp))
	})
}

// A window's key is not for SGEs: it gives its owner nothing.
func TestWindowIsForPeers(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		_, y := e.bindablePair()
		_, key := window(t, y, rdma.MWType2, 0, 100, rdma.RemoteRead)
		y.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, SGEs: []rdma.SGE{
			{Addr: y.MR.Addr(), Length: 1, LKey: key}}}, 0, 0)
		y.WantSend("refused", is(1, rdma.WCLocProt))
	})
}

// What ends a key is complete when the copies of others through it are over, not before, and nobody
// waits for it: the QP's other work that does not depend on it goes on. SEC-014.
func TestEndOfKeyWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		typ rdma.MWType // 0: a fast region
		end func(x, y *vnictest.Peer, key uint32)
		wc  func(x, y *vnictest.Peer)
		own bool // the request is y's
	}{
		"local invalidate of a fast region": {0, func(_, y *vnictest.Peer, key uint32) {
			y.Post(localInv(key), 0, 0)
		},
			func(_, y *vnictest.Peer) { y.WantSend("done", is(77, ok), is(3, ok)) }, true},
		"local invalidate of a window": {rdma.MWType2, func(_, y *vnictest.Peer, key uint32) {
			y.Post(localInv(key), 0, 0)
		},
			func(_, y *vnictest.Peer) { y.WantSend("done", is(77, ok), is(3, ok)) }, true},
		"another binding": {rdma.MWType1, func(_, y *vnictest.Peer, key uint32) {
			y.Post(bindMW(y, rdma.NextKey(key), 5, 6, rdma.RemoteRead), 0, 0)
		}, func(_, y *vnictest.Peer) { y.WantSend("done", is(regID, ok), is(3, ok)) }, true},
		"unbinding": {rdma.MWType1, func(_, y *vnictest.Peer, key uint32) {
			y.Post(rdma.SendWR{ID: 77, Op: rdma.OpBindMW, RKey: key}, 0, 0)
		},
			func(_, y *vnictest.Peer) { y.WantSend("done", is(77, ok), is(3, ok)) }, true},
		"Send with Invalidate": {0, func(x, _ *vnictest.Peer, key uint32) {
			x.Post(rdma.SendWR{ID: 9, Op: rdma.OpSendInv, InvKey: key}, 0, 8)
			x.Send(10, 0, 4)
		}, func(x, y *vnictest.Peer) {
			x.WantSend("sent", is(9, ok), is(10, ok))
			wc := y.WantRecv("delivered in order", is(1, ok), is(2, ok))
			if wc[0].Flags&rdma.WCWithInv == 0 || wc[1].Flags&rdma.WCWithInv != 0 {
				panic("the wrong one says that it invalidated")
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.bindablePair()
				var m *vnic.MR
				var key uint32
				if tt.typ == 0 {
					f := fast(t, y, 100, 1000, vnictest.Full)
					m, key = f.Bound(), f.RKey()
				} else {
					var w *vnic.MW
					w, key = window(t, y, tt.typ, 100, 1000, rdma.RemoteRead)
					m = w.Bound()
				}
				y.Recv(1, 0, 8)
				y.Recv(2, 8, 8)
				end1, ok1 := vnic.Copy(m)
				end2, ok2 := vnic.Copy(m)
				if !ok1 || !ok2 {
					t.Fatal("no copy can be made")
				}
				tt.end(x, y, key)
				if tt.own {
					y.Send(3, 0, 4)
					x.Recv(4, 0, 8)
				}
				time.Sleep(time.Minute) // no timer takes it for a missing receive
				e.settle()
				y.WantNone("two copies are under way")
				if _, more := vnic.Copy(m); more {
					t.Fatal("one more copy can begin")
				}
				end1()
				e.settle()
				y.WantNone("one copy is under way")
				end2()
				tt.wc(x, y)
				y.WantState("well", rdma.QPRTS)
				x.WantState("well", rdma.QPRTS)
				if tt.typ == 0 {
					e.wantRefused("gone", x, y, rdma.OpRead, y.MR.Addr()+100, key, 1, term{0, 1, 0})
				}
			})
		})
	}
}

// A connection that ends while an invalidation waits flushes it; each request and receive completes
// once. Close of the object waits for the copy.
func TestEndOfKeyFlushed(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		f := fast(t, y, 0, 1000, vnictest.Full)
		end, _ := vnic.Copy(f.Bound())
		y.Recv(1, 0, 8)
		x.Post(rdma.SendWR{ID: 9, Op: rdma.OpSendInv, InvKey: f.RKey()}, 0, 8)
		e.settle()
		y.WantNone("waits")
		y.Post(localInv(f.RKey()), 0, 0)
		e.settle()
		y.WantNone("waits, too")
		y.QP.Abort()
		y.WantSend("flushed", is(77, flush))
		y.WantRecv("flushed", is(1, flush))
		closed := make(chan error, 1)
		go func() { closed <- f.Close() }()
		e.settle()
		select {
		case <-closed:
			t.Fatal("closed with a copy under way")
		default:
		}
		if err := y.MR.Close(); !isErr(err, rdma.ErrBusy) {
			t.Errorf("close the memory below: %v", err)
		}
		end()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := y.MR.Close(); err != nil {
			t.Error(err)
		}
		y.WantNone("once each")
	})
}

// Close returns when the copies under way are over, for each kind of key. SEC-014.
func TestCloseWaits(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		_, y := e.bindablePair()
		w, _ := window(t, y, rdma.MWType2, 0, 10, rdma.RemoteRead)
		f := fast(t, y, 0, 10, rdma.RemoteRead)
		m := y.Register(y.Buf, vnictest.Full)
		for name, k := range map[string]struct {
			m     *vnic.MR
			close func() error
		}{"region": {m, m.Close}, "window": {w.Bound(), w.Close}, "fast region": {f.Bound(), f.Close}} {
			end, _ := vnic.Copy(k.m)
			var closed [2]chan error
			for i := range closed {
				closed[i] = make(chan error, 1)
				go func() { closed[i] <- k.close() }()
			}
			e.settle()
			for i := range closed {
				select {
				case <-closed[i]:
					t.Errorf("%s: closed with a copy under way", name)
				default:
				}
			}
			end()
			for i := range closed {
				if err := <-closed[i]; err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
}

// Limits of windows and fast regions, and what cannot be allocated.
func TestKeyObjectLimits(t *testing.T) {
	n := vnictest.NewNet()
	d := n.Device(t, "vnic0", []string{"10.0.0.1/24"})
	c := vnictest.Open(t, d, vnic.ContextConfig{Limits: vnic.Limits{MW: 2, MR: 2, MRLen: 1000}})
	if a := c.Attr(); a.MaxMW != 2 {
		t.Errorf("MaxMW %d", a.MaxMW)
	}
	pd, err := c.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, nil, rdma.ErrLimit} {
		if _, err := pd.AllocMW(rdma.MWType2); !isErr(err, want) {
			t.Errorf("window %d: %v, want %v", i, err, want)
		}
	}
	if _, err := pd.AllocMW(3); !isErr(err, rdma.ErrInvalid) {
		t.Errorf("a window of type 3: %v", err)
	}
	for n, want := range map[uint64]error{0: rdma.ErrInvalid, 1001: rdma.ErrLimit} {
		if _, err := pd.AllocMR(n); !isErr(err, want) {
			t.Errorf("%d octets: %v, want %v", n, err, want)
		}
	}
	f, err := pd.AllocMR(1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pd.RegisterMemory(make([]byte, 1), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := pd.RegisterMemory(make([]byte, 1), 0); !isErr(err, rdma.ErrLimit) {
		t.Errorf("a third region: %v", err)
	}
	if _, err := pd.AllocMR(1); !isErr(err, rdma.ErrLimit) {
		t.Errorf("a third region, fast: %v", err)
	}
	f.Close()
	if _, err := pd.AllocMR(1); err != nil {
		t.Errorf("after Close: %v", err)
	}
}
