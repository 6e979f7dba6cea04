package rawroce_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A UDP socket of the kernel behind a TAP is the peer of a QP: the kernel finds nothing wrong with
// what the device sends, and the device takes what the kernel sends, with its checksums or what it
// leaves of them to be filled in, in pieces as the TAP is read.
func TestKernelSocket(t *testing.T) {
	ns, err := netlab.NewNS()
	if errors.Is(err, os.ErrPermission) {
		needtest.Lacking(t, "root", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	r := &rig{T: t, sw: ethswitch.New(ethswitch.Config{})}
	r.st = netstacktest.NewStack(t, r.sw, 1, 9000)
	tap, err := port.OpenTAP(r.sw, port.TAPConfig{Name: "roce0", NetNS: ns.Path(), MTU: 9000,
		Addrs: []netip.Prefix{netip.MustParsePrefix("fd77::9/64")}})
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	n := stacknet.New(r.st)
	t.Cleanup(func() { n.Close() })
	d, err := vnic.New(vnic.Config{Name: "roce0", RoCE: true, MAC: r.st.MAC(), MTU: 9000,
		Addrs: r.st.Addrs(), Network: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	r.ctx = vnictest.Open(t, d, vnic.ContextConfig{})

	us, them := rawAddrs(1)[1], rawAddrs(9)[1]
	var sock net.PacketConn
	listen := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		c.Control(func(fd uintptr) { // datagrams without a checksum
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, 102, 1)
		})
		return err
	}}
	// The kernel takes its time to have an address of IPv6 that is its own alone.
	needtest.Eventually(t, "an address", func() bool {
		err = ns.Do(func() (err error) {
			sock, err = listen.ListenPacket(context.Background(), "udp6", "[fd77::9]:4791")
			return err
		})
		return err == nil
	})
	defer sock.Close()
	if err := sock.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	send := func(p rawroce.Packet) {
		t.Helper()
		p.Src, p.Dst, p.SrcPort = them, us, 4791
		_, err := sock.WriteTo(p.Bytes()[48:], net.UDPAddrFromAddrPort(netip.AddrPortFrom(us, 4791)))
		if err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 10000)
	next := func() []byte {
		t.Helper()
		n, _, err := sock.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		return buf[:n]
	}

	x := vnictest.NewPeer(t, r.ctx, vnictest.PeerConfig{})
	x.ToRTS(rdma.QPAttr{Port: 1, Access: vnictest.Full, PathMTU: rdma.MTU4096, DestQPN: rawQPN,
		RQPSN: 5, SQPSN: 7, MaxDestRead: 4, MaxRead: 4, MinRNRTimer: 1, RetryCount: 7, RNRRetry: 7,
		Path: rdma.AHAttr{GID: rdma.GIDOf(them), GIDIndex: 2, Port: 1, Global: true}})
	// A Write with Immediate is completed, which tells that its octets are there.
	written := func(i, n int) []byte {
		return append(rawroce.RETH(x.MR.Addr()+uint64(i), x.MR.RKey(), uint32(n)), 1, 2, 3, 4)
	}
	for i, size := range []int{4, 1000, 2500, 4096} {
		data := bytes.Repeat([]byte{byte('a' + i)}, size)
		x.Recv(1, 0, 0)
		send(rawroce.Packet{Opcode: rawroce.WriteImm, QPN: x.QP.Num(), PSN: 5 + uint32(i),
			Ack: rawroce.AckReq, Ext: written(0, size), Payload: data})
		x.Next(x.RecvCQ, 1)
		if a := next(); a[0] != rawroce.Ack || binary.BigEndian.Uint32(a[8:])&0xffffff != 5+uint32(i) ||
			!bytes.Equal(x.Buf[:size], data) {
			t.Fatalf("a Write of %d octets is answered by % x", size, a)
		}
	}
	// Three datagrams in one, for the kernel or whoever has the frame to cut: UDP_SEGMENT.
	raw, err := sock.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const size = 3000
	segment := func(n int) {
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, 103, n) })
		if err != nil {
			t.Fatal(err)
		}
	}
	segment(size + 32 + 4)
	var three []byte
	for i := range 3 {
		p := rawroce.Packet{Src: them, Dst: us, SrcPort: 4791, Opcode: rawroce.WriteImm,
			QPN: x.QP.Num(), PSN: 9 + uint32(i), Ext: written(i*size, size),
			Payload: bytes.Repeat([]byte{byte('A' + i)}, size)}
		x.Recv(1, 0, 0)
		if i == 2 {
			p.Ack = rawroce.AckReq
		}
		three = append(three, p.Bytes()[48:]...)
	}
	if _, err := sock.WriteTo(three, net.UDPAddrFromAddrPort(netip.AddrPortFrom(us,
		4791))); err != nil {
		t.Fatal(err)
	}
	x.Next(x.RecvCQ, 3)
	if a := next(); a[0] != rawroce.Ack || binary.BigEndian.Uint32(a[8:])&0xffffff != 11 ||
		x.Buf[0] != 'A' || x.Buf[size] != 'B' || x.Buf[3*size-1] != 'C' {
		t.Fatalf("three Writes in one are answered by % x", a)
	}
	segment(0)
	const messages = 3 * 4096
	copy(x.Buf, bytes.Repeat([]byte("0123456789abcdef"), messages/16))
	x.Post(rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, RemoteAddr: 4096, RKey: 7}, 0,
		messages)
	var got []byte
	for i := range uint32(3) {
		b := next()
		head := 12
		if i == 0 {
			head = 28
		}
		if binary.BigEndian.Uint32(b[8:])&0xffffff != 7+i {
			t.Fatalf("packet %d is % x", i, b[:28])
		}
		got = append(got, b[head:len(b)-4]...)
	}
	if !bytes.Equal(got, x.Buf[:messages]) {
		t.Error("other octets have come than were sent")
	}
	send(rawroce.Packet{Opcode: rawroce.Ack, QPN: rawQPN, PSN: 9, Ext: rawroce.AETH(0x1f, 1)})
	send(rawroce.Packet{Opcode: rawroce.Ack, QPN: x.QP.Num(), PSN: 9, Ext: rawroce.AETH(0x1f, 1)})
	if wc := x.Next(x.SendCQ, 1)[0]; wc.Status != rdma.WCSuccess {
		t.Error(wc.Status)
	}
}
