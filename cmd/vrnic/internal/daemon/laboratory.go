package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/lab"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/recorder"
	"github.com/vrnic/vrnic/netstack/detour"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/fault"
)

// This file has what is seen of devices and ports while the daemon runs, and what is done to them:
// captures, traces and recordings; impairments and faults.

// capture writes the packets of devices and ports to the stream socket fd, which is d's from now
// on; snap is how many octets of each.
func (d *Daemon) capture(snap string, names []string, fd int) error {
	conn, err := streamSocket(fd)
	if err != nil {
		return err
	}
	n, requests, err := rpc.ParseCaptureKey(snap)
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
	case rpc.ControlDel:
		return d.impaired.End(value)
	case rpc.ControlSet:
		o, err := lab.ParseOrder(value)
		if err != nil {
			return err
		}
		// Connections that leave memory do not come back: for an order that is refused none does.
		if err := d.impaired.Room(o.Target); err != nil {
			return err
		}
		watched := d.leaveMemory(o.Target)
		defer watched()
		t, err := d.underName(o.Target)
		if err != nil {
			return err
		}
		return d.impaired.Begin(o, t)
	}
	return fmt.Errorf("verb %d is none of impairments", verb)
}

// moveTime is how long connections within a device have to get to its network.
const moveTime = 10 * time.Second

// leaveMemory has connections within a device of iWARP, or that of a queue pair, go on over its
// network, where they can be impaired, and those of the device that are made until stop is called.
func (d *Daemon) leaveMemory(name string) (stop func()) {
	stop = func() {}
	dev, qpn := d.device(name), uint32(0)
	if dev == nil {
		var err error
		if dev, qpn, err = d.queuePair(name); err != nil || qpn == 0 {
			return stop
		}
	}
	st, ok := dev.station.(stackStation)
	if !ok || dev.roce() {
		return stop
	}
	if qpn == 0 {
		stop = dev.vnic.Watch()
	}
	ctx, cancel := context.WithTimeout(context.Background(), moveTime)
	defer cancel()
	if err := dev.vnic.ToStreams(ctx, qpn, st.Within); err != nil {
		d.log.Warn("a connection within a device is not impaired", "device", dev.spec.Name, "err", err)
	}
	return stop
}

// queuePair is what DEVICE/QPN says.
func (d *Daemon) queuePair(name string) (dev *device, qpn uint32, err error) {
	at := strings.LastIndexByte(name, '/')
	n, err := strconv.ParseUint(name[at+1:], 0, 24)
	if at >= 0 {
		dev = d.device(name[:at])
	}
	if dev == nil || err != nil {
		return nil, 0, fmt.Errorf("there is no device, port or queue pair %s: a queue pair is "+
			"DEVICE/QPN", name)
	}
	return dev, uint32(n), nil
}

// fault begins faults, SEED and then their lines, or ends those of a device.
func (d *Daemon) fault(verb uint32, value string) error {
	switch verb {
	case rpc.ControlDel:
		return d.faults.End(value)
	case rpc.ControlSet:
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
// since: of completions, connections and the device itself. A quiet time may begin in another one:
// they are over when the last one is.
func (d *Daemon) hush(dev *device, on bool) {
	dev.hushMu.Lock()
	defer dev.hushMu.Unlock()
	if on {
		dev.hushed++
	} else {
		dev.hushed--
	}
	if on = dev.hushed > 0; on == dev.quiet.Load() {
		return
	}
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
			return c.edit(rpc.ControlDel, "device", name)
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
		qp, n, err := d.queuePair(name)
		if err != nil {
			return lab.Target{}, err
		}
		packets, err := qp.packetsOf(n)
		if err != nil {
			return lab.Target{}, err
		}
		dev, match, over = qp, packets.match(), func() bool {
			now, err := qp.packetsOf(n)
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
	t := lab.Target{Name: name, Over: over, Open: func(out, in *detour.Road) (func(), error) {
		// What the device sends goes into the switch.
		f, err := detour.NewFrames(d.sw, d.sw.PortOf(dev.mac), out, in, match)
		if err != nil {
			return nil, err
		}
		stop := dev.vnic.Watch()
		return func() { f.Close(); stop() }, nil
	}}
	if over == nil {
		t.Outside = dev.vnic.InMemory
	}
	return t, nil
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
		case strings.HasPrefix(i.Transport, "loop"):
			return p, fmt.Errorf("queue pair %d of device %s and its peer are of one device, and could not "+
				"go to its network yet: a program's memory does not come back", qpn, d.spec.Name)
		}
		return p, nil
	}
	return p, fmt.Errorf("device %s has no queue pair %d", d.spec.Name, qpn)
}
