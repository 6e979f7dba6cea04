package server

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// An AsyncQueue says what a list says that is searched for each object, whatever comes, is taken
// and is destroyed, also where a handle is used again. What it keeps for nobody is bounded.
//
// +checklocksignore: nobody else has the queue.
func TestAsyncQueue(t *testing.T) {
	pipe, fd, err := osmem.NewEventPipe(&Session{}, func() {}) // which nobody has to read
	if err != nil {
		t.Fatal(err)
	}
	defer osmem.CloseFD(fd)
	const most, handles = 40, 5
	a := newAsyncQueue(most, pipe)
	defer a.close()
	var list []rpc.AsyncEvent
	r := rand.New(rand.NewPCG(1, 2))
	for i := range uint32(20_000) {
		o := asyncObj{[]uint32{rpc.ObjNone, rpc.ObjQP, rpc.ObjCQ}[r.IntN(3)], r.Uint32N(handles)}
		switch r.IntN(4) {
		case 0, 1:
			e := rpc.AsyncEvent{Type: i, Kind: o.kind, Handle: o.handle}
			if a.Push(e); len(list) < most {
				list = append(list, e)
			}
		case 2:
			e, ok := a.pop()
			if ok != (len(list) > 0) || ok && e != list[0] {
				t.Fatalf("step %d: took %+v of %+v", i, e, list)
			} else if ok {
				list = list[1:]
			}
		case 3:
			n := len(list)
			list = slices.DeleteFunc(list, func(e rpc.AsyncEvent) bool {
				return e.Kind == o.kind && e.Handle == o.handle
			})
			if d := a.forget(o.kind, o.handle); int(d.Tokens) != n-len(list) {
				t.Fatalf("step %d: %d tokens, want %d", i, d.Tokens, n-len(list))
			}
		}
		if n := len(a.q); n > 2*len(list)+1 || n-a.gone != len(list) {
			t.Fatalf("step %d: %d are kept, %d of them for nobody, of %d", i, n, a.gone, len(list))
		}
	}
}

// In a quiet time nothing is told, and behind it what has come of objects that are there still.
func TestAsyncQueueQuiet(t *testing.T) {
	pipe, fd, err := osmem.NewEventSocket(&Session{}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer osmem.CloseFD(fd)
	a := newAsyncQueue(2, pipe)
	defer a.close()
	a.Quiet(true)
	for i := range uint32(3) { // of which two have room
		a.Push(rpc.AsyncEvent{Type: 1, Kind: rpc.ObjQP, Handle: i})
	}
	if e, ok := a.pop(); ok {
		t.Errorf("%+v in a quiet time", e)
	}
	if r := a.forget(rpc.ObjQP, 0); r.Tokens != 0 {
		t.Errorf("%d tokens of what was not told", r.Tokens)
	}
	a.Quiet(false)
	if e, ok := a.pop(); !ok || e.Handle != 1 {
		t.Errorf("%+v, %v", e, ok)
	}
	if e, ok := a.pop(); ok {
		t.Errorf("%+v, too", e)
	}
}

// To destroy many objects that have events takes no time.
func BenchmarkForget(b *testing.B) {
	pipe, fd, err := osmem.NewEventSocket(&Session{}, func() {})
	if err != nil {
		b.Fatal(err)
	}
	defer osmem.CloseFD(fd)
	const n = 10_000
	a := newAsyncQueue(2*n, pipe)
	defer a.close()
	for b.Loop() {
		for i := range uint32(n) {
			a.Push(rpc.AsyncEvent{Kind: rpc.ObjQP, Handle: i})
		}
		for i := range uint32(n) {
			a.forget(rpc.ObjQP, i)
		}
	}
}

// An SRQ beyond what there can be is refused in words.
func TestSRQRefusal(t *testing.T) {
	ts := newServer(t)
	c := rawConnect(t, ts.path)
	hello := goodHello()
	hello.Features = rpc.FeatureReasons
	c.do(rpc.OpHello, hello, nil)
	var ctx rpc.CtxOpenReply
	c.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}, &ctx)
	var pd rpc.AllocPDReply
	c.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: ctx.Ctx}, &pd)
	for says, req := range map[string]*rpc.CreateSRQRequest{
		"--limit depth=N": {PD: pd.PD, MaxWR: 1 << 31},
		"max_sge":         {PD: pd.PD, MaxSGE: abi.MaxSGE + 1},
	} {
		var why rpc.Refusal
		if _, err := c.try(rpc.OpCreateSRQ, req, &why); !errors.Is(err, syscall.EINVAL) ||
			!strings.Contains(rpc.CString(why.Why[:]), says) {
			t.Errorf("%v, %q does not say %q", err, rpc.CString(why.Why[:]), says)
		}
	}
}

// An id whose events nobody takes can be asked for a part of those only that it may have waiting:
// what comes by itself finds room, and a listener's requests are not counted for it.
func TestEventsOfOneID(t *testing.T) {
	ts := newServer(t)
	c := rawConnect(t, ts.path)
	hello := goodHello()
	hello.Features = rpc.FeatureReasons
	c.do(rpc.OpHello, hello, nil)
	var ch rpc.CMCreateChanReply
	c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)
	var id rpc.CMCreateIDReply
	c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP}, &id)
	f := ts.id(0)
	for range 2 * maxEvents {
		if err := f.id.PushRequest(rpc.CMEvent{}, func(child *CMID) IDHandler {
			return &fakeID{h: f.h, id: child}
		}); err != nil {
			t.Fatal(err)
		}
	}
	resolve := func(rep rpc.Message) error {
		_, err := c.try(rpc.OpCMResolveAddr, &rpc.CMResolveAddrRequest{ID: id.ID,
			Dst: rpc.MakeSockAddr(netip.MustParseAddrPort("192.0.2.1:7"))}, rep)
		return err
	}
	for i := range maxAsked {
		if err := resolve(nil); err != nil {
			t.Fatalf("resolve %d: %v", i, err)
		}
	}
	var why rpc.Refusal
	if err := resolve(&why); !errors.Is(err, syscall.ENOMEM) ||
		!strings.Contains(rpc.CString(why.Why[:]), "32 events that wait") {
		t.Errorf("one more: %v, %q", err, rpc.CString(why.Why[:]))
	}

	// Each group has room for what is told of it, and what comes by itself has the rest.
	for i := range uint64(3) {
		group := netip.AddrFrom4([4]byte{224, 0, 1, byte(i)})
		c.do(rpc.OpCMJoinMulticast, &rpc.CMJoinMulticastRequest{ID: id.ID, UID: i,
			Addr: rpc.MakeSockAddr(netip.AddrPortFrom(group, 0))}, nil)
		f.id.Push(rpc.CMEvent{Type: rpc.EvMulticastError, Group: i})
	}
	for i := range maxEvents - maxAsked {
		if err := f.id.Push(rpc.CMEvent{Type: rpc.EvDisconnected}); err != nil {
			t.Fatalf("event %d that nobody asked for: %v", i, err)
		}
	}
	if err := f.id.Push(rpc.CMEvent{Type: rpc.EvDisconnected}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("an event beyond all bounds: %v", err)
	}

	for {
		var e rpc.CMEvent
		if _, err := c.try(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: ch.Chan}, &e); err != nil {
			break
		}
	}
	if err := resolve(nil); err != nil {
		t.Errorf("when all have been taken: %v", err)
	}
}

// Events that wait count as memory for queues, of a user's ids together: over it calls that are
// answered by events are refused, and no event is lost. When they are taken, or nobody is left to
// take them, it is free again.
func TestEventMemory(t *testing.T) {
	const most = 6 // for a user
	ts := newServer(t, "queue-bytes="+strconv.FormatInt(2*most*eventLen, 10))
	ts.strangers.Store(true)
	who := account{uid: uint32(os.Getuid())}
	counted := func(n int64) bool { return ts.srv.queues.of(who) == n*eventLen }
	want := func(when string, n int64) {
		t.Helper()
		if !counted(n) {
			t.Errorf("%s: %d octets, want those of %d events", when, ts.srv.queues.of(who), n)
		}
	}
	c := ts.client()
	var chs [2]rpc.CMCreateChanReply
	for i := range chs {
		c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &chs[i])
	}
	var ids [3]rpc.CMCreateIDReply
	resolved := 0
	for i := range ids {
		c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: chs[i%2].Chan, PS: rpc.PSTCP}, &ids[i])
		for range maxAsked {
			_, err := c.try(rpc.OpCMResolveAddr, &rpc.CMResolveAddrRequest{ID: ids[i].ID,
				Dst: rpc.MakeSockAddr(netip.MustParseAddrPort("192.0.2.1:7"))}, nil)
			if err != nil {
				if !errors.Is(err, syscall.ENOMEM) {
					t.Error(err)
				}
				break
			}
			resolved++
		}
	}
	// Each id has one for nothing, those behind the first no more than that.
	if resolved != most+len(ids) {
		t.Errorf("%d events for %d ids", resolved, len(ids))
	}
	want("all have been asked for", most)
	if err := ts.id(1).id.Push(rpc.CMEvent{Type: rpc.EvDisconnected}); err != nil {
		t.Errorf("an event that nobody asked for: %v", err)
	}
	want("one more came", most+1)
	c.do(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: ids[0].ID, Chan: chs[1].Chan}, nil)
	want("behind a migration", most+1)
	c.do(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: chs[1].Chan}, &rpc.CMEvent{})
	want("one was taken", most)
	c.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: ids[0].ID}, nil)
	want("an id is gone", 0)
	for range 3 {
		ts.id(2).id.Push(rpc.CMEvent{Type: rpc.EvDisconnected})
	}
	want("others came", 3)
	c.close()
	ts.want("nothing is counted when the session is over", func() bool { return counted(0) })
}
