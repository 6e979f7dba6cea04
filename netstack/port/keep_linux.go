package port

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// A portKeeper makes sockets in a network namespace, also when the process may enter it no more.
type portKeeper struct {
	name string         // of the TAP
	do   chan func()    // nil: the namespace is the caller's
	wg   sync.WaitGroup // of who serves do
}

// newPortKeeper makes one for the namespace that path names, or the caller's if path is empty.
func newPortKeeper(name, path string) (*portKeeper, error) {
	k := &portKeeper{name: name}
	if path == "" {
		return k, nil
	}
	do, entered := make(chan func()), make(chan error, 1)
	k.wg.Go(func() {
		err := inNetNS(path, func() error {
			entered <- nil
			for f := range do {
				f()
			}
			return nil
		})
		if err != nil {
			entered <- err
		}
	})
	if err := <-entered; err != nil {
		return nil, err
	}
	k.do = do
	return k, nil
}

// close ends the thread in the namespace. What is kept stays so. k may be nil.
func (k *portKeeper) close() {
	if k != nil && k.do != nil {
		close(k.do)
		k.wg.Wait()
		k.do = nil
	}
}

// firstUnprivileged is the first port that may be taken from the kernel: those below are for root's
// programs, and who is no more than a client of a daemon of root's must not get them by it.
const firstUnprivileged = 1024

// KeepPort keeps a port from the programs of the kernel's side, which have EADDRINUSE then, until
// what is returned is closed; of a TAP that was lent they may have it, and hear nothing as long as
// the station's other half does. EADDRINUSE: one of them has it. EACCES: it is one below 1024. It
// must not be called behind Close.
func (t *TAP) KeepPort(udp bool, at netip.AddrPort) (io.Closer, error) {
	if t.cfg.Beside == "" {
		return nil, fmt.Errorf("device %s is not shared: %w", t.cfg.Name, unix.EINVAL)
	}
	proto := "TCP"
	if udp {
		proto = "UDP"
	}
	what := fmt.Sprintf("%s port %d of %v, which is shared with the kernel's side of %s", proto,
		at.Port(), at.Addr(), t.cfg.Name)
	if at.Port() < firstUnprivileged {
		return nil, fmt.Errorf("%s: ports below %d stay the kernel's: %w", what, firstUnprivileged,
			unix.EACCES)
	}
	if t.lent {
		return nothingKept{}, nil
	}
	zone := 0
	if at.Addr().IsLinkLocalUnicast() {
		l, err := t.k.link()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		zone = l.Attrs().Index
	}
	var f io.Closer
	var err error
	if t.keeper.do == nil {
		f, err = keepPort(udp, at, zone)
	} else {
		done := make(chan struct{})
		t.keeper.do <- func() {
			defer close(done)
			f, err = keepPort(udp, at, zone)
		}
		<-done
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%s: a program there has it (ss -lntup shows which): %w", what, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return f, nil
}

// keepPort makes a socket that has the port and gets nothing. One of TCP listens, and lets the
// address be used again: so connections that linger from before are in nobody's way, and who wants
// to listen there, too, may not. A filter has it answer nobody, since what the kernel gets to see
// for the port is a stray fragment at most. zone is the interface that a link-local address is of.
func keepPort(udp bool, at netip.AddrPort, zone int) (io.Closer, error) {
	domain, kind := unix.AF_INET6, unix.SOCK_STREAM
	if at.Addr().Is4() {
		domain = unix.AF_INET
	}
	if udp {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &nothing[0]})
	if err == nil { // the address may come later, or be tried by the kernel still
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	}
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(),
		ZoneId: uint32(zone)}
	if at.Addr().Is4() {
		sa = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	if err == nil && !udp {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err == nil && !udp {
		err = unix.Listen(fd, 0)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return keptPort(fd), nil
}

// nothingKept is of a port that the kernel's programs may have, too.
type nothingKept struct{}

func (nothingKept) Close() error { return nil }

// A keptPort is the descriptor of a socket.
type keptPort int

func (p keptPort) Close() error { return unix.Close(int(p)) }
