package daemon_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
)

var (
	directSeed = flag.Uint64("seed", 1,
		"the first seed of random programs with the direct path in Go")
	directSeeds       = flag.Int("seeds", 6, "how many of them there are")
	directRevocations = flag.Int("revocations", 100,
		"how often memory is taken back that a peer in Go writes to by the direct path")
)

// directDevices are of iWARP, and of RoCE.
var directDevices = []string{"vrnic0", "rocep0"}

func withDirect(direct bool) func(*daemon.Config) {
	return func(cfg *daemon.Config) {
		roce, err := daemon.ParseDevice("rocep0,addr=10.78.0.2/24,transport=roce")
		if err != nil {
			panic(err)
		}
		cfg.Devices = append(slices.Clone(cfg.Devices), roce)
		cfg.Direct = direct
	}
}

// A mover is an end of a random program.
type mover struct {
	*daemontest.End
	id  uint64
	all strings.Builder // what has completed
	out int             // signaled requests that have not
}

const (
	moverHalf = 2 << 20 // what comes from the peer is in the second half
	moverAll  = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic
)

func newMover(t testing.TB, d *daemontest.Daemon, device string) *mover {
	t.Helper()
	e := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), 2*moverHalf)
	m := &mover{End: e}
	m.register(t, moverAll)
	return m
}

// register has all be reached by another key, with these rights.
func (m *mover) register(t testing.TB, access rdma.Access) {
	t.Helper()
	if err := m.MR.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	if m.MR, err = m.PD.RegisterMemory(m.Buf.Bytes(), access); err != nil {
		t.Fatal(err)
	}
}

// poll takes all that is to complete.
func (m *mover) poll() {
	for ; m.out > 0; m.out-- {
		wc := m.WC("what was posted")
		wc.QPN = 0
		fmt.Fprintf(&m.all, "%+v\n", wc)
	}
}

var (
	moverOps   = []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpFetchAdd, rdma.OpCompareSwap}
	moverSizes = []int{0, 1, 7, 8, 63, 64, 65, 4095, 128<<10 - 1, 128 << 10, 128<<10 + 1, 300001,
		1 << 20, 1<<20 + 1}
)

// request is a random one of m's to peer, of an opcode.
func (m *mover) request(rnd *rand.Rand, op rdma.Opcode, peer *mover) *rdma.SendWR {
	m.id++
	wr := &rdma.SendWR{ID: m.id, Op: op, RKey: peer.MR.RKey()}
	n := moverSizes[rnd.IntN(len(moverSizes))]
	there := moverHalf + rnd.IntN(moverHalf-n)
	if op == rdma.OpFetchAdd || op == rdma.OpCompareSwap {
		n, there = 8, there/1024*8
		wr.Atomic.CompareAdd, wr.Atomic.Swap = rnd.Uint64N(3), rnd.Uint64N(3)
	}
	wr.RemoteAddr = peer.MR.Addr() + uint64(there)
	off, first := rnd.IntN(moverHalf-n), rnd.IntN(n+1)
	if (op == rdma.OpWrite || op == rdma.OpWriteImm) && n <= 64 && rnd.IntN(2) == 0 {
		wr.Flags, wr.Inline = rdma.Inline, m.Buf.Bytes()[off:][:n]
	} else {
		wr.SGEs = []rdma.SGE{m.SGE(off, first), m.SGE(off+first, n-first)}
	}
	if rnd.IntN(3) == 0 {
		wr.Flags |= rdma.Fence
	}
	return wr
}

// immediate is a random Send or Write with immediate data.
func (m *mover) immediate(rnd *rand.Rand, peer *mover, roce bool) *rdma.SendWR {
	wr := m.request(rnd, rdma.OpWriteImm, peer)
	if rnd.IntN(2) == 0 {
		wr.Op, wr.Inline, wr.SGEs, wr.Flags = rdma.OpSendImm, nil, nil, 0
		if roce { // on iWARP it has no octets
			wr.SGEs = []rdma.SGE{m.SGE(rnd.IntN(1000), rnd.IntN(100))}
		}
	}
	wr.Flags |= rdma.Signaled
	if rnd.IntN(2) == 0 {
		wr.Flags |= rdma.Solicited
	}
	wr.Imm, wr.ImmLow = rnd.Uint32(), rnd.Uint32()
	return wr
}

// spoil has wr be refused.
func (m *mover) spoil(t *testing.T, rnd *rand.Rand, how string, wr *rdma.SendWR, peer *mover) {
	switch how {
	case "key":
		wr.RKey ^= 1 << 20
	case "end":
		wr.RemoteAddr = peer.MR.Addr() + 2*moverHalf
	case "begin":
		wr.RemoteAddr = peer.MR.Addr() - 8
	case "rights":
		peer.register(t, rdma.LocalWrite)
		wr.RKey = peer.MR.RKey()
	case "deregistered":
		peer.register(t, moverAll)
	case "sink":
		wr.SGEs = []rdma.SGE{m.SGE(2*moverHalf-4, 8)}
	case "misaligned":
		wr.Op = moverOps[2+rnd.IntN(2)]
		wr.RemoteAddr += 4
	}
}

var moverEnds = []string{"key", "end", "begin", "rights", "deregistered", "sink", "misaligned"}

// moves has two ends do what a random program says, and returns all that they have seen.
func moves(t *testing.T, d *daemontest.Daemon, device string, seed uint64) string {
	rnd := rand.New(rand.NewPCG(seed, 0))
	ends := [2]*mover{newMover(t, d, device), newMover(t, d, device)}
	daemontest.Connect(t, ends[0].End, ends[1].End, daemontest.Addr(t, ends[1].Dev, false, 0))
	for i, e := range ends {
		e.Fill(0, 2*moverHalf, byte(i))
		clear(e.Buf.Bytes()[:moverHalf/128]) // words of atomic operations
	}
	m, peer := ends[0], ends[1]
	for waits := 0; waits < 100; {
		if k := rnd.IntN(8); k < 2 { // in the order of posting
			peer.Recv(7, moverHalf, 100)
			peer.out++
			if k == 0 {
				m.id++
				m.Send(m.id, 0, 100)
			} else {
				m.Post(m.immediate(rnd, peer, device != directDevices[0]))
			}
		} else {
			wr := m.request(rnd, moverOps[rnd.IntN(4)], peer)
			if rnd.IntN(3) == 0 && wr.Op != rdma.OpRead {
				m.Post(wr) // what is behind it waits
				continue
			}
			wr.Flags |= rdma.Signaled
			m.Post(wr)
		}
		m.out++
		m.poll() // what the other has may be written to now
		peer.poll()
		if waits++; rnd.IntN(20) == 0 {
			m.register(t, moverAll)
		}
		if rnd.IntN(2) == 0 {
			m, peer = peer, m
		}
	}
	wr := m.request(rnd, moverOps[1+rnd.IntN(3)], peer)
	wr.Flags |= rdma.Signaled
	wr.SGEs = []rdma.SGE{m.SGE(0, 8)}
	how := moverEnds[seed%uint64(len(moverEnds))]
	if roce := device != directDevices[0]; roce && how == "misaligned" {
		how = "key" // that is refused where it is posted
	}
	m.spoil(t, rnd, how, wr, peer)
	m.Post(wr)
	m.out++
	m.poll()
	var saw strings.Builder
	_ = m.Conn.Disconnect() // of iWARP it is over
	for _, e := range ends {
		<-e.Conn.Done()
		fmt.Fprintf(&saw, "%s%v\n%#x\n", e.all.String(), e.Conn.Err(), crc32.ChecksumIEEE(e.Buf.Bytes()))
	}
	return saw.String()
}

// Programs in Go see the same with the direct path and without it: what completes, memory, and how
// the connection ends.
func TestDirectMoves(t *testing.T) {
	on, off := daemontest.Start(t, withDirect(true)), daemontest.Start(t, withDirect(false))
	for i := range 2 * *directSeeds {
		seed, device := *directSeed+uint64(i/2), directDevices[i%2]
		got, want := moves(t, on, device, seed), moves(t, off, device, seed)
		if got != want {
			a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
			for i := range a {
				if i >= len(b) || a[i] != b[i] {
					t.Fatalf("%s, seed %d: completion %d is %s, without the direct path %v", device,
						seed, i, a[i],
						b[i:min(i+1, len(b))])
				}
			}
			t.Fatalf("%s, seed %d: %d completions, without the direct path %d", device, seed, len(a),
				len(b))
		}
	}
	for _, device := range directDevices {
		c := directCounts(t, on, device)
		t.Logf("%s: %+v", device, c)
		if c.Writes == 0 || c.DirectWrites < c.Writes/3 || c.DirectReads < c.Reads/3 ||
			c.DirectAtomics < c.Atomics/3 || c.DirectImmediates < c.Immediates/3 {
			t.Error("so few went directly")
		}
	}
}

type directCount struct {
	Dev                    string
	Writes, Reads, Atomics uint64
	Immediates             uint64
	DirectImmediates       uint64 `json:"direct_immediates"`
	DirectSends            uint64 `json:"direct_sends"`
	DirectWrites           uint64 `json:"direct_writes"`
	DirectReads            uint64 `json:"direct_reads"`
	DirectAtomics          uint64 `json:"direct_atomics"`
}

func directCounts(t *testing.T, d *daemontest.Daemon, device string) (c directCount) {
	t.Helper()
	rows, err := d.Dial().Stat()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if err := json.Unmarshal(row, &c); err != nil {
			t.Fatal(err)
		}
		if c.Dev == device {
			return c
		}
	}
	t.Fatalf("no counters of %s", device)
	return c
}

// What has been deregistered is its owner's: a program in Go that writes there all the time stores
// nothing more when the call has returned, and nor does one that adds to a word.
func TestDirectMovesRevoked(t *testing.T) {
	for _, device := range directDevices {
		t.Run(device, func(t *testing.T) { revokes(t, device) })
	}
}

func revokes(t *testing.T, device string) {
	d := daemontest.Start(t, withDirect(true))
	const size = 256 << 10
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), size)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), size)
	for round := range *directRevocations {
		if err := b.MR.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		if b.MR, err = b.PD.RegisterMemory(b.Buf.Bytes(), moverAll); err != nil {
			t.Fatal(err)
		}
		connectAnew(t, a, b)
		var begun atomic.Bool
		over := make(chan error, 1)
		go func() { over <- fire(a, b, round, &begun) }()
		for !begun.Load() {
			runtime.Gosched()
		}
		if err := b.MR.Close(); err != nil {
			t.Fatal(err)
		}
		mem := b.Buf.Bytes()
		clear(mem)
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		for i, c := range mem {
			if c != 0 {
				t.Fatalf("round %d: octet %d has been written after it was deregistered", round, i)
			}
		}
	}
	c := directCounts(t, d, device)
	t.Logf("%d times: %+v", *directRevocations, c)
	if c.DirectWrites < c.Writes/2 || c.DirectAtomics < c.Atomics/2 || c.DirectAtomics == 0 {
		t.Error("so few went directly")
	}
}

// connectAnew has two ends be connected by new queue pairs.
func connectAnew(t *testing.T, a, b *daemontest.End) {
	t.Helper()
	for _, e := range []*daemontest.End{a, b} {
		err := e.QP.Close()
		if err == nil {
			e.QP, err = e.PD.CreateQP(rdma.QPConfig{SendCQ: e.CQ, RecvCQ: e.CQ, MaxSendWR: 16, MaxRecvWR: 4})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
}

// A queue pair of RoCE can be reset while others poll its CQ and post to it: of the memory that it
// had in common with its peer they find nothing that has gone.
func TestDirectResetBusy(t *testing.T) {
	d := daemontest.Start(t, withDirect(true))
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 4096)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 4096)
	for range 20 {
		connectAnew(t, a, b)
		b.Recv(1, 0, 64)
		a.Send(1, 0, 64)
		a.WC("a Send")
		b.WC("a receive")
		if err := b.QP.Modify(&rdma.QPAttr{State: rdma.QPError}, rdma.AttrState); err != nil {
			t.Fatal(err)
		}
		var over atomic.Bool
		var flushed atomic.Int64
		var busy sync.WaitGroup
		busy.Go(func() {
			wr := &rdma.RecvWR{SGEs: []rdma.SGE{b.SGE(0, 64)}}
			for !over.Load() {
				_ = b.QP.PostRecv(wr) // which may be full, or reset
			}
		})
		busy.Go(func() {
			var wc [4]rdma.WC
			for !over.Load() {
				n, _ := b.CQ.Poll(wc[:])
				flushed.Add(int64(n))
			}
		})
		for flushed.Load() < 50 {
			runtime.Gosched()
		}
		err := b.QP.Modify(&rdma.QPAttr{State: rdma.QPReset}, rdma.AttrState)
		over.Store(true)
		busy.Wait()
		if err != nil {
			t.Fatal(err)
		}
	}
	if c := directCounts(t, d, "rocep0"); c.DirectSends == 0 {
		t.Error("nothing went directly")
	}
}

// A message that was sent directly and is not polled has its receive for itself, also when the two
// have another pair by then.
func TestDirectAnotherPair(t *testing.T) {
	d := daemontest.Start(t, withDirect(true))
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 4096)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 4096)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	sent := func() uint64 { return directCounts(t, d, "rocep0").DirectSends }
	for n := sent(); sent() == n; { // both have to ask
		b.Recv(0, 0, 64)
		a.Send(0, 0, 64)
		a.WantOK("a Send", 0, rdma.WCSend)
		b.WantOK("a receive", 0, rdma.WCRecv)
	}
	n := sent()
	for i := range 4 {
		b.Recv(uint64(i), 1024+64*i, 64)
	}
	for i := range 2 {
		a.Fill(0, 64, byte(i))
		a.Send(uint64(i), 0, 64)
		a.WantOK("a Send", uint64(i), rdma.WCSend)
	}
	if sent() != n+2 {
		t.Fatalf("%d of 2 Sends were direct", sent()-n)
	}
	for _, s := range []rdma.QPState{rdma.QPSQD, rdma.QPRTS} { // a asks for a pair again
		if err := a.QP.Modify(&rdma.QPAttr{State: s}, rdma.AttrState); err != nil {
			t.Fatal(err)
		}
	}
	for i := 2; i < 4; i++ {
		a.Fill(0, 64, byte(i))
		a.Send(uint64(i), 0, 64)
		a.WantOK("a Send", uint64(i), rdma.WCSend)
	}
	for i := range 4 {
		b.WantOK("a receive", uint64(i), rdma.WCRecv)
		b.Check("it", 1024+64*i, 64, byte(i))
	}
}

// Where one end has left RTS for a while the other one asks by itself, by what it sends or by what
// it gets, and both are direct again.
func TestDirectAfterSQD(t *testing.T) {
	d := daemontest.Start(t, withDirect(true))
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 4096)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "rocep0"), 4096)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	send := func(from, to *daemontest.End) (direct bool) {
		n := directCounts(t, d, "rocep0").DirectSends
		to.Recv(0, 0, 64)
		from.Send(0, 0, 64)
		from.WantOK("a Send", 0, rdma.WCSend)
		to.WantOK("a receive", 0, rdma.WCRecv)
		return directCounts(t, d, "rocep0").DirectSends != n
	}
	until := func(from, to *daemontest.End, why string) {
		t.Helper()
		for tries := 0; !send(from, to); tries++ {
			if tries == 500 {
				t.Fatal(why)
			}
		}
	}
	until(a, b, "there is no direct path")
	for i := range 6 {
		for _, s := range []rdma.QPState{rdma.QPSQD, rdma.QPRTS} {
			if err := a.QP.Modify(&rdma.QPAttr{State: s}, rdma.AttrState); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 0 {
			until(a, b, "who does nothing but receive does not ask again")
			continue
		}
		until(b, a, "who sends does not ask again")
	}
	if !send(a, b) || !send(b, a) {
		t.Error("one of two Sends is not direct in the end")
	}
}

// The memory of a receive is there no more, but nothing is to be put into it: it completes.
func TestDirectNoOctets(t *testing.T) {
	for _, dev := range []string{"vrnic0", "rocep0"} {
		for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpSendImm, rdma.OpWriteImm} {
			for _, direct := range []bool{false, true} {
				d := daemontest.Start(t, withDirect(direct))
				a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), dev), 4096)
				b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), dev), 4096)
				daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
				for range 100 {
					b.Recv(0, 0, 64)
					a.Send(0, 0, 64)
					a.WantOK("a Send", 0, rdma.WCSend)
					b.WantOK("a receive", 0, rdma.WCRecv)
				}
				m, err := b.PD.RegisterMemory(b.Buf.Bytes(), rdma.LocalWrite)
				if err != nil {
					t.Fatal(err)
				}
				sge := b.SGE(0, 64)
				sge.LKey = m.LKey()
				if err := b.QP.PostRecv(&rdma.RecvWR{ID: 1, SGEs: []rdma.SGE{sge}}); err != nil {
					t.Fatal(err)
				}
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
				a.Post(&rdma.SendWR{ID: 1, Op: op, Flags: rdma.Signaled})
				if wa, wb := a.WC("a Send"), b.WC("a receive"); wa.Status != rdma.WCSuccess ||
					wb.Status != rdma.WCSuccess {
					t.Errorf("%s, %v, direct %v: %v and %v", dev, op, direct, wa.Status, wb.Status)
				}
			}
		}
	}
}

// fire has a write to b, or add to a word there, until that is refused.
func fire(a, b *daemontest.End, round int, begun *atomic.Bool) error {
	a.Fill(0, 64<<10, 1)
	wr := &rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.Signaled, RKey: b.MR.RKey(),
		RemoteAddr: b.MR.Addr(), SGEs: []rdma.SGE{a.SGE(0, []int{8, 512, 64 << 10}[round%3])}}
	if round%4 == 3 {
		wr.Op, wr.SGEs = rdma.OpFetchAdd, []rdma.SGE{a.SGE(0, 8)}
		wr.Atomic.CompareAdd = 1
	}
	for i := 0; ; i++ {
		if err := a.QP.PostSend(wr); err != nil {
			return err
		}
		wc, err := a.NextWC()
		if err != nil || wc.Status != rdma.WCSuccess {
			return err
		}
		begun.Store(i > round%50)
	}
}

// What goes directly allocates nothing.
func TestDirectMovesAllocations(t *testing.T) {
	d := daemontest.Start(t, withDirect(true))
	a, b := newMover(t, d, "vrnic0"), newMover(t, d, "vrnic0")
	daemontest.Connect(t, a.End, b.End, daemontest.Addr(t, b.Dev, false, 0))
	var wc [1]rdma.WC
	for _, op := range append(slices.Clone(moverOps), rdma.OpWriteImm, rdma.OpSendImm) {
		wr := &rdma.SendWR{Op: op, Flags: rdma.Signaled, RKey: b.MR.RKey(), RemoteAddr: b.MR.Addr(),
			SGEs: []rdma.SGE{a.SGE(0, 8)}}
		if op == rdma.OpSendImm {
			wr.SGEs = nil
		}
		receive := &rdma.RecvWR{}
		atOnce := func() bool {
			if op == rdma.OpWriteImm || op == rdma.OpSendImm {
				for n := 1; n != 0; { // those that went by the daemon may come late, some at a time
					var err error
					if n, err = b.CQ.Poll(wc[:]); err != nil {
						t.Fatal(err)
					}
				}
				if err := b.QP.PostRecv(receive); err != nil {
					t.Fatal(err)
				}
			}
			a.Post(wr)
			n, err := a.CQ.Poll(wc[:])
			if err != nil {
				t.Fatal(err)
			}
			return n == 1
		}
		// The first ones ask for keys and memory, and go by the daemon until there is a pair.
		for tries := 0; !atOnce(); tries++ {
			if a.WC("what goes by the daemon"); tries == 10000 {
				t.Fatalf("opcode %d does not become direct", op)
			}
		}
		do := func() {
			if !atOnce() {
				t.Fatalf("opcode %d is not complete at once", op)
			}
		}
		if n := testing.AllocsPerRun(1000, do); n != 0 {
			t.Errorf("opcode %d: %v allocations", op, n)
		}
	}
}
