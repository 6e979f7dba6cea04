package rawroce

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// ErrOver: the endpoint has ended the connection.
var ErrOver = errors.New("the connection was ended")

// ErrMalformed: the endpoint has sent what nobody may send.
var ErrMalformed = errors.New("malformed")

// A Peer is one end of a connection that is made by messages of the connection manager, or of none
// yet. One goroutine uses it.
type Peer struct {
	Own, Remote netip.Addr
	Port        uint16        // that the endpoint listens at
	Patience    time.Duration // how long an answer may take

	ID, QPN  uint32 // our communication id and queue pair
	GUID     uint64
	First    uint32 // PSN of the endpoint's first request
	RemoteID uint32 // of a REP
	// Of the endpoint's queue pair, the next request to it, and how many messages it has completed.
	RemoteQPN, PSN, MSN uint32
	Over                bool // the endpoint has ended the connection

	link    Link
	up      bool // a RTU was sent: it is again if the REP comes again
	tids    []uint64
	packets []Packet
	mads    []MAD
	said    []string
}

// NewPeer makes one on l, with numbers of its own.
func NewPeer(l Link, own, remote netip.Addr, port uint16) *Peer {
	return &Peer{Own: own, Remote: remote, Port: port, Patience: 15 * time.Second, link: l,
		ID: rand.Uint32(), QPN: 0x100 + rand.Uint32N(1<<23), GUID: rand.Uint64() | 1,
		First: rand.Uint32N(1 << 24)}
}

// Close gives the link up; nothing is said.
func (p *Peer) Close() error { return p.link.Close() }

// Transcript is what was sent and received, a line each.
func (p *Peer) Transcript() string { return strings.Join(p.said, "\n") }

func (p *Peer) note(format string, args ...any) {
	const most = 1000
	if len(p.said) < most {
		p.said = append(p.said, fmt.Sprintf(format, args...))
	}
}

// To fills in who sends q, and to which queue pair it goes if it says none.
func (p *Peer) To(q Packet) Packet {
	q.Src, q.Dst = p.Own, p.Remote
	or16(&q.SrcPort, Port)
	if q.QPN == 0 {
		q.QPN = p.RemoteQPN
	}
	return q
}

// Put sends q.
func (p *Peer) Put(q Packet) error { return p.Octets(p.To(q).Bytes()) }

// Octets sends a packet as it is, IP header and all.
func (p *Peer) Octets(b []byte) error {
	p.note("-> % x", b[HeadLen(b)+8:])
	return p.link.Send(b)
}

// Datagram is m on its way from our QP 1 to the endpoint's.
func (p *Peer) Datagram(m MAD) Packet {
	q := p.To(Packet{Opcode: UDSendOnly, QPN: ManagerQPN, Ext: DETH(ManagerQKey, 1), Payload: m})
	return q
}

// Say sends a message of the connection manager.
func (p *Peer) Say(m MAD) error {
	p.note("-> %v", m)
	return p.Octets(p.Datagram(m).Bytes())
}

// TID is a new transaction: what comes with it is heard.
func (p *Peer) TID() uint64 {
	t := rand.Uint64()
	p.tids = append(p.tids, t)
	return t
}

// take takes the next packet that comes and puts it where it belongs.
func (p *Peer) take(by time.Time) error {
	b, err := p.link.Receive(by)
	if err != nil {
		return err
	}
	q, err := Read(b)
	if err != nil {
		p.note("<- % x", b)
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	switch {
	case q.QPN == p.QPN:
		p.note("<- %v", q)
		if q.Opcode != CNP {
			p.packets = append(p.packets, q)
		}
	case q.QPN == ManagerQPN && q.Opcode == UDSendOnly && len(q.Payload) == madLen:
		return p.message(MAD(q.Payload))
	}
	return nil // of a connection that there was before
}

// message takes one of the connection manager.
func (p *Peer) message(m MAD) error {
	p.note("<- %v", m)
	ours := m.Remote() == p.ID
	switch {
	case m.Attr() == AttrDREQ: // ours, or one of a connection that there was before
		p.Over = p.Over || ours
		return p.Say(Pair(AttrDREP, m.TID(), m.Remote(), m.Local()))
	case m.Attr() == AttrREP && ours && p.up:
		return p.Say(Pair(AttrRTU, m.TID(), p.ID, p.RemoteID))
	case ours || slices.Contains(p.tids, m.TID()):
		p.mads = append(p.mads, m)
	}
	return nil
}

// Next waits for the next packet to our queue pair. There is none if the endpoint ends the
// connection before (ErrOver), or if none has come till then (os.ErrDeadlineExceeded).
func (p *Peer) Next(by time.Time) (q Packet, err error) {
	for len(p.packets) == 0 {
		if p.Over {
			return q, ErrOver
		}
		if err := p.take(by); err != nil {
			return q, err
		}
	}
	q, p.packets = p.packets[0], p.packets[1:]
	return q, nil
}

// Quiet wants that no packet comes to our queue pair for a time.
func (p *Peer) Quiet(d time.Duration) error {
	for by := time.Now().Add(d); len(p.packets) == 0; {
		if err := p.take(by); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return fmt.Errorf("where nothing is due came %v", p.packets[0])
}

// Soon is till when an answer may take.
func (p *Peer) Soon() time.Time { return time.Now().Add(p.Patience) }

// Hear waits for the next message of the connection manager that is about ours.
func (p *Peer) Hear(by time.Time) (m MAD, err error) {
	for len(p.mads) == 0 {
		if err := p.take(by); err != nil {
			return nil, err
		}
	}
	m, p.mads = p.mads[0], p.mads[1:]
	return m, nil
}

// Request is a REQ that is right.
func (p *Peer) Request() Request {
	return Request{ID: p.ID, QPN: p.QPN, PSN: p.First, Service: Service(p.Port, false), GUID: p.GUID,
		Resources: 4, Depth: 4, Retries: 7, MTU: 1, PKey: 0xffff, AckTimeout: 15, Src: p.Own,
		Dst: p.Remote, Port: 0xc0de}
}

// MTU is that of Request's path.
const MTU = 256

// A Refused is a REJ that came for a REP.
type Refused struct{ MAD }

func (r Refused) Error() string {
	return fmt.Sprintf("the request was rejected: reason %d", r.Reason())
}

// Ask sends a REQ and waits for the REP. A REJ of something else is left.
func (p *Peer) Ask(req MAD) (rep MAD, err error) {
	if err := p.Say(req); err != nil {
		return nil, err
	}
	for by := p.Soon(); ; {
		m, err := p.Hear(by)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("no answer to a REQ in %v: %w", p.Patience, err)
		case err != nil:
			return nil, err
		case m.Attr() == AttrMRA: // it needs longer
		case m.Attr() == AttrREJ && m.TID() != req.TID():
		case m.Attr() == AttrREJ:
			return nil, Refused{m}
		case m.Attr() == AttrREP:
			p.RemoteID, p.RemoteQPN, p.PSN = m.Local(), m.ReplyQPN(), m.ReplyPSN()
			return m, nil
		default:
			return nil, fmt.Errorf("%v came for a REP", m)
		}
	}
}

// Connect makes a connection.
func (p *Peer) Connect(r Request) error {
	rep, err := p.Ask(r.MAD(p.TID()))
	if err == nil {
		err = p.Use(rep)
	}
	return err
}

// Use says that the connection of a REP is there.
func (p *Peer) Use(rep MAD) error {
	p.up = true
	return p.Say(Pair(AttrRTU, rep.TID(), p.ID, p.RemoteID))
}

// Bye is a DREQ that is right.
func (p *Peer) Bye() MAD {
	return Pair(AttrDREQ, p.TID(), p.ID, p.RemoteID).Set(8, 3, uint64(p.RemoteQPN))
}

// Disconnect ends the connection, if there was one.
func (p *Peer) Disconnect(by time.Time) error {
	if p.RemoteQPN == 0 {
		return nil
	}
	p.up = false
	if err := p.Say(p.Bye()); err != nil {
		return err
	}
	for {
		m, err := p.Hear(by)
		if err != nil || m.Attr() == AttrDREP {
			return err
		}
	}
}

// Write is a Write of nothing with the next PSN, which asks for an answer: no key is looked at.
func (p *Peer) Write() Packet {
	return p.To(Packet{Opcode: WriteOnly, PSN: p.PSN, Ack: AckReq, Ext: RETH(0, 0, 0)})
}
