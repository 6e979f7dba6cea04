package port_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/netstack/tcp"
)

// kernelAddrs is what the kernel's side of a TAP gets; the stack beside it has Addresses(2).
var kernelAddrs = netstacktest.Addresses(1)

// tapPair puts a stack and a TAP in a fresh namespace on a switch.
func tapPair(tb testing.TB, mtu int, plain bool) (*netNS, *port.TAP, *netstack.Stack) {
	tb.Helper()
	ns := newNetNS(tb)
	sw := ethswitch.New(ethswitch.Config{})
	tap, err := port.OpenTAP(sw, port.TAPConfig{
		Name: "vtap0", NetNS: ns.path(), Addrs: kernelAddrs, MTU: mtu, Plain: plain,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := tap.Close(); err != nil {
			tb.Error(err)
		}
	})
	if got := tap.Offloads(frame.GSOTCPv4); got == plain {
		tb.Errorf("offloads %v with plain %v: %v", got, plain, tap)
	}
	return ns, tap, netstacktest.NewStack(tb, sw, 2, mtu)
}

// eachTAP runs f with offloads and with plain frames.
func eachTAP(t *testing.T, f func(t *testing.T, plain bool)) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) { f(t, plain) })
	}
}

// TestTAPPing pings the stack from the kernel and waits for the answers.
func TestTAPPing(t *testing.T) {
	eachTAP(t, func(t *testing.T, plain bool) {
		ns, _, st := tapPair(t, 1500, plain)
		for _, to := range st.Addrs() {
			for _, size := range []int{0, 56, 1400, 4000} { // the last is fragmented
				ping(t, ns, to.Addr(), size)
			}
		}
	})
}

// ping sends an echo request of size octets, each second until it is answered, as any packet may
// get lost, and checks the answer.
func ping(t *testing.T, ns *netNS, to netip.Addr, size int) {
	t.Helper()
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	var c net.PacketConn
	ns.do(t, func() (err error) {
		c, err = net.ListenPacket(network, kernelAddr(to).String())
		return err
	})
	defer c.Close()
	msg := append([]byte{request, 0, 0, 0, 0x12, 0x34, byte(size >> 8), byte(size)},
		netstacktest.Pattern(0, size)...)
	if to.Is4() { // the kernel does it for IPv6
		binary.BigEndian.PutUint16(msg[2:], frametest.InetChecksum(msg))
	}
	b := make([]byte, 65536)
	var again, end = time.Now(), time.Now().Add(time.Minute)
	for {
		if now := time.Now(); !now.Before(again) {
			if _, err := c.WriteTo(msg, &net.IPAddr{IP: to.AsSlice()}); err != nil {
				t.Fatal(err)
			}
			again = now.Add(time.Second)
			c.SetReadDeadline(again)
		}
		n, _, err := c.ReadFrom(b)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
			continue
		}
		if err != nil {
			t.Fatalf("ping %v, %d octets: %v", to, size, err)
		}
		if n < 8 || b[0] != reply || string(b[4:8]) != string(msg[4:8]) {
			continue // neighbour discovery, or late
		}
		if n != len(msg) || string(b[4:n]) != string(msg[4:]) {
			t.Errorf("ping %v: %d octets came back, %d sent, or not the same", to, n, len(msg))
		}
		return
	}
}

func kernelAddr(family netip.Addr) netip.Addr {
	if family.Is4() {
		return kernelAddrs[0].Addr()
	}
	return kernelAddrs[1].Addr()
}

// TestTAPTransfer moves checked octets both ways between kernel TCP and the stack.
func TestTAPTransfer(t *testing.T) {
	n := int64(16 << 20)
	if netstacktest.RaceEnabled {
		n = 2 << 20
	}
	eachTAP(t, func(t *testing.T, plain bool) {
		for _, mtu := range []int{1500, 9000} {
			ns, tap, st := tapPair(t, mtu, plain)
			for _, addr := range kernelAddrs {
				t.Run(fmt.Sprintf("mtu=%d/%v", mtu, addr.Addr()), func(t *testing.T) {
					k, c := kernelPair(t, ns, st, addr.Addr())
					errc := make(chan error, 3)
					go func() { errc <- netstacktest.Both(c, netstacktest.NewBell(c), n) }()
					go func() {
						_, err := io.Copy(k, io.LimitReader(endless{netstacktest.NewSource(n)}, n))
						errc <- errors.Join(err, k.CloseWrite())
					}()
					go func() {
						sink := netstacktest.NewSink(n)
						_, err := io.Copy(sink, k)
						if sink.Len() != n {
							err = errors.Join(err, fmt.Errorf("the kernel got %d of %d octets", sink.Len(), n))
						}
						errc <- errors.Join(err, sink.Err)
					}()
					for range 3 {
						if err := <-errc; err != nil {
							t.Error(err)
						}
					}
					k.Close()
					c.Close()
				})
			}
			s := tap.Stats()
			if s.RxDrops != 0 || s.TxDrops != 0 {
				t.Logf("drops: %+v", s)
			}
			if perFrame := s.RxOctets / s.RxFrames; !plain && perFrame < uint64(mtu) {
				t.Errorf("%d octets a frame from the kernel: no super-frames: %+v", perFrame, s)
			}
		}
	})
}

// endless hides Len, which would make io.Copy's LimitReader end early.
type endless struct{ io.Reader }

// kernelPair connects the stack to a listener of the kernel's.
func kernelPair(tb testing.TB, ns *netNS, st *netstack.Stack, addr netip.Addr) (*net.TCPConn,
	*tcp.Conn) {
	tb.Helper()
	var l net.Listener
	ns.do(tb, func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	defer l.Close()
	to := netip.AddrPortFrom(addr, uint16(l.Addr().(*net.TCPAddr).Port))
	c, err := st.TCP().Dial(context.Background(), netip.Addr{}, to)
	if err != nil {
		tb.Fatal(err)
	}
	k, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	return k.(*net.TCPConn), c
}

// TestTAPListen connects from the kernel to the stack; the kernel sees the refusal of a closed
// port.
func TestTAPListen(t *testing.T) {
	eachTAP(t, func(t *testing.T, plain bool) {
		ns, _, st := tapPair(t, 1500, plain)
		l, err := st.TCP().Listen(netip.MustParseAddrPort("10.77.0.2:7"), 1)
		if err != nil {
			t.Fatal(err)
		}
		ns.do(t, func() error {
			c, err := net.Dial("tcp", "10.77.0.2:7")
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := net.Dial("tcp", "10.77.0.2:8"); !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("closed port: %v", err)
			}
			return nil
		})
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
}

// devices lists the interfaces of a namespace.
func (n *netNS) devices(tb testing.TB) map[string]net.Interface {
	tb.Helper()
	m := map[string]net.Interface{}
	n.do(tb, func() error {
		ifs, err := net.Interfaces()
		for _, i := range ifs {
			m[i.Name] = i
		}
		return err
	})
	return m
}

func (n *netNS) addresses(tb testing.TB, name string) (s []string) {
	tb.Helper()
	n.do(tb, func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		addrs, err := i.Addrs()
		for _, a := range addrs {
			if p := netip.MustParsePrefix(a.String()); !p.Addr().IsLinkLocalUnicast() {
				s = append(s, p.String())
			}
		}
		return err
	})
	return s
}

// openFDs counts the process's open files.
func openFDs(tb testing.TB) int {
	tb.Helper()
	// The runtime's poller opens two of its own when it first has something to wait for.
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	r.Close()
	w.Close()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(d)
}

// TestTAPCreateAndRemove: the device is there as configured while the TAP is open and gone
// afterwards, and so are the files.
func TestTAPCreateAndRemove(t *testing.T) {
	ns := newNetNS(t)
	sw := ethswitch.New(ethswitch.Config{})
	before := openFDs(t)
	for range 3 {
		tap, err := port.OpenTAP(sw, port.TAPConfig{
			Name: "vtap0", NetNS: ns.path(), Addrs: kernelAddrs, MTU: 1400})
		if err != nil {
			t.Fatal(err)
		}
		dev, ok := ns.devices(t)["vtap0"]
		if !ok || dev.MTU != 1400 || dev.Flags&net.FlagUp == 0 {
			t.Errorf("device: %v %+v", ok, dev)
		}
		if got := fmt.Sprint(ns.addresses(t, "vtap0")); got != fmt.Sprint(kernelAddrs) {
			t.Errorf("addresses %v, want %v", got, kernelAddrs)
		}
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
		if err := tap.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		if dev, ok := ns.devices(t)["vtap0"]; ok {
			t.Errorf("the device is still there: %+v", dev)
		}
	}
	if after := openFDs(t); after != before {
		t.Errorf("%d files open, %d before", after, before)
	}
	if n := len(sw.Ports()); n != 0 {
		t.Errorf("%d ports left", n)
	}
}

// TestTAPFailedSetUp: when something half way fails nothing is left.
func TestTAPFailedSetUp(t *testing.T) {
	ns := newNetNS(t)
	full := ethswitch.New(ethswitch.Config{})
	porttest.NewPort(t, full, "vtap0", false)
	sw := ethswitch.New(ethswitch.Config{})
	before := openFDs(t)
	for name, c := range map[string]struct {
		sw  *ethswitch.Switch
		cfg port.TAPConfig
	}{
		"MTU too large": {sw, port.TAPConfig{Name: "vtap0", NetNS: ns.path(), MTU: 1 << 20}},
		"bad address": {sw, port.TAPConfig{Name: "vtap0", NetNS: ns.path(), Addrs: []netip.Prefix{
			kernelAddrs[0], netip.MustParsePrefix("ff02::1/64")}}},
		"port name taken":  {full, port.TAPConfig{Name: "vtap0", NetNS: ns.path()}},
		"not a TAP":        {sw, port.TAPConfig{Name: "lo", NetNS: ns.path()}},
		"no namespace":     {sw, port.TAPConfig{Name: "vtap0", NetNS: "/nonexistent"}},
		"not a namespace":  {sw, port.TAPConfig{Name: "vtap0", NetNS: "/dev/null"}},
		"name a pattern":   {sw, port.TAPConfig{Name: "vtap%d", NetNS: ns.path()}},
		"name too long":    {sw, port.TAPConfig{Name: "sixteen-octets-x", NetNS: ns.path()}},
		"name with a path": {sw, port.TAPConfig{Name: "a/b", NetNS: ns.path()}},
	} {
		t.Run(name, func(t *testing.T) {
			tap, err := port.OpenTAP(c.sw, c.cfg)
			if err == nil {
				tap.Close()
				t.Fatal("no error")
			}
			t.Log(err)
			if devs := ns.devices(t); len(devs) != 1 {
				t.Errorf("devices left: %v", devs)
			}
			if after := openFDs(t); after != before {
				t.Errorf("%d files open, %d before", after, before)
			}
		})
	}
}

// TestTAPAttach: a device that was there is used, put back as it was, and not removed.
func TestTAPAttach(t *testing.T) {
	for _, flags := range []uint16{0, unix.IFF_MULTI_QUEUE} {
		ns := newNetNS(t)
		ns.do(t, func() error { return persistentTAP("vtap0", unix.IFF_TAP|unix.IFF_NO_PI|flags) })
		sw := ethswitch.New(ethswitch.Config{})
		tap, err := port.OpenTAP(sw, port.TAPConfig{
			Name: "vtap0", NetNS: ns.path(), Addrs: kernelAddrs, MTU: 1400})
		if err != nil {
			t.Fatal(err)
		}
		if !tap.Offloads(frame.GSOTCPv4) {
			t.Errorf("no offloads: %v", tap)
		}
		if flags == 0 {
			if _, err := port.OpenTAP(sw, port.TAPConfig{Name: "vtap0",
				NetNS: ns.path()}); err == nil || !strings.Contains(err.Error(), "choose another name") {
				t.Errorf("a second one: %v", err)
			}
		}
		st := netstacktest.NewStack(t, sw, 2, 1400)
		ping(t, ns, st.Addrs()[0].Addr(), 56)
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
		dev, ok := ns.devices(t)["vtap0"]
		if !ok || dev.MTU != 1500 || dev.Flags&net.FlagUp != 0 {
			t.Errorf("not put back: %v %+v", ok, dev)
		}
		if got := ns.addresses(t, "vtap0"); len(got) != 0 {
			t.Errorf("addresses left: %v", got)
		}
	}
}

// persistentTAP makes a device that stays, in the calling thread's namespace.
func persistentTAP(name string, flags uint16) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	r.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
}

// TestTAPKilled: a device that was made goes with its process, however that ends.
func TestTAPKilled(t *testing.T) {
	if os.Getenv("VRNIC_TAP_CHILD") != "" {
		tap, err := port.OpenTAP(ethswitch.New(ethswitch.Config{}),
			port.TAPConfig{Name: "vtap0", NetNS: "/proc/self/fd/3"})
		fmt.Println("child:", tap, err)
		select {} // until it is killed
	}
	ns := newNetNS(t)
	child := exec.Command(os.Args[0], "-test.run=^TestTAPKilled$")
	child.Env = append(os.Environ(), "VRNIC_TAP_CHILD=1")
	f, err := os.Open(ns.path())
	if err != nil {
		t.Fatal(err)
	}
	child.ExtraFiles = []*os.File{f}
	defer f.Close()
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, ok := ns.devices(t)["vtap0"]; !ok {
		t.Errorf("no device; the child says %q, %v", line, err)
	}
	child.Process.Kill()
	child.Wait()
	needtest.Eventually(t, "the device is gone", func() bool {
		_, ok := ns.devices(t)["vtap0"]
		return !ok
	})
}
