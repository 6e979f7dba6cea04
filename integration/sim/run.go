package sim

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
)

// A Result is what has come of a run.
type Result struct {
	Seed  uint64
	Hash  uint64 // of all that happened: octets on the wire, completions, events, with their times
	Steps uint64
	Err   error         // what may not be; nil: nothing
	Count [kinds]uint64 // of the steps
	Last  string        // lines of the trace, of a run that is verbose
}

// Run runs what o says. Processors and the garbage collector are set by Repeatable.
func Run(t *testing.T, o Options) (res Result) {
	cryptotest.SetGlobalRandom(t, o.Seed)
	synctest.Test(t, func(t *testing.T) { res = run(&o) })
	return res
}

func run(o *Options) (res Result) {
	res.Seed = o.Seed
	w, err := newWorld(o.Seed, o.path, o.v6, o.couriers, o.Verbose)
	if err != nil {
		res.Err = err
		return res
	}
	w.trace.each = o.Each
	if o.Record != nil {
		if err := w.record(o.Record); err != nil {
			res.Err = err
			return res
		}
	}
	p := newProgram(w, o)
	func() {
		defer func() {
			switch x := recover().(type) {
			case nil:
			case *Violation:
				res.Err = fmt.Errorf("seed %d (%v), step %d: %w", o.Seed, o.path, w.trace.steps(), x)
				if o.Failed != nil {
					o.Failed(res.Err, w.trace.last())
				}
				p.abandon()
			default:
				panic(x)
			}
		}()
		p.run()
		if err := w.census(); err != nil {
			res.Err = fmt.Errorf("seed %d (%v): %w", o.Seed, o.path, err)
		}
	}()
	res.Hash, res.Steps, res.Count, res.Last = w.trace.hash, w.trace.steps(), w.trace.count,
		w.trace.last()
	w.trace.lines = nil // what stacks do when they are closed has no order
	w.close()
	return res
}

// abandon ends what a program that has failed leaves behind.
func (p *program) abandon() {
	p.w.heal()
	for _, pr := range p.pairs {
		for _, e := range pr.ends {
			if e.tries {
				e.cancel()
			}
			if e.scq != nil {
				p.disarm(e.scq)
				p.disarm(e.rcq)
			}
		}
	}
	synctest.Wait() // who was cancelled tells the peer
}

// Repeatable sets what runs need to be the same each time: one processor, and no collection of
// garbage in their midst. undo takes it back.
func Repeatable() (undo func()) {
	procs := runtime.GOMAXPROCS(1)
	gc := debug.SetGCPercent(-1)
	return func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(gc)
	}
}
