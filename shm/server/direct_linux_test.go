package server

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/rpc"
)

// helloDirect offers the direct path, and returns the session.
func (ts *testServer) helloDirect() (*rawClient, *Session) {
	ts.t.Helper()
	c := rawConnect(ts.t, ts.path)
	hello := goodHello()
	hello.Features = rpc.FeatureDirect
	var rep rpc.HelloReply
	c.do(rpc.OpHello, hello, &rep)
	if rep.Features != rpc.FeatureDirect {
		ts.t.Fatalf("features %#x, want the direct path", rep.Features)
	}
	ts.srv.mu.Lock()
	defer ts.srv.mu.Unlock()
	for s := range ts.srv.sessions {
		if s.ID() == rep.Session {
			return c, s
		}
	}
	ts.t.Fatalf("no session %d", rep.Session)
	return nil, nil
}

func (c *rawClient) identify(kind uint32, file string) error {
	c.t.Helper()
	_, err := c.try(rpc.OpIdentify, &rpc.IdentifyRequest{Kind: kind}, nil,
		c.openFile(file, unix.O_RDONLY))
	return err
}

// A client that has died is gone at once, also if its session waits for something meanwhile and has
// not heard of it: who is asked is who it may wait for.
func TestGoneAtOnce(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	var s *Session
	ts.srv.mu.Lock()
	for s = range ts.srv.sessions {
	}
	ts.srv.mu.Unlock()
	busy := make(chan struct{})
	defer close(busy)
	ts.f.closing.Store(q.qpn, busy)
	c.seq++
	if err := c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpDestroyQP, Seq: c.seq},
		&rpc.HandleRequest{Handle: q.qp})); err != nil {
		t.Fatal(err)
	}
	if s.Gone() {
		t.Error("it is gone while it is there")
	}
	c.close()
	if !s.Gone() {
		t.Error("it is not gone")
	}
}

// Of what a client lends the daemon keeps so many descriptors for its peers; it may lend more.
func TestLentDescriptors(t *testing.T) {
	ts := newServer(t, "pipes=16") // root may have all of the 4
	c, s := ts.helloDirect()
	var mems []uint32
	lend := func(want int) {
		t.Helper()
		var m rpc.AddMemReply
		c.do(rpc.OpAddMem, &rpc.AddMemRequest{}, &m, c.memfd(4096, unix.F_SEAL_SHRINK))
		mems = append(mems, m.Mem)
		kept := 0
		for _, n := range mems {
			if fd, err := s.LentMem(n); err == nil {
				unix.Close(fd)
				kept++
			} else if err != syscall.ENOENT {
				t.Fatal(err)
			}
		}
		if kept != want || ts.srv.shared.count() != int64(want) {
			t.Errorf("%d of %d can be had, %d count, want %d", kept, len(mems), ts.srv.shared.count(), want)
		}
	}
	for _, want := range []int{1, 2, 3, 4, 4} {
		lend(want)
	}
	c.do(rpc.OpDelMem, &rpc.HandleRequest{Handle: mems[0]}, nil)
	lend(4)
	c.close()
	ts.srv.Close()
	if n := ts.srv.shared.count(); n != 0 {
		t.Errorf("%d count when all are gone", n)
	}
}

const (
	userNS = "/proc/self/ns/user"
	pidNS  = "/proc/self/ns/pid"
)

// Programs may exchange messages without the daemon if both have said that they can and have shown
// the same namespaces.
func TestMayShare(t *testing.T) {
	ts := newServer(t)
	shows := func(user, pid string) *Session {
		t.Helper()
		c, s := ts.helloDirect()
		for kind, file := range map[uint32]string{rpc.NamespaceUser: user, rpc.NamespaceProcess: pid} {
			if file == "" {
				continue
			}
			if err := c.identify(kind, file); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	a := shows(userNS, pidNS)
	for _, test := range []struct {
		name string
		with *Session
		want bool
	}{
		{"the same", shows(userNS, pidNS), true},
		{"nothing shown", shows("", ""), false},
		{"one shown", shows(userNS, ""), false},
		{"another user namespace", shows("/proc/self/ns/net", pidNS), false},
		{"another pid namespace", shows(userNS, "/proc/self/ns/net"), false},
	} {
		if a.MayShare(test.with) != test.want || test.with.MayShare(a) != test.want {
			t.Errorf("%s: want %v", test.name, test.want)
		}
	}
	if nobody := shows("", ""); nobody.MayShare(shows("", "")) {
		t.Error("two that have shown nothing")
	}
	// The kernel has said who they are when they connected.
	for what, change := range map[string]func(*self){
		"another user":  func(who *self) { who.uid++ },
		"another label": func(who *self) { who.label = "other" },
	} {
		other := shows(userNS, pidNS)
		other.mu.Lock()
		change(&other.self)
		other.mu.Unlock()
		if a.MayShare(other) {
			t.Error(what)
		}
	}
	ts.client() // as libraries before
	ts.srv.mu.Lock()
	defer ts.srv.mu.Unlock()
	for s := range ts.srv.sessions {
		if !s.HasDirect() && (s.MayShare(a) || a.MayShare(s)) {
			t.Error("a program that has not offered it")
		}
	}
}

// A namespace is held while it is compared, since another one may get its number.
func TestNamespaceHeld(t *testing.T) {
	ts := newServer(t)
	c, s := ts.helloDirect()
	before := openNamespaces(t)
	if err := c.identify(rpc.NamespaceUser, userNS); err != nil {
		t.Fatal(err)
	}
	if n := openNamespaces(t); n != before+2 { // the client's own, in this process too
		t.Errorf("%d descriptors of namespaces are open, want %d", n, before+2)
	}
	c.close()
	<-s.Done()
	ts.want("it is closed", func() bool { return openNamespaces(t) == before })
}

func openNamespaces(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink("/proc/self/fd/" + fd.Name()) // one may be closed meanwhile
		if strings.HasPrefix(to, "user:[") {
			n++
		}
	}
	return n
}

// What IDENTIFY and DIRECT refuse.
func TestIdentifyRefused(t *testing.T) {
	ts := newServer(t)
	c, _ := ts.helloDirect()
	want := func(err error, errno syscall.Errno) {
		t.Helper()
		if !errors.Is(err, errno) {
			t.Errorf("%v, want %v", err, errno)
		}
	}
	want(c.identify(0, userNS), syscall.EINVAL)
	want(c.identify(rpc.NamespaceProcess+1, userNS), syscall.EINVAL)
	_, err := c.try(rpc.OpIdentify, &rpc.IdentifyRequest{Kind: rpc.NamespaceUser}, nil)
	want(err, syscall.EINVAL)
	if err := c.identify(rpc.NamespaceUser, userNS); err != nil {
		t.Fatal(err)
	}
	want(c.identify(rpc.NamespaceUser, userNS), syscall.EEXIST)
	want(c.identify(rpc.NamespaceProcess, "/proc/self/status"), syscall.EINVAL)
	_, err = c.try(rpc.OpDirect, &rpc.HandleRequest{Handle: 1}, nil)
	want(err, syscall.ENOENT)

	old := ts.client()
	want(old.identify(rpc.NamespaceUser, userNS), syscall.EOPNOTSUPP)
}
