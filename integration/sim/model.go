package sim

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// What lies in an end's memory: octets that never change, for the peer to read; the words of
// atomics; and slots of slotLen octets, by their use.
const (
	slotLen   = 8192
	maxLen    = slotLen - 64 // the longest message; behind it nothing may change
	stableLen = 4096
	wordCount = 8
	slotBase  = stableLen + 4096
	useSlots  = 16 // slots of each use
	memLen    = slotBase + int(slotUses)*useSlots*slotLen
)

type slotUse int

const (
	useSource slotUse = iota // what goes out
	useRecv                  // what receives are posted with
	useCell                  // what the peer writes
	useSink                  // what Reads and atomics bring
	slotUses
)

// A slot is one of them; -1: none.
type slot int

// A memory is registered, and divided into slots.
type memory struct {
	b    []byte
	mr   rdma.MR
	free [slotUses][]slot
	// closed says that it is not registered any more: its octets do not change then, and sum stands
	// for them.
	closed bool
	sum    uint64
}

func (m *memory) at(s slot) int { return slotBase + int(s)*slotLen }

// slot gives the octets of a slot.
func (m *memory) slot(s slot) []byte { return m.b[m.at(s):][:slotLen] }

// takeSlot gives a slot that is free; -1: there is none.
func (m *memory) takeSlot(u slotUse) slot {
	f := m.free[u]
	if len(f) == 0 {
		return -1
	}
	m.free[u] = f[1:]
	return f[0]
}

func (m *memory) giveSlot(s slot) {
	if s >= 0 {
		u := slotUse(int(s) / useSlots)
		m.free[u] = append(m.free[u], s)
	}
}

// reset has all slots free.
func (m *memory) reset() {
	for u := range slotUses {
		m.free[u] = m.free[u][:0]
		for i := range useSlots {
			m.free[u] = append(m.free[u], slot(int(u)*useSlots+i))
		}
	}
}

// addr is that of an offset, as requests name it.
func (m *memory) addr(off int) uint64 { return m.mr.Addr() + uint64(off) }

// sge names n octets of a slot.
func (m *memory) sge(s slot, n int) rdma.SGE {
	return rdma.SGE{Addr: m.addr(m.at(s)), Length: uint32(n), LKey: m.mr.LKey()}
}

// An end is one end of a pair, as its program knows it.
type end struct {
	memory
	p    *pair
	peer *end
	u    *user
	i    int

	pd       rdma.PD
	scq, rcq *cq // they may be the same
	qp       *vnic.QP
	srq      *sharedQueue // nil: none
	conn     rdma.Conn
	attempt  atomic.Pointer[outcome]
	tries    bool   // an attempt is under way
	cancel   func() // ends it

	traffic
	keys      [3]*key   // of this end, for the peer
	gone      bool      // the QP is closed
	starved   time.Time // since when there may be more of the peer's messages than receives
	starvedOf int       // and how many had been delivered then
}

// A traffic is what an end has under way, and what has come of its connection.
type traffic struct {
	sends []*request // posted, and not known to have completed, in order
	recvs []*receive // the same; empty with an SRQ
	// messages are those of this end that take a receive at the peer and have not been seen there;
	// messagesSent counts all, delivered those of the peer that have been seen here.
	messages     []*message
	messagesSent int
	delivered    int
	writes       []*write // of this end, in the peer's memory, that have not been verified
	writesSent   int
	words        [wordCount]word // of the peer's memory: what atomics of this end make of them
	failedSend   bool            // a send request has failed: none succeeds any more
	failedRecv   bool
	refused      int  // REM_ACCESS completions
	fatal        int  // events of the connection's end
	lastWQE      int  // LAST_WQE_REACHED events
	drained      int  // SQ_DRAINED events
	commEst      int  // COMM_EST events
	down         bool // this end has asked for the end
	hungUp       bool // by a disconnect
	ended        bool // the end was seen
}

// A pair is two ends that are connected to each other, or will be.
type pair struct {
	id      int
	ends    [2]*end
	phase   phase
	since   time.Time // of the phase
	causes  cause
	fault   *fault         // the one that was made, if there was one
	private [2][]byte      // data of the ends' programs
	param   rdma.ConnParam // of the active end
	reject  []byte         // what it was rejected with; nil: it was not
	asked   int            // requests that have come
	active  int            // the end that connects
	clean   bool           // the wire has lost nothing since it began to connect
	rounds  int            // connections so far
}

type phase int

const (
	fresh phase = iota
	connecting
	connected
	ending // one end has seen the end, or asked for it
	over   // both ends have; what is posted has completed
)

func (p phase) String() string {
	return [...]string{"fresh", "connecting", "connected", "ending", "over"}[p]
}

func (p *pair) to(ph phase) {
	if p.phase != ph {
		p.phase, p.since = ph, time.Now()
	}
}

// A cause is what may end a connection, or keep it from coming about.
type cause uint

const (
	causeAbort      cause = 1 << iota // a QP or a device was closed, or moved to Error
	causeDisconnect                   // a program has asked for it
	causeFault                        // a program has broken a rule
	causeStarved                      // a Send has waited too long for a receive
	causeCut                          // the wire was cut for long
	causeSetup                        // the connection did not come about
)

// may reports whether the connection may have been ended by any of these.
func (p *pair) may(c cause) bool { return p.causes&c != 0 }

// A fault is a rule that a program breaks.
type fault struct {
	kind faultKind
	by   *end
}

// is reports whether the fault was one of a kind, made by e.
func (f *fault) is(e *end, kinds ...faultKind) bool {
	return f != nil && f.by == e && slices.Contains(kinds, f.kind)
}

type faultKind int

const (
	badLKey faultKind = iota
	badRKeyWrite
	badRKeyRead
	tooLong
	badInvalidate
	badBind
	deregister
	terminate
	faultKinds
)

func (k faultKind) String() string {
	return [...]string{"bad lkey", "Write to a bad rkey", "Read from a bad rkey", "Send too long",
		"Send that invalidates what it may not", "bad bind", "deregister under way",
		"modify to Terminate"}[k]
}

// An outcome is how an attempt to connect has ended.
type outcome struct {
	conn rdma.Conn
	err  error
}

// A request is a posted send request.
type request struct {
	id       uint64
	op       rdma.Opcode
	n        int
	signaled bool
	src      slot
	sink     slot
	fault    bool // it is the one that breaks a rule
	read     *read
	word     *word
	old      uint64 // what an atomic brings
	new      uint64 // and leaves
	messages int    // of this end that the peer has had when it is answered, and Writes
	writes   int
	key      *key // that it binds, or whose binding it ends
	binds    bool
}

// A receive is a posted receive.
type receive struct {
	id   uint64
	n    int
	slot slot
}

// A message takes a receive at the peer.
type message struct {
	id       uint64
	op       rdma.Opcode
	n        int
	imm, low uint32
	inv      *key // of the peer: what it invalidates
	rkey     uint32
	// solicited wakes who has armed a CQ for such messages only.
	solicited bool
	fault     bool // it breaks a rule
	writes    int  // of the same end, before it
}

// A write is octets in the peer's memory.
type write struct {
	id   uint64
	n    int
	cell slot
	key  *key // the peer's, that it goes through; nil: the key of its memory
	done bool // it was verified
	pins int  // Reads of it that are under way
}

// A read says what a Read has to bring.
type read struct {
	stable int    // the peer's stable octets from there on
	w      *write // or those of a Write
}

// A word is 8 octets that only the atomics of one end change: what it may be, the oldest first. The
// first is what is known to have been.
type word struct {
	may []uint64
}

// A key is a window, or a fast registration, of an end for its peer. It covers a cell.
type key struct {
	e     *end
	mw    rdma.MW
	fast  rdma.MR
	rkey  uint32 // the last one
	state keyState
	cell  slot
	users int    // Writes of the peer through it that are not verified
	base  uint64 // the address that the peer uses
}

type keyState int

const (
	unbound  keyState = iota
	changing          // a request is under way that binds it or ends the binding
	bound
)

// type1 says that no invalidation ends the binding.
func (k *key) type1() bool { return k.mw != nil && k.mw.Type() == rdma.MWType1 }

func (k *key) close() error {
	if k.mw != nil {
		return k.mw.Close()
	}
	return k.fast.Close()
}

// A cq is a completion queue, and who waits for its events.
type cq struct {
	rdma.CQ
	u         *user
	solicited bool         // of the last Arm
	woken     *atomic.Bool // by its event; nil: it is not armed
	cancel    func()

	before, last time.Time // it was polled, the last two times
}

// A sharedQueue is an SRQ.
type sharedQueue struct {
	memory
	srq   rdma.SRQ
	recvs []*receive
	limit bool // an event was asked for
}

// pattern fills b with octets that follow from id; unlike tells where b differs from that.
func pattern(b []byte, id uint64) {
	x := id*0x9e3779b97f4a7c15 + 1
	for len(b) >= 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

func unlike(b []byte, id uint64) (at int, bad bool) {
	x := id*0x9e3779b97f4a7c15 + 1
	n := 0
	for len(b) >= 8 {
		x = x*6364136223846793005 + 1442695040888963407
		if binary.LittleEndian.Uint64(b) != x {
			return n, true
		}
		b = b[8:]
		n += 8
	}
	for i := range b {
		if b[i] != byte(x>>(8*i)) {
			return n + i, true
		}
	}
	return 0, false
}

// fill fills b with x.
func fill(b []byte, x byte) {
	if len(b) == 0 {
		return
	}
	b[0] = x
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// untouched is what is in memory that something will be placed in.
const untouched = 0xa5
