package iwarptest

import "github.com/vrnic/vrnic/iwarp"

// A Late host places octets as late as RFC 5040, section 5.5, rules 4 to 6, allows: not before the
// delivery of what they belong to or of what comes behind them, and in any order (rule 3). What
// works with it does not look at memory before it may. A refusal of the host below comes late, too,
// so Late is for peers that ask for nothing wrong.
type Late struct {
	iwarp.Host
	// Pick says which of n pieces is placed next; nil: the last.
	Pick func(n int) int

	held []piece
}

var _ iwarp.Host = (*Late)(nil)

// A piece is a placement that waits.
type piece struct {
	place func(p *piece) error
	stag  iwarp.STag
	to    uint64
	b     []byte
	last  bool
}

func (l *Late) hold(p piece) error {
	p.b = append([]byte(nil), p.b...)
	l.held = append(l.held, p)
	return nil
}

// Held is how many pieces wait.
func (l *Late) Held() int { return len(l.held) }

// Flush places all that waits. Writes with nothing behind them need it in the end.
func (l *Late) Flush() error {
	for n := len(l.held); n > 0; n = len(l.held) {
		i := n - 1
		if l.Pick != nil {
			i = l.Pick(n)
		}
		p := l.held[i]
		l.held[i] = l.held[n-1]
		l.held = l.held[:n-1]
		if err := p.place(&p); err != nil {
			return err
		}
	}
	return nil
}

// PlaceWrite implements iwarp.Host.
func (l *Late) PlaceWrite(stag iwarp.STag, to uint64, chunk []byte, last bool) error {
	return l.hold(piece{func(p *piece) error {
		return l.Host.PlaceWrite(p.stag, p.to, p.b, p.last)
	}, stag, to, chunk, last})
}

// PlaceReceive implements iwarp.Host.
func (l *Late) PlaceReceive(off uint32, chunk []byte) error {
	return l.hold(piece{place: func(p *piece) error {
		return l.Host.PlaceReceive(uint32(p.to), p.b)
	}, to: uint64(off), b: chunk})
}

// PlaceRead implements iwarp.Host.
func (l *Late) PlaceRead(off uint32, chunk []byte) error {
	return l.hold(piece{place: func(p *piece) error {
		return l.Host.PlaceRead(uint32(p.to), p.b)
	}, to: uint64(off), b: chunk})
}

// EndReceive implements iwarp.Host.
func (l *Late) EndReceive(r iwarp.Received) error {
	if err := l.Flush(); err != nil {
		return err
	}
	return l.Host.EndReceive(r)
}

// EndRead implements iwarp.Host.
func (l *Late) EndRead(token uint64) error {
	if err := l.Flush(); err != nil {
		return err
	}
	return l.Host.EndRead(token)
}

// EndAtomic implements iwarp.Host.
func (l *Late) EndAtomic(token, old uint64) error {
	if err := l.Flush(); err != nil {
		return err
	}
	return l.Host.EndAtomic(token, old)
}

// ReadSource implements iwarp.Host. What was written before can be read back: rule 12.
func (l *Late) ReadSource(stag iwarp.STag, to uint64, n uint32) (iwarp.Payload, error) {
	if err := l.Flush(); err != nil {
		return nil, err
	}
	return l.Host.ReadSource(stag, to, n)
}

// Atomic implements iwarp.Host.
func (l *Late) Atomic(a iwarp.Atomic) (old uint64, err error) {
	if err := l.Flush(); err != nil {
		return 0, err
	}
	return l.Host.Atomic(a)
}
