package vnic_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// heard is what the watchers of some queue pairs have heard.
type heard struct {
	mu   sync.Mutex
	all  []string
	took []time.Duration
}

func (h *heard) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, fmt.Sprintf(format, args...))
}

// take is what was heard since the last call.
func (h *heard) take() (all []string, took []time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all, took = h.all, h.took
	h.all, h.took = nil, nil
	return all, took
}

// want fails the test if what was heard since the last call is something else.
func (h *heard) want(t *testing.T, why string, want ...string) (took []time.Duration) {
	t.Helper()
	all, took := h.take()
	if !slices.Equal(all, want) {
		t.Errorf("%s: heard %q, want %q", why, all, want)
	}
	return took
}

// A watcher writes down what it hears of one queue pair.
type watcher struct {
	*heard
	name string
}

func (w watcher) Taken(_ time.Time, wr *rdma.SendWR, behind int) {
	w.add("%s takes %v %d behind %d", w.name, wr.Op, wr.ID, behind)
}

func (w watcher) Completed(_ time.Time, wr *rdma.SendWR, st rdma.WCStatus, took time.Duration) {
	w.add("%s ends %v %d: %v", w.name, wr.Op, wr.ID, st)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = append(w.took, took)
}

func (w watcher) Received(_ time.Time, wc *rdma.WC) {
	w.add("%s receives %d: %v", w.name, wc.ID, wc.Status)
}

// observe has h hear of queue pair qpn of d, or of all for 0.
func (h *heard) observe(d *vnic.Device, name string, qpn uint32) (stop func()) {
	return d.Observe(func(n uint32) vnic.RequestWatcher {
		if qpn != 0 && n != qpn {
			return nil
		}
		return watcher{h, name}
	})
}

// Who observes hears of each request, signaled or not, when it is taken and when it has completed,
// and for how long it was under way; also of queue pairs that are made later, and not any more when
// it has ended.
func TestObserve(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		var a, b, one heard
		stopA := a.observe(e.a.Device(), "a", 0)
		p, q := e.plain()
		if e.a.Device() == e.b.Device() {
			stopA() // it would hear of both
			stopA = a.observe(e.a.Device(), "a", p.QP.Num())
		}
		stopB := b.observe(e.b.Device(), "b", q.QP.Num())
		a.take() // what joined them
		b.take()

		q.Recv(1, 0, 64)
		wr := rdma.SendWR{ID: 2, Op: rdma.OpSend, SGEs: []rdma.SGE{p.SGE(0, 64)}} // not signaled
		if err := p.QP.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		q.WantRecv("the Send", is(1, ok))
		b.want(t, "a receive", "b receives 1: "+ok.String())

		const late = 7 * time.Millisecond
		if !e.local() {
			e.hold(true)
		}
		p.Read(3, 0, 64, q, 0)
		e.settle()
		time.Sleep(late)
		stopOne := one.observe(e.a.Device(), "one", p.QP.Num()) // when it was taken long ago
		if !e.local() {
			e.hold(false)
		}
		p.WantSend("the Read", is(3, ok))
		e.settle()
		took := a.want(t, "a Send and a Read", "a takes SEND 2 behind 0", "a ends SEND 2: "+ok.String(),
			"a takes READ 3 behind 0", "a ends READ 3: "+ok.String())
		if e.local() {
			one.want(t, "a Read that was over")
		} else {
			again := one.want(t, "a Read that it saw the end of", "one ends READ 3: "+ok.String())
			if len(took) != 2 || took[1] < late || !slices.Equal(again, took[1:]) {
				t.Errorf("the Read was held for %v: it took %v, and %v", late, took, again)
			}
		}
		stopOne()
		stopA()
		p.Write(4, 0, 64, q, 0)
		p.WantSend("a Write that nobody looks at", is(4, ok))
		a.want(t, "after the end")
		one.want(t, "after the end")

		stopB()
		stopB() // which may be called again
	})
}

// A request that fails, and those behind it, are heard of with how they end; and a device whose
// queue pairs are closed while somebody looks is as good as before.
func TestObserveFlush(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		var h heard
		p, q := e.plain()
		stop := h.observe(e.a.Device(), "p", p.QP.Num())
		p.Post(rdma.SendWR{ID: 1, Op: rdma.OpRead, RemoteAddr: q.MR.Addr(), RKey: q.MR.RKey() + 1},
			0, 64)
		p.Write(2, 0, 64, q, 0)
		p.Next(p.SendCQ, 2)
		e.settle()
		all, _ := h.take()
		got := slices.DeleteFunc(all, func(s string) bool { return s[:7] == "p takes" })
		if want := []string{"p ends READ 1: " + rdma.WCRemAccess.String(),
			"p ends WRITE 2: " + flush.String()}; !slices.Equal(got, want) {
			t.Errorf("heard %q, want %q", got, want)
		}
		if err := p.QP.Close(); err != nil {
			t.Error(err)
		}
		stop()
		r, s := e.plain()
		r.Write(3, 0, 64, s, 0)
		r.WantSend("a Write", is(3, ok))
		h.want(t, "after the end")
	})
}

// Of RoCE, too: what is copied within a device and what goes as packets.
func TestObserveRoCE(t *testing.T) {
	for name, beside := range map[string]*vnic.Beside{"packets": nil, "copied": new(vnic.Beside)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y := plainRC(t, 4096, beside)
				var h heard
				stop := h.observe(x.Ctx.Device(), "x", 0)
				defer stop()
				y.Recv(1, 0, 64)
				x.Send(2, 0, 64)
				x.WantSend("the Send", is(2, ok))
				x.Read(3, 0, 64, y, 0)
				x.WantSend("the Read", is(3, ok))
				h.want(t, "two", "x takes SEND 2 behind 0", "x ends SEND 2: "+ok.String(),
					"x takes READ 3 behind 0", "x ends READ 3: "+ok.String())
			})
		})
	}
}

// Queue pairs come and go while others begin and end to look at them: the race detector sees what
// is not guarded, and who looks at the end hears everything.
func TestObserveChurn(t *testing.T) {
	a, b := vnictest.Pair(t)
	ca, cb := vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.Open(t, b, vnic.ContextConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				var h heard
				h.observe(a, "a", 0)()
			}
		})
	}
	for range 20 {
		p, q := vnictest.NewQPs(t, ca, cb, vnictest.PeerConfig{}, vnictest.PeerConfig{})
		var h heard
		stop := h.observe(a, "p", p.QP.Num())
		for i := range uint64(16) {
			p.Write(i, 0, 64, q, 0)
		}
		p.Next(p.SendCQ, 16)
		if all, _ := h.take(); len(all) != 32 {
			t.Errorf("heard %d of 16 Writes: %q", len(all), all)
		}
		stop()
		if err := p.QP.Close(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	wg.Wait()
}

// Who looks at what is copied within a device sees each message as DDP segments, also on a
// connection that was there before: from one to the other, with the octets that the program has
// sent, and no more when nobody looks.
func TestWatchCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type segment struct {
			from netip.AddrPort
			text string
		}
		var mu sync.Mutex
		var seen []segment
		e := newEnv(t, path{loop: true}, func(c *vnic.Config) {
			c.OnCopied = func(from, to netip.AddrPort, s []byte) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, segment{from, iwarp.DescribeSegment(s)})
			}
		})
		x, y := e.plain()
		other, _ := e.plain() // at rest
		message := func(id uint64) {
			t.Helper()
			fill(x.Buf[:100], byte(id))
			y.Recv(id, 0, 100)
			x.Send(id, 0, 100)
			x.WantSend("a Send", is(id, ok))
			y.WantRecv("a Send", is(id, ok))
			if !bytes.Equal(x.Buf[:100], y.Buf[:100]) {
				t.Errorf("message %d is another", id)
			}
		}
		message(1)
		stop := e.a.Device().WatchCopies()
		synctest.Wait()
		if !x.QP.HandedOver() || !other.QP.HandedOver() {
			t.Error("a connection copies past who looks")
		}
		if len(seen) != 0 {
			t.Errorf("before anything was sent there is %v", seen)
		}
		message(2)
		y.Read(3, 0, 60, x, 0)
		y.WantSend("a Read", is(3, ok))
		stop()
		message(4)
		a, b := x.QP.Info().Local, y.QP.Info().Local
		for i, want := range []segment{{a, "Send qn=0 "}, {b, "RDMA Read Request qn=1 "},
			{a, "RDMA Read Response "}} {
			if i >= len(seen) || seen[i].from != want.from || !strings.HasPrefix(seen[i].text, want.text) {
				t.Errorf("segment %d of %v, want %v", i, seen, want)
			}
		}
		if len(seen) != 3 {
			t.Errorf("there are %d segments", len(seen))
		}
	})
}
