package server

import (
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm/internal/proctest"
	"github.com/vrnic/vrnic/shm/osmem"
)

type testServer struct {
	strangers atomic.Bool // nobody is privileged; set before there are clients
	t         testing.TB
	srv       *Server
	f         *fakeRNIC
	path      string
	log       *needtest.Buffer

	mu    sync.Mutex
	now   time.Time
	timer []*fakeTimer
}

type fakeTimer struct {
	d       time.Duration
	f       func()
	stopped bool
}

// newServer starts a server with a clock of its own; at the end of the test everything must be as
// before. limits are NAME=N.
func newServer(t testing.TB, limits ...string) *testServer {
	t.Helper()
	proctest.NoLeaks(t)
	ts := &testServer{t: t, f: &fakeRNIC{}, path: filepath.Join(t.TempDir(), "s"),
		log: &needtest.Buffer{}, now: time.Unix(1000, 0)}
	l := DefaultLimits()
	for _, s := range limits {
		if err := l.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	ts.srv, err = Listen(ts.path, Config{NewSession: ts.f.newSession, Limits: &l, Direct: true,
		Log:        slog.New(slog.NewTextHandler(ts.log, nil)),
		Privileged: func(osmem.Peer) bool { return !ts.strangers.Load() },
		AfterFunc:  ts.afterFunc, Now: func() time.Time {
			ts.mu.Lock()
			defer ts.mu.Unlock()
			return ts.now
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ts.srv.Close() })
	return ts
}

func (ts *testServer) afterFunc(d time.Duration, f func()) func() bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	x := &fakeTimer{d: d, f: f}
	ts.timer = append(ts.timer, x)
	return func() bool {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		was := !x.stopped
		x.stopped = true
		return was
	}
}

// expire fires all timers of a length.
func (ts *testServer) expire(d time.Duration) (n int) {
	ts.mu.Lock()
	due := ts.timer
	ts.mu.Unlock()
	for _, x := range due {
		ts.mu.Lock()
		fire := x.d == d && !x.stopped
		x.stopped = x.stopped || fire
		ts.mu.Unlock()
		if fire {
			n++
			x.f()
		}
	}
	return n
}

// id and srq are what the fake has made, in order.
func (ts *testServer) id(i int) *fakeID {
	ts.f.mu.Lock()
	defer ts.f.mu.Unlock()
	return ts.f.ids[i]
}

func (ts *testServer) srq(i int) *fakeSRQ {
	ts.f.mu.Lock()
	defer ts.f.mu.Unlock()
	return ts.f.srqs[i]
}

func (ts *testServer) want(what string, ok func() bool) {
	ts.t.Helper()
	proctest.Want(ts.t, what, ok)
}
