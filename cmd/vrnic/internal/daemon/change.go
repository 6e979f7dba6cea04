package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// This file changes a daemon that runs. Whatever asks for it, it is one change from what the daemon
// is made of to what it is to be made of, checked as a whole before anything is touched.

// A change is what has to be done.
type change struct {
	next Config

	delPorts   []*outlet
	delDevices []*device
	addDevices []DeviceSpec
	addPorts   []PortSpec

	shut []*ethswitch.Diversion // of ports that are deleted unless somebody uses them
}

// A shutter lets nothing through a port.
type shutter struct{}

// Take implements ethswitch.Detour.
func (shutter) Take(*ethswitch.Diversion, *frame.Frame, bool) bool { return true }

// open has the ports of c that are there let frames through again.
func (c *change) open() {
	for _, v := range c.shut {
		v.End()
	}
	c.shut = nil
}

// errInUse is in the error of a change that would end connections.
var errInUse = errors.New("in use")

// removeTime is how long a change waits for the end of those who use a device. It goes on behind
// it: until then the name and the addresses are taken.
const removeTime = 10 * time.Second

// change waits until nobody else changes d, and keeps others from it until changed is called.
func (d *Daemon) change(ctx context.Context) (changed func(), err error) {
	select {
	case d.changing <- struct{}{}:
		return func() { <-d.changing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Reconfigure makes d what edit makes of its configuration, or leaves it as it is. force: also if
// that ends connections. lent is for the port that is added, if there is one. Changes wait for each
// other, until ctx ends.
func (d *Daemon) Reconfigure(ctx context.Context, force bool, lent *Lent,
	edit func(*Config) error) error {
	changed, err := d.change(ctx)
	if err != nil {
		return err
	}
	defer changed()
	next := d.current()
	if err := edit(&next); err != nil {
		return &ConfigError{err}
	}
	c, err := d.plan(next, lent)
	if err == nil && !force {
		err = d.claim(c)
	}
	if err != nil {
		return err
	}
	return d.apply(c, lent)
}

// Reload has the daemon made as its file has it now.
func (d *Daemon) Reload(ctx context.Context, force bool) error {
	read := d.current().Reload
	if read == nil {
		return &ConfigError{errors.New("this daemon has no file: start it with vrnic up --config FILE")}
	}
	next, err := read()
	if err != nil {
		return &ConfigError{err}
	}
	if len(next.Devices) == 0 {
		next.Devices = []DeviceSpec{DefaultDevice()}
	}
	err = d.Reconfigure(ctx, force, nil, func(c *Config) error {
		now, then := *c, next
		for _, s := range now.Devices {
			if s.Container {
				then.Devices = append(slices.Clone(then.Devices), s)
			}
		}
		for _, p := range now.Ports {
			if p.Container {
				then.Ports = append(slices.Clone(then.Ports), p)
			}
		}
		now.Devices, now.Ports, now.Limits, now.Peers = then.Devices, then.Ports, then.Limits, then.Peers
		for _, s := range now.Settings() {
			if !slices.Contains(then.Settings(), s) {
				return restart(s.Key)
			}
		}
		for _, s := range then.Settings() {
			if !slices.Contains(now.Settings(), s) {
				return restart(s.Key)
			}
		}
		*c = now
		return nil
	})
	if err == nil {
		d.log.Info("the configuration has been read again")
	}
	return err
}

func restart(key string) error {
	return fmt.Errorf("%s cannot change while the daemon runs: end it and start another one", key)
}

// plan is what makes d as next has it. An error is a *ConfigError.
func (d *Daemon) plan(next Config, lent *Lent) (*change, error) {
	now := d.current()
	// A container's device ends with the container, whatever is left: so it is not the one that stays.
	stays := func(s DeviceSpec) bool { return !s.Container }
	if slices.ContainsFunc(now.Devices, stays) && !slices.ContainsFunc(next.Devices, stays) {
		return nil, &ConfigError{errors.New("a daemon has one device at least that is not a container's")}
	}
	if err := next.CheckSpecs(); err != nil {
		return nil, err
	}
	c := &change{next: next}
	for _, dev := range d.deviceList() {
		switch i := indexOf(next.Devices, dev.spec.String()); {
		case dev.over && slices.ContainsFunc(next.Devices, func(s DeviceSpec) bool {
			return s.Name == dev.spec.Name
		}):
			return nil, &ConfigError{fmt.Errorf("device %s is that of an IP interface", dev.spec.Name)}
		case dev.over:
		case i < 0:
			c.delDevices = append(c.delDevices, dev)
		case stationOf(next.Devices, i).String() != stationOf(now.Devices,
			indexOf(now.Devices, dev.spec.String())).String():
			// What two devices share is made for both.
			return nil, &ConfigError{fmt.Errorf("device %s would need another MAC, MTU or timeout for the "+
				"one that has its addresses too: leave them out there, or delete it first", dev.spec.Name)}
		}
	}
	for _, s := range next.Devices {
		if indexOf(now.Devices, s.String()) < 0 {
			c.addDevices = append(c.addDevices, s)
		}
	}
	for _, p := range d.portList() {
		if indexOf(next.Ports, p.spec.String()) < 0 {
			c.delPorts = append(c.delPorts, p)
		}
	}
	for _, s := range next.Ports {
		if indexOf(now.Ports, s.String()) < 0 {
			c.addPorts = append(c.addPorts, s)
		}
	}
	if err := d.able(c, lent); err != nil {
		return nil, &ConfigError{err}
	}
	return c, nil
}

// indexOf is where the specification is that spec prints; -1: nowhere.
func indexOf[S fmt.Stringer](specs []S, spec string) int {
	return slices.IndexFunc(specs, func(s S) bool { return s.String() == spec })
}

// able says what of c this process cannot make any more, and which names are taken still.
func (d *Daemon) able(c *change, lent *Lent) error {
	var confined Confinement
	on := d.confined.Load()
	if on != nil {
		confined = *on
	}
	d.mu.RLock()
	leaving := d.leaving
	d.mu.RUnlock()
	for _, s := range c.addDevices {
		if s.Host.IsValid() && on != nil && !confined.Internet {
			return fmt.Errorf("device %s: the daemon has given up to make sockets of the host: start it "+
				"with a host= device, or with --sandbox off", s.Name)
		}
		for _, dev := range leaving {
			if _, both := commonAddr(dev.addrs, s.own()); both || dev.spec.Name == s.Name {
				return fmt.Errorf("device %s has not ended yet: a program hangs that uses it", dev.spec.Name)
			}
		}
	}
	for _, dev := range c.delDevices {
		for _, i := range c.next.IPoIB {
			if d.device(i.Device).station == dev.station {
				return fmt.Errorf("device %s carries IP interface %s", dev.spec.Name, i.Name)
			}
		}
		for _, p := range d.portList() {
			specs := d.ownSpecs()
			with, err := p.spec.sharedWith(specs)
			if p.spec.Share && err == nil && !slices.Contains(c.delPorts, p) &&
				d.device(specs[with].Name).station == dev.station {
				return fmt.Errorf("device %s shares its addresses with port %s: delete that first",
					dev.spec.Name, p.spec.name())
			}
		}
	}
	for _, s := range c.addPorts {
		if lent != nil && s.Kind != PortTap {
			return fmt.Errorf("port %s takes no descriptor", s)
		}
		var give string
		switch {
		case s.Share && lent == nil && on != nil:
			give = "to make TAPs: start it with that port, or with --sandbox off"
		case s.Kind == PortTap && lent == nil && on != nil:
			give = "to make TAPs: vrnic port add " + s.String() + " hands it one"
		case s.Kind == PortUnixListen && on != nil:
			give = "to listen: start it with that port, or with --sandbox off"
		case s.Kind == PortVXLAN && on != nil && !confined.Internet:
			give = "to make sockets of the host: start it with that port, or with --sandbox off"
		case s.Kind == PortUnixConnect && on != nil && !confined.Connects:
			give = "to connect: start it with a unix-connect port, or with --sandbox off"
		default:
			continue
		}
		return fmt.Errorf("port %s: the daemon has given up %s", s, give)
	}
	return nil
}

// claim takes the devices and ports that c deletes from those who would begin to use them, or says
// which connections c would end, and nobody has noticed: what a port has not let through meanwhile
// is as if a network had lost it, and sent again.
func (d *Daemon) claim(c *change) error {
	for _, dev := range c.delDevices {
		dev.taking.Lock()
		defer dev.taking.Unlock()
	}
	for _, p := range c.delPorts {
		if v, err := d.sw.Divert(p.spec.name(), shutter{}); err == nil { // else it is none any more
			c.shut = append(c.shut, v)
		}
	}
	if err := d.harm(c); err != nil {
		c.open()
		return err
	}
	for _, dev := range c.delDevices {
		dev.gone.Store(true)
	}
	return nil
}

// harm says which connections c would end. Nobody begins to use its devices meanwhile.
func (d *Daemon) harm(c *change) error {
	for _, dev := range c.delDevices {
		var who []string
		for _, s := range d.users(dev) {
			who = append(who, fmt.Sprintf("pid %d (%q)", s.shm.Peer().PID, s.shm.Comm()))
		}
		if len(who) > 0 {
			return fmt.Errorf("device %s is %w by %s; with --force they lose it", dev.spec.Name, errInUse,
				shortList(who))
		}
	}
	for _, p := range c.delPorts {
		if n := d.through(p); n > 0 {
			return fmt.Errorf("port %s is %w: %d connections lead out of this daemon; --force takes it "+
				"away all the same", p.spec.name(), errInUse, n)
		}
	}
	return nil
}

// shortList names the first of many.
func shortList(s []string) string {
	const most = 4
	if n := len(s) - most; n > 0 {
		s = append(slices.Clone(s[:most]), fmt.Sprintf("%d more", n))
	}
	return strings.Join(s, ", ")
}

func (d *Daemon) sessionList() []*session {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Collect(maps.Keys(d.sessions))
}

// users are the sessions that use dev.
func (d *Daemon) users(dev *device) (using []*session) {
	for _, s := range d.sessionList() {
		if sd := s.on(dev); sd != nil && sd.inUse() {
			using = append(using, s)
		}
	}
	slices.SortFunc(using, func(a, b *session) int { return int(a.shm.ID()) - int(b.shm.ID()) })
	return using
}

// through is how many connections may go through p: those with somebody outside of the daemon, if
// there is anybody behind p.
func (d *Daemon) through(p *outlet) (n int) {
	ports := d.sw.Ports()
	i := slices.IndexFunc(ports, func(i ethswitch.PortInfo) bool { return i.Name == p.spec.name() })
	if i < 0 || len(ports[i].MACs) == 0 {
		return 0
	}
	devices := d.deviceList()
	for _, dev := range devices {
		if !dev.station.OnSwitch() || dev.over {
			continue
		}
		for q := range dev.vnic.EachQP(nil) {
			remote := q.Remote.Addr()
			if q.Attr != nil && q.Attr.PathMTU != 0 {
				remote = q.Attr.Path.GID.Addr()
			}
			if remote.IsValid() && !slices.ContainsFunc(devices, func(o *device) bool {
				return o.owns(remote)
			}) {
				n++
			}
		}
	}
	return n
}

// apply makes c, whether or not who asked for it is still there: half a change is of no use to
// anybody. When it fails d is as it was, but for connections that were to be ended and what cannot
// be made again: the error says which.
func (d *Daemon) apply(c *change, lent *Lent) error {
	var back closers
	var added []string // devices
	wayOut := false    // one is added that does not tell when there is somebody to ask
	fail := func(err error) error {
		err = errors.Join(err, back.close())
		c.open()
		for _, dev := range c.delDevices {
			dev.gone.Store(!slices.Contains(d.deviceList(), dev)) // what was not deleted is there again
		}
		d.keepWhatIs()
		return err
	}
	// What needs no room comes first, so that it may fail while nothing is gone.
	now := d.current()
	for _, early := range []bool{true, false} {
		if !early {
			for _, p := range c.delPorts {
				if err := d.removePort(p); err != nil {
					d.log.Warn("a port did not end well", "port", p.spec.name(), "err", err)
				}
				back.add(func() error { return d.addPort(p.spec, nil) })
				now.Ports = slices.DeleteFunc(now.Ports, func(s PortSpec) bool {
					return s.String() == p.spec.String()
				})
			}
			for _, dev := range c.delDevices {
				d.remove(dev)
				now.Devices = slices.DeleteFunc(now.Devices, func(s DeviceSpec) bool {
					return s.Name == dev.spec.Name
				})
				specs := append(slices.Clone(now.Devices), dev.spec)
				back.add(func() error { return d.addDevice(specs, len(specs)-1) })
			}
		}
		for _, s := range slices.Clone(c.addDevices) {
			then := now
			then.Devices = append(slices.Clone(now.Devices), s)
			if early && then.CheckSpecs() != nil {
				continue
			}
			if err := d.addDevice(then.Devices, len(then.Devices)-1); err != nil {
				return fail(err)
			}
			c.addDevices = slices.DeleteFunc(c.addDevices, func(o DeviceSpec) bool {
				return o.Name == s.Name
			})
			back.add(func() error { d.remove(d.device(s.Name)); return nil })
			added = append(added, s.Name)
			now = then
		}
		for _, s := range slices.Clone(c.addPorts) {
			then := now
			then.Ports = append(slices.Clone(now.Ports), s)
			if early && then.CheckSpecs() != nil {
				continue
			}
			if err := d.addPort(s, lent); err != nil {
				return fail(err)
			}
			c.addPorts = slices.DeleteFunc(c.addPorts, func(o PortSpec) bool {
				return o.String() == s.String()
			})
			back.add(func() error { return d.removePort(d.portList()[len(d.portList())-1]) })
			wayOut = wayOut || s.Kind.silent()
			now = then
		}
	}
	d.server.SetLimits(c.next.Limits)
	d.mu.Lock()
	d.cfg.Devices, d.cfg.Ports = c.next.Devices, c.next.Ports
	d.cfg.Limits, d.cfg.Peers = c.next.Limits, c.next.Peers
	d.mu.Unlock()
	for _, dev := range d.deviceList() {
		if wayOut || slices.Contains(added, dev.spec.Name) {
			d.findDuplicates(dev)
		}
	}
	return nil
}

// keepWhatIs takes out of the configuration what is no longer there.
func (d *Daemon) keepWhatIs() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg.Devices = slices.DeleteFunc(slices.Clone(d.cfg.Devices), func(s DeviceSpec) bool {
		return !slices.ContainsFunc(d.devices, func(dev *device) bool {
			return dev.spec.String() == s.String()
		})
	})
	ports := d.ports
	d.cfg.Ports = slices.DeleteFunc(slices.Clone(d.cfg.Ports), func(s PortSpec) bool {
		return !slices.ContainsFunc(ports, func(p *outlet) bool { return p.spec.String() == s.String() })
	})
}

// remove takes dev away. Programs that use it hear that their device is gone: their sessions end,
// as if the daemon had. It returns when dev and its addresses are free, or after removeTime.
func (d *Daemon) remove(dev *device) {
	d.unlist(dev)
	d.impaired.Gone(dev.spec.Name)
	d.faults.Gone(dev.spec.Name)
	gone := fmt.Errorf("device %s was deleted", dev.spec.Name)
	for _, s := range d.users(dev) {
		s.log.Warn("a program loses its device", "device", dev.spec.Name, "pid", s.shm.Peer().PID)
		s.shm.Fail(gone)
	}
	done := make(chan struct{})
	d.ending.Go(func() {
		defer close(done)
		if err := d.end(dev); err != nil {
			d.log.Warn("a device did not end well", "device", dev.spec.Name, "err", err)
		}
	})
	late := time.NewTimer(removeTime)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		d.log.Warn("a device has not ended yet: a program hangs that uses it", "device", dev.spec.Name)
	case <-d.closing:
	}
}

// Control carries out a change that a client asks for.
func (s *session) Control(req *rpc.ControlRequest, fd int) (taken bool, err error) {
	key, value := rpc.CString(req.Key[:]), rpc.CString(req.Value[:])
	switch req.Verb {
	case rpc.ControlCapture, rpc.ControlLatency, rpc.ControlTrace, rpc.ControlRecord:
		return fd >= 0, s.onlooker(req.Verb, key, value, fd)
	}
	if key == "impair" || key == "fault" {
		act := s.d.impair
		if key == "fault" {
			act = s.d.fault
		}
		// What it is for is not deleted meanwhile.
		changed, err := s.d.change(s.shm.Context())
		if err != nil {
			return false, err
		}
		err = act(req.Verb, value)
		changed()
		if err != nil {
			return false, &server.Refusal{Errno: syscall.EINVAL, Why: err.Error()}
		}
		s.log.Info(key, "verb", req.Verb, "what", value, "uid", s.shm.Peer().UID)
		return false, nil
	}
	force := req.Flags&rpc.ControlForce != 0
	var lent *Lent
	if fd >= 0 {
		if req.Verb != rpc.ControlAdd || key != "port" {
			return false, syscall.EINVAL
		}
		lent = &Lent{FD: fd, TAPKind: port.TAPKind{Offloads: req.Flags&rpc.ControlOffloads != 0,
			UDP: req.Flags&rpc.ControlUDP != 0}}
	}
	ctx := s.shm.Context()
	if req.Verb == rpc.ControlReload {
		err = s.d.Reload(ctx, force)
	} else {
		err = s.d.Reconfigure(ctx, force, lent, func(c *Config) error {
			return c.edit(req.Verb, key, value)
		})
	}
	if err == nil {
		s.log.Info("changed", "verb", req.Verb, "key", key, "value", value, "uid", s.shm.Peer().UID)
		return lent != nil, nil
	}
	code := syscall.EIO
	if wrong := (*ConfigError)(nil); errors.As(err, &wrong) {
		code = syscall.EINVAL
	} else if errors.Is(err, errInUse) {
		code = syscall.EBUSY
	}
	return false, &server.Refusal{Errno: code, Why: err.Error()}
}

// onlooker has somebody look at d over the socket fd, which is d's from now on.
func (s *session) onlooker(verb uint32, key, value string, fd int) (err error) {
	what := "capture"
	switch verb {
	case rpc.ControlLatency:
		what, err = "latency", s.d.measure(strings.Split(value, "\n"), fd)
	case rpc.ControlTrace:
		what, err = "trace", s.d.trace(value, fd)
	case rpc.ControlRecord:
		what, err = "record", s.d.record(strings.Split(value, "\n"), fd)
	default:
		err = s.d.capture(key, strings.Split(value, "\n"), fd)
	}
	if err != nil {
		return &server.Refusal{Errno: syscall.EINVAL, Why: err.Error()}
	}
	s.log.Info(what, "of", value, "uid", s.shm.Peer().UID)
	return nil
}

// edit does to c what the verb says.
func (c *Config) edit(verb uint32, key, value string) error {
	switch {
	case key == "device" && verb == rpc.ControlAdd:
		spec, err := ParseDevice(value)
		c.Devices = append(c.Devices, spec)
		return err
	case key == "device" && verb == rpc.ControlDel:
		return remove(&c.Devices, "device", value, func(s DeviceSpec) string { return s.Name })
	case key == "device" && verb == rpc.ControlSet:
		return c.setDevice(value)
	case key == "port" && verb == rpc.ControlAdd:
		spec, err := ParsePort(value)
		c.Ports = append(c.Ports, spec)
		return err
	case key == "port" && verb == rpc.ControlDel:
		return remove(&c.Ports, "port", strings.TrimPrefix(value, PortTap.String()+":"), PortSpec.name)
	case key == "limit" && verb == rpc.ControlSet:
		return c.SetLimit(value)
	}
	return fmt.Errorf("%q cannot be changed in this way while the daemon runs", key)
}

// remove takes the one of that name from specs.
func remove[S any](specs *[]S, what, name string, nameOf func(S) string) error {
	i := slices.IndexFunc(*specs, func(s S) bool { return nameOf(s) == name })
	if i < 0 {
		return fmt.Errorf("there is no %s %s", what, name)
	}
	*specs = slices.Delete(*specs, i, i+1)
	return nil
}

// setDevice changes options of a device: s is NAME,option=value... What s has takes the place of
// what the device has of the same options.
func (c *Config) setDevice(s string) error {
	name, options, _ := strings.Cut(s, ",")
	i := slices.IndexFunc(c.Devices, func(d DeviceSpec) bool { return d.Name == name })
	if i < 0 {
		return fmt.Errorf("there is no device %s", name)
	}
	if options == "" {
		return fmt.Errorf("what of device %s? Add ,option=value", name)
	}
	parts := strings.Split(options, ",")
	_, has, _ := strings.Cut(c.Devices[i].String(), ",")
	for old := range strings.SplitSeq(has, ",") {
		option, _, _ := strings.Cut(old, "=")
		if !slices.ContainsFunc(parts, func(p string) bool { return strings.HasPrefix(p, option+"=") }) {
			name += "," + old
		}
	}
	spec, err := ParseDevice(name + "," + options)
	c.Devices[i] = spec
	return err
}
