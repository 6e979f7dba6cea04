package paths

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/proc"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
)

// The devices of a daemon.
const (
	iwarpDevice = "vrnic0"
	roceDevice  = "rocep0"
)

// limits of the daemons: none is met before load's own.
func limits() (args []string) {
	for _, l := range []struct {
		name string
		n    int
	}{
		{"qps", 2*load.MaxQPs + 64}, {"cm-ids", 4*load.MaxQPs + 64}, {"mrs", MaxMRs + 64},
		{"depth", abi.MaxDepth}, {"ring-bytes", 1 << 32}, {"queue-bytes", 1 << 36},
		{"peer-connections", 2*load.MaxQPs + 64}, {"sessions-per-uid", 1024}, {"sessions", 1024},
	} {
		args = append(args, "--limit", l.name+"="+strconv.Itoa(l.n))
	}
	return args
}

// vrnic is the program that the options name, or that there is.
func (p *Path) vrnic() (string, error) {
	if p.opts.Vrnic != "" {
		return p.opts.Vrnic, nil
	}
	path, remove, err := proc.FindVrnic()
	if err != nil {
		return "", err
	}
	p.onClose(remove)
	return path, nil
}

// daemon starts a daemon whose devices have that address, of their own.
func (p *Path) daemon(
	vrnic, dir, name string, addr netip.Prefix, more ...string,
) (side, error) {
	return p.daemonAt(vrnic, dir, name, ",addr="+addr.String()+p.mtuOption(), more...)
}

// daemonAt starts a daemon whose devices have their address by options.
func (p *Path) daemonAt(vrnic, dir, name, options string, more ...string) (s side, err error) {
	s.socket = filepath.Join(dir, name+".sock")
	args := append([]string{"up", "--socket", s.socket, "--device", iwarpDevice + options},
		limits()...)
	if p.opts.RoCE {
		args = append(args, "--device", roceDevice+options+",transport=roce")
	}
	d, err := proc.Start("ready ", vrnic, append(args, more...)...)
	if err != nil {
		return s, err
	}
	p.onClose(d.Close)
	p.pids = append(p.pids, d.PID())
	c, err := shm.Dial(s.socket)
	if err != nil {
		return s, err
	}
	p.onClose(func() { c.Close() })
	p.control = append(p.control, c)
	s.iwarp = p.client(s.socket, iwarpDevice)
	if p.opts.RoCE {
		s.roce = p.client(s.socket, roceDevice)
	}
	return s, nil
}

// mtuOption is the MTU as an option of a device or a port.
func (p *Path) mtuOption() string {
	if p.opts.MTU == 0 {
		return ""
	}
	return ",mtu=" + strconv.Itoa(p.opts.MTU)
}

// client opens a device of the daemon at socket, when it is first wanted.
func (p *Path) client(socket, device string) dev {
	return sync.OnceValues(func() (rdma.Device, error) {
		c, err := shm.Dial(socket)
		if err != nil {
			return nil, err
		}
		p.onClose(func() { c.Close() })
		return c.Open(device)
	})
}

// forDaemons returns the vrnic to run and a directory for sockets.
func (p *Path) forDaemons() (vrnic, dir string, err error) {
	if vrnic, err = p.vrnic(); err != nil {
		return "", "", err
	}
	if dir, err = os.MkdirTemp("", "vrnic-bench-"); err == nil {
		p.onClose(func() { os.RemoveAll(dir) })
	}
	return vrnic, dir, err
}

func (p *Path) openRing() error { return p.openOneDevice("off") }

func (p *Path) openDirect() error { return p.openOneDevice("user") }

// openOneDevice has the daemon let messages go without it, or not.
func (p *Path) openOneDevice(direct string) error {
	p.addrB = prefixA.Addr()
	vrnic, dir, err := p.forDaemons()
	if err != nil {
		return err
	}
	if p.a, err = p.daemon(vrnic, dir, "ring", prefixA, "--direct="+direct); err != nil {
		return err
	}
	p.b = side{iwarp: p.client(p.a.socket, iwarpDevice), socket: p.a.socket}
	if p.opts.RoCE {
		p.b.roce = p.client(p.a.socket, roceDevice)
	}
	return nil
}

// hostAddrs are addresses of the loopback that nobody else uses, nor another vrnic-bench: one
// device of RoCE has the UDP port of an address.
func hostAddrs() (a, b netip.Addr) {
	pid := os.Getpid()
	x, y := byte(pid>>8), byte(pid)
	return netip.AddrFrom4([4]byte{127, 77, x, y}), netip.AddrFrom4([4]byte{127, 78, x, y})
}

func (p *Path) openHost() error {
	hostA, hostB := hostAddrs()
	p.addrB = hostB
	vrnic, dir, err := p.forDaemons()
	if err != nil {
		return err
	}
	if p.a, err = p.daemonAt(vrnic, dir, "a", ",host="+hostA.String()); err != nil {
		return err
	}
	p.b, err = p.daemonAt(vrnic, dir, "b", ",host="+hostB.String())
	return err
}

// tapName is the TAP of the daemon in each namespace.
const tapName = "vtap0"

// newLab makes the namespaces of a path.
func (p *Path) newLab() (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the path %s makes network namespaces, for which it must run as root", p.Name)
	}
	if p.lab, err = netlab.NewLab(); err != nil {
		return err
	}
	p.onClose(func() { p.lab.Close() })
	if p.opts.MTU != 0 {
		return p.lab.SetMTU(p.opts.MTU)
	}
	return nil
}

// A site is where a side of wire or tap is: a namespace of its own.
type site struct {
	name string
	ns   *netlab.NS
	addr netip.Prefix
	side *side
}

// sites are those of p's lab.
func (p *Path) sites(a, b string) []site {
	return []site{{a, p.lab.A, prefixA, &p.a}, {b, p.lab.B, prefixB, &p.b}}
}

func (p *Path) openTap() error {
	p.addrB = prefixB.Addr()
	vrnic, dir, err := p.forDaemons()
	if err != nil {
		return err
	}
	if err := p.newLab(); err != nil {
		return err
	}
	for _, site := range p.sites("a", "b") {
		if *site.side, err = p.daemon(vrnic, dir, site.name, site.addr, "--port", "tap:"+tapName+
			",netns="+site.ns.Path()+p.mtuOption()); err != nil {
			return err
		}
		if err := p.lab.Plug(site.ns, tapName); err != nil {
			return err
		}
	}
	return nil
}
