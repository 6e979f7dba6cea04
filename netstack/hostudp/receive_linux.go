package hostudp

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/internal/doze"
	"github.com/vrnic/vrnic/netstack/internal/slice"
)

// An end is a socket of the kernel's, and who waits for what comes to it.
type end struct {
	s   *Socket
	at  netip.Addr
	f   *os.File // in no poller: calls of it do not wait
	raw syscall.RawConn
	// doze is where the reader waits.
	doze *doze.Epoll
	// readSocket, more and read
	reading  func(fd uintptr)
	moreFunc func() bool
	ready    func(uintptr) bool

	in    []arrival // the reader's
	got   int       // how many of them are there
	err   error
	msgs  []message
	batch Batch
	slice slice.Usual
}

// atOnce is how many datagrams, or runs of them that the kernel has put together, are read in a
// call.
const atOnce = 8

// An arrival is room for one.
type arrival struct {
	data [1 << 16]byte
	from unix.RawSockaddrInet6 // or of IPv4, which is shorter
	oob  [128]byte
	iov  unix.Iovec
}

// A message is the kernel's struct mmsghdr.
type message struct {
	hdr unix.Msghdr
	n   uint32
	_   uint32
}

// A Batch is datagrams that have come together. It belongs to the goroutine that hands them up.
type Batch struct {
	end  *end
	then interface{ Finish() }
}

// Defer has f.Finish called when all of them have been handed up; false: it is another's.
func (b *Batch) Defer(f interface{ Finish() }) bool {
	if b.then != nil {
		return false
	}
	b.then = f
	return true
}

// Deferred is whose Finish will be called, or nil.
func (b *Batch) Deferred() interface{ Finish() } { return b.then }

// Local reports that they come from the kernel.
func (b *Batch) Local() bool { return false }

// More is for who is in a Finish: it reports whether further datagrams are there.
func (b *Batch) More() func() bool { return b.end.moreFunc }

// FinishEarly calls what Defer was given.
func (b *Batch) FinishEarly() {
	f := b.then
	b.then = nil
	if f != nil {
		f.Finish()
	}
}

// serve hands up what comes until the file is closed.
func (e *end) serve() {
	defer e.slice.End()
	e.in, e.msgs = make([]arrival, atOnce), make([]message, atOnce)
	e.batch.end = e
	var d Datagram
	for {
		if e.got == 0 {
			e.slice.End()
			if e.doze.Wait(e.ready) != nil || e.err != nil {
				return
			}
		}
		n := e.got
		for i := range n {
			e.hand(&d, i)
		}
		e.got = 0
		e.batch.FinishEarly() // which may look for more
	}
}

// more reads what is there, if nothing is left of what was read before. Who calls it looks again
// and again, and is told of nothing meanwhile.
func (e *end) more() bool {
	e.slice.Share()
	e.doze.Ignore()
	return e.got > 0 || e.read()
}

// read reads what is there; false: nothing is.
func (e *end) read() bool {
	if err := e.raw.Control(e.reading); err != nil {
		e.err = err // it is closed
	}
	return e.got > 0 || e.err != nil
}

// readSocket is for RawConn.Control. Go's scheduler is not told of the call, which does not wait.
func (e *end) readSocket(fd uintptr) {
	for i := range e.msgs {
		a, m := &e.in[i], &e.msgs[i]
		a.iov.Base = &a.data[0]
		a.iov.SetLen(len(a.data))
		m.hdr = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&a.from)), Iov: &a.iov, Control: &a.oob[0]}
		m.hdr.Namelen = uint32(unsafe.Sizeof(a.from))
		m.hdr.SetIovlen(1)
		m.hdr.SetControllen(len(a.oob))
	}
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&e.msgs[0])),
			uintptr(len(e.msgs)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			e.got = int(n)
			return
		case unix.EINTR:
		case unix.EBADF, unix.ENOTSOCK:
			e.err = errno
			return
		default: // nothing, or no memory, perhaps: the next datagram is told of again
			return
		}
	}
}

// hand hands up the datagrams of arrival i.
func (e *end) hand(d *Datagram, i int) {
	a, m := &e.in[i], &e.msgs[i]
	*d = Datagram{Dst: e.at, Group: e.at.IsMulticast(), Batch: &e.batch}
	if a.from.Family == unix.AF_INET {
		from := (*unix.RawSockaddrInet4)(unsafe.Pointer(&a.from))
		d.Src = netip.AddrPortFrom(netip.AddrFrom4(from.Addr), port(&from.Port))
	} else {
		d.Src = netip.AddrPortFrom(netip.AddrFrom16(a.from.Addr), port(&a.from.Port))
	}
	data := a.data[:m.n]
	size := len(data)
	if n := readControl(a.oob[:min(int(m.hdr.Controllen), len(a.oob))], d); n > 0 {
		size = n
	}
	if m.hdr.Flags&unix.MSG_TRUNC != 0 {
		return
	}
	for len(data) > 0 {
		n := min(size, len(data))
		d.Data = data[:n:n]
		e.s.handler.Receive(d)
		data = data[n:]
	}
}

// close ends serve, at its next look, and gives the socket back.
func (e *end) close() {
	e.f.Close()
	e.doze.Close()
}

// port is a port as the kernel has it in an address.
func port(p *uint16) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:])
}

// readControl notes what control messages say. size is that of datagrams that the kernel has put
// together, or 0.
func readControl(b []byte, d *Datagram) (size int) {
	const head = unix.SizeofCmsghdr
	for len(b) >= head {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		n := int(h.Len)
		if n < head || n > len(b) {
			return size
		}
		value := b[head:n]
		number := 0
		if len(value) >= 4 {
			number = int(binary.NativeEndian.Uint32(value))
		} else if len(value) > 0 {
			number = int(value[0])
		}
		switch [2]int32{h.Level, h.Type} {
		case [2]int32{unix.IPPROTO_IP, unix.IP_TOS}, [2]int32{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}:
			d.Class = uint8(number)
		case [2]int32{unix.IPPROTO_IP, unix.IP_TTL}, [2]int32{unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT}:
			d.Hops = uint8(number)
		case [2]int32{unix.SOL_UDP, unix.UDP_GRO}:
			size = number
		}
		b = b[min(unix.CmsgSpace(n-head), len(b)):]
	}
	return size
}
