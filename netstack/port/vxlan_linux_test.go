package port_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// link makes a link in the caller's namespace, up and with an address.
func link(l netlink.Link, addr string) error {
	if err := netlink.LinkAdd(l); err != nil {
		return err
	}
	return raise(l.Attrs().Name, addr)
}

func raise(name, addr string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(addr)
	if err == nil {
		a.Flags = unix.IFA_F_NODAD
		err = netlink.AddrAdd(l, a)
	}
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// wholeSums has an interface send packets with whole checksums: to a socket of the same host the
// kernel gives what is in a datagram as it would give it to a card, which completes it.
func wholeSums(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data *struct{ cmd, data uint32 }
		_    [16]byte
	}{data: &value}
	copy(req.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&req))); errno != 0 {
		return fmt.Errorf("ethtool -K %s tx off: %w", name, errno)
	}
	return nil
}

func at(addr string) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port.VXLANPort)
}

// Linux's vxlan is the other end: its kernel reaches a stack of the switch and the stack the
// kernel, with packets as long as the segment carries. What is longer is dropped and said.
func TestVXLANLinux(t *testing.T) {
	for _, outer := range []struct {
		name, near, far, bits string
		mtu                   int
	}{
		{"IPv4", "192.0.2.1", "192.0.2.2", "/24", 1450},
		{"IPv6", "2001:db8::1", "2001:db8::2", "/64", 1430},
	} {
		t.Run(outer.name, func(t *testing.T) {
			near, far := newNetNS(t), newNetNS(t)
			var lacking error
			near.do(t, func() error {
				lacking = link(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire"}, PeerName: "wire",
					PeerNamespace: netlink.NsFd(far.fd)}, outer.near+outer.bits)
				return nil
			})
			st, kernel := netstacktest.Addresses(2)[0], kernelAddrs[0]
			far.do(t, func() error {
				if lacking == nil {
					lacking = raise("wire", outer.far+outer.bits)
				}
				if lacking != nil {
					return nil
				}
				lacking = link(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vx0"}, VxlanId: 7,
					Port: port.VXLANPort, SrcAddr: net.ParseIP(outer.far), Group: net.ParseIP(outer.near),
					Learning: true}, kernel.String())
				if lacking == nil {
					return wholeSums("vx0")
				}
				return nil
			})
			if lacking != nil {
				needtest.Lacking(t, "root", fmt.Errorf("links of kinds veth and vxlan: %w", lacking))
			}

			sw := ethswitch.New(ethswitch.Config{})
			s := netstacktest.NewStack(t, sw, 2, outer.mtu)
			var v *port.VXLAN
			near.do(t, func() (err error) {
				v, err = port.OpenVXLAN(sw, port.VXLANConfig{VNI: 7,
					Local: at(outer.near), Remotes: []netip.AddrPort{at(outer.far)}})
				return err
			})
			defer func() {
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}()
			if v.MTU() != outer.mtu {
				t.Errorf("the segment carries %d octets, want %d", v.MTU(), outer.mtu)
			}
			for _, size := range []int{56, outer.mtu - 28} {
				ping(t, far, st.Addr(), size)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var l net.Listener
			far.do(t, func() (err error) {
				l, err = net.Listen("tcp", netip.AddrPortFrom(kernel.Addr(), 7174).String())
				return err
			})
			defer l.Close()
			if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				c, err := s.TCP().DialNet(ctx, netip.AddrPortFrom(kernel.Addr(), 7174))
				greet(t, c, err)
			}()
			if from := hear(t, l); from != st.Addr() {
				t.Errorf("the stack comes from %v", from)
			}
			<-done

			beside := porttest.NewPort(t, sw, "near", true)
			long := make([]byte, 14+outer.mtu+1)
			copy(long, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5})
			if err := beside.Send(long, frame.Offload{}); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("(1 frames too long: give devices mtu=%d)", outer.mtu)
			if s := v.String(); !strings.Contains(s, want) || v.Stats().TxDrops != 1 {
				t.Errorf("it says %q, want %q", s, want)
			}
		})
	}
}
