package shm

import (
	"cmp"
	"slices"
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
)

// A cookie names an outstanding receive: the low bits are one more than its place in the table, so
// that none is 0, and the high bits tell it from earlier ones at that place.
const (
	cookieBits = 17 // MaxDepth fits
	cookieMask = 1<<cookieBits - 1
)

// A receiver is the client's end of a receive queue, a QP's or an SRQ's, with its account. A
// receive is outstanding until it has been polled, which is after its slot in the ring is free
// again.
type receiver struct {
	d         *Device
	bell      uint32
	maxSGE    int
	errClosed error

	of *ring.ClientQP // of a QP of RoCE, which takes nothing in Reset; else nil

	mu   sync.Mutex
	ring *ring.RecvProducer // nil once closed; guarded by mu, as what follows
	wqe  abi.RecvWQE
	wrs  []recvWR
	free []uint32 // places in wrs
	seq  uint64   // posts so far
	// order is what remains to be flushed on a dead session, oldest first.
	order []int // +checklocks:mu

	// With a direct path: in is what the sender is told of receives by, posted has them by their
	// number, and told is up to where the sender knows of them.
	in     *ring.PairIn
	posted []postedRecv
	told   uint32
	to     regionFinder
}

// A postedRecv is a receive that is outstanding.
type postedRecv struct {
	place uint32 // in wrs
	room  uint64 // octets that the client can put where it wants them, or abi.NoRoom
}

type recvWR struct {
	id     uint64
	seq    uint64 // when it was posted: 0 is none outstanding
	cookie uint32
}

func (r *receiver) init(d *Device, bell uint32, ring *ring.RecvProducer, errClosed error) {
	size := ring.Size()
	r.d, r.bell, r.ring, r.maxSGE, r.errClosed = d, bell, ring, ring.MaxSGE(), errClosed
	r.wrs = make([]recvWR, size)
	r.free = make([]uint32, 0, size)
	r.forgetLocked()
}

// forget takes all receives off the table.
func (r *receiver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked()
}

func (r *receiver) forgetLocked() {
	r.free = r.free[:0]
	for i := len(r.wrs) - 1; i >= 0; i-- {
		r.wrs[i].seq = 0
		r.free = append(r.free, uint32(i))
	}
}

// post posts one receive.
func (r *receiver) post(wr *rdma.RecvWR) error {
	if wr == nil {
		return errNoRequest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mayPost(); err != nil {
		return err
	}
	if err := r.put(wr); err != nil {
		return err
	}
	return r.commit()
}

// postAll posts wrs in order with one doorbell, and says how many were taken.
func (r *receiver) postAll(wrs []rdma.RecvWR) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mayPost(); err != nil {
		return 0, err
	}
	for n < len(wrs) {
		if err = r.put(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n != 0 {
		if e := r.commit(); e != nil {
			return n, e
		}
	}
	return n, err
}

func (r *receiver) mayPost() error {
	if r.ring == nil {
		return r.errClosed
	}
	if r.of != nil && r.of.State() == abi.StateReset {
		if r.d.c.checkPeer(); r.d.c.gone() == nil { // as in State
			return errQPReset
		}
	}
	return r.d.c.gone()
}

// put writes wr into the next slot: mu is held.
func (r *receiver) put(wr *rdma.RecvWR) error {
	if len(wr.SGEs) > r.maxSGE {
		return errSGEs
	}
	if len(r.free) == 0 {
		return errRecvFull
	}
	i := r.free[len(r.free)-1]
	e := &r.wrs[i]
	cookie := (e.cookie&^cookieMask + 1<<cookieBits) | (i + 1)
	w := &r.wqe
	w.WRID, w.Cookie = wr.ID, cookie
	w.NumSGE = uint32(copySGEs(&w.SGE, wr.SGEs))
	var err error
	if r.in == nil {
		err = r.ring.Put(w)
	} else {
		*r.postedAt(r.ring.Posted()) = postedRecv{place: i, room: r.room(w)}
		err = r.ring.PutUnheard(w)
	}
	if err != nil {
		return r.d.putFailed(err)
	}
	r.free = r.free[:len(r.free)-1]
	r.seq++
	*e = recvWR{id: wr.ID, seq: r.seq, cookie: cookie}
	return nil
}

func (r *receiver) commit() error {
	rings := r.ring.Commit()
	if r.in != nil { // behind it: docs/direct.md#receiving
		r.tellRooms()
	}
	if rings {
		return r.d.ring(r.bell)
	}
	return nil
}

func (r *receiver) postedAt(i uint32) *postedRecv { return &r.posted[i&uint32(len(r.posted)-1)] }

// room is what a receive takes that the sender may fill.
func (r *receiver) room(w *abi.RecvWQE) (n uint64) {
	for i := range w.SGEs() {
		if _, ok := r.to.octets(&w.SGE[i], rdma.LocalWrite); !ok {
			return abi.NoRoom
		}
		n += uint64(w.SGE[i].Length)
	}
	return n
}

func (r *receiver) tellRooms() {
	for posted := r.ring.Posted(); r.told != posted; r.told++ {
		r.in.Room(r.told, r.postedAt(r.told).room)
	}
}

// join has the sender at in know what is posted from now on, and says which receive is the oldest
// that is outstanding. An error is a *ProtocolError.
func (r *receiver) join(in *ring.PairIn, regions *regionTable) (oldest uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	order := r.outstanding()
	oldest = r.ring.Posted() - uint32(len(order))
	r.posted, r.to = make([]postedRecv, len(r.wrs)), regionFinder{table: regions}
	for k, place := range order {
		i := oldest + uint32(k)
		if err := r.ring.Get(i, &r.wqe); err != nil {
			return 0, err
		}
		if r.wqe.Cookie != r.wrs[place].cookie {
			return 0, errCorrupt("receive %d has cookie %#x, not %#x", i, r.wqe.Cookie,
				r.wrs[place].cookie)
		}
		*r.postedAt(i) = postedRecv{place: uint32(place), room: r.room(&r.wqe)}
	}
	r.in, r.told = in, oldest
	r.tellRooms()
	return oldest, nil
}

// take completes receive i, the oldest, with m: false if it is too long, or there is no receive.
func (r *receiver) take(i uint32, m *ring.PairMessage, wc *rdma.WC) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i == r.ring.Posted() || r.ring.Get(i, &r.wqe) != nil {
		return false
	}
	left := m.Octets
	for k := range r.wqe.SGEs() {
		if len(m.Octets) == 0 {
			break // nobody looks at where they would go, as with the daemon
		}
		b, ok := r.to.octets(&r.wqe.SGE[k], rdma.LocalWrite)
		if !ok {
			wc.Status, left = rdma.WCLocProt, nil
			break
		}
		left = left[copy(b, left):]
	}
	if len(left) != 0 {
		return false
	}
	place := r.postedAt(i).place
	wc.ID, wc.ByteLen = r.wrs[place].id, m.Length
	if m.Flags&abi.SlotImm != 0 {
		wc.Flags, wc.Imm, wc.ImmLow = rdma.WCWithImm, abi.ImmWord(m.Imm), abi.ImmWord(m.ImmLow)
	}
	if m.Flags&abi.SlotWrite != 0 {
		wc.Op = rdma.WCRecvImm
	}
	r.in.Taken(m) // before the receive can be posted again
	r.release(place)
	return true
}

// give takes receive i, the oldest, off the table; false if there is none.
func (r *receiver) give(i uint32) (id uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i == r.ring.Posted() {
		return 0, false
	}
	place := r.postedAt(i).place
	r.release(place)
	return r.wrs[place].id, true
}

// isNext reports whether the receive with this cookie is receive i, the oldest, or none.
func (r *receiver) isNext(i, cookie uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	place, ok := r.find(cookie)
	return !ok || i != r.ring.Posted() && place == r.postedAt(i).place
}

// received takes the receive with this cookie off the table; false if there is none.
func (r *receiver) received(cookie uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, ok := r.find(cookie)
	if ok {
		r.release(i)
	}
	return ok
}

// find finds the place of the outstanding receive with this cookie: mu is held.
func (r *receiver) find(cookie uint32) (place uint32, ok bool) {
	i := cookie&cookieMask - 1
	return i, i < uint32(len(r.wrs)) && r.wrs[i].seq != 0 && r.wrs[i].cookie == cookie
}

func (r *receiver) release(place uint32) {
	r.wrs[place].seq = 0
	r.free = append(r.free, place) // there is room: it had the place before
}

// flush completes what is outstanding on the QP qpn, in the order of posting, when the session is
// dead.
func (r *receiver) flush(wc []rdma.WC, qpn uint32) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.order == nil { // mayPost lets nothing in any more
		r.order = r.outstanding()
	}
	for n < len(wc) && len(r.order) != 0 {
		wc[n] = rdma.WC{ID: r.wrs[r.order[0]].id, Status: rdma.WCFlush, Op: rdma.WCRecv, QPN: qpn}
		r.order = r.order[1:]
		n++
	}
	return n
}

// outstanding are the places of what is, oldest first: mu is held.
func (r *receiver) outstanding() []int {
	places := make([]int, 0, len(r.wrs))
	for i := range r.wrs {
		if r.wrs[i].seq != 0 {
			places = append(places, i)
		}
	}
	slices.SortFunc(places, func(a, b int) int { return cmp.Compare(r.wrs[a].seq, r.wrs[b].seq) })
	return places
}

// PostRecv implements rdma.QP.
func (q *queuePair) PostRecv(wr *rdma.RecvWR) error {
	if q.srq != nil {
		return errHasSRQ
	}
	if q.directIn.Load() != 0 { // a program may do nothing but receive
		q.tryDirectLater()
	}
	return q.rq.post(wr)
}

// PostRecvs implements rdma.QP.
func (q *queuePair) PostRecvs(wrs []rdma.RecvWR) (n int, err error) {
	if q.srq != nil {
		return 0, errHasSRQ
	}
	if q.directIn.Load() != 0 {
		q.tryDirectLater()
	}
	return q.rq.postAll(wrs)
}

// receiver is where the receives come from that complete on q.
func (q *queuePair) receiver() *receiver {
	if q.srq != nil {
		return &q.srq.rq
	}
	return &q.rq
}
