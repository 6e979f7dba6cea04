package verbs

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// A step is one of a random program: what an end is told, or what an operator does. What is needed
// between, so that all runs see the same, is for stage.run.
type step struct {
	side int
	do   string
	op   byte // of send
	size int  // of messages; depth of queues
	at   int
	n    int // SGEs
	how  int
}

// Ways to end a connection.
var endings = []string{"key", "bounds", "remote_key", "remote_bounds", "recv_key", "recv_bounds",
	"recv_rights", "too_long", "remote_below", "remote_rights", "misaligned", "revoked", "sink_key",
	"sink_bounds", "sink_rights", "error", "disconnect"}

func (s step) String() string {
	op := ""
	if s.op != 0 {
		op = " " + string(s.op)
	}
	return fmt.Sprintf("%s %s%s size %d at %d n %d how %d\n", "AB"[s.side:s.side+1], s.do, op, s.size,
		s.at, s.n, s.how)
}

var sizes = []int{0, 1, 8, 63, 64, 65, 111, 112, 113, 511, 512, 513, 4096, 8191, 8192, 8193, 12000}

// Of Writes and Reads: such as are copied in parts, or by the daemon.
var longSizes = []int{65536, 128<<10 - 1, 128 << 10, 128<<10 + 1, 256<<10 + 13, 384 << 10}

const (
	slotLen = 16384 // as in script.c
	areaLen = 32 * slotLen
	atWords = areaLen / 4 * 3 // where those of atomic operations begin, which nothing else reaches
)

// Areas of memory, and what the peer may do with what it writes to: as in script.c.
const (
	areaFrom = iota
	areaInto
	areaTarget
	areaAnswers
)

// Flags of ibv_access_flags.
const (
	accessLocal = 1 << iota
	accessWrite
	accessRead
	accessAtomic
	accessBind
	accessAll = accessLocal | accessWrite | accessRead | accessAtomic | accessBind
)

var areaAccess = map[int]int{areaFrom: 0, areaInto: accessLocal, areaTarget: accessAll,
	areaAnswers: accessLocal}

func randomProgram(seed uint64) (program []step) {
	r := rand.New(rand.NewPCG(seed, 19))
	depths := []int{2, 4, 8, 16}
	for range 1 + r.IntN(3) {
		program = append(program, step{do: "open", size: depths[r.IntN(4)], at: depths[r.IntN(4)],
			n: []int{0, 64, 200}[r.IntN(3)], how: r.IntN(16)})
		writes := r.IntN(9) // of ten requests
		for range 10 + r.IntN(80) {
			s := step{side: r.IntN(2)}
			switch k := r.IntN(44); {
			case k < 18:
				s.do, s.op = "send", 's'
				if r.IntN(10) < writes {
					s.op = "wwwrfcim"[r.IntN(8)]
				}
				s.size, s.n, s.how = sizes[r.IntN(len(sizes))], 1+r.IntN(3), r.IntN(64)
				if strings.IndexByte("wri", s.op) >= 0 && r.IntN(5) == 0 {
					s.size = longSizes[r.IntN(len(longSizes))]
				}
				s.at = r.IntN(areaLen)
			case k < 34:
				s.do, s.size = "recv", 12000+r.IntN(slotLen-12000)
			case k < 36:
				s.do, s.n = "poll", 1+r.IntN(8)
			case k < 38:
				s.do, s.how = "arm", r.IntN(4)
			case k < 39:
				s.do = "sync"
			case k < 40:
				s.do, s.how = "watch", r.IntN(16)
			case k < 42:
				s.do, s.n, s.how = "renew", r.IntN(6), r.IntN(3)
			case k < 43:
				s.do, s.n = "window", 1+r.IntN(2)
			default:
				s.do = "pause"
			}
			program = append(program, s)
		}
		program = append(program, step{side: r.IntN(2), do: "end", how: r.IntN(len(endings)),
			size: sizes[1+r.IntN(len(sizes)-1)], n: r.IntN(12), at: r.IntN(3)})
	}
	return program
}
