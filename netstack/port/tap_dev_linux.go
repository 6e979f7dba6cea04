package port

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// A kernelIf changes a network interface of the kernel. Its sockets belong to the namespace in which
// it was made, so it can be used from anywhere.
type kernelIf struct {
	name string
	sock int // for ioctls
	nl   int // rtnetlink
	seq  uint32
}

func newKernelIf(name string) (k *kernelIf, err error) {
	k = &kernelIf{name: name, sock: -1, nl: -1}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	if k.sock, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	k.nl, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("netlink socket", err)
	}
	if err = unix.Bind(k.nl, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("netlink bind", err)
	}
	return k, nil
}

func (k *kernelIf) close() {
	for _, fd := range []int{k.sock, k.nl} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// ioctl does an ioctl on the interface; set, if not nil, fills the request in.
func (k *kernelIf) ioctl(req uint, what string, set func(*unix.Ifreq)) (*unix.Ifreq, error) {
	r, err := unix.NewIfreq(k.name)
	if err != nil {
		return nil, fmt.Errorf("interface name %q: %w", k.name, err)
	}
	if set != nil {
		set(r)
	}
	if err := unix.IoctlIfreq(k.sock, req, r); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return r, nil
}

// index is the interface's number; ok is false if there is no such interface.
func (k *kernelIf) index() (n int, ok bool, err error) {
	r, err := k.ioctl(unix.SIOCGIFINDEX, "look up", nil)
	if errors.Is(err, unix.ENODEV) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return int(r.Uint32()), true, nil
}

func (k *kernelIf) mtu() (int, error) {
	r, err := k.ioctl(unix.SIOCGIFMTU, "read MTU", nil)
	if err != nil {
		return 0, err
	}
	return int(r.Uint32()), nil
}

func (k *kernelIf) setMTU(mtu int) error {
	_, err := k.ioctl(unix.SIOCSIFMTU, fmt.Sprintf("set MTU %d", mtu),
		func(r *unix.Ifreq) { r.SetUint32(uint32(mtu)) })
	return err
}

func (k *kernelIf) isUp() (bool, error) {
	r, err := k.ioctl(unix.SIOCGIFFLAGS, "read flags", nil)
	if err != nil {
		return false, err
	}
	return r.Uint16()&unix.IFF_UP != 0, nil
}

func (k *kernelIf) setUp(up bool) error {
	r, err := k.ioctl(unix.SIOCGIFFLAGS, "read flags", nil)
	if err != nil {
		return err
	}
	flags := r.Uint16() &^ unix.IFF_UP
	if up {
		flags |= unix.IFF_UP
	}
	_, err = k.ioctl(unix.SIOCSIFFLAGS, "set link up", func(r *unix.Ifreq) { r.SetUint16(flags) })
	return err
}

// addAddr gives the interface an address. added is false if it has it already.
func (k *kernelIf) addAddr(p netip.Prefix) (added bool, err error) {
	err = k.addrRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, p)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add address %v: %w", p, err)
	}
	return true, nil
}

func (k *kernelIf) delAddr(p netip.Prefix) error {
	if err := k.addrRequest(unix.RTM_DELADDR, 0, p); err != nil {
		return fmt.Errorf("remove address %v: %w", p, err)
	}
	return nil
}

// addrRequest sends a struct ifaddrmsg: family(1) prefixlen(1) flags(1) scope(1) index(4), and the
// address as attributes.
func (k *kernelIf) addrRequest(typ, flags uint16, p netip.Prefix) error {
	index, ok, err := k.index()
	if err != nil {
		return err
	}
	if !ok {
		return unix.ENODEV
	}
	a := p.Addr()
	family := byte(unix.AF_INET)
	var ifaFlags byte
	if a.Is6() {
		family = unix.AF_INET6
		ifaFlags = unix.IFA_F_NODAD // usable at once: the other end is ours
	}
	msg := []byte{family, byte(p.Bits()), ifaFlags, unix.RT_SCOPE_UNIVERSE}
	if a.IsLinkLocalUnicast() {
		msg[3] = unix.RT_SCOPE_LINK
	}
	msg = binary.NativeEndian.AppendUint32(msg, uint32(index))
	msg = appendAttr(msg, unix.IFA_LOCAL, a.AsSlice())
	msg = appendAttr(msg, unix.IFA_ADDRESS, a.AsSlice())
	return k.request(typ, flags, msg)
}

// remove deletes the interface.
func (k *kernelIf) remove() error {
	index, ok, err := k.index()
	if err != nil || !ok {
		return err
	}
	// struct ifinfomsg: family(1) pad(1) type(2) index(4) flags(4) change(4)
	msg := make([]byte, 16)
	binary.NativeEndian.PutUint32(msg[4:], uint32(index))
	return k.request(unix.RTM_DELLINK, 0, msg)
}

// appendAttr appends a struct rtattr: len(2) type(2), the value, padding to four octets.
func appendAttr(b []byte, typ uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// request sends a struct nlmsghdr: len(4) type(2) flags(2) seq(4) pid(4), and body, and waits for
// the kernel's answer.
func (k *kernelIf) request(typ, flags uint16, body []byte) error {
	k.seq++
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = binary.NativeEndian.AppendUint32(b, k.seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, body...)
	if err := unix.Sendto(k.nl, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("netlink send", err)
	}
	answer := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(k.nl, answer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("netlink receive", err)
		}
		// The answer to a request with an ACK: nlmsghdr, error(4), the request's header.
		m := answer[:n]
		if len(m) < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint32(m[8:]) != k.seq ||
			binary.NativeEndian.Uint16(m[4:]) != unix.NLMSG_ERROR {
			continue
		}
		if no := int32(binary.NativeEndian.Uint32(m[unix.NLMSG_HDRLEN:])); no != 0 {
			return unix.Errno(-no)
		}
		return nil
	}
}
