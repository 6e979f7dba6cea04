package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/lab"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/recorder"
	"github.com/vrnic/vrnic/netstack/detour"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/fault"
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

// capture writes the packets of devices and ports to the stream socket fd, which is d's from now
// on; snap is how many octets of each.
func (d *Daemon) capture(snap string, names []string, fd int) error {
	conn, err := streamSocket(fd)
	if err != nil {
		return err
	}
	n, requests, err := abi.ParseCaptureKey(snap)
	if err != nil || n < 1 || n > frame.MaxLen {
		return errors.Join(fmt.Errorf("%q octets of packets cannot be captured", snap), conn.Close())
	}
	ports, err := d.captured(names)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	var devices []*device
	var stops []func()
	for _, dev := range d.deviceList() { // what they would copy is to be seen
		at := d.sw.PortOf(dev.mac)
		if slices.ContainsFunc(ports, func(p capture.Port) bool { return p.Name == at }) {
			devices = append(devices, dev)
			stops = append(stops, dev.vnic.Watch(), dev.vnic.WatchCopies(), dev.station.Watch())
		}
	}
	cfg := &capture.Config{Switch: d.sw, Ports: ports, Snap: n, Conn: conn, Done: all(stops)}
	if requests {
		cfg.Requests = func(r *capture.Requests) (stop func()) {
			var stops []func()
			for _, dev := range devices {
				stops = append(stops, dev.vnic.Observe(func(n uint32) vnic.RequestWatcher {
					return r.Of(dev.spec.Name, n)
				}))
			}
			return all(stops)
		}
	}
	stop := cfg.Done
	if err := capture.Begin(&d.onlookers, cfg); err != nil {
		stop()
		return errors.Join(err, conn.Close())
	}
	return nil
}

// all calls all of them.
func all(stops []func()) func() {
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// trace writes what happens to requests of a queue pair, DEVICE,qp=N, to the stream socket fd,
// which is d's from now on, and the packets of its device among that, if they are not the kernel's.
func (d *Daemon) trace(s string, fd int) error {
	conn, err := streamSocket(fd)
	if err != nil {
		return err
	}
	dev, qpn, err := d.target(s)
	if err == nil && qpn == 0 {
		err = errors.New("one queue pair is traced at a time")
	}
	var ports []capture.Port
	stop := func() {}
	if err == nil && dev.station.OnSwitch() {
		ports, err = d.captured([]string{dev.spec.Name})
		// What it would copy is to be seen.
		stop = all([]func(){dev.vnic.Watch(), dev.vnic.WatchCopies(), dev.station.Watch()})
	}
	if err == nil {
		err = capture.Begin(&d.onlookers, &capture.Config{Switch: d.sw, Ports: ports,
			Snap: frame.MaxLen, Conn: conn, Done: stop,
			Requests: func(r *capture.Requests) (stop func()) {
				return dev.vnic.Observe(func(n uint32) vnic.RequestWatcher {
					if n != qpn {
						return nil
					}
					return r.Of(dev.spec.Name, n)
				})
			}})
	}
	if err != nil {
		stop()
		return errors.Join(err, conn.Close())
	}
	return nil
}

// record writes a recording of devices, or of all if one is named "", to the stream socket fd,
// which is d's from now on.
func (d *Daemon) record(names []string, fd int) error {
	conn, err := streamSocket(fd)
	if err != nil {
		return err
	}
	cfg := recorder.Config{Conn: conn, Calls: d.server.Watch}
	for _, dev := range d.deviceList() {
		if names[0] == "" || slices.Contains(names, dev.spec.Name) {
			cfg.Names = append(cfg.Names, dev.spec.Name)
			cfg.Devices = append(cfg.Devices, dev.vnic.Record)
		}
	}
	for _, name := range names {
		if name != "" && d.device(name) == nil {
			err = fmt.Errorf("there is no device %s", name)
		}
	}
	if err == nil {
		err = recorder.Begin(&d.onlookers, &cfg)
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	return nil
}

// streamSocket is the stream socket fd, of somebody who looks.
func streamSocket(fd int) (*net.UnixConn, error) {
	if fd < 0 {
		return nil, errors.New("who looks sends a socket to write to")
	}
	f := os.NewFile(uintptr(fd), "onlooker")
	defer f.Close() // net.FileConn makes its own
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("who looks sends a socket: %w", err)
	}
	if conn, ok := c.(*net.UnixConn); ok && conn.LocalAddr().Network() == "unix" {
		return conn, nil
	}
	return nil, errors.Join(fmt.Errorf("a %T is no stream socket of Unix", c), c.Close())
}

// captured are the ports of the switch behind names.
func (d *Daemon) captured(names []string) (ports []capture.Port, err error) {
	kinds := make(map[string]string)
	for _, p := range d.sw.Totals() {
		kinds[p.Name] = p.Kind
	}
	for _, name := range names {
		at := name
		if dev := d.device(name); dev != nil {
			if at = d.sw.PortOf(dev.mac); at == "" || !dev.station.OnSwitch() {
				return nil, fmt.Errorf("the packets of device %s are the kernel's: capture them there, "+
					"as with tshark or tcpdump", name)
			}
		}
		kind, ok := kinds[at]
		if !ok {
			return nil, fmt.Errorf("there is no device and no port %s", name)
		}
		if !slices.ContainsFunc(ports, func(p capture.Port) bool { return p.Name == at }) {
			ports = append(ports, capture.Port{Name: at, Kind: kind})
		}
	}
	return ports, nil
}

// impair begins an impairment, or ends some.
func (d *Daemon) impair(verb uint32, value string) error {
	switch verb {
	case abi.ControlDel:
		return d.impaired.End(value)
	case abi.ControlSet:
		o, err := lab.ParseOrder(value)
		if err != nil {
			return err
		}
		t, err := d.underName(o.Target)
		if err != nil {
			return err
		}
		return d.impaired.Begin(o, t)
	}
	return fmt.Errorf("verb %d is none of impairments", verb)
}

// fault begins faults, SEED and then their lines, or ends those of a device.
func (d *Daemon) fault(verb uint32, value string) error {
	switch verb {
	case abi.ControlDel:
		return d.faults.End(value)
	case abi.ControlSet:
		head, lines, _ := strings.Cut(value, "\n")
		seed, err := strconv.ParseUint(head, 10, 64)
		if err != nil {
			return fmt.Errorf("seed %q: want a number", head)
		}
		all, err := fault.Parse(lines)
		if err != nil {
			return err
		}
		return d.faults.Begin(seed, all, d.faulty)
	}
	return fmt.Errorf("verb %d is none of faults", verb)
}

// hush has the programs that use a device told of no events of it, or of those that have come
// since: of completions, connections and the device itself.
func (d *Daemon) hush(dev *device, on bool) {
	dev.quiet.Store(on)
	for _, s := range d.sessionList() {
		if sd := s.on(dev); sd != nil {
			sd.hush(on)
		}
	}
}

// faulty is a device for faults; nil: there is none of that name.
func (d *Daemon) faulty(name string) *fault.Target {
	dev := d.device(name)
	if dev == nil {
		return nil
	}
	return &fault.Target{Device: dev.vnic, Quiet: func(on bool) { d.hush(dev, on) }, Gone: func() {
		err := d.Reconfigure(context.Background(), true, nil, func(c *Config) error {
			return c.edit(abi.ControlDel, "device", name)
		})
		if err != nil {
			d.log.Warn("a device that was to go has not", "device", name, "err", err)
		}
	}}
}

// underName is what stands behind the name of a device, of a port, or of a queue pair, which is
// DEVICE/QPN.
func (d *Daemon) underName(name string) (lab.Target, error) {
	dev := d.device(name)
	if dev == nil {
		for _, p := range d.sw.Totals() {
			if p.Name == name {
				return lab.Target{Name: name, Open: func(out, in *detour.Road) (func(), error) {
					f, err := detour.NewFrames(d.sw, name, in, out, nil)
					if err != nil {
						return nil, err
					}
					return f.Close, nil
				}}, nil
			}
		}
	}
	var match detour.Match
	var over func() bool
	if dev == nil {
		at := strings.LastIndexByte(name, '/')
		n, err := strconv.ParseUint(name[at+1:], 0, 24)
		if at < 0 || err != nil || d.device(name[:at]) == nil {
			return lab.Target{}, fmt.Errorf("there is no device, port or queue pair %s: a queue pair is "+
				"DEVICE/QPN", name)
		}
		dev = d.device(name[:at])
		qp := dev
		packets, err := qp.packetsOf(uint32(n))
		if err != nil {
			return lab.Target{}, err
		}
		match, over = packets.match(), func() bool {
			now, err := qp.packetsOf(uint32(n))
			return err != nil || now != packets
		}
	} else if slices.ContainsFunc(d.deviceList(), func(o *device) bool {
		return o != dev && o.station == dev.station
	}) {
		match = lab.NotRoCE
		if dev.roce() {
			match = lab.IsRoCE
		}
	}
	if host, ok := dev.station.(hostStation); ok {
		if !dev.roce() || strings.Contains(name, "/") {
			return lab.Target{}, lab.ErrHost
		}
		return lab.Target{Name: name, Open: func(out, in *detour.Road) (func(), error) {
			host.Impair(out, in)
			stop := dev.vnic.Watch() // what would be copied goes as packets
			return func() { host.Impair(nil, nil); stop() }, nil
		}}, nil
	}
	return lab.Target{Name: name, Over: over, Open: func(out, in *detour.Road) (func(), error) {
		// What the device sends goes into the switch.
		f, err := detour.NewFrames(d.sw, d.sw.PortOf(dev.mac), out, in, match)
		if err != nil {
			return nil, err
		}
		stop := dev.vnic.Watch()
		return func() { f.Close(); stop() }, nil
	}}, nil
}

// qpPackets are those of a queue pair's connection.
type qpPackets struct {
	protocol      uint8 // UDP: of RoCE
	local, remote netip.AddrPort
	own, dest     uint32 // numbers of queue pairs, of RoCE
}

func (p qpPackets) match() detour.Match {
	if p.protocol == frame.ProtoUDP {
		return lab.Connection(p.local.Addr(), p.remote.Addr(), p.own, p.dest)
	}
	return lab.Stream(p.protocol, p.local, p.remote)
}

// packetsOf are those of a queue pair that is connected (docs/decisions.md#B1).
func (d *device) packetsOf(qpn uint32) (p qpPackets, err error) {
	for i := range d.vnic.EachQP(nil) {
		if i.QPN != qpn {
			continue
		}
		p = qpPackets{protocol: frame.ProtoTCP, local: i.Local, remote: i.Remote}
		connected := i.Attr != nil && i.Type != rdma.UD && i.Attr.PathMTU != 0
		if connected {
			own, err := d.vnic.GID(int(i.Attr.Path.GIDIndex))
			if err != nil {
				return p, err
			}
			p = qpPackets{frame.ProtoUDP, netip.AddrPortFrom(own.GID.Addr(), 0),
				netip.AddrPortFrom(i.Attr.Path.GID.Addr(), 0), qpn, i.Attr.DestQPN}
		} else if strings.HasPrefix(i.Transport, "sctp") {
			p.protocol = frame.ProtoSCTP
		}
		switch {
		case !connected && i.Transport == "":
			return p, fmt.Errorf("queue pair %d of device %s is not connected: which packets are its own "+
				"is known then", qpn, d.spec.Name)
		case !connected && slices.ContainsFunc(d.addrs, func(a netip.Prefix) bool {
			return a.Addr() == p.remote.Addr()
		}):
			return p, fmt.Errorf("queue pair %d of device %s and its peer are of one device of iWARP: "+
				"what they say to each other does not leave its stack", qpn, d.spec.Name)
		}
		return p, nil
	}
	return p, fmt.Errorf("device %s has no queue pair %d", d.spec.Name, qpn)
}
