package hostnet

import (
	"context"
	"net"
	"net/netip"

	"github.com/vrnic/vrnic/roce/packet"
)

// A UDPPort is a port of the kernel's UDP, for datagrams of a program.
type UDPPort struct {
	c    *net.UDPConn
	done chan struct{}
}

// OpenUDP opens a port; what comes there is given to receive, by one goroutine. EADDRINUSE: a
// program of this host has it.
func (n *Network) OpenUDP(at netip.AddrPort, receive func(from netip.AddrPort, data []byte)) (
	*UDPPort, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	p := &UDPPort{c, make(chan struct{})}
	go p.run(receive)
	return p, nil
}

func (p *UDPPort) run(receive func(from netip.AddrPort, data []byte)) {
	defer close(p.done)
	b := make([]byte, 1<<16)
	for {
		n, from, err := p.c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		receive(netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port()), b[:n])
	}
}

// Send sends a datagram, or loses it. Nothing is sent to RoCE's own port, which the device of this
// address speaks to, nor to groups.
func (p *UDPPort) Send(_ context.Context, to netip.AddrPort, data []byte) {
	if to.Port() == packet.Port || to.Addr().IsMulticast() {
		return
	}
	_, _ = p.c.WriteToUDPAddrPort(data, to) // it is lost
}

// Close hands nothing up any more, and waits for who receives.
func (p *UDPPort) Close() error {
	err := p.c.Close()
	<-p.done
	return err
}
