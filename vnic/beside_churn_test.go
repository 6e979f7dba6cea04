package vnic_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// The memory of an end of a connection that is disturbed: what the peer reads, and large Writes
// begin with; where its large Writes end; where large Reads do; the slots of Sends and of receives;
// a word for atomics.
const (
	churnLarge = 600 << 10 // more than two turns
	churnSlot  = 8 << 10
	churnSlots = 16

	churnBulk  = churnLarge
	churnSink  = 2 * churnLarge
	churnSends = 3 * churnLarge
	churnRecvs = churnSends + churnSlots*churnSlot
	churnWord  = churnRecvs + churnSlots*churnSlot
	churnAll   = churnWord + 8

	churnRisk = 32 << 10 // octets of a region that is there only until it is taken back
)

// A lent range is memory that its owner will take back while the peer writes to it.
type lent struct {
	key  uint32
	addr uint64
}

// A churner is one end of a connection that is disturbed while both ends send.
type churner struct {
	t    *testing.T
	why  string
	rng  *rand.Rand
	p    *vnictest.Peer
	peer *churner
	rc   bool

	window   rdma.MW
	risk     []byte // the memory of lend
	riskMR   *vnic.MR
	lend     atomic.Pointer[lent]
	taken    []byte // what of risk was taken back, and is the program's alone
	stop     atomic.Bool
	lost     atomic.Bool // requests of this end may never complete: it was reset or destroyed
	over     atomic.Bool // receives are not posted any more
	pending  []churnSent
	id       uint64
	seq      uint32        // of the next Send
	failed   rdma.WCStatus // of the first request that has
	sent     int           // Sends that have succeeded
	done     atomic.Int64  // requests that have
	bulk     int           // octets of the longest large Write that has
	added    uint64        // atomics that have
	adding   uint64        // atomics that were posted
	received int
	last     int64 // the last Send of the peer's that has come
	recvs    int   // that were posted and have not completed
	recvID   uint64
	wantRecv uint64
}

// A churnSent is a request that has not completed.
type churnSent struct {
	id   uint64
	op   rdma.Opcode
	n    int
	then func()
}

func newChurner(t *testing.T, why string, c *vnic.Context, typ rdma.QPType,
	seed uint64) *churner {
	e := &churner{t: t, why: why, rng: rand.New(rand.NewPCG(seed, 3)), rc: typ == rdma.RC, last: -1}
	e.p = vnictest.NewPeer(t, c, vnictest.PeerConfig{Buffer: churnAll,
		QP: rdma.QPConfig{Type: typ, MaxSendWR: churnSlots, MaxRecvWR: churnSlots}})
	for i := range churnLarge {
		e.p.Buf[i] = byte(uint64(i)*7 + seed)
	}
	e.risk = make([]byte, churnRisk)
	e.riskMR = e.p.Register(e.risk, vnictest.Full|rdma.MWBind)
	var err error
	if e.window, err = e.p.PD.AllocMW(rdma.MWType2); err != nil {
		t.Fatal(err)
	}
	return e
}

// post posts wr, with n octets at off; false: the QP takes none.
func (e *churner) post(wr rdma.SendWR, off, n int, then func()) bool {
	e.id++
	wr.ID = e.id
	wr.Flags |= rdma.Signaled
	if n > 0 {
		wr.SGEs = []rdma.SGE{e.p.SGE(off, n)}
	}
	if e.p.QP.PostSend(&wr) != nil {
		return false
	}
	e.pending = append(e.pending, churnSent{e.id, wr.Op, n, then})
	return true
}

// one posts one request, any that there is.
func (e *churner) one() bool {
	q := e.peer.p
	at := func(off int) uint64 { return q.MR.Addr() + uint64(off) }
	kinds := 5
	if !e.rc {
		kinds = 3
	}
	switch e.rng.IntN(kinds) {
	case 0:
		slot := churnSends + int(e.id%churnSlots)*churnSlot // free: its request has completed
		n := 4 + e.rng.IntN(churnSlot-4)
		b := e.p.Buf[slot : slot+n]
		binary.LittleEndian.PutUint32(b, e.seq)
		for i := 4; i < n; i++ {
			b[i] = byte(e.seq) ^ byte(i)
		}
		e.seq++
		return e.post(rdma.SendWR{Op: rdma.OpSend}, slot, n, nil)
	case 1:
		if l := e.peer.lend.Load(); l != nil {
			return e.post(rdma.SendWR{Op: rdma.OpWrite, RemoteAddr: l.addr, RKey: l.key}, 0,
				1+e.rng.IntN(churnRisk/2), nil)
		}
		return true
	case 2:
		n := churnLarge/2 + e.rng.IntN(churnLarge/2)
		return e.post(rdma.SendWR{Op: rdma.OpWrite, RemoteAddr: at(churnBulk), RKey: q.MR.RKey()}, 0, n,
			nil)
	case 3:
		n := 1 + e.rng.IntN(churnLarge)
		return e.post(rdma.SendWR{Op: rdma.OpRead, RemoteAddr: at(0), RKey: q.MR.RKey()}, churnSink, n,
			nil)
	default:
		e.adding++
		return e.post(rdma.SendWR{Op: rdma.OpFetchAdd, RemoteAddr: at(churnWord), RKey: q.MR.RKey(),
			Atomic: rdma.AtomicArgs{CompareAdd: 1}}, churnSink, 8, nil)
	}
}

// send posts until it is to stop, and takes the completions.
func (e *churner) send() {
	for !e.stop.Load() {
		switch {
		case len(e.pending) == churnSlots:
			if !e.take() {
				time.Sleep(20 * time.Microsecond) // before it looks again
			}
		case !e.one():
			return
		default:
			e.take()
		}
	}
}

// take takes the completions that are there: each of the oldest request, and none with success
// behind one without.
func (e *churner) take() (any bool) {
	var wcs [churnSlots]rdma.WC
	n, err := e.p.SendCQ.Poll(wcs[:])
	if err != nil {
		e.t.Errorf("%s: %v", e.why, err)
	}
	for _, wc := range wcs[:n] {
		if len(e.pending) == 0 || e.pending[0].id != wc.ID {
			e.t.Errorf("%s: a completion of %d, out of order", e.why, wc.ID)
			return false
		}
		w := e.pending[0]
		e.pending = e.pending[1:]
		if wc.Status != ok {
			if e.failed == ok {
				e.failed = wc.Status
			} else if wc.Status != flush {
				e.t.Errorf("%s: %v behind %v", e.why, wc.Status, e.failed)
			}
			continue
		}
		if e.failed != ok {
			e.t.Errorf("%s: success behind %v", e.why, e.failed)
		}
		e.succeeded(w)
	}
	return n > 0
}

// succeeded holds the model to a request that has.
func (e *churner) succeeded(w churnSent) {
	e.done.Add(1)
	switch w.op {
	case rdma.OpSend:
		e.sent++
	case rdma.OpWrite:
		if w.n >= churnLarge/2 {
			e.bulk = max(e.bulk, w.n)
		}
	case rdma.OpRead:
		if n := w.n; len(e.pending) == 0 && // else another one may be on its way to the same place
			!bytes.Equal(e.p.Buf[churnSink:churnSink+n], e.peer.p.Buf[:n]) {
			e.t.Errorf("%s: a Read of %d octets has others", e.why, n)
		}
	case rdma.OpFetchAdd:
		e.added++
	default:
	}
	if w.then != nil {
		w.then()
	}
}

// receive posts receives and takes what comes, until it is over and nothing is outstanding.
func (e *churner) receive() {
	var wcs [churnSlots]rdma.WC
	for {
		for e.recvs < churnSlots && !e.over.Load() {
			at := churnRecvs + int(e.recvID%churnSlots)*churnSlot
			wr := rdma.RecvWR{ID: e.recvID, SGEs: []rdma.SGE{e.p.SGE(at, churnSlot)}}
			if e.p.QP.PostRecv(&wr) != nil {
				break
			}
			e.recvs++
			e.recvID++
		}
		n, err := e.p.RecvCQ.Poll(wcs[:])
		if err != nil {
			e.t.Errorf("%s: %v", e.why, err)
		}
		for i := range wcs[:n] {
			e.arrived(&wcs[i])
		}
		switch {
		case n > 0:
		case e.over.Load() && (e.recvs == 0 || e.lost.Load()):
			return
		default:
			time.Sleep(20 * time.Microsecond) // before it looks again
		}
	}
}

// arrived holds the model to a receive that has completed.
func (e *churner) arrived(wc *rdma.WC) {
	e.recvs--
	if wc.ID != e.wantRecv {
		e.t.Errorf("%s: receive %d completes, want %d", e.why, wc.ID, e.wantRecv)
	}
	e.wantRecv = wc.ID + 1
	if wc.Status != ok {
		return
	}
	at := churnRecvs + int(wc.ID%churnSlots)*churnSlot
	b := e.p.Buf[at : at+int(wc.ByteLen)]
	seq := binary.LittleEndian.Uint32(b)
	if got := int64(seq); got <= e.last || e.rc && got != e.last+1 {
		e.t.Errorf("%s: Send %d behind %d", e.why, got, e.last)
	}
	e.last = int64(seq)
	e.received++
	for i := 4; i < len(b); i++ {
		if b[i] != byte(seq)^byte(i) {
			e.t.Errorf("%s: octet %d of Send %d is %#x", e.why, i, seq, b[i])
			return
		}
	}
}

// mine has what of e.risk was lent be the program's alone: whoever still writes there is found.
func (e *churner) mine(b []byte) {
	for i := range b {
		b[i] = 0xee
	}
	e.taken = b
}

// half is half i of the memory that is lent.
func (e *churner) half(i int) []byte { return e.risk[i*churnRisk/2 : (i+1)*churnRisk/2] }

// bind binds the window to half i, under its next key.
func (e *churner) bind(key uint32, i int) {
	addr := e.riskMR.Addr() + uint64(i*churnRisk/2)
	e.post(rdma.SendWR{Op: rdma.OpBindMW, RKey: key, RemoteAddr: addr, Range: rdma.MemRange{Addr: addr,
		Length: churnRisk / 2, LKey: e.riskMR.LKey(), Access: rdma.RemoteWrite}}, 0, 0,
		func() { e.lend.Store(&lent{key, addr}) })
}

// churns are what can become of an end; each is called by the end's own goroutine, between two
// requests, or at its beginning with begin set.
var churns = map[string]func(e *churner, begin bool){
	"nothing": func(*churner, bool) {},
	"error": func(e *churner, begin bool) {
		if !begin {
			_ = e.p.QP.Modify(&rdma.QPAttr{State: rdma.QPError}, rdma.AttrState) // it may be there
		}
	},
	"reset": func(e *churner, begin bool) {
		if !begin {
			e.lost.Store(true)
			_ = e.p.QP.Modify(&rdma.QPAttr{State: rdma.QPReset}, rdma.AttrState)
		}
	},
	"destroyed": func(e *churner, begin bool) {
		if !begin {
			e.lost.Store(true)
			_ = e.p.QP.Close()
		}
	},
	"drained": func(e *churner, begin bool) {
		if begin || e.p.QP.Modify(&rdma.QPAttr{State: rdma.QPSQD}, rdma.AttrState) != nil {
			return
		}
		// Refused until all that was begun is over, which is never if the peer is gone.
		for !e.stop.Load() && e.p.QP.State() == rdma.QPSQD &&
			e.p.QP.Modify(&rdma.QPAttr{State: rdma.QPRTS}, rdma.AttrState) != nil {
			time.Sleep(20 * time.Microsecond) // before it tries again
		}
	},
	"deregistered": func(e *churner, begin bool) {
		if begin {
			e.lend.Store(&lent{e.riskMR.RKey(), e.riskMR.Addr()})
		} else if e.riskMR.Close() == nil {
			e.mine(e.risk)
		}
	},
	"rebound": func(e *churner, begin bool) {
		if begin {
			e.bind(rdma.NextKey(e.window.RKey()), 0)
			return
		}
		if l := e.lend.Load(); l != nil {
			e.post(rdma.SendWR{Op: rdma.OpLocalInv, InvKey: l.key}, 0, 0, func() { e.mine(e.half(0)) })
			e.bind(rdma.NextKey(l.key), 1)
		}
	},
}

// calm are those that a connection outlives: its requests succeed, churnCalm of each end and more.
var calm = map[string]bool{"nothing": true, "drained": true}

const churnCalm = 100

// run sends, has happen what is to, and goes on.
func (e *churner) run(happens func(*churner, bool), first int) {
	happens(e, true)
	for range first {
		if e.stop.Load() {
			break
		}
		if len(e.pending) < churnSlots-1 && !e.one() {
			break
		}
		e.take()
	}
	for len(e.pending) > churnSlots-2 && !e.stop.Load() {
		if !e.take() {
			time.Sleep(20 * time.Microsecond) // before it looks again
		}
	}
	happens(e, false)
	e.send()
}

// end brings what is left of e to an end, and holds the model to it.
func (e *churner) end() {
	if !e.lost.Load() {
		_ = e.p.QP.Modify(&rdma.QPAttr{State: rdma.QPError}, rdma.AttrState) // it may be there
		for end := time.Now().Add(time.Minute); len(e.pending) > 0; {
			if !e.take() {
				time.Sleep(20 * time.Microsecond) // before it looks again
			}
			if time.Now().After(end) {
				e.t.Fatalf("%s: %d requests do not complete, %+v first", e.why, len(e.pending), e.pending[0])
			}
		}
	}
	e.take()
	e.over.Store(true)
}

// holds holds the model to both ends, when nothing moves any more.
func (e *churner) holds() {
	q := e.peer
	if !q.lost.Load() && e.rc && (q.received < e.sent || q.received > int(e.seq)) {
		e.t.Errorf("%s: %d Sends have succeeded of %d, and %d have come", e.why, e.sent, e.seq,
			q.received)
	}
	bulk := q.p.Buf[churnBulk : churnBulk+churnLarge]
	if e.rc && !bytes.Equal(bulk[:e.bulk], e.p.Buf[:e.bulk]) {
		e.t.Errorf("%s: a Write that has succeeded is not there", e.why)
	}
	for i, b := range bulk {
		if b != 0 && b != e.p.Buf[i] {
			e.t.Errorf("%s: octet %d of the large Writes is %#x", e.why, i, b)
			break
		}
	}
	if n := binary.NativeEndian.Uint64(q.p.Buf[churnWord:]); n < e.added || n > e.adding {
		e.t.Errorf("%s: %d atomics have succeeded of %d, and the word is %d", e.why, e.added, e.adding, n)
	}
	for i, b := range e.taken {
		if b != 0xee {
			e.t.Errorf("%s: octet %d was written when the memory was the program's again", e.why, i)
			break
		}
	}
}

// Both ends of a connection within one process send, write and read without a pause, with messages
// of more than a turn among them, while either is moved to another state, is destroyed, or takes
// memory back that the peer writes to: requests complete once and in their order, nothing succeeds
// that has not arrived, nothing arrives twice or in pieces, and nobody writes to memory that was
// taken back. So it is where messages are copied, where they go as packets (loopback=wire), and
// where one end copies and the other does not. ROCE-109, RVB-013.
func TestBesideChurn(t *testing.T) {
	names := []string{"nothing", "error", "reset", "destroyed", "drained", "deregistered", "rebound"}
	for _, devices := range []int{1, 2} {
		for wires := range 1 + devices {
			t.Run(fmt.Sprintf("%d devices, %d on wires", devices, wires), func(t *testing.T) {
				n := vnictest.NewNet()
				n.Plain, n.Beside = true, new(vnic.Beside)
				made := 0
				c, d := n.Pair(t, func(c *vnic.Config) {
					vnictest.RoCE(c)
					c.ForceWire = made < wires
					made++
				})
				if devices == 1 {
					d = c
				}
				a, b := vnictest.Open(t, c, vnic.ContextConfig{}), vnictest.Open(t, d,
					vnic.ContextConfig{})
				for i := range uint64(2 * len(names)) {
					seed := i + 1000*uint64(devices) + 100*uint64(wires)
					rng := rand.New(rand.NewPCG(seed, 1))
					typ := []rdma.QPType{rdma.RC, rdma.RC, rdma.UC}[rng.IntN(3)]
					// Each happens to one end twice, once with a calm other end, once with anything there.
					other := names[[]int{0, 4}[rng.IntN(2)]]
					if i >= uint64(len(names)) {
						other = names[rng.IntN(len(names))]
					}
					churn(t, seed, typ, a, b, [2]string{names[i%uint64(len(names))], other})
				}
				if copied := c.DevInfo().Packets.Copied; (copied == 0) != (wires > 0) {
					t.Errorf("%d messages of the first device are copied", copied)
				}
			})
		}
	}
}

// churn is one connection of TestBesideChurn.
func churn(t *testing.T, seed uint64, typ rdma.QPType, a, b *vnic.Context, what [2]string) {
	why := fmt.Sprintf("seed %d, %v, %v", seed, typ, what)
	x, y := newChurner(t, why+", x", a, typ, seed), newChurner(t, why+", y", b, typ, seed+1)
	x.peer, y.peer = y, x
	vnictest.ConnectByNumber(t, x.p, y.p, func(a *rdma.QPAttr) { a.MinRNRTimer, a.Timeout = 1, 18 })
	rng := rand.New(rand.NewPCG(seed, 2))
	var sending, receiving, asking sync.WaitGroup
	done := make(chan struct{})
	for i, e := range []*churner{x, y} {
		first := rng.IntN(60)
		sending.Go(func() { e.run(churns[what[i]], first) })
		receiving.Go(e.receive)
		asking.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(200 * time.Microsecond): // now and then
					_, _ = e.p.QP.Query() // it may be destroyed
				}
			}
		})
	}
	if calm[what[0]] && calm[what[1]] {
		for end := time.Now().Add(time.Minute); x.done.Load() < churnCalm || y.done.Load() < churnCalm; {
			if time.Now().After(end) {
				t.Errorf("%s: after a minute %d and %d requests have succeeded", why, x.done.Load(),
					y.done.Load())
				break
			}
			time.Sleep(time.Millisecond) // before it looks again
		}
	} else {
		time.Sleep(time.Duration(1+rng.IntN(15)) * time.Millisecond) // the end comes at any point
	}
	x.stop.Store(true)
	y.stop.Store(true)
	sending.Wait()
	x.end()
	y.end()
	receiving.Wait()
	close(done)
	asking.Wait()
	x.p.QP.Close()
	y.p.QP.Close()
	x.holds()
	y.holds()
	for _, e := range []*churner{x, y} {
		if calm[what[0]] && calm[what[1]] && e.failed != ok && e.failed != flush {
			t.Errorf("%s: %v, though nothing has happened that ends a connection", e.why, e.failed)
		}
		_ = e.window.Close()
		_ = e.riskMR.Close() // it may be
		_ = e.p.MR.Close()
	}
}
