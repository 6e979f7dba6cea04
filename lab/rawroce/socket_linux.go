package rawroce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// Port is RoCE's, of UDP.
const Port = 4791

// noChecksum has IPv6 take datagrams without a checksum: UDP_NO_CHECK6_RX of linux/udp.h.
const noChecksum = 102

// A Socket is a Link over the kernel's UDP. The kernel makes the IP header of what goes out, with
// the identification 0 that an unconnected socket which never fragments has, and shows none of what
// comes. So a Packet is to have SrcPort set, and no ID, TOS, TTL and Options.
type Socket struct {
	own, remote netip.Addr
	c           *net.UDPConn
	others      map[uint16]*net.UDPConn // that packets are sent from, by port
	buf         []byte
}

// NewSocket makes one from an address of this host to remote.
func NewSocket(own, remote netip.Addr) (*Socket, error) {
	c, err := bound(own, Port)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: somebody at %v speaks RoCE already, the kernel's rxe or a device with "+
			"host=; answers come to this port alone", err, own)
	}
	if err != nil {
		return nil, err
	}
	return &Socket{own: own, remote: remote, c: c, others: map[uint16]*net.UDPConn{},
		buf: make([]byte, 1<<16)}, nil
}

func bound(own netip.Addr, port uint16) (*net.UDPConn, error) {
	l := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		level, option := syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER
		if own.Is6() {
			level, option = syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER
		}
		failed := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), level, option, syscall.IP_PMTUDISC_DO)
			if own.Is6() { // RoCE has no checksum of UDP: RFC 6935
				err = errors.Join(err, syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, noChecksum, 1))
			}
		})
		return errors.Join(failed, err)
	}}
	c, err := l.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(own, port).String())
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// Own is the address of this host from which remote is reached.
func Own(remote netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, Port)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close() // nothing was sent
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// Send implements Link.
func (s *Socket) Send(packet []byte) error {
	n := HeadLen(packet)
	c := s.c
	if port := binary.BigEndian.Uint16(packet[n:]); port != Port {
		if c = s.others[port]; c == nil {
			var err error
			if c, err = bound(s.own, port); err != nil {
				return err
			}
			s.others[port] = c
		}
	}
	_, err := c.WriteToUDPAddrPort(packet[n+8:], netip.AddrPortFrom(s.remote, Port))
	if errors.Is(err, syscall.ECONNREFUSED) { // of an earlier one
		err = nil
	}
	return err
}

// Receive implements Link. What comes from elsewhere is left.
func (s *Socket) Receive(by time.Time) ([]byte, error) {
	if err := s.c.SetReadDeadline(by); err != nil {
		return nil, err
	}
	for {
		n, from, err := s.c.ReadFromUDPAddrPort(s.buf)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, os.ErrDeadlineExceeded
		case err != nil:
			return nil, err
		case from.Addr().Unmap() == s.remote && n >= 4:
			return s.packet(s.buf[:n], from.Port()), nil
		}
	}
}

// packet is a datagram with the headers that it had.
func (s *Socket) packet(data []byte, from uint16) []byte {
	be := binary.BigEndian
	var b []byte
	udp := uint16(8 + len(data))
	if s.own.Is4() {
		b = be.AppendUint16([]byte{0x45, 0}, 20+udp)
		b = append(b, 0, 0, 0x40, 0, 64, 17, 0, 0)
		b = append(append(b, s.remote.AsSlice()...), s.own.AsSlice()...)
	} else {
		b = be.AppendUint16([]byte{0x60, 0, 0, 0}, udp)
		b = append(append(append(b, 17, 64), s.remote.AsSlice()...), s.own.AsSlice()...)
	}
	b = be.AppendUint16(be.AppendUint16(b, from), Port)
	b = append(be.AppendUint16(b, udp), 0, 0)
	b = append(b, data...)
	if s.own.Is4() {
		identify(b)
		FixIPv4(b)
	}
	return b
}

// Close implements Link.
func (s *Socket) Close() error {
	err := s.c.Close()
	for _, c := range s.others {
		err = errors.Join(err, c.Close())
	}
	return err
}
