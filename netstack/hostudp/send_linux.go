package hostudp

import (
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits of a Message.
const (
	MaxDatagrams = 64         // that go in one call: UDP_MAX_SEGMENTS of Linux before 6.9
	MaxOctets    = 65535 - 48 // of all of them
)

// A Message is datagrams of one size, of which the last may be shorter, to one destination. It
// belongs to one goroutine at a time, and is used again and again.
type Message struct {
	Class, Hops uint8
	Size        int // of each but the last

	iov  []unix.Iovec
	oob  [128]byte
	to4  unix.RawSockaddrInet4
	to6  unix.RawSockaddrInet6
	errs unix.Errno
	hdr  unix.Msghdr
	long bool // a call takes some time
	run  func(fd uintptr)
	wait func(fd uintptr)
}

// roomTime is how long a call waits for room before it looks whether the Socket was closed.
const roomTime = 100 * time.Millisecond

// Send sends the datagrams whose octets are in pieces, one each. The kernel does not wait for the
// network; what it has no room for is waited for, for as long as the interface takes. It does not
// allocate. EMSGSIZE: they are too long for the way, EINVAL or EIO: the interface takes no several
// at once.
func (s *Socket) Send(m *Message, to netip.Addr, pieces [][]byte) error {
	m.iov = m.iov[:0]
	m.long = len(pieces)*m.Size > 4096
	for _, p := range pieces {
		v := unix.Iovec{Base: unsafe.SliceData(p)}
		v.SetLen(len(p))
		m.iov = append(m.iov, v)
	}
	m.hdr = unix.Msghdr{Iov: unsafe.SliceData(m.iov), Control: &m.oob[0]}
	m.hdr.SetIovlen(len(m.iov))
	n := 0
	put := func(level, kind int32, size int, value uint32) {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&m.oob[n]))
		h.Level, h.Type = level, kind
		h.SetLen(unix.CmsgLen(size))
		at := unsafe.Pointer(&m.oob[n+unix.SizeofCmsghdr])
		if size == 2 {
			*(*uint16)(at) = uint16(value)
		} else {
			*(*uint32)(at) = value
		}
		n += unix.CmsgSpace(size)
	}
	if len(pieces) > 1 {
		put(unix.SOL_UDP, unix.UDP_SEGMENT, 2, uint32(m.Size))
	}
	if to.Is4() {
		m.to4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.As4()}
		setPort(&m.to4.Port, s.port)
		m.hdr.Name, m.hdr.Namelen = (*byte)(unsafe.Pointer(&m.to4)), unix.SizeofSockaddrInet4
		put(unix.IPPROTO_IP, unix.IP_TOS, 4, uint32(m.Class))
		put(unix.IPPROTO_IP, unix.IP_TTL, 4, uint32(max(m.Hops, 1)))
	} else {
		m.to6 = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: to.As16()}
		if to.IsLinkLocalUnicast() || to.IsLinkLocalMulticast() {
			m.to6.Scope_id = uint32(s.zone)
		}
		setPort(&m.to6.Port, s.port)
		m.hdr.Name, m.hdr.Namelen = (*byte)(unsafe.Pointer(&m.to6)), unix.SizeofSockaddrInet6
		put(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4, uint32(m.Class))
		put(unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, 4, uint32(m.Hops))
	}
	m.hdr.SetControllen(n)
	if m.run == nil {
		m.run, m.wait = m.send, m.sendWaiting
	}
	err := s.own.raw.Control(m.run)
	if m.errs == unix.EAGAIN && err == nil {
		s.full.Lock()
		defer s.full.Unlock()
	}
	for m.errs == unix.EAGAIN && err == nil {
		err = s.own.raw.Control(m.wait)
	}
	switch {
	case err != nil:
		return net.ErrClosed
	case m.errs != 0:
		return m.errs
	}
	return nil
}

// send is for RawConn.Control. It does not wait.
func (m *Message) send(fd uintptr) {
	for {
		if m.long {
			_, _, m.errs = unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&m.hdr)),
				unix.MSG_DONTWAIT)
		} else { // of which Go's scheduler need not be told
			_, _, m.errs = unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&m.hdr)),
				unix.MSG_DONTWAIT)
		}
		if m.errs != unix.EINTR {
			return
		}
	}
}

// sendWaiting is send that waits for room, for roomTime at most.
func (m *Message) sendWaiting(fd uintptr) {
	for {
		_, _, m.errs = unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&m.hdr)), 0)
		if m.errs != unix.EINTR {
			return
		}
	}
}

func setPort(p *uint16, port uint16) {
	b := (*[2]byte)(unsafe.Pointer(p))
	b[0], b[1] = byte(port>>8), byte(port)
}
