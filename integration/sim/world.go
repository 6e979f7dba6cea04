package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/record"
)

// A world is two devices, each on a switch of its own, with a wire in between, or one device, and
// the time that passes.
type world struct {
	agenda   *agenda
	trace    *trace
	rng      *rand.Rand // of the wire's weather; see wireEnd for frames
	sides    [2]*side
	ends     [2]*wireEnd
	mu       sync.Mutex // held by who sends a frame, and to change the three below, or flights
	weather  weather
	up       bool      // the wire is
	upAgain  time.Time // when it will be, if it is not
	couriers bool      // who brings a frame handles it, as the reader of a TAP does
	path     path
	timer    *time.Timer
	pool     pool
	recorded func() error // ends the recording; nil: there is none
}

// A path is how the two sides reach each other.
type path int

const (
	overTCP path = iota
	overSCTP
	within // one device
	overRoCE
	withinRoCE
)

func (p path) String() string {
	return [...]string{"TCP", "SCTP", "loopback", "RoCE", "RoCE within a device"}[p]
}

// roce says that the devices speak RoCE, wired that there are two of them.
func (p path) roce() bool  { return p >= overRoCE }
func (p path) wired() bool { return p != within && p != withinRoCE }

// A side is a device with its stack.
type side struct {
	w     *world
	i     int
	addr  netip.Addr
	stack *netstack.Stack // nil on loopback
	net   *stacknet.Network
	dev   *vnic.Device
	fresh bool // frames have come that TCP has not handled
}

// seeded gives the same octets each time.
type seeded struct {
	mu sync.Mutex
	r  *rand.ChaCha8
}

func newSeeded(seed, n uint64) io.Reader {
	var s [32]byte
	for i := range 8 {
		s[i], s[8+i] = byte(seed>>(8*i)), byte(n>>(8*i))
	}
	return &seeded{r: rand.NewChaCha8(s)}
}

func (s *seeded) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Read(p)
}

// newWorld makes one. It runs in a bubble.
func newWorld(seed uint64, p path, v6, couriers, verbose bool) (*world, error) {
	mem, err := arena()
	if err != nil {
		return nil, err
	}
	w := &world{
		agenda: newAgenda(), trace: newTrace(verbose), rng: rand.New(rand.NewPCG(seed, 3)),
		up: true, path: p, couriers: couriers, timer: time.NewTimer(time.Hour),
		pool: pool{rest: mem, free: map[int][][]byte{}},
	}
	var sw [2]*ethswitch.Switch
	for i := range w.sides {
		w.sides[i] = &side{w: w, i: i}
		sw[i] = ethswitch.New(ethswitch.Config{})
		w.ends[i] = newWireEnd(w, i, seed)
	}
	w.ends[0].peer, w.ends[1].peer = w.ends[1], w.ends[0]
	for i, e := range w.ends {
		at, err := sw[i].Attach(ethswitch.PortOptions{Name: "wire", Kind: "memory"}, e)
		if err != nil {
			return nil, err
		}
		e.at.Store(at)
		e.courier = ethswitch.NewCourier(at)
	}
	w.weather = weather{delay: 50 * time.Microsecond}
	for i, s := range w.sides {
		if !p.wired() && i == 1 {
			s.dev, s.addr = w.sides[0].dev, w.sides[0].addr
			break
		}
		if err := s.start(sw[i], seed, v6); err != nil {
			return nil, err
		}
	}
	w.settle()
	return w, nil
}

// start makes a side's stack and device.
func (s *side) start(sw *ethswitch.Switch, seed uint64, v6 bool) error {
	addrs := []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.77.0.%d/24", s.i+1)),
		netip.MustParsePrefix(fmt.Sprintf("fd77::%d/64", s.i+1)),
	}
	s.addr = addrs[0].Addr()
	if v6 {
		s.addr = addrs[1].Addr()
	}
	cfg := vnic.Config{Name: fmt.Sprintf("vrnic%d", s.i), MTU: 1500, Addrs: addrs,
		RoCE: s.w.path.roce()}
	if s.w.path != within {
		var err error
		s.stack, err = netstack.NewStack(sw, netstack.Config{
			Name: cfg.Name, MAC: frame.MAC{2, 0, 0, 0, 0, byte(s.i + 1)}, Addrs: addrs,
			Clock: s.w.agenda, Rand: newSeeded(seed, uint64(s.i)),
		})
		if err != nil {
			return err
		}
		s.stack.Pause()
		s.net = stacknet.New(s.stack)
		cfg.Network, cfg.MAC = s.net, s.stack.MAC()
	}
	var err error
	s.dev, err = vnic.New(cfg)
	return err
}

// record has both devices recorded to out, until the world is closed.
func (w *world) record(out io.Writer) error {
	r := record.New(record.Meta{Version: "sim"})
	for i, s := range w.sides {
		if i == 0 || w.path.wired() {
			if _, err := s.dev.Record(r); err != nil {
				return err
			}
		}
	}
	done := make(chan error, 1)
	go func() { done <- r.Write(out) }()
	w.recorded = func() error {
		r.End("the run is over")
		return <-done
	}
	return nil
}

// settle returns when every goroutine waits for something that is still to come.
func (w *world) settle() {
	synctest.Wait()
	for again := true; again; {
		again = false
		for _, s := range w.sides {
			if s.fresh && s.stack != nil {
				s.fresh, again = false, true
				s.stack.Resume()
				s.stack.Pause()
			}
		}
		if again {
			synctest.Wait()
		}
	}
}

// pass lets the next thing happen, or d pass, whichever is sooner. true: something happened.
func (w *world) pass(d time.Duration) bool {
	limit := time.Now().Add(d)
	for {
		at, ok := w.agenda.next()
		if !ok || at.After(limit) {
			at = limit
		}
		if !w.up && w.upAgain.Before(at) {
			at = w.upAgain
		}
		wait := time.Until(at)
		if wait > 0 {
			w.timer.Reset(wait)
			select {
			case <-w.timer.C:
			case <-w.agenda.sooner:
				w.timer.Stop()
				w.settle()
				continue
			}
		}
		now := time.Now()
		if !w.up && !now.Before(w.upAgain) {
			w.heal()
			w.trace.say("the wire is whole")
		}
		it := w.agenda.take(now)
		if it == nil {
			if !now.Before(limit) {
				w.settle()
				return false
			}
			continue
		}
		k := kindTimer
		if it.frame {
			k = kindFrame
		}
		w.trace.step(k)
		if !it.frame {
			for _, s := range w.sides {
				s.fresh = true // it may have given TCP something to do
			}
		}
		it.f()
		w.settle()
		return true
	}
}

// cut cuts the wire for a time.
func (w *world) cut(d time.Duration) {
	w.mu.Lock()
	w.up, w.upAgain = false, time.Now().Add(d)
	w.mu.Unlock()
	w.trace.say("the wire is cut for %v", d)
}

// await calls f, which takes its time, and lets things happen until it returns; false: it does not.
func (w *world) await(f func() error, err *error) bool {
	var done atomic.Bool
	go func() {
		*err = f()
		done.Store(true)
	}()
	w.settle()
	for range 600 {
		if done.Load() {
			return true
		}
		for limit := time.Now().Add(100 * time.Millisecond); w.pass(time.Until(limit)); {
		}
	}
	return false
}

// heal makes the wire whole.
func (w *world) heal() {
	w.mu.Lock()
	w.up = true
	w.mu.Unlock()
}

// set sets the weather.
func (w *world) set(wt weather) {
	w.mu.Lock()
	w.weather = wt
	w.mu.Unlock()
}

// close ends everything. The program has closed what it has made.
func (w *world) close() {
	var err error
	for i, s := range w.sides {
		if i == 0 || w.path.wired() {
			w.await(s.dev.Close, &err)
		}
	}
	for _, s := range w.sides {
		if s.net != nil {
			w.await(s.net.Close, &err)
		}
	}
	if w.recorded != nil {
		w.await(w.recorded, &err)
	}
	w.timer.Stop()
	for _, s := range w.sides {
		if s.stack != nil {
			s.stack.Resume()
			s.stack.Close()
		}
	}
	for _, e := range w.ends {
		e.at.Load().Detach()
	}
}

// census says what devices have left of contexts that are closed.
func (w *world) census() error {
	for _, s := range w.sides {
		i := s.dev.DevInfo()
		if n := i.Contexts + i.PDs + i.MRs + i.MWs + i.CQs + i.SRQs + i.Keys + i.Ports + i.QPs + i.CMIDs +
			int(i.Pending) + i.HalfOpen; n > 0 {
			return fmt.Errorf("device %d, whose users have closed it, has %+v", s.i, i)
		}
	}
	return nil
}
