package baseline

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port"
)

const peerReady = "ready"

// A Peer is one end of TCP, a process of its own: a stack on a TAP, or the kernel's; or of the
// kernel's UDP.
type Peer struct {
	NetNS string
	Tap   string // "": the kernel's
	MTU   int    // of Tap and its stack; 0: the default
	UDP   bool
	Addr  netip.Prefix
	Peer  netip.AddrPort // of the client: the server; else this is the server
}

// Run runs r until the end of in: a server serves, a client answers each Request line of in with
// a line on out.
func (r Peer) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	t, err := r.transport()
	if err != nil {
		return err
	}
	defer t.close()
	ready := peerReady
	if !r.Peer.IsValid() {
		port := uint16(basePort)
		if r.Tap == "" {
			port = 0 // others may be there
		}
		at, stop, err := t.serve(netip.AddrPortFrom(r.Addr.Addr(), port))
		if err != nil {
			return err
		}
		defer stop()
		ready += " " + at.String()
	}
	if _, err := fmt.Fprintln(out, ready); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var a answer
		if a.Result, err = r.answer(ctx, t, lines.Bytes()); err != nil {
			a.Error = err.Error()
		}
		if err := json.NewEncoder(out).Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (r Peer) answer(ctx context.Context, t transport, line []byte) (res rawtcp.Result, err error) {
	var req Request
	if err := json.Unmarshal(line, &req); err != nil {
		return res, err
	}
	dial, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := t.dial(dial, r.Peer)
	if err != nil {
		return res, err
	}
	if r.UDP {
		return measureUDP(ctx, c, req)
	}
	return measure(ctx, c, req)
}

// A transport is what connects, and whose it is.
type transport struct {
	dial  func(context.Context, netip.AddrPort) (net.Conn, error)
	serve func(netip.AddrPort) (at net.Addr, stop func(), err error)
	close func()
}

// serving serves l until stop is called.
func serving(l net.Listener) (at net.Addr, stop func()) {
	go func() { _ = rawtcp.Serve(l) }() // until it is closed
	return l.Addr(), func() { l.Close() }
}

func (r Peer) transport() (transport, error) {
	if r.Tap == "" {
		return r.kernel()
	}
	// As the daemon has it: a read of a TAP keeps a P for a while.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4*runtime.NumCPU()))
	sw := ethswitch.New(ethswitch.Config{})
	st, err := netstack.NewStack(sw, netstack.Config{Name: "raw", Addrs: []netip.Prefix{r.Addr},
		MTU: r.MTU})
	if err != nil {
		sw.Close()
		return transport{}, err
	}
	tap, err := port.OpenTAP(sw, port.TAPConfig{Name: r.Tap, NetNS: r.NetNS, MTU: r.MTU})
	if err != nil {
		st.Close()
		sw.Close()
		return transport{}, err
	}
	return transport{
		dial: func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			return st.TCP().DialNet(ctx, a)
		},
		serve: func(a netip.AddrPort) (net.Addr, func(), error) {
			l, err := st.TCP().ListenNet(a)
			if err != nil {
				return nil, nil, err
			}
			at, stop := serving(l)
			return at, stop, nil
		},
		close: func() {
			tap.Close()
			st.Close()
			sw.Close()
		},
	}, nil
}

// kernel makes sockets in the namespace, on threads that are there; the first socket of a
// net.Dialer is made on the calling thread.
func (r Peer) kernel() (transport, error) {
	enter := func(f func() error) error { return f() }
	if r.NetNS != "" {
		enter = func(f func() error) error {
			// The thread goes away with its goroutine, and the namespace is nobody else's.
			done := make(chan error)
			go func() {
				runtime.LockOSThread()
				fd, err := unix.Open(r.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err == nil {
					err = unix.Setns(fd, unix.CLONE_NEWNET)
					unix.Close(fd)
				}
				if err == nil {
					err = f()
				} else {
					err = fmt.Errorf("enter the namespace %s: %w", r.NetNS, err)
				}
				done <- err
			}()
			return <-done
		}
	}
	network := "tcp"
	if r.UDP {
		network = "udp"
	}
	return transport{
		dial: func(ctx context.Context, a netip.AddrPort) (c net.Conn, err error) {
			err = enter(func() (err error) {
				c, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, network, a.String())
				return err
			})
			return c, err
		},
		serve: func(a netip.AddrPort) (at net.Addr, stop func(), err error) {
			err = enter(func() error {
				if r.UDP {
					at, stop, err = serveUDP(a)
					return err
				}
				l, err := net.Listen(network, a.String())
				if err == nil {
					at, stop = serving(l)
				}
				return err
			})
			return at, stop, err
		},
		close: func() {},
	}, nil
}
