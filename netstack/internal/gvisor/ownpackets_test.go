package gvisor

import (
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// A grasped link has the dispatcher that it was given.
type grasped struct {
	*channel.Endpoint
	to stack.NetworkDispatcher
}

func (g *grasped) Attach(d stack.NetworkDispatcher) {
	if d != nil {
		g.to = d
	}
	g.Endpoint.Attach(d)
}

// TestOwnPackets: each segment that a stack sends to itself is asked for, once; one that is taken
// does not arrive, and arrives by DeliverOwn, a SYN too.
func TestOwnPackets(t *testing.T) {
	link := &grasped{Endpoint: channel.New(1, 1500, "\x02\x00\x00\x00\x00\x01")}
	taken := make(chan []byte, 16)
	take := func(pkt *stack.PacketBuffer) bool {
		b := pkt.ToBuffer()
		defer b.Release()
		taken <- b.Flatten()
		return true
	}
	st := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{
			func(st *stack.Stack) stack.TransportProtocol {
				return NewTCP(st, func(pkt *stack.PacketBuffer) bool { return TakeOwn(pkt, take) })
			}},
		HandleLocal: true,
	})
	defer func() { st.Close(); st.Wait() }()
	if err := TuneTCP(st, bufferSize, bufferSize); err != nil {
		t.Fatal(err)
	}
	if err := st.CreateNIC(1, link); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		version, header int
		proto           tcpip.NetworkProtocolNumber
		own             tcpip.Address
	}{{4, header.IPv4MinimumSize, ipv4.ProtocolNumber, tcpip.AddrFrom4([4]byte{10, 0, 0, 1})},
		{6, header.IPv6MinimumSize, ipv6.ProtocolNumber, tcpip.AddrFrom16([16]byte{0: 0xfd, 15: 1})}} {
		if err := st.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: tt.proto,
			AddressWithPrefix: tt.own.WithPrefix()}, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		var wqs [2]waiter.Queue
		var eps [2]tcpip.Endpoint
		for i := range eps {
			var err tcpip.Error
			if eps[i], err = st.NewEndpoint(tcp.ProtocolNumber, tt.proto, &wqs[i]); err != nil {
				t.Fatal(err)
			}
		}
		listener, dialer := eps[0], eps[1].(*tcp.Endpoint)
		if err := listener.Bind(tcpip.FullAddress{Port: 7}); err != nil {
			t.Fatal(err)
		}
		if err := listener.Listen(Backlog(1)); err != nil {
			t.Fatal(err)
		}
		_ = dialer.Connect(tcpip.FullAddress{Addr: tt.own, Port: 7}) // it has only begun
		for _, want := range []header.TCPFlags{header.TCPFlagSyn, header.TCPFlagSyn |
			header.TCPFlagAck, header.TCPFlagAck} {
			whole := <-taken
			for int(whole[0]>>4) != tt.version { // of the connection before
				whole = <-taken
			}
			tcpHeader := header.TCP(whole[tt.header:])
			if got := tcpHeader.Flags(); got != want {
				t.Fatalf("gVisor has changed: a segment has %v, want %v", got, want)
			}
			if s := dialer.EndpointState(); want == header.TCPFlagSyn && s != tcp.StateSynSent {
				t.Fatalf("gVisor has changed: what was taken has arrived: %v", s)
			}
			pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
				Payload: buffer.MakeWithData(whole)})
			pkt.NetworkHeader().Consume(tt.header)
			pkt.TransportHeader().Consume(int(tcpHeader.DataOffset()))
			pkt.NetworkProtocolNumber, pkt.TransportProtocolNumber = tt.proto, tcp.ProtocolNumber
			pkt.NICID, pkt.RXChecksumValidated = 1, true
			DeliverOwn(link.to, pkt)
			pkt.DecRef()
		}
		soon(t, "a connection", func() bool { return dialer.EndpointState() == tcp.StateEstablished })
		soon(t, "a connection that is accepted", func() bool {
			ep, _, err := listener.Accept(nil)
			if err != nil {
				return false
			}
			ep.Abort()
			return true
		})
		dialer.Abort()
		listener.Close()
	}
}
