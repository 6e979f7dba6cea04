package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/port"
)

// An outlet is a port of the switch that leads out, from addPort to its close.
type outlet struct {
	spec  PortSpec
	close func() error
	// shares is the station that has its addresses on the kernel's side, too, which is in the network
	// namespace of that cookie; nil: it leads out.
	shares station
	netns  uint64
	down   bool // guarded by links.mu
}

// links are the daemon's ports that lead out. A device has a network as long as one of them may
// carry something. A Unix stream always may: that it has no peer is no fault, and one can come at
// any time. A TAP may not while its device is gone or down.
type links struct {
	mu    sync.Mutex
	ports []*outlet // +checklocks:mu
}

// tellLink has the devices know whether they have a network.
func (d *Daemon) tellLink() {
	l := &d.links
	l.mu.Lock()
	defer l.mu.Unlock() // so that devices hear of changes in their order
	up := len(l.ports) == 0 || slices.ContainsFunc(l.ports, func(p *outlet) bool { return !p.down })
	for _, dev := range d.deviceList() {
		if dev.station.OnSwitch() {
			dev.vnic.SetPort(up)
		}
	}
}

// setLink notes whether p, one more port or one of those there are, has a link; gone: it is none
// any more.
func (d *Daemon) setLink(p *outlet, up, gone bool) {
	l := &d.links
	l.mu.Lock()
	l.ports = slices.DeleteFunc(l.ports, func(o *outlet) bool { return o == p })
	if p.down = !up; !gone {
		l.ports = append(l.ports, p)
	}
	l.mu.Unlock()
	d.tellLink()
}

// A Lent is what somebody with more rights than the daemon has made for a port of it, as a
// descriptor that is the daemon's from then on.
type Lent struct {
	FD int
	port.TAPKind
}

// addPort makes a port, of what was lent if that is not nil.
func (d *Daemon) addPort(spec PortSpec, lent *Lent) (err error) {
	p := &outlet{spec: spec}
	if !spec.Share { // it leads to the other half of a station, and not out
		d.setLink(p, true, false)
	}
	defer func() {
		if err != nil {
			d.setLink(p, false, true)
			err = fmt.Errorf("port %s: %w", spec, err)
		}
	}()
	if spec.Share {
		err = d.openShared(p, lent)
	} else {
		p.close, err = d.openPort(spec, lent, d.onLink(p))
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.ports = append(slices.Clone(d.ports), p)
	d.mu.Unlock()
	return nil
}

func (d *Daemon) openPort(spec PortSpec, lent *Lent, onLink func(bool, error)) (
	closer func() error, err error) {
	switch spec.Kind {
	case PortTap:
		c := port.TAPConfig{Name: spec.Name, NetNS: spec.NetNS, Addrs: spec.Addrs, MTU: spec.MTU,
			OnLink: onLink}
		var tap *port.TAP
		if lent != nil {
			tap, err = port.AdoptTAP(d.sw, c, lent.FD, lent.TAPKind)
		} else {
			tap, err = port.OpenTAP(d.sw, c)
		}
		if err != nil {
			return nil, err
		}
		return tap.Close, nil
	case PortUnixListen:
		u, err := port.ListenUnix(d.sw, port.UnixConfig{Path: spec.Path, OnLink: onLink})
		if err != nil {
			return nil, err
		}
		return u.Close, nil
	case PortUnixConnect:
		u, err := port.ConnectUnix(d.sw, port.UnixConfig{Path: spec.Path, OnLink: onLink})
		if err != nil {
			return nil, err
		}
		return u.Close, nil
	case PortVXLAN:
		v, err := port.OpenVXLAN(d.sw, spec.vxlan())
		if err != nil {
			return nil, err
		}
		d.tellTooLong(v)
		return v.Close, nil
	default:
		return nil, &ConfigError{fmt.Errorf("unknown kind %v", spec.Kind)}
	}
}

// tellTooLong has the log say which devices send packets that are too long for a segment.
func (d *Daemon) tellTooLong(v *port.VXLAN) {
	for _, dev := range d.deviceList() {
		if dev.station.OnSwitch() && dev.mtu() > v.MTU() {
			d.log.Warn("a segment does not carry the longest packets of a device: give it a smaller mtu",
				"port", v.Name(), "device", dev.spec.Name, "mtu", dev.mtu(), "carries", v.MTU())
		}
	}
}

// openShared makes p a TAP whose kernel side is one station with a device's stack: its addresses,
// its MAC and its MTU, which one that was lent has been given.
func (d *Daemon) openShared(p *outlet, lent *Lent) error {
	specs := d.ownSpecs()
	i, err := p.spec.sharedWith(specs)
	if err != nil {
		return &ConfigError{err}
	}
	p.shares = d.device(specs[i].Name).station
	st := p.shares.(stackStation).stack // it is on the switch
	c := port.TAPConfig{Name: p.spec.Name, NetNS: p.spec.NetNS, Addrs: st.Addrs(),
		MTU: cmp.Or(p.spec.MTU, st.MTU()), MAC: st.MAC(), Beside: st.Name(), OnLink: d.onLink(p)}
	var tap *port.TAP
	if lent != nil {
		p.netns = p.spec.Cookie
		tap, err = port.AdoptTAP(d.sw, c, lent.FD, lent.TAPKind)
	} else if p.spec.Cookie != 0 {
		return &ConfigError{errors.New("netns-cookie is for a TAP that the daemon is lent")}
	} else if tap, err = port.OpenTAP(d.sw, c); err == nil {
		p.netns, _ = port.NetNSCookie(p.spec.NetNS) // 0 of a kernel that does not say
	}
	if err != nil {
		return err
	}
	if err := st.Share(tap); err != nil {
		return errors.Join(err, tap.Close())
	}
	p.close = func() error { return errors.Join(st.Share(nil), tap.Close()) }
	return nil
}

// within says who comes from a network namespace by the socket for the devices there: the first
// port that shares its addresses with the kernel there; "": nobody of whom that is known.
func (d *Daemon) within(netns uint64) string {
	for _, p := range d.portList() {
		if p.shares != nil && p.netns == netns && netns != 0 {
			return guest.Net + ":" + p.spec.Name
		}
	}
	return ""
}

// stationsIn are those that share their addresses with the kernel of a network namespace.
func (d *Daemon) stationsIn(netns uint64) (all []station) {
	for _, p := range d.portList() {
		if p.shares != nil && p.netns == netns && netns != 0 {
			all = append(all, p.shares)
		}
	}
	return all
}

// removePort takes a port off the switch.
func (d *Daemon) removePort(p *outlet) error {
	d.impaired.Gone(p.spec.name())
	err := p.close() // ends what calls onLink
	d.setLink(p, false, true)
	d.mu.Lock()
	d.ports = slices.DeleteFunc(slices.Clone(d.ports), func(o *outlet) bool { return o == p })
	d.mu.Unlock()
	return err
}

// portList are the ports that lead out.
func (d *Daemon) portList() []*outlet {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.ports
}

// closePorts closes all ports, the last first. Devices hear nothing of it: they end too.
func (d *Daemon) closePorts() error {
	var errs []error
	for _, p := range slices.Backward(d.portList()) {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// onLink follows the link of a port: the log has each change, and the devices an event when they
// lose their network or have it back. Connections try at once when a link is up.
func (d *Daemon) onLink(p *outlet) func(up bool, why error) {
	name := p.spec.name()
	return func(up bool, why error) {
		if up {
			d.log.Info("the link of a port is up", "port", name)
		} else {
			d.log.Warn("the link of a port is down", "port", name, "err", why)
		}
		if p.spec.Share {
			return
		}
		if up {
			for _, dev := range d.deviceList() {
				dev.station.LinkUp() // what waits for a timer may have waited for this
				d.findDuplicates(dev)
			}
		}
		if p.spec.Kind == PortTap {
			d.setLink(p, up, false)
		}
	}
}

// findDuplicates has the log say which of a device's addresses somebody else has, too: connections
// to them go here and there then. Devices that share a station are asked for once.
func (d *Daemon) findDuplicates(dev *device) {
	for _, other := range d.deviceList() {
		if other == dev {
			break
		}
		if other.station == dev.station {
			return
		}
	}
	dev.station.FindDuplicates(func(addr netip.Addr, holder frame.MAC) {
		d.log.Warn("an address of a device is somebody else's, too: give one of them another",
			"device", dev.spec.Name, "addr", addr, "other", holder.String())
	})
}
