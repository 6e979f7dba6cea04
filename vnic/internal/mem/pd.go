package mem

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
)

// A PD is a protection domain.
type PD struct {
	space  *Space
	keys   *Keys
	handle uint32

	// guarded by space.mu
	mrs    int
	slots  int // windows and regions for fast registration
	queues int // shared receive queues
	ahs    int // address handles
	closed bool

	keyMu   sync.Mutex
	byKey   map[uint32]*keySlot // guarded by keyMu, by prefix
	streams atomic.Int32        // that it has; grows with space.mu held

	publisher atomic.Pointer[Publisher] // or nil: see Publish

	localHint atomic.Pointer[MR] // the region of the last SGE: most often also of the next
	peerHint  atomic.Pointer[MR] // and that of the last access of a peer
}

// Handle names pd among its space's.
func (pd *PD) Handle() uint32 { return pd.handle }

// A Holding is how much of each kind keeps a protection domain from being freed.
type Holding struct {
	MRs, Windows, QPs, SRQs, AHs int // Windows: regions for fast registration, too
}

// Holding says what pd has.
func (pd *PD) Holding() Holding {
	pd.space.mu.Lock()
	defer pd.space.mu.Unlock()
	return Holding{pd.mrs, pd.slots, int(pd.streams.Load()), pd.queues, pd.ahs}
}

// openLocked is an error if nothing more can be made in pd. space.mu is held.
func (pd *PD) openLocked() error {
	if err := pd.space.closed; err != nil {
		return err
	}
	if pd.closed {
		return fmt.Errorf("the protection domain is gone: %w", rdma.ErrClosed)
	}
	return nil
}

// AddQueue counts a shared receive queue whose receives name memory of pd; an error wraps
// rdma.ErrClosed.
func (pd *PD) AddQueue() error {
	pd.space.mu.Lock()
	defer pd.space.mu.Unlock()
	err := pd.openLocked()
	if err == nil {
		pd.queues++
	}
	return err
}

// RemoveQueue takes AddQueue back.
func (pd *PD) RemoveQueue() {
	pd.space.mu.Lock()
	pd.queues--
	pd.space.mu.Unlock()
}

// AddAH counts an address handle of pd; an error wraps rdma.ErrClosed.
func (pd *PD) AddAH() error {
	pd.space.mu.Lock()
	defer pd.space.mu.Unlock()
	err := pd.openLocked()
	if err == nil {
		pd.ahs++
	}
	return err
}

// RemoveAH takes AddAH back.
func (pd *PD) RemoveAH() {
	pd.space.mu.Lock()
	pd.ahs--
	pd.space.mu.Unlock()
}

// Close frees pd; rdma.ErrBusy while it has MRs, MWs, SRQs, QPs or address handles.
func (pd *PD) Close() error {
	pd.space.mu.Lock()
	defer pd.space.mu.Unlock()
	if pd.closed {
		return nil
	}
	if qps := pd.streams.Load(); pd.mrs+pd.slots+pd.queues+pd.ahs > 0 || qps > 0 {
		return fmt.Errorf("free a protection domain with %d MRs, %d windows or fast MRs, "+
			"%d SRQs, %d QPs and %d address handles: %w", pd.mrs, pd.slots, pd.queues, qps, pd.ahs,
			rdma.ErrBusy)
	}
	pd.closed = true
	pd.space.pds.Remove(pd.handle)
	return nil
}

// CheckSGEs says what a work request on a QP of pd that names sges would be refused for now, with
// WCLocProt; write: if it is written there. It may be called from a RecvQueue's Next: a queue that
// puts other memory in the place of what was posted must not hide that.
func (pd *PD) CheckSGEs(sges []rdma.SGE, write bool) error {
	for _, s := range sges {
		if _, err := pd.local(s, write, pd.localHint.Load()); err != nil {
			return err
		}
	}
	return nil
}
