package rawsctp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// patience is how long an answer may take.
const patience = 20 * time.Second

// ErrSilent: what was waited for did not come.
var ErrSilent = errors.New("nothing came")

// ErrAborted: an ABORT has come where something else is due.
var ErrAborted = errors.New("an ABORT")

// ErrOtherAbort: an ABORT has come for another cause than is wanted.
var ErrOtherAbort = errors.New("an ABORT for")

// ErrMalformed: the daemon has sent what is no packet of SCTP.
var ErrMalformed = errors.New("malformed")

// A Peer is one end of an association, or of none yet. One goroutine uses it.
type Peer struct {
	link     Link
	Src, Dst uint16 // SCTP's ports
	Own      uint32 // our tag
	Tag      uint32 // the daemon's
	TSN      uint32 // of our next DATA
	Streams  uint16

	cum      uint32          // the last of the daemon's TSNs before the first hole
	got      map[uint32]bool // those above it
	messages []Message       // that have come and were not taken
	said     []string        // the transcript
	Patience time.Duration   // how long an answer may take
	// Alter says what is sent in place of a packet; nil: all is sent as it is.
	Alter func(packet []byte) [][]byte
	Terse bool              // errors do not have the transcript
	Out   uint16            // streams of the daemon's, once it has said so
	sent  map[uint16]uint16 // next DDP-SSN by stream
}

// A Message is a user message.
type Message struct {
	Stream uint16
	PPID   uint32
	Data   []byte
}

// New makes a peer on l, for a port of the daemon's.
func New(l Link, port uint16) *Peer {
	return &Peer{link: l, Src: uint16(1024 + rand.IntN(60000)), Dst: port,
		Own: rand.Uint32() | 1, TSN: rand.Uint32(), Streams: 16, got: map[uint32]bool{},
		sent: map[uint16]uint16{}, Patience: patience}
}

// Close gives the link up; nothing is said.
func (p *Peer) Close() { p.link.Close() }

// Transcript is what was sent and received.
func (p *Peer) Transcript() string { return strings.Join(p.said, "\n") }

// note keeps a line, of so many: an endpoint may say more and more.
func (p *Peer) note(format string, args ...any) {
	const most = 10_000
	if len(p.said) < most {
		p.said = append(p.said, fmt.Sprintf(format, args...))
	}
}

func (p *Peer) errorf(format string, args ...any) error {
	if p.Terse {
		return fmt.Errorf(format, args...)
	}
	return fmt.Errorf(format+"\n%s", append(args, p.Transcript())...)
}

// Octets sends a packet as it is.
func (p *Peer) Octets(b []byte) {
	all := [][]byte{b}
	if p.Alter != nil {
		all = p.Alter(b)
	}
	for _, b := range all {
		p.note("-> % x", b[:min(len(b), 80)])
		_, _ = p.link.Write(b) // an ICMP error of an earlier one: what is missing shows
	}
}

// Raw sends a packet with a tag, Send one with the daemon's.
func (p *Peer) Raw(tag uint32, chunks ...Chunk) {
	p.Octets(Packet(p.Src, p.Dst, tag, chunks...))
}
func (p *Peer) Send(chunks ...Chunk) { p.Raw(p.Tag, chunks...) }

// read takes the next packet, and sees to SACKs and HEARTBEATs. ok is false if there is none for d.
func (p *Peer) read(d time.Duration) (tag uint32, chunks []Chunk, ok bool, err error) {
	b := make([]byte, 1<<16)
	if err := p.link.SetReadDeadline(time.Now().Add(d)); err != nil {
		return 0, nil, false, err
	}
	n, err := p.link.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, nil, false, nil
	}
	if err != nil {
		return 0, nil, false, p.errorf("reading: %w", err)
	}
	b = b[:n]
	if tag, chunks, err = parse(b); err != nil {
		return 0, nil, false, p.errorf("%w: the daemon sent %w", ErrMalformed, err)
	}
	if src, dst := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]); src != p.Dst ||
		dst != p.Src {
		return 0, nil, false, p.errorf("from port %d to %d", src, dst)
	}
	data := false
	for _, c := range chunks {
		p.note("<- tag %x %v", tag, c)
		switch {
		case c.Type() == Data && len(c.Value()) > dataFieldsLen:
			data = true
			p.take(c.Value())
		case c.Type() == Heartbeat:
			p.Send(Make(HeartbeatAck, 0, c.Value()...))
		}
	}
	if data {
		p.Send(SackChunk(p.cum, 1<<20))
	}
	return tag, chunks, true, nil
}

// take notes a DATA chunk. The daemon cuts no message of DDP.
func (p *Peer) take(v []byte) {
	tsn := binary.BigEndian.Uint32(v)
	if int32(tsn-p.cum) <= 0 || p.got[tsn] {
		return
	}
	p.got[tsn] = true
	for p.got[p.cum+1] {
		p.cum++
		delete(p.got, p.cum)
	}
	p.messages = append(p.messages, Message{binary.BigEndian.Uint16(v[4:]),
		binary.BigEndian.Uint32(v[8:]), v[dataFieldsLen:]})
}

// Want waits for a packet with a chunk of this type, and gives the chunk; packets before it may
// have SACK, DATA and HEARTBEAT only.
func (p *Peer) Want(typ byte) (Chunk, error) {
	for end := time.Now().Add(p.Patience); ; {
		_, chunks, ok, err := p.read(time.Until(end))
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, p.errorf("no chunk of type %d: %w", typ, ErrSilent)
		}
		for _, c := range chunks {
			switch c.Type() {
			case typ:
				return c, nil
			case Sack, Data, Heartbeat:
			case Abort:
				return nil, p.errorf("%w for %d where type %d is due", ErrAborted, c.Causes(), typ)
			default:
				return nil, p.errorf("%v came where type %d is due", c, typ)
			}
		}
	}
}

// WantAbort waits for an ABORT with a tag and a T bit, for a cause.
func (p *Peer) WantAbort(tag uint32, t bool, cause int) error {
	for end := time.Now().Add(p.Patience); ; {
		got, chunks, ok, err := p.read(time.Until(end))
		if err != nil || !ok {
			return cmp.Or(err, p.errorf("no ABORT came: %w", ErrSilent))
		}
		for _, c := range chunks {
			switch {
			case c.Type() == Sack, c.Type() == Data, c.Type() == Heartbeat:
			case c.Type() != Abort:
				return p.errorf("%v came where an ABORT is due", c)
			case t && got == p.Own && c.Flags()&FlagT == 0: // the association is still there
				return p.errorf("%w %d with the own tag, want %x and T", ErrOtherAbort, c.Causes(), tag)
			case got != tag || (c.Flags()&FlagT != 0) != t:
				return p.errorf("an ABORT with tag %x and T %t, want %x and %t", got, c.Flags()&FlagT != 0,
					tag, t)
			case cause != AnyCause && !slices.Contains(c.Causes(), uint16(cause)):
				return p.errorf("%w %d, want %d", ErrOtherAbort, c.Causes(), cause)
			default:
				return nil
			}
		}
	}
}

// Alive asks by a HEARTBEAT whether the association is there: what is answered before that is
// wrong.
func (p *Peer) Alive() error {
	nonce := Uint32(rand.Uint32())
	p.Send(Make(Heartbeat, 0, Param(ParamHeartbeat, nonce...)...))
	c, err := p.Want(HeartbeatAck)
	if err != nil {
		return err
	}
	if !slices.Equal(c.Value(), Param(ParamHeartbeat, nonce...)) {
		return p.errorf("the HEARTBEAT ACK has % x", c.Value())
	}
	return nil
}

// Setup is an INIT that a DDP listener takes.
func (p *Peer) Setup() Setup {
	return Setup{Tag: p.Own, Window: 1 << 20, TSN: p.TSN, Out: p.Streams, In: p.Streams,
		Params: [][]byte{Adaptation(1)}}
}

// Begin sends an INIT and gives the cookie of the answer, and its other parameters.
func (p *Peer) Begin(s Setup) (cookie []byte, params map[uint16][]byte, err error) {
	p.Raw(0, s.Chunk())
	c, err := p.Want(InitAck)
	if err != nil {
		return nil, nil, err
	}
	v := c.Value()
	if len(v) < setupLen {
		return nil, nil, p.errorf("an INIT ACK of %d octets", len(c))
	}
	p.Tag = binary.BigEndian.Uint32(v)
	p.Out = binary.BigEndian.Uint16(v[8:])
	p.cum = binary.BigEndian.Uint32(v[12:]) - 1
	params = map[uint16][]byte{}
	for v = v[setupLen:]; len(v) >= 4; {
		n := int(binary.BigEndian.Uint16(v[2:]))
		if n < 4 || n > len(v) {
			return nil, nil, p.errorf("a parameter of %d octets in %d", n, len(v))
		}
		params[binary.BigEndian.Uint16(v)] = v[4:n]
		v = v[min((n+3)&^3, len(v)):]
	}
	return params[ParamCookie], params, nil
}

// Establish sets an association up.
func (p *Peer) Establish() error {
	cookie, _, err := p.Begin(p.Setup())
	if err != nil {
		return err
	}
	p.Send(Make(CookieEcho, 0, cookie...))
	_, err = p.Want(CookieAck)
	return err
}

// Next is a DATA chunk with the next TSN, for a whole unordered message.
func (p *Peer) Next(stream uint16, ppid uint32, data []byte) Chunk {
	c := DataChunk(Unordered, p.TSN, stream, 0, ppid, data)
	p.TSN++
	return c
}

// Control sends a session control message with the stream's next DDP-SSN, Segment a segment.
func (p *Peer) Control(stream, function uint16, privateData ...byte) {
	p.Send(p.Next(stream, PPIDControl, Control(p.ssn(stream), function, privateData...)))
}
func (p *Peer) Segment(stream uint16, segment []byte) {
	p.Send(p.Next(stream, PPIDSegment, Segment(p.ssn(stream), segment)))
}

func (p *Peer) ssn(stream uint16) (n uint16) {
	n = p.sent[stream]
	p.sent[stream]++
	return n
}

// Message waits for the next message of a stream.
func (p *Peer) Message(stream uint16) (Message, error) {
	for end := time.Now().Add(p.Patience); ; {
		for i, m := range p.messages {
			if m.Stream == stream {
				p.messages = slices.Delete(p.messages, i, i+1)
				return m, nil
			}
		}
		_, chunks, ok, err := p.read(time.Until(end))
		if err != nil || !ok {
			return Message{}, cmp.Or(err, p.errorf("no message on stream %d: %w", stream, ErrSilent))
		}
		for _, c := range chunks {
			if c.Type() == Abort || c.Type() == Shutdown {
				return Message{}, p.errorf("%v where a message is due", c)
			}
		}
	}
}

// WantControl waits for a session control message.
func (p *Peer) WantControl(stream, ssn, function uint16) error {
	m, err := p.Message(stream)
	if err == nil && !m.IsControl(ssn, function) {
		err = p.errorf("PPID %d % x, want function %d with DDP-SSN %d", m.PPID, m.Data, function, ssn)
	}
	return err
}

// IsControl says whether m is a session control message.
func (m Message) IsControl(ssn, function uint16) bool {
	return m.PPID == PPIDControl && len(m.Data) >= 4 && binary.BigEndian.Uint16(m.Data) == ssn &&
		binary.BigEndian.Uint16(m.Data[2:]) == function
}

// WantSegment waits for a segment.
func (p *Peer) WantSegment(stream, ssn uint16) ([]byte, error) {
	m, err := p.Message(stream)
	if err != nil {
		return nil, err
	}
	if m.PPID != PPIDSegment || len(m.Data) < 2 || binary.BigEndian.Uint16(m.Data) != ssn {
		return nil, p.errorf("PPID %d % x, want a segment with DDP-SSN %d", m.PPID, m.Data, ssn)
	}
	return m.Data[2:], nil
}

// Cum is the last of the daemon's TSNs before the first that has not come.
func (p *Peer) Cum() uint32 { return p.cum }
