package badnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kernelPort is the receiver's.
const kernelPort = 5001

// A Kernel is the TCP of two kernels, with CUBIC and this machine's sizes of buffers.
type Kernel struct {
	*site
	l *net.TCPListener
}

// NewKernel makes the two; self is the command line that runs RunBridge.
func NewKernel(self []string) (k *Kernel, err error) {
	k = &Kernel{}
	if k.site, err = newSite(self); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			k.Close()
			k = nil
		}
	}()
	if err := errors.Join(k.a.AddAddr(bridgeTAP, prefixA), k.b.AddAddr(bridgeTAP, prefixB),
		// What the kernel learns of a path is not for the next connection.
		k.a.Sysctl("ipv4/tcp_no_metrics_save", "1")); err != nil {
		return k, err
	}
	err = k.b.Do(func() (err error) {
		k.l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(prefixB.Addr(),
			kernelPort)))
		return err
	})
	if err == nil {
		k.closers = append(k.closers, func() { k.l.Close() })
	}
	return k, err
}

// Measure measures a connection.
func (k *Kernel) Measure(ctx context.Context, r Run) (Goodput, error) {
	g, err := k.measure(ctx, r, k.connect)
	if err != nil {
		err = fmt.Errorf("kernel TCP, %v, seed %d: %w", r.Cell, r.Seed, err)
	}
	return g, err
}

// useCUBIC sets what may not be the default of this machine.
func useCUBIC(_, _ string, raw syscall.RawConn) (err error) {
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic")
	}); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("congestion control cubic: %w (does the kernel have it?)", err)
	}
	return nil
}

// A kernelFlow is a connection of both kernels.
type kernelFlow struct {
	from, to *net.TCPConn
	octets   atomic.Uint64
}

func (k *Kernel) connect(ctx context.Context) (flow, error) {
	f := &kernelFlow{}
	err := k.a.Do(func() error {
		d := net.Dialer{FallbackDelay: -1, Control: useCUBIC}
		c, err := d.DialContext(ctx, "tcp", k.l.Addr().String())
		if err == nil {
			f.from = c.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		b := make([]byte, writeSize)
		for {
			if _, err := f.from.Write(b); err != nil {
				return // closed
			}
		}
	}()
	for f.to == nil {
		_ = k.l.SetDeadline(time.Now().Add(setUpTime)) // else it waits on
		c, err := k.l.AcceptTCP()
		if err != nil {
			f.close()
			return nil, err
		}
		if c.RemoteAddr().String() == f.from.LocalAddr().String() {
			f.to = c
		} else {
			c.Close() // an attempt before, which was given up
		}
	}
	go func() {
		b := make([]byte, writeSize)
		for {
			n, err := f.to.Read(b)
			f.octets.Add(uint64(n))
			if err != nil {
				return
			}
		}
	}()
	return f, nil
}

func (f *kernelFlow) received() (uint64, error) { return f.octets.Load(), nil }

func (*kernelFlow) pids() []int { return nil }

func (f *kernelFlow) close() {
	for _, c := range []*net.TCPConn{f.from, f.to} {
		if c != nil {
			_ = c.SetLinger(0) // nothing is to follow
			c.Close()
		}
	}
}
