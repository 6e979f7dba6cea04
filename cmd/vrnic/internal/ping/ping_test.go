package ping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// testLimit bounds what should take no time: it is reached by a hang only.
const testLimit = 30 * time.Second

// A buffer is what commands print to, while tests look.
type buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	hook func(string) // told all that is there so far
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.b.Write(p)
	if b.hook != nil {
		b.hook(b.b.String())
	}
	return n, err
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A bench is two connected devices, the server's listener and what the server prints and returns.
type bench struct {
	t              *testing.T
	ctx            context.Context
	client, server rdma.Device
	l              rdma.Listener
	out            buffer
	served         chan error
}

func newBench(t *testing.T, opts ...vnictest.Option) *bench {
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	t.Cleanup(cancel)
	a, b := vnictest.Pair(t, opts...)
	w := &bench{
		t: t, ctx: ctx, served: make(chan error, 1),
		client: vnictest.Open(t, a, vnic.ContextConfig{}), server: vnictest.Open(t, b,
			vnic.ContextConfig{}),
	}
	l, err := w.server.Listen(netip.AddrPortFrom(b.Config().Addrs[0].Addr(), 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	w.l = l
	t.Cleanup(func() { l.Close() })
	return w
}

// serve runs the server.
func (w *bench) serve(ctx context.Context, cfg Config) {
	cfg.Out = &w.out
	go func() { w.served <- Serve(ctx, w.server, w.l, cfg) }()
}

// sendOctets sends n octets, which need not be a message of rping's.
func sendOctets(t *testing.T, s *session, n uint32) {
	t.Helper()
	err := s.qp.PostSend(&rdma.SendWR{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{
		{Addr: s.msg.Addr(), Length: n, LKey: s.msg.LKey()}}})
	if err != nil {
		t.Fatal(err)
	}
}

// wantServed waits for the server's end.
func (w *bench) wantServed() {
	w.t.Helper()
	if err := <-w.served; err != nil {
		w.t.Errorf("server: %v", err)
	}
}

func (w *bench) wantServeError(parts ...string) {
	w.t.Helper()
	err := <-w.served
	if err == nil {
		w.t.Errorf("the server ended well, want an error with %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			w.t.Errorf("server: %v, want %q in it", err, p)
		}
	}
}

func (w *bench) run(cfg Config) (Result, error) {
	cfg.Addr = w.l.Addr()
	return RunClient(w.ctx, w.client, cfg)
}

func TestSizes(t *testing.T) {
	for _, size := range []int{MinSize, 64, 100, 1427, 1428, 1429, 8000, RpingMaxSize, 65536} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newBench(t)
			w.serve(w.ctx, Config{}) // its size need not be the client's
			r, err := w.run(Config{Size: size, Count: 5, Validate: true})
			if err != nil || r.Rounds != 5 || !r.Verified || r.Min <= 0 || r.Avg < r.Min || r.Max < r.Avg {
				t.Errorf("client: %+v, %v", r, err)
			}
			w.wantServed()
		})
	}
}

func TestRoCE(t *testing.T) {
	for _, size := range []int{64, 8000} {
		w := newBench(t, vnictest.RoCE)
		w.serve(w.ctx, Config{})
		if r, err := w.run(Config{Size: size, Count: 5, Validate: true}); err != nil || r.Rounds != 5 {
			t.Errorf("client: %+v, %v", r, err)
		}
		w.wantServed()
	}
}

// A request that fails on RoCE leaves the connection to its programs: the server says so, and ends
// it, without waiting for the client to do that.
func TestRoCERequestFails(t *testing.T) {
	w := newBench(t, vnictest.RoCE)
	w.serve(w.ctx, Config{})
	s := w.dial(4096, rdma.LocalWrite)
	began := time.Now()
	if err := s.send(w.ctx, info{s.data[0].Addr(), s.data[0].RKey(), 64}); err != nil {
		t.Fatal(err)
	}
	<-s.conn.Done()
	if d := time.Since(began); d >= endTimeout {
		t.Errorf("the server ends the connection after %v", d)
	}
	if err := s.conn.Disconnect(); err != nil {
		t.Error(err)
	}
	w.wantServeError("RDMA Read", "remote access")
}

func TestLargestSizeWantsALargeServer(t *testing.T) {
	w := newBench(t)
	w.serve(w.ctx, Config{Size: MaxSize})
	if r, err := w.run(Config{Size: MaxSize, Count: 2, Validate: true}); err != nil || r.Rounds != 2 {
		t.Errorf("client: %+v, %v", r, err)
	}
	w.wantServed()
}

// What both print with -v is what rping prints.
func TestVerboseOutputIsRpings(t *testing.T) {
	w := newBench(t)
	w.serve(w.ctx, Config{Verbose: true})
	var out buffer
	if _, err := w.run(Config{Size: 64, Count: 5, Verbose: true, Out: &out}); err != nil {
		t.Fatal(err)
	}
	w.wantServed()
	var client, server string
	for _, line := range rpingLines {
		client += "ping data: " + line + "\n"
		server += "server ping data: " + line + "\n"
	}
	if out.String() != client {
		t.Errorf("the client printed\n%swant\n%s", out.String(), client)
	}
	if got := w.out.String(); !strings.HasPrefix(got, server) {
		t.Errorf("the server printed\n%swant\n%s", got, server)
	}
}

func TestPersistentServerServesManyAtOnce(t *testing.T) {
	w := newBench(t)
	ctx, stop := context.WithCancel(w.ctx)
	w.out.hook = func(all string) {
		if strings.Count(all, "disconnected after 10 rounds") == 12 {
			stop()
		}
	}
	w.serve(ctx, Config{Persistent: true})
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 2 {
				r, err := w.run(Config{Size: 1000 * (i + 1), Count: 10, Validate: true})
				if err != nil || r.Rounds != 10 {
					t.Errorf("client %d: %+v, %v", i, r, err)
				}
			}
		})
	}
	wg.Wait()
	w.wantServed()
	if err := w.ctx.Err(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(w.out.String(), "disconnected after 10 rounds"); n != 12 {
		t.Errorf("the server has seen %d clients to their end, want 12:\n%s", n, w.out.String())
	}
}

func TestOneShotServerRefusesTheSecond(t *testing.T) {
	w := newBench(t)
	w.serve(w.ctx, Config{})
	if _, err := w.run(Config{Count: 1}); err != nil {
		t.Fatal(err)
	}
	w.wantServed()
	if _, err := w.run(Config{Count: 1}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the second client: %v, want refused", err)
	}
}

func TestRejected(t *testing.T) {
	w := newBench(t)
	go func() {
		req, err := w.l.Next(w.ctx)
		if err == nil {
			err = req.Reject([]byte("no"))
		}
		w.served <- err
	}()
	_, err := w.run(Config{Count: 1})
	if rej := (*rdma.RejectedError)(nil); !errors.As(err, &rej) || string(rej.PrivateData) != "no" {
		t.Errorf("client: %v, want rejected", err)
	}
	w.wantServed()
}

func TestNobodyAnswers(t *testing.T) {
	w := newBench(t)
	// The listener is there and nobody takes the request.
	_, err := w.run(Config{Count: 1, ConnectTimeout: 50 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("client: %v", err)
	}
}

// The end of the context ends both, and is no error.
func TestInterrupted(t *testing.T) {
	w := newBench(t)
	w.serve(w.ctx, Config{})
	ctx, stop := context.WithCancel(w.ctx)
	r, err := RunClient(ctx, w.client, Config{Addr: w.l.Addr(), Verbose: true,
		Out: writerFunc(func(b []byte) (int, error) {
			if bytes.Contains(b, []byte("rdma-ping-3:")) {
				stop()
			}
			return len(b), nil
		})})
	if err != nil || r.Rounds != 4 {
		t.Errorf("client: %+v, %v; want the four rounds before the interrupt", r, err)
	}
	w.wantServed()

	w2 := newBench(t)
	ctx, stop = context.WithCancel(w2.ctx)
	w2.serve(ctx, Config{})
	stop()
	w2.wantServed()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// dial connects a client that the test leads itself.
func (w *bench) dial(size int, access ...rdma.Access) *session {
	w.t.Helper()
	s, err := newSession(w.client, size, access...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.close)
	if s.conn, err = w.client.Connect(w.ctx, s.qp, w.l.Addr(), rdma.ConnParam{
		IRD: 1, ORD: 1}); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func TestServerAgainstStrangeClients(t *testing.T) {
	t.Run("too much", func(t *testing.T) {
		w := newBench(t)
		w.serve(w.ctx, Config{})
		s := w.dial(4096, rdma.RemoteRead)
		if err := s.send(w.ctx, info{s.data[0].Addr(), s.data[0].RKey(), serverMinSize + 1}); err != nil {
			t.Fatal(err)
		}
		w.wantServeError("round 0", "65537", "-S")
		if _, err := s.recv(w.ctx); !errors.Is(err, errEnded) {
			t.Errorf("the client sees %v, want a disconnect", err)
		}
	})
	t.Run("most of all", func(t *testing.T) {
		w := newBench(t)
		w.serve(w.ctx, Config{})
		s := w.dial(4096, rdma.RemoteRead)
		s.send(w.ctx, info{s.data[0].Addr(), s.data[0].RKey(), 1<<32 - 1})
		w.wantServeError("4294967295")
	})
	t.Run("short message", func(t *testing.T) {
		w := newBench(t)
		w.serve(w.ctx, Config{})
		sendOctets(t, w.dial(4096, rdma.RemoteRead), 15)
		w.wantServeError("15 octets", "rping's protocol")
	})
	t.Run("long message", func(t *testing.T) { // RDMAP-011
		w := newBench(t)
		w.serve(w.ctx, Config{})
		sendOctets(t, w.dial(4096, rdma.RemoteRead), 17)
		w.wantServeError("Receive")
	})
	t.Run("source that may not be read", func(t *testing.T) {
		w := newBench(t)
		w.serve(w.ctx, Config{})
		s := w.dial(4096, rdma.LocalWrite)
		s.send(w.ctx, info{s.data[0].Addr(), s.data[0].RKey(), 64})
		w.wantServeError("RDMA Read", "remote access")
	})
	t.Run("sink that may not be written", func(t *testing.T) {
		w := newBench(t)
		w.serve(w.ctx, Config{})
		s := w.dial(4096, rdma.RemoteRead)
		i := info{s.data[0].Addr(), s.data[0].RKey(), 64}
		s.send(w.ctx, i)
		if _, err := s.recv(w.ctx); err != nil {
			t.Fatal(err)
		}
		s.send(w.ctx, i)
		w.wantServeError("round") // the Write itself completes before the peer refuses it
	})
	t.Run("leaves in the middle of a round", func(t *testing.T) {
		w := newBench(t)
		w.serve(w.ctx, Config{})
		s := w.dial(4096, rdma.RemoteRead)
		s.send(w.ctx, info{s.data[0].Addr(), s.data[0].RKey(), 64})
		if _, err := s.recv(w.ctx); err != nil {
			t.Fatal(err)
		}
		s.conn.Disconnect()
		w.wantServeError("round 0", "disconnected")
	})
	t.Run("control sequences in the data", func(t *testing.T) {
		w := newBench(t)
		w.serve(w.ctx, Config{Verbose: true})
		s := w.dial(4096, rdma.RemoteRead)
		copy(s.data[0].Bytes(), "\x1b]0;owned\a")
		s.send(w.ctx, info{s.data[0].Addr(), s.data[0].RKey(), 64})
		if _, err := s.recv(w.ctx); err != nil {
			t.Fatal(err)
		}
		if got, want := w.out.String(), "server ping data: .]0;owned.\n"; got != want {
			t.Errorf("the server printed %q, want %q", got, want)
		}
	})
}

// accept has one session of a server that the test leads itself.
func (w *bench) accept(lead func(s *session) error) {
	go func() {
		w.served <- func() error {
			req, err := w.l.Next(w.ctx)
			if err != nil {
				return err
			}
			s, err := newSession(w.server, 4096, rdma.LocalWrite)
			if err != nil {
				return err
			}
			defer s.close()
			if s.conn, err = req.Accept(w.ctx, s.qp, rdma.ConnParam{IRD: 1, ORD: 1}); err != nil {
				return err
			}
			return lead(s)
		}()
	}()
}

func TestClientAgainstStrangeServers(t *testing.T) {
	t.Run("changes an octet", func(t *testing.T) {
		w := newBench(t)
		w.accept(func(s *session) error {
			source, err := s.recv(w.ctx)
			if err != nil {
				return err
			}
			if err := s.transfer(w.ctx, kindRead, rdma.OpRead, source); err != nil {
				return err
			}
			s.data[0].Bytes()[17] ^= 1
			s.send(w.ctx, info{})
			sink, err := s.recv(w.ctx)
			if err != nil {
				return err
			}
			if err := s.transfer(w.ctx, kindWrite, rdma.OpWrite, sink); err != nil {
				return err
			}
			s.send(w.ctx, info{})
			s.recv(w.ctx) // until the client has gone
			return nil
		})
		_, err := w.run(Config{Count: 3, Validate: true})
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "octet 17") {
			t.Errorf("client: %v, want a mismatch at octet 17", err)
		}
		w.wantServed()
	})
	t.Run("leaves", func(t *testing.T) {
		w := newBench(t)
		w.accept(func(s *session) error {
			_, err := s.recv(w.ctx)
			return errors.Join(err, s.disconnect())
		})
		if _, err := w.run(Config{Count: 3}); err == nil || !strings.Contains(err.Error(),
			"the server has disconnected") {
			t.Errorf("client: %v", err)
		}
		w.wantServed()
	})
	t.Run("says nothing", func(t *testing.T) {
		w := newBench(t)
		w.accept(func(s *session) error {
			<-s.conn.Done()
			return nil
		})
		_, err := w.run(Config{Count: 3, RoundTimeout: 50 * time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), "round 0: no answer within 50ms") {
			t.Errorf("client: %v", err)
		}
		w.wantServed()
	})
	t.Run("short answer", func(t *testing.T) {
		w := newBench(t)
		w.accept(func(s *session) error {
			if _, err := s.recv(w.ctx); err != nil {
				return err
			}
			err := s.qp.PostSend(&rdma.SendWR{Op: rdma.OpSend, SGEs: []rdma.SGE{
				{Addr: s.msg.Addr(), Length: 8, LKey: s.msg.LKey()}}})
			<-s.conn.Done()
			return err
		})
		if _, err := w.run(Config{Count: 3}); err == nil || !strings.Contains(err.Error(), "8 octets") {
			t.Errorf("client: %v", err)
		}
		w.wantServed()
	})
}

func TestWrongConfig(t *testing.T) {
	w := newBench(t)
	for name, cfg := range map[string]Config{
		"size too small": {Size: MinSize - 1},
		"size too large": {Size: MaxSize + 1},
		"size negative":  {Size: -1},
		"count negative": {Count: -1},
	} {
		if _, err := w.run(cfg); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: client: %v", name, err)
		}
		if err := RunServer(w.ctx, w.server, cfg); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: server: %v", name, err)
		}
	}
}

func TestListenAddressInUse(t *testing.T) {
	w := newBench(t)
	err := RunServer(w.ctx, w.server, Config{Addr: w.l.Addr()})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second server at %v: %v", w.l.Addr(), err)
	}
}
