package paths

import (
	"net/netip"

	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

var (
	prefixA = netip.MustParsePrefix("10.77.0.1/24")
	prefixB = netip.MustParsePrefix("10.77.0.2/24")
)

func openLoop() (p *Path, err error) {
	p = &Path{Name: "loop", AddrB: prefixA.Addr()}
	defer p.closeIf(&err)
	dev, err := vnic.New(vnic.Config{Name: "loop0", Addrs: []netip.Prefix{prefixA}})
	if err != nil {
		return nil, err
	}
	p.onClose(func() { dev.Close() })
	if p.A, err = openMapped(dev, "A"); err != nil {
		return nil, err
	}
	p.B, err = openMapped(dev, "B")
	return p, err
}

func openMapped(dev *vnic.Device, label string) (rdma.Device, error) {
	c, err := dev.Open(vnic.ContextConfig{Label: label})
	if err != nil {
		return nil, err
	}
	return mapped{c}, nil
}

func openPair() (p *Path, err error) {
	p = &Path{Name: "pair", AddrB: prefixB.Addr()}
	defer p.closeIf(&err)
	sw := p.newSwitch()
	if p.A, err = p.device(sw, "pair0", prefixA); err != nil {
		return nil, err
	}
	p.B, err = p.device(sw, "pair1", prefixB)
	return p, err
}

// openWire makes a pair whose devices meet outside of this process.
func openWire() (p *Path, err error) {
	p = &Path{Name: "wire", AddrB: prefixB.Addr()}
	defer p.closeIf(&err)
	if err := p.newLab(); err != nil {
		return nil, err
	}
	for _, site := range []struct {
		name string
		ns   *netlab.NS
		addr netip.Prefix
		dev  *rdma.Device
	}{{"wire0", p.lab.A, prefixA, &p.A}, {"wire1", p.lab.B, prefixB, &p.B}} {
		sw := p.newSwitch()
		if *site.dev, err = p.device(sw, site.name, site.addr); err != nil {
			return nil, err
		}
		tap, err := netstack.OpenTAP(sw, netstack.TAPConfig{Name: tapName, NetNS: site.ns.Path()})
		if err != nil {
			return nil, err
		}
		p.onClose(func() { tap.Close() })
		if err := p.lab.Plug(site.ns, tapName); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *Path) newSwitch() *netstack.Switch {
	sw := netstack.NewSwitch(netstack.SwitchConfig{})
	p.onClose(func() { sw.Close() })
	return sw
}

// device makes a device in this process, on a stack at sw.
func (p *Path) device(sw *netstack.Switch, name string, addr netip.Prefix) (rdma.Device, error) {
	st, err := netstack.NewStack(sw, netstack.Config{Name: name, Addrs: []netip.Prefix{addr}})
	if err != nil {
		return nil, err
	}
	p.onClose(func() { st.Close() })
	p.stacks = append(p.stacks, st)
	dev, err := vnic.New(vnic.Config{Name: name, MAC: st.MAC(), MTU: st.MTU(), Addrs: st.Addrs(), Network: stacknet.New(st)})
	if err != nil {
		return nil, err
	}
	p.onClose(func() { dev.Close() })
	return openMapped(dev, name)
}

// closeIf undoes what was made if *err is one.
func (p *Path) closeIf(err *error) {
	if *err != nil {
		p.Close()
	}
}
