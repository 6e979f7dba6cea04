package badnet

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/meter"
	"github.com/vrnic/vrnic/netstack/port/impair"
)

const (
	carrierTimeout = 10 * time.Second
	// setUpTime is how long a connection may take to come about: a bad network loses its segments,
	// too.
	setUpTime = 40 * time.Second
)

// A Goodput is what one measurement has come to.
type Goodput struct {
	Seed    uint64        `json:"seed"`
	Mbits   float64       `json:"mbit_s"` // of payload
	Connect time.Duration `json:"connect_ns"`
	// Retries is how many attempts to connect failed before.
	Retries int `json:"connect_retries,omitempty"`
	// Bridge is what the bridge did from the first attempt on, Missed how many frames came when it
	// was too far behind.
	Bridge BridgeReport `json:"bridge"`
	Missed uint64       `json:"missed,omitempty"`
	// Of the machine's processors while it was measured, 0 to 1: how much nobody needed, and how much
	// the measurement did, with its bridge, ends and daemons, and how much the machine, a virtual one,
	// did not get.
	Idle   float64 `json:"idle"`
	Own    float64 `json:"own"`
	Stolen float64 `json:"stolen"`
}

// What makes a figure the machine's rather than the network's.
const (
	leastIdle  = 0.02
	mostOwn    = 0.6
	mostStolen = 0.05
	lateShare  = 4 // of the round trip
	lateLeast  = 200 * time.Microsecond
)

// Limited says why a figure may be the machine's, or "".
func (g Goodput) Limited(c impair.Cell) string {
	switch {
	case g.Stolen > mostStolen:
		return fmt.Sprintf("%.0f %% of the processors' time was the hypervisor's", 100*g.Stolen)
	case g.Missed > 0:
		return "the bridge was behind"
	case g.Bridge.Late > max(lateLeast, c.RTT/lateShare):
		return fmt.Sprintf("the bridge was late by %v", g.Bridge.Late.Round(10*time.Microsecond))
	case g.Idle < leastIdle && g.Own > mostOwn:
		return fmt.Sprintf("no processor was idle, and this took %.0f %%", 100*g.Own)
	}
	return ""
}

// A flow is a connection with data going one way.
type flow interface {
	// received is how many octets of payload have come to the other end. It fails if the connection
	// is over.
	received() (uint64, error)
	pids() []int // of its processes, this one excepted
	close()
}

// A Run is one measurement: of a network, with a seed, for c.Length(Least).
type Run struct {
	Cell  impair.Cell
	Seed  uint64
	Least time.Duration
}

// measure connects over s, as bad as r says, and measures. connect is called again if it fails and
// there is time.
func (s *site) measure(
	ctx context.Context, r Run, connect func(context.Context) (flow, error),
) (g Goodput, err error) {
	g.Seed = r.Seed
	c := r.Cell
	missed, err := s.missed()
	if err != nil {
		return g, err
	}
	if err := s.begin(ctx, c.Schedule(r.Seed)); err != nil {
		return g, err
	}
	start := time.Now()
	dial, cancel := context.WithTimeout(ctx, setUpTime)
	defer cancel()
	var f flow
	for {
		if f, err = connect(dial); err == nil {
			break
		}
		if dial.Err() != nil {
			return g, fmt.Errorf("connect: %w", err)
		}
		g.Retries++
	}
	defer f.close()
	g.Connect = time.Since(start)
	if err := meter.Pause(ctx, c.WarmUp()); err != nil {
		return g, err
	}
	m, err := meter.New(append(f.pids(), s.bridge.PID()), nil)
	if err != nil {
		return g, err
	}
	before, from := processorTimes(), time.Now()
	first, err := f.received()
	if err != nil {
		return g, err
	}
	if err := meter.Pause(ctx, c.Length(r.Least)); err != nil {
		return g, err
	}
	last, err := f.received()
	if err != nil {
		return g, err
	}
	took := time.Since(from)
	cost, err := m.Read()
	if err != nil {
		return g, err
	}
	all, now := took.Seconds()*float64(processors()), processorTimes()
	g.Idle, g.Stolen = (now.idle-before.idle).Seconds()/all, (now.stolen-before.stolen).Seconds()/all
	g.Own = cost.CPU.Seconds() / all
	g.Mbits = float64(last-first) * 8 / 1e6 / took.Seconds()
	if g.Bridge, err = s.report(ctx); err != nil {
		return g, err
	}
	after, err := s.missed()
	g.Missed = after - missed
	return g, err
}

// times are those of all processors together.
type times struct{ idle, stolen time.Duration }

// processorTimes is how long processors have had nothing to do, and how long the hypervisor had
// them for something else: proc(5), the fourth, fifth and eighth number of /proc/stat's first line,
// in hundredths of a second.
func processorTimes() (t times) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	var n [8]int64
	line, _, _ := strings.Cut(string(b), "\n")
	if _, err := fmt.Sscan(strings.TrimPrefix(line, "cpu"), &n[0], &n[1], &n[2], &n[3], &n[4], &n[5],
		&n[6], &n[7]); err != nil {
		return t
	}
	const tick = 10 * time.Millisecond
	return times{idle: time.Duration(n[3]+n[4]) * tick, stolen: time.Duration(n[7]) * tick}
}

// processors is how many this process may run on.
func processors() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 1
	}
	return set.Count()
}
