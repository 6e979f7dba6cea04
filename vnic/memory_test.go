package vnic_test

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Memory of AllocBuffer holds nothing of what was in another buffer: a peer reads zeroes. SEC-016,
// SEC-045.
func TestBufferIsZero(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		for range 3 {
			b, err := y.Ctx.AllocBuffer(10_000)
			if err != nil {
				t.Fatal(err)
			}
			m := y.Register(b.Bytes(), vnictest.Full)
			fill(x.Buf[:10_000], 1)
			e.wantAccess("the whole", x, rdma.OpRead, m.Addr(), m.RKey(), 10_000)
			if !bytes.Equal(x.Buf[:10_000], make([]byte, 10_000)) {
				t.Fatal("stale octets")
			}
			fill(b.Bytes(), 7)
			m.Close()
			b.Close()
		}
	})
}

// What cannot be memory of the program, and what is more than it may have, is not registered:
// nothing, both kinds at once, all of an address space, memory behind its end. SEC-039.
func TestUncheckedMemory(t *testing.T) {
	n := vnictest.NewNet()
	c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
	pd, err := c.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	mem := &hanging{b: b}
	check := func(why string, r vnic.Region, iova, length uint64, want error) {
		t.Helper()
		if _, err := pd.RegisterRegion(r, iova, length, rdma.RemoteRead); !isErr(err, want) {
			t.Errorf("%s: %v, want %v", why, err, want)
		}
	}
	check("memory of calls before AllowBlocking", vnic.Region{Mem: mem}, 0, 4096, rdma.ErrInvalid)
	if err := c.AllowBlocking(); err != nil {
		t.Fatal(err)
	}
	check("nothing", vnic.Region{}, 0, 1, rdma.ErrInvalid)
	check("both", vnic.Region{Bytes: b, Mem: mem}, 0, 1, rdma.ErrInvalid)
	check("behind the end", vnic.Region{Bytes: b}, 0, 4097, rdma.ErrInvalid)
	check("no octets", vnic.Region{Bytes: b}, 0, 0, rdma.ErrInvalid)
	check("all there is", vnic.Region{Mem: mem}, 0, math.MaxUint64, rdma.ErrLimit)
	check("up to the last octet and more", vnic.Region{Mem: mem}, 1<<63, 1<<63, rdma.ErrInvalid)
	if _, err := pd.RegisterMemory(nil, 0); !isErr(err, rdma.ErrInvalid) {
		t.Errorf("no memory: %v", err)
	}
	if i := c.Device().MRs(c); len(i) != 0 {
		t.Errorf("%d regions are there", len(i))
	}
}

// A program can register only what it may use itself, and so: not what it may not write for
// writing, not what it may not read at all, not what is not there. SEC-040, SEC-041.
func TestOwnRights(t *testing.T) {
	n := vnictest.NewNet()
	c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
	pd, err := c.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	page := func(prot int) []byte {
		b, err := syscall.Mmap(-1, 0, 3*4096, prot, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Munmap(b) })
		return b
	}
	tail := page(syscall.PROT_READ | syscall.PROT_WRITE)
	if err := syscall.Mprotect(tail[2*4096:], syscall.PROT_READ); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		b      []byte
		access rdma.Access
		want   error
	}{
		{"read-only, to be written by peers", page(syscall.PROT_READ), vnictest.Full, rdma.ErrInvalid},
		{"read-only, to be written by receives", page(syscall.PROT_READ), rdma.LocalWrite,
			rdma.ErrInvalid},
		{"read-only, to be read", page(syscall.PROT_READ), rdma.RemoteRead, nil},
		{"no rights", page(syscall.PROT_NONE), rdma.RemoteRead, rdma.ErrInvalid},
		{"read-only in the last page", tail[100 : 2*4096+1], vnictest.Full, rdma.ErrInvalid},
		{"up to there", tail[100 : 2*4096], vnictest.Full, nil},
	} {
		m, err := pd.RegisterMemory(tt.b, tt.access)
		if !isErr(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if err == nil {
			m.Close()
		}
	}
}

// records takes what is logged.
type records struct {
	slog.Handler
	level slog.Level
	mu    *sync.Mutex
	texts *[]string
}

func (r records) Enabled(_ context.Context, l slog.Level) bool { return l >= r.level }
func (r records) WithAttrs([]slog.Attr) slog.Handler           { return r }
func (r records) Handle(_ context.Context, rec slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.Level >= slog.LevelWarn {
		*r.texts = append(*r.texts, rec.Message)
	}
	return nil
}

// With a log at debug level, memory that peers of two protection domains can write is reported,
// however they come by it. SEC-022.
func TestOverlapReported(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		r := records{level: level, mu: new(sync.Mutex), texts: new([]string)}
		log := func(c *vnic.Config) { c.Log = slog.New(r) }
		want := func(why string, n int) {
			t.Helper()
			r.mu.Lock()
			defer r.mu.Unlock()
			if level != slog.LevelDebug {
				n = 0
			}
			if len(*r.texts) != n {
				t.Errorf("%s: %d reports, want %d: %q", why, len(*r.texts), n, *r.texts)
			}
			*r.texts = nil
		}
		onPaths(t, func(t *testing.T, e *env) {
			_, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{Access: rdma.LocalWrite | rdma.MWBind})
			other, err := y.Ctx.NewPD()
			if err != nil {
				t.Fatal(err)
			}
			reg := func(pd *vnic.PD, b []byte, a rdma.Access) *vnic.MR {
				m, err := pd.RegisterMemory(b, a)
				if err != nil {
					t.Fatal(err)
				}
				return m.(*vnic.MR)
			}
			want("nothing yet", 0)
			m := reg(other, y.Buf[100:200], vnictest.Full)
			want("the other cannot be written", 0)
			reg(y.PD, y.Buf[200:300], vnictest.Full)
			reg(y.PD, y.Buf[:100], vnictest.Full)
			want("beside it", 0)
			reg(other, y.Buf[:150], rdma.LocalWrite|rdma.RemoteRead)
			reg(other, y.Buf[100:200], vnictest.Full)
			want("to be read, or in the same domain", 0)
			window(t, y, rdma.MWType2, 190, 10, rdma.RemoteRead)
			want("a window to read", 0)
			window(t, y, rdma.MWType2, 190, 20, rdma.RemoteWrite)
			want("a window to write, over two", 2)
			m.Close()
			fast(t, y, 199, 1, vnictest.Full)
			want("a fast registration, over the one left", 1)
			y.Ctx.Close()
		}, log)
	}
}

// Each STag is of a protection domain: nothing else can make one. DDP-095, SEC-003.
func TestKeysNeedPD(t *testing.T) {
	keyed := []reflect.Type{
		reflect.TypeFor[rdma.MR](), reflect.TypeFor[rdma.MW](), reflect.TypeFor[*vnic.MR](),
		reflect.TypeFor[*vnic.MW](), reflect.TypeFor[*vnic.FastMR](),
	}
	makers := make(map[string]bool)
	for _, typ := range []reflect.Type{reflect.TypeFor[*vnic.Device](),
		reflect.TypeFor[*vnic.Context](), reflect.TypeFor[*vnic.PD](), reflect.TypeFor[*vnic.QP](),
		reflect.TypeFor[*vnic.CQ]()} {
		for i := range typ.NumMethod() {
			m := typ.Method(i)
			for o := range m.Type.NumOut() {
				if slices.Contains(keyed, m.Type.Out(o)) {
					makers[typ.String()+"."+m.Name] = true
				}
			}
		}
	}
	want := map[string]bool{"*vnic.PD.RegisterMemory": true, "*vnic.PD.RegisterRegion": true,
		"*vnic.PD.ReplaceRegion": true,
		"*vnic.PD.AllocMR":       true, "*vnic.PD.NewFastMR": true, "*vnic.PD.AllocMW": true,
		"*vnic.PD.NewMW": true}
	if !reflect.DeepEqual(makers, want) {
		t.Errorf("STags are made by %v", makers)
	}
}

// Streams that share nothing on purpose are apart: each Peer of the test suite has a protection
// domain of its own, and none reaches another's memory. SEC-007, SEC-003, DDP-094.
func TestPeersIsolated(t *testing.T) {
	for op, want := range map[rdma.Opcode]term{rdma.OpWrite: {1, 1, 2}, rdma.OpRead: {0, 1, 3}} {
		onPaths(t, func(t *testing.T, e *env) {
			x, y := e.plain()
			_, y2 := e.plain()
			if y.PD == y2.PD {
				t.Fatal("one protection domain for two peers")
			}
			before := bytes.Clone(y2.Buf)
			fill(x.Buf, 1)
			e.wantRefused("another peer's memory", x, y, op, y2.MR.Addr(), y2.MR.RKey(), 8, want)
			if !bytes.Equal(before, y2.Buf) {
				t.Error("memory was changed")
			}
			y2.WantState("not concerned", rdma.QPRTS)
		})
	}
}

// A server as RFC 5042's appendix A wants it: the buffer that a client writes is a fresh one, is
// open for that client's connection only and for the time of the transfer, and is used when the key
// has been revoked, by the client or, if it did not, by the server. A client that writes later
// changes nothing and loses its connection. SEC-045, SEC-017, SEC-015.
func TestServerRevokesBeforeUse(t *testing.T) {
	for _, honest := range []bool{true, false} {
		onPaths(t, func(t *testing.T, e *env) {
			x, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{Access: rdma.LocalWrite | rdma.MWBind})
			var trace []string
			step := func(s string) { trace = append(trace, s) }

			b, err := y.Ctx.AllocBuffer(1000)
			if err != nil {
				t.Fatal(err)
			}
			m := y.Register(b.Bytes(), rdma.LocalWrite|rdma.MWBind)
			w, err := y.PD.NewMW(rdma.MWType2)
			if err != nil {
				t.Fatal(err)
			}
			key := rdma.NextKey(w.RKey())
			y.Recv(1, 0, 8)
			y.Post(rdma.SendWR{ID: 2, Op: rdma.OpBindMW, RKey: key, Range: rdma.MemRange{Addr: m.Addr(),
				Length: 1000, LKey: m.LKey(), Access: rdma.RemoteWrite}}, 0, 0)
			y.WantSend("open", is(2, ok))
			step("open")

			fill(x.Buf, 5)
			x.Post(rdma.SendWR{ID: 3, Op: rdma.OpWrite, RKey: key}, 0, 1000)
			done := rdma.SendWR{ID: 4, Op: rdma.OpSend}
			if honest {
				done = rdma.SendWR{ID: 4, Op: rdma.OpSendInv, InvKey: key}
			}
			x.Post(done, 0, 8)
			x.WantSend("sent", is(3, ok), is(4, ok))

			wc := y.WantRecv("the client says that it is done", is(1, ok))[0]
			step("told")
			if revoked := wc.Flags&rdma.WCWithInv != 0 && wc.Imm == key; revoked != honest {
				t.Fatalf("revoked by the client: %v", revoked)
			} else if !revoked {
				y.Post(localInv(key), 0, 0)
				y.WantSend("revoked", is(77, ok))
			}
			step("revoked")
			if !bytes.Equal(b.Bytes(), x.Buf[:1000]) {
				t.Fatal("other octets")
			}
			step("used")
			fill(x.Buf, 6)
			before := bytes.Clone(b.Bytes())
			e.wantRefused("too late", x, y, rdma.OpWrite, 0, key, 1, term{1, 1, 0})
			if !bytes.Equal(before, b.Bytes()) {
				t.Error("the buffer was changed after its use had begun")
			}
			if want := []string{"open", "told", "revoked", "used"}; !slices.Equal(trace, want) {
				t.Errorf("the server did %v, want %v", trace, want)
			}
		})
	}
}

// What tools are told of windows and fast regions.
func TestKeyObjectInfo(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		_, y := e.pair(vnictest.PeerConfig{}, vnictest.PeerConfig{Access: bindable})
		w2, _ := window(t, y, rdma.MWType2, 100, 50, rdma.RemoteRead)
		w1, _ := y.PD.NewMW(rdma.MWType1)
		f, _ := y.PD.NewFastMR(500)
		d := e.b.Device()
		mws := d.MWs(e.b)
		want := vnic.MWInfo{
			Dev: d.Name(), Handle: w2.Handle(), PD: y.PD.Handle(), Type: 2, Bound: true,
			Addr: y.MR.Addr() + 100, Length: 50,
			Access: "--r--", MR: y.MR.Handle(), QPN: y.QP.Num(), Owner: vnic.Owner{Label: "b"},
		}
		if len(mws) != 2 || mws[0] != want || mws[1] != (vnic.MWInfo{Dev: d.Name(), Handle: w1.Handle(),
			PD: y.PD.Handle(), Type: 1, Owner: want.Owner}) {
			t.Errorf("windows %+v", mws)
		}
		find := func() (r, fr vnic.MRInfo) {
			for _, i := range d.MRs(e.b) {
				if i.Kind == "fast" {
					fr = i
				} else if i.PD == y.PD.Handle() {
					r = i
				}
			}
			return r, fr
		}
		if r, fr := find(); r.Users != 1 || !r.Valid || fr.Valid || fr.Length != 500 ||
			fr.Handle != f.Handle() {
			t.Errorf("region %+v, fast %+v", r, fr)
		}
		y.Post(regMR(y, f.RKey(), 0, 20, rdma.LocalWrite), 0, 0)
		y.WantSend("registered", is(regID, ok))
		if r, fr := find(); r.Users != 2 || !fr.Valid || fr.Length != 20 || fr.Addr != y.MR.Addr() ||
			fr.Access != "l----" {
			t.Errorf("region %+v, fast %+v", r, fr)
		}
		if i := d.DevInfo(); i.MWs != 2 {
			t.Errorf("%d windows", i.MWs)
		}
	})
}

// The cost of a grant and its end, beside a registration. SEC-017 asks that it can be measured.
func BenchmarkGrant(b *testing.B) {
	c, d := real(b, true)
	x, _ := vnictest.NewQPs(b, c, d, vnictest.PeerConfig{Access: bindable}, vnictest.PeerConfig{})
	wc := make([]rdma.WC, 1)
	take := func(b *testing.B) {
		for {
			if n, _ := x.SendCQ.Poll(wc); n == 1 {
				if wc[0].Status != ok {
					b.Fatal(wc[0].Status)
				}
				return
			}
			time.Sleep(time.Microsecond) // before it polls again
		}
	}
	pair := func(b *testing.B, wr rdma.SendWR) {
		wr.Flags = 0
		wrs := []rdma.SendWR{wr, {Op: rdma.OpLocalInv, Flags: rdma.Signaled}}
		b.ReportAllocs()
		for b.Loop() {
			wrs[0].RKey = rdma.NextKey(wrs[0].RKey)
			wrs[1].InvKey = wrs[0].RKey
			if _, err := x.QP.PostSends(wrs); err != nil {
				b.Fatal(err)
			}
			take(b)
		}
	}
	b.Run("BindInvalidate", func(b *testing.B) {
		w, _ := x.PD.NewMW(rdma.MWType2)
		defer w.Close()
		pair(b, bindMW(x, w.RKey(), 0, 100, rdma.RemoteRead))
	})
	b.Run("RegisterInvalidate", func(b *testing.B) {
		f, _ := x.PD.NewFastMR(100)
		defer f.Close()
		pair(b, regMR(x, f.RKey(), 0, 100, rdma.RemoteRead))
	})
	b.Run("RegisterClose", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			m, err := x.PD.RegisterMemory(x.Buf, bindable)
			if err != nil {
				b.Fatal(err)
			}
			m.Close()
		}
	})
}
