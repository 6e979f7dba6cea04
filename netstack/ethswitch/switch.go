package ethswitch

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gate"
)

// A Port is a link of a Switch, as the Switch uses it. Its methods may be called from several
// goroutines at once.
type Port interface {
	// Transmit sends f out of the port. f is good for the call only, as is d, which says who brings
	// it and may be nil. It must not wait for anything that another port does, and reports false if
	// it dropped the frame.
	Transmit(f *frame.Frame, d *Delivery) bool
	// Offloads reports whether Transmit takes frames of this kind, with checksums that are partial:
	// super-frames, or if it is GSONone frames of an ordinary length.
	Offloads(kind frame.GSO) bool
	// String says in a few words what the port is and what state it is in.
	String() string
}

// PortOptions describe a port to the Switch.
type PortOptions struct {
	Name string // unique in the Switch
	Kind string // "stack", "tap", "unix", "memory"
	// MAC, if not zero, is the port's only address: frames for it go nowhere else, and frames
	// from it come from nowhere else.
	MAC frame.MAC
	// Beside, if not "", is the name of a port with a MAC, a Sharer: the two ports are one station of
	// the network.
	Beside string
}

// PortStats counts what went through a port. A super-frame counts once. Rx is into the Switch, Tx
// out of it.
type PortStats struct {
	RxFrames, RxOctets, RxDrops uint64
	TxFrames, TxOctets, TxDrops uint64
}

// PortInfo is a snapshot of a port.
type PortInfo struct {
	Name, Kind, Detail string
	Offloads           bool
	MACs               []frame.MAC // behind the port: its own or learned
	PortStats
}

// Config is what a Switch can be given; the zero value will do.
type Config struct {
	Now func() time.Time // default time.Now
	// how long an address is remembered; default 5 minutes (802.1Q-2018, table 8-6)
	Ageing time.Duration
}

// A Switch is an Ethernet switch that learns: unicast goes where the address was last seen,
// everything else to all ports but the one it came from. It runs no spanning tree: a loop outside
// is the business of whoever made it. Its methods may be called from several goroutines at once.
type Switch struct {
	table table
	ports atomic.Pointer[[]*Attachment] // never changed in place

	mu     sync.Mutex // serialises changes of ports; guards closed
	closed bool       // +checklocks:mu
}

// New returns a Switch without ports.
func New(c Config) *Switch {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Ageing == 0 {
		c.Ageing = 5 * time.Minute
	}
	s := &Switch{table: table{now: c.Now, ageing: c.Ageing, entries: map[frame.MAC]*entry{}}}
	s.ports.Store(new([]*Attachment))
	return s
}

// An Attachment is the Switch's side of a port.
type Attachment struct {
	PortOptions
	sw   *Switch
	port Port
	in   *gate.Gate // around Input
	out  *gate.Gate // around Transmit

	beside atomic.Pointer[Attachment] // the other port of a station of two, or nil
	sharer Sharer                     // nil: the port cannot share its station

	behind behindPort // guarded by table.mu

	aside                       atomic.Pointer[aside] // nil: frames go straight on, unseen
	rxFrames, rxOctets, rxDrops atomic.Uint64
	txFrames, txOctets, txDrops atomic.Uint64
}

// Attach adds a port. Frames may come to it before Attach returns.
func (s *Switch) Attach(o PortOptions, p Port) (*Attachment, error) {
	if o.MAC.IsGroup() {
		return nil, fmt.Errorf("netstack: port %s: %v is a group address", o.Name, o.MAC)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("netstack: switch: %w", net.ErrClosed)
	}
	old := *s.ports.Load()
	for _, a := range old {
		if a.Name == o.Name {
			return nil, fmt.Errorf("netstack: there is a port %s already", o.Name)
		}
		if o.MAC != (frame.MAC{}) && a.MAC == o.MAC {
			return nil, fmt.Errorf("netstack: port %s has the address %v already", a.Name, o.MAC)
		}
	}
	a := &Attachment{PortOptions: o, sw: s, port: p, in: gate.New(), out: gate.New()}
	a.sharer, _ = p.(Sharer)
	if o.Beside != "" {
		if err := a.join(old); err != nil {
			return nil, err
		}
	}
	if o.MAC != (frame.MAC{}) {
		s.table.pin(o.MAC, a)
	}
	ports := append(slices.Clone(old), a)
	s.ports.Store(&ports)
	return a, nil
}

// Detach takes the port off the Switch and returns when no call of its Transmit or Input is running
// any more. It must not be called from inside one.
func (a *Attachment) Detach() {
	s := a.sw
	s.mu.Lock()
	ports := slices.DeleteFunc(slices.Clone(*s.ports.Load()),
		func(b *Attachment) bool { return a == b })
	s.ports.Store(&ports)
	if other := a.beside.Swap(nil); other != nil {
		other.beside.Store(nil)
	}
	s.mu.Unlock()
	a.in.Shut()
	a.out.Shut()
	s.table.forget(a)
	a.in.Wait()
	a.out.Wait()
	s.table.forget(a) // what an Input still running learned
}

// Deafen has the port get no frames any more, and returns when no call of its Transmit is running;
// it sends as before. It must not be called from inside one.
func (a *Attachment) Deafen() {
	a.out.Shut()
	a.out.Wait()
}

// Ports describes the ports in the order in which they came.
func (s *Switch) Ports() []PortInfo {
	var infos []PortInfo
	for _, a := range *s.ports.Load() {
		infos = append(infos, PortInfo{
			Name: a.Name, Kind: a.Kind, Detail: a.port.String(),
			Offloads: a.port.Offloads(frame.GSONone), MACs: a.macs(), PortStats: a.Stats(),
		})
	}
	return infos
}

// A PortTotal is what a port has counted.
type PortTotal struct {
	Name, Kind string
	PortStats
}

// Totals are the counters of the ports in the order in which they came. It takes no lock.
func (s *Switch) Totals() []PortTotal {
	var totals []PortTotal
	for _, a := range *s.ports.Load() {
		totals = append(totals, PortTotal{a.Name, a.Kind, a.Stats()})
	}
	return totals
}

// Close refuses new ports. Those there are stay until they are detached.
func (s *Switch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if n := len(*s.ports.Load()); n > 0 {
		return fmt.Errorf("netstack: switch closed with %d ports on it", n)
	}
	return nil
}

// Stats returns the port's counters.
func (a *Attachment) Stats() PortStats {
	return PortStats{
		RxFrames: a.rxFrames.Load(), RxOctets: a.rxOctets.Load(), RxDrops: a.rxDrops.Load(),
		TxFrames: a.txFrames.Load(), TxOctets: a.txOctets.Load(), TxDrops: a.txDrops.Load(),
	}
}

// CountDrop counts a frame that came in at the port and made no sense there.
func (a *Attachment) CountDrop() { a.rxDrops.Add(1) }

// errGroupSource and errNotYours are why Input refuses a well-formed frame.
var (
	errGroupSource = errors.New("netstack: frame from a group address")
	errNotYours    = errors.New("netstack: frame from an address that belongs to another port")
	errDetached    = fmt.Errorf("netstack: port is not on a switch: %w", net.ErrClosed)
)

// Input passes a frame that came in at the port to where it should go. It returns when every port
// has it, or says why it was dropped. f remains the caller's, but its octets may be gone.
func (a *Attachment) Input(f *frame.Frame) error { return a.Deliver(f, nil) }

// Deliver is Input for somebody who offers something: d may be nil.
func (a *Attachment) Deliver(f *frame.Frame, d *Delivery) error {
	if !a.in.Enter() {
		return errDetached
	}
	defer a.in.Leave()
	n := f.Len()
	dst, err := a.admit(f)
	if err != nil {
		a.rxDrops.Add(1)
		return err
	}
	a.rxFrames.Add(1)
	a.rxOctets.Add(uint64(n))
	if x := a.aside.Load(); x != nil {
		x.see(f, true)
		if x.take(f, true) {
			return nil
		}
	}
	a.forward(f, dst, d)
	return nil
}

// forward passes f to where dst is.
func (a *Attachment) forward(f *frame.Frame, dst frame.MAC, d *Delivery) {
	s := a.sw
	if !dst.IsGroup() {
		if to := s.table.lookup(dst); to != nil {
			if to != a && to.beside.Load() != a {
				to.transmitDivided(f, d)
			}
			return
		}
	} else if reserved(dst) {
		return
	}
	ports := *s.ports.Load()
	f.Shared = len(ports) > 2
	for _, to := range ports {
		if to != a && to.beside.Load() != a && to.wants(f) {
			to.transmit(f, d)
		}
	}
	f.Shared = false
}

// admit checks f and learns where it came from.
func (a *Attachment) admit(f *frame.Frame) (dst frame.MAC, err error) {
	if err := f.Check(); err != nil {
		return frame.MAC{}, err
	}
	dst, src := f.Addresses()
	switch {
	case src.IsGroup():
		return frame.MAC{}, errGroupSource
	case src == a.MAC, a.sharesMAC(src):
		return dst, nil
	case a.MAC != (frame.MAC{}):
		return frame.MAC{}, errNotYours
	case !a.sw.table.learn(src, a):
		return frame.MAC{}, errNotYours
	}
	return dst, nil
}

// reserved reports whether dst is for the neighbouring bridge only (802.1Q-2018, table 8-1).
func reserved(dst frame.MAC) bool {
	return dst[0] == 0x01 && dst[1] == 0x80 && dst[2] == 0xc2 && dst[3] == 0 && dst[4] == 0 &&
		dst[5] <= 0x0f
}

// transmit sends f out of a in the form that a takes.
func (a *Attachment) transmit(f *frame.Frame, d *Delivery) {
	if !a.out.Enter() {
		return
	}
	defer a.out.Leave()
	x := a.aside.Load()
	if x != nil && x.take(f, false) {
		return
	}
	if f.GSO == frame.GSONone && f.Csum != frame.CsumPartial || a.port.Offloads(f.GSO) {
		a.transmitOne(f, d, x)
		return
	}
	f.Plain(func(p *frame.Frame) bool {
		a.transmitOne(p, d, x)
		return true
	})
}

func (a *Attachment) transmitOne(f *frame.Frame, d *Delivery, x *aside) {
	n := f.Len()
	if x != nil {
		x.see(f, false)
	}
	if !a.port.Transmit(f, d) {
		a.txDrops.Add(1)
		return
	}
	a.txFrames.Add(1)
	a.txOctets.Add(uint64(n))
}
