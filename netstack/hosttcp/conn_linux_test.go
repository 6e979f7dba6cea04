package hosttcp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/hosttcp"
)

// patience is far more than anything here takes.
const patience = time.Minute

var localhost = netip.MustParseAddr("127.0.0.1")

func newHost(t *testing.T, addr netip.Addr) *hosttcp.Host {
	t.Helper()
	h, err := hosttcp.New(hosttcp.Config{Addr: addr, KeepAlive: 30 * time.Second,
		UserTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// listen listens at a port that is free.
func listen(t *testing.T, h *hosttcp.Host) (l *hosttcp.Listener, port uint16) {
	t.Helper()
	for range 100 {
		port = 20000 + uint16(rand.IntN(10000))
		var err error
		if l, err = h.Listen(port); err == nil {
			t.Cleanup(func() { l.Close() })
			return l, port
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
	t.Fatal("no port is free")
	return nil, 0
}

func connected(t *testing.T) (a, b *hosttcp.Conn) {
	t.Helper()
	h := newHost(t, localhost)
	l, port := listen(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := h.Dial(ctx, 0, netip.AddrPortFrom(localhost, port))
	if err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	if a.RemoteAddr() != b.LocalAddr() || b.RemoteAddr() != a.LocalAddr() {
		t.Errorf("from %v to %v, from %v to %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(),
			b.RemoteAddr())
	}
	return a, b
}

// A bell rings when c has news.
type bell chan struct{}

func newBell(c *hosttcp.Conn) bell {
	b := make(bell, 1)
	c.SetNotify(func() {
		select {
		case b <- struct{}{}:
		default:
		}
	})
	return b
}

func (b bell) await(t *testing.T) {
	t.Helper()
	select {
	case <-b:
	case <-time.After(patience):
		t.Fatal("nothing was told")
	}
}

// readAll reads n octets of c, or until an error, of which it takes note in err.
func readAll(t *testing.T, c *hosttcp.Conn, b bell, n int) (got []byte, err error) {
	t.Helper()
	var w bytes.Buffer
	for w.Len() < n && err == nil {
		var k int
		if k, err = c.ReadInto(&w); k == 0 && err == nil {
			b.await(t)
		}
	}
	return w.Bytes(), err
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// What is written arrives, however much it is: what the kernel has no room for follows when it has,
// and the FIN behind it.
func TestTransfer(t *testing.T) {
	for _, size := range []int{1, 4096, 1 << 20, 16 << 20} {
		a, b := connected(t)
		room, came := newBell(a), newBell(b)
		sent := pattern(size)
		written := make(chan error, 1)
		go func() {
			for left := sent; len(left) > 0; {
				n, err := a.WriteFrom(bytes.NewReader(left[:min(len(left), 200_000)]))
				if err != nil {
					written <- err
					return
				}
				if left = left[n:]; n == 0 {
					<-room
				}
			}
			written <- a.CloseWrite()
		}()
		got, err := readAll(t, b, came, size+1)
		if !errors.Is(err, io.EOF) || !bytes.Equal(got, sent) {
			t.Errorf("%d octets: %d came, with the end %v", size, len(got), err)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
		b.Close()
		if _, err := readAll(t, a, room, 1); !errors.Is(err, io.EOF) {
			t.Errorf("behind the peer's FIN: %v", err)
		}
		a.Close()
	}
}

// Close delivers what was written, and what the kernel had no room for, too.
func TestCloseBehind(t *testing.T) {
	a, b := connected(t)
	sent := pattern(32 << 20)
	n := 0
	for n < len(sent) {
		k, err := a.WriteFrom(bytes.NewReader(sent[n:min(n+200_000, len(sent))]))
		if err != nil {
			t.Fatal(err)
		}
		if k == 0 {
			break
		}
		n += k
	}
	if n == len(sent) {
		t.Fatal("the kernel has taken it all")
	}
	a.Close()
	got, err := readAll(t, b, newBell(b), n+1)
	if !errors.Is(err, io.EOF) || !bytes.Equal(got, sent[:n]) {
		t.Errorf("%d of %d octets came, with the end %v", len(got), n, err)
	}
}

// Who takes less gets the rest later, once he asks; meanwhile he hears of news, and of the end.
func TestStalled(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(a *hosttcp.Conn)
		want error
	}{
		"FIN": {func(a *hosttcp.Conn) { a.Close() }, io.EOF},
		"RST": {func(a *hosttcp.Conn) { a.Abort() }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t)
			came := newBell(b)
			sent := pattern(10000)
			write(t, a, sent)
			few := &limited{left: 100}
			for n := 0; n == 0; {
				var err error
				if n, err = b.ReadInto(few); err != nil {
					t.Fatal(err)
				}
				if n == 0 {
					came.await(t)
				}
			}
			var seen bytes.Buffer
			for seen.Len() < len(sent)-100 {
				seen.Reset()
				if err := b.Peek(&seen); err != nil {
					t.Fatal(err)
				}
				if seen.Len() < len(sent)-100 {
					came.await(t)
				}
			}
			write(t, a, sent)
			for seen.Len() < 2*len(sent)-100 {
				came.await(t)
				seen.Reset()
				if err := b.Peek(&seen); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(seen.Bytes(), append(sent[100:len(sent):len(sent)], sent...)) {
				t.Error("what was shown is not what was sent")
			}
			tt.end(a)
			var err error
			for err == nil {
				came.await(t)
				err = b.Peek(io.Discard)
			}
			if !errors.Is(err, tt.want) {
				t.Fatalf("it ended with %v, want %v", err, tt.want)
			}
			got, err := readAll(t, b, came, 1<<20)
			if !errors.Is(err, tt.want) {
				t.Errorf("behind it: %v", err)
			}
			if errors.Is(err, io.EOF) && !bytes.Equal(got, append(sent[100:len(sent):len(sent)],
				sent...)) {
				t.Error("what was before the end is not all there")
			}
		})
	}
}

// limited takes so many octets.
type limited struct{ left int }

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	if l.left -= n; n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func write(t *testing.T, c *hosttcp.Conn, b []byte) {
	t.Helper()
	if n, err := c.WriteFrom(bytes.NewReader(b)); n != len(b) || err != nil {
		t.Fatal(n, err)
	}
}

// Octets are brought to who has set a prompt, which answers on the spot, and finds by more what
// comes meanwhile.
func TestPrompt(t *testing.T) {
	a, b := connected(t)
	failed := make(chan error, 1)
	b.SetPrompt(func(more func() bool) {
		for {
			var w bytes.Buffer
			n, err := b.ReadInto(&w)
			if n == 0 {
				if err != nil && !errors.Is(err, io.EOF) {
					failed <- err
				}
				return
			}
			if _, err := b.WriteFrom(bytes.NewReader(w.Bytes())); err != nil {
				failed <- err
				return
			}
			for range 1000 {
				if more() {
					break
				}
			}
		}
	})
	came := newBell(a)
	for i := range 1000 {
		want := pattern(i%100 + 1)
		write(t, a, want)
		if got, err := readAll(t, a, came, len(want)); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("message %d: %x, %v", i, got, err)
		}
	}
	a.Close()
	select {
	case err := <-failed:
		t.Error(err)
	default:
	}
}

// An abort ends what the other end waits for, and comes from any goroutine, also while the source
// of a write hangs.
func TestAbort(t *testing.T) {
	a, b := connected(t)
	came := newBell(b)
	hangs, goOn := make(chan struct{}), make(chan struct{})
	written := make(chan error, 1)
	go func() {
		_, err := a.WriteFrom(source(func(p []byte) (int, error) {
			close(hangs)
			<-goOn
			return len(p), nil
		}))
		written <- err
	}()
	<-hangs
	a.Abort()
	if _, err := readAll(t, b, came, 1); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the peer sees %v", err)
	}
	close(goOn)
	if err := <-written; err == nil {
		t.Error("what was written is taken")
	}
	if _, err := a.ReadInto(io.Discard); !errors.Is(err, net.ErrClosed) {
		t.Errorf("behind it: %v", err)
	}
	b.Close()
}

type source func(p []byte) (int, error)

func (source) Len() int                     { return 10 }
func (s source) Read(p []byte) (int, error) { return s(p) }

// A source that fails, or gives fewer octets than it has promised, leaves the connection as it was.
func TestBadSource(t *testing.T) {
	a, b := connected(t)
	bad := errors.New("bad")
	for _, want := range []error{bad, io.ErrUnexpectedEOF, io.ErrNoProgress} {
		n, err := a.WriteFrom(source(func(p []byte) (int, error) {
			switch want {
			case bad:
				return 3, bad
			case io.ErrUnexpectedEOF:
				return 0, io.EOF
			default:
				return 0, nil
			}
		}))
		if n != 0 || !errors.Is(err, want) {
			t.Errorf("%d, %v; want %v", n, err, want)
		}
	}
	write(t, a, []byte("x"))
	if got, err := readAll(t, b, newBell(b), 1); string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

// What cannot be says so by an errno.
func TestErrors(t *testing.T) {
	h := newHost(t, localhost)
	l, port := listen(t, h)
	if _, err := h.Listen(port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listening twice: %v", err)
	}
	c, err := h.Dial(t.Context(), 0, netip.AddrPortFrom(localhost, port))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Dial(t.Context(), c.LocalAddr().Port(), netip.AddrPortFrom(localhost,
		port)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("from a port that is taken: %v", err)
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accepting behind the end: %v", err)
	}
	if _, err := h.Dial(t.Context(), 0, netip.AddrPortFrom(localhost, port)); !errors.Is(err,
		syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := hosttcp.New(hosttcp.Config{Addr: netip.MustParseAddr("192.0.2.77")}); !errors.Is(err,
		syscall.EADDRNOTAVAIL) {
		t.Errorf("the address of another: %v", err)
	}
	s := h.Stats()
	if s.ActiveOpens != 1 || s.FailedConnects != 2 {
		t.Errorf("%+v", s)
	}
	h.Close()
	if _, err := h.Dial(t.Context(), 0, netip.AddrPortFrom(localhost, port)); !errors.Is(err,
		net.ErrClosed) {
		t.Errorf("behind the end: %v", err)
	}
}

// The end of a Host is that of its connections, and nothing is left.
func TestHostClose(t *testing.T) {
	h := newHost(t, localhost)
	l, port := listen(t, h)
	a, err := h.Dial(t.Context(), 0, netip.AddrPortFrom(localhost, port))
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if s := h.Stats(); s.Established != 2 || s.SegmentsSent == 0 {
		t.Errorf("%+v", s)
	}
	h.Close()
	for _, c := range []*hosttcp.Conn{a, other} {
		if _, err := c.ReadInto(io.Discard); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if s := h.Stats(); s.Established != 0 || s.SegmentsSent == 0 {
		t.Errorf("behind the end: %+v", s)
	}
}

// IPv6 is no different.
func TestIPv6(t *testing.T) {
	h, err := hosttcp.New(hosttcp.Config{Addr: netip.IPv6Loopback()})
	if err != nil {
		needtest.Skip(t, "this host has no IPv6: "+err.Error())
	}
	defer h.Close()
	l, port := listen(t, h)
	a, err := h.Dial(t.Context(), 0, netip.AddrPortFrom(netip.IPv6Loopback(), port))
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	write(t, a, []byte("x"))
	if got, err := readAll(t, b, newBell(b), 1); string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

// Signals, as Go's scheduler sends them to threads that it wants to stop, are no end of a
// connection that is looked at.
func TestPeekSignals(t *testing.T) {
	a, b := connected(t)
	defer a.Close()
	defer b.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	me, stop := unix.Gettid(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), me, unix.SIGURG)
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	for i := range 5_000 {
		if err := a.Peek(io.Discard); err != nil {
			t.Fatalf("look %d: %v", i, err)
		}
	}
}
