package netlab

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
)

// root returns a namespace, or skips the test where making one is not allowed.
func root(t *testing.T) *NS {
	t.Helper()
	ns, err := NewNS()
	if errors.Is(err, os.ErrPermission) {
		needtest.Lacking(t, "root", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func TestNamespace(t *testing.T) {
	before := ownNS(t)
	ns := root(t)
	if got := must(ns.Links())(t); !slices.Equal(got, []string{"lo"}) {
		t.Errorf("links of a new namespace: %v", got)
	}
	inside := ""
	if err := ns.Do(func() (err error) {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return
	}); err != nil {
		t.Fatal(err)
	}
	if inside == before {
		t.Errorf("Do runs outside: %v", inside)
	}
	if after := ownNS(t); after != before {
		t.Errorf("the process moved from %v to %v", before, after)
	}
	if got := must(os.Stat(ns.Path()))(t); got.Mode().IsDir() {
		t.Errorf("%s: %v", ns.Path(), got.Mode())
	}

	cmd := exec.Command("readlink", "/proc/self/ns/net")
	out := must(cmd.StdoutPipe())(t)
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	said := must(io.ReadAll(out))(t)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(said)) != inside {
		t.Errorf("a command runs in %s, want %s", said, inside)
	}
}

func TestLinkErrors(t *testing.T) {
	ns := root(t)
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"set up a missing link", ns.SetUp("none"), os.ErrNotExist},
		{"delete a missing link", ns.DelLink("none"), os.ErrNotExist},
		{"address on a missing link", ns.AddAddr("none", netip.MustParsePrefix("10.0.0.1/24")),
			os.ErrNotExist},
		{"no such bridge", ns.SetMaster("lo", "none"), os.ErrNotExist},
		{"lo exists", ns.AddBridge("lo"), os.ErrExist},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, tt.err, tt.want)
		}
	}
}

// Two kernels' ends of a Lab talk TCP over both bridges, IPv4 and IPv6.
func TestLab(t *testing.T) {
	root(t)
	lab, err := NewLab()
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	for i, ns := range []*NS{lab.A, lab.B} {
		host := byte(i + 1)
		for _, p := range []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 8, host}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: host}), 64),
		} {
			if err := ns.AddAddr(Bridge, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, addr := range []string{"10.9.8.1:7174", "[fd00::1]:7174"} {
		var l net.Listener
		if err := lab.A.Do(func() (err error) { l, err = net.Listen("tcp", addr); return }); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if c, err := l.Accept(); err == nil {
				io.Copy(c, c)
				c.Close()
			}
		}()
		var c net.Conn
		if err := lab.B.Do(func() (err error) {
			c, err = net.DialTimeout("tcp", addr, time.Minute)
			return
		}); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte("there")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "there" {
			t.Errorf("echo from %s: %q, %v", addr, b, err)
		}
	}
	if err := lab.A.DelLink(uplink); err != nil {
		t.Fatal(err)
	}
	if got := must(lab.B.Links())(t); slices.Contains(got, uplink) {
		t.Errorf("the other end of a deleted veth is there: %v", got)
	}
}

func ownNS(t *testing.T) string { return must(os.Readlink("/proc/self/ns/net"))(t) }

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestOpenTAP: who has the file of a TAP gets what the kernel sends, one frame a read, and the
// namespace is found again by its path.
func TestOpenTAP(t *testing.T) {
	ns := root(t)
	again := must(At(ns.Path()))(t)
	defer again.Close()
	fd := must(again.OpenTAP("wire0", 100))(t)
	defer unix.Close(fd)
	if err := ns.WaitRunning("wire0", time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := ns.AddAddr("wire0", netip.MustParsePrefix("10.9.8.1/24")); err != nil {
		t.Fatal(err)
	}
	var c net.Conn
	if err := ns.Do(func() (err error) {
		c, err = net.Dial("udp", "10.9.8.2:9")
		return
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("who has it?")); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 2048)
	for {
		n, err := unix.Read(fd, frame)
		if err == unix.EAGAIN {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds, 60_000); n == 0 && err == nil {
				t.Fatal("the kernel sends nothing")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		// RFC 826: an ARP request for the address. IPv6 has something to say, too.
		if n >= 42 && frame[12] == 8 && frame[13] == 6 && frame[41] == 2 {
			break
		}
	}
	if n := must(ns.Dropped("wire0"))(t); n != 0 {
		t.Errorf("%d frames dropped", n)
	}
}
