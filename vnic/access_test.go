package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// term is a cause, layer/type/code.
type term struct{ layer, typ, code uint8 }

func (e *env) wantTerm(why string, err error, remote bool, want term) {
	e.t.Helper()
	var te *rdma.TerminateError
	if !errors.As(err, &te) {
		e.t.Fatalf("%s: the cause is %v, want a Terminate", why, err)
	}
	if te.Remote != remote || (term{te.Layer, te.Type, te.Code}) != want {
		e.t.Fatalf("%s: %v, want %d/%d/%02x (remote %v)", why, te, want.layer, want.typ,
			want.code, remote)
	}
}

// Each check of what a peer asks for, in the order of docs/decisions.md#access-checks, with its
// exact cause for a Write and for a Read; nothing is changed and both ends come to Error. SEC-005,
// -010 to -013,
// -019, -021; RFC 5041, section 7.1; RFC 5040, section 7.2.
func TestRemoteAccess(t *testing.T) {
	const base, length = 4096, 1000 // of the region in the middle of y's buffer
	for _, tt := range []struct {
		name        string
		access      rdma.Access
		key         func(y *vnictest.Peer, m *vnic.MR) uint32
		to          func(m *vnic.MR) uint64
		n           int
		write, read term
	}{
		{name: "row 1: unknown STag", key: func(y *vnictest.Peer, m *vnic.MR) uint32 {
			return m.RKey() ^ 0x100
		},
			write: term{1, 1, 0}, read: term{0, 1, 0}},
		{name: "row 1: key part differs", key: func(y *vnictest.Peer, m *vnic.MR) uint32 {
			return m.RKey() ^ 1
		},
			write: term{1, 1, 0}, read: term{0, 1, 0}},
		{name: "row 1: deregistered", key: func(y *vnictest.Peer, m *vnic.MR) uint32 {
			k := m.RKey()
			m.Close()
			return k
		},
			write: term{1, 1, 0}, read: term{0, 1, 0}},
		{name: "row 2: another PD", key: func(y *vnictest.Peer, _ *vnic.MR) uint32 {
			pd, _ := y.Ctx.AllocPD()
			m, _ := pd.RegisterMemory(y.Buf, vnictest.Full)
			return m.RKey()
		}, write: term{1, 1, 2}, read: term{0, 1, 3}},
		{name: "row 2 before row 3", key: func(y *vnictest.Peer, _ *vnic.MR) uint32 {
			pd, _ := y.Ctx.AllocPD()
			m, _ := pd.RegisterMemory(y.Buf, vnictest.Full)
			return m.RKey()
		}, to: func(*vnic.MR) uint64 { return math.MaxUint64 }, write: term{1, 1, 2},
			read: term{0, 1, 3}},
		{name: "row 3: TO wraps", to: func(*vnic.MR) uint64 { return math.MaxUint64 - 8 },
			write: term{1, 1, 3}, read: term{0, 1, 4}},
		{name: "row 3: exactly 2^64", to: func(*vnic.MR) uint64 { return math.MaxUint64 - 15 },
			write: term{1, 1, 3}, read: term{0, 1, 4}},
		{name: "row 3 before row 4", access: rdma.LocalWrite,
			to: func(*vnic.MR) uint64 { return math.MaxUint64 }, write: term{1, 1, 3}, read: term{0, 1, 4}},
		{name: "row 4: no remote right", access: rdma.LocalWrite, write: term{1, 1, 0},
			read: term{0, 1, 2}},
		{name: "row 4 before row 5", access: rdma.LocalWrite,
			to: func(m *vnic.MR) uint64 { return m.Addr() - 1 }, write: term{1, 1, 0}, read: term{0, 1, 2}},
		{name: "row 5: one octet below", to: func(m *vnic.MR) uint64 { return m.Addr() - 1 },
			write: term{1, 1, 1}, read: term{0, 1, 1}},
		{name: "row 5: one octet above", to: func(m *vnic.MR) uint64 { return m.Addr() + length - 15 },
			write: term{1, 1, 1}, read: term{0, 1, 1}},
		{name: "row 5: behind", to: func(m *vnic.MR) uint64 { return m.Addr() + length }, n: 1,
			write: term{1, 1, 1}, read: term{0, 1, 1}},
		{name: "row 5: longer than the region", n: length + 1, write: term{1, 1, 1}, read: term{0, 1, 1}},
	} {
		for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead} {
			t.Run(tt.name+"/"+op.String(), func(t *testing.T) {
				onPaths(t, func(t *testing.T, e *env) {
					x, y := e.plain()
					fill(y.Buf, 1)
					fill(x.Buf, 2)
					access := vnictest.Full
					if tt.access != 0 {
						access = tt.access
					}
					m := y.Register(y.Buf[base:base+length], access)
					addr, key, n := m.Addr(), m.RKey(), 16
					if tt.to != nil {
						addr = tt.to(m)
					}
					if tt.key != nil {
						key = tt.key(y, m)
					}
					if tt.n != 0 {
						n = tt.n
					}
					before, mine := bytes.Clone(y.Buf), bytes.Clone(x.Buf)
					y.Recv(50, 0, 10)
					x.Post(rdma.SendWR{ID: 1, Op: op, RemoteAddr: addr, RKey: key}, 0, n)

					want := tt.write
					if op == rdma.OpRead {
						want = tt.read
					}
					wc := x.Next(x.SendCQ, 1)[0]
					switch vendor := uint32(want.layer)<<12 | uint32(want.typ)<<8 | uint32(want.code); {
					case op == rdma.OpWrite && wc.Status == ok && !e.loop: // it was on its way already
					case wc.Status != rdma.WCRemAccess || wc.VendorErr != vendor:
						t.Fatalf("completion %v with vendor error %#x, want %v and %#x", wc.Status, wc.VendorErr,
							rdma.WCRemAccess, vendor)
					}
					e.wantTerm("the requester", x.WantDone("a refusal ends the connection"), true, want)
					e.wantTerm("the responder", y.WantDone("on both sides"), false, want)
					x.WantState("Q15", rdma.QPError)
					y.WantState("Q15", rdma.QPError)
					y.WantRecv("what was posted flushes", vnictest.Want{ID: 50, Status: flush})
					x.WantEvent("a Terminate came", rdma.EventQPFatal)
					y.WantEvent("an access was refused", rdma.EventQPAccessErr)
					if !bytes.Equal(before, y.Buf) || !bytes.Equal(mine, x.Buf) {
						t.Fatal("memory was changed")
					}
					r := y.QP.Info().Refused
					why := map[byte]mem.Why{'1': mem.NoRegion, '2': mem.Stranger, '3': mem.Outside,
						'4': mem.NoRight, '5': mem.Outside}[tt.name[len("row ")]]
					if r == nil || r.Key != key || r.Addr != addr || r.Why != why || x.QP.Info().Refused != nil {
						t.Errorf("%+v is said to be refused, and here %+v, want %s", r, x.QP.Info().Refused, why)
					}
				})
			})
		}
	}
}

// Zero-length Writes and Reads skip all checks: SEC-020.
func TestZeroLengthAccess(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, _ := e.plain()
		for i, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead} {
			x.Post(rdma.SendWR{ID: uint64(i), Op: op, RemoteAddr: math.MaxUint64, RKey: 0xdead}, 0, 0)
		}
		x.WantSend("legal", is(0, ok), is(1, ok))
		e.settle()
		x.WantState("still connected", rdma.QPRTS)
	})
}

// Local keys are checked too: SEC-004. The failing request says so, what follows flushes, what
// came before is done (Q6).
func TestLocalAccess(t *testing.T) {
	for _, tt := range []struct {
		name string
		sge  func(x *vnictest.Peer) rdma.SGE
		op   rdma.Opcode
	}{
		{"unknown key", func(x *vnictest.Peer) rdma.SGE { s := x.SGE(0, 9); s.LKey++; return s },
			rdma.OpSend},
		{"below", func(x *vnictest.Peer) rdma.SGE { s := x.SGE(0, 9); s.Addr--; return s }, rdma.OpWrite},
		{"above", func(x *vnictest.Peer) rdma.SGE { return x.SGE(len(x.Buf)-8, 9) }, rdma.OpSend},
		{"wraps", func(x *vnictest.Peer) rdma.SGE {
			s := x.SGE(0, 9)
			s.Addr = math.MaxUint64 - 3
			return s
		}, rdma.OpSend},
		{"another PD", func(x *vnictest.Peer) rdma.SGE {
			pd, _ := x.Ctx.AllocPD()
			m, _ := pd.RegisterMemory(x.Buf, vnictest.Full)
			return rdma.SGE{Addr: m.Addr(), Length: 9, LKey: m.LKey()}
		}, rdma.OpSend},
		{"Read into memory that may not be written", func(x *vnictest.Peer) rdma.SGE {
			m := x.Register(x.Buf, rdma.RemoteRead)
			return rdma.SGE{Addr: m.Addr(), Length: 9, LKey: m.LKey()}
		}, rdma.OpRead},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.plain()
				y.Recv(1, 0, 10)
				y.Recv(2, 0, 10)
				x.Send(10, 0, 5)
				x.Read(11, 0, 5, y, 0)
				wr := rdma.SendWR{ID: 12, Op: tt.op, SGEs: []rdma.SGE{tt.sge(x)}, RemoteAddr: y.MR.Addr(),
					RKey: y.MR.RKey()}
				x.Post(wr, 0, 0)
				x.Send(13, 0, 5)
				x.WantSend("in order", is(10, ok), is(11, ok), is(12, rdma.WCLocProt), is(13, flush))
				e.wantTerm("here", x.WantDone("over"), false, term{0, 0, 0xff})
				e.wantTerm("there", y.WantDone("over"), true, term{0, 0, 0xff})
				y.WantRecv("the first came, the second flushes", is(1, ok), is(2, flush))
				ev := rdma.EventQPFatal
				if tt.op == rdma.OpRead {
					ev = rdma.EventQPAccessErr // 15.4
				}
				x.WantEvent("", ev)
				y.WantEvent("", rdma.EventQPFatal)
			})
		})
	}
}

// The sink of a Read, or of an atomic, is there when it is posted and gone when the answer comes.
func TestSinkGone(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		if e.local() {
			return // there is no moment between
		}
		x, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{})
		m := x.Register(x.Buf[:100], vnictest.Full)
		e.hold(true)
		x.Post(rdma.SendWR{ID: 1, Op: rdma.OpRead, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
			SGEs: []rdma.SGE{{Addr: m.Addr(), Length: 9, LKey: m.LKey()}}}, 0, 0)
		x.Send(2, 0, 0)
		e.settle()
		m.Close()
		e.hold(false)
		x.WantSend("its sink is to blame", is(1, rdma.WCLocProt), is(2, flush))
		e.wantTerm("here", x.WantDone("over"), false, term{1, 0, 0})
		x.WantEvent("", rdma.EventQPAccessErr)
	})
}

// RDMAP-053, RDMAP-106: of requests that go out together one Read is refused. What was asked for
// before it is answered, and behind the first completion that failed, which is the cause, nothing
// succeeds: the peer has taken none of it, nor does the order tell anything else.
func TestRefusedReadInChain(t *testing.T) {
	read, send := rdma.SendWR{Op: rdma.OpRead}, rdma.SendWR{Op: rdma.OpSend}
	write, add := rdma.SendWR{Op: rdma.OpWrite}, rdma.SendWR{Op: rdma.OpFetchAdd}
	for _, tt := range []struct {
		name string
		n    int // octets of the good Read
		bad  rdma.SendWR
	}{
		{"a Read", 100, read}, {"a Read behind a long one", 1 << 20, read}, {"an atomic", 100, add},
	} {
		for _, signaled := range []rdma.SendFlags{0, rdma.Signaled} {
			t.Run(fmt.Sprintf("%s, signaled %t", tt.name, signaled != 0), func(t *testing.T) {
				onPaths(t, func(t *testing.T, e *env) {
					cfg := vnictest.PeerConfig{Buffer: 2 << 20, Param: rdma.ConnParam{Extensions: true}}
					x, y := e.pair(cfg, cfg)
					fill(y.Buf, 1)
					for i := range uint64(3) {
						y.Recv(100+i, 0, 10)
					}
					to := func(wr rdma.SendWR, id uint64, n int) rdma.SendWR {
						wr.ID, wr.Flags, wr.SGEs = id, signaled, []rdma.SGE{x.SGE(0, n)}
						wr.RemoteAddr, wr.RKey = y.MR.Addr(), y.MR.RKey()
						return wr
					}
					wrs := []rdma.SendWR{to(read, 1, tt.n), to(tt.bad, 2, 8), to(send, 3, 10),
						to(write, 4, 10), to(read, 5, 10), to(send, 6, 10)}
					wrs[1].RKey ^= 0x100
					wrs[3].RemoteAddr += 1 << 20 // over SCTP it may be placed ahead of what is before it
					e.settle()                   // the ready-to-receive message is out of the way
					if n, err := x.QP.PostSends(wrs); n != len(wrs) || err != nil {
						t.Fatalf("posted %d: %v", n, err)
					}
					if signaled != 0 {
						x.WantSend("asked for before it", is(1, ok))
					}
					x.WantSend("the cause, and what is behind it", is(2, rdma.WCRemAccess), is(3, flush),
						is(4, flush), is(5, flush), is(6, flush))
					if !bytes.Equal(x.Buf[:tt.n], y.Buf[:tt.n]) {
						t.Error("the good Read differs")
					}
					y.WantRecv("none has arrived", is(100, flush), is(101, flush), is(102, flush))
					x.WantNone("each once")
				})
			})
		}
	}
}

// A receive that names memory that it may not write: LOC_PROT_ERR and QP_ACCESS_ERR.
func TestBadReceive(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		m := y.Register(y.Buf, rdma.RemoteRead)
		if err := y.QP.PostRecv(&rdma.RecvWR{
			ID: 1, SGEs: []rdma.SGE{{Addr: m.Addr(), Length: 10, LKey: m.LKey()}}}); err != nil {
			t.Fatal(err)
		}
		y.Recv(2, 0, 10)
		x.Send(3, 0, 10)
		y.WantRecv("the first is to blame", is(1, rdma.WCLocProt), is(2, flush))
		y.WantEvent("", rdma.EventQPAccessErr)
		e.wantTerm("here", y.WantDone("over"), false, term{1, 0, 0})
		e.wantTerm("there", x.WantDone("over"), true, term{1, 0, 0})
		x.WantEvent("", rdma.EventQPFatal)
	})
}

// Another context can use neither the keys nor the objects of this one: SEC-001, SEC-033.
func TestContextsIsolated(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		c := vnictest.Open(t, e.b.Device(), vnic.ContextConfig{Label: "c"})
		z := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
		if _, err := y.PD.NewQP(vnic.QPOptions{QPConfig: rdma.QPConfig{SendCQ: z.SendCQ,
			RecvCQ: y.RecvCQ}}); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("a QP with another context's CQ: %v", err)
		}
		if _, err := c.Connect(context.Background(), y.QP, x.Conn.LocalAddr(), rdma.ConnParam{}); !isErr(
			err, rdma.ErrInvalid) {
			t.Errorf("connect another context's QP: %v", err)
		}
		x.Write(1, 0, 8, z, 0) // its region, over a QP of y
		e.wantTerm("the owner of z is not y's", x.WantDone("refused"), true, term{1, 1, 2})
		x2, _ := e.plain()
		x2.Post(rdma.SendWR{ID: 1, Op: rdma.OpSend, SGEs: []rdma.SGE{
			{Addr: z.MR.Addr(), Length: 4, LKey: z.MR.LKey()}}}, 0, 0)
		x2.WantSend("a local key of another context", is(1, rdma.WCLocProt))
	})
}

// Deregistering takes effect before it returns: no octet of a message under way is placed
// afterwards. SEC-014.
func TestDeregister(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.pair(vnictest.PeerConfig{Buffer: 8 << 20}, vnictest.PeerConfig{Buffer: 8 << 20})
		fill(x.Buf, 1)
		for i := range 8 {
			x.Write(uint64(i), 0, len(x.Buf), y, 0)
		}
		y.MR.Close()
		after := bytes.Clone(y.Buf)
		x.Write(8, 0, len(x.Buf), y, 0) // those before may all have been done
		x.WantDone("the peer is refused")
		if !bytes.Equal(after, y.Buf) {
			t.Fatal("memory changed after Close had returned")
		}
	}, func(c *vnic.Config) {})
}

// fast registers n octets of p's buffer at off by a request of p's QP.
func fast(t *testing.T, p *vnictest.Peer, off, n int, access rdma.Access) *vnic.FastMR {
	t.Helper()
	f, err := p.PD.NewFastMR(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	p.Post(regMR(p, rdma.NextKey(f.RKey()), off, n, access), 0, 0)
	p.WantSend("register", is(regID, ok))
	return f
}

const regID = 0xfa57

// regMR and bindMW ask for n octets of p's buffer at off under key; the peer uses their addresses.
func regMR(p *vnictest.Peer, key uint32, off, n int, access rdma.Access) rdma.SendWR {
	addr := p.MR.Addr() + uint64(off)
	return rdma.SendWR{
		ID: regID, Op: rdma.OpRegMR, RKey: key, RemoteAddr: addr,
		Range: rdma.MemRange{Addr: addr, Length: uint64(n), LKey: p.MR.LKey(), Access: access},
	}
}

func bindMW(p *vnictest.Peer, key uint32, off, n int, access rdma.Access) rdma.SendWR {
	wr := regMR(p, key, off, n, access)
	wr.Op = rdma.OpBindMW
	return wr
}

// window makes a window of p that is bound to n octets of its buffer at off, and returns its key.
// The buffer needs MWBind.
func window(t *testing.T, p *vnictest.Peer, typ rdma.MWType, off, n int, access rdma.Access) (
	*vnic.MW, uint32) {
	t.Helper()
	w, err := p.PD.NewMW(typ)
	if err != nil {
		t.Fatal(err)
	}
	key := rdma.NextKey(w.RKey())
	p.Post(bindMW(p, key, off, n, access), 0, 0)
	p.WantSend("bind", is(regID, ok))
	return w, key
}

const bindable = vnictest.Full | rdma.MWBind

// Send with Invalidate: the region is gone when the receive completes; one that other streams can
// use stays (SEC-038), one that is its owner's only, and one of another PD or connection is not
// touched (A6).
func TestSendInvalidate(t *testing.T) {
	inv := func(x *vnictest.Peer, key uint32) {
		x.Post(rdma.SendWR{ID: 9, Op: rdma.OpSendInv, InvKey: key}, 0, 8)
	}
	kinds := map[string]func(t *testing.T, y *vnictest.Peer) uint32{
		"fast region": func(t *testing.T, y *vnictest.Peer) uint32 {
			return fast(t, y, 0, 100, vnictest.Full).RKey()
		},
		"window": func(t *testing.T, y *vnictest.Peer) uint32 {
			_, key := window(t, y, rdma.MWType2, 0, 100, rdma.RemoteRead)
			return key
		},
	}
	for name, make := range kinds {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{Access: bindable})
				key := make(t, y)
				read := rdma.SendWR{ID: 2, Op: rdma.OpRead, RemoteAddr: y.MR.Addr(), RKey: key}
				x.Post(read, 0, 8)
				x.WantSend("the key is good", is(2, ok))
				y.Recv(1, 0, 10)
				inv(x, key)
				wc := y.WantRecv("delivered", is(1, ok))[0]
				if wc.Flags&rdma.WCWithInv == 0 || wc.Imm != key {
					t.Errorf("the completion %+v does not name the key", wc)
				}
				y.Post(rdma.SendWR{ID: 3, Op: rdma.OpLocalInv, InvKey: key}, 0, 0)
				y.WantSend("to be sure: not an error", is(3, ok))
				x.Post(read, 0, 8)
				x.WantSend("the key is no longer good", is(9, ok), is(2, rdma.WCRemAccess))
			})
		})
	}
	for _, tt := range []struct {
		name string
		key  func(e *env, y *vnictest.Peer) uint32
		want term
	}{
		{"unknown", func(*env, *vnictest.Peer) uint32 { return 0xabcdef }, term{0, 2, 9}},
		{"another PD", func(e *env, y *vnictest.Peer) uint32 {
			z, _ := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{})
			if e.b != e.a || !e.loop { // a peer on y's device
				_, z = e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{})
			}
			return fast(e.t, z, 0, 10, vnictest.Full).RKey()
		}, term{0, 1, 9}},
		{"shared by two streams", func(e *env, y *vnictest.Peer) uint32 {
			key := fast(e.t, y, 0, 10, vnictest.Full).RKey()
			if _, err := y.PD.CreateQP(rdma.QPConfig{SendCQ: y.SendCQ, RecvCQ: y.RecvCQ}); err != nil {
				e.t.Fatal(err)
			}
			return key
		}, term{0, 2, 9}},
		{"registered by a call", func(e *env, y *vnictest.Peer) uint32 { return y.MR.RKey() },
			term{0, 2, 9}},
		{"without a right for peers", func(e *env, y *vnictest.Peer) uint32 {
			return fast(e.t, y, 0, 10, rdma.LocalWrite).RKey()
		}, term{0, 2, 9}},
		{"window of type 1", func(e *env, y *vnictest.Peer) uint32 {
			_, key := window(e.t, y, rdma.MWType1, 0, 10, rdma.RemoteRead)
			return key
		}, term{0, 2, 9}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{Access: bindable})
				key := tt.key(e, y)
				y.Recv(1, 0, 10)
				inv(x, key)
				x.WantSend("the Send was complete before", is(9, ok))
				y.WantRecv("refused", is(1, rdma.WCRemInvReq))
				y.WantEvent("", rdma.EventQPAccessErr)
				e.wantTerm("here", y.WantDone("over"), false, tt.want)
				e.wantTerm("there", x.WantDone("over"), true, tt.want)
			})
		})
	}
}

// RDMAP-106: a Read behind a Send that is refused for what it invalidates has done nothing wrong,
// and flushes, also where the Send has waited for its receive and is complete.
func TestReadBehindRefusedInvalidate(t *testing.T) {
	for name, disconnects := range map[string]bool{"open": false, "disconnecting": true} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{})
				x.Send(1, 0, 8)
				x.Post(rdma.SendWR{ID: 2, Op: rdma.OpSendInv, InvKey: 0xabcdef}, 0, 8)
				x.Read(3, 0, 8, y, 0)
				x.Send(4, 0, 8)
				synctest.Wait()
				if disconnects {
					if err := x.QP.ModifyState(rdma.QPClosing); err != nil {
						t.Fatal(err)
					}
				}
				y.Recv(1, 0, 10)
				y.Recv(2, 0, 10)
				x.WantSend("what is refused is complete", is(1, ok), is(2, ok), is(3, flush), is(4, flush))
				y.WantRecv("refused", is(1, ok), is(2, rdma.WCRemInvReq))
				e.wantTerm("there", x.WantDone("over"), true, term{0, 2, 9})
			})
		})
	}
}

// Local invalidate: the key is no longer good, here and there; another's cannot be invalidated.
func TestLocalInvalidate(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		m := x.Register(x.Buf[:100], vnictest.Full)
		x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
			SGEs: []rdma.SGE{{Addr: m.Addr(), Length: 100, LKey: m.LKey()}}}, 0, 0)
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpLocalInv, InvKey: m.LKey()}, 0, 0)
		x.Write(3, 0, 4, y, 0)
		wc := x.WantSend("in order", is(1, ok), is(2, ok), is(3, ok))
		if wc[1].Op != rdma.WCLocalInv {
			t.Errorf("opcode %v", wc[1].Op)
		}
		x.Post(rdma.SendWR{ID: 4, Op: rdma.OpLocalInv, InvKey: 0x12345}, 0, 0)
		x.WantSend("no such key", is(4, rdma.WCLocQPOp))
	})
}
