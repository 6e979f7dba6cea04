package ring

import (
	"math/bits"
	"sync/atomic"

	"github.com/vrnic/vrnic/shm/abi"
)

// A Doorbell wakes the other side. Rings may be merged; waits may return early.
type Doorbell interface {
	Ring() error
	Wait() error
}

// SessionPageSize is how many octets a session page with n bells takes.
func SessionPageSize(n uint32) int { return abi.SessHeaderLen + 4*int((n+31)/32) }

// A SessionPage is the daemon's end of the page that a session's bells are on.
type SessionPage struct {
	bells []atomic.Uint32
	// words of them that have a bell which was given out: others are not looked at
	used     atomic.Uint32
	sleeping *atomic.Uint32
}

// NewSessionPage makes the page in mem, which is zero.
func NewSessionPage(mem []byte, session, bells uint32, nonce [abi.NonceLen]byte) *SessionPage {
	words := (bells + 31) / 32
	abi.Word(mem, abi.SessMagic).Store(abi.MagicSession)
	abi.Order.PutUint16(mem[abi.SessMajor:], abi.Major)
	abi.Order.PutUint16(mem[abi.SessMinor:], abi.Minor)
	abi.Word(mem, abi.SessID).Store(session)
	abi.Word(mem, abi.SessBellWords).Store(words)
	abi.Word(mem, abi.SessBellOff).Store(abi.SessHeaderLen)
	abi.Word(mem, abi.SessPollYield).Store(abi.PollYield)
	copy(mem[abi.SessNonce:abi.SessNonce+abi.NonceLen], nonce[:])
	return &SessionPage{bells: abi.Words(mem, abi.SessHeaderLen, words),
		sleeping: abi.Word(mem, abi.SessSleeping)}
}

// Use says that a bell has been given out, before the client knows it.
func (p *SessionPage) Use(bell uint32) {
	if words := bell>>5 + 1; words > p.used.Load() {
		p.used.Store(words)
	}
}

// inUse are the words that may have a bell.
func (p *SessionPage) inUse() []atomic.Uint32 { return p.bells[:p.used.Load()] }

// Collect takes all bells that have been rung and calls f for each; it returns whether there were
// any. A bit is cleared before f looks at the object: what is posted later rings again.
func (p *SessionPage) Collect(f func(bell uint32)) (any bool) {
	bells := p.inUse()
	for i := range bells {
		if bells[i].Load() == 0 {
			continue
		}
		for w := bells[i].Swap(0); w != 0; w &= w - 1 {
			any = true
			f(uint32(i)<<5 + uint32(bits.TrailingZeros32(w)))
		}
	}
	return any
}

// CollectSome is Collect of at most n bells, and returns of how many. The others stay rung.
func (p *SessionPage) CollectSome(n int, f func(bell uint32)) (some int) {
	bells := p.inUse()
	for i := range bells {
		for w := bells[i].Load(); w != 0 && some < n; w &= w - 1 {
			if bit := w & -w; bells[i].And(^bit)&bit == 0 {
				continue // another one has
			}
			some++
			f(uint32(i)<<5 + uint32(bits.TrailingZeros32(w)))
		}
	}
	return some
}

// Rung reports whether a bell has been rung and not been collected.
func (p *SessionPage) Rung() bool {
	bells := p.inUse()
	for i := range bells {
		if bells[i].Load() != 0 {
			return true
		}
	}
	return false
}

// Sleep announces that the daemon will block, and returns whether it may: then wait on the
// doorbell. Call Awake in both cases. The order matters: first announce, then look.
func (p *SessionPage) Sleep() bool {
	p.sleeping.Swap(1) // a full fence: see Waking in the package comment
	return !p.Rung()
}

// TakeOver takes the bells over from a thread that has announced itself to sleep: it stays asleep,
// as who rings does not wake it. It returns whether there was one. Sleep gives them back; if that
// says that there are bells, TakeOver again: if it fails the thread is being woken.
func (p *SessionPage) TakeOver() bool { return p.sleeping.Load() != 0 && p.sleeping.Swap(0) != 0 }

// Awake takes back Sleep.
func (p *SessionPage) Awake() { p.sleeping.Store(0) }

// A BellRinger is the client's end of a session page. Any goroutine may ring.
type BellRinger struct {
	Session   uint32
	PollYield uint32 // empty polls after which a polling thread yields
	NonceOff  int    // where the nonce is in the page
	bells     []atomic.Uint32
	sleeping  *atomic.Uint32
	doorbell  Doorbell
}

// OpenBellRinger checks line 0 of mem. An error is a *ProtocolError.
func OpenBellRinger(mem []byte, d Doorbell) (*BellRinger, error) {
	if len(mem) < abi.SessHeaderLen {
		return nil, abi.Violation("session page of %d octets", len(mem))
	}
	if m := abi.Word(mem, abi.SessMagic).Load(); m != abi.MagicSession {
		return nil, abi.Violation("session page has magic %#x", m)
	}
	if major := abi.Order.Uint16(mem[abi.SessMajor:]); major != abi.Major {
		return nil, abi.Violation("session page has version %d, this is %d", major, abi.Major)
	}
	words, off := abi.Word(mem, abi.SessBellWords).Load(), abi.Word(mem, abi.SessBellOff).Load()
	if words > 2*abi.MaxDepth/32 || off%4 != 0 || !abi.RangeFits(uint64(len(mem)), off, 4*words) {
		return nil, abi.Violation("session page of %d octets with %d words of bells at %d", len(mem),
			words, off)
	}
	return &BellRinger{Session: abi.Word(mem, abi.SessID).Load(), PollYield: abi.Word(mem,
		abi.SessPollYield).Load(), NonceOff: abi.SessNonce,
		bells: abi.Words(mem, off, words), sleeping: abi.Word(mem, abi.SessSleeping), doorbell: d}, nil
}

// Bells is how many bells there are.
func (r *BellRinger) Bells() uint32 { return uint32(len(r.bells)) * 32 }

// Ring rings a bell below Bells, after the work has been committed. The bit is set also if it looks
// set: the daemon may be about to clear it, having read the ring's index before.
func (r *BellRinger) Ring(bell uint32) error {
	r.bells[bell>>5].Or(1 << (bell & 31))
	if r.sleeping.Load() != 0 && r.sleeping.Swap(0) != 0 {
		return r.doorbell.Ring()
	}
	return nil
}
