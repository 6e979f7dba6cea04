package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// conn is a netlink socket. It belongs to the namespace it was opened in, whichever thread
// uses it later.
type conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte
}

func dialNetlink(protocol int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &conn{fd: fd, buf: make([]byte, 1<<16)}, nil
}

func (c *conn) close() error { return unix.Close(c.fd) }

// do sends one request and waits for the kernel's verdict.
func (c *conn) do(typ, flags uint16, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.send(typ, flags|unix.NLM_F_ACK, body); err != nil {
		return err
	}
	return c.receive(func(uint16, []byte) error { return nil })
}

// dump sends one dump request and calls each with the messages of the answer.
func (c *conn) dump(typ uint16, body []byte, each func(typ uint16, body []byte) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.send(typ, unix.NLM_F_DUMP, body); err != nil {
		return err
	}
	return c.receive(each)
}

func (c *conn) send(typ, flags uint16, body []byte) error {
	c.seq++
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, c.seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return os.NewSyscallError("sendto", unix.Sendto(c.fd, append(b, body...), 0, &unix.SockaddrNetlink{
		Family: unix.AF_NETLINK}))
}

var errShortMessage = errors.New("short netlink message")

// receive reads until the acknowledgement, or the end of the dump, of the last request.
func (c *conn) receive(each func(typ uint16, body []byte) error) error {
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for b := c.buf[:n]; len(b) >= unix.NLMSG_HDRLEN; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				return errShortMessage
			}
			typ, seq, body := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]),
				b[unix.NLMSG_HDRLEN:size]
			b = b[min(align4(size), len(b)):]
			if seq != c.seq {
				continue
			}
			switch typ {
			case unix.NLMSG_ERROR:
				if len(body) < 4 {
					return errShortMessage
				}
				if e := int32(binary.NativeEndian.Uint32(body)); e != 0 {
					return unix.Errno(-e)
				}
				return nil
			case unix.NLMSG_DONE:
				return nil
			default:
				if err := each(typ, body); err != nil {
					return err
				}
			}
		}
	}
}

// nlaTypeMask takes the flags off an attribute type, as NLA_TYPE_MASK of linux/netlink.h.
const nlaTypeMask = 0x3fff

func align4(n int) int { return (n + 3) &^ 3 }

// attr appends one attribute to b.
func attr(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, align4(len(data))-len(data))...)
}

func attrString(b []byte, typ uint16, s string) []byte { return attr(b, typ, append([]byte(s), 0)) }

func attrUint32(b []byte, typ uint16, v uint32) []byte {
	return attr(b, typ, binary.NativeEndian.AppendUint32(nil, v))
}

// findAttr returns the first attribute of type typ in b.
func findAttr(b []byte, typ uint16) ([]byte, bool) {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return nil, false
		}
		if binary.NativeEndian.Uint16(b[2:])&nlaTypeMask == typ {
			return b[unix.SizeofRtAttr:n], true
		}
		b = b[min(align4(n), len(b)):]
	}
	return nil, false
}

// ifinfo is a struct ifinfomsg.
func ifinfo(index int32, flags, change uint32) []byte {
	b := []byte{unix.AF_UNSPEC, 0, 0, 0}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = binary.NativeEndian.AppendUint32(b, flags)
	return binary.NativeEndian.AppendUint32(b, change)
}

// A linkInfo is what a link dump says about one link.
type linkInfo struct {
	name  string
	index int32
	flags uint32
}

func (c *conn) links() ([]linkInfo, error) {
	var out []linkInfo
	err := c.dump(unix.RTM_GETLINK, ifinfo(0, 0, 0), func(typ uint16, body []byte) error {
		if typ != unix.RTM_NEWLINK || len(body) < unix.SizeofIfInfomsg {
			return nil
		}
		name, ok := findAttr(body[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)
		if !ok || len(name) < 2 {
			return nil
		}
		out = append(out, linkInfo{
			name:  string(name[:len(name)-1]),
			index: int32(binary.NativeEndian.Uint32(body[4:])),
			flags: binary.NativeEndian.Uint32(body[8:]),
		})
		return nil
	})
	return out, err
}

func (c *conn) index(name string) (int32, error) {
	links, err := c.links()
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		if l.name == name {
			return l.index, nil
		}
	}
	return 0, fmt.Errorf("link %s: %w", name, os.ErrNotExist)
}
