package sctphost

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
	"github.com/vrnic/vrnic/netstack/sctp"
)

// UDPPort is where SCTP over UDP is expected: RFC 6951, section 5.1.
const UDPPort = 9899

// A udpCarrier carries SCTP over a UDP socket of the host (RFC 6951): it needs no privilege and
// passes NATs. The socket's address is SCTP's only one.
type udpCarrier struct {
	conn *net.UDPConn
	addr netip.Addr
	link int // MTU of the interface
	host *Host
	wg   sync.WaitGroup
}

// NewOverUDP makes a Host over a UDP socket at addr, which must not be unspecified; port 0
// means UDPPort. clock is for tests; nil is the real one. Close closes the socket.
func NewOverUDP(addr netip.AddrPort, clock tcpip.Clock, o sctp.Options) (*Host, error) {
	addr = gvconv.Unmap(addr)
	s, err := newOverUDP(addr, clock, o)
	if err != nil {
		return nil, fmt.Errorf("netstack: SCTP over UDP at %v: %w", addr, err)
	}
	return s, nil
}

func newOverUDP(addr netip.AddrPort, clock tcpip.Clock, o sctp.Options) (*Host, error) {
	if !addr.Addr().IsValid() || addr.Addr().IsUnspecified() || addr.Addr().IsMulticast() {
		return nil, errors.New("give an address of this host")
	}
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), UDPPort)
	}
	if clock == nil {
		clock = tcpip.NewStdClock()
	}
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	u := &udpCarrier{conn: conn, addr: addr.Addr(), link: linkMTU(addr.Addr())}
	if err := u.setOptions(); err != nil {
		conn.Close()
		return nil, err
	}
	if u.host, err = newHost(u, nil, o); err != nil {
		conn.Close()
		return nil, err
	}
	u.host.setClock(clock)
	u.wg.Go(u.receive)
	return u.host, nil
}

// linkMTU is the MTU of the interface that has a. More than Ethernet's jumbo frames is not made use
// of.
func linkMTU(a netip.Addr) int {
	const most = 9000
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil && (p.Addr().Unmap() == a ||
				p.Addr().IsLoopback() && p.Contains(a)) {
				return min(i.MTU, most)
			}
		}
	}
	return 1500
}

// setOptions asks for the ICMP errors with what they quote, and forbids fragments: SCTP finds the
// path's MTU by itself.
func (u *udpCarrier) setOptions() error {
	level, discover, pmtu, errs := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE,
		unix.IP_RECVERR
	if u.addr.Is6() {
		level, discover, pmtu, errs = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE,
			unix.IPV6_RECVERR
	}
	raw, err := u.conn.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), level, discover, pmtu)
		if setErr == nil {
			setErr = unix.SetsockoptInt(int(fd), level, errs, 1)
		}
		for _, o := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o, 4<<20) // the kernel gives what it may
		}
	})
	return errors.Join(err, setErr)
}

// receive takes packets until the socket is closed.
func (u *udpCarrier) receive() {
	b := make([]byte, 1<<16)
	for {
		n, from, err := u.conn.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // what an ICMP error said about something that was sent
			u.receiveErrors()
			continue
		}
		v := buffer.NewViewWithData(b[:n]) // a message may keep it for long
		r := newPacketRef()
		r.view = v
		u.host.input(sctp.Packet{Src: from.Addr().Unmap(), Dst: u.addr, Data: v.AsSlice(), Ref: r,
			Encap: from.Port()})
		r.Release()
	}
}

// receiveErrors takes what the socket's error queue holds: ICMP errors with the datagram concerned.
func (u *udpCarrier) receiveErrors() {
	raw, err := u.conn.SyscallConn()
	if err != nil {
		return
	}
	b, oob := make([]byte, quoteMax), make([]byte, 256)
	for {
		var n, oobn int
		var to unix.Sockaddr
		err := error(unix.EBADF)
		_ = raw.Control(func(fd uintptr) {
			n, oobn, _, to, err = unix.Recvmsg(int(fd), b, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		})
		if err != nil {
			return
		}
		e := sctp.ICMPError{Src: u.addr, Encap: true, Quote: b[:n]}
		switch to := to.(type) {
		case *unix.SockaddrInet4:
			e.Dst = netip.AddrFrom4(to.Addr)
		case *unix.SockaddrInet6:
			e.Dst = netip.AddrFrom16(to.Addr).Unmap()
		}
		if sockError(oob[:oobn], &e) {
			u.host.icmp(e)
		}
	}
}

// sockError reads the sock_extended_err among control messages; false: there is none that comes
// from the network or is about size.
func sockError(oob []byte, e *sctp.ICMPError) bool {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for _, m := range msgs {
		v4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		v6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !v4 && !v6 || len(m.Data) < 16 {
			continue
		}
		// struct sock_extended_err: errno u32, origin u8, type u8, code u8, pad u8, info u32, data u32.
		errno := unix.Errno(binary.NativeEndian.Uint32(m.Data))
		switch {
		case errno == unix.EMSGSIZE:
			e.Kind, e.MTU = sctp.ICMPTooBig, int(binary.NativeEndian.Uint32(m.Data[8:]))-frame.IPv4MinLen
			if v6 {
				e.MTU = int(binary.NativeEndian.Uint32(m.Data[8:])) - frame.IPv6Len
			}
		case errno == unix.ECONNREFUSED:
			e.Kind = sctp.ICMPPortUnreachable
		default:
			e.Kind = sctp.ICMPUnreachable
		}
		return true
	}
	return false
}

// headroom implements carrier: the kernel has its own.
func (*udpCarrier) headroom() int { return 0 }

// transmit implements carrier.
func (u *udpCarrier) transmit(_ time.Time, d *sctp.Datagram, v *buffer.View) error {
	defer v.Release()
	port := d.Encap
	if port == 0 {
		port = UDPPort
	}
	to := netip.AddrPortFrom(d.Dst, port)
	_, err := u.conn.WriteToUDPAddrPort(v.AsSlice(), to)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		// It may be what ICMP has said about another packet: the kernel tells whoever comes first, and
		// sends nothing then.
		u.receiveErrors()
		_, err = u.conn.WriteToUDPAddrPort(v.AsSlice(), to)
	}
	return err
}

// local implements carrier.
func (u *udpCarrier) local(remote netip.Addr) (netip.Addr, error) {
	if remote.Is4() != u.addr.Is4() {
		return netip.Addr{}, unix.EAFNOSUPPORT
	}
	return u.addr, nil
}

// mtu implements carrier.
func (u *udpCarrier) mtu(netip.Addr) int {
	if u.addr.Is4() {
		return u.link - frame.IPv4MinLen
	}
	return u.link - frame.IPv6Len
}

// forget implements carrier.
func (*udpCarrier) forget() {}

// usePort implements carrier: all ports are SCTP's own.
func (*udpCarrier) usePort(uint16) error { return nil }

// leavePort implements carrier.
func (*udpCarrier) leavePort(uint16) {}

// encap implements carrier.
func (*udpCarrier) encap() uint16 { return UDPPort }

// close implements carrier.
func (u *udpCarrier) close() {
	u.conn.Close()
	u.wg.Wait()
}
