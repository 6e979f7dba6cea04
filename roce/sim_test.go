package roce_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation with this seed only")
	seedsFlag = flag.Int("seeds", 25, "how many seeds the simulation runs with")
)

// A sim is two ends of an RC over a network that loses, doubles, delays and reorders, with a
// program that each end runs and a model of what must come of it.
type sim struct {
	t     *testing.T
	rand  *rand.Rand
	now   time.Time
	ends  [2]simEnd
	sky   []flight // on their way
	loss  float64  // and the rates of the others
	dup   float64
	jump  time.Duration
	burst int // packets that an end sends at once, at most
}

type simEnd struct {
	*host
	rc     *RC
	reads  map[uint64][]byte // what a Read must bring
	sums   map[uint64]uint64 // what Fetch & Adds added, by address
	writes map[uint64][]byte // what a Write must have put there, by address
	sends  [][]byte          // what the peer must receive, in order
	next   uint64            // token
}

type flight struct {
	due time.Time
	to  int
	b   []byte
}

const (
	simMemory = 1 << 20
	simOps    = 60
	// The first part of the memory is read, the next written, the last has numbers for atomics.
	simWrites  = 1 << 19
	simAtomics = simMemory - 64
)

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: epoch}
	rates := []float64{0, 0.01, 0.03, 0.1}
	s.loss = rates[s.rand.IntN(len(rates))]
	s.dup = rates[s.rand.IntN(len(rates))]
	s.jump = []time.Duration{0, 0, time.Millisecond, 20 * time.Millisecond}[s.rand.IntN(4)]
	s.burst = 1 << s.rand.IntN(9)
	cfg := config()
	cfg.MTU = []uint32{256, 1024, 4096}[s.rand.IntN(3)]
	cfg.Retries, cfg.RNRRetries = 7, RNRForever
	cfg.Window = 1 << s.rand.IntN(8)
	cfg.MaxRead = 1 + s.rand.IntN(4)
	for i := range s.ends {
		e := &s.ends[i]
		*e = simEnd{host: newHost(t, simMemory), reads: map[uint64][]byte{}, sums: map[uint64]uint64{},
			writes: map[uint64][]byte{}}
		e.srq = s.rand.IntN(2) == 0
		s.fill(e.mem[:simWrites])
		e.rc = NewRC(cfg, e.host)
		cfg = mirror(cfg)
	}
	return s
}

func (s *sim) fill(b []byte) {
	var seed [32]byte
	binary.NativeEndian.PutUint64(seed[:], s.rand.Uint64())
	_, _ = rand.NewChaCha8(seed).Read(b)
}

// post has end i do something at random.
func (s *sim) post(i int) {
	e, peer := &s.ends[i], &s.ends[1-i]
	n := []int{0, 1, 8, 255, 256, 257, 1024, 5000, 40000}[s.rand.IntN(9)]
	e.next++
	r := Request{Token: e.next, Op: Op(s.rand.IntN(8)), Length: uint32(n), RKey: rkey,
		Solicited: s.rand.IntN(2) == 0, Fence: s.rand.IntN(4) == 0}
	data := make([]byte, n)
	s.fill(data)
	switch r.Op {
	case Send, SendImm, SendInv:
		r.Data = octets(data)
		peer.sends = append(peer.sends, data)
	case Write, WriteImm:
		// Each Write has a place of its own.
		r.Addr = base + simWrites + uint64(len(e.writes))*8192
		if n > 5000 {
			data, r.Length = data[:5000], 5000
		}
		r.Data = octets(data)
		e.writes[r.Addr] = data
		if r.Op == WriteImm {
			peer.sends = append(peer.sends, nil)
		}
	case Read:
		from := s.rand.IntN(simWrites - n)
		r.Addr = base + uint64(from)
		e.reads[r.Token] = bytes.Clone(peer.mem[from : from+n])
		e.sinks[r.Token] = make([]byte, n)
	case FetchAdd, CompareSwap:
		r.Op, r.Length = FetchAdd, 0
		r.Addr = base + simAtomics + 8*uint64(s.rand.IntN(8))
		r.Swap = uint64(s.rand.Uint32())
		e.sums[r.Addr] += r.Swap
		e.sinks[r.Token] = make([]byte, 8)
	}
	binary.BigEndian.PutUint32(r.Imm[:], uint32(r.Token))
	if err := e.rc.Post(&r); err != nil {
		s.t.Fatalf("post %v: %v", r.Op, err)
	}
}

// move sends some of what the ends have, delivers what is due, and lets time pass to what is next.
func (s *sim) move() {
	next := time.Time{}
	for i := range s.ends {
		if s.send(i) {
			next = s.now.Add(10 * time.Microsecond)
		}
	}
	slices.SortStableFunc(s.sky, func(a, b flight) int { return a.due.Compare(b.due) })
	if len(s.sky) > 0 && (next.IsZero() || s.sky[0].due.Before(next)) {
		next = s.sky[0].due
	}
	for i := range s.ends {
		if at, ok := s.ends[i].rc.Deadline(); ok && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() {
		s.t.Fatalf("nothing moves: %d and %d pending", s.ends[0].rc.Outstanding(),
			s.ends[1].rc.Outstanding())
	}
	if next.After(s.now) {
		s.now = next
	}
	for len(s.sky) > 0 && !s.sky[0].due.After(s.now) {
		f := s.sky[0]
		s.sky = s.sky[1:]
		h, payload := read(s.t, f.b)
		s.ends[f.to].rc.Receive(s.now, &h, payload)
	}
	for i := range s.ends {
		if at, ok := s.ends[i].rc.Deadline(); ok && !at.After(s.now) {
			s.ends[i].rc.Expire(s.now)
		}
	}
}

// send puts a burst of end i's packets on their way; true: there may be more.
func (s *sim) send(i int) (more bool) {
	for range 1 + s.rand.IntN(s.burst) {
		b, ok := s.ends[i].rc.Append(nil, s.now)
		if !ok {
			return false
		}
		for s.rand.Float64() >= s.loss {
			due := s.now.Add(50 * time.Microsecond)
			if s.jump > 0 {
				due = due.Add(time.Duration(s.rand.Int64N(int64(s.jump))))
			}
			s.sky = append(s.sky, flight{due, 1 - i, b})
			if s.rand.Float64() >= s.dup {
				break
			}
		}
	}
	return true
}

// Whatever the network does, each request is done once, in order, with the octets that the model
// says; nothing is carried out twice (ROCE-030, 053 to 063, 065, 066, 110 to 123, 230 to 232).
func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		newSim(t, *seedFlag).run()
		return
	}
	for seed := range uint64(*seedsFlag) {
		t.Run(fmt.Sprint("seed=", seed+1), func(t *testing.T) { newSim(t, seed+1).run() })
	}
}

func (s *sim) run() {
	var posted [2]int
	for i := range s.ends {
		s.ends[i].onDone = s.checkDone(i)
	}
	for steps := 0; ; steps++ {
		left := false
		for i := range s.ends {
			e := &s.ends[i]
			if posted[i] < simOps && e.rc.Outstanding() < 20 && s.rand.IntN(2) == 0 {
				s.post(i)
				posted[i]++
			}
			if len(e.recvs) < 5 && s.rand.IntN(3) == 0 {
				e.recvs = append(e.recvs, make([]byte, 40000))
			}
			if f := e.rc.Fault(); f != nil {
				s.t.Fatalf("end %d: %v", i, f)
			}
			left = left || posted[i] < simOps || e.rc.Outstanding() > 0
		}
		if !left {
			break
		}
		if posted[0] > 0 && s.ends[0].rc.Outstanding()+s.ends[1].rc.Outstanding()+len(s.sky) > 0 {
			s.move()
		}
		if steps > 200000 {
			s.t.Fatal("it does not end")
		}
	}
	for i := range s.ends {
		s.check(i)
	}
}

// checkDone looks at each request of end i when it is done.
func (s *sim) checkDone(i int) func(uint64) {
	e := &s.ends[i]
	return func(token uint64) {
		if token != uint64(len(e.done)) {
			s.t.Fatalf("end %d: request %d is done as number %d", i, token, len(e.done))
		}
		if want, ok := e.reads[token]; ok && !bytes.Equal(e.sinks[token], want) {
			s.t.Fatalf("end %d: read %d brought other octets", i, token)
		}
	}
}

func (s *sim) check(i int) {
	e, peer := &s.ends[i], &s.ends[1-i]
	if len(e.done) != simOps {
		s.t.Errorf("end %d: %d requests of %d are done", i, len(e.done), simOps)
	}
	for addr, want := range e.writes {
		if !bytes.Equal(peer.mem[addr-base:][:len(want)], want) {
			s.t.Errorf("end %d: the write to %#x is not there", i, addr)
		}
	}
	for addr, want := range e.sums {
		if got := binary.NativeEndian.Uint64(peer.mem[addr-base:]); got != want {
			s.t.Errorf("end %d: %#x has %d, %d was added", i, addr, got, want)
		}
	}
	if len(e.received) != len(e.sends) {
		s.t.Fatalf("end %d: %d messages received, %d sent", i, len(e.received), len(e.sends))
	}
	for k, want := range e.sends {
		if got := e.received[k]; !bytes.Equal(got.data, want) {
			s.t.Errorf("end %d: message %d has other octets", i, k)
		}
	}
	if e.sources != 0 {
		s.t.Errorf("end %d: %d sources of Reads are held", i, e.sources)
	}
}
