package hostudp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/internal/doze"
)

// A Datagram is one that has come.
type Datagram struct {
	Src         netip.AddrPort
	Dst         netip.Addr // the Socket's address, or a group
	Class, Hops uint8      // the traffic class, and the hop limit or TTL
	Data        []byte     // good for the call
	Group       bool       // Dst is a group
	Batch       *Batch
}

// A Handler takes what comes.
type Handler interface {
	// Receive is called with one datagram after the other, by several goroutines if groups are joined.
	Receive(d *Datagram)
}

// A Socket is a port of an address. Its methods may be called from several goroutines at once.
type Socket struct {
	addr    netip.Addr
	port    uint16
	zone    int // the interface that has the address
	handler Handler
	own     *end

	// full is held by who waits for room, which takes a thread: one for all of them.
	full sync.Mutex

	wg     sync.WaitGroup // of who hands up what comes
	mu     sync.Mutex
	groups map[netip.Addr]*group // nil: closed; guarded by mu
}

// A group is one that is joined, so many times.
type group struct {
	*end
	n int
}

// maxGroups is how many groups a Socket may be in: each is a socket of the kernel's.
const maxGroups = 256

// Open takes the port of addr, which is the host's. EADDRINUSE: somebody has it.
func Open(addr netip.Addr, port uint16, h Handler) (*Socket, error) {
	s := &Socket{addr: addr, port: port, handler: h, zone: interfaceOf(addr),
		groups: make(map[netip.Addr]*group)}
	var err error
	if s.own, err = s.open(addr); err != nil {
		return nil, fmt.Errorf("UDP port %d of %v: %w", port, addr, err)
	}
	return s, nil
}

// interfaceOf is the index of the interface that has a, or 0.
func interfaceOf(a netip.Addr) int {
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil && (p.Addr().Unmap() == a ||
				p.Addr().IsLoopback() && p.Contains(a)) {
				return i.Index
			}
		}
	}
	return 0
}

// open makes a socket of the kernel's at a, the address or a group, and has it served.
func (s *Socket) open(a netip.Addr) (*end, error) {
	domain := unix.AF_INET6
	if a.Is4() {
		domain = unix.AF_INET
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := s.setUp(fd, a); err != nil {
		unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "udp")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	e := &end{s: s, at: a, f: f, raw: raw}
	e.reading, e.moreFunc = e.readSocket, e.more
	e.ready = func(uintptr) bool { return e.read() }
	if e.doze, err = doze.New(raw); err != nil {
		f.Close()
		return nil, err
	}
	s.wg.Go(e.serve)
	return e, nil
}

// setUp sets the options of a socket, and binds it to a.
func (s *Socket) setUp(fd int, a netip.Addr) error {
	set := func(level, name, value int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, name, value))
	}
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF},
		{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		const buffer = 4 << 20
		if set(unix.SOL_SOCKET, o[0], buffer) != nil { // that takes CAP_NET_ADMIN
			_ = set(unix.SOL_SOCKET, o[1], buffer) // the kernel gives what it may
		}
	}
	wait := unix.NsecToTimeval(roomTime.Nanoseconds())
	errs := []error{os.NewSyscallError("setsockopt",
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait))}
	_ = set(unix.SOL_UDP, unix.UDP_GRO, 1) // what is older than Linux 5.0 gives them one by one
	if a.Is4() {
		errs = append(errs, set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO),
			set(unix.IPPROTO_IP, unix.IP_RECVTOS, 1), set(unix.IPPROTO_IP, unix.IP_RECVTTL, 1))
	} else {
		errs = append(errs, set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
			set(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
			set(unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1),
			set(unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1),
			set(unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1)) // RoCE's packets may have none
	}
	if !a.IsMulticast() { // what is sent to groups goes out at the address's interface
		if a.Is4() {
			errs = append(errs, os.NewSyscallError("setsockopt",
				unix.SetsockoptInet4Addr(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, a.As4())))
		} else {
			errs = append(errs, set(unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, s.zone))
		}
	} else {
		errs = append(errs, set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), s.join(fd, a))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.NewSyscallError("bind", unix.Bind(fd, s.sockaddr(netip.AddrPortFrom(a, s.port))))
}

// join has the socket in a group.
func (s *Socket) join(fd int, g netip.Addr) error {
	if g.Is4() {
		return os.NewSyscallError("setsockopt", unix.SetsockoptIPMreq(fd, unix.IPPROTO_IP,
			unix.IP_ADD_MEMBERSHIP, &unix.IPMreq{Multiaddr: g.As4(), Interface: s.addr.As4()}))
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6,
		unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: g.As16(), Interface: uint32(s.zone)}))
}

func (s *Socket) sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if a.Addr().IsLinkLocalUnicast() || a.Addr().IsLinkLocalMulticast() {
		sa.ZoneId = uint32(s.zone)
	}
	return sa
}

// Addr is the address.
func (s *Socket) Addr() netip.Addr { return s.addr }

// Join has datagrams to a group handed up. It counts: each wants its Leave.
func (s *Socket) Join(a netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch g := s.groups[a]; {
	case s.groups == nil:
		return net.ErrClosed
	case !a.IsMulticast() || a.Is4() != s.addr.Is4():
		return fmt.Errorf("join %v: %w", a, syscall.EINVAL)
	case g != nil:
		g.n++
		return nil
	case len(s.groups) >= maxGroups:
		return fmt.Errorf("join %v: in %d groups already: %w", a, maxGroups, syscall.ENOBUFS)
	}
	e, err := s.open(a)
	if err != nil {
		return fmt.Errorf("join %v at %v: %w", a, s.addr, err)
	}
	s.groups[a] = &group{e, 1}
	return nil
}

// Leave takes a Join back. It may wait for the Handler.
func (s *Socket) Leave(a netip.Addr) error {
	s.mu.Lock()
	g := s.groups[a]
	if g == nil {
		s.mu.Unlock()
		return fmt.Errorf("leave %v: %w", a, syscall.EADDRNOTAVAIL)
	}
	if g.n--; g.n > 0 {
		s.mu.Unlock()
		return nil
	}
	delete(s.groups, a)
	s.mu.Unlock()
	g.close() // who serves it ends by itself: it may be the one that has called
	return nil
}

// Close hands nothing up any more, and waits for calls of the Handler.
func (s *Socket) Close() error {
	s.mu.Lock()
	if s.groups == nil {
		s.mu.Unlock()
		return net.ErrClosed
	}
	ends := []*end{s.own}
	for _, g := range s.groups {
		ends = append(ends, g.end)
	}
	s.groups = nil
	s.mu.Unlock()
	for _, e := range ends {
		e.close()
	}
	s.wg.Wait()
	return nil
}

// Reach says how large a packet to remote may be; an error wraps ENETUNREACH, EHOSTUNREACH, or what
// else the kernel says of the way there. No packet is sent.
func (s *Socket) Reach(ctx context.Context, remote netip.Addr) (mtu int, err error) {
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.addr, 0))}
	c, err := d.DialContext(ctx, "udp", netip.AddrPortFrom(remote, s.port).String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if remote.Is6() {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	var oerr error
	err = raw.Control(func(fd uintptr) { mtu, oerr = unix.GetsockoptInt(int(fd), level, name) })
	return min(mtu, 1<<16-1), errors.Join(err, oerr)
}
