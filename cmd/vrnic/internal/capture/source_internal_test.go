package capture

import (
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
)

// quiet is a port that takes everything.
type quiet struct{}

func (quiet) Transmit(*frame.Frame, *ethswitch.Delivery) bool { return true }
func (quiet) Offloads(frame.GSO) bool                         { return true }
func (quiet) String() string                                  { return "quiet" }

// Where nobody takes what was seen, the memory that waits is bounded: that of the buffers, also of
// those that were made for larger packets.
func TestBoundIsOfMemory(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	at, err := sw.Attach(ethswitch.PortOptions{Name: "a", Kind: "tap"}, quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Detach()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(pair[0]), "")
	defer syscall.Close(pair[1])
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	s, err := open(&Config{Switch: sw, Ports: []Port{{Name: "a", Kind: "tap"}}, Snap: frame.MaxLen,
		Conn: conn.(*net.UnixConn)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	small := frametest.Ethernet(frametest.MAC(1), frametest.MAC(2), 3)
	large, off := frametest.Super(false, 60000, 1460)
	send := func(b []byte, off frame.Offload, n int) {
		for range n {
			f := frame.New(b, off)
			if err := at.Input(f); err != nil {
				t.Fatal(err)
			}
			f.Release()
		}
	}
	held := func() (n int64) { // what waits, which is taken; its buffers go back
		for len(s.queue) > 0 {
			p := <-s.queue
			n += int64(cap(p.octets))
			s.release(p)
		}
		return n
	}
	send(large, off, 1000)
	if n := held(); n > maxOctets || n < maxOctets/2 {
		t.Errorf("%d octets of memory wait in large packets, at most %d", n, maxOctets)
	}
	// In the pools are large buffers now. Small packets do not take those.
	send(small, frame.Offload{}, maxQueued)
	if n := held(); n > int64(maxQueued*2*len(small)) {
		t.Errorf("%d octets of memory wait in %d packets of %d", n, maxQueued, len(small))
	}
	if n := s.octets.Load(); n != 0 {
		t.Errorf("%d octets are counted when nothing waits", n)
	}
}
