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

	"github.com/vrnic/vrnic/internal/limitlog"
	"github.com/vrnic/vrnic/ipoib/overroce"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// A Daemon is running from New to Close.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	sw      *ethswitch.Switch
	devices []*device
	beside  vnic.Beside // those of RoCE
	server  *server.Server
	links   links
	ipoib   []*overroce.Link // as Config.IPoIB
	ready   chan struct{}    // closed at the end of New
	up      bool             // New has succeeded; read behind ready

	confined  atomic.Pointer[string] // what Confined was told
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
	// beside is one of RoCE at the same station, which carries datagrams of IP over InfiniBand; nil:
	// nobody has asked for it.
	beside *vnic.Device
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

	d := &Daemon{cfg: cfg, log: slog.New(handler), ready: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.undo.close())
		}
	}()
	// The socket comes first: a second daemon must fail before it touches any TAP. Sessions wait
	// until all is there.
	if err := d.listen(); err != nil {
		return nil, err
	}
	d.undo.add(d.reclaim.Close)
	d.undo.add(d.server.Close)
	defer func() { close(d.ready) }()
	d.sw = ethswitch.New(ethswitch.Config{})
	d.undo.add(d.sw.Close)
	for i, spec := range cfg.Devices {
		if err := d.addDevice(i); err != nil {
			return nil, fmt.Errorf("device %s: %w", spec.Name, err)
		}
	}
	interfaces, err := d.openIPoIB()
	if err != nil {
		return nil, err
	}
	for _, spec := range cfg.Ports {
		if err := d.addPort(spec); err != nil {
			return nil, fmt.Errorf("port %s: %w", spec, err)
		}
	}
	for _, i := range interfaces {
		if err := d.addIPoIB(i); err != nil {
			return nil, fmt.Errorf("ipoib %s: %w", i.spec.Name, err)
		}
	}
	for _, dev := range d.devices {
		// SCTP's associations outlive their QPs for a moment; their end takes a network.
		d.undo.add(dev.station.Finish)
	}
	d.undo.add(d.server.Close) // sessions end before what they use; a second call does nothing
	if slices.ContainsFunc(cfg.Ports, func(p PortSpec) bool { return p.Kind == PortTap }) {
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
	server, err := server.Listen(d.cfg.Socket, server.Config{
		NewSession: d.newSession, Mode: d.cfg.SocketMode, Group: d.cfg.SocketGroup, Limits: &limits,
		Log: d.log,
	})
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	d.server = server
	return nil
}

// addDevice makes device i, and the station below it, unless it shares that of another.
func (d *Daemon) addDevice(i int) error {
	spec := d.cfg.Devices[i]
	at := stationOf(d.cfg.Devices, i)
	var st station
	other, err := shares(d.cfg.Devices, i)
	switch {
	case err != nil:
		return err
	case other >= 0:
		st = d.devices[other].station
		at.MAC = d.devices[other].mac
	default:
		if st, err = newStation(d.sw, at); err != nil {
			return err
		}
		d.undo.add(st.Close)
		d.undo.add(st.Finish)
	}
	return d.addDeviceAt(spec, at.MAC, st)
}

// addDeviceAt makes the device of spec at a station.
func (d *Daemon) addDeviceAt(spec DeviceSpec, mac [6]byte, st station) error {
	addrs := spec.Addrs
	if len(addrs) == 0 {
		addrs = st.Addrs()
	}
	dev, err := d.newRNIC(spec, mac, addrs, st)
	if err != nil {
		return err
	}
	d.devices = append(d.devices, &device{spec: spec, mac: mac, addrs: addrs, station: st, vnic: dev})
	return nil
}

// newRNIC makes the RNIC of spec at a station.
func (d *Daemon) newRNIC(spec DeviceSpec, mac [6]byte, addrs []netip.Prefix, st station) (
	*vnic.Device, error) {
	l := d.cfg.Limits
	dev, err := vnic.New(d.cfg.Peers.config(vnic.Config{
		Name: spec.Name, MAC: mac, MTU: st.MTU(), Addrs: addrs, Network: st, Route: st.Route(),
		Beside: &d.beside, ForceWire: spec.ForceWire, RoCE: spec.RoCE, DCQCN: spec.DCQCN,
		Limits: vnic.Limits{
			PD: l.PDs, MR: l.MRs, CQ: l.CQs, QP: l.QPs, CMID: l.CMIDs, SRQ: l.SRQs, MW: l.MWs,
			Depth: l.Depth, CQDepth: l.CQDepth,
			SGE: abi.MaxSGE, Inline: abi.MaxInline, MRTotal: maxRegistered,
		},
		Log: d.log,
	}))
	if err == nil {
		d.undo.add(dev.Close)
	}
	return dev, err
}

// maxRegistered bounds what the MRs of a session add up to. An MR pins nothing: what it costs is
// bounded by the memfds lent, and by the count of MRs.
const maxRegistered = 1 << 62

func (d *Daemon) addPort(spec PortSpec) error {
	onLink := d.onLink(spec)
	if spec.Share {
		return d.addShared(spec, onLink)
	}
	d.links.add()
	switch spec.Kind {
	case PortTap:
		tap, err := port.OpenTAP(d.sw, port.TAPConfig{Name: spec.Name, NetNS: spec.NetNS,
			Addrs: spec.Addrs, MTU: spec.MTU, OnLink: onLink})
		if err != nil {
			return err
		}
		d.undo.add(tap.Close)
	case PortUnixListen:
		u, err := port.ListenUnix(d.sw, port.UnixConfig{Path: spec.Path, OnLink: onLink})
		if err != nil {
			return err
		}
		d.undo.add(u.Close)
	case PortUnixConnect:
		u, err := port.ConnectUnix(d.sw, port.UnixConfig{Path: spec.Path, OnLink: onLink})
		if err != nil {
			return err
		}
		d.undo.add(u.Close)
	default:
		return &ConfigError{fmt.Errorf("unknown kind %v", spec.Kind)}
	}
	return nil
}

// Socket is the path that programs connect to.
func (d *Daemon) Socket() string { return d.cfg.Socket }

// Devices are the specifications of the devices, in their order.
func (d *Daemon) Devices() []DeviceSpec { return slices.Clone(d.cfg.Devices) }

// Confined tells d what its process has given up, for who lists it.
func (d *Daemon) Confined(how string) { d.confined.Store(&how) }

// Run waits until ctx ends, which is no error, and closes d.
func (d *Daemon) Run(ctx context.Context) error {
	<-ctx.Done()
	return d.Close()
}

// Close ends all connections and removes what New made. It waits for what still runs.
func (d *Daemon) Close() error {
	d.closeOnce.Do(func() { d.closeErr = d.undo.close() })
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
