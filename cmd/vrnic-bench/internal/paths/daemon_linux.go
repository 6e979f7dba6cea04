package paths

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// vrnic is the program that o names, or that there is.
func (p *Path) vrnic(o Options) (string, error) {
	if o.Vrnic != "" {
		return o.Vrnic, nil
	}
	path, remove, err := FindVrnic()
	if err != nil {
		return "", err
	}
	p.onClose(remove)
	return path, nil
}

// daemon starts a daemon with a device vrnic0 of that address.
func (p *Path) daemon(vrnic, dir, name string, addr netip.Prefix, more ...string) (d *Process, socket string, err error) {
	socket = filepath.Join(dir, name+".sock")
	args := append([]string{"up", "--socket", socket, "--device", "vrnic0,addr=" + addr.String()}, more...)
	if d, err = Start("ready ", vrnic, args...); err != nil {
		return nil, "", err
	}
	p.onClose(d.Close)
	return d, socket, nil
}

// client opens the first device of the daemon at socket.
func (p *Path) client(socket string) (rdma.Device, error) {
	c, err := shm.Dial(socket)
	if err != nil {
		return nil, err
	}
	p.onClose(func() { c.Close() })
	return c.Open("")
}

// forDaemons returns the vrnic to run and a directory for sockets.
func (p *Path) forDaemons(o Options) (vrnic, dir string, err error) {
	if vrnic, err = p.vrnic(o); err != nil {
		return "", "", err
	}
	if dir, err = os.MkdirTemp("", "vrnic-bench-"); err == nil {
		p.onClose(func() { os.RemoveAll(dir) })
	}
	return vrnic, dir, err
}

func openRing(o Options) (p *Path, err error) {
	p = &Path{Name: "ring", AddrB: prefixA.Addr()}
	defer p.closeIf(&err)
	vrnic, dir, err := p.forDaemons(o)
	if err != nil {
		return nil, err
	}
	d, socket, err := p.daemon(vrnic, dir, "ring", prefixA)
	if err != nil {
		return nil, err
	}
	p.CPU = d.CPU
	if p.A, err = p.client(socket); err != nil {
		return nil, err
	}
	p.B, err = p.client(socket)
	return p, err
}

// tapName is the TAP of the daemon in each namespace.
const tapName = "vtap0"

// newLab makes the namespaces of a path.
func (p *Path) newLab() (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the path %s makes network namespaces, for which it must run as root", p.Name)
	}
	if p.lab, err = netlab.NewLab(); err == nil {
		p.onClose(func() { p.lab.Close() })
	}
	return err
}

func openTap(o Options) (p *Path, err error) {
	p = &Path{Name: "tap", AddrB: prefixB.Addr()}
	defer p.closeIf(&err)
	vrnic, dir, err := p.forDaemons(o)
	if err != nil {
		return nil, err
	}
	if err := p.newLab(); err != nil {
		return nil, err
	}
	lab := p.lab
	var daemons []*Process
	for _, site := range []struct {
		name string
		ns   *netlab.NS
		addr netip.Prefix
		dev  *rdma.Device
	}{{"a", lab.A, prefixA, &p.A}, {"b", lab.B, prefixB, &p.B}} {
		d, socket, err := p.daemon(vrnic, dir, site.name, site.addr, "--port", "tap:"+tapName+",netns="+site.ns.Path())
		if err != nil {
			return nil, err
		}
		daemons = append(daemons, d)
		if err := lab.Plug(site.ns, tapName); err != nil {
			return nil, err
		}
		if *site.dev, err = p.client(socket); err != nil {
			return nil, err
		}
	}
	p.CPU = func() time.Duration {
		var sum time.Duration
		for _, d := range daemons {
			sum += d.CPU()
		}
		return sum
	}
	return p, nil
}
