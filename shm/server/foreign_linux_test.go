package server

import (
	"errors"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/internal/proctest"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A client can send a descriptor of which it takes the kernel for ever to close it. The daemon
// gives up such a client after a while, so that its peers see it go, and nobody else waits; but its
// place in the quotas is taken until the kernel is done.
func TestDescriptorThatHangs(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(c *rawClient, fd int)
		now  bool // the session ends at once, for another reason
	}{
		{"as its memory", func(c *rawClient, fd int) {
			c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpSetMem},
				&rpc.SetMemRequest{NonceAddr: 1 << 20}), fd)
		}, false},
		{"lent", func(c *rawClient, fd int) {
			c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpAddMem}, &rpc.AddMemRequest{}), fd)
		}, false},
		{"with a request that takes none", func(c *rawClient, fd int) {
			c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpAllocPD}, &rpc.AllocPDRequest{}), fd)
		}, true},
		{"two", func(c *rawClient, fd int) {
			c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpAddMem}, &rpc.AddMemRequest{}), fd,
				c.memfd(1, 0))
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ts := newServer(t)
			honest := ts.client()
			hq := honest.newQP()
			fd, release := proctest.SlowSocket(t)
			defer release()
			ts.srv.mu.Lock() // no session begins until the last one who has the socket is the daemon
			c := rawConnect(t, ts.path)
			c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpHello}, goodHello()))
			tt.do(c, fd)
			syscall.Close(fd)
			ts.srv.mu.Unlock()
			hq.roundTrip(t, 1)
			ts.want("HELLO, which is waited for as long", func() bool {
				ts.f.mu.Lock()
				defer ts.f.mu.Unlock()
				return ts.f.began == 2
			})
			ts.want("the handler is told", func() bool {
				if !tt.now {
					ts.expire(foreignTime)
				}
				return len(ts.f.causes()) == 1
			})
			if cs := ts.f.causes(); !abi.IsViolation(cs[0]) {
				t.Errorf("it was told %v", cs)
			}
			hq.roundTrip(t, 2)
			if n := ts.srv.Stats().Sessions; n != 2 {
				t.Errorf("%d sessions have a place, want 2 until the descriptor is closed", n)
			}
			release()
			ts.want("the session goes", func() bool { return ts.srv.Stats().Sessions == 1 })
			hq.roundTrip(t, 3)
		})
	}
}

// Nobody waits for the descriptors of a client that has no session, nor for those that a client has
// sent and nobody has received: not the clients that come next, and not the end of the daemon.
func TestDescriptorsOfTheRefused(t *testing.T) {
	ts := newServer(t, "sessions=1")
	ts.strangers.Store(true)
	honest := ts.client()
	hq := honest.newQP()
	ts.srv.mu.Lock() // nobody is let in until the last one who has the sockets is the daemon
	var releases []func()
	for range maxRefusals + 1 {
		fd, release := proctest.SlowSocket(t)
		defer release()
		releases = append(releases, release)
		c := rawConnect(t, ts.path)
		c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpHello}, goodHello()), fd)
		c.close()
		syscall.Close(fd)
	}
	ts.srv.mu.Unlock()
	ts.want("places for those who are to be refused", func() bool {
		ts.srv.mu.Lock()
		defer ts.srv.mu.Unlock()
		return ts.srv.refused.Load() == maxRefusals+1 && len(ts.srv.refusals) == 0
	})
	over := rawConnect(t, ts.path)
	if _, err := over.try(rpc.OpHello, goodHello(), nil); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a client beyond the limit is told %v", err)
	}
	hq.roundTrip(t, 1)
	// The daemon keeps no socket of those who come without descriptors, whatever hangs.
	idle := func() bool {
		ts.srv.mu.Lock()
		defer ts.srv.mu.Unlock()
		return len(ts.srv.refusals) == 0
	}
	for range 3 * maxLeaving {
		c := rawConnect(t, ts.path)
		c.sendRaw(nil)
		c.sendRaw([]byte("more"))
		c.close()
	}
	refused := func() bool { return ts.srv.refused.Load() == 3*maxLeaving+maxRefusals+2 }
	ts.want("all are refused", func() bool { return refused() && idle() })
	last := rawConnect(t, ts.path)
	if _, err := last.try(rpc.OpHello, goodHello(), nil); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("the last client is told %v", err)
	}
	ts.want("the last ones to go", idle)
	ts.srv.leaving.mu.Lock()
	n := len(ts.srv.leaving.wait)
	ts.srv.leaving.mu.Unlock()
	if n != 1 {
		t.Errorf("%d sockets wait for those that hang, want the one that has a descriptor", n)
	}
	honest.close()
	if err := ts.srv.Close(); err != nil {
		t.Error(err)
	}
	for _, release := range releases {
		release()
	}
	ts.want("all sockets are closed", func() bool {
		ts.srv.leaving.mu.Lock()
		defer ts.srv.leaving.mu.Unlock()
		return ts.srv.leaving.n == 0
	})
}
