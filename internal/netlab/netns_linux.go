package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An NS is a network namespace. Its methods may be called from several goroutines at once.
type NS struct {
	f  *os.File // nil: the namespace the process is in
	nl *netlink.Handle
}

// NewNS makes a namespace with nothing but a loopback device, which is up.
func NewNS() (*NS, error) {
	var ns *NS
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		// A test network wants its addresses at once and no strangers' prefixes.
		for _, s := range []string{"all", "default"} {
			for _, k := range []string{"accept_dad", "accept_ra"} {
				// Without IPv6 in the kernel the files are missing, which is fine.
				_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+s+"/"+k, []byte("0"), 0)
			}
		}
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			f.Close()
			return err
		}
		ns = &NS{f: f, nl: nl}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("netlab: new namespace: %w", err)
	}
	if err := ns.SetUp("lo"); err != nil {
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// At returns the namespace that path names, such as another process's NS.Path.
func At(path string) (*NS, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("netlab: %w", err)
	}
	ns := &NS{f: f}
	if err = ns.Do(func() error {
		ns.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}); err != nil {
		f.Close()
		return nil, fmt.Errorf("netlab: namespace %s: %w", path, err)
	}
	return ns, nil
}

// Here returns the namespace the process is in. Closing it leaves the namespace alone.
func Here() (*NS, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlab: %w", err)
	}
	return &NS{nl: nl}, nil
}

// Path returns a file name that stands for the namespace as long as ns is open; other
// processes of the same user may open it too.
func (ns *NS) Path() string {
	if ns.f == nil {
		return fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.f.Fd())
}

// Close lets go of the namespace. The kernel removes it, and the links in it, when no process
// and no socket is in it any more.
func (ns *NS) Close() error {
	ns.nl.Close()
	if ns.f == nil {
		return nil
	}
	return ns.f.Close()
}

// Do calls f on a thread that is inside the namespace. Sockets, TAPs and processes that f makes
// belong to it; goroutines that f starts do not.
func (ns *NS) Do(f func() error) error {
	if ns.f == nil {
		return f()
	}
	return onThread(func() error {
		if err := unix.Setns(int(ns.f.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// Start starts cmd inside the namespace. As with any child of a thread that goes away, cmd must
// not ask for a parent death signal.
func (ns *NS) Start(cmd *exec.Cmd) error { return ns.Do(cmd.Start) }

// onThread calls f on a thread whose namespace f may change.
func onThread(f func() error) error {
	errc := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			errc <- err
			return
		}
		defer home.Close()
		err = f()
		// A thread that cannot go home stays locked and ends with this goroutine.
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		errc <- err
	}()
	return <-errc
}

// AddBridge makes a bridge, up, that has no opinions: no spanning tree, so that its ports forward
// at once, no multicast snooping, and no firewall, which takes longer than all else for a frame.
func (ns *NS) AddBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := ns.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: new(bool)})
	if err != nil {
		return fmt.Errorf("netlab: bridge %s: %w", name, err)
	}
	for _, family := range []string{"ip", "ip6", "arp"} {
		err := ns.Sysctl("bridge/bridge-nf-call-"+family+"tables", "0")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the kernel has none for bridges
			return err
		}
	}
	return ns.SetUp(name)
}

// AddVeth makes a pair of links, both up: name in ns, peerName in peer.
func (ns *NS) AddVeth(name string, peer *NS, peerName string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peerName}
	if peer.f != nil {
		veth.PeerNamespace = netlink.NsFd(int(peer.f.Fd()))
	}
	if err := ns.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("netlab: veth %s: %w", name, err)
	}
	if err := ns.SetUp(name); err != nil {
		return err
	}
	return peer.SetUp(peerName)
}

// SetMaster puts a link on a bridge.
func (ns *NS) SetMaster(link, bridge string) error {
	b, err := ns.link(bridge)
	if err != nil {
		return fmt.Errorf("netlab: %w", err)
	}
	return ns.change(link, func(l netlink.Link) error { return ns.nl.LinkSetMaster(l, b) })
}

// SetUp sets a link up.
func (ns *NS) SetUp(link string) error { return ns.change(link, ns.nl.LinkSetUp) }

// SetDown takes a link down, which stays.
func (ns *NS) SetDown(link string) error { return ns.change(link, ns.nl.LinkSetDown) }

// SetMTU sets a link's MTU in octets.
func (ns *NS) SetMTU(link string, mtu int) error {
	return ns.change(link, func(l netlink.Link) error { return ns.nl.LinkSetMTU(l, mtu) })
}

// DelLink removes a link.
func (ns *NS) DelLink(link string) error { return ns.change(link, ns.nl.LinkDel) }

// AddAddr gives a link an address. An IPv6 one can be used at once: no duplicate detection.
func (ns *NS) AddAddr(link string, p netip.Prefix) error {
	addr := &netlink.Addr{
		IPNet: &net.IPNet{
			IP:   p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		},
		Flags: unix.IFA_F_NODAD,
	}
	return ns.change(link, func(l netlink.Link) error { return ns.nl.AddrAdd(l, addr) })
}

// change does f to a link.
func (ns *NS) change(link string, f func(netlink.Link) error) error {
	l, err := ns.link(link)
	if err == nil {
		err = f(l)
	}
	if err != nil {
		return fmt.Errorf("netlab: link %s: %w", link, err)
	}
	return nil
}

// link finds a link. The error wraps os.ErrNotExist if there is none of that name.
func (ns *NS) link(name string) (netlink.Link, error) {
	l, err := ns.nl.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = fmt.Errorf("there is no link %s: %w", name, os.ErrNotExist)
	}
	return l, err
}

// WaitRunning waits until a link has its carrier and the kernel has taken notice, which may take
// a second after SetUp; before that, frames sent on it are dropped without a word.
func (ns *NS) WaitRunning(link string, timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		l, err := ns.link(link)
		switch {
		case err == nil && l.Attrs().RawFlags&unix.IFF_RUNNING != 0:
			return nil
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("netlab: %w", err)
		case time.Now().After(end):
			return fmt.Errorf("netlab: link %s is not running: %w", link, os.ErrDeadlineExceeded)
		}
	}
}

// Links returns the names of the links in the namespace, lo included.
func (ns *NS) Links() ([]string, error) {
	links, err := ns.nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("netlab: %w", err)
	}
	names := make([]string, len(links))
	for i, l := range links {
		names[i] = l.Attrs().Name
	}
	return names, nil
}

// OpenTAP makes a TAP of ns, up, for the caller to be what is behind it: each read(2) of the file
// descriptor gives one plain frame that the kernel sends, each write(2) has it receive one, and
// neither waits. Up to queue frames wait to be read. The TAP goes when the file is closed.
func (ns *NS) OpenTAP(name string, queue int) (fd int, err error) {
	err = ns.Do(func() error {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK,
			0); err != nil {
			return err
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd)
		}
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("netlab: TAP %s: %w", name, err)
	}
	if err := errors.Join(ns.SetQueue(name, queue), ns.SetUp(name)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// SetQueue sets how many frames may wait before a link, or to be read from a TAP.
func (ns *NS) SetQueue(link string, frames int) error {
	return ns.change(link, func(l netlink.Link) error { return ns.nl.LinkSetTxQLen(l, frames) })
}

// Dropped is how many frames a link has dropped of those that it should send, because nobody
// took them.
func (ns *NS) Dropped(link string) (uint64, error) {
	l, err := ns.link(link)
	if err != nil {
		return 0, fmt.Errorf("netlab: %w", err)
	}
	return l.Attrs().Statistics.TxDropped, nil
}

// Sysctl sets a value of the namespace below /proc/sys/net, such as ipv4/tcp_congestion_control.
func (ns *NS) Sysctl(name, value string) error {
	err := ns.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
	if err != nil {
		return fmt.Errorf("netlab: %w", err)
	}
	return nil
}
