package baseline

import (
	"context"
	"net"
	"net/netip"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/internal/netlab"
)

// A Kernel is the kernel's TCP between two namespaces, both ends in this process.
type Kernel struct {
	ns     *netlab.NS
	remote netip.AddrPort
	l      net.Listener
}

// NewKernel has a server at addr in the namespace there, for clients here.
func NewKernel(here, there *netlab.NS, addr netip.Addr) (*Kernel, error) {
	k := &Kernel{ns: here}
	err := there.Do(func() (err error) {
		k.l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	k.remote = k.l.Addr().(*net.TCPAddr).AddrPort()
	go func() { _ = rawtcp.Serve(k.l) }() // until it is closed
	return k, nil
}

// Close ends what serves.
func (k *Kernel) Close() { k.l.Close() }

func (*Kernel) Name() string   { return "kernel-tcp" }
func (*Kernel) Does(Kind) bool { return true }
func (*Kernel) Traits() Traits { return Traits{Polls: true} }

// Measure implements Baseline.
func (k *Kernel) Measure(ctx context.Context, req Request) (r rawtcp.Result, err error) {
	var c net.Conn
	err = k.ns.Do(func() error {
		// Not net.Dial: that may make the socket on another thread.
		c, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp", k.remote.String())
		return err
	})
	if err != nil {
		return r, err
	}
	return measure(ctx, c, req)
}
