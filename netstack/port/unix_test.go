package port_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

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
	netstacktest.Eventually(t, "connected", func() bool { return c.Connected() && l.Connected() })
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
	netstacktest.Eventually(t, "first peer", both)
	send(1)

	c.Close()
	netstacktest.Eventually(t, "peer gone", func() bool { return !l.Connected() })
	c = connectUnix(t, sw1, path)
	netstacktest.Eventually(t, "second peer", both)
	send(2)

	l.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	netstacktest.Eventually(t, "listener gone", func() bool { return !c.Connected() })
	l = listenUnix(t, sw2, path)
	netstacktest.Eventually(t, "second listener", both)
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
	netstacktest.Eventually(t, "first peer", l.Connected)
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

// TestUnixHostilePeer: what a peer may not send ends its connection or is dropped, and nothing else
// suffers.
func TestUnixHostilePeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	sw := ethswitch.New(ethswitch.Config{})
	l := listenUnix(t, sw, path)
	in := porttest.NewPort(t, sw, "in", false)
	good := framed(frametest.Ethernet(frame.MAC{3}, frame.MAC{2}, 7))
	for name, tt := range map[string]struct {
		octets []byte
		ends   bool
	}{
		"length too large":  {[]byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3}, true},
		"length zero":       {[]byte{0, 0, 0, 0}, false},
		"shorter than MACs": {framed([]byte{1, 2, 3}), false},
		"group source":      {framed(frametest.Ethernet(frame.MAC{2}, frame.MAC{1}, 7)), false},
		"longest":           {framed(make([]byte, 4096+65536)), false},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.Write(tt.octets)
			if tt.ends {
				c.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := c.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("connection goes on: %v", err)
				}
				return
			}
			c.Write(good)
			<-in.Frames
			if n := len(in.Frames); n != 0 {
				t.Errorf("%d frames too many", n)
			}
		})
	}
	if l.Stats().RxDrops != 4 {
		t.Errorf("drops: %+v", l.Stats())
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
	netstacktest.Eventually(t, "peer", l.Connected)
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
