package port_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/port"
)

// A TUN has the MTU and the addresses that were asked for, and no other. It carries packets both
// ways, and goes when it is closed, which ends who reads.
func TestTUN(t *testing.T) {
	ns := newNetNS(t)
	open := func(name string) (tun *port.TUN, err error) {
		ns.do(t, func() error {
			tun, err = port.OpenTUN(port.TUNConfig{Name: name, MTU: 2044, Addrs: []netip.Prefix{
				netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd01::1/64"),
				netip.MustParsePrefix("fe80::77/64")}})
			return nil
		})
		return tun, err
	}
	tun, err := open("tun7")
	if err != nil {
		t.Fatal(err)
	}
	if tun.Name() != "tun7" {
		t.Error(tun.Name())
	}
	for _, name := range []string{"tun7", "", "a/b", "averylonginterfacename"} {
		if _, err := open(name); err == nil || !strings.Contains(err.Error(), "tun "+name) {
			t.Errorf("%q: %v", name, err)
		}
	}
	var c net.PacketConn
	ns.do(t, func() error {
		i, err := net.InterfaceByName("tun7")
		if err != nil {
			return err
		}
		addrs, err := i.Addrs()
		if i.MTU != 2044 || len(addrs) != 3 || err != nil {
			t.Errorf("MTU %d, addresses %v, %v", i.MTU, addrs, err)
		}
		c, err = net.ListenPacket("udp4", "10.1.0.1:0")
		return err
	})
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.WriteTo([]byte("hello"), &net.UDPAddr{IP: net.IPv4(10, 1, 0, 2), Port: 9}); err !=
		nil {
		t.Fatal(err)
	}
	b := make([]byte, 2044)
	var n int
	for n == 0 || b[0]>>4 != 4 { // MLD comes in between
		if n, err = tun.Read(b); err != nil {
			t.Fatal(err)
		}
	}
	p := b[:n]
	if string(p[28:]) != "hello" {
		t.Fatalf("% x", p)
	}
	// Back, from and to where it went: the sum of the IP header stays, and there is none of UDP's.
	var src, sport [4]byte
	copy(src[:], p[12:16])
	copy(p[12:16], p[16:20])
	copy(p[16:20], src[:])
	copy(sport[:2], p[20:22])
	copy(p[20:22], p[22:24])
	copy(p[22:24], sport[:2])
	p[26], p[27] = 0, 0
	if _, err := tun.Write(p); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10)
	if n, from, err := c.ReadFrom(got); err != nil || string(got[:n]) != "hello" ||
		from.String() != "10.1.0.2:9" {
		t.Errorf("%q from %v, %v", got[:n], from, err)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := tun.Read(b); err != nil {
				ended <- err
				return
			}
		}
	}()
	if err := tun.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("it reads on")
	}
	ns.do(t, func() error {
		if _, err := net.InterfaceByName("tun7"); err == nil {
			return errors.New("tun7 is left")
		}
		return nil
	})
}

// Who may not make a network device is told what it takes.
func TestTUNPrivilege(t *testing.T) {
	newNetNS(t).do(t, func() error { // on a thread that ends
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&h, &none[0]); err != nil {
			return err
		}
		tun, err := port.OpenTUN(port.TUNConfig{Name: "tun8", MTU: 2044})
		if err == nil {
			tun.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("%v, want what it takes", err)
		}
		return nil
	})
}
