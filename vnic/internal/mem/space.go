package mem

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/vnic/internal/handle"
)

// Limits are what a Space may have.
type Limits struct {
	PD, MR, MW     int
	MRLen, MRTotal uint64 // octets of one MR; of all
}

// A Config says what a Space is made of.
type Config struct {
	Keys   *Keys // of its device
	Limits Limits
	// Violation is called when memory that the user has lent is not there. It must not block.
	Violation func(error)
	Log       *slog.Logger
}

// A Space is the memory of one user of a device: protection domains, and what is registered there.
type Space struct {
	cfg Config

	blocking atomic.Bool // may have memory that can block

	mu     sync.Mutex
	closed error                 // guarded by mu: why nothing more is made; nil: it is open
	pds    handle.Table[*PD]     // +checklocks:mu
	mrs    handle.Table[*MR]     // +checklocks:mu
	fast   handle.Table[*FastMR] // guarded by mu
	mws    handle.Table[*MW]     // guarded by mu
	octets uint64                // guarded by mu: of mrs
	hidden int                   // guarded by mu: regions among mrs that are nobody's objects

	atomics struct { // on memory that is reached by calls
		mu   sync.Mutex
		word [AtomicLen]byte // +checklocks:mu
	}
}

// Init makes s a space of cfg.
func (s *Space) Init(cfg Config) { s.cfg = cfg }

// AllowBlocking says that s may have memory that can block from now on; first: it was not said
// before.
func (s *Space) AllowBlocking() (first bool) { return !s.blocking.Swap(true) }

// Blocking reports whether s may have memory that can block.
func (s *Space) Blocking() bool { return s.blocking.Load() }

// Counts says how many PDs, regions of the user's and memory windows there are.
func (s *Space) Counts() (pds, mrs, mws int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pds.Len(), s.mrs.Len() - s.hidden + s.fast.Len(), s.mws.Len()
}

// PDs returns the protection domains, in any order.
func (s *Space) PDs() []*PD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pds.Slice()
}

// MRs returns the regions of the user's that are registered, in any order.
func (s *Space) MRs() []*MR {
	s.mu.Lock()
	defer s.mu.Unlock()
	mrs := make([]*MR, 0, s.mrs.Len())
	for m := range s.mrs.All() {
		if !m.hidden {
			mrs = append(mrs, m)
		}
	}
	return mrs
}

// FastMRs returns the regions for fast registration, in any order.
func (s *Space) FastMRs() []*FastMR {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fast.Slice()
}

// MWs returns the memory windows, in any order.
func (s *Space) MWs() []*MW {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mws.Slice()
}

// Shut has everything that is to be made in s refused with err.
func (s *Space) Shut(err error) {
	s.mu.Lock()
	s.closed = err
	s.mu.Unlock()
}

// Close closes all that is registered, after Shut. It waits for the copies under way.
func (s *Space) Close() {
	for _, w := range s.MWs() { // before the regions that they stand on
		w.Close()
	}
	for _, f := range s.FastMRs() {
		f.Close()
	}
	s.mu.Lock()
	mrs := s.mrs.Slice()
	s.pds = handle.Table[*PD]{}
	s.mu.Unlock()
	for _, m := range mrs {
		m.Close()
	}
}

// NewPD makes a protection domain; rdma.ErrLimit, or the error of Shut.
func (s *Space) NewPD() (*PD, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		return nil, s.closed
	}
	pd := &PD{space: s, keys: s.cfg.Keys}
	h, err := s.pds.Add(pd, s.cfg.Limits.PD)
	if err != nil {
		return nil, fmt.Errorf("allocate a protection domain: %w", err)
	}
	pd.handle = h
	return pd, nil
}
