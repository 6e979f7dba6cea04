package pairtest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

const depth = 8 // receives of each QP

// A page is the memory of a pair, with the daemon's end of it.
type page struct {
	t    *testing.T
	mem  *osmem.Region
	fd   int
	pair *ring.Pair
	qps  [2]*ring.DaemonQP
	mems [2][]byte // of the QPs
	prod [2]uint32 // receives that are posted

	lent [2]lent // what each has lent, and its peer reaches

	bits    [2]*osmem.Region // the bitmaps of their CQs
	bitsFDs [2]int
}

func newPage(t *testing.T) *page {
	t.Helper()
	p := &page{t: t}
	caps, ok := rpc.QPCaps{MaxSendWR: depth, MaxRecvWR: depth}.Round(16, false)
	if !ok {
		t.Fatal("caps")
	}
	var ends [2]ring.PairEnd
	for i := range ends {
		l := caps.Layout()
		p.mems[i] = make([]byte, l.Size())
		p.qps[i] = ring.NewDaemonQP(p.mems[i], l, 1, func(err error) { t.Error(err) })
		p.qps[i].SetQPN(uint32(i) + 1)
		ends[i] = ring.PairEnd{Rings: p.qps[i], Covered: true, Reach: 0xe,
			Gone: func() bool { return false }, Wake: func() {}, Flushes: func() bool { return false },
			Sent: func(ring.Traffic) {}, Received: func(ring.Traffic) {},
			Bad: func(err error) { t.Error(err) }}
		bits, fd, err := osmem.NewRegion("bits", ring.BitsMemSize, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.bits[i], p.bitsFDs[i] = bits, fd
		t.Cleanup(func() {
			osmem.CloseFD(fd)
			bits.Release()
		})
		cq := make([]byte, ring.CQMemSize(1))
		ends[i].RecvCQ = ring.NewCQProducer(cq, 1, 1, nil, func(err error) { t.Error(err) })
		ends[i].RecvCQ.UseBits(bits.Mem)
	}
	var err error
	if p.mem, p.fd, err = osmem.NewRegion("pair", ring.PairMemSize(&ends), nil); err != nil {
		t.Fatal(err)
	}
	p.pair = ring.NewPair(p.mem.Mem, &ends)
	p.pair.Attach()
	for side := range p.lent {
		p.lent[side] = newLent(t)
		p.lent[side].table.Join(&p.pair.Dirs[1-side])
	}
	t.Cleanup(func() {
		osmem.CloseFD(p.fd)
		p.mem.Release()
	})
	return p
}

// An end does what a line says, as testdata/end.c does, and answers.
type end interface{ do(line string) string }

// A goEnd is one in Go.
type goEnd struct {
	out    *ring.PairOut
	in     *ring.PairIn
	peers  *reached
	remote *ring.PairRemote
	want   ring.PairWant
	local  []byte
	woken  int // times
}

// wake is the peer's that sleeps; now and then nobody is there.
func (e *goEnd) wake() bool {
	e.woken++
	return e.woken%5 != 0
}

func (p *page) goEnd(side int) end {
	p.t.Helper()
	m, err := osmem.MapRegion(p.fd, len(p.mem.Mem), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(m.Release)
	out, in, err := ring.OpenPair(m.Mem, side, depth)
	if err != nil {
		p.t.Fatal(err)
	}
	peers := &reached{t: p.t, lent: &p.lent[1-side]}
	e := &goEnd{out: out, in: in, peers: peers, remote: ring.NewPairRemote(out, peers),
		local: make([]byte, 1<<20)}
	p.t.Cleanup(e.remote.Close)
	out.Wake = e.wake
	out.Bits = func() *ring.PairBits { return ring.OpenPairBits(p.bits[1-side].Mem) }
	return e
}

func fill(b []byte, seed uint32) {
	for k := range b {
		b[k] = byte(seed*31 + uint32(k)*7)
	}
}

func sum(b []byte) uint32 {
	s := uint32(len(b))
	for _, c := range b {
		s = s*131 + uint32(c)
	}
	return s
}

func (e *goEnd) do(line string) string {
	var op rune
	var a, b, c uint32
	if _, err := fmt.Sscanf(line, "%c %d %d %d", &op, &a, &b, &c); err != nil {
		return err.Error()
	}
	switch op {
	case 's':
		h := headOf(a, b, c)
		to := e.out.Begin(h)
		if to == nil {
			return "no"
		}
		fill(to, b)
		if a == 0 && c&8 != 0 {
			e.out.WroteNothing(b&1 != 0)
		}
		return e.sent(h, c)
	case 'r':
		e.in.Room(a, uint64(b))
	case 't':
		if !e.in.Stamped(a) {
			return "none"
		}
		m, ok := e.in.Message(a)
		if !ok {
			return "nonsense"
		}
		answer := fmt.Sprintf("%d octets %d of %d with %x", len(m.Octets), sum(m.Octets), m.Length,
			m.Flags)
		if m.Flags&abi.SlotImm != 0 {
			answer += fmt.Sprintf(" and %x %x", m.Imm, m.ImmLow)
		}
		e.in.Taken(&m)
		return answer
	case 'w':
		e.in.Want(a)
	case 'b':
		e.in.WantBit(int(a))
	case 'x':
		e.in.Spoil()
	case 'k':
		e.want.Key, e.want.Addr = a, uint64(b)
	case 'W', 'I', 'R', 'F', 'C':
		return e.move(op, a, b, c)
	case 'h':
		return fmt.Sprint(e.in.Heard())
	case 'o':
		is := map[bool]int{true: 1}
		return fmt.Sprint(is[e.out.IsOpen()], " ", is[e.out.HasRoom()])
	}
	return "ok"
}

// headOf is that of testdata/end.c.
func headOf(n, seed, flags uint32) *ring.PairHead {
	h := &ring.PairHead{Length: n, Imm: ^seed, ImmLow: seed * 3}
	if flags&1 != 0 {
		h.Flags |= abi.SQSolicited
	}
	if flags&12 != 0 {
		h.Flags |= abi.SlotImm
	}
	if flags&8 != 0 {
		h.Flags |= abi.SlotWrite
	}
	return h
}

func (e *goEnd) sent(h *ring.PairHead, flags uint32) string {
	e.out.End(h)
	rings := 0
	if e.out.Wanted(flags&1 != 0, flags&2 != 0) {
		rings = 1
	}
	return fmt.Sprint("sent ", rings, " ", e.woken)
}

// A cEnd is one in C, a process.
type cEnd struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
}

func build(t *testing.T) (program string) {
	t.Helper()
	ctest.Need(t)
	files, err := ctest.Sources("testdata/end.c", "../pair/*.[ch]", "../core/*.h", "../*.h",
		"../ibverbs/abi/*.h")
	if err == nil {
		program, err = ctest.CC("end", slices.Concat([]string{"-std=gnu11", "-O2", "-Wextra"},
			ctest.Flags(), files)...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func (p *page) cEnd(program string, side int) *cEnd {
	t := p.t
	t.Helper()
	fd, err := osmem.DupFD(p.fd)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "pair")
	defer f.Close()
	bits, err := osmem.DupFD(p.bitsFDs[1-side])
	if err != nil {
		t.Fatal(err)
	}
	b := os.NewFile(uintptr(bits), "bits")
	defer b.Close()
	files := append(append([]*os.File{f}, p.lent[1-side].files(t)...), b)
	cmd := ctest.Command(program, fmt.Sprint(side), fmt.Sprint(depth), fmt.Sprint(2+len(files)))
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &cEnd{t, in, bufio.NewReader(out)}
}

func (e *cEnd) tell(line string) {
	e.t.Helper()
	if _, err := fmt.Fprintln(e.in, line); err != nil {
		e.t.Fatal(err)
	}
}

func (e *cEnd) answer() string {
	e.t.Helper()
	s, err := e.out.ReadString('\n')
	if err != nil {
		e.t.Fatal(err)
	}
	return strings.TrimSpace(s)
}

func (e *cEnd) do(line string) string {
	e.t.Helper()
	e.tell(line)
	return e.answer()
}

// use has the daemon use a receive of QP side's, as for a message that goes by it.
func (p *page) use(side int) {
	var w abi.RecvWQE
	if ok, err := p.qps[side].RQ.Next(&w); err != nil {
		p.t.Fatal(err)
	} else if ok {
		p.qps[1-side].SQ.Retire(0) // what makes it known
	}
}

// post says to the daemon that QP side has posted one more receive.
func (p *page) post(side int) (i uint32) {
	i = p.prod[side]
	p.prod[side]++
	abi.Word(p.mems[side], abi.QPRQProd).Store(p.prod[side])
	return i
}

// program has both ends and the daemon take steps by seed, and returns what was answered.
func (p *page) program(ends [2]end, seed uint64, steps int) (answers []string) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var next [2]uint32 // receives that were looked at
	for side, e := range ends {
		if seed>>side&1 != 0 { // before the first receive
			answers = append(answers, e.do(fmt.Sprintf("b %d 0 0", rnd.IntN(abi.MaxBits))))
		}
	}
	for range steps {
		side := rnd.IntN(2)
		e := ends[side]
		var line string
		switch rnd.IntN(20) {
		case 12:
			p.lent[1-side].change(rnd)
			continue
		case 13, 14, 15, 16, 17, 18, 19:
			answers = append(answers, e.do(p.lent[1-side].name(rnd)))
			switch n := rnd.IntN(300); rnd.IntN(7) {
			case 6:
				if rnd.IntN(3) == 0 {
					n = rnd.IntN(lentLen)
				}
				line = fmt.Sprintf("I %d %d %d", n, rnd.Uint32N(256), 8+rnd.IntN(4))
			case 0, 1:
				line = fmt.Sprintf("W %d %d 0", n, rnd.Uint32N(256))
			case 2:
				line = fmt.Sprintf("R %d %d 0", n, rnd.Uint32N(256))
			case 3:
				line = fmt.Sprintf("%c %d %d 0", "WR"[rnd.IntN(2)], rnd.IntN(lentLen), rnd.Uint32N(256))
			case 4:
				line = fmt.Sprintf("F %d 0 0", rnd.Uint32N(1000))
			default:
				line = fmt.Sprintf("C %d %d 0", rnd.Uint32N(2), rnd.Uint32N(1000))
			}
		case 0:
			p.pair.Dirs[side].Open()
		case 1:
			if rnd.IntN(4) == 0 {
				p.pair.Dirs[side].Shut()
				p.use(1 - side)
			}
		case 2:
			line = fmt.Sprintf("w %d 0 0", rnd.IntN(32))
		case 3:
			line = []string{"o 0 0 0", "h 0 0 0"}[rnd.IntN(2)]
		case 4, 5:
			if p.prod[side]-next[side] < depth {
				octets := uint32(1 << 16)
				if rnd.IntN(20) == 0 {
					octets = abi.NoRoom
				}
				line = fmt.Sprintf("r %d %d 0", p.post(side), octets)
			}
		case 6, 7, 8:
			if answer := e.do(fmt.Sprintf("t %d 0 0", next[side])); answer != "none" {
				next[side]++
				answers = append(answers, answer)
			} else if abi.Word(p.mems[side], abi.QPRQHead).Load() > next[side] {
				next[side]++ // the daemon has used it
			}
		default:
			n := rnd.IntN(300)
			if rnd.IntN(3) == 0 {
				n = rnd.IntN(20000)
			}
			flags := rnd.IntN(4)
			if rnd.IntN(3) == 0 {
				if flags |= 4 + 8*rnd.IntN(2); flags&8 != 0 && rnd.IntN(2) == 0 {
					n = 0
				}
			}
			line = fmt.Sprintf("s %d %d %d", n, rnd.Uint32N(256), flags)
		}
		if line != "" {
			answers = append(answers, fmt.Sprint(side, ": ", line, ": ", e.do(line)))
		}
	}
	for _, e := range ends {
		answers = append(answers, e.do("x 0 0 0"))
	}
	return answers
}

// By the same steps the libraries give the same answers, whichever is at which end, and leave the
// same octets.
func TestSame(t *testing.T) {
	program := build(t)
	const steps = 3000
	for seed := range uint64(4) {
		var answers []string
		var left [][]byte
		for _, inC := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
			p := newPage(t)
			var ends [2]end
			for side, c := range inC {
				if c {
					ends[side] = p.cEnd(program, side)
				} else {
					ends[side] = p.goEnd(side)
				}
			}
			got := p.program(ends, seed, steps)
			if answers == nil {
				answers = got
				for _, mem := range p.all() {
					left = append(left, bytes.Clone(mem))
				}
				sent, moved := 0, 0
				for _, a := range got {
					if strings.Contains(a, "sent") {
						sent++
					}
					if strings.Contains(a, "moved") {
						moved++
					}
				}
				t.Logf("seed %d: %d messages, %d other operations", seed, sent, moved)
				if sent < steps/25 || moved < steps/25 {
					t.Errorf("these are too few of %d steps", steps)
				}
				continue
			}
			for i := range answers {
				if got[i] != answers[i] {
					t.Fatalf("seed %d, in C: %v: step %d: %s, want %s", seed, inC, i, got[i], answers[i])
				}
			}
			for k, mem := range p.all() {
				for i := range mem {
					if mem[i] != left[k][i] {
						t.Fatalf("seed %d, in C: %v: octet %#x of memory %d, of which 0 is the pair, is %#x, "+
							"want %#x", seed, inC, i, k, mem[i], left[k][i])
					}
				}
			}
		}
	}
}

// What has flags that nobody knows is nonsense, and so is a Write of which no immediate data tells.
func TestOtherThanSends(t *testing.T) {
	program := build(t)
	for _, inC := range []bool{false, true} {
		for flags, want := range map[uint32]string{abi.SQSolicited: "0 octets 0 of 0 with 2",
			abi.SlotImm: "0 octets 0 of 0 with 100 and 0 0", abi.SlotWrite: "nonsense",
			abi.SlotImm | abi.SlotWrite: "0 octets 0 of 0 with 300 and 0 0", 1 << 10: "nonsense",
			1 << 31: "nonsense"} {
			p := newPage(t)
			from := p.goEnd(0)
			var to end = p.goEnd(1)
			if inC {
				to = p.cEnd(program, 1)
			}
			to.do(fmt.Sprintf("r %d 100 0", p.post(1)))
			p.pair.Dirs[0].Open()
			if got := from.do("s 0 0 0"); got != "sent 0 0" {
				t.Fatal(got)
			}
			dir := p.mem.Mem[abi.Word(p.mem.Mem, abi.PairOff).Load():]
			abi.Word(dir, abi.DirSlots(depth)+abi.SlotFlags).Store(flags)
			if got := to.do("t 0 0 0"); got != want {
				t.Errorf("in C %v: flags %#x: %s, want %s", inC, flags, got, want)
			}
		}
	}
}

// A library that has not said that it takes immediate data gets none, from either.
func TestEarlierLibrary(t *testing.T) {
	program := build(t)
	for _, inC := range []bool{false, true} {
		p := newPage(t)
		var from, to end = p.goEnd(0), p.goEnd(1)
		if inC {
			from = p.cEnd(program, 0)
		}
		p.lent[1].change(rand.New(rand.NewPCG(1, 1)))
		k := p.lent[1].keys[0]
		to.do(fmt.Sprintf("r %d 100 0", p.post(1)))
		p.pair.Dirs[0].Open()
		dir := p.mem.Mem[abi.Word(p.mem.Mem, abi.PairOff).Load():]
		if got := abi.Word(dir, abi.DirTakes).Load(); got != abi.TakesImm {
			t.Fatalf("a library takes %#x", got)
		}
		abi.Word(dir, abi.DirTakes).Store(0)
		from.do(fmt.Sprintf("k %d %d 0", k.Key, k.Addr))
		for _, line := range []string{"s 8 0 4", "s 8 0 12", "I 8 0 8"} {
			if got := from.do(line); !strings.HasPrefix(got, "no") {
				t.Errorf("in C %v: %s: %s", inC, line, got)
			}
		}
		if got := from.do("W 8 0 0"); !strings.HasPrefix(got, "moved") {
			t.Errorf("in C %v: a Write: %s", inC, got)
		}
		if got := from.do("s 8 0 0"); got != "sent 0 0" {
			t.Errorf("in C %v: a Send: %s", inC, got)
		}
	}
}

// Behind each message the sender sets the bit that the receiver has named, also again, and one that
// names none has none; a bit that there is not, or one in a bitmap that cannot be had, leaves Sends
// to the daemon. So does a library that came before there were any, which looks for other stamps.
func TestBits(t *testing.T) {
	program := build(t)
	for _, inC := range []bool{false, true} {
		for _, bit := range []int{-1, 0, 33, abi.MaxBits - 1, abi.MaxBits} {
			p := newPage(t)
			var from, to end = p.goEnd(0), p.goEnd(1)
			if inC {
				from, to = p.cEnd(program, 0), p.cEnd(program, 1)
			}
			want := "sent 0 0"
			if bit >= 0 {
				to.do(fmt.Sprintf("b %d 0 0", bit))
			}
			if bit == abi.MaxBits {
				want = "no"
			}
			for range 2 {
				to.do(fmt.Sprintf("r %d 100 0", p.post(1)))
			}
			p.pair.Dirs[0].Open()
			dir := p.mem.Mem[abi.Word(p.mem.Mem, abi.PairOff).Load():]
			if got := abi.Word(dir, abi.DirRooms).Load(); (got == 1) != (bit < 0) {
				t.Errorf("in C %v: the first receive of who wants bit %d has stamp %#x", inC, bit, got)
			}
			words := abi.Words(p.bits[1].Mem, abi.BitsHeaderLen, abi.MaxBits/32)
			for i := range 2 {
				from.do("o 0 0 0")                      // as who posts looks first
				if i == 1 && want != "no" && bit >= 0 { // in place of DirWant
					abi.Word(p.bits[1].Mem, abi.BitsWant).Store(abi.ArmNext)
					want = "sent 1 0"
				}
				if got := from.do("s 8 0 0"); got != want {
					t.Errorf("in C %v: bit %d: message %d: %s, want %s", inC, bit, i, got, want)
				}
				for k := range words {
					set := words[k].Swap(0)
					if in := bit >= 0 && bit/32 == k && want != "no"; set != 0 != in || in && set != 1<<(bit%32) {
						t.Errorf("in C %v: bit %d: word %d is %#x behind message %d", inC, bit, k, set, i)
					}
				}
			}
			if p.pair.Dirs[0].Shut(); bit >= 0 && bit < abi.MaxBits && words[bit/32].Load() == 0 {
				t.Errorf("in C %v: the daemon has closed the direction and not set bit %d", inC, bit)
			}
		}
	}
}

// Messages go to a program in C and come back while both run.
func TestEcho(t *testing.T) {
	p := newPage(t)
	here, there := p.goEnd(0).(*goEnd), p.cEnd(build(t), 1)
	const messages = 2000
	for i := range uint32(depth) {
		here.in.Room(p.post(0), 1<<16)
		if got := there.do(fmt.Sprintf("r %d %d 0", p.post(1), 1<<16)); got != "ok" {
			t.Fatal(got, i)
		}
	}
	p.pair.Dirs[0].Open()
	p.pair.Dirs[1].Open()
	there.tell(fmt.Sprintf("e 0 %d 0", messages))
	rnd := rand.New(rand.NewPCG(5, 0))
	var sums [depth]uint32
	for sent, came := uint32(0), uint32(0); came < messages; {
		if n := rnd.IntN(2000); sent < messages && sent-came < depth {
			h := headOf(uint32(n), sent, sent%2*4)
			if to := here.out.Begin(h); to != nil {
				fill(to, sent)
				sums[sent%depth] = sum(to)
				here.out.End(h)
				sent++
			}
		}
		if !here.in.Stamped(came) {
			osmem.Yield()
			continue
		}
		m, ok := here.in.Message(came)
		if !ok || sum(m.Octets) != sums[came%depth] || m.Flags != came%2*abi.SlotImm ||
			m.Flags != 0 && (m.Imm != ^came || m.ImmLow != came*3) {
			t.Fatalf("message %d came back as %d octets, or others", came, len(m.Octets))
		}
		here.in.Taken(&m)
		here.in.Room(came+depth, 1<<16)
		came++
	}
	if got := there.answer(); got != "done" {
		t.Error(got)
	}
}
