package port

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// A VXLAN is a port whose link is a segment of VXLAN.
type VXLAN struct {
	cfg     VXLANConfig
	at      *ethswitch.Attachment
	conn    *net.UDPConn
	raw     syscall.RawConn
	fd      int // of conn, as long as it is open
	mtu     int // of an IP packet in the segment
	header  [vxlanHeaderLen]byte
	remotes []unix.RawSockaddrInet6 // or RawSockaddrInet4, as Local is
	namelen uint32
	behind  *behind // nil: there is one remote end
	refused atomic.Uint64
	tooLong atomic.Uint64

	closing sync.Once
	err     error // of Close
	wg      sync.WaitGroup
}

var _ ethswitch.Port = (*VXLAN)(nil)

// OpenVXLAN makes a port of sw. What does not fit into a datagram that the network takes whole is
// dropped: ends of VXLAN do not fragment (RFC 7348, section 4.3).
func OpenVXLAN(sw *ethswitch.Switch, c VXLANConfig) (*VXLAN, error) {
	c.Remotes = slices.Clone(c.Remotes)
	if c.Name == "" {
		c.Name = fmt.Sprintf("vxlan:%d", c.VNI)
	}
	v := &VXLAN{cfg: c, fd: -1}
	err := c.Check()
	if err == nil {
		err = v.open()
	}
	if err == nil {
		v.at, err = sw.Attach(ethswitch.PortOptions{Name: c.Name, Kind: "vxlan"}, v)
	}
	if err != nil {
		if v.conn != nil {
			v.conn.Close()
		}
		if errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("%w (perhaps by Linux's own vxlan: give both another port)", err)
		}
		return nil, fmt.Errorf("netstack: %s: %w", c.Name, err)
	}
	v.wg.Go(v.receive)
	return v, nil
}

// open makes the socket.
func (v *VXLAN) open() error {
	c := &v.cfg
	putVXLAN(&v.header, c.VNI)
	network, level, option, value := "udp6", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER,
		unix.IPV6_PMTUDISC_DO
	if c.Local.Addr().Is4() {
		network, level, option, value = "udp4", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER,
			unix.IP_PMTUDISC_DO
	}
	whole := func(_, _ string, rc syscall.RawConn) (err error) {
		cerr := rc.Control(func(fd uintptr) {
			v.fd = int(fd)
			err = os.NewSyscallError("IP_MTU_DISCOVER",
				unix.SetsockoptInt(v.fd, level, option, value))
		})
		return errors.Join(cerr, err)
	}
	for _, r := range c.Remotes {
		v.addRemote(r)
		mtu, err := pathMTU(network, c.Local.Addr(), r)
		if err != nil {
			return err
		}
		if mtu -= vxlanOverhead(r.Addr()); v.mtu == 0 || mtu < v.mtu {
			v.mtu = mtu
		}
	}
	if len(c.Remotes) > 1 {
		v.behind = &behind{now: time.Now, at: make(map[frame.MAC]place)}
	}
	l := net.ListenConfig{Control: whole}
	conn, err := l.ListenPacket(context.Background(), network, c.Local.String())
	if err != nil {
		return err
	}
	v.conn = conn.(*net.UDPConn)
	v.raw, err = v.conn.SyscallConn()
	return err
}

// pathMTU is what the kernel takes to be the longest IP packet that gets from local to remote.
func pathMTU(network string, local netip.Addr, remote netip.AddrPort) (mtu int, err error) {
	conn, err := net.DialUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0)),
		net.UDPAddrFromAddrPort(remote))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	rc, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := rc.Control(func(fd uintptr) {
		if local.Is4() {
			mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU)
		} else {
			mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU)
		}
	})
	return mtu, errors.Join(cerr, err)
}

// addRemote adds the address in the kernel's form.
func (v *VXLAN) addRemote(r netip.AddrPort) {
	var sa unix.RawSockaddrInet6
	port := (*[2]byte)(unsafe.Pointer(&sa.Port))
	if r.Addr().Is4() {
		v.namelen = unix.SizeofSockaddrInet4
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sa))
		sa4.Family, sa4.Addr = unix.AF_INET, r.Addr().As4()
	} else {
		v.namelen = unix.SizeofSockaddrInet6
		sa.Family, sa.Addr = unix.AF_INET6, r.Addr().As16()
	}
	binary.BigEndian.PutUint16(port[:], r.Port())
	v.remotes = append(v.remotes, sa)
}

// remote is the end that a datagram is from, by its address: ports are as the sender's hash has
// them (section 5). -1: none of them.
func (v *VXLAN) remote(sa *unix.RawSockaddrInet6) int {
	var from netip.Addr
	switch sa.Family {
	case unix.AF_INET:
		from = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr)
	case unix.AF_INET6:
		from = netip.AddrFrom16(sa.Addr)
	}
	for i := range v.cfg.Remotes {
		if v.cfg.Remotes[i].Addr() == from {
			return i
		}
	}
	return -1
}

// MTU is the longest IP packet that the segment carries whole, as far as the kernel knows the way.
func (v *VXLAN) MTU() int { return v.mtu }

// Name is the port's name on the switch.
func (v *VXLAN) Name() string { return v.cfg.Name }

// Stats returns the port's counters.
func (v *VXLAN) Stats() ethswitch.PortStats { return v.at.Stats() }

// Offloads implements Port: frames are whole.
func (v *VXLAN) Offloads(frame.GSO) bool { return false }

// String implements Port.
func (v *VXLAN) String() string {
	s := fmt.Sprintf("VNI %d at %v, with", v.cfg.VNI, v.cfg.Local)
	for _, r := range v.cfg.Remotes {
		s += " " + r.String()
	}
	s += fmt.Sprintf(", IP packets of %d octets", v.mtu)
	if n := v.refused.Load(); n > 0 {
		s += fmt.Sprintf(" (%d datagrams of others, or of another segment)", n)
	}
	if n := v.tooLong.Load(); n > 0 {
		s += fmt.Sprintf(" (%d frames too long: give devices mtu=%d)", n, v.mtu)
	}
	return s
}

// Transmit implements Port.
func (v *VXLAN) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	var head [frame.EtherHeaderLen]byte
	if n, _ := f.Buffer.ReadAt(head[:], 0); n < len(head) ||
		tagged(binary.BigEndian.Uint16(head[12:])) {
		return false
	}
	w := tapWrites.Get().(*tapWrite)
	w.add(v.header[:])
	w.addFrame(f)
	sent := true
	if to, known := v.find(frame.MAC(head[:6])); known {
		sent = v.send(w.iov, to)
	} else {
		for to := range v.remotes {
			sent = v.send(w.iov, to) && sent
		}
	}
	clear(w.iov)
	w.iov = w.iov[:0]
	tapWrites.Put(w)
	return sent
}

// find is the one remote end for a station; false: all of them are.
func (v *VXLAN) find(dst frame.MAC) (remote int, known bool) {
	if v.behind == nil {
		return 0, true
	}
	if dst.IsGroup() {
		return 0, false
	}
	return v.behind.find(dst)
}

// send never waits: what the kernel has no room for is lost.
func (v *VXLAN) send(iov []unix.Iovec, to int) bool {
	msg := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&v.remotes[to])), Namelen: v.namelen,
		Iov: unsafe.SliceData(iov)}
	msg.SetIovlen(len(iov))
	for {
		_, _, err := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(v.fd), uintptr(unsafe.Pointer(&msg)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch err {
		case 0:
			return true
		case unix.EINTR:
		case unix.EMSGSIZE:
			v.tooLong.Add(1)
			return false
		default:
			return false
		}
	}
}

// vxlanRead is room for a datagram, which is one octet longer than any IP packet.
const vxlanRead = 65536

// A vxlanReader reads datagrams. It belongs to one goroutine.
type vxlanReader struct {
	v       *VXLAN
	courier *ethswitch.Courier
	buf     []byte
	from    unix.RawSockaddrInet6
	iov     unix.Iovec
	n       int
	err     unix.Errno
}

// receive passes on what comes until the socket is closed.
func (v *VXLAN) receive() {
	r := &vxlanReader{v: v, courier: ethswitch.NewCourier(v.at), buf: make([]byte, vxlanRead)}
	bring := r.bring
	for v.raw.Read(bring) == nil {
	}
}

// maxBrought bounds the datagrams that are brought at once: who sends without a pause does not keep
// what others have sent before from arriving, nor the port from being closed.
const maxBrought = 64

// bring brings all datagrams that are there, if there is one, up to maxBrought. Those that are
// there one behind the other are brought together, so that one answer, or ACK, is enough for them.
func (r *vxlanReader) bring(fd uintptr) bool {
	if !r.read(fd) {
		return false
	}
	n := 1
	for more := true; more; n++ {
		f := r.frame()
		more = n < maxBrought && r.read(fd)
		switch {
		case f == nil:
		case !more && len(r.courier.Gathered()) == 0:
			_ = r.v.at.Input(f) // counts what it drops
			f.Release()
		case !r.courier.Gather(f):
			r.courier.BringAll()
		}
	}
	if len(r.courier.Gathered()) > 0 {
		r.courier.BringAll()
	}
	return true
}

// read takes a datagram, or an error of the network, which may be there again; false: there is
// none.
func (r *vxlanReader) read(fd uintptr) bool {
	r.iov = vector(r.buf)
	msg := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&r.from)), Namelen: unix.SizeofSockaddrInet6,
		Iov: &r.iov}
	msg.SetIovlen(1)
	for {
		n, _, err := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&msg)),
			unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		r.n, r.err = int(n), err
		return err != unix.EAGAIN
	}
}

// frame is what the datagram carries; nil: nothing that is for the switch.
func (r *vxlanReader) frame() *frame.Frame {
	if r.err != 0 {
		return nil
	}
	remote := r.v.remote(&r.from)
	inner, ok := parseVXLAN(r.buf[:r.n], r.v.cfg.VNI)
	if remote < 0 || !ok {
		r.v.refused.Add(1)
		r.v.at.CountDrop()
		return nil
	}
	if b := r.v.behind; b != nil {
		b.learn(frame.MAC(inner[6:12]), remote)
	}
	return frame.New(inner, frame.Offload{})
}

// Close takes the port off its switch and closes the socket.
func (v *VXLAN) Close() error {
	v.closing.Do(func() {
		v.at.Detach()
		v.err = v.conn.Close()
		v.wg.Wait()
	})
	return v.err
}
