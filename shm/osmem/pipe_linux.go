package osmem

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An EventReader is the read end of an event pipe: one octet stands for at least one event that is
// queued elsewhere. One goroutine reads at a time; any may kick.
type EventReader struct {
	f   *os.File
	buf [256]byte
	set atomic.Pointer[wakeSet] // or nil: nothing but f is waited for
}

// NewEventReader takes fd over, also when it fails.
func NewEventReader(fd int) (*EventReader, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return nil, errors.New("shm: the daemon sent something else than a pipe for events")
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	return &EventReader{f: os.NewFile(uintptr(fd), "vrnic-events")}, nil
}

// Wait blocks until an event may have been queued since the last wait. ErrKicked: see Kick. Other
// errors mean that no event will come again: io.EOF, os.ErrClosed.
func (p *EventReader) Wait() error {
	_, _, err := p.Take()
	return err
}

// Take is Wait, and tells how many octets were there. full: there may be more, or events for which
// there was no room in the pipe.
func (p *EventReader) Take() (n int, full bool, err error) {
	f := p.f
	if s := p.set.Load(); s != nil {
		f = s.f
		n, err = s.take()
	} else {
		n, err = f.Read(p.buf[:])
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// Undone first, and only then does the caller look why: a kick that comes in between
		// ends the next wait at once.
		_ = f.SetReadDeadline(time.Time{}) // a closed pipe says so in the next Read
		return 0, false, ErrKicked
	}
	return n, n == len(p.buf), err
}

var ErrKicked = errors.New("shm: woken to look again")

// Kick makes the wait under way, or the next one, return ErrKicked. Whoever kicks has stored before
// why; whoever waits looks after each ErrKicked.
func (p *EventReader) Kick() {
	_ = p.f.SetReadDeadline(time.Unix(1, 0)) // closed: nobody waits
	if s := p.set.Load(); s != nil {
		_ = s.f.SetReadDeadline(time.Unix(1, 0))
	}
}

func (p *EventReader) Close() { // a read end has nothing to lose
	if s := p.set.Load(); s != nil {
		s.mu.Lock()
		s.pipe = -1
		s.mu.Unlock()
		s.f.Close()
	}
	p.f.Close()
}

// An EventWriter is the write end of an event pipe: one octet per event. The client has the read
// end.
type EventWriter struct {
	fd     int // -1: closed; guarded by the user's lock
	closed func()
}

// Open reports whether the pipe has not been closed.
func (p *EventWriter) Open() bool { return p.fd >= 0 }

// NewEventPipe returns the write end, and the read end for the client. closed is called when the
// write end has been closed.
func NewEventPipe(closed func()) (*EventWriter, int, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe2", err)
	}
	// Each end has its own file description, so this flag is not the client's.
	if err := unix.SetNonblock(p[1], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return nil, -1, os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	return &EventWriter{fd: p[1], closed: closed}, p[0], nil
}

var pipeToken = []byte{1}

// Token writes one token. EAGAIN and EPIPE are the client's loss.
func (p *EventWriter) Token() {
	for p.fd >= 0 {
		if _, err := unix.Write(p.fd, pipeToken); err != syscall.EINTR {
			return
		}
	}
}

func (p *EventWriter) Close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
		p.closed()
	}
}
