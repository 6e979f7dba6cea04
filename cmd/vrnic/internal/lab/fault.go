package lab

import (
	"bufio"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Calls of programs that can be made to fail.
const (
	AllocPD   = "alloc_pd"
	RegMR     = "reg_mr"
	AllocMW   = "alloc_mw"
	CreateCQ  = "create_cq"
	CreateSRQ = "create_srq"
	CreateQP  = "create_qp"
)

var calls = []string{AllocPD, RegMR, AllocMW, CreateCQ, CreateSRQ, CreateQP}

// faultErrors are those that calls can fail with.
var faultErrors = map[string]syscall.Errno{
	"ENOMEM": syscall.ENOMEM, "EINVAL": syscall.EINVAL, "EAGAIN": syscall.EAGAIN,
	"ENOSPC": syscall.ENOSPC, "EPERM": syscall.EPERM, "EFAULT": syscall.EFAULT, "EIO": syscall.EIO,
}

// A Fault has calls fail on a device.
type Fault struct {
	Device, Call string
	Errno        syscall.Errno
	After        uint64  // so many calls succeed before
	Count        uint64  // so many fail; 0: all
	Share        float64 // of all calls behind those, from 0 to 1
	line         string
}

// maxFaults bounds those of a daemon.
const maxFaults = 256

// ParseFaults reads lines of the form DEVICE CALL ERROR [after N] [count N] [percent P]. Behind #
// there is a comment.
func ParseFaults(text string) (all []Fault, err error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		f, err := parseFault(words)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, f)
	}
	switch err := lines.Err(); {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, errors.New("which fault? Say a device, a call and an error")
	case len(all) > maxFaults:
		return nil, fmt.Errorf("%d faults; %d are the most", len(all), maxFaults)
	}
	return all, nil
}

func parseFault(words []string) (f Fault, err error) {
	f = Fault{Share: 1, line: strings.Join(words, " ")}
	if len(words) < 3 {
		return f, fmt.Errorf("%q: want a device, a call and an error", f.line)
	}
	f.Device, f.Call = words[0], words[1]
	var ok bool
	if !slices.Contains(calls, f.Call) {
		return f, fmt.Errorf("call %s: there are %s", f.Call, strings.Join(calls, ", "))
	}
	if f.Errno, ok = faultErrors[words[2]]; !ok {
		return f, fmt.Errorf("error %s: there are %s", words[2],
			strings.Join(slices.Sorted(maps.Keys(faultErrors)), ", "))
	}
	for words = words[3:]; len(words) > 0; words = words[2:] {
		if len(words) == 1 {
			return f, fmt.Errorf("%s: how many?", words[0])
		}
		switch words[0] {
		case "after":
			f.After, err = strconv.ParseUint(words[1], 10, 32)
		case "count":
			if f.Count, err = strconv.ParseUint(words[1], 10, 32); err == nil && f.Count == 0 {
				err = errors.New("count 0 is no fault")
			}
		case "percent":
			f.Share, err = strconv.ParseFloat(strings.TrimSuffix(words[1], "%"), 64)
			if f.Share /= 100; err == nil && !(f.Share > 0 && f.Share <= 1) {
				err = fmt.Errorf("percent %s: want more than 0, and at most 100", words[1])
			}
		default:
			err = fmt.Errorf("%q: want after, count or percent", words[0])
		}
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

// Faults are those of a daemon; the zero value has none.
type Faults struct {
	mu   sync.Mutex
	list []*fault // +checklocks:mu
}

type fault struct {
	Fault
	rng         *rand.Rand
	seed        uint64
	seen, fired uint64
}

// Begin adds faults, of which each has the seed for what is by chance.
func (s *Faults) Begin(seed uint64, all []Fault) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list)+len(all) > maxFaults {
		return fmt.Errorf("no more than %d faults at once", maxFaults)
	}
	for i, f := range all {
		s.list = append(s.list, &fault{Fault: f, seed: seed,
			rng: rand.New(rand.NewPCG(seed, uint64(i)))})
	}
	return nil
}

// End ends those of a device, or all of them if it is "".
func (s *Faults) End(device string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.list)
	s.list = slices.DeleteFunc(s.list, func(f *fault) bool {
		return device == "" || f.Device == device
	})
	if device != "" && len(s.list) == n {
		return fmt.Errorf("device %s has no faults", device)
	}
	return nil
}

// Call is what a call on a device is to fail with; nil: it is not to. Each fault sees each of its
// calls; of several that fire the first one's error counts.
func (s *Faults) Call(device, call string) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		if f.Device != device || f.Call != call {
			continue
		}
		f.seen++
		if f.seen <= f.After || f.Count > 0 && f.fired >= f.Count || f.rng.Float64() >= f.Share {
			continue
		}
		f.fired++
		if err == nil {
			err = f.Errno
		}
	}
	return err
}

// A faultRow is a fault, in LIST fault.
type faultRow struct {
	Dev   string `json:"dev"`
	Calls uint64 `json:"calls"` // that it has seen
	Fired uint64 `json:"fired"`
	Seed  uint64 `json:"seed"`
	Words string `json:"words"`
}

// Rows are all of them.
func (s *Faults) Rows() iter.Seq[any] {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []any
	for _, f := range s.list {
		rows = append(rows, faultRow{f.Device, f.seen, f.fired, f.seed, f.line})
	}
	return slices.Values(rows)
}
