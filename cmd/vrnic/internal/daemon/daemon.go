// Package daemon is where all layers meet: it puts userspace network namespaces (netstack) on one
// switch, an RNIC (vnic) on each, and lends them to client processes through rings (shm).
//
// A Daemon has one netstack.Stack, one vnic.Device per device, and ports that lead out. Each client
// process is a session; on each device that it uses it has a vnic.Context of its own, so that
// handles, STags, QPs and memory of two clients never meet. Numbers of the rings and of the RNIC
// are joined by the tables of tables.go.
//
// What New makes is undone in reverse order by Close, also when New fails half way. Devices and
// ports come and go while it runs: Reconfigure. The package daemontest starts daemons in tests.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/adversary"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/direct"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/lab"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/latency"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/logs"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/onlookers"
	"github.com/vrnic/vrnic/internal/limitlog"
	"github.com/vrnic/vrnic/ipoib/overroce"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/fault"
)

// A Daemon is running from New to Close.
type Daemon struct {
	log    *slog.Logger
	sw     *ethswitch.Switch
	beside vnic.Beside // devices of RoCE
	server *server.Server
	links  links
	ipoib  []*overroce.Link // as Config.IPoIB
	ready  chan struct{}    // closed at the end of New
	up     bool             // New has succeeded; read behind ready

	// changing is one slot: who changes the daemon has it.
	changing chan struct{}
	ending   sync.WaitGroup // devices on their way out

	mu sync.RWMutex
	// cfg is what it is made of now. Devices, Ports, Limits and Peers change, and are guarded by mu.
	cfg      Config
	devices  []*device             // each change makes another slice
	leaving  []*device             // taken from devices, and not gone yet; +checklocks:mu
	ports    []*outlet             // +checklocks:mu
	sessions map[*session]struct{} // +checklocks:mu

	confined  atomic.Pointer[Confinement] // what Confined was told
	closing   chan struct{}               // closed when Close begins
	onlookers onlookers.Set
	impaired  lab.Impairments
	faults    fault.Set
	undo      closers
	closeOnce sync.Once
	closeErr  error
	reclaim   reclaimer
}

// A device is an RNIC at a station, which two of different kinds may share.
type device struct {
	spec    DeviceSpec
	mac     [6]byte
	addrs   []netip.Prefix // in the order of its own
	station station
	vnic    *vnic.Device
	latency *latency.Totals // for metrics; nil: nobody wants to know
	// beside is one of RoCE at the same station, which carries datagrams of IP over InfiniBand; nil:
	// nobody has asked for it.
	beside    *vnic.Device
	over      bool              // of an IP interface: it comes and goes with that
	adversary *adversary.Device // nil: octets are placed in their order
	// gone is set before the device is taken away: nobody begins to use it then. Who begins holds
	// taking to read, so that who asks for the users and sets gone, with it to write, has all of them.
	gone   atomic.Bool
	taking sync.RWMutex
	direct direct.Directory
	// quiet: programs are told of no events: see Daemon.hush.
	quiet  atomic.Bool
	hushMu sync.Mutex
	// hushed: so many quiet times have begun and not ended.
	hushed int // +checklocks:hushMu
}

func (d *device) mtu() int { return d.station.MTU() }

// roce says whether the device speaks RoCE, and not iWARP.
func (d *device) roce() bool { return d.spec.RoCE }

// New makes all that cfg asks for. When it returns programs can connect. If it fails, what had
// been made is gone again. An error that is a *ConfigError is the asker's.
func New(cfg Config) (_ *Daemon, err error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if len(cfg.Devices) == 0 {
		cfg.Devices = []DeviceSpec{DefaultDevice()}
	}
	if cfg.SocketMode == 0 {
		cfg.SocketMode = 0o600
	}
	if cfg.Limits == (server.Limits{}) {
		cfg.Limits = server.DefaultLimits()
	}
	handler := slog.DiscardHandler
	if cfg.Log != nil {
		handler = limitlog.New(cfg.Log.Handler())
	}
	cfg.Devices, cfg.Ports = slices.Clone(cfg.Devices), slices.Clone(cfg.Ports)

	d := &Daemon{cfg: cfg, log: slog.New(handler), ready: make(chan struct{}),
		closing: make(chan struct{}), changing: make(chan struct{}, 1),
		sessions: make(map[*session]struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.undo.close())
		}
	}()
	// The socket comes first: a second daemon must fail before it touches any TAP. Sessions
	// wait until all is there.
	if err := d.listen(); err != nil {
		return nil, err
	}
	d.undo.add(d.reclaim.Close)
	d.undo.add(d.server.Close)
	defer func() { close(d.ready) }()
	d.sw = ethswitch.New(ethswitch.Config{})
	d.undo.add(d.sw.Close)
	d.undo.add(d.onlookers.Close)
	d.undo.add(d.closeDevices)
	for i := range cfg.Devices {
		if err := d.addDevice(cfg.Devices, i); err != nil {
			return nil, err
		}
	}
	interfaces, err := d.openIPoIB()
	if err != nil {
		return nil, err
	}
	d.undo.add(d.closePorts)
	for _, spec := range cfg.Ports {
		if err := d.addPort(spec, nil); err != nil {
			return nil, err
		}
	}
	for _, i := range interfaces {
		if err := d.addIPoIB(i); err != nil {
			return nil, fmt.Errorf("ipoib %s: %w", i.spec.Name, err)
		}
	}
	d.undo.add(d.finishStations)
	d.undo.add(d.impaired.Close)
	d.undo.add(func() error { return d.faults.End("") })
	d.undo.add(d.server.Close) // sessions end before what they use; a second call does nothing
	if slices.ContainsFunc(cfg.Ports, func(p PortSpec) bool { return p.Kind.silent() }) {
		for _, dev := range d.devices { // other ports say when there is somebody to ask
			d.findDuplicates(dev)
		}
	}
	d.up = true
	return d, nil
}

// listen makes the control socket.
func (d *Daemon) listen() error {
	limits := d.cfg.Limits
	guests, err := guest.Make(d.cfg.Containers, d.cfg.GuestNames(), d.within)
	if err != nil {
		return err
	}
	server, err := server.Listen(d.cfg.Socket, server.Config{
		NewSession: d.newSession, Mode: d.cfg.SocketMode, Group: d.cfg.SocketGroup, Limits: &limits,
		FD: d.cfg.SocketFD, Guests: guests, Direct: d.cfg.Direct,
		Log: d.log.With(logs.Part, "clients"),
	})
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	d.server = server
	return nil
}

// addDevice makes device i of specs, and the station below it, unless it shares that of another. Of
// those before it there are all, of those behind it perhaps none.
func (d *Daemon) addDevice(specs []DeviceSpec, i int) (err error) {
	spec := specs[i]
	defer func() {
		if err != nil {
			err = fmt.Errorf("device %s: %w", spec.Name, err)
		}
	}()
	at := stationOf(specs, i)
	var st station
	other, err := shares(specs, i)
	switch {
	case err != nil:
		return err
	case other >= 0:
		dev := d.device(specs[other].Name)
		st, at.MAC = dev.station, dev.mac
	default:
		if st, err = newStation(d.sw, at); err != nil {
			return err
		}
	}
	if _, err = d.addDeviceAt(spec, at.MAC, st); err != nil && other < 0 {
		return errors.Join(err, st.Finish(), st.Close())
	}
	return err
}

// addDeviceAt makes the device of spec at a station.
func (d *Daemon) addDeviceAt(spec DeviceSpec, mac [6]byte, st station) (*device, error) {
	addrs := spec.Addrs
	if len(addrs) == 0 {
		addrs = st.Addrs()
	}
	rnic, err := d.newRNIC(spec, mac, addrs, st)
	if err != nil {
		return nil, err
	}
	made := &device{spec: spec, mac: mac, addrs: addrs, station: st, vnic: rnic,
		direct: direct.Directory{Off: !d.cfg.Direct || spec.Adversary != 0}}
	if spec.Adversary != 0 {
		made.adversary = adversary.New(spec.Adversary)
	}
	if d.cfg.Latency {
		made.latency = new(latency.Totals)
		rnic.Observe(func(uint32) vnic.RequestWatcher { return made.latency })
	}
	d.mu.Lock()
	d.devices = append(slices.Clone(d.devices), made)
	d.mu.Unlock()
	d.tellLink() // which may be down
	return made, nil
}

// newRNIC makes the RNIC of spec at a station.
func (d *Daemon) newRNIC(spec DeviceSpec, mac [6]byte, addrs []netip.Prefix, st station) (
	*vnic.Device, error) {
	cfg := d.current()
	return vnic.New(cfg.Peers.config(vnic.Config{
		Name: spec.Name, MAC: mac, MTU: st.MTU(), Addrs: addrs, Network: st, Route: st.Route(),
		Beside: &d.beside, ForceWire: spec.ForceWire, RoCE: spec.RoCE, DCQCN: spec.DCQCN,
		Adverse: spec.Adversary != 0,
		Limits:  clientLimits(cfg.Limits), Log: d.log.With(logs.Part, "rdma"), OnCopied: st.Copied(),
	}))
}

// clientLimits are those of l that a device holds its users to.
func clientLimits(l server.Limits) vnic.Limits {
	return vnic.Limits{
		PD: l.PDs, MR: l.MRs, CQ: l.CQs, QP: l.QPs, CMID: l.CMIDs, SRQ: l.SRQs, MW: l.MWs,
		Depth: l.Depth, CQDepth: l.CQDepth,
		SGE: abi.MaxSGE, Inline: abi.MaxInline, MRTotal: maxRegistered,
	}
}

// maxRegistered bounds what the MRs of a session add up to. An MR pins nothing: what it costs is
// bounded by the memfds lent, and by the count of MRs.
const maxRegistered = 1 << 62

// deviceList are the devices that are there.
func (d *Daemon) deviceList() []*device {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.devices
}

// device is the one of that name; nil: there is none.
func (d *Daemon) device(name string) *device {
	for _, dev := range d.deviceList() {
		if dev.spec.Name == name {
			return dev
		}
	}
	return nil
}

// current is what d is made of now.
func (d *Daemon) current() Config {
	d.mu.RLock()
	defer d.mu.RUnlock()
	cfg := d.cfg
	cfg.Devices, cfg.Ports = slices.Clone(cfg.Devices), slices.Clone(cfg.Ports)
	return cfg
}

// finishStations ends what outlives queue pairs for a moment, such as SCTP's associations; their
// end takes a network.
func (d *Daemon) finishStations() error {
	var errs []error
	for _, dev := range d.deviceList() {
		errs = append(errs, dev.station.Finish())
	}
	return errors.Join(errs...)
}

// closeDevices takes all devices away, the last first, when nobody uses them any more.
func (d *Daemon) closeDevices() error {
	d.ending.Wait()
	var errs []error
	for _, dev := range slices.Backward(d.deviceList()) {
		if !dev.over {
			d.unlist(dev)
			errs = append(errs, d.end(dev))
		}
	}
	return errors.Join(errs...)
}

// unlist takes dev from the table, so that no session finds it from now on.
func (d *Daemon) unlist(dev *device) {
	dev.taking.Lock()
	dev.gone.Store(true)
	dev.taking.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.devices = slices.DeleteFunc(slices.Clone(d.devices), func(o *device) bool { return o == dev })
	d.leaving = append(d.leaving, dev)
}

// end closes dev, which is listed no more, and its station with the last device there. It waits for
// those who use it.
func (d *Daemon) end(dev *device) error {
	err := dev.vnic.Close()
	d.mu.Lock()
	d.leaving = slices.DeleteFunc(d.leaving, func(o *device) bool { return o == dev })
	shared := slices.ContainsFunc(slices.Concat(d.devices, d.leaving), func(o *device) bool {
		return o.station == dev.station
	})
	d.mu.Unlock()
	if shared {
		return err
	}
	return errors.Join(err, dev.station.Finish(), dev.station.Close())
}

// Socket is the path that programs connect to.
func (d *Daemon) Socket() string { return d.cfg.Socket }

// Devices are the specifications of the devices, in their order.
func (d *Daemon) Devices() (specs []DeviceSpec) {
	for _, dev := range d.deviceList() {
		specs = append(specs, dev.spec)
	}
	return specs
}

// ownSpecs are Devices without those of IP interfaces.
func (d *Daemon) ownSpecs() (specs []DeviceSpec) {
	for _, dev := range d.deviceList() {
		if !dev.over {
			specs = append(specs, dev.spec)
		}
	}
	return specs
}

// A Confinement is what the daemon's process has given up.
type Confinement struct {
	How string // for who lists it
	// Internet and Connects: it can still make sockets of the host, and connect to Unix
	// sockets.
	Internet, Connects bool
}

// Confined tells d that its process has given something up.
func (d *Daemon) Confined(c Confinement) { d.confined.Store(&c) }

// Run waits until ctx ends, which is no error, and closes d.
func (d *Daemon) Run(ctx context.Context) error {
	<-ctx.Done()
	return d.Close()
}

// Close ends all connections and removes what New made. It waits for what still runs.
func (d *Daemon) Close() error {
	d.closeOnce.Do(func() {
		close(d.closing)
		d.closeErr = d.undo.close()
	})
	return d.closeErr
}

// A closers is what has been made and must be undone, last made first undone.
type closers struct {
	list []func() error
}

func (c *closers) add(f func() error) { c.list = append(c.list, f) }

// close undoes all; it may be called again.
func (c *closers) close() error {
	var errs []error
	for len(c.list) > 0 {
		last := len(c.list) - 1
		f := c.list[last]
		c.list = c.list[:last]
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
