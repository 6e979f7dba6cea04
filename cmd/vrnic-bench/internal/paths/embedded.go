package paths

import (
	"net/netip"
	"os"
	"runtime"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

var (
	prefixA = netip.MustParsePrefix("10.77.0.1/24")
	prefixB = netip.MustParsePrefix("10.77.0.2/24")
)

// MaxMRs is how many registrations the devices take.
const MaxMRs = 2 << 20

// roomy is the configuration of a device that is there to be measured: no limit is met before
// load's own.
func roomy(c vnic.Config) vnic.Config {
	c.Limits = vnic.Limits{QP: 2*load.MaxQPs + 64, CMID: 4*load.MaxQPs + 64, MR: MaxMRs + 64,
		Depth: 1 << 18}
	c.MaxConnsPerPeer = 2*load.MaxQPs + 64
	return c
}

func (p *Path) openLoop() (err error) {
	p.addrB = prefixA.Addr()
	c := vnic.Config{Name: "loop0", Addrs: []netip.Prefix{prefixA}}
	if p.a.iwarp, p.b.iwarp, err = p.shared(c); err != nil || !p.opts.RoCE {
		return err
	}
	// A queue pair of RoCE finds its peer on a network, though what it sends does not go there.
	st, err := p.stack(p.newSwitch(), c.Name, prefixA, 0)
	if err != nil {
		return err
	}
	network := stacknet.New(st)
	p.onClose(func() { network.Close() })
	c = vnic.Config{Name: "roce-" + c.Name, RoCE: true, MAC: st.MAC(), MTU: st.MTU(),
		Addrs: st.Addrs(), Network: network}
	p.a.roce, p.b.roce, err = p.shared(c)
	return err
}

// shared makes a device of c and opens it for both ends.
func (p *Path) shared(c vnic.Config) (a, b dev, err error) {
	d, err := vnic.New(roomy(c))
	if err != nil {
		return nil, nil, err
	}
	p.onClose(func() { d.Close() })
	if a, err = openMapped(d, "A"); err != nil {
		return nil, nil, err
	}
	b, err = openMapped(d, "B")
	return a, b, err
}

// openMapped opens dev for one end.
func openMapped(dev *vnic.Device, label string) (dev, error) {
	c, err := dev.Open(vnic.ContextConfig{Label: label})
	return func() (rdma.Device, error) { return mapped{c}, nil }, err
}

func (p *Path) openPair() (err error) {
	p.addrB = prefixB.Addr()
	sw := p.newSwitch()
	if p.a, err = p.devices(sw, "pair0", prefixA); err != nil {
		return err
	}
	p.b, err = p.devices(sw, "pair1", prefixB)
	return err
}

// openWire makes a pair whose devices meet outside of this process.
func (p *Path) openWire() (err error) {
	// Two ends that poll would keep both Ps of two processors from who has read a frame.
	if n, more := runtime.GOMAXPROCS(0), 2*runtime.NumCPU(); n < more &&
		os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(more)
		p.onClose(func() { runtime.GOMAXPROCS(n) })
	}
	p.addrB = prefixB.Addr()
	if err := p.newLab(); err != nil {
		return err
	}
	for _, site := range p.sites("wire0", "wire1") {
		sw := p.newSwitch()
		if *site.side, err = p.devices(sw, site.name, site.addr); err != nil {
			return err
		}
		tap, err := port.OpenTAP(sw, port.TAPConfig{Name: tapName, NetNS: site.ns.Path(),
			MTU: p.opts.MTU})
		if err != nil {
			return err
		}
		p.onClose(func() { tap.Close() })
		if err := p.lab.Plug(site.ns, tapName); err != nil {
			return err
		}
	}
	return nil
}

func (p *Path) newSwitch() *ethswitch.Switch {
	sw := ethswitch.New(ethswitch.Config{})
	p.onClose(func() { sw.Close() })
	return sw
}

// stack makes a stack in this process, at sw.
func (p *Path) stack(
	sw *ethswitch.Switch, name string, addr netip.Prefix, mtu int,
) (*netstack.Stack, error) {
	st, err := netstack.NewStack(sw, netstack.Config{Name: name, Addrs: []netip.Prefix{addr},
		MTU: mtu})
	if err != nil {
		return nil, err
	}
	p.onClose(func() { st.Close() })
	return st, nil
}

// devices makes those of a side in this process, on a stack at sw.
func (p *Path) devices(sw *ethswitch.Switch, name string, addr netip.Prefix) (s side, err error) {
	st, err := p.stack(sw, name, addr, p.opts.MTU)
	if err != nil {
		return s, err
	}
	p.stacks = append(p.stacks, st)
	network := stacknet.New(st)
	p.onClose(func() { network.Close() })
	c := roomy(vnic.Config{Name: name, MAC: st.MAC(), MTU: st.MTU(), Addrs: st.Addrs(),
		Network: network})
	if s.iwarp, err = p.device(c); err != nil || !p.opts.RoCE {
		return s, err
	}
	c.Name, c.RoCE = "roce-"+name, true
	s.roce, err = p.device(c)
	return s, err
}

// device makes a device of c and opens it.
func (p *Path) device(c vnic.Config) (dev, error) {
	d, err := vnic.New(c)
	if err != nil {
		return nil, err
	}
	p.onClose(func() { d.Close() })
	return openMapped(d, c.Name)
}
