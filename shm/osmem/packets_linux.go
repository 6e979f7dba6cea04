package osmem

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Packets are one end of a Unix socket of packets, of which the client has the other one.
type Packets struct {
	f      *os.File
	raw    syscall.RawConn
	run    Runner
	once   sync.Once
	closed func()
}

// NewPackets returns one end, and the other one for the client. closed is called when the first has
// been closed.
func NewPackets(run Runner, closed func()) (*Packets, int, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	// Each end has its own file description, so this flag is not the client's.
	if err := unix.SetNonblock(p[0], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, -1, os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	f := os.NewFile(uintptr(p[0]), "vrnic-packets")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		unix.Close(p[1])
		return nil, -1, err
	}
	return &Packets{f: f, raw: raw, run: run, closed: closed}, p[1], nil
}

// Receive waits for a packet, of which it returns what there is room for. An error means that none
// will come: io.EOF, os.ErrClosed. With a packet can come a descriptor, which is closed here: that
// can take for ever.
func (p *Packets) Receive(b []byte) (n int, err error) { return p.f.Read(b) }

// Send sends a packet if there is room for it; it does not wait. False: it is lost.
func (p *Packets) Send(b []byte) bool {
	var sent error
	err := p.raw.Control(func(fd uintptr) {
		for {
			sent = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
			if !errors.Is(sent, unix.EINTR) {
				return
			}
		}
	})
	return err == nil && sent == nil
}

// Close ends a Receive, soon: a descriptor that is on its way here can keep the kernel for ever,
// for which Close does not wait. It may be called several times, from any goroutine.
func (p *Packets) Close() {
	p.once.Do(func() {
		p.run.Later(func() {
			p.f.Close()
			p.closed()
		})
	})
}
