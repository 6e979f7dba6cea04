package roce

import (
	"encoding/binary"
	"errors"

	"github.com/vrnic/vrnic/roce/packet"
)

// A UD is what the packets of an unreliable datagram queue pair are made and judged by. A message
// is one packet, so that there is no more to it. It has one owner at a time.
type UD struct {
	Num  packet.QPN
	PKey uint16
	MTU  uint32 // the longest message: the active MTU of the port
	QKey uint32
	PSN  packet.PSN // of the next packet; nobody looks at it

	head [NetworkHeaderLen]byte // scratch: a local one would escape
}

// ControlledQKey is set in Q_Keys that only the owner of a device may give to a queue pair. In a
// Datagram it stands for the queue pair's own Q_Key.
const ControlledQKey = 1 << 31

// A Datagram is a message that is sent.
type Datagram struct {
	Dest      packet.QPN
	QKey      uint32
	Length    uint32
	Data      Payload // nil if Length is 0
	Solicited bool
	Immediate bool
	Imm       [packet.ImmDtLen]byte
}

// ErrDatagram says that a message does not fit one packet.
var ErrDatagram = errors.New("the message is longer than the MTU, and a datagram is one packet")

// Append adds the packet of d to b: BTH, DETH, immediate data, payload and padding. Without success
// there is none: the request has failed with that status.
func (u *UD) Append(b []byte, d *Datagram) ([]byte, Status, error) {
	if d.Length > u.MTU {
		return b, LocalLength, ErrDatagram
	}
	h := packet.Header{Opcode: packet.SendOnly.Of(packet.UD), Solicited: d.Solicited, Migrated: true,
		PKey: u.PKey, Dest: d.Dest, PSN: u.PSN, QKey: d.QKey, Source: u.Num}
	if d.QKey&ControlledQKey != 0 {
		h.QKey = u.QKey
	}
	if d.Immediate {
		h.Opcode, h.Imm = packet.SendOnlyImm.Of(packet.UD), d.Imm
	}
	out, err := appendPacket(b, &h, d.Data, 0, d.Length)
	if err != nil {
		return b, LocalProtection, err
	}
	u.PSN = u.PSN.Add(1)
	return out, Success, nil
}

// An Inbox is the receives of a UD: what a Host has for Sends.
type Inbox interface {
	BeginReceive() (size uint32, ok bool)
	PlaceReceive(off uint32, chunk []byte, last bool) error
	EndReceive(Received) error
	FailReceive(s Status)
	KeepReceive()
}

// An Outcome is what has become of a datagram that came in.
type Outcome uint8

// The outcomes. All but Delivered and BadReceive have done nothing.
const (
	Delivered  Outcome = iota
	NoDatagram         // the packet is of another transport
	WrongQKey          // its sender does not have the queue pair's Q_Key
	OverMTU            // it is longer than a datagram can be
	NoReceive          // there was none
	TooLong            // it does not fit the receive, which stays
	BadReceive         // the memory of the receive cannot be written: it has failed
)

// Receive takes a packet in that is for u and whose ICRC is right. ip is its IP header, of which
// NetworkHeaderLen octets come in front of payload. Both are good for the call only. PSNs are not
// looked at.
func (u *UD) Receive(in Inbox, h *packet.Header, ip, payload []byte) Outcome {
	n := uint32(len(payload))
	switch {
	case h.Opcode.Transport() != packet.UD:
		return NoDatagram
	case h.QKey != u.QKey:
		return WrongQKey
	case n > u.MTU:
		return OverMTU
	}
	size, ok := in.BeginReceive()
	switch {
	case !ok:
		return NoReceive
	case size < NetworkHeaderLen+n:
		// The specification has the receive fail: docs/decisions.md#R1.
		in.KeepReceive()
		return TooLong
	}
	NetworkHeader(&u.head, ip)
	err := in.PlaceReceive(0, u.head[:], n == 0)
	if err == nil && n > 0 {
		err = in.PlaceReceive(NetworkHeaderLen, payload, true)
	}
	if err != nil {
		in.FailReceive(LocalProtection)
		return BadReceive
	}
	r := Received{Length: NetworkHeaderLen + n, Solicited: h.Solicited, Source: h.Source,
		Immediate: h.Opcode == packet.SendOnlyImm.Of(packet.UD), Imm: h.Imm}
	if err := in.EndReceive(r); err != nil {
		return BadReceive
	}
	return Delivered
}

// NetworkHeaderLen is how many octets a datagram's receive has in front of its payload: where
// InfiniBand has its global route header.
const NetworkHeaderLen = 40

// NetworkHeader makes these octets of the IP header at ip: one of IPv6 as it is; one of IPv4 behind
// 20 zeros and without its options, since readers tell it by its length and its checksum.
func NetworkHeader(g *[NetworkHeaderLen]byte, ip []byte) {
	if ip[0]>>4 == 6 {
		copy(g[:], ip[:NetworkHeaderLen])
		return
	}
	clear(g[:20])
	v4 := g[20:]
	copy(v4, ip[:20])
	be := binary.BigEndian
	options := uint16(ip[0]&0xf)*4 - 20
	v4[0] = 0x45
	be.PutUint16(v4[2:], be.Uint16(v4[2:])-options)
	be.PutUint16(v4[10:], 0)
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(be.Uint16(v4[i:]))
	}
	sum = sum>>16 + sum&0xffff
	be.PutUint16(v4[10:], ^uint16(sum>>16+sum))
}
