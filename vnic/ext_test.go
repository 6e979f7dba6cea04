package vnic_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// ext is a peer whose program uses RFC 7306.
var ext = vnictest.PeerConfig{Param: rdma.ConnParam{Extensions: true}}

func (e *env) ext() (*vnictest.Peer, *vnictest.Peer) {
	e.t.Helper()
	return e.pair(ext, ext)
}

// word is the 8 octets at off, as the host reads them.
func word(p *vnictest.Peer, off int) uint64 { return binary.NativeEndian.Uint64(p.Buf[off:]) }

func setWord(p *vnictest.Peer, off int, v uint64) { binary.NativeEndian.PutUint64(p.Buf[off:], v) }

// at is a request of op on the word at off of y.
func at(op rdma.Opcode, id uint64, y *vnictest.Peer, off int, a rdma.AtomicArgs) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: op, RemoteAddr: y.MR.Addr() + uint64(off), RKey: y.MR.RKey(),
		Atomic: a}
}

func fetchAdd(id uint64, y *vnictest.Peer, off int, n uint64) rdma.SendWR {
	return at(rdma.OpFetchAdd, id, y, off, rdma.AtomicArgs{CompareAdd: n})
}

// Each atomic operation: the old value comes back in the order of this host's octets, the target
// changes as RFC 7306 says and nothing beside it, and the responder's program is not involved.
// EXT-001, EXT-004, EXT-012, EXT-013, EXT-015, EXT-016, EXT-024.
func TestAtomics(t *testing.T) {
	const all = ^uint64(0)
	for _, tt := range []struct {
		name     string
		op       rdma.Opcode
		args     rdma.AtomicArgs
		old, new uint64
	}{
		{"add", rdma.OpFetchAdd, rdma.AtomicArgs{CompareAdd: 5}, 0x2a, 0x2f},
		{"add nothing: a probe", rdma.OpFetchAdd, rdma.AtomicArgs{}, 0x0102030405060708,
			0x0102030405060708},
		{"add wraps", rdma.OpFetchAdd, rdma.AtomicArgs{CompareAdd: 1}, all, 0},
		{"add, and masks mean nothing", rdma.OpFetchAdd, rdma.AtomicArgs{CompareAdd: 1, SwapMask: all,
			CompareMask: all}, 1, 2},
		{"masked add without a mask", rdma.OpMaskedFetchAdd, rdma.AtomicArgs{CompareAdd: 1}, all, 0},
		{"masked add: the carry is dropped", rdma.OpMaskedFetchAdd, rdma.AtomicArgs{CompareAdd: 1,
			SwapMask: 0x80000000}, 0xffffffff, 0},
		{"masked add of two halves", rdma.OpMaskedFetchAdd, rdma.AtomicArgs{CompareAdd: 1<<32 | 1,
			SwapMask: 1<<63 | 1<<31}, 0xffffffff_ffffffff, 0},
		{"swap: equal", rdma.OpCompareSwap, rdma.AtomicArgs{CompareAdd: 7, Swap: 99}, 7, 99},
		{"swap: unequal", rdma.OpCompareSwap, rdma.AtomicArgs{CompareAdd: 8, Swap: 99}, 7, 7},
		{"swap, and masks mean nothing", rdma.OpCompareSwap, rdma.AtomicArgs{CompareAdd: 7, Swap: 99,
			CompareMask: 0, SwapMask: 0}, 7, 99},
		{"masked swap: compares nothing", rdma.OpMaskedCompareSwap, rdma.AtomicArgs{CompareAdd: 1,
			Swap: 99, SwapMask: all}, 7, 99},
		{"masked swap: swaps nothing", rdma.OpMaskedCompareSwap, rdma.AtomicArgs{CompareAdd: 7, Swap: 99,
			CompareMask: all}, 7, 7},
		{"masked swap: a part", rdma.OpMaskedCompareSwap, rdma.AtomicArgs{CompareAdd: 0x11, Swap: 0xabcd,
			CompareMask: 0xff, SwapMask: 0xff00}, 0x2211, 0xab11},
		{"masked swap: the part differs", rdma.OpMaskedCompareSwap, rdma.AtomicArgs{CompareAdd: 0x12,
			Swap: 0xabcd, CompareMask: 0xff, SwapMask: 0xff00}, 0x2211, 0x2211},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.ext()
				if !x.Conn.Param().Extensions || !y.Conn.Param().Extensions {
					t.Error("the connection does not say that it has the extensions")
				}
				fill(x.Buf, 1)
				fill(y.Buf, 2)
				setWord(y, 64, tt.old)
				wantX, wantY := bytes.Clone(x.Buf), bytes.Clone(y.Buf)
				binary.NativeEndian.PutUint64(wantX[128:], tt.old)
				binary.NativeEndian.PutUint64(wantY[64:], tt.new)
				x.Post(at(tt.op, 1, y, 64, tt.args), 128, 8)
				wc := x.WantSend("done", is(1, ok))[0]
				op := rdma.WCFetchAdd
				if tt.op == rdma.OpCompareSwap || tt.op == rdma.OpMaskedCompareSwap {
					op = rdma.WCCompareSwap
				}
				if wc.Op != op || wc.ByteLen != 8 {
					t.Errorf("completion %+v", wc)
				}
				if !bytes.Equal(x.Buf, wantX) {
					t.Errorf("the old value is %#x, want %#x, or something beside it has changed",
						word(x, 128), tt.old)
				}
				if !bytes.Equal(y.Buf, wantY) {
					t.Errorf("the target is %#x, want %#x, or something beside it has changed",
						word(y, 64), tt.new)
				}
				y.WantNone("the responder's program is not involved")
				if c, d := x.QP.Info().Counters, y.QP.Info().Counters; c.Atomics != 1 || d.InAtomics != 1 ||
					c.Reads+d.InReads != 0 {
					t.Errorf("counters %+v, %+v", c, d)
				}
			})
		})
	}
}

// Atomics of 16 QPs on one word, 8 within the device and 8 over the wire at once: none is lost, and
// no two see the same old value. RFC 7306 asks for no more, but what the program adds itself with
// an instruction of the processor is not lost either. EXT-009, EXT-010.
func TestAtomicsAmongQPs(t *testing.T) {
	const qps, each = 16, 10000
	n := vnictest.NewNet()
	n.Plain = true
	a, b := n.Pair(t)
	here, there := vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.Open(t, b, vnic.ContextConfig{})
	shared := vnictest.NewPeer(t, here, vnictest.PeerConfig{})
	shared.QP.Close()
	var wg sync.WaitGroup
	seen := make([][]uint64, qps)
	for i := range qps {
		from := []*vnic.Context{here, there}[i%2]
		cfg := vnictest.PeerConfig{PD: shared.PD, Param: ext.Param}
		x, y := vnictest.NewQPs(t, from, here, ext, cfg)
		if want := []string{"loop", "tcp"}[i%2]; y.QP.Info().Transport != want {
			t.Fatalf("QP %d is on %v", i, y.QP.Info().Transport)
		}
		wg.Go(func() { seen[i] = count(x, shared, each) })
	}
	var own []uint64
	wg.Go(func() {
		p := (*uint64)(unsafe.Pointer(&shared.Buf[0]))
		for range each {
			own = append(own, atomic.AddUint64(p, 1)-1)
		}
	})
	wg.Wait()
	checkCount(t, word(shared, 0), append(seen, own))
}

// The same where the memory is reached by calls, which cannot add in one step. EXT-009.
func TestAtomicsByCalls(t *testing.T) {
	const qps, each = 4, 300
	a, b := real(t, false)
	if err := b.AllowBlocking(); err != nil {
		t.Fatal(err)
	}
	mem := &yielding{b: make([]byte, 64)}
	shared := vnictest.NewPeer(t, b, vnictest.PeerConfig{})
	shared.QP.Close()
	var err error
	if shared.MR, err = shared.PD.RegisterRegion(vnic.Region{Mem: mem}, 0x1000, 64,
		vnictest.Full); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	seen := make([][]uint64, qps)
	for i := range qps {
		x, _ := vnictest.NewQPs(t, a, b, ext, vnictest.PeerConfig{PD: shared.PD, Param: ext.Param})
		wg.Go(func() { seen[i] = count(x, shared, each) })
	}
	wg.Wait()
	checkCount(t, binary.NativeEndian.Uint64(mem.b), seen)
}

// yielding is memory whose calls give others a turn.
type yielding struct {
	mu sync.Mutex
	b  []byte
}

func (y *yielding) ReadAt(p []byte, off int64) (int, error) {
	y.mu.Lock()
	defer runtime.Gosched()
	defer y.mu.Unlock()
	return copy(p, y.b[off:]), nil
}

func (y *yielding) WriteAt(p []byte, off int64) (int, error) {
	y.mu.Lock()
	defer runtime.Gosched()
	defer y.mu.Unlock()
	return copy(y.b[off:], p), nil
}

// count adds 1 to the first word of y n times, with several requests outstanding.
func count(x, y *vnictest.Peer, n int) (seen []uint64) {
	const depth = 16
	post := func(i int) {
		at := i % depth * 8
		x.Post(fetchAdd(uint64(at), y, 0, 1), at, 8)
	}
	for i := range min(depth, n) {
		post(i)
	}
	for i := range n {
		wc := x.Next(x.SendCQ, 1)[0]
		if wc.Status != ok {
			return nil
		}
		seen = append(seen, word(x, int(wc.ID)))
		if i+depth < n {
			post(i + depth)
		}
	}
	return seen
}

func checkCount(t *testing.T, total uint64, seen [][]uint64) {
	t.Helper()
	var all []uint64
	for i, s := range seen {
		if !slices.IsSorted(s) {
			t.Errorf("QP %d: its requests were not carried out in order", i)
		}
		all = append(all, s...)
	}
	slices.Sort(all)
	if total != uint64(len(all)) {
		t.Errorf("the target is %d after %d additions", total, len(all))
	}
	for i, v := range all {
		if v != uint64(i) {
			t.Fatalf("old values: %d where %d was expected", v, i)
		}
	}
}

// The checks of an atomic's target, each with its cause; nothing is changed, and the requester
// learns which request it was. EXT-014, EXT-021, EXT-047, EXT-048; SEC-005.
func TestAtomicChecks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		base   int // of the region in y's buffer
		iova   uint64
		access rdma.Access
		key    func(y *vnictest.Peer, m *vnic.MR) uint32
		to     uint64 // from iova on
		want   term   // zero: it is carried out
		status rdma.WCStatus
	}{
		{name: "unknown STag", key: func(_ *vnictest.Peer, m *vnic.MR) uint32 { return m.RKey() ^ 1 },
			want: term{0, 1, 0}},
		{name: "another PD", key: func(y *vnictest.Peer, _ *vnic.MR) uint32 {
			pd, _ := y.Ctx.AllocPD()
			m, _ := pd.RegisterMemory(y.Buf, vnictest.Full)
			return m.RKey()
		}, want: term{0, 1, 3}},
		{name: "TO wraps", to: 1<<64 - 0x10000 - 8, want: term{0, 1, 4}},
		{name: "no right", access: rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead,
			want: term{0, 1, 2}},
		{name: "outside", to: 1000, want: term{0, 1, 1}},
		{name: "half outside", to: 96, want: term{0, 1, 1}},
		{name: "outside before alignment", to: 97, want: term{0, 1, 1}},
		{name: "misaligned", to: 4, want: term{0, 2, 7}},
		{name: "misaligned by one", to: 9, want: term{0, 2, 7}},
		{name: "aligned TO in a region at an odd address", base: 3, to: 8, want: term{0, 2, 7}},
		{name: "aligned address, odd TO", base: 4, iova: 0x10003, to: 4},
		{name: "the last word", to: 92 - 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.ext()
				fill(y.Buf, 3)
				before := bytes.Clone(y.Buf)
				if tt.access == 0 {
					tt.access = vnictest.Full
				}
				if tt.iova == 0 {
					tt.iova = 0x10000
				}
				m, err := y.PD.RegisterRegion(vnic.Region{Bytes: y.Buf[tt.base:]}, tt.iova, 100, tt.access)
				if err != nil {
					t.Fatal(err)
				}
				key := m.RKey()
				if tt.key != nil {
					key = tt.key(y, m)
				}
				wr := rdma.SendWR{ID: 1, Op: rdma.OpFetchAdd, RemoteAddr: tt.iova + tt.to, RKey: key,
					Atomic: rdma.AtomicArgs{CompareAdd: 1}}
				x.Post(wr, 0, 8)
				if tt.want == (term{}) {
					x.WantSend("carried out", is(1, ok))
					if off := tt.base + int(tt.to); word(y, off) != word(x, 0)+1 {
						t.Errorf("the target is %#x behind %#x", word(y, off), word(x, 0))
					}
					return
				}
				status := rdma.WCRemAccess
				if tt.want.typ == 2 {
					status = rdma.WCRemOp
				}
				wc := x.WantSend("refused", is(1, status))[0]
				if want := uint32(tt.want.typ)<<8 | uint32(tt.want.code); wc.VendorErr != want {
					t.Errorf("vendor error %#x, want %#x", wc.VendorErr, want)
				}
				e.wantTerm("the requester", x.WantDone("over"), true, tt.want)
				e.wantTerm("the responder", y.WantDone("over"), false, tt.want)
				y.WantEvent("refused", rdma.EventQPAccessErr)
				if !bytes.Equal(before, y.Buf) {
					t.Error("memory was changed")
				}
			})
		})
	}
}

// A refused atomic among others is told apart from Reads and atomics around it, of which those
// before it complete.
func TestAtomicBlame(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.ext()
		x.Read(1, 0, 8, y, 0)
		x.Post(fetchAdd(2, y, 0, 1), 8, 8)
		x.Post(fetchAdd(3, y, 1, 1), 16, 8) // misaligned
		x.Post(fetchAdd(4, y, 0, 1), 24, 8)
		x.Read(5, 32, 8, y, 0)
		got := x.Next(x.SendCQ, 5)
		for i, wc := range got {
			if wc.ID != uint64(i+1) {
				t.Errorf("completion %d is %+v", i, wc)
			}
		}
		// What is before it can be cut off by the Terminate; it is flushed then.
		if got[2].Status != rdma.WCRemOp || got[3].Status != flush || got[4].Status != flush {
			t.Errorf("completions %+v", got)
		}
		e.settle()
		if word(y, 0) > 1 {
			t.Error("an atomic behind the one that was refused was carried out")
		}
	})
}

// What cannot be sent is refused here: by the post if that can be seen at once, else by a
// completion and the end with a Terminate 0/0. EXT-002, EXT-044.
func TestAtomicLocal(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.ext()
		for _, sges := range [][]rdma.SGE{nil, {x.SGE(0, 7)}, {x.SGE(0, 9)}, {x.SGE(0, 8), x.SGE(8, 8)}} {
			wr := fetchAdd(1, y, 0, 1)
			wr.SGEs = sges
			if err := x.QP.PostSend(&wr); !isErr(err, rdma.ErrInvalid) {
				t.Errorf("into %v: %v", sges, err)
			}
		}
		wr := fetchAdd(1, y, 0, 1)
		wr.Flags, wr.Inline = rdma.Inline, make([]byte, 8)
		if err := x.QP.PostSend(&wr); !isErr(err, rdma.ErrInvalid) {
			t.Errorf("inline: %v", err)
		}
		x.Post(rdma.SendWR{ID: 2, Op: rdma.OpFetchAdd, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
			SGEs: []rdma.SGE{x.SGE(0, 3), x.SGE(100, 5)}}, 0, 0)
		x.WantSend("into two pieces", is(2, ok))
		readOnly := x.Register(make([]byte, 8), 0)
		wr = fetchAdd(3, y, 0, 1)
		wr.SGEs = []rdma.SGE{{Addr: readOnly.Addr(), Length: 8, LKey: readOnly.LKey()}}
		x.Post(wr, 0, 0)
		x.WantSend("no right to write the old value", is(3, rdma.WCLocProt))
		e.wantTerm("the peer", y.WantDone("over"), true, term{0, 0, 0xff})
		if word(y, 0) != 0 {
			t.Error("the atomic was carried out")
		}
	})
}

// Without the agreement of both programs nothing of RFC 7306 is sent: a request fails here. Within
// a device it needs none. EXT-002.
func TestNoExtensions(t *testing.T) {
	for _, op := range []rdma.Opcode{rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd,
		rdma.OpMaskedCompareSwap, rdma.OpSendImm, rdma.OpWriteImm} {
		t.Run(op.String(), func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.pair(vnictest.PeerConfig{}, ext)
				y.Recv(1, 0, 0)
				n := 8
				if op == rdma.OpSendImm {
					n = 0
				}
				x.Post(at(op, 2, y, 0, rdma.AtomicArgs{}), 0, n)
				if e.local() || e.moved {
					x.WantSend("within a device", is(2, ok))
					return
				}
				x.WantSend("refused here", is(2, rdma.WCLocQPOp))
				e.wantTerm("the peer", y.WantDone("over"), true, term{0, 0, 0xff})
				// the ready-to-receive message
				if c := y.QP.Info().Counters; c.InAtomics != 0 || c.InWrites > 1 {
					t.Errorf("something was sent: %+v", c)
				}
			})
		})
	}
}

// A peer that uses what was not agreed on is told so; with the agreement the same message works.
// EXT-003, EXT-007, EXT-022.
func TestExtensionsFromPeer(t *testing.T) {
	for _, on := range []bool{false, true} {
		for _, op := range []iwarp.Opcode{iwarp.OpImmediate, iwarp.OpImmediateSE, iwarp.OpAtomicRequest,
			iwarp.OpAtomicResponse} {
			t.Run(fmt.Sprintf("%v/agreed=%v", op, on), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := vnictest.NewNet()
					c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
					p := rawDial(t, n, c, vnictest.PeerConfig{Param: rdma.ConnParam{Extensions: on}})
					p.y.Recv(1, 0, 0)
					var u []byte
					switch op {
					case iwarp.OpAtomicRequest:
						a := iwarp.Atomic{STag: iwarp.STag(p.y.MR.RKey()), TO: p.y.MR.Addr(), Data: 3}
						u = iwarp.AppendAtomicRequest(iwarp.AppendUntagged(nil, true, op, 1, 1, 0), 77, a)
						for i := range 16 { // a FetchAdd compares nothing: "ignored"
							u[iwarp.UntaggedHeaderLen+36+i] = byte(i)
						}
					case iwarp.OpAtomicResponse:
						u = iwarp.AppendAtomicResponse(iwarp.AppendUntagged(nil, true, op, 3, 1, 0), 77, 1)
					default:
						u = append(iwarp.AppendUntagged(nil, true, op, 0, 1, 0), 1, 2, 3, 4, 5, 6, 7, 8)
					}
					// "ignored": the place of the STag to invalidate holds a live one.
					binary.BigEndian.PutUint32(u[2:], p.y.MR.RKey())
					p.send(u)
					code, term := p.terminate()
					switch {
					case !on && (!term || code != iwarp.TermUnexpectedOpcode):
						t.Errorf("Terminate %v (%v)", code, term)
					case on && op == iwarp.OpAtomicResponse && (!term || code != iwarp.TermNoBuffer):
						t.Errorf("Terminate %v (%v) for an answer to nothing", code, term)
					case on && op == iwarp.OpAtomicRequest && word(p.y, 0) != 3:
						t.Errorf("the target is %d", word(p.y, 0))
					case on && op != iwarp.OpAtomicResponse && term:
						t.Errorf("Terminate %v", code)
					}
					if on && op != iwarp.OpAtomicResponse {
						p.y.WantState("well", rdma.QPRTS)
						p.send(append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, iwarp.STag(p.y.MR.RKey()),
							p.y.MR.Addr()+8), 9))
						synctest.Wait()
						if p.y.Buf[8] != 9 {
							t.Error("the STag was invalidated")
						}
					}
				})
			})
		}
	}
}

// The order of atomics with what is before and behind them. EXT-025, EXT-026, EXT-032, EXT-034.
func TestAtomicOrder(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		big := ext
		big.Buffer = 4 << 20
		x, y := e.pair(big, big)
		const all = ^uint64(0)
		swap := func(id, from, to uint64) {
			x.Post(at(rdma.OpCompareSwap, id, y, 0, rdma.AtomicArgs{CompareAdd: from, Swap: to}),
				int(id)*8, 8)
		}
		var ws []want
		for i := range uint64(8) {
			swap(i, i, i+1)
			ws = append(ws, is(i, ok))
		}
		x.WantSend("a chain of swaps", ws...)
		for i := range 8 {
			if got := word(x, i*8); got != uint64(i) {
				t.Errorf("swap %d found %d", i, got)
			}
		}
		// A Write, then an atomic on what it wrote; then a long Read whose answer comes first.
		setWord(x, 1000, 41)
		x.Write(20, 1000, 8, y, 8)
		x.Post(fetchAdd(21, y, 8, 1), 1008, 8)
		x.Read(22, 2<<20, 1<<20, y, 0)
		x.Post(fetchAdd(23, y, 8, all), 1016, 8)
		x.WantSend("in order", is(20, ok), is(21, ok), is(22, ok), is(23, ok))
		if word(x, 1008) != 41 || word(x, 1016) != 42 || word(y, 8) != 41 {
			t.Errorf("old values %d and %d, the target is %d", word(x, 1008), word(x, 1016), word(y, 8))
		}
	})
}

// Atomics and Reads share ORD: what is beyond it waits here, whatever the peer would take. A fence
// waits for atomics too. EXT-017, EXT-028.
func TestAtomicORD(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		cfg := ext
		cfg.Param.ORD = 2
		cfg.QP.MaxSendWR = 64
		y2 := ext
		y2.Param.IRD = 2
		x, y := e.pair(cfg, y2)
		if got := x.Conn.Param().ORD; got != 2 || y.Conn.Param().IRD != 2 {
			t.Fatalf("ORD is %d", got)
		}
		var ws []want
		for i := range 20 {
			x.Post(fetchAdd(uint64(2*i), y, 0, 1), 8*i, 8)
			x.Read(uint64(2*i+1), 1000, 8, y, 0)
			ws = append(ws, is(uint64(2*i), ok), is(uint64(2*i+1), ok))
		}
		x.WantSend("all complete", ws...)
		if word(y, 0) != 20 || word(x, 8*19) != 19 {
			t.Errorf("the target is %d", word(y, 0))
		}
		y.Recv(1, 2000, 8)
		x.Post(fetchAdd(100, y, 0, 1), 3000, 8)
		x.Post(rdma.SendWR{ID: 101, Op: rdma.OpSend, Flags: rdma.Fence}, 3000, 8)
		x.WantSend("in order", is(100, ok), is(101, ok))
		y.WantRecv("delivered", is(1, ok))
		if got := word(y, 2000); got != 20 {
			t.Errorf("the fenced Send carries %d", got)
		}
	})
	onPaths(t, func(t *testing.T, e *env) {
		cfg := ext
		cfg.Param.ORD = rdma.NoReads
		x, y := e.pair(cfg, ext)
		x.Post(fetchAdd(1, y, 0, 1), 0, 8)
		x.WantSend("ORD is 0", is(1, rdma.WCLocQPOp))
	})
}

// An atomic completes when the response has come, not earlier, and what was sent behind it may have
// its effect before. EXT-029, EXT-031, EXT-033.
func TestAtomicWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
		p := rawDial(t, n, c, ext)
		y := p.y
		setWord(y, 0, 99)
		y.Post(rdma.SendWR{ID: 1, Op: rdma.OpFetchAdd, RKey: 5, RemoteAddr: 8, Atomic: rdma.AtomicArgs{
			CompareAdd: 7}}, 0, 8)
		y.Send(2, 16, 4)
		time.Sleep(time.Hour)
		y.WantNone("nothing was answered: the Send waits for its turn")
		if word(y, 0) != 99 {
			t.Error("the old value was written before the response")
		}
		p.send(iwarp.AppendAtomicResponse(iwarp.AppendUntagged(nil, true, iwarp.OpAtomicResponse, 3, 1,
			0), 1, 0x2a))
		y.WantSend("answered", is(1, ok), is(2, ok))
		if word(y, 0) != 0x2a {
			t.Errorf("the old value is %#x", word(y, 0))
		}
	})
}

// Answers that the peer does not take hold nothing else up: a Send behind the Read and the atomic
// is delivered while they wait, and then the answers come in order. RDMAP-096, EXT-033.
func TestSendBeforeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		n.Link.Buffer = 16 << 10
		c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
		p := rawDial(t, n, c, ext)
		y := p.y
		y.Recv(1, 0, 8)
		key, addr := iwarp.STag(y.MR.RKey()), y.MR.Addr()
		p.send(iwarp.AppendReadRequest(iwarp.AppendUntagged(nil, true, iwarp.OpReadRequest, 1, 1, 0), 1,
			0, 60000, key, addr))
		p.send(iwarp.AppendAtomicRequest(iwarp.AppendUntagged(nil, true, iwarp.OpAtomicRequest, 1, 2, 0),
			7, iwarp.Atomic{STag: key, TO: addr + 64, Data: 1}))
		p.send(append(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 1, 0), "overtook"...))
		y.WantRecv("it is delivered while the window is closed", is(1, ok))
		if word(y, 64) != 1 || string(y.Buf[:8]) != "overtook" {
			t.Errorf("the target is %d, the receive holds %q", word(y, 64), y.Buf[:8])
		}
		var in sink
		for synctest.Wait(); ; synctest.Wait() {
			if n, _ := p.s.ReadInto(&in); n == 0 {
				break
			}
		}
		var ops []iwarp.Opcode
		octets := 0
		for b := in.b; len(b) > 2; {
			n := int(binary.BigEndian.Uint16(b))
			u := b[2 : 2+n]
			op := iwarp.RDMAPControl(u[1]).Opcode()
			if op == iwarp.OpReadResponse {
				octets += n - iwarp.TaggedHeaderLen
			}
			if len(ops) == 0 || ops[len(ops)-1] != op {
				ops = append(ops, op)
			}
			b = b[iwarp.FPDULen(n):]
		}
		if !slices.Equal(ops, []iwarp.Opcode{iwarp.OpReadResponse, iwarp.OpAtomicResponse}) ||
			octets != 60000 {
			t.Errorf("answers %v, %d octets", ops, octets)
		}
	})
}
