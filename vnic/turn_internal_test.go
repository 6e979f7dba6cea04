package vnic

import (
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/vnic/internal/link"
)

// A workLink has work for so many steps, each of which moves so many octets.
type workLink struct {
	link.Link
	steps, octets int
	moved         int
	stepped       func()
}

func (l *workLink) Yield() int     { return 8 }
func (l *workLink) Blocking() bool { return false }
func (l *workLink) Abort()         {}
func (l *workLink) Step() (moved int, more bool) {
	l.steps--
	l.moved += l.octets
	if l.stepped != nil {
		l.stepped()
	}
	return l.octets, l.steps > 0
}

// workers are QPs with such links, whose goroutines have ended: who runs them is the test.
func workers(t *testing.T, links ...*workLink) (qps []*QP) {
	t.Helper()
	b := newBare(t)
	for _, l := range links {
		qp := b.qp(t, nil)
		qp.close()
		<-qp.gone
		for len(qp.wakec) > 0 {
			<-qp.wakec
		}
		qp.link = l
		qps = append(qps, qp)
	}
	return qps
}

// Whose goroutine runs a QP for somebody else goes on for StepOctets if nobody waits for it, else
// for a turn; what is left goes to the QP's own.
func TestTurnBeside(t *testing.T) {
	const turns = link.StepOctets / link.TurnOctets
	for _, tt := range []struct {
		name       string
		steps      int
		octets     int
		waitsAfter int // turns; 0: nobody waits
		want       int // steps
	}{
		{"nobody waits", 100, link.TurnOctets, 0, turns},
		{"nobody waits, little to do", 3, link.TurnOctets, 0, 3},
		{"others wait", 100, link.TurnOctets, 1, 1},
		{"others come", 100, link.TurnOctets, 4, 4},
		{"others wait, little to do", 1, link.TurnOctets, 1, 1},
		{"many small messages", 100, 64, 0, 1},
		{"what cannot be parted", 100, link.StepOctets, 0, 1},
	} {
		l := &workLink{steps: tt.steps, octets: tt.octets}
		qp := workers(t, l)[0]
		qp.kickBeside(func() bool {
			return tt.waitsAfter > 0 && tt.steps-l.steps >= tt.waitsAfter
		})
		if n := tt.steps - l.steps; n != tt.want {
			t.Errorf("%s: %d steps, want %d", tt.name, n, tt.want)
		}
		if left := len(qp.wakec) == 1; left != (tt.want < tt.steps) || qp.token.Load() != tokenIdle {
			t.Errorf("%s: left to the QP's own goroutine: %v, token %d", tt.name, left, qp.token.Load())
		}
	}
}

// Others who find work as often as a QP is run, each time so little that a step does it, do not
// keep the goroutine that runs it for somebody.
func TestTurnsOfBusy(t *testing.T) {
	const turn, step = 16, 64 // goes that count as TurnOctets and as StepOctets
	for _, tt := range []struct {
		name  string
		goes  int // for which there is work
		waits bool
		want  int
	}{
		{"nobody waits", 1000, false, step + 1},
		{"others wait", 1000, true, turn + 1},
		{"others wait, little to do", turn, true, turn},
	} {
		l := &workLink{}
		qp := workers(t, l)[0]
		n := 0
		l.stepped = func() {
			if n++; n < tt.goes {
				qp.wake() // as the transport does, on a goroutine of its own
			}
		}
		qp.kickBeside(func() bool { return tt.waits })
		if n != tt.want {
			t.Errorf("%s: %d steps, want %d", tt.name, n, tt.want)
		}
		if left := len(qp.wakec) == 1; left != (n < tt.goes) || qp.token.Load() != tokenIdle {
			t.Errorf("%s: left to the QP's own goroutine: %v, token %d", tt.name, left, qp.token.Load())
		}
	}
}

// Where QPs that move much have most processors they take turns of TurnOctets each, and one
// whose steps are longer waits for as many of the others'.
func TestTurnsOfMany(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const turns, long = 400, 4
	const n = 4
	links := make([]*workLink, n)
	var mu sync.Mutex
	ended := false
	since := make([]int, n) // what others have moved since the last step of each; -1: it has not begun
	most := make([]int, n)  // of that
	begun, passed := 0, 0   // steps of the long one, and what the others moved between them
	for i := range links {
		since[i] = -1
		l := &workLink{steps: turns, octets: link.TurnOctets}
		if i == 0 {
			l.steps, l.octets = turns/long, long*link.TurnOctets
		}
		links[i] = l
		l.stepped = func() {
			mu.Lock()
			defer mu.Unlock()
			ended = ended || l.steps == 0
			if all := !slices.Contains(since, -1); all && !ended {
				most[i] = max(most[i], since[i])
				if i == 0 {
					begun++
					passed += since[i]
				}
			}
			for j := range since {
				if j != i && since[j] >= 0 {
					since[j] += l.octets
				}
			}
			since[i] = 0
		}
	}
	qps := workers(t, links...)
	var wg sync.WaitGroup
	for _, qp := range qps {
		wg.Go(func() {
			if qp.acquire() {
				qp.drain(true, nil)
			}
		})
	}
	wg.Wait()
	// Go's scheduler lets one go ahead of its turn now and then.
	for i, m := range most[1:] {
		if m > (n-2+long+2)*link.TurnOctets {
			t.Errorf("QP %d has waited for %d turns of others, of which there are %d", i+1,
				m/link.TurnOctets, n-1)
		}
	}
	if begun == 0 || passed < (long-1)*(n-1)*link.TurnOctets*begun {
		t.Errorf("between %d steps of %d turns the %d others had %d", begun, long, n-1,
			passed/link.TurnOctets)
	}
	if n := moving.Load(); n != 0 {
		t.Errorf("%d QPs count as moving much when all have ended", n)
	}
}
