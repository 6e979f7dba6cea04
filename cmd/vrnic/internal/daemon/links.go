package daemon

import (
	"net"
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/port"
)

// links are the daemon's ports that lead out. A device has a network as long as one of them may
// carry something. A Unix stream always may: that it has no peer is no fault, and one can come at
// any time. A TAP may not while its device is gone or down.
type links struct {
	mu    sync.Mutex
	ports int // +checklocks:mu
	down  int // +checklocks:mu
}

// add has one more, which is up.
func (l *links) add() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ports++
}

// onLink follows the link of a port: the log has each change, and the devices an event when they
// lose their network or have it back. Connections try at once when a link is up.
func (d *Daemon) onLink(spec PortSpec) func(up bool, why error) {
	name := spec.Name // as LIST port has it
	if spec.Kind != PortTap {
		name = spec.String()
	}
	return func(up bool, why error) {
		if up {
			d.log.Info("the link of a port is up", "port", name)
		} else {
			d.log.Warn("the link of a port is down", "port", name, "err", why)
		}
		if spec.Share {
			return // it leads to the other half of the station, and not out
		}
		if up {
			for _, dev := range d.devices {
				dev.station.LinkUp() // what waits for a timer may have waited for this
				d.findDuplicates(dev)
			}
		}
		if spec.Kind != PortTap {
			return
		}
		l := &d.links
		l.mu.Lock()
		defer l.mu.Unlock() // so that devices hear of changes in their order
		if up {
			l.down--
		} else {
			l.down++
		}
		for _, dev := range d.devices {
			if dev.station.OnSwitch() {
				dev.vnic.SetPort(l.down < l.ports)
			}
		}
	}
}

// findDuplicates has the log say which of a device's addresses somebody else has, too: connections
// to them go here and there then. Devices that share a station are asked for once.
func (d *Daemon) findDuplicates(dev *device) {
	for _, other := range d.devices {
		if other == dev {
			break
		}
		if other.station == dev.station {
			return
		}
	}
	dev.station.FindDuplicates(func(addr netip.Addr, holder frame.MAC) {
		d.log.Warn("an address of a device is somebody else's, too: give one of them another",
			"device", dev.spec.Name, "addr", addr, "other", net.HardwareAddr(holder[:]))
	})
}

// addShared makes a TAP whose kernel side is one station with a device's stack: its addresses, its
// MAC and its MTU.
func (d *Daemon) addShared(spec PortSpec, onLink func(up bool, why error)) error {
	i, err := spec.sharedWith(d.cfg.Devices)
	if err != nil {
		return &ConfigError{err}
	}
	st := d.devices[i].station.(stackStation).stack // it is on the switch
	mtu := spec.MTU
	if mtu == 0 {
		mtu = st.MTU()
	}
	tap, err := port.OpenTAP(d.sw, port.TAPConfig{Name: spec.Name, NetNS: spec.NetNS,
		Addrs: st.Addrs(), MTU: mtu, MAC: st.MAC(), Beside: st.Name(), OnLink: onLink})
	if err != nil {
		return err
	}
	d.undo.add(tap.Close)
	if err := st.Share(tap); err != nil {
		return err
	}
	d.undo.add(func() error { return st.Share(nil) })
	return nil
}
