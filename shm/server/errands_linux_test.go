package server

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/internal/proctest"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A client of an earlier version can have the kernel keep who writes to its pipes, or closes them.
// Nobody else waits: not who tells it of events, not others' calls, not who lists the clients. If
// it goes on calling its session ends; its place is free when the kernel is done.
func TestEventPipesThatHang(t *testing.T) {
	for _, tt := range []struct {
		name string
		// do has an octet come to a pipe, which is returned, and what makes another event.
		do func(ts *testServer, c *rawClient) (pipe int, event func())
	}{
		{"connection manager", func(ts *testServer, c *rawClient) (int, func()) {
			var ch rpc.CMCreateChanReply
			fds := c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)
			c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSTCP, Type: 2}, nil)
			return fds[0], func() { ts.id(0).id.Push(rpc.CMEvent{Type: rpc.EvAddrResolved}) }
		}},
		{"asynchronous", func(ts *testServer, c *rawClient) (int, func()) {
			fds := c.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}, nil)
			s := ts.session()
			s.mu.Lock()
			defer s.mu.Unlock()
			q := s.ctxs.m[1].events
			return fds[0], func() { q.Push(rpc.AsyncEvent{Type: 1}) }
		}},
		{"completion channel", func(ts *testServer, c *rawClient) (int, func()) {
			var ctx rpc.CtxOpenReply
			c.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}, &ctx)
			fds := c.do(rpc.OpCreateChan, &rpc.CreateChanRequest{Ctx: ctx.Ctx}, nil)
			s := ts.session()
			s.mu.Lock()
			defer s.mu.Unlock()
			return fds[0], s.chans.m[1].pipe.Token
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ts := newServer(t)
			c := rawConnect(t, ts.path)
			c.do(rpc.OpHello, goodHello(), nil)
			s := ts.session()
			pipe, event := tt.do(ts, c)
			event()
			ts.want("an octet in the pipe", func() bool {
				n, err := unix.IoctlGetInt(pipe, unix.TIOCINQ)
				return n == 1 && err == nil
			})
			release := proctest.HoldPipe(t, pipe)
			defer release()
			returns(t, "who tells of events", func() { event(); event() })
			returns(t, "who lists the clients", func() { ts.srv.Clients() })
			if err := c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpQueryDevice},
				&rpc.QueryDeviceRequest{})); err != nil {
				t.Fatal(err)
			}
			ts.want("the session to end", func() bool {
				ts.expire(foreignTime)
				return s.ended()
			})
			ts.want("the handler to be closed", func() bool { return len(ts.f.causes()) == 1 })
			returns(t, "who lists the clients", func() { ts.srv.Clients() })
			other := ts.client()
			if n := ts.srv.Stats().Sessions; n != 2 {
				t.Errorf("%d sessions have a place, want 2 until the pipe is closed", n)
			}
			other.close()
			release()
			ts.want("the session goes", func() bool { return ts.srv.Stats().Sessions == 0 })
		})
	}
}

// returns ends the test if f does not return.
func returns(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal(what, "hangs")
	}
}

// A client that takes sockets has them for events of all kinds, with an end when the session is
// over; another one has pipes.
func TestSocketsForEvents(t *testing.T) {
	for features, kind := range map[uint64]uint32{rpc.FeatureSockets: unix.S_IFSOCK, 0: unix.S_IFIFO} {
		ts := newServer(t)
		c := rawConnect(t, ts.path)
		hello := goodHello()
		hello.Features = features
		c.do(rpc.OpHello, hello, nil)
		var ctx rpc.CtxOpenReply
		ends := c.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}, &ctx)
		ends = append(ends, c.do(rpc.OpCreateChan, &rpc.CreateChanRequest{Ctx: ctx.Ctx}, nil)[0])
		ends = append(ends, c.do(rpc.OpCMCreateChan, &rpc.Empty{}, nil)...)
		for i, fd := range ends {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != kind {
				t.Errorf("features %#x: descriptor %d has mode %#x, want %#x: %v", features, i, st.Mode, kind,
					err)
			}
		}
		osmem.CloseFD(c.fd)
		c.fd = -1
		for i, fd := range ends {
			if n, err := syscall.Read(fd, make([]byte, 1)); n != 0 || err != nil {
				t.Errorf("features %#x: descriptor %d: %d, %v, want the end", features, i, n, err)
			}
		}
	}
}

// What a client has given back it can have again at once.
func TestQuotasOfWhatWasGivenBack(t *testing.T) {
	for _, features := range []uint64{0, rpc.FeatureSockets} {
		ts := newServer(t, "pipes=2", "mappings=4")
		c := rawConnect(t, ts.path)
		hello := goodHello()
		hello.Features = features
		c.do(rpc.OpHello, hello, nil)
		var ctx rpc.CtxOpenReply
		c.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}, &ctx)
		for range 100 {
			var ch rpc.CreateChanReply
			c.do(rpc.OpCreateChan, &rpc.CreateChanRequest{Ctx: ctx.Ctx}, &ch)
			c.do(rpc.OpDestroyChan, &rpc.HandleRequest{Handle: ch.Chan}, nil)
			var cm rpc.CMCreateChanReply
			c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &cm)
			c.do(rpc.OpCMDestroyChan, &rpc.HandleRequest{Handle: cm.Chan}, nil)
		}
	}
}
