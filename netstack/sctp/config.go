package sctp

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// Options are what can be set for an association. Fields that are zero are as the comment says,
// most of them as RFC 9260, section 16, suggests.
type Options struct {
	OutStreams, InStreams uint16 // 64; the peer may allow fewer
	// octets of messages that are not acknowledged, at most; 256 KiB. More than 1 MiB is used
	// only where as much is in flight.
	SendBuffer int
	RecvBuffer int // octets held for reordering or not released; 256 KiB

	Adaptation *uint32 // the indication of RFC 5061, section 4.2.6, to send; nil: none
	// AdmitAdaptation is asked when an association is set up with a peer that sent indication
	// code, or none. If it says no, the peer gets an ABORT and nothing comes of it. nil: all
	// are admitted.
	AdmitAdaptation func(code uint32, present bool) bool `json:"-"`
	// AnswerAdaptation has an INIT ACK show the indication of the INIT, which was admitted, in
	// place of Adaptation: one that listens for several uses of SCTP takes up the one that is
	// asked for.
	AnswerAdaptation bool

	NoFragments   bool // Send refuses a message that does not fit one chunk
	NoSACKReserve bool // chunks are as large as packets can be, with no room left for a SACK beside

	RTOInitial, RTOMin    time.Duration // 1 s
	RTOMax                time.Duration // 60 s
	SACKDelay             time.Duration // 200 ms; at most 500 ms
	HeartbeatInterval     time.Duration // 30 s; negative: no heartbeats but to verify addresses
	CookieLife            time.Duration // 60 s
	MaxBurst              int           // 4 packets of new data at once
	MaxInitRetransmits    int           // 8
	AssociationMaxRetrans int           // 10
	PathMaxRetrans        int           // 5
	// UserTimeout is how long nothing may be heard of a peer that owes an answer, be it to a
	// heartbeat only, before the association is down; 0: the limits above alone count.
	UserTimeout time.Duration
}

// sackReserve is the room that is left for a SACK with one gap ack block beside a full DATA chunk.
const sackReserve = sackLen + 4

const (
	maxSACKDelay   = 500 * time.Millisecond
	maxMessages    = 1 << 16 // queued and not sent
	maxOutstanding = 1 << 15 // chunks; so no stream ever has 2^16 ordered messages in flight
	// heldLeast is what an association may hold ahead of order whatever others do: so much gets
	// through on a path that reorders.
	heldLeast    = 16 << 10
	heldPerPiece = 256     // of the receive buffer: bounds how many small chunks are held
	packetLeast  = 2 << 10 // octets of memory that a packet takes: buffers of a TAP have as many
)

func (o *Options) setDefaults() error {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	defInt := func(d *int, v int) {
		if *d == 0 {
			*d = v
		}
	}
	if o.OutStreams == 0 {
		o.OutStreams = 64
	}
	if o.InStreams == 0 {
		o.InStreams = 64
	}
	defInt(&o.SendBuffer, 256<<10)
	defInt(&o.RecvBuffer, 256<<10)
	def(&o.RTOInitial, time.Second)
	def(&o.RTOMin, min(time.Second, o.RTOInitial))
	def(&o.RTOMax, 60*time.Second)
	def(&o.SACKDelay, 200*time.Millisecond)
	def(&o.HeartbeatInterval, 30*time.Second)
	def(&o.CookieLife, 60*time.Second)
	defInt(&o.MaxBurst, 4)
	defInt(&o.MaxInitRetransmits, 8)
	defInt(&o.AssociationMaxRetrans, 10)
	defInt(&o.PathMaxRetrans, 5)
	switch {
	case o.SACKDelay < 0 || o.SACKDelay > maxSACKDelay:
		// "An implementation MUST NOT allow the maximum delay to be configured to be more
		// than 500 ms." Section 6.2.
		return fmt.Errorf("sctp: a SACK delay of %v; it may be up to %v", o.SACKDelay, maxSACKDelay)
	case o.RTOMin < 0 || o.RTOInitial < o.RTOMin || o.RTOMax < o.RTOInitial:
		return fmt.Errorf("sctp: RTO minimum %v, initial %v, maximum %v: they must rise", o.RTOMin,
			o.RTOInitial, o.RTOMax)
	case o.RecvBuffer < minRwnd || o.SendBuffer < minRwnd || o.RecvBuffer > 1<<30 ||
		o.SendBuffer > 1<<30:
		return fmt.Errorf("sctp: buffers of %d and %d octets; each may have %d to 1 GiB", o.SendBuffer,
			o.RecvBuffer, minRwnd)
	case o.CookieLife < 0 || o.MaxBurst < 0 || o.MaxInitRetransmits < 0 ||
		o.AssociationMaxRetrans < 0 || o.PathMaxRetrans < 0 || o.UserTimeout < 0:
		return fmt.Errorf("sctp: a negative limit")
	}
	return nil
}

// A Config describes an Endpoint. Its zero value will do.
type Config struct {
	// Rand gives tags, initial TSNs, keys and nonces; nil: crypto/rand. An error of it is a
	// panic.
	Rand io.Reader
	// MTU is how large a packet to dst may be: the link's MTU without the IP header. nil:
	// Ethernet's.
	MTU func(dst netip.Addr) int
	// MaxAssociations is how many there may be at once; 0: 65536.
	MaxAssociations int
	// HeldMost is how many octets of memory all associations together hold, at most, of what has
	// come ahead of order, beside 16 KiB of each; 0: 1 GiB. More is dropped, and the peers send
	// it again; an association that has nothing else, and waits for nothing else, ends.
	HeldMost int
	// OOTBPerSecond bounds the ABORTs that answer packets of no association; 0: 100.
	OOTBPerSecond int
	// Options are those of associations for which Listen or Dial has none.
	Options Options
	// Journal hears of all that is done with the Endpoint; nil: nobody does.
	Journal Journal
}

// A Journal hears of each call of an Endpoint, its Associations and Messages that changes anything,
// of what they have drawn and asked for meanwhile, and of what has come of it: all that is needed
// to make the calls again. It is called inside of them. A call that a Host has no use for is not
// told of: those that set something of a path, or the limits of retransmission.
type Journal interface {
	Begin(c *Call)
	Drew(b []byte)    // Config.Rand has given that
	MTU(octets int)   // Config.MTU has
	Admitted(ok bool) // Options.AdmitAdaptation has
	End(r *Result)
}

// A CallKind says which call it is.
type CallKind uint8

// The calls.
const (
	CallNew CallKind = iota // NewEndpoint
	CallInput
	CallICMP
	CallLinkUp
	CallExpire
	CallOutput
	CallEvent // NextEvent
	CallListen
	CallUnlisten
	CallDial
	CallSend
	CallDrop
	CallShutdown
	CallAbort
	CallRelease
)

// A Call is one with its arguments.
type Call struct {
	Kind CallKind
	Now  time.Time
	Of   uint64 // the Number of whose call it is; 0: the Endpoint's
	// Octets are a packet, what an ICMP error quotes, or a message.
	Octets   []byte
	Src, Dst netip.Addr // of those
	// What is a *Config, *Packet, *ICMPError, *ListenConfig, *DialConfig, *SendOptions or a string.
	What any
	Port uint16 // that is listened at; of Drop the stream
}

// A Result is what a call has returned.
type Result struct {
	N        uint64 // a message's number, how many were dropped, or the Number of an Association
	Err      error
	Datagram *Datagram // of Output
	Event    *Event    // of NextEvent
}

func (c *Config) setDefaults() error {
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.MTU == nil {
		c.MTU = func(dst netip.Addr) int {
			if dst.Is4() {
				return 1500 - 20
			}
			return 1500 - 40
		}
	}
	if c.MaxAssociations == 0 {
		c.MaxAssociations = 1 << 16
	}
	if c.HeldMost == 0 {
		c.HeldMost = 1 << 30
	}
	if c.OOTBPerSecond == 0 {
		c.OOTBPerSecond = 100
	}
	return c.Options.setDefaults()
}
