// Package datagram is what a RoCE device asks of the network below it: whole IP packets to UDP port
// 4791, out and in.
//
// A device opens a Port for its addresses and tells it who takes the packets that come to them, a
// Receiver. To send it asks the Port for a Route to a peer, and the Route for a Send, which calls
// back for one packet after the other until there is none: they are made in the buffers that go to
// the network, and go in one batch. The headers in front of a packet are roce/udp's.
//
// What comes is handed up by the goroutine that found it, where it lies. The packets of a batch are
// handed up one behind the other, and Packet.Defer has somebody called when all of them are there,
// so that one answer is enough for them.
//
// Nobody here waits: only Port.Route does, and Port.Close. A packet that cannot go on is lost, as
// on any network.
package datagram

import (
	"context"
	"net/netip"

	"github.com/vrnic/vrnic/roce/udp"
)

// A Network is what can be beside a device's network of streams: RoCE's packets. Its methods may be
// called from several goroutines at once, as those of a Port and of a Route, if nothing else is
// said.
type Network interface {
	// OpenRoCE takes the packets to UDP port 4791 of addrs, addresses of the network's, and gives them
	// to r, from now on and before it returns. An address that is not the network's is
	// EADDRNOTAVAIL, one whose packets somebody else takes EADDRINUSE.
	OpenRoCE(addrs []netip.Addr, r Receiver) (Port, error)
}

// A Port is the packets of a device.
type Port interface {
	// MTU is the most octets that an IP packet can have at present. It may change.
	MTU() int
	// Route finds the way from local, one of the Port's addresses, to remote, of the same family: an
	// address, which may be an own one, or a group. It waits until it is known where on the link the
	// next hop is, which is known at once for groups and for own addresses, and mostly for who was
	// spoken to lately. An error is ctx's or wraps ENETUNREACH (no way there), EHOSTUNREACH (the next
	// hop does not answer), EADDRNOTAVAIL (local is not the Port's), EAFNOSUPPORT (the families
	// differ) or net.ErrClosed. A link-local remote has no zone: there is one link.
	Route(ctx context.Context, local, remote netip.Addr) (Route, error)
	// Join has packets to group handed up, and says so to the routers (IGMPv3, MLDv2). It does not
	// wait for them. Each Join wants its Leave. An address that is no group is EINVAL; ENOBUFS: too
	// many are joined.
	Join(group netip.Addr) error
	// Leave takes a Join back. A group that was not joined is EADDRNOTAVAIL.
	Leave(group netip.Addr) error
	// Close hands nothing up any more and leaves the groups. It waits for calls of the Receiver that
	// run, so it must not be called from one, nor holding what one waits for. Routes send nothing any
	// more.
	Close() error
}

// A Route is a way to a peer. It needs no closing.
type Route interface {
	// NextHop is the Ethernet address that packets go to at present, as a program sees it in its
	// address handles. It may change: the Route follows. Zero: the peer is an own address.
	NextHop() [6]byte
	// MTU is the most octets that an IP packet can have on this way at present.
	MTU() int
	// Send has src make packets until it makes none, and sends them. It does not wait for the
	// network. src is called by this goroutine, and no lock of the network's is held. Before Send
	// returns, Receivers of this process may be called, of the own Port too if remote is an own
	// address or a group that is joined: the caller must not hold a lock that its Receiver takes
	// without trying. Several may call Send at once; their packets go out in any order.
	//
	// A packet that is longer than MTU is not sent: the error is EMSGSIZE, and those behind it are
	// asked for and sent all the same. After Close the error is net.ErrClosed, and src is not called.
	// That packets have been lost is no error.
	Send(src Source) error
}

// A Source makes packets for Route.Send.
type Source interface {
	// NextPacket makes a whole IP packet of b, which is empty and has a capacity of Route.MTU at
	// least, and returns it; false: there is none at present. b is the network's after the call.
	NextPacket(b []byte) ([]byte, bool)
}

// A Receiver takes packets that have come.
type Receiver interface {
	// ReceiveRoCE takes a packet that came to one of the Port's addresses, or to a group that it has
	// joined. Lengths, addresses and ports are right, and the IP and UDP checksums, but not the ICRC:
	// Packet.Valid is for the Receiver. p is good for the call only, as are its octets.
	//
	// It is called by whoever found the packet, from several goroutines at once, also from a Send of
	// this process: it must not wait for another call of itself, nor for a Send, and it returns soon.
	// It may call Send.
	ReceiveRoCE(p *Packet)
}

// A Packet is one that has come.
type Packet struct {
	udp.Packet
	Group bool // Dst is a group

	Batch Batch  // what it came with; nil: nothing more is known
	Owner Keeper // of the octets of Datagram; nil: nobody can keep them
}

// A Batch is some packets that came together. It belongs to the goroutine that hands them up.
type Batch interface {
	// Local reports whether the packets are sent by the goroutine that hands them up: it has more to
	// do, and who else has a processor takes many of them better.
	Local() bool
	// Defer is Packet.Defer, Deferred Packet.Deferred, More Packet.More.
	Defer(f interface{ Finish() }) bool
	Deferred() interface{ Finish() }
	More() func() bool
	// FinishEarly calls what Defer was given now, and not again.
	FinishEarly()
}

// A Keeper is the memory that octets lie in.
type Keeper interface {
	// Keep has the memory stay as it is until what is returned is released. nil: it cannot stay, and
	// who needs the octets copies them.
	Keep() Kept
	// Memory is the last octet of all that would stay, which tells one piece of memory from another,
	// and how much it is: packets that came together may lie in one piece.
	Memory() (end *byte, octets int)
}

// Kept is memory that stays.
type Kept interface{ Release() }

// Defer asks for f.Finish when all packets that came with p have been handed up; it is called by
// the same goroutine, once, which holds nothing then. False: nobody will call it, since p did not
// come with others nor alone, or since there is another one who is called.
func (p *Packet) Defer(f interface{ Finish() }) bool { return p.Batch != nil && p.Batch.Defer(f) }

// Deferred is whose Finish will be called; nil: nobody's.
func (p *Packet) Deferred() interface{ Finish() } {
	if p.Batch == nil {
		return nil
	}
	return p.Batch.Deferred()
}

// More says for how long the Finish that was asked for may look for what the program answers: until
// more reports that who brings packets has another one. Nil: it returns soon.
func (p *Packet) More() (more func() bool) {
	if p.Batch == nil {
		return nil
	}
	return p.Batch.More()
}

// Keep has the octets of p.Datagram, not those of p.Header, stay as they are beyond the call, until
// what is returned is released. nil: they cannot stay, and who needs them copies them.
func (p *Packet) Keep() Kept {
	if p.Owner == nil {
		return nil
	}
	return p.Owner.Keep()
}
