package port_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// A linkChange is a call of OnLink.
type linkChange struct {
	up  bool
	why error
}

func listenUnix(tb testing.TB, sw *ethswitch.Switch, path string) *port.Unix {
	tb.Helper()
	p, err := port.ListenUnix(sw, port.UnixConfig{Path: path})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	return p
}

func connectUnix(tb testing.TB, sw *ethswitch.Switch, path string) *port.Unix {
	tb.Helper()
	p, err := port.ConnectUnix(sw, port.UnixConfig{Path: path})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	return p
}

// TestUnixTransfer joins two switches by a socket, the connecting end first.
func TestUnixTransfer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
	a, b := netstacktest.NewStack(t, sw1, 1, 1500), netstacktest.NewStack(t, sw2, 2, 1500)
	c := connectUnix(t, sw1, path)
	l := listenUnix(t, sw2, path)
	needtest.Eventually(t, "connected", func() bool { return c.Connected() && l.Connected() })
	for _, v6 := range []bool{false, true} {
		from, to := netstacktest.Connect(t, a, b, v6)
		netstacktest.Exchange(t, from, to, 8<<20)
		from.Close()
		to.Close()
	}
}

// TestUnixReconnect: the listening end takes the next peer, the connecting end finds the next
// listener, and the socket is gone in the end.
func TestUnixReconnect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	sw1, sw2 := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
	in := porttest.NewPort(t, sw1, "in", false)
	out := porttest.NewPort(t, sw2, "out", false)
	send := func(n byte) {
		t.Helper()
		octets := frametest.Ethernet(frame.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
			frame.MAC{2, 0, 0, 0, 0, 1}, n)
		if err := in.Send(octets, frame.Offload{}); err != nil {
			t.Fatal(err)
		}
		if got := <-out.Frames; !bytes.Equal(got.Octets, octets) {
			t.Errorf("%x came out, %x went in", got.Octets, octets)
		}
	}
	c := connectUnix(t, sw1, path)
	l := listenUnix(t, sw2, path)
	both := func() bool { return c.Connected() && l.Connected() }
	needtest.Eventually(t, "first peer", both)
	send(1)

	c.Close()
	needtest.Eventually(t, "peer gone", func() bool { return !l.Connected() })
	c = connectUnix(t, sw1, path)
	needtest.Eventually(t, "second peer", both)
	send(2)

	l.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	needtest.Eventually(t, "listener gone", func() bool { return !c.Connected() })
	l = listenUnix(t, sw2, path)
	needtest.Eventually(t, "second listener", both)
	send(3)
}

// TestUnixOnePeer: a second peer waits until the first has gone.
func TestUnixOnePeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	sw := ethswitch.New(ethswitch.Config{})
	l := listenUnix(t, sw, path)
	in := porttest.NewPort(t, sw, "in", false)
	dial := func() net.Conn {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := dial()
	needtest.Eventually(t, "first peer", l.Connected)
	second := dial()
	defer second.Close()
	frame := frametest.Ethernet(frame.MAC{3}, frame.MAC{2}, 7)
	write := func(c net.Conn) {
		if _, err := c.Write(framed(frame)); err != nil {
			t.Fatal(err)
		}
	}
	write(second)
	write(first)
	<-in.Frames
	select {
	case <-in.Frames:
		t.Error("a frame of the second peer came while the first was there")
	default:
	}
	first.Close()
	if got := <-in.Frames; !bytes.Equal(got.Octets, frame) {
		t.Errorf("second peer: got %x", got.Octets)
	}
}

// framed puts the length before a frame.
func framed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// TestUnixHostilePeer: what a peer may not send ends its connection, and it is told why, or is
// dropped; and nothing else suffers: what was before it has come, and so does what the next peer
// sends.
func TestUnixHostilePeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	sw := ethswitch.New(ethswitch.Config{})
	changes := make(chan linkChange, 16)
	l, err := port.ListenUnix(sw, port.UnixConfig{Path: path, OnLink: func(up bool, why error) {
		changes <- linkChange{up, why}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	in := porttest.NewPort(t, sw, "in", false)
	good := framed(frametest.Ethernet(frame.MAC{3}, frame.MAC{2}, 7))
	const longest = 4096 + 65536
	length := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for name, tt := range map[string]struct {
		octets []byte
		ends   string // "": it goes on; else why it ends
		drops  uint64
	}{
		"length too large":      {append(length(1<<32-1), 1, 2, 3), "longer than 69632", 0},
		"negative":              {length(1 << 31), "longer than 69632", 0},
		"one too long":          {length(longest + 1), "longer than 69632", 0},
		"behind a good one":     {append(bytes.Clone(good), 0, 2, 0, 0), "longer than 69632", 0},
		"length zero":           {length(0), "", 1},
		"many of length zero":   {make([]byte, 4*1000), "", 1000},
		"shorter than MACs":     {framed([]byte{1, 2, 3}), "", 1},
		"group source":          {framed(frametest.Ethernet(frame.MAC{2}, frame.MAC{1}, 7)), "", 1},
		"longest":               {framed(make([]byte, longest)), "", 0},
		"gone in the length":    {[]byte{0, 0}, "in the middle of a frame", 0},
		"gone behind it":        {length(1514), "in the middle of a frame", 0},
		"gone before the end":   {good[:len(good)-1], "in the middle of a frame", 0},
		"gone in a second one":  {append(bytes.Clone(good), good[:9]...), "in the middle of a frame", 0},
		"gone behind a frame":   {good, "the peer has gone", 0},
		"says nothing and goes": {nil, "the peer has gone", 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := l.Stats().RxDrops
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := <-changes; !got.up {
				t.Fatalf("%+v", got)
			}
			// An octet at a time now and then: where the stream is cut does not matter.
			for b := range slices.Chunk(tt.octets, max(len(tt.octets)/7, 1)) {
				c.Write(b)
			}
			switch {
			case strings.Contains(tt.ends, "longer"):
				c.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the connection goes on: %v", err)
				}
			case tt.ends == "":
				c.Write(good)
				<-in.Frames
			}
			c.Close()
			got := <-changes
			why := tt.ends
			if why == "" {
				why = "the peer has gone"
			}
			if got.up || !strings.Contains(got.why.Error(), why) {
				t.Errorf("told %+v, want %q", got, why)
			}
			if s := l.String(); !strings.Contains(s, "peer gone") ||
				why != "the peer has gone" && !strings.Contains(s, why) {
				t.Errorf("the port: %v", s)
			}
			if bytes.HasPrefix(tt.octets, good) && tt.ends != "" {
				<-in.Frames
			}
			if n := len(in.Frames); n != 0 {
				t.Errorf("%d frames too many", n)
			}
			if d := l.Stats().RxDrops - before; tt.drops != 0 && d != tt.drops {
				t.Errorf("%d drops, want %d", d, tt.drops)
			}
		})
	}
}

// TestUnixConnectNowhere: that there is nothing to connect to is told once, with the reason, and
// once more when there is another one; the port goes on trying, and is up when somebody listens.
func TestUnixConnectNowhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	sw := ethswitch.New(ethswitch.Config{})
	changes := make(chan linkChange, 16)
	p, err := port.ConnectUnix(sw, port.UnixConfig{Path: path, OnLink: func(up bool, why error) {
		changes <- linkChange{up, why}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	want := func(up bool, why string) {
		t.Helper()
		c := <-changes
		if c.up != up || c.up != (c.why == nil) || !up && !strings.Contains(c.why.Error(), why) {
			t.Fatalf("told %+v, want up %v, %q", c, up, why)
		}
	}
	want(false, "no such file or directory; it is tried again")
	if s := p.String(); !strings.Contains(s, path+" no peer yet (dial unix") {
		t.Errorf("the port: %v", s)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	want(true, "")
	l.Close()
	c.Close()
	want(false, "the peer has gone")
	want(false, "connection refused; it is tried again")
	os.Remove(path)
	want(false, "no such file")
	p.Close()
	if n := len(changes); n != 0 {
		t.Errorf("%d told besides, such as %+v", n, <-changes)
	}
}

// TestUnixStale: only a socket that nobody listens on is replaced.
func TestUnixStale(t *testing.T) {
	dir := t.TempDir()
	sw := ethswitch.New(ethswitch.Config{})
	listen := func(path string) error {
		p, err := port.ListenUnix(sw, port.UnixConfig{Path: path})
		if err == nil {
			defer p.Close()
			if fi, err := os.Lstat(path); err != nil || fi.Mode().Perm() != 0o600 {
				return fmt.Errorf("mode: %v, %v", fi, err)
			}
		}
		return err
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := listen(file); err == nil {
		t.Error("took the place of a file")
	}
	if b, err := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file is gone: %v", err)
	}

	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := listen(stale); err == nil {
		t.Error("took the place of a listener")
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := listen(stale); err != nil {
		t.Errorf("stale socket: %v", err)
	}

	link := filepath.Join(dir, "symlink")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := listen(link); err == nil {
		t.Error("took the place of a symbolic link")
	}
	if n := len(sw.Ports()); n != 0 {
		t.Errorf("%d ports left", n)
	}
}

// TestUnixSlowPeer: a peer that does not read costs its own frames only, and bounded memory; what
// it reads later is whole frames.
func TestUnixSlowPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	sw := ethswitch.New(ethswitch.Config{})
	l := listenUnix(t, sw, path)
	in := porttest.NewPort(t, sw, "in", false)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	needtest.Eventually(t, "peer", l.Connected)
	octets := append(frametest.Ethernet(frame.MAC{3}, frame.MAC{2}, 7), make([]byte, 1400)...)
	const n = 8000 // more than socket and queue hold
	for range n {
		if err := in.Send(octets, frame.Offload{}); err != nil {
			t.Fatal(err)
		}
	}
	s := l.Stats()
	if s.TxDrops == 0 || s.TxFrames+s.TxDrops != n {
		t.Errorf("stats %+v", s)
	}
	want := framed(octets)
	got := make([]byte, len(want))
	for i := range s.TxFrames {
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("frame %d of %d: %v", i, s.TxFrames, err)
		}
	}
}
