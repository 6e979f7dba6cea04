package sctp

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// An Endpoint is SCTP on one set of addresses. See the package's comment for how it is driven.
type Endpoint struct {
	cfg       Config
	keys      keyring
	listeners map[uint16][]*listener // of a port: no two have an address in common
	table     map[peerKey]*Association
	count     int // associations
	held      int // octets of memory of what has come, by all of them
	grown     int // octets, for streams and for what is sent, of all that there were
	replies   fifo[reply]
	spare     [][]byte // buffers for replies
	free      spares
	events    fifo[Event]
	ready     fifo[*Association]
	timers    timerHeap
	jitter    *rand.Rand
	oot       bucket
	spent     spentTags
	numbers   uint64    // of Associations and Messages there were
	cookies   time.Time // when the last of those that were made is too old
	stats     Stats
	scratch   [32]byte
	gaps      []gap
}

// A peerKey names an association: section 8.4's "identify the association to which this packet
// belongs". Each address of a peer has an entry.
type peerKey struct {
	local, remote uint16
	addr          netip.Addr
}

type listener struct {
	locals []netip.Addr
	opt    *Options
}

// A reply is a packet that is ready to go and belongs to no association.
type reply struct {
	src, dst netip.Addr
	encap    uint16
	b        []byte
}

const maxReplies = 256

// Stats counts what an Endpoint has seen.
type Stats struct {
	PacketsIn, PacketsOut uint64
	// no header, no chunk, port 0, an address that is not unicast, a chunk that must be alone
	Malformed       uint64
	BadChecksum     uint64
	BadTag          uint64 // for an association, with a wrong verification tag
	BadCookie       uint64 // MAC, ports, tag, address, or a cookie that was used before
	StaleCookie     uint64
	OutOfTheBlue    uint64 // belonging to nothing
	RepliesDropped  uint64 // answers not sent: too many at once
	OldSACK         uint64 // overtaken
	DataDropped     uint64 // DATA chunks beyond the window, or in a state without data
	Duplicates      uint64 // DATA chunks that had come before
	Retransmits     uint64 // DATA chunks sent again
	FastRetransmits uint64 // DATA chunks found lost because later ones have arrived
	Spurious        uint64 // DATA chunks sent again that had arrived
	Undone          uint64 // times a window was restored, for nothing had been lost
	TailProbes      uint64 // probes for the loss of what was sent last
	Timeouts        uint64 // T3 expiries
}

// Add adds what another Endpoint has seen.
func (s *Stats) Add(o Stats) {
	for at, n := range map[*uint64]uint64{
		&s.PacketsIn: o.PacketsIn, &s.PacketsOut: o.PacketsOut, &s.Malformed: o.Malformed,
		&s.BadChecksum: o.BadChecksum, &s.BadTag: o.BadTag, &s.BadCookie: o.BadCookie,
		&s.StaleCookie: o.StaleCookie, &s.OutOfTheBlue: o.OutOfTheBlue,
		&s.RepliesDropped: o.RepliesDropped, &s.OldSACK: o.OldSACK, &s.DataDropped: o.DataDropped,
		&s.Duplicates: o.Duplicates, &s.Retransmits: o.Retransmits,
		&s.FastRetransmits: o.FastRetransmits, &s.Spurious: o.Spurious, &s.Undone: o.Undone,
		&s.TailProbes: o.TailProbes, &s.Timeouts: o.Timeouts,
	} {
		*at += n
	}
}

// NewEndpoint returns an Endpoint that has no ports yet.
func NewEndpoint(cfg Config) (*Endpoint, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if j := cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallNew, What: &cfg})
		defer j.End(&Result{})
	}
	e := &Endpoint{
		cfg: cfg, listeners: map[uint16][]*listener{}, table: map[peerKey]*Association{},
		oot: bucket{perSecond: cfg.OOTBPerSecond},
	}
	var seed [32]byte
	e.random(seed[:])
	e.jitter = rand.New(rand.NewChaCha8(seed))
	return e, nil
}

func (e *Endpoint) random(b []byte) {
	if _, err := io.ReadFull(e.cfg.Rand, b); err != nil {
		panic(fmt.Sprintf("sctp: no random numbers: %v", err))
	}
	if j := e.cfg.Journal; j != nil {
		j.Drew(b)
	}
}

// Memory is about how many octets associations have, or had, for streams and for what is sent. What
// has come is memory of others: see Ref.
func (e *Endpoint) Memory() int { return e.grown }

// Forget has nobody hear of calls any more.
func (e *Endpoint) Forget() { e.cfg.Journal = nil }

// number is that of the next Association or Message.
func (e *Endpoint) number() uint64 {
	e.numbers++
	return e.numbers
}

func (e *Endpoint) random32() uint32 {
	e.random(e.scratch[:4])
	return binary.BigEndian.Uint32(e.scratch[:])
}

// newTag returns a random tag; it is never 0. Section 5.3.1.
func (e *Endpoint) newTag() uint32 {
	for {
		if t := e.random32(); t != 0 {
			return t
		}
	}
}

// Stats returns the counters.
func (e *Endpoint) Stats() Stats { return e.stats }

// Associations is how many there are.
func (e *Endpoint) Associations() int { return e.count }

// A ListenConfig says how to listen.
type ListenConfig struct {
	// Locals are the addresses to be reached at; nil: whichever an INIT is sent to, and that one only.
	Locals  []netip.Addr
	Options *Options // nil: the Endpoint's
}

// Listen lets peers set up associations with port. Each comes with an EventUp.
func (e *Endpoint) Listen(port uint16, c ListenConfig) error {
	j := e.cfg.Journal
	if j == nil {
		return e.listen(port, c)
	}
	j.Begin(&Call{Kind: CallListen, What: &c, Port: port})
	err := e.listen(port, c)
	j.End(&Result{Err: err})
	return err
}

func (e *Endpoint) listen(port uint16, c ListenConfig) error {
	if port == 0 {
		return ErrAddress
	}
	for _, l := range e.listeners[port] {
		if l.locals == nil || c.Locals == nil || slices.ContainsFunc(c.Locals, l.serves) {
			return ErrPortInUse
		}
	}
	opt, err := e.options(c.Options)
	if err != nil {
		return err
	}
	for _, a := range c.Locals {
		if !isUnicast(a) {
			return ErrAddress
		}
	}
	e.listeners[port] = append(e.listeners[port], &listener{slices.Clone(c.Locals), opt})
	return nil
}

// StopListening ends a Listen for port and these addresses; associations that there are stay.
func (e *Endpoint) StopListening(port uint16, locals []netip.Addr) {
	if j := e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallUnlisten, What: &ListenConfig{Locals: locals}, Port: port})
		defer j.End(&Result{})
	}
	left := slices.DeleteFunc(e.listeners[port], func(l *listener) bool {
		return slices.Equal(l.locals, locals)
	})
	if len(left) == 0 {
		delete(e.listeners, port)
		return
	}
	e.listeners[port] = left
}

// serves reports whether l is for packets to a.
func (l *listener) serves(a netip.Addr) bool {
	return l.locals == nil || slices.Contains(l.locals, a)
}

func (e *Endpoint) options(o *Options) (*Options, error) {
	if o == nil {
		return &e.cfg.Options, nil
	}
	c := *o
	if o.Adaptation != nil {
		v := *o.Adaptation
		c.Adaptation = &v
	}
	if f := o.AdmitAdaptation; f != nil && e.cfg.Journal != nil {
		c.AdmitAdaptation = func(code uint32, present bool) bool {
			ok := f(code, present)
			if j := e.cfg.Journal; j != nil {
				j.Admitted(ok)
			}
			return ok
		}
	}
	return &c, c.setDefaults()
}

// A Packet is one that has come. Addresses have no zone.
type Packet struct {
	Src, Dst netip.Addr
	Data     []byte // from the common header on
	Ref      Ref    // of Data; nil: nobody will write to Data any more
	Encap    uint16 // the UDP source port it came in (RFC 6951); 0: it came bare
	Verified bool   // its checksum has been found good
}

// A Datagram is a packet to be sent.
type Datagram struct {
	Src, Dst netip.Addr
	Data     []byte
	DF       bool   // do not fragment
	Encap    uint16 // the UDP port to send it to; 0: bare
}

// contents says what a packet holds.
type contents struct {
	chunks int
	kinds  uint32 // a bit for each known type
	stale  bool   // an ERROR with a stale cookie cause
}

func (c contents) has(t ChunkType) bool { return c.kinds&(1<<t) != 0 }

func survey(b []byte) (s contents) {
	for {
		c, rest, ok := nextChunk(b)
		if !ok {
			return s
		}
		b = rest
		s.chunks++
		if c.typ() >= chunkKnown {
			continue
		}
		s.kinds |= 1 << c.typ()
		if c.typ() == chunkError {
			p, v, ok := nextParam(c.value())
			for ; ok; p, v, ok = nextParam(v) {
				s.stale = s.stale || CauseCode(p.typ()) == CauseStaleCookie
			}
		}
	}
}

// Input takes a packet. It keeps ranges of p.Data where a message needs them, and tells p.Ref.
func (e *Endpoint) Input(now time.Time, p Packet) {
	j := e.cfg.Journal
	if j == nil {
		e.input(now, p)
		return
	}
	what := p // which is not p, so that p is on no heap when nobody hears
	j.Begin(&Call{Kind: CallInput, Now: now, Octets: p.Data, Src: p.Src, Dst: p.Dst, What: &what})
	e.input(now, p)
	j.End(&Result{})
}

func (e *Endpoint) input(now time.Time, p Packet) {
	e.stats.PacketsIn++
	h, ok := parseHeader(p.Data)
	if !ok || h.srcPort == 0 || h.dstPort == 0 || !isUnicast(p.Src) || !isUnicast(p.Dst) {
		e.stats.Malformed++
		return
	}
	if !p.Verified && !GoodChecksum(p.Data) {
		e.stats.BadChecksum++
		return
	}
	in := inPacket{Packet: p, header: h, contents: survey(p.Data[headerLen:]), now: now}
	const alone = 1<<chunkInit | 1<<chunkInitAck | 1<<chunkShutdownComplete
	if in.chunks == 0 || in.chunks > 1 && in.kinds&alone != 0 {
		e.stats.Malformed++
		return
	}
	c, rest, _ := nextChunk(p.Data[headerLen:])
	// "A packet with the tag 0 contains only an INIT chunk", and an INIT has no other: section 8.5.1
	// A.
	if (h.tag == 0) != (c.typ() == chunkInit) {
		e.stats.BadTag++
		return
	}
	switch c.typ() {
	case chunkInit:
		e.handleInit(&in, c)
	case chunkCookieEcho:
		e.handleCookieEcho(&in, c, rest)
	default:
		a := e.table[in.key(p.Src)]
		if a == nil && c.typ() == chunkInitAck {
			a = e.byParams(&in, c)
		}
		if a == nil {
			e.outOfTheBlue(&in)
			return
		}
		a.input(&in)
	}
}

// Knows says whether p is from the peer of an association, to one of its addresses here, by ports
// and addresses alone.
func (e *Endpoint) Knows(p *Packet) bool {
	h, ok := parseHeader(p.Data)
	if !ok {
		return false
	}
	a := e.table[peerKey{h.dstPort, h.srcPort, p.Src}]
	return a != nil && slices.Contains(a.locals, p.Dst)
}

// Concerns says whether p is for e rather than for an Endpoint that has the same addresses and
// ports and is used for what is new: it is of an association, or has a cookie that e has made.
func (e *Endpoint) Concerns(p *Packet) bool {
	h, ok := parseHeader(p.Data)
	if !ok {
		return false
	}
	in := inPacket{Packet: *p, header: h}
	if e.table[in.key(p.Src)] != nil {
		return true
	}
	c, _, ok := nextChunk(p.Data[headerLen:])
	if !ok {
		return false
	}
	switch c.typ() {
	case chunkCookieEcho:
		var ck cookie
		return e.keys.open(c.value(), &ck)
	case chunkInit, chunkInitAck:
		return e.byParams(&in, c) != nil
	default:
		return false
	}
}

// Idle says whether there is nothing that a packet could belong to: no association, and no cookie
// that a peer may come back with.
func (e *Endpoint) Idle(now time.Time) bool {
	return e.count == 0 && e.replies.len() == 0 && e.events.len() == 0 && now.After(e.cookies)
}

// Has says whether there is an association of these ports with a peer.
func (e *Endpoint) Has(local uint16, peer netip.AddrPort) bool {
	return e.table[peerKey{local, peer.Port(), peer.Addr()}] != nil
}

// An inPacket is a packet on its way through.
type inPacket struct {
	Packet
	header
	contents
	now time.Time
}

// key is that of the association with a peer that has the packet's ports and address a.
func (in *inPacket) key(a netip.Addr) peerKey { return peerKey{in.dstPort, in.srcPort, a} }

// byParams finds the association by an address that an INIT or INIT ACK lists: "if the use of any
// of the valid address parameters would identify an existing TCB", section 5.1.2 D.
func (e *Endpoint) byParams(in *inPacket, c chunk) *Association {
	var s setup
	if !parseSetup(c, &s) {
		return nil
	}
	return e.byAddrs(in, s.peerAddrs())
}

func (e *Endpoint) byAddrs(in *inPacket, addrs []netip.Addr) *Association {
	for _, a := range addrs {
		if a := e.table[in.key(a)]; a != nil {
			return a
		}
	}
	return nil
}

// outOfTheBlue answers a packet that belongs to nothing. Section 8.4; INIT and COOKIE ECHO have
// been dealt with.
func (e *Endpoint) outOfTheBlue(in *inPacket) {
	e.stats.OutOfTheBlue++
	switch {
	case in.has(chunkAbort):
	case in.has(chunkShutdownAck):
		e.reply(in, in.tag, true, func(b []byte) []byte {
			return appendChunk(b, chunkShutdownComplete, flagT, nil)
		})
	case in.has(chunkShutdownComplete), in.has(chunkCookieAck), in.stale:
	default:
		e.reply(in, in.tag, true, func(b []byte) []byte { return appendChunk(b, chunkAbort, flagT, nil) })
	}
}

// reply queues an answer to in that belongs to no association. The answers of limited kinds are
// held to a rate: whoever sends nonsense can make this host send, too.
func (e *Endpoint) reply(in *inPacket, tag uint32, limited bool, chunks func([]byte) []byte) {
	if limited && !e.oot.take(in.now) {
		e.stats.RepliesDropped++
		return
	}
	e.push(in.Dst, in.Src, in.Encap, header{in.dstPort, in.srcPort, tag}, chunks)
}

func (e *Endpoint) push(src, dst netip.Addr, encap uint16, h header, chunks func([]byte) []byte) {
	if e.replies.len() >= maxReplies {
		e.stats.RepliesDropped++
		return
	}
	var b []byte
	if n := len(e.spare); n > 0 {
		b, e.spare = e.spare[n-1], e.spare[:n-1]
	}
	b = chunks(h.append(b[:0]))
	finish(b)
	*e.replies.push() = reply{src, dst, encap, b}
}

// abort answers in with an ABORT for the peer whose tag is given, which no association here knows.
func (e *Endpoint) abort(in *inPacket, tag uint32, limited bool, causes func([]byte) []byte) {
	e.reply(in, tag, limited, func(b []byte) []byte {
		at := len(b)
		b = beginChunk(b, chunkAbort, 0)
		if causes != nil {
			b = causes(b)
		}
		return endChunk(b, at)
	})
}

// Output gives the next packet to be sent, written over b (which grows if it must). The owner calls
// it until it says that there is none.
func (e *Endpoint) Output(now time.Time, b []byte) (Datagram, bool) {
	j := e.cfg.Journal
	if j == nil || e.replies.len() == 0 && e.ready.len() == 0 { // then nothing comes of it
		return e.output(now, b)
	}
	j.Begin(&Call{Kind: CallOutput, Now: now})
	d, ok := e.output(now, b)
	r := Result{}
	if ok {
		made := d
		r.Datagram = &made
	}
	j.End(&r)
	return d, ok
}

func (e *Endpoint) output(now time.Time, b []byte) (Datagram, bool) {
	if e.replies.len() > 0 {
		r := *e.replies.at(0)
		e.replies.pop()
		d := Datagram{r.src, r.dst, append(b[:0], r.b...), len(r.b) <= e.mtu(r.dst, r.encap), r.encap}
		e.spare = append(e.spare, r.b)
		e.stats.PacketsOut++
		return d, true
	}
	for e.ready.len() > 0 {
		a := *e.ready.at(0)
		if d, ok := a.output(now, b[:0]); ok {
			// The others have their turn first.
			if e.ready.len() > 1 {
				e.ready.pop()
				*e.ready.push() = a
			}
			e.stats.PacketsOut++
			return d, true
		}
		e.ready.pop()
		a.isReady = false
		a.spent()
		e.timers.set(a)
	}
	return Datagram{}, false
}

// mtu is how large a packet to dst can be.
func (e *Endpoint) mtu(dst netip.Addr, encap uint16) int {
	n := e.cfg.MTU(dst)
	if j := e.cfg.Journal; j != nil {
		j.MTU(n)
	}
	if encap != 0 {
		n -= udpLen
	}
	return min(max(n, minPMTU(dst)), maxPacket)
}

// maxPacket is the largest packet that IP carries, jumbograms apart; lengths of chunks have 16
// bits.
const maxPacket = 1<<16 - 1

// udpLen is what RFC 6951 takes of each packet.
const udpLen = 8

// minPMTU is the size of a packet that every path carries in one piece, or is taken to: IPv4's 576
// and IPv6's 1280 octets less the IP header and UDP's.
func minPMTU(dst netip.Addr) int {
	if dst.Is4() {
		return 576 - 20 - udpLen
	}
	return 1280 - 40 - udpLen
}

// changed has Output and the timer look at a again.
func (e *Endpoint) changed(a *Association) {
	if !a.isReady && a.state != StateClosed {
		a.isReady = true
		*e.ready.push() = a
	}
}

// Deadline is when Expire wants to be called; ok is false if there is no such time.
func (e *Endpoint) Deadline() (t time.Time, ok bool) {
	if len(e.timers) == 0 {
		return time.Time{}, false
	}
	return e.timers[0].deadline, true
}

// Expire runs the timers that are due.
func (e *Endpoint) Expire(now time.Time) {
	if j := e.cfg.Journal; j != nil {
		j.Begin(&Call{Kind: CallExpire, Now: now})
		defer j.End(&Result{})
	}
	for len(e.timers) > 0 && !e.timers[0].deadline.After(now) {
		a := e.timers[0]
		a.expire(now)
		e.changed(a)
		e.timers.set(a)
	}
}

// A bucket lets so many things happen per second, and as many at once.
type bucket struct {
	perSecond int
	level     int
	since     time.Time
}

func (b *bucket) take(now time.Time) bool {
	if d := now.Sub(b.since); d >= time.Second {
		b.level, b.since = 0, now
	}
	if b.level >= b.perSecond {
		return false
	}
	b.level++
	return true
}

// spentTags remembers tags of associations that have ended: the cookies with these tags have been
// used. "A new Verification Tag value MUST be used each time the endpoint tears down and then
// reestablishes an association": section 5.3.1.
type spentTags struct {
	ring [1024]uint32
	next int
	set  map[uint32]bool
}

func (s *spentTags) add(tag uint32) {
	if s.set == nil {
		s.set = make(map[uint32]bool, len(s.ring))
	}
	if s.set[tag] {
		return
	}
	delete(s.set, s.ring[s.next])
	s.ring[s.next], s.set[tag] = tag, true
	s.next = (s.next + 1) % len(s.ring)
}
