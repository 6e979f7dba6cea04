package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm/internal/proctest"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// Five users take all the sessions that they can get: root has room, and is told who has what.
func TestFiveUsersFillTheDaemon(t *testing.T) {
	proctest.NoLeaks(t)
	l := DefaultLimits()
	l.Sessions, l.SessionsPerUID = 256, 64
	s, err := Listen(filepath.Join(t.TempDir(), "s"), Config{NewSession: (&fakeRNIC{}).newSession,
		Limits: &l})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if p := s.cfg.Privileged; p(osmem.Peer{UID: uint32(os.Geteuid()) + 1}) || !p(osmem.Peer{}) ||
		!p(osmem.Peer{UID: uint32(os.Geteuid())}) {
		t.Error("who is privileged")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	total := 0
	for uid := uint32(70001); uid <= 70005; uid++ {
		for s.room(account{uid: uid}, false) == nil {
			s.perUser[account{uid: uid}]++
			total++
		}
	}
	defer clear(s.perUser)
	if total != 240 || s.perUser[account{uid: 70001}] != 64 {
		t.Errorf("five users have %d of 256 sessions: %v", total, s.perUser)
	}
	if err := s.room(account{}, true); err != nil {
		t.Errorf("root has no session: %v", err)
	}
	for _, tt := range []struct {
		uid  uint32
		want string
	}{
		{70001, "uid 70001 has 64 sessions, as many as one user may (\"vrnic up --limit " +
			"sessions-per-uid=N\" sets the limit)"},
		{70006, "the daemon's 240 sessions are taken: uid 70006 has 0, others the rest (\"vrnic up " +
			"--limit sessions=N\" sets the limit)"},
	} {
		if err := s.room(account{uid: tt.uid}, false); err == nil || err.Error() != tt.want ||
			!errors.Is(err, syscall.ENOMEM) {
			t.Errorf("uid %d is told %v\nwant %s", tt.uid, err, tt.want)
		}
	}
	for s.room(account{}, true) == nil {
		s.perUser[account{}]++
	}
	if err := s.room(account{}, true); !strings.Contains(err.Error(),
		"taken: uid 70001 has 64, uid 70002 has 64, uid 70003 has 64, uid 70004 has 48, uid 0 has 16 (") {
		t.Errorf("root is told %v", err)
	}
}

// One user cannot take all mappings or pipes, and all users leave some.
func TestPools(t *testing.T) {
	p := newPool("pipes", "event pipes", 16)
	take := func(uid uint32, privileged bool) (n int, err error) {
		for ; n < 100; n++ {
			if err = p.take(account{uid: uid}, privileged); err != nil {
				break
			}
		}
		return n, err
	}
	for _, tt := range []struct {
		uid        uint32
		privileged bool
		n          int
		why        string
	}{
		{1, false, 8, "uid 1 has 8 of the daemon's 16 event pipes, as many as one user may"},
		{2, false, 6, "the daemon's 14 event pipes are taken: uid 2 has 6, others the rest"},
		{0, true, 2, "the daemon's 16 event pipes are taken: uid 1 has 8, uid 2 has 6, uid 0 has 2"},
	} {
		n, err := take(tt.uid, tt.privileged)
		if n != tt.n || !strings.HasPrefix(fmt.Sprint(err), tt.why) ||
			!strings.Contains(fmt.Sprint(err), "--limit pipes=N") {
			t.Errorf("uid %d took %d: %v", tt.uid, n, err)
		}
	}
	p.give(account{uid: 1}, 1)
	if n, _ := take(3, false); n != 0 { // what is kept is free again first
		t.Errorf("a third user took %d", n)
	}
	if n, _ := take(0, true); n != 1 || p.count() != 16 || p.of(account{uid: 1}) != 7 {
		t.Errorf("%d of what was given back, %d in all, %d of uid 1", n, p.count(), p.of(account{uid: 1}))
	}
}

// One user's queue pairs take half of the memory that there is for queues, in however many
// sessions, and give it back when they, or their sessions, end.
func TestQueueMemory(t *testing.T) {
	ts := newServer(t, "queue-bytes=5000")
	ts.strangers.Store(true)
	who := account{uid: uint32(os.Getuid())}
	a, b := ts.client(), ts.client()
	q, p := a.newQP(), b.newQP()
	more := func(c *rawClient, q *rawQP) (uint32, error) {
		var rep rpc.CreateQPReply
		req := &rpc.CreateQPRequest{PD: q.pd, SendCQ: q.cq, RecvCQ: q.cq}
		_, err := c.try(rpc.OpCreateQP, req, &rep)
		return rep.QP, err
	}
	for c, of := range map[*rawClient]*rawQP{a: q, b: p} {
		if _, err := more(c, of); err != nil {
			t.Fatal(err)
		}
	}
	if n := ts.srv.queues.of(who); n != 4*fakeQPMemory {
		t.Fatalf("%d octets are counted", n)
	}
	if _, err := more(b, p); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a fifth: %v", err)
	}
	want := "has 2400 of the daemon's 5000 octets of memory for queues, as many as one user may, " +
		"and 600 are wanted (\"vrnic up --limit queue-bytes=N\" sets the limit)"
	if err := ts.srv.queues.takeMany(who, false, fakeQPMemory); !strings.HasSuffix(fmt.Sprint(err),
		want) {
		t.Errorf("told %v\nwant %s", err, want)
	}
	a.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q.qp}, nil)
	if _, err := more(b, p); err != nil {
		t.Errorf("behind one that was destroyed: %v", err)
	}
	b.close()
	ts.want("the memory is free", func() bool { return ts.srv.queues.of(who) == fakeQPMemory })
	if r := ts.srv.Users(); len(r) != 1 || r[0].Queues != fakeQPMemory {
		t.Errorf("%+v", r)
	}
}

// An id that has a socket of the host, and each that comes of it, count as a pipe until they are
// gone.
func TestSockets(t *testing.T) {
	ts := newServer(t, "pipes=3")
	who := account{uid: uint32(os.Getuid())}
	c := ts.client()
	var ch rpc.CMCreateChanReply
	c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)
	var id rpc.CMCreateIDReply
	c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP}, &id)
	f := ts.id(0)
	request := func() error {
		return f.id.PushRequest(rpc.CMEvent{}, func(child *CMID) IDHandler {
			return &fakeID{h: f.h, id: child}
		})
	}
	if err := request(); err != nil {
		t.Fatal(err)
	}
	if n := ts.srv.pipes.of(who); n != 1 {
		t.Errorf("without sockets %d are counted", n)
	}
	for range 2 { // it has one
		if err := f.id.TakeSocket(); err != nil {
			t.Fatal(err)
		}
	}
	if err := request(); err != nil {
		t.Error(err)
	}
	if n := ts.srv.pipes.of(who); n != 3 {
		t.Errorf("%d are counted", n)
	}
	if err := request(); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a socket too many: %v", err)
	}
	if n := ts.srv.ids.of(who); n != 3 {
		t.Errorf("%d ids are counted", n)
	}
	c.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: id.ID}, nil)
	if n := ts.srv.pipes.of(who); n != 1 {
		t.Errorf("%d are counted when the ids are gone", n)
	}
	c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP}, &id)
	if err := ts.id(1).id.TakeSocket(); err != nil {
		t.Error(err)
	}
	c.close()
	ts.want("the session has given all back", func() bool { return ts.srv.pipes.of(who) == 0 })
}

// Beyond the limits root and the daemon's own user may look, and nothing else.
func TestLooking(t *testing.T) {
	ts := newServer(t, "sessions-per-uid=1", "mappings=4")
	full := ts.client()
	full.newQP() // and all mappings
	var lookers []*rawClient
	for range maxLookers {
		c := ts.client()
		var rep rpc.ListReply
		c.do(rpc.OpList, &rpc.ListRequest{Kind: rpc.ListUser}, &rep)
		var row UserRow
		if err := json.Unmarshal(rep.Data[:rep.Len], &row); err != nil || row.QPs != 1 ||
			row.Sessions != 2+len(lookers) || row.UID != uint32(os.Getuid()) || !row.Me {
			t.Fatalf("%s: %v", rep.Data[:rep.Len], err)
		}
		c.do(rpc.OpStat, &rpc.ListRequest{}, nil)
		c.do(rpc.OpQueryDevice, &rpc.QueryDeviceRequest{}, nil)
		for _, op := range []rpc.Op{rpc.OpCtxOpen, rpc.OpCMCreateChan, rpc.OpSetMem} {
			req, _ := op.Messages()
			var fds []int
			if op.Takes() > 0 {
				fds = append(fds, c.openMem())
			}
			if _, err := c.try(op, req, nil, fds...); !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("%v: %v", op, err)
			}
		}
		lookers = append(lookers, c)
	}
	hello := goodHello()
	hello.Features = rpc.FeatureReasons
	c := rawConnect(t, ts.path)
	var why rpc.Refusal
	if _, err := c.try(rpc.OpHello, hello, &why); !errors.Is(err, syscall.ENOMEM) ||
		!strings.Contains(rpc.CString(why.Why[:]), "--limit sessions-per-uid=N") {
		t.Errorf("one too many looks: %v, %q", err, rpc.CString(why.Why[:]))
	}
	for _, c := range lookers {
		c.close()
	}
	ts.want("they have gone", func() bool { return ts.srv.Stats().Sessions == 1 })
	ts.client().close()
	full.close()
	ts.want("all have gone", func() bool {
		return ts.srv.Stats() == Stats{Accepted: 18,
			Refused: 1}
	})
}

// Root of a container has no part in what root may have. All users of a container, who are as many
// as its root likes, have what one user may.
func TestAccount(t *testing.T) {
	of := func(guest string, uid uint32) any {
		return (&Session{guest: guest, peer: osmem.Peer{UID: uid}}).Account()
	}
	for _, tt := range []struct {
		a, b any
		same bool
	}{
		{of("", 0), of("", 0), true},
		{of("", 0), of("", 1), false},
		{of("", 0), of("vrnic0", 0), false},
		{of("vrnic0", 0), of("vrnic0", 1), true},
		{of("vrnic0", 0), of("vrnic1", 0), false},
	} {
		if (tt.a == tt.b) != tt.same {
			t.Errorf("%v and %v: the same is %t", tt.a, tt.b, !tt.same)
		}
	}
}
