package paths

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/netstack"
)

// Raw TCP over the network of a path, for comparison. Of pair and wire: between the same two stacks. Of
// tap: two processes of this program (RawPeer), each a stack on a TAP of its own on the same
// bridges as the daemons' TAPs; and the kernels at the bridges.

const rawTap = "rtap0"

var (
	rawA = netip.MustParsePrefix("10.78.0.1/24")
	rawB = netip.MustParsePrefix("10.78.0.2/24")
	kerA = netip.MustParsePrefix("10.79.0.1/24")
	kerB = netip.MustParsePrefix("10.79.0.2/24")
)

const (
	basePort    = 5001
	dialTimeout = 10 * time.Second
)

// A Request is what a raw peer that is a client is asked for.
type Request struct {
	Mode  byte // rawtcp.Sink or Echo
	Size  int
	Slots int // pieces of memory of that size to go through, 1 or more
	Time  time.Duration
}

// Answer is what comes back.
type Answer struct {
	Error  string `json:",omitempty"`
	Result rawtcp.Result
}

// A Baseline measures TCP between the two sites.
type Baseline interface {
	Name() string
	Measure(Request) (rawtcp.Result, error)
}

// Baselines makes the baselines of p, pair, wire or tap, which end with it: raw netstack TCP, then,
// where there are bridges, kernel TCP over them.
func (p *Path) Baselines() ([]Baseline, error) {
	var raw Baseline
	var err error
	if p.stacks != nil {
		raw, err = p.ownNetstack()
	} else {
		raw, err = p.rawNetstack()
	}
	if err != nil {
		return nil, fmt.Errorf("netstack TCP: %w", err)
	}
	if p.lab == nil {
		return []Baseline{raw}, nil
	}
	kernel, err := p.kernelTCP()
	if err != nil {
		return nil, fmt.Errorf("kernel TCP: %w", err)
	}
	return []Baseline{raw, kernel}, nil
}

// ownNetstack is TCP between the stacks of the devices.
type ownNetstack struct {
	client *netstack.Stack
	remote netip.AddrPort
}

func (p *Path) ownNetstack() (*ownNetstack, error) {
	o := &ownNetstack{client: p.stacks[0], remote: netip.AddrPortFrom(p.AddrB, basePort)}
	l, err := p.stacks[1].ListenNet(o.remote)
	if err != nil {
		return nil, err
	}
	p.onClose(func() { l.Close() })
	go rawtcp.Serve(l)
	return o, nil
}

func (*ownNetstack) Name() string { return "netstack-tcp" }

func (o *ownNetstack) Measure(req Request) (rawtcp.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	c, err := o.client.DialNet(ctx, o.remote)
	if err != nil {
		return rawtcp.Result{}, err
	}
	return Measure(c, req)
}

type rawNetstack struct{ client *Process }

func (p *Path) rawNetstack() (*rawNetstack, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var client *Process
	for _, site := range []struct {
		ns   *netlab.NS
		addr netip.Prefix
		more []string
	}{{p.lab.B, rawB, nil}, {p.lab.A, rawA, []string{"--peer", netip.AddrPortFrom(rawB.Addr(), basePort).String()}}} {
		args := append([]string{"raw-peer", "--netns", site.ns.Path(), "--tap", rawTap, "--addr", site.addr.String()}, site.more...)
		if client, err = Start("ready", self, args...); err != nil {
			return nil, err
		}
		p.onClose(client.Close)
		if err := p.lab.Plug(site.ns, rawTap); err != nil {
			return nil, err
		}
	}
	return &rawNetstack{client}, nil
}

func (*rawNetstack) Name() string { return "netstack-tcp" }

func (r *rawNetstack) Measure(req Request) (rawtcp.Result, error) {
	var a Answer
	line, err := json.Marshal(req)
	if err != nil {
		return a.Result, err
	}
	answer, err := r.client.Ask(string(line))
	if err != nil {
		return a.Result, err
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		return a.Result, fmt.Errorf("the raw peer says %q: %w", answer, err)
	}
	if a.Error != "" {
		return a.Result, fmt.Errorf("raw peer: %s", a.Error)
	}
	return a.Result, nil
}

type kernelTCP struct {
	ns     *netlab.NS
	remote netip.AddrPort
}

// kernelTCP has the kernels of the sites talk, over the addresses of their bridges.
func (p *Path) kernelTCP() (*kernelTCP, error) {
	if err := p.lab.A.AddAddr(netlab.Bridge, kerA); err != nil {
		return nil, err
	}
	if err := p.lab.B.AddAddr(netlab.Bridge, kerB); err != nil {
		return nil, err
	}
	k := &kernelTCP{ns: p.lab.A, remote: netip.AddrPortFrom(kerB.Addr(), basePort)}
	err := p.lab.B.Do(func() error {
		l, err := net.Listen("tcp", k.remote.String())
		if err != nil {
			return err
		}
		p.onClose(func() { l.Close() })
		go rawtcp.Serve(l)
		return nil
	})
	return k, err
}

func (*kernelTCP) Name() string { return "kernel-tcp" }

func (k *kernelTCP) Measure(req Request) (r rawtcp.Result, err error) {
	var c net.Conn
	err = k.ns.Do(func() error {
		// Not net.Dial: that may make the socket on another thread.
		c, err = (&net.Dialer{FallbackDelay: -1}).Dial("tcp", k.remote.String())
		return err
	})
	if err != nil {
		return r, err
	}
	return Measure(c, req)
}

// Measure does over c what req asks for.
func Measure(c net.Conn, req Request) (rawtcp.Result, error) {
	switch req.Mode {
	case rawtcp.Sink:
		return rawtcp.Throughput(c, req.Size, req.Slots, req.Time)
	case rawtcp.Echo:
		return rawtcp.Echoes(c, req.Size, req.Time)
	}
	c.Close()
	return rawtcp.Result{}, fmt.Errorf("mode %q", req.Mode)
}
