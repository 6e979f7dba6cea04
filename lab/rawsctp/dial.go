package rawsctp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// EncapsulationPort is that of SCTP in UDP: RFC 6951, section 5.1.
const EncapsulationPort = 9899

// DialUDP makes a Link over the host's UDP, to a port where SCTP is in it.
func DialUDP(ctx context.Context, addr netip.Addr, port uint16) (Link, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", netip.AddrPortFrom(addr, port).String())
	if err != nil {
		return nil, err
	}
	return udp{c}, nil
}

// udp is a socket that does not fail because the last packet was refused.
type udp struct{ net.Conn }

func (u udp) Read(b []byte) (int, error) {
	for {
		n, err := u.Conn.Read(b)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return n, err
		}
	}
}

// DialIP makes a Link over IP itself, which takes CAP_NET_RAW. A kernel that knows SCTP answers the
// endpoint, too: to each of its packets by an ABORT.
func DialIP(ctx context.Context, addr netip.Addr) (Link, error) {
	var d net.Dialer
	network := "ip4:132"
	if addr.Is6() {
		network = "ip6:132"
	}
	c, err := d.DialContext(ctx, network, addr.String())
	if err != nil {
		return nil, err
	}
	return &ip{IPConn: c.(*net.IPConn)}, nil
}

// ip is a socket that has all that comes from an endpoint: packets to other ports are left.
type ip struct {
	*net.IPConn
	ports [4]byte // as the endpoint has them in its packets
}

func (x *ip) Read(b []byte) (int, error) {
	for {
		n, _, err := x.ReadFromIP(b) // without a header
		if err != nil || n >= 4 && bytes.Equal(b[:4], x.ports[:]) {
			return n, err
		}
	}
}

func (x *ip) Write(b []byte) (int, error) {
	if len(b) >= headerLen {
		copy(x.ports[:], b[2:4])
		copy(x.ports[2:], b[:2])
	}
	return x.IPConn.Write(b)
}
