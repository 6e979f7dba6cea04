// Package fault has a card fail on purpose: calls of programs, requests, receives, and the device
// as a whole, by lines that say what fails, how, and when. Device does what can be seen of it; who
// has programs' calls asks Set.Call.
package fault

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// A Target is a device that faults are for.
type Target struct {
	Device *vnic.Device
	Gone   func() // takes the device away; nil: that cannot be
	// Quiet has programs told of no event of the device until it was called with false as often as
	// with true, and then of those that have come; nil: that cannot be.
	Quiet func(on bool)
}

// A Set are the faults of devices; the zero value has none.
type Set struct {
	mu   sync.Mutex
	list []*fault // +checklocks:mu
}

// A fault is one that has begun.
type fault struct {
	Fault
	seed  uint64
	began time.Time
	roce  bool   // of a device of RoCE
	stop  func() // nil: nothing is to be ended

	mu          sync.Mutex
	rng         *rand.Rand // +checklocks:mu
	seen, fired uint64     // guarded by mu
	last        []firing   // guarded by mu
	over        bool       // +checklocks:mu
}

// A firing is once that a fault has come true.
type firing struct {
	at   time.Duration // behind its beginning
	what string
}

// keptFirings are told of.
const keptFirings = 8

// Begin adds faults, of which each has the seed for what is by chance. target finds the device of
// each; nil: it is not there.
func (s *Set) Begin(seed uint64, all []Fault, target func(device string) *Target) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list)+len(all) > maxFaults {
		return fmt.Errorf("no more than %d faults at once", maxFaults)
	}
	targets := make([]*Target, len(all))
	for i, f := range all {
		switch t := target(f.Device); {
		case t == nil:
			return fmt.Errorf("there is no device %s", f.Device)
		case f.How == gone && f.What == Device && t.Gone == nil:
			return fmt.Errorf("device %s cannot be taken away", f.Device)
		case f.How == quiet && t.Quiet == nil:
			return fmt.Errorf("device %s has no programs to be told of events", f.Device)
		default:
			targets[i] = t
		}
	}
	for i, f := range all {
		b := &fault{Fault: f, seed: seed, began: time.Now(),
			roce: targets[i].Device.Config().RoCE, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		s.list = append(s.list, b)
		b.begin(targets[i])
	}
	return nil
}

// End ends those of a device, or all of them if it is "".
func (s *Set) End(device string) error {
	n := s.end(func(f *fault) bool { return device == "" || f.Device == device })
	if device != "" && n == 0 {
		return fmt.Errorf("device %s has no faults", device)
	}
	return nil
}

// Gone ends those of a device that is no more, but for those of calls: one that is made anew under
// the same name has them.
func (s *Set) Gone(device string) {
	s.end(func(f *fault) bool { return f.Device == device && f.stop != nil })
}

func (s *Set) end(which func(f *fault) bool) int {
	s.mu.Lock()
	var ended []*fault
	s.list = slices.DeleteFunc(s.list, func(f *fault) bool {
		ends := which(f)
		if ends {
			ended = append(ended, f)
		}
		return ends
	})
	s.mu.Unlock()
	for _, f := range ended {
		if f.stop != nil {
			f.stop()
		}
	}
	return len(ended)
}

// Call is what a call on a device is to fail with; nil: it is not to. Each fault sees each of its
// calls; of several that fire the first one's error counts.
func (s *Set) Call(device, call string) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		if f.Device == device && f.What == call && f.fires("%s", call) && err == nil {
			err = f.Errno
		}
	}
	return err
}

// fires reports whether f comes true now.
func (f *fault) fires(what string, args ...any) bool {
	at := time.Since(f.began)
	if at < f.At || f.For > 0 && at >= f.At+f.For {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	if f.over || f.seen <= f.After || f.Count > 0 && f.fired >= f.Count ||
		f.rng.Float64() >= f.Share {
		return false
	}
	f.fired++
	if len(f.last) == keptFirings {
		f.last = f.last[1:]
	}
	f.last = append(f.last, firing{at, fmt.Sprintf(what, args...)})
	return true
}

// end has f come true no more.
func (f *fault) end() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
}

// begin has f look at what it is for.
func (f *fault) begin(t *Target) {
	_, request := requests[f.What]
	switch {
	case f.What == Device:
		f.beginDevice(t)
	case f.What == Connect:
		stop := t.Device.SpoilConnects(f.connect)
		f.stop = func() { f.end(); stop() }
	case request, f.What == Recv, f.What == Doorbell:
		stop := t.Device.Spoil(func(qp *vnic.QP) vnic.Spoiler {
			if f.QPN != 0 && f.QPN != qp.Num() {
				return nil
			}
			if f.What == Doorbell {
				f.gate(qp)
			}
			return &spoiler{f: f, qp: qp}
		})
		f.stop = func() { f.end(); stop(); t.Device.Look() }
	}
}

// gate has the doorbells of qp be late.
func (f *fault) gate(qp *vnic.QP) {
	qp.LateBells(func(wr *rdma.SendWR) time.Duration {
		if !f.fires("QP %d %v %d", qp.Num(), wr.Op, wr.ID) {
			return 0
		}
		return f.Late
	}, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.over
	})
}

// connect is what a connection comes to, if f is for it.
func (f *fault) connect() (ev vnic.CMEvent, fails bool) {
	if !f.fires(Connect) {
		return ev, false
	}
	c := connects[f.How]
	ev = vnic.CMEvent{Type: c.event, Status: -int32(c.iwarp), Err: fmt.Errorf("%s, by a fault that "+
		"was asked for: %w", c.words, c.iwarp)}
	if f.roce && c.roce != 0 {
		ev.Status = int32(c.roce)
	}
	if f.How == "reject" {
		ev.Err = &rdma.RejectedError{}
	}
	return ev, true
}

// beginDevice has a device fail as a whole, in its time.
func (f *fault) beginDevice(t *Target) {
	d := t.Device
	var mu sync.Mutex
	var held bool // guarded by mu
	do := func() {
		mu.Lock()
		defer mu.Unlock()
		if !f.fires("%s", f.How) {
			return
		}
		switch f.How {
		case portDown:
			held = true
			d.HoldPort(true)
		case quiet:
			held = true
			t.Quiet(true)
		case gidChange:
			d.Tell(rdma.EventGIDChange)
		case fatal:
			d.Break()
		case invalidate:
			d.EndKeys()
		case cqErr:
			d.BreakCQs()
		default: // gone: the device takes its time to go
			go t.Gone()
		}
	}
	undo := func() {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !held:
		case f.How == quiet:
			t.Quiet(false)
		default:
			d.HoldPort(false)
		}
		held = false
	}
	var timers []*time.Timer
	if f.At == 0 {
		do()
	} else {
		timers = append(timers, time.AfterFunc(f.At, do))
	}
	if f.For > 0 {
		timers = append(timers, time.AfterFunc(f.At+f.For, undo))
	}
	f.stop = func() {
		for _, t := range timers {
			t.Stop()
		}
		f.end()
		undo()
	}
}

// A spoiler is a fault at one queue pair.
type spoiler struct {
	f  *fault
	qp *vnic.QP

	// A receive has ended the connection: what else comes to it flushes. broken says that the queue
	// pair knows, so that what comes when it is well again is of another one. Guarded by mu.
	mu            sync.Mutex
	ended, broken bool
}

func (s *spoiler) Taken(time.Time, *rdma.SendWR, int)                              {}
func (s *spoiler) Completed(time.Time, *rdma.SendWR, rdma.WCStatus, time.Duration) {}
func (s *spoiler) Received(time.Time, *rdma.WC)                                    {}

// Spoil implements vnic.Spoiler.
func (s *spoiler) Spoil(wr *rdma.SendWR) (fate vnic.Fate) {
	f := s.f
	ops, request := requests[f.What]
	if !request || ops != nil && !slices.Contains(ops, wr.Op) || s.qp.State() != rdma.QPRTS ||
		!f.fires("QP %d %v %d", s.qp.Num(), wr.Op, wr.ID) {
		return fate
	}
	switch f.How {
	case invalidate:
		for _, sge := range wr.SGEs {
			s.qp.EndKey(sge.LKey)
		}
	case cqErr:
		s.qp.BreakCQs()
	case terminate:
		fate = vnic.Fate{Status: f.Status, Cause: f.Cause}
	case terminated:
		fate = vnic.Fate{Status: f.Status, Cause: f.Cause, Peer: true}
	case ird:
		fate = vnic.Fate{Status: f.Status, Cause: f.Cause, Peer: true}
		if !f.roce {
			fate.Status = rdma.WCFlush // which request the Terminate is about it does not say
		}
	default:
		fate.Status = f.Status
	}
	return fate
}

// SpoilReceive implements vnic.Spoiler.
func (s *spoiler) SpoilReceive(wc *rdma.WC) rdma.WCStatus {
	f := s.f
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.What != Recv || wc.Status != rdma.WCSuccess {
		return wc.Status
	}
	if s.ended {
		if st := s.qp.State(); !s.broken || st != rdma.QPRTS && st != rdma.QPRTR {
			return rdma.WCFlush
		}
		s.ended, s.broken = false, false
	}
	if !f.fires("QP %d %v %d", s.qp.Num(), wc.Op, wc.ID) {
		return wc.Status
	}
	switch f.How {
	case nak:
		s.qp.Refuse(f.NAK)
		return wc.Status
	case cqErr:
		s.qp.BreakCQs()
		return wc.Status
	}
	cause := iwarp.TermLocalCatastrophic
	st := f.Status
	if f.How == terminate {
		cause, st = f.Cause, rdma.WCSuccess // the message itself has come
	}
	s.ended = true
	s.qp.Break(cause, func() {
		s.mu.Lock()
		s.broken = true
		s.mu.Unlock()
	})
	return st
}

// A row is a fault, in LIST fault.
type row struct {
	Dev   string `json:"dev"`
	Calls uint64 `json:"calls"` // of what fails, as many as it has seen
	Fired uint64 `json:"fired"`
	Seed  uint64 `json:"seed"`
	Words string `json:"words"`
	Last  string `json:"last,omitempty"` // what fired last, and when
}

// Rows are all of them.
func (s *Set) Rows() iter.Seq[any] {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []any
	for _, f := range s.list {
		rows = append(rows, f.row())
	}
	return slices.Values(rows)
}

func (f *fault) row() row {
	f.mu.Lock()
	defer f.mu.Unlock()
	var last []string
	for _, l := range f.last {
		last = append(last, fmt.Sprintf("%.3fs %s", l.at.Seconds(), l.what))
	}
	return row{f.Device, f.seen, f.fired, f.seed, f.line, strings.Join(last, ", ")}
}
