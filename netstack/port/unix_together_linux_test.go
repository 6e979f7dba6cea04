package port_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
)

// A waiter is a port that puts off what it has to do for a frame to the last of those that come
// together.
type waiter struct{ told chan string }

func (w *waiter) Transmit(f *frame.Frame, d *ethswitch.Delivery) bool {
	deferred := d.Deferred() == w || d.Defer(w)
	w.told <- fmt.Sprintf("%d octets, together %v", f.Len(), deferred)
	return true
}

func (w *waiter) Finish()               { w.told <- "that was all" }
func (*waiter) Offloads(frame.GSO) bool { return false }
func (*waiter) String() string          { return "a port that waits" }

// beside returns a waiter and its port, on a switch with a listening port of Unix, and that one's
// peer.
func beside(t *testing.T) (*waiter, *ethswitch.Attachment, net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "link")
	sw := ethswitch.New(ethswitch.Config{})
	l := listenUnix(t, sw, path)
	w := &waiter{told: make(chan string, 64)}
	at, err := sw.Attach(ethswitch.PortOptions{Name: "waiter", MAC: frametest.MAC(9)}, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(at.Detach)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	needtest.Eventually(t, "a peer", l.Connected)
	return w, at, c
}

// TestUnixBringsTogether: frames that one read of the socket finds are brought together, so that
// who takes them answers once; one that is alone is not kept for others.
func TestUnixBringsTogether(t *testing.T) {
	w, _, c := beside(t)
	octets := frametest.Ethernet(frametest.MAC(9), frametest.MAC(1), 0)
	one := framed(octets)
	tell := fmt.Sprintf("%d octets, together ", len(octets))
	together := slices.Repeat([]string{tell + "true"}, ethswitch.SettleFrames)
	for _, tt := range []struct {
		name   string
		stream []byte
		want   []string
	}{
		{"one", one, []string{tell + "false"}},
		{"one and a piece", slices.Concat(one, one[:7]), []string{tell + "false"}},
		{"the other piece and two", slices.Concat(one[7:], one, one),
			append(slices.Clone(together[:3]), "that was all")},
		{"more than wait for one another", slices.Repeat(one, ethswitch.SettleFrames+2),
			slices.Concat(together, []string{"that was all"}, together[:2], []string{"that was all"})},
	} {
		if _, err := c.Write(tt.stream); err != nil {
			t.Fatal(err)
		}
		for i, want := range tt.want {
			select {
			case got := <-w.told:
				if got != want {
					t.Errorf("%s: %d: %s; want %s", tt.name, i, got, want)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%s: %d: nothing; want %s", tt.name, i, want)
			}
		}
	}
}

// TestUnixSendsTogether: frames that are sent together go out in one write, when all are there or
// when there are many; one that is alone goes at once. A super-frame of UDP goes out as the
// datagrams that it stands for.
func TestUnixSendsTogether(t *testing.T) {
	_, at, c := beside(t)
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// come are the lengths of the frames that are there: the port writes before its calls return.
	buf := make([]byte, 1<<20)
	come := func() (lengths []int) {
		t.Helper()
		var n int
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, _, rerr = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			return true
		})
		if err != nil || rerr != nil && rerr != unix.EAGAIN {
			t.Fatal(err, rerr)
		}
		for b := buf[:max(n, 0)]; len(b) > 0; {
			k := int(binary.BigEndian.Uint32(b))
			lengths = append(lengths, k)
			b = b[4+k:]
		}
		return lengths
	}
	send := func(d *ethswitch.Delivery, octets []byte, off frame.Offload) {
		t.Helper()
		f := frame.New(octets, off)
		defer f.Release()
		if err := at.Deliver(f, d); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, want ...int) {
		t.Helper()
		if got := come(); !slices.Equal(got, want) {
			t.Errorf("%s: frames of %v octets; want %v", what, got, want)
		}
	}
	one := frametest.Ethernet(frametest.MAC(1), frametest.MAC(9), 0)
	n := len(one)
	send(nil, one, frame.Offload{})
	check("a frame", n)
	d := &ethswitch.Delivery{Batch: true}
	send(d, one, frame.Offload{})
	send(d, one, frame.Offload{})
	check("two of several")
	d.Finish()
	check("all of them", n, n)

	d = &ethswitch.Delivery{Batch: true}
	long := append(bytes.Clone(one), make([]byte, 40000)...)
	send(d, long, frame.Offload{})
	check("a long one of several")
	send(d, long, frame.Offload{})
	check("as much as goes at once", len(long), len(long))
	send(d, one, frame.Offload{})
	d.Finish()
	check("the last", n)

	octets, off := datagrams(250, 100)
	send(nil, octets, off)
	check("datagrams", 42+100, 42+100, 42+50)
}

// datagrams is a super-frame of n octets of UDP's payload, in datagrams of size.
func datagrams(n, size int) ([]byte, frame.Offload) {
	b, off := frametest.Super(false, n, size)
	const l4, tcpLen, udpLen = 34, 20, 8
	b = slices.Delete(b, l4+udpLen, l4+tcpLen)
	from, ip, udp := b[6:12], b[14:l4], b[l4:]
	from[5] = 9 // the port's
	ip[9] = frame.ProtoUDP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(b)-14))
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], frametest.InetChecksum(ip))
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	off.GSO, off.CsumOffset, off.HdrLen = frame.GSOUDP, 6, l4+udpLen
	return b, off
}
