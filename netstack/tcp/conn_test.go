package tcp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// connected returns both ends of a connection between two stacks, closed when the test ends.
func connected(tb testing.TB) (a, b *tcp.Conn) {
	s1, s2 := netstacktest.Pair(tb, 1500)
	a, b = netstacktest.Connect(tb, s1, s2, false)
	tb.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// readAll reads exactly n octets.
func readAll(t *testing.T, c *tcp.Conn, bell netstacktest.Bell, n int) []byte {
	t.Helper()
	var buf bytes.Buffer
	for buf.Len() < n {
		m, err := c.ReadInto(&buf)
		if err != nil {
			t.Fatal(err)
		}
		if m == 0 {
			<-bell
		}
	}
	return buf.Bytes()
}

// liar is a Source that gives what it is told to.
type liar struct {
	len int
	r   io.Reader
}

func (l *liar) Len() int                   { return l.len }
func (l *liar) Read(b []byte) (int, error) { return l.r.Read(b) }

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestWriteFromBadSource: what a Source does wrong is its caller's error; nothing is sent and the
// connection goes on.
func TestWriteFromBadSource(t *testing.T) {
	a, b := connected(t)
	bell := netstacktest.NewBell(b)
	errMine := errors.New("mine")
	for name, tt := range map[string]struct {
		src  tcp.Source
		want error
	}{
		"error at once": {&liar{10, readerFunc(func([]byte) (int, error) { return 0, errMine })},
			errMine},
		"error half way": {&liar{10, io.MultiReader(bytes.NewReader([]byte("12345")),
			readerFunc(func([]byte) (int, error) { return 0, errMine }))}, errMine},
		"error in 2nd chunk": {&liar{100000, io.MultiReader(bytes.NewReader(make([]byte, 70000)),
			readerFunc(func([]byte) (int, error) { return 0, errMine }))}, errMine},
		"early end": {&liar{10, bytes.NewReader([]byte("12345"))}, io.ErrUnexpectedEOF},
		"nothing, no error": {&liar{10, readerFunc(func([]byte) (int, error) { return 0, nil })},
			io.ErrNoProgress},
		"too much": {&liar{10, readerFunc(func(b []byte) (int, error) {
			return len(b) + 1, nil
		})}, nil},
		"less than nothing": {&liar{10, readerFunc(func(b []byte) (int, error) { return -1, nil })}, nil},
	} {
		n, err := a.WriteFrom(tt.src)
		if n != 0 || err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: got %d, %v, want %v", name, n, err, tt.want)
		}
	}
	for _, src := range []tcp.Source{
		&liar{0, nil}, &liar{-1, nil},
	} {
		if n, err := a.WriteFrom(src); n != 0 || err != nil {
			t.Errorf("empty source: %d, %v", n, err)
		}
	}
	// One octet at a time, the end told with the last.
	one := &liar{3, readerFunc(func(b []byte) (int, error) { b[0] = 'x'; return 1, io.EOF })}
	one.r = iotestOneByte(bytes.NewReader([]byte("abc")))
	if n, err := a.WriteFrom(one); n != 3 || err != nil {
		t.Errorf("one octet at a time: %d, %v", n, err)
	}
	if got := readAll(t, b, bell, 3); string(got) != "abc" {
		t.Errorf("got %q: octets of a failed write went out", got)
	}
}

// iotestOneByte reads one octet at a time from r.
func iotestOneByte(r io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		if len(b) == 0 {
			return 0, nil
		}
		return r.Read(b[:1])
	})
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestReadIntoPartly: what a Writer does not take comes again, and its error is not the
// connection's.
func TestReadIntoPartly(t *testing.T) {
	a, b := connected(t)
	bell := netstacktest.NewBell(b)
	if n, err := a.WriteFrom(netstacktest.NewSource(10)); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	want := netstacktest.Pattern(0, 10)
	var got []byte
	take := func(n int, werr error) writerFunc {
		return func(p []byte) (int, error) {
			n := min(n, len(p))
			got = append(got, p[:n]...)
			return n, werr
		}
	}
	for {
		n, err := b.ReadInto(take(3, nil))
		if err != nil {
			t.Fatal(err)
		}
		if n == 3 {
			break
		}
		<-bell
	}
	for _, tt := range []struct {
		w    writerFunc
		want int
	}{
		{take(0, errors.New("full")), 0},
		{take(2, errors.New("full")), 2},
		{func(p []byte) (int, error) { return -1, nil }, 0},
		{take(5, errors.New("that is all")), 5},
		{take(9, nil), 0},
	} {
		if n, err := b.ReadInto(tt.w); n != tt.want || err != nil {
			t.Errorf("read %d, %v, want %d", n, err, tt.want)
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// await waits until f gives an error and returns it.
func await(bell netstacktest.Bell, f func() (int, error)) error {
	for {
		n, err := f()
		if err != nil {
			return err
		}
		if n == 0 {
			<-bell
		}
	}
}

// TestEnds: how each way to end a connection looks at the other end, and again when asked again.
func TestEnds(t *testing.T) {
	sink := io.Discard
	t.Run("close write", func(t *testing.T) {
		a, b := connected(t)
		bell, abell := netstacktest.NewBell(b), netstacktest.NewBell(a)
		a.WriteFrom(netstacktest.NewSource(5))
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := await(bell, func() (int, error) { return b.ReadInto(sink) }); err != io.EOF {
				t.Errorf("peer: %v", err)
			}
		}
		if _, err := a.WriteFrom(netstacktest.NewSource(5)); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write after close: %v", err)
		}
		// The other direction goes on.
		if n, err := b.WriteFrom(netstacktest.NewSource(5)); n != 5 || err != nil {
			t.Errorf("other way: %d, %v", n, err)
		}
		readAll(t, a, abell, 5)
	})
	t.Run("abort", func(t *testing.T) {
		a, b := connected(t)
		bell := netstacktest.NewBell(b)
		a.Abort()
		for range 2 { // the cause stays
			if err := await(bell, func() (int, error) { return b.ReadInto(sink) }); !errors.Is(err,
				syscall.ECONNRESET) {
				t.Errorf("peer reads: %v", err)
			}
			if _, err := b.WriteFrom(netstacktest.NewSource(5)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("peer writes: %v", err)
			}
		}
		if _, err := a.ReadInto(sink); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after abort: %v", err)
		}
	})
	t.Run("close with unread octets", func(t *testing.T) {
		a, b := connected(t)
		bell, abell := netstacktest.NewBell(b), netstacktest.NewBell(a)
		b.WriteFrom(netstacktest.NewSource(5))
		<-abell
		a.Close()
		if err := await(bell, func() (int, error) { return b.ReadInto(sink) }); !errors.Is(err,
			syscall.ECONNRESET) {
			t.Errorf("peer reads: %v", err)
		}
	})
	t.Run("close delivers", func(t *testing.T) {
		a, b := connected(t)
		bell := netstacktest.NewBell(b)
		const n = 1 << 20
		if m, err := a.WriteFrom(netstacktest.NewSource(n)); m != n || err != nil {
			t.Fatal(m, err)
		}
		a.Close()
		k := netstacktest.NewSink(n)
		if err := await(bell, func() (int, error) { return b.ReadInto(k) }); err != io.EOF ||
			k.Len() != n || k.Err != nil {
			t.Errorf("%d of %d octets, then %v, %v", k.Len(), n, err, k.Err)
		}
	})
	t.Run("stack closed", func(t *testing.T) {
		s1, s2 := netstacktest.Pair(t, 1500)
		a, b := netstacktest.Connect(t, s1, s2, false)
		bell := netstacktest.NewBell(b)
		s1.Close()
		for range 2 { // the cause stays
			if _, err := a.ReadInto(sink); !errors.Is(err, syscall.ECONNABORTED) {
				t.Errorf("own end: %v", err)
			}
		}
		if err := await(bell, func() (int, error) { return b.ReadInto(sink) }); !errors.Is(err,
			syscall.ECONNRESET) {
			t.Errorf("peer: %v", err)
		}
		if _, err := s1.TCP().Dial(context.Background(), netip.Addr{}, b.LocalAddr()); !errors.Is(err,
			net.ErrClosed) {
			t.Errorf("dial: %v", err)
		}
		if _, err := s1.TCP().Listen(netip.MustParseAddrPort("10.77.0.1:1"), 1); !errors.Is(err,
			net.ErrClosed) {
			t.Errorf("listen: %v", err)
		}
		a.Close()
	})
}

// TestNotify: the function is called for each kind of change, and not after Close.
func TestNotify(t *testing.T) {
	a, b := connected(t)
	var calls atomic.Int64
	bell := netstacktest.NewBell(b)
	b.SetNotify(func() {
		calls.Add(1)
		select {
		case bell <- struct{}{}:
		default:
		}
	})
	a.WriteFrom(netstacktest.NewSource(1))
	<-bell
	readAll(t, b, bell, 1)

	// Fill the send buffer; the peer reads; there is room again.
	src := netstacktest.NewSource(64 << 20)
	for {
		n, err := b.WriteFrom(src)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	for len(bell) > 0 {
		<-bell
	}
	abell := netstacktest.NewBell(a)
	room := make(chan error)
	go func() {
		for {
			<-bell
			// A call may also be of room that has been filled since.
			if n, err := b.WriteFrom(src); n > 0 || err != nil {
				room <- err
				return
			}
		}
	}()
	for called := false; !called; {
		a.ReadInto(io.Discard)
		select {
		case err := <-room:
			if called = true; err != nil {
				t.Error(err)
			}
		case <-abell:
		}
	}
	b.Close()
	before := calls.Load()
	a.Abort()
	if after := calls.Load(); after != before {
		t.Errorf("called %d times after Close", after-before)
	}
}

// TestAllocs: reading and writing 64 octets allocates what gVisor does for each write, which is an
// io.LimitedReader, and what its pools lose now and then.
func TestAllocs(t *testing.T) {
	if netstacktest.RaceEnabled {
		needtest.Skip(t, "the race detector empties pools at random")
	}
	a, b := connected(t)
	bell := netstacktest.NewBell(b)
	var z netstacktest.Zeros
	var got netstacktest.Count
	round := func() {
		z, got = 64, 0
		if n, err := a.WriteFrom(&z); n != 64 || err != nil {
			t.Fatal(n, err)
		}
		for got < 64 {
			if n, err := b.ReadInto(&got); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				<-bell
			}
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(2000, round); n > 4 {
		t.Errorf("%v allocations a message", n)
	} else {
		t.Logf("%v allocations a message", n)
	}
	if n := testing.AllocsPerRun(1000, func() { b.ReadInto(&got) }); n != 0 {
		t.Errorf("%v allocations to find nothing there", n)
	}
	if n := testing.AllocsPerRun(1000, func() { b.EMSS() }); n != 0 {
		t.Errorf("%v allocations for EMSS", n)
	}
}

// TestDialToItself: a stack reaches its own addresses without its switch.
func TestDialToItself(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	s := netstacktest.NewStack(t, sw, 1, 1500)
	before := s.PortStats()
	for _, v6 := range []bool{false, true} {
		a, b := netstacktest.Connect(t, s, s, v6)
		netstacktest.Exchange(t, a, b, 1<<20)
		a.Close()
		b.Close()
	}
	if after := s.PortStats(); after.RxOctets-before.RxOctets > 10000 {
		t.Errorf("the octets left the stack: %+v, before %+v", after, before)
	}
}

// TestDialTimeouts: a neighbour that is not there, and a host that does not answer, under a clock
// that the test moves.
func TestDialTimeouts(t *testing.T) {
	clock := faketime.NewManualClock()
	sw := ethswitch.New(ethswitch.Config{})
	s, err := netstack.NewStack(sw, netstack.Config{
		Name: "vrnic1", Addrs: netstacktest.Addresses(1), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	port := porttest.NewPort(t, sw, "host", false)
	m := s.MAC()
	// host answers for 10.77.0.3, and says nothing else.
	answer := func(f []byte) {
		if f[12] == 0x08 && f[13] == 0x06 && f[21] == 1 && bytes.Equal(f[38:42], []byte{10, 77, 0, 3}) {
			r := append(append([]byte(nil), m[:]...), 2, 0, 0, 0, 0, 3, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2,
				2, 0, 0, 0, 0, 3, 10, 77, 0, 3)
			r = append(append(r, m[:]...), 10, 77, 0, 1)
			if err := port.Send(r, frame.Offload{}); err != nil {
				t.Error(err)
			}
		}
	}
	for _, tt := range []struct {
		remote string
		want   error
	}{
		{"10.77.0.2:1", syscall.EHOSTUNREACH},
		{"[fd77::2]:1", syscall.EHOSTUNREACH},
		{"10.77.0.3:1", syscall.ETIMEDOUT},
	} {
		errc := make(chan error)
		go func() {
			_, err := s.TCP().Dial(context.Background(), netip.Addr{}, netip.MustParseAddrPort(tt.remote))
			errc <- err
		}()
		for done := false; !done; {
			select {
			case err := <-errc:
				if !errors.Is(err, tt.want) {
					t.Errorf("%s: got %v, want %v", tt.remote, err, tt.want)
				}
				done = true
			case f := <-port.Frames:
				answer(f.Octets)
			case <-time.After(time.Millisecond): // nothing more happens by itself
				clock.Advance(time.Second)
			}
		}
	}
}
