package lab

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vrnic/vrnic/netstack/detour"
	"github.com/vrnic/vrnic/netstack/port/impair"
)

// An Order asks for an impairment.
type Order struct {
	Target    string // a device, a port, or DEVICE/QPN
	Direction string // one of Directions
	Seed      uint64
	Words     string // lines, as impair.ParsePlan takes them
}

// Directions are those of packets: as the device sees them, or as who stands in the daemon sees
// those of a port that leads out of it.
var Directions = []string{"out", "in", "both"}

// String is o as ParseOrder takes it.
func (o *Order) String() string {
	return fmt.Sprintf("%s %d %s\n%s", o.Direction, o.Seed, o.Target, o.Words)
}

// ParseOrder reads an Order.
func ParseOrder(s string) (*Order, error) {
	head, words, _ := strings.Cut(s, "\n")
	parts := strings.SplitN(head, " ", 3)
	if len(parts) != 3 {
		return nil, fmt.Errorf("%q is no impairment", head)
	}
	seed, err := strconv.ParseUint(parts[1], 10, 64)
	o := &Order{Target: parts[2], Direction: parts[0], Seed: seed, Words: words}
	if err == nil {
		err = o.Check()
	}
	return o, err
}

// Check says what of o cannot be.
func (o *Order) Check() error {
	if !slices.Contains(Directions, o.Direction) {
		return fmt.Errorf("direction %q: want %s", o.Direction, strings.Join(Directions, ", "))
	}
	_, err := impair.ParsePlan(o.Words, o.Seed)
	return err
}

// A Target is what stands behind a name: Open has its packets go over out and in, either of which
// may be nil, until closed is called. Over, unless it is nil, reports whether the target is gone,
// and Outside how many of its queue pairs have no packets.
type Target struct {
	Name    string
	Open    func(out, in *detour.Road) (closed func(), err error)
	Over    func() bool
	Outside func() int
}

// lookEvery is how often it is looked for targets that are gone, of which nobody tells.
const lookEvery = time.Second

// Impairments are those of a daemon; the zero value has none.
type Impairments struct {
	mu   sync.Mutex
	list []*impairment // +checklocks:mu
	over bool          // +checklocks:mu
	// looks: look is called soon.
	looks bool // +checklocks:mu
}

type impairment struct {
	Order
	plan    impair.Plan
	begun   time.Time
	out, in *detour.Road
	closed  func()
	over    func() bool // nil: somebody says so
	outside func() int  // nil: of none that is known
}

// maxImpairments bounds those of a daemon.
const maxImpairments = 64

// Begin has o done to t, in place of what was done to it.
func (s *Impairments) Begin(o *Order, t Target) error {
	s.endOver()
	i := &impairment{Order: *o, begun: time.Now(), over: t.Over, outside: t.Outside}
	var err error
	if i.plan, err = impair.ParsePlan(o.Words, o.Seed); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(t.Name); err != nil {
		return err
	}
	if was := s.find(t.Name); was >= 0 {
		s.list[was].end()
		s.list = slices.Delete(s.list, was, was+1)
	}
	if o.Direction != "in" {
		i.out = detour.NewRoad(&i.plan, detour.Out, i.begun)
	}
	if o.Direction != "out" {
		i.in = detour.NewRoad(&i.plan, detour.In, i.begun)
	}
	if i.closed, err = t.Open(i.out, i.in); err != nil {
		i.end()
		return err
	}
	s.list = append(s.list, i)
	s.lookSoonLocked()
	return nil
}

// lookSoonLocked has look be called if a target may go of which nobody tells.
//
// +checklocks:s.mu
func (s *Impairments) lookSoonLocked() {
	if s.looks || !slices.ContainsFunc(s.list, func(i *impairment) bool { return i.over != nil }) {
		return
	}
	s.looks = true
	time.AfterFunc(lookEvery, s.look)
}

// look ends those whose targets are no more, though nobody asks for anything: as long as there is
// one its device is watched, and another connection may come to have the same addresses.
func (s *Impairments) look() {
	s.endOver()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = false
	s.lookSoonLocked()
}

// Room reports why there can be no impairment of that name, whatever it is.
func (s *Impairments) Room(name string) error {
	s.endOver()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomLocked(name)
}

// +checklocks:s.mu
func (s *Impairments) roomLocked(name string) error {
	if s.over || len(s.list) >= maxImpairments && s.find(name) < 0 {
		return fmt.Errorf("no more than %d impairments at once", maxImpairments)
	}
	return nil
}

// find is where the impairment of that name is; -1: there is none.
//
// +checklocks:s.mu
func (s *Impairments) find(name string) int {
	return slices.IndexFunc(s.list, func(i *impairment) bool { return i.Target == name })
}

// end has packets go straight on.
func (i *impairment) end() {
	if i.closed != nil {
		i.closed()
	}
	for _, r := range []*detour.Road{i.out, i.in} {
		if r != nil {
			r.Close()
		}
	}
}

// End ends that of name, or all of them if it is "".
func (s *Impairments) End(name string) error {
	if !s.endThose(func(i *impairment) bool { return name == "" || i.Target == name }) && name != "" {
		return fmt.Errorf("nothing is done to %s", name)
	}
	return nil
}

// Gone ends those of a port or device that is no more, and of its queue pairs.
func (s *Impairments) Gone(name string) {
	s.endThose(func(i *impairment) bool {
		return i.Target == name || strings.HasPrefix(i.Target, name+"/")
	})
}

// endOver ends those whose targets are no more.
func (s *Impairments) endOver() {
	s.endThose(func(i *impairment) bool { return i.over != nil && i.over() })
}

func (s *Impairments) endThose(which func(*impairment) bool) (any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(i *impairment) bool {
		if !which(i) {
			return false
		}
		any = true
		i.end()
		return true
	})
	return any
}

// Close ends all of them, and no others begin.
func (s *Impairments) Close() error {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	return s.End("")
}

// A row is one direction of an impairment, in LIST impair.
type row struct {
	Target    string `json:"target"`
	Direction string `json:"direction"`
	Packets   uint64 `json:"packets"`
	Lost      uint64 `json:"lost"`
	NoRoom    uint64 `json:"no_room"`
	Doubled   uint64 `json:"duplicated"`
	Corrupted uint64 `json:"corrupted"`
	Early     uint64 `json:"reordered"`
	Marked    uint64 `json:"marked"`
	Waiting   int    `json:"waiting"`
	Seed      uint64 `json:"seed"`
	Seconds   int64  `json:"seconds"`
	Outside   int    `json:"outside,omitempty"`
	Words     string `json:"words"`
}

// Rows are all of them.
func (s *Impairments) Rows() iter.Seq[any] {
	s.endOver()
	s.mu.Lock()
	list := slices.Clone(s.list)
	s.mu.Unlock()
	return func(yield func(any) bool) {
		for _, i := range list {
			for _, d := range []struct {
				name string
				road *detour.Road
			}{{"out", i.out}, {"in", i.in}} {
				if d.road == nil {
					continue
				}
				c, waiting := d.road.Stats()
				outside := 0
				if i.outside != nil {
					outside = i.outside()
				}
				if !yield(row{i.Target, d.name, c.Frames, c.Lost, c.Overflow, c.Doubled, c.Corrupted, c.Early,
					c.Marked, waiting, i.Seed, int64(time.Since(i.begun).Seconds()), outside,
					strings.ReplaceAll(strings.TrimSpace(i.Words), "\n", "; ")}) {
					return
				}
			}
		}
	}
}

// ErrHost is why streams of the kernel's are not impaired.
var ErrHost = errors.New("the kernel's TCP carries what is sent from an address of the host: " +
	"tc-netem(8) on its interface impairs it")
