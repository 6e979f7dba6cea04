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

// A Peer is one end of TCP, a process of its own: a stack on a TAP, or the kernel's.
type Peer struct {
	NetNS string
	Tap   string // "": the kernel's TCP
	Addr  netip.Prefix
	Peer  netip.AddrPort // of the client: the server; else this is the server
}

// Run runs r until the end of in: a server serves, a client answers each Request line of in with
// a line on out.
func (r Peer) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	t, err := r.tcp()
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
		l, err := t.listen(netip.AddrPortFrom(r.Addr.Addr(), port))
		if err != nil {
			return err
		}
		defer l.Close()
		go func() { _ = rawtcp.Serve(l) }() // until it is closed
		ready += " " + l.Addr().String()
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

func (r Peer) answer(ctx context.Context, t tcp, line []byte) (res rawtcp.Result, err error) {
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
	return measure(ctx, c, req)
}

// A tcp is whose TCP it is.
type tcp struct {
	dial   func(context.Context, netip.AddrPort) (net.Conn, error)
	listen func(netip.AddrPort) (net.Listener, error)
	close  func()
}

func (r Peer) tcp() (tcp, error) {
	if r.Tap == "" {
		return r.kernel()
	}
	// As the daemon has it: a read of a TAP keeps a P for a while.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4*runtime.NumCPU()))
	sw := ethswitch.New(ethswitch.Config{})
	st, err := netstack.NewStack(sw, netstack.Config{Name: "raw", Addrs: []netip.Prefix{r.Addr}})
	if err != nil {
		sw.Close()
		return tcp{}, err
	}
	tap, err := port.OpenTAP(sw, port.TAPConfig{Name: r.Tap, NetNS: r.NetNS})
	if err != nil {
		st.Close()
		sw.Close()
		return tcp{}, err
	}
	return tcp{
		dial: func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			return st.TCP().DialNet(ctx, a)
		},
		listen: func(a netip.AddrPort) (net.Listener, error) { return st.TCP().ListenNet(a) },
		close: func() {
			tap.Close()
			st.Close()
			sw.Close()
		},
	}, nil
}

// kernel makes sockets in the namespace, on threads that are there; the first socket of a
// net.Dialer is made on the calling thread.
func (r Peer) kernel() (tcp, error) {
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
	return tcp{
		dial: func(ctx context.Context, a netip.AddrPort) (c net.Conn, err error) {
			err = enter(func() (err error) {
				c, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp", a.String())
				return err
			})
			return c, err
		},
		listen: func(a netip.AddrPort) (l net.Listener, err error) {
			err = enter(func() (err error) {
				l, err = net.Listen("tcp", a.String())
				return err
			})
			return l, err
		},
		close: func() {},
	}, nil
}
