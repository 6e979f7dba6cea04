package sctp

import (
	"iter"
	"slices"
)

// A Ref counts the uses of the memory that a packet lies in. The Endpoint calls Hold once for each
// range that it keeps beyond Input, and Release when that range is given up, both from inside of
// calls of its owner.
type Ref interface {
	Hold()
	Release()
}

// A piece is the user data of one chunk, in the packet it came in or copied out of that.
type piece struct {
	data []byte
	ref  Ref
	cost int // octets of memory that are counted for it
	next *piece
}

// A Message is a user message, or, before it is complete, a run of fragments of one with TSNs in a
// row. The ranges it consists of belong to whoever took it from NextEvent, until Release.
type Message struct {
	Stream    uint16
	SSN       uint16 // without meaning if Unordered
	PPID      uint32
	TSN       TSN // of its first fragment
	Unordered bool
	Missing   int // when it became deliverable: TSNs below the highest that had come and were missing

	num         uint64
	assoc       *Association
	last        TSN
	whole       uint8 // flagB and flagE as they have come
	first, tail *piece
	size        int
}

// Number tells a Message from all others that its Endpoint has given, and from Associations.
func (m *Message) Number() uint64 { return m.num }

// Len is how many octets the message has.
func (m *Message) Len() int { return m.size }

// Pieces goes over the octets of the message, fragment by fragment.
func (m *Message) Pieces() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for p := m.first; p != nil; p = p.next {
			if !yield(p.data) {
				return
			}
		}
	}
}

// Bytes returns the octets of a message that came in one chunk, as most do; ok is false for one
// that was fragmented.
func (m *Message) Bytes() (b []byte, ok bool) {
	if m.first == nil || m.first.next != nil {
		return nil, false
	}
	return m.first.data, true
}

// Append appends the octets of the message to b.
func (m *Message) Append(b []byte) []byte {
	for p := m.first; p != nil; p = p.next {
		b = append(b, p.data...)
	}
	return b
}

// maxSpare is how many Messages and pieces an Endpoint keeps for the next ones.
const maxSpare = 4096

// spares are Messages and pieces that are free.
type spares struct {
	messages []*Message
	pieces   []*piece
}

func (s *spares) message() *Message {
	if n := len(s.messages); n > 0 {
		m := s.messages[n-1]
		s.messages = s.messages[:n-1]
		return m
	}
	return new(Message)
}

func (s *spares) piece() *piece {
	if n := len(s.pieces); n > 0 {
		p := s.pieces[n-1]
		s.pieces = s.pieces[:n-1]
		return p
	}
	return new(piece)
}

// putMessage takes m, which has no pieces any more.
func (s *spares) putMessage(m *Message) {
	if *m = (Message{}); len(s.messages) < maxSpare {
		s.messages = append(s.messages, m)
	}
}

func (s *spares) putPiece(p *piece) {
	if *p = (piece{}); len(s.pieces) < maxSpare {
		s.pieces = append(s.pieces, p)
	}
}

// A reassembler holds fragments until their message is whole. "An endpoint MUST recognize
// fragmented DATA chunks by examining the B/E bits": section 6.9.
type reassembler struct {
	runs []*Message // incomplete, by TSN
}

// fewRuns is for how many runs there is room when there is none.
const fewRuns = 16

// place finds where chunk d belongs: i is the index of the first run behind it, and joins say
// whether it belongs to the run before it and to that one. ok is false if d and what has come of
// its neighbours cannot be from an honest sender.
func (r *reassembler) place(d dataChunk, have *tsnMap) (i int, joinsLeft, joinsRight, ok bool) {
	t, f := d.tsn(), d.flags()
	if i = len(r.runs); i > 0 && t.before(r.runs[i-1].TSN) {
		i, _ = slices.BinarySearchFunc(r.runs, t,
			func(m *Message, t TSN) int { return int(int32(m.TSN - t)) })
	}
	if i > 0 && r.runs[i-1].last == t-1 && r.runs[i-1].whole&flagE == 0 {
		joinsLeft = true
		if f&flagB != 0 || !r.runs[i-1].matches(d) {
			return i, false, false, false
		}
	} else if f&flagB == 0 && have.has(t-1) {
		return i, false, false, false // what came before is no part of it
	}
	if i < len(r.runs) && r.runs[i].TSN == t+1 && r.runs[i].whole&flagB == 0 {
		joinsRight = true
		if f&flagE != 0 || !r.runs[i].matches(d) {
			return i, false, false, false
		}
	} else if f&flagE == 0 && have.has(t+1) {
		return i, false, false, false
	}
	return i, joinsLeft, joinsRight, true
}

// matches says whether d may be a fragment of the same message as m.
func (m *Message) matches(d dataChunk) bool {
	return m.Stream == d.stream() && m.PPID == d.ppid() && m.Unordered == (d.flags()&flagU != 0) &&
		(m.Unordered || m.SSN == d.ssn())
}

// add puts a run of one chunk where place said, and returns the message if it is whole now.
// give is called with a run whose pieces have gone to another one.
func (r *reassembler) add(m *Message, i int, joinsLeft, joinsRight bool,
	give func(*Message)) *Message {
	switch {
	case joinsLeft && joinsRight:
		left, right := r.runs[i-1], r.runs[i]
		left.join(m)
		left.join(right)
		give(m)
		give(right)
		r.runs = slices.Delete(r.runs, i, i+1)
		i, m = i-1, left
	case joinsLeft:
		r.runs[i-1].join(m)
		give(m)
		i, m = i-1, r.runs[i-1]
	case joinsRight:
		m.join(r.runs[i])
		give(r.runs[i])
		r.runs[i] = m
	default:
		if m.whole == flagB|flagE {
			return m
		}
		r.runs = slices.Insert(r.runs, i, m)
	}
	if m.whole != flagB|flagE {
		return nil
	}
	if r.runs = slices.Delete(r.runs, i, i+1); len(r.runs) == 0 && cap(r.runs) > fewRuns {
		r.runs = nil
	}
	return m
}

// join moves the pieces of n, which lies right behind m, to m.
func (m *Message) join(n *Message) {
	m.tail.next, m.tail = n.first, n.tail
	m.last, m.whole, m.size = n.last, m.whole|n.whole, m.size+n.size
	n.first, n.tail = nil, nil
}

// An inStream puts the ordered messages of one stream into order. Section 6.6.
type inStream struct {
	next uint16     // SSN of the next to be delivered
	held []*Message // those that came early, by SSN
}

// hold keeps m, whose SSN is not next; ok is false if its SSN has been used.
func (s *inStream) hold(m *Message) (ok bool) {
	i, taken := slices.BinarySearchFunc(s.held, m.SSN,
		func(h *Message, ssn uint16) int { return int(int16(h.SSN - ssn)) })
	if ssnBefore(m.SSN, s.next) || taken {
		return false
	}
	s.held = slices.Insert(s.held, i, m)
	return true
}

// ready takes the next message out of those held; nil if it is not there.
func (s *inStream) ready() *Message {
	if len(s.held) == 0 || s.held[0].SSN != s.next {
		return nil
	}
	m := s.held[0]
	s.held[0] = nil
	if s.held = s.held[1:]; len(s.held) == 0 {
		s.held = nil // there was room for many, perhaps
	}
	s.next++
	return m
}
