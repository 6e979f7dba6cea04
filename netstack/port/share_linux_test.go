package port_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/netstack/udp"
)

// sharedTAP is a stack, the n-th, and a kernel that is one station with it.
func sharedTAP(t *testing.T, sw *ethswitch.Switch, n int, changes chan linkChange) (*netNS,
	*netstack.Stack, *port.TAP) {
	t.Helper()
	ns := newNetNS(t)
	st := netstacktest.NewStack(t, sw, n, 1500)
	tap, err := port.OpenTAP(sw, port.TAPConfig{Name: "vtap" + st.Name(), NetNS: ns.path(),
		Addrs: st.Addrs(), MAC: st.MAC(), Beside: st.Name(),
		OnLink: func(up bool, why error) {
			if changes != nil {
				changes <- linkChange{up, why}
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := st.Share(tap); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Share(nil) })
	return ns, st, tap
}

// greet sends a word over c, and closes it.
func greet(t *testing.T, c net.Conn, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Error(err)
	}
}

// hear takes a connection, and reports from whom it is.
func hear(t *testing.T, l net.Listener) (from netip.Addr) {
	t.Helper()
	c, err := l.Accept()
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 8)
	if n, err := c.Read(b); string(b[:n]) != "hello" {
		t.Errorf("%q, %v", b[:n], err)
	}
	return netip.MustParseAddrPort(c.RemoteAddr().String()).Addr()
}

// TestShare: two stations, each of a stack and a kernel. What a kernel sends gets to the other
// kernel, with fragments; what a stack sends to the other stack; and to the other half it goes by
// the port, for which alone it is asked.
func TestShare(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	nsA, stA, _ := sharedTAP(t, sw, 1, nil)
	nsB, stB, _ := sharedTAP(t, sw, 2, nil)
	for i, b := range stB.Addrs() {
		for _, size := range []int{56, 4000} {
			ping(t, nsA, b.Addr(), size)
		}
		a := stA.Addrs()[i].Addr()
		of, err := stB.TCP().ListenNet(netip.AddrPortFrom(b.Addr(), 7174))
		if err != nil {
			t.Fatal(err)
		}
		var kernels net.Listener
		nsB.do(t, func() (err error) {
			kernels, err = net.Listen("tcp", netip.AddrPortFrom(b.Addr(), 7175).String())
			return err
		})
		for _, l := range []net.Listener{of, kernels} {
			to := netip.MustParseAddrPort(l.Addr().String())
			done := make(chan struct{})
			go func() {
				defer close(done)
				nsA.do(t, func() error {
					c, err := net.DialTimeout("tcp", to.String(), time.Minute)
					greet(t, c, err)
					return nil
				})
			}()
			if from := hear(t, l); from != a {
				t.Errorf("the kernel at %v comes from %v", a, from)
			}
			<-done
			done = make(chan struct{})
			go func() {
				defer close(done)
				c, err := stA.TCP().DialNet(context.Background(), to)
				greet(t, c, err)
			}()
			if from := hear(t, l); from != a {
				t.Errorf("the stack at %v comes from %v", a, from)
			}
			<-done
		}
		of.Close()
		kernels.Close()
		// Where nobody listens there is one answer.
		if _, err := stA.TCP().DialNet(t.Context(), netip.AddrPortFrom(b.Addr(), 7174)); !errors.Is(
			err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
	}
}

type nobody struct{}

func (nobody) Receive(udp.Packet) {}

// TestSharePorts: a port that one half of the station has the other cannot have, and both are told;
// one that is given back can be had. Ports below 1024 stay the kernel's.
func TestSharePorts(t *testing.T) {
	ns, st, tap := sharedTAP(t, ethswitch.New(ethswitch.Config{}), 1, nil)
	if s := tap.String(); !strings.Contains(s, "shared with "+st.Name()) {
		t.Error(s)
	}
	listen := func(at netip.AddrPort) (l net.Listener, err error) {
		network := "tcp4"
		if at.Addr().Is6() {
			network = "tcp6"
		}
		ns.do(t, func() error {
			l, err = net.Listen(network, at.String())
			return nil
		})
		return l, err
	}
	taken := func(what string, err error, want syscall.Errno) {
		t.Helper()
		if !errors.Is(err, want) || want == syscall.EACCES && !strings.Contains(err.Error(), "1024") {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	for _, p := range st.Addrs() {
		at := netip.AddrPortFrom(p.Addr(), 7174)
		l, err := st.TCP().Listen(at, 1)
		if err != nil {
			t.Fatal(err)
		}
		_, err = listen(at)
		taken("the kernel listens, too", err, syscall.EADDRINUSE)
		all := netip.IPv6Unspecified()
		if p.Addr().Is4() {
			all = netip.IPv4Unspecified()
		}
		_, err = listen(netip.AddrPortFrom(all, 7174))
		taken("the kernel listens at all addresses", err, syscall.EADDRINUSE)
		l.Close()
		k, err := listen(at)
		if err != nil {
			t.Fatalf("the stack has given it back: %v", err)
		}
		_, err = st.TCP().Listen(at, 1)
		taken("the stack listens, too", err, syscall.EADDRINUSE)
		_, err = st.TCP().Listen(netip.AddrPortFrom(all, 7174), 1)
		taken("the stack listens at all addresses", err, syscall.EADDRINUSE)
		k.Close()
		if l, err = st.TCP().Listen(at, 1); err != nil {
			t.Fatalf("the kernel has given it back: %v", err)
		}
		l.Close()
		_, err = st.TCP().Listen(netip.AddrPortFrom(p.Addr(), 80), 1)
		taken("port 80", err, syscall.EACCES)
	}
	// Of connections, too.
	at := netip.AddrPortFrom(st.Addrs()[0].Addr(), 40000)
	k, err := listen(at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	peer := netip.MustParseAddrPort("10.77.0.9:7174") // there is none
	_, err = st.TCP().DialFrom(ctx, at, peer)
	taken("connect from the kernel's port", err, syscall.EADDRINUSE)
	k.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error = syscall.EADDRINUSE
		for errors.Is(err, syscall.EADDRINUSE) { // as long as who looks below has the port
			_, err = st.TCP().DialFrom(ctx, at, peer)
		}
	}()
	waitFor := func(what string, want error) {
		t.Helper()
		needtest.Eventually(t, what, func() bool {
			l, err := listen(at)
			if err == nil {
				l.Close()
			}
			return errors.Is(err, want)
		})
	}
	waitFor("the stack connects from there", syscall.EADDRINUSE)
	cancel()
	<-done
	waitFor("the connection has come to nothing", nil)

	// UDP, and ports that were in use before the address was shared.
	const roce = 4791
	addrs := []netip.Addr{st.Addrs()[0].Addr(), st.Addrs()[1].Addr()}
	sock, err := st.UDP().Open(roce, addrs, nobody{})
	if err != nil {
		t.Fatal(err)
	}
	var c net.PacketConn
	packets := func() (err error) {
		ns.do(t, func() error {
			c, err = net.ListenPacket("udp", ":4791")
			return nil
		})
		return err
	}
	taken("the kernel's UDP", packets(), syscall.EADDRINUSE)
	_ = st.Share(nil)
	if err := packets(); err != nil {
		t.Errorf("nobody keeps it: %v", err)
	}
	taken("what the stack has, has the kernel, too", st.Share(tap), syscall.EADDRINUSE)
	c.Close()
	if err := st.Share(tap); err != nil {
		t.Error(err)
	}
	taken("the kernel's UDP again", packets(), syscall.EADDRINUSE)
	sock.Close()
	if err := packets(); err != nil {
		t.Errorf("the socket is closed: %v", err)
	}
	_, err = st.UDP().Open(roce, addrs, nobody{})
	taken("the stack's UDP", err, syscall.EADDRINUSE)
	c.Close()
}

// TestShareChanged: somebody takes the kernel's side its MAC, or an address: the port says so, and
// how to put it right, and when it is.
func TestShareChanged(t *testing.T) {
	changes := make(chan linkChange, 16)
	ns, st, tap := sharedTAP(t, ethswitch.New(ethswitch.Config{}), 1, changes)
	name, mac := tap.Name(), st.MAC()
	ns.link(t, name, func(l netlink.Link) error {
		return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 0x77})
	})
	want(t, tap, changes, false, "ip link set "+name+" address "+mac.String())
	ns.link(t, name, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac[:]) })
	want(t, tap, changes, true, "")
	for _, p := range st.Addrs() {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		ns.link(t, name, func(l netlink.Link) error { return netlink.AddrDel(l, a) })
		want(t, tap, changes, false, "ip addr add "+p.String()+" dev "+name)
		ns.link(t, name, func(l netlink.Link) error { return netlink.AddrAdd(l, a) })
		want(t, tap, changes, true, "")
	}
	// A device that is made anew is what the first one was.
	ns.link(t, name, netlink.LinkDel)
	want(t, tap, changes, false, "the device is gone")
	want(t, tap, changes, true, "")
	ns.link(t, name, func(l netlink.Link) error {
		if got := frame.MAC(l.Attrs().HardwareAddr); got != mac {
			t.Errorf("MAC %v, want %v", got, mac)
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if len(addrs) != 1 || addrs[0].IP.String() != st.Addrs()[0].Addr().String() {
			t.Errorf("addresses %v", addrs)
		}
		return err
	})
}
