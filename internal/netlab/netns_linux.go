package netlab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// An NS is a network namespace. Its methods may be called from several goroutines at once.
type NS struct {
	f  *os.File // nil: the namespace the process is in
	nl *conn
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
		nl, err := dialNetlink(unix.NETLINK_ROUTE)
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

// Here returns the namespace the process is in. Closing it leaves the namespace alone.
func Here() (*NS, error) {
	nl, err := dialNetlink(unix.NETLINK_ROUTE)
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
	err := ns.nl.close()
	if ns.f != nil {
		if e := ns.f.Close(); e != nil {
			err = e
		}
	}
	return err
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

const bothNew = unix.NLM_F_CREATE | unix.NLM_F_EXCL

// AddBridge makes a bridge, up, that forwards at once and has no opinions: no spanning tree, no
// multicast snooping.
func (ns *NS) AddBridge(name string) error {
	var data []byte
	data = attrUint32(data, unix.IFLA_BR_FORWARD_DELAY, 0)
	data = attrUint32(data, unix.IFLA_BR_STP_STATE, 0)
	data = attr(data, unix.IFLA_BR_MCAST_SNOOPING, []byte{0})
	if err := ns.newLink(name, "bridge", data); err != nil {
		return fmt.Errorf("netlab: bridge %s: %w", name, err)
	}
	return ns.SetUp(name)
}

// vethInfoPeer is VETH_INFO_PEER of linux/veth.h.
const vethInfoPeer = 1

// AddVeth makes a pair of links, both up: name in ns, peerName in peer.
func (ns *NS) AddVeth(name string, peer *NS, peerName string) error {
	p := attrString(ifinfo(0, 0, 0), unix.IFLA_IFNAME, peerName)
	if peer.f != nil {
		p = attrUint32(p, unix.IFLA_NET_NS_FD, uint32(peer.f.Fd()))
	}
	if err := ns.newLink(name, "veth", attr(nil, vethInfoPeer, p)); err != nil {
		return fmt.Errorf("netlab: veth %s: %w", name, err)
	}
	if err := ns.SetUp(name); err != nil {
		return err
	}
	return peer.SetUp(peerName)
}

func (ns *NS) newLink(name, kind string, data []byte) error {
	info := attrString(nil, unix.IFLA_INFO_KIND, kind)
	info = attr(info, unix.IFLA_INFO_DATA, data)
	b := attrString(ifinfo(0, 0, 0), unix.IFLA_IFNAME, name)
	return ns.nl.do(unix.RTM_NEWLINK, bothNew, attr(b, unix.IFLA_LINKINFO, info))
}

// SetMaster puts a link on a bridge.
func (ns *NS) SetMaster(link, bridge string) error {
	m, err := ns.nl.index(bridge)
	if err != nil {
		return fmt.Errorf("netlab: %w", err)
	}
	return ns.change(link, 0, attrUint32(nil, unix.IFLA_MASTER, uint32(m)))
}

// SetUp sets a link up.
func (ns *NS) SetUp(link string) error { return ns.change(link, unix.IFF_UP, nil) }

// SetMTU sets a link's MTU in octets.
func (ns *NS) SetMTU(link string, mtu int) error {
	return ns.change(link, 0, attrUint32(nil, unix.IFLA_MTU, uint32(mtu)))
}

func (ns *NS) change(link string, flags uint32, attrs []byte) error {
	i, err := ns.nl.index(link)
	if err == nil {
		err = ns.nl.do(unix.RTM_NEWLINK, 0, append(ifinfo(i, flags, flags), attrs...))
	}
	if err != nil {
		return fmt.Errorf("netlab: set link %s: %w", link, err)
	}
	return nil
}

// AddAddr gives a link an address. An IPv6 one can be used at once: no duplicate detection.
func (ns *NS) AddAddr(link string, p netip.Prefix) error {
	i, err := ns.nl.index(link)
	if err != nil {
		return fmt.Errorf("netlab: %w", err)
	}
	family := byte(unix.AF_INET)
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	// struct ifaddrmsg: family, prefix length, flags, scope, index.
	b := []byte{family, byte(p.Bits()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}
	b = append(b, ifinfo(i, 0, 0)[4:8]...)
	b = attr(b, unix.IFA_LOCAL, p.Addr().AsSlice())
	b = attr(b, unix.IFA_ADDRESS, p.Addr().AsSlice())
	if err := ns.nl.do(unix.RTM_NEWADDR, bothNew, b); err != nil {
		return fmt.Errorf("netlab: address %v on %s: %w", p, link, err)
	}
	return nil
}

// WaitRunning waits until a link has its carrier and the kernel has taken notice, which may take
// a second after SetUp; before that, frames sent on it are dropped without a word.
func (ns *NS) WaitRunning(link string, timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		links, err := ns.nl.links()
		if err != nil {
			return fmt.Errorf("netlab: %w", err)
		}
		if slices.ContainsFunc(links, func(l linkInfo) bool {
			return l.name == link && l.flags&unix.IFF_RUNNING != 0
		}) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("netlab: link %s is not running: %w", link, os.ErrDeadlineExceeded)
		}
	}
}

// DelLink removes a link.
func (ns *NS) DelLink(link string) error {
	i, err := ns.nl.index(link)
	if err == nil {
		err = ns.nl.do(unix.RTM_DELLINK, 0, ifinfo(i, 0, 0))
	}
	if err != nil {
		return fmt.Errorf("netlab: delete link %s: %w", link, err)
	}
	return nil
}

// Links returns the names of the links in the namespace, lo included.
func (ns *NS) Links() ([]string, error) {
	links, err := ns.nl.links()
	if err != nil {
		return nil, fmt.Errorf("netlab: %w", err)
	}
	names := make([]string, len(links))
	for i, l := range links {
		names[i] = l.name
	}
	return names, nil
}
