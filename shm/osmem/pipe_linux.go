package osmem

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// An EventReader is the client's end of an EventWriter's socket or pipe: one octet stands for at
// least one event that is queued elsewhere. One goroutine reads at a time; any may kick.
type EventReader struct {
	f   *os.File
	buf [256]byte
	set atomic.Pointer[wakeSet] // or nil: nothing but f is waited for
}

// NewEventReader takes fd over, also when it fails.
func NewEventReader(fd int) (*EventReader, error) {
	var st unix.Stat_t
	kind := uint32(0)
	if unix.Fstat(fd, &st) == nil {
		kind = st.Mode & unix.S_IFMT
	}
	if kind != unix.S_IFSOCK && kind != unix.S_IFIFO { // pipes are older daemons'
		unix.Close(fd)
		return nil, errors.New("shm: the daemon sent something else than a socket or pipe for events")
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

func (p *EventReader) Close() { // who only reads has nothing to lose
	if s := p.set.Load(); s != nil {
		s.mu.Lock()
		s.pipe = -1
		s.mu.Unlock()
		s.f.Close()
	}
	p.f.Close()
}

// A Runner runs functions on goroutines of a client's session.
type Runner interface {
	// Go runs f, which ends soon after the session has.
	Go(f func())
	// Later runs f, which may take for ever, behind all others that it was given. It does not block.
	Later(f func())
}

// An EventWriter is the daemon's end of a socket, or pipe, by which a client is told of events: one
// octet for each. Any goroutine may use it, with locks held: who has the other end of a pipe can
// have who writes to it, or closes it, wait for ever, so that is done Later.
type EventWriter struct {
	run    Runner
	closed func()
	isPipe bool
	fd     int

	mu     sync.Mutex
	over   bool     // Close has been called; +checklocks:mu
	owed   int      // tokens that pay is to write; +checklocks:mu
	paying bool     // pay runs, or is to run; +checklocks:mu
	f      *os.File // what fd is of, from when the socket was full; +checklocks:mu
}

// Open reports whether it has not been closed.
func (p *EventWriter) Open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over
}

// NewEventSocket returns the daemon's end, and that for the client, who can send nothing by it: a
// descriptor that came so could have the daemon wait when it is closed. closed is called when the
// daemon's end has been closed.
func NewEventSocket(run Runner, closed func()) (*EventWriter, int, error) {
	near, far, err := oneWay()
	if err != nil {
		return nil, -1, err
	}
	if err := unix.SetNonblock(near, true); err != nil { // for os.File; the client's end has its own
		unix.Close(near)
		unix.Close(far)
		return nil, -1, os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	return &EventWriter{run: run, closed: closed, fd: near}, far, nil
}

// NewEventPipe is NewEventSocket for clients that want a pipe.
func NewEventPipe(run Runner, closed func()) (*EventWriter, int, error) {
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
	return &EventWriter{run: run, closed: closed, isPipe: true, fd: p[1]}, p[0], nil
}

var tokens = bytes.Repeat([]byte{1}, 256)

// Token writes one token. It does not block: what a socket has no room for follows when the client
// has read. What a pipe has no room for, and EPIPE, are the client's loss.
func (p *EventWriter) Token() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if !p.isPipe && p.owed == 0 {
		if err := sendOctet(p.fd); err != unix.EAGAIN {
			return
		}
	}
	if p.owed++; p.paying {
		return
	}
	p.paying = true
	if p.isPipe {
		p.run.Later(p.payPipe)
	} else {
		if p.f == nil {
			p.f = os.NewFile(uintptr(p.fd), "vrnic-events")
		}
		f := p.f
		p.run.Go(func() { p.paySocket(f) })
	}
}

// TakeBack is for n events that are nobody's any more: it takes back the tokens that have not been
// sent, and returns how many of theirs the client has to take.
func (p *EventWriter) TakeBack(n uint32) uint32 {
	if p.isPipe {
		return n // and has room, or loses some
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	back := min(n, uint32(p.owed))
	p.owed -= int(back)
	return n - back
}

// sendSome sends what there is room for, and does not wait.
func sendSome(fd int, b []byte) (n int, err error) {
	for {
		n, err = unix.SendmsgN(fd, b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// paySocket writes the tokens that are owed, as there is room for them. Go's poller waits for that.
func (p *EventWriter) paySocket(f *os.File) {
	conn, err := f.SyscallConn()
	if err == nil {
		err = conn.Write(func(fd uintptr) (done bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			for p.owed > 0 {
				n, err := sendSome(int(fd), tokens[:min(p.owed, len(tokens))])
				if err == unix.EAGAIN {
					return false
				}
				if p.owed -= n; err != nil {
					p.owed = 0 // the client has gone
				}
			}
			p.paying = false
			return true
		})
	}
	if err != nil { // closed; or there is no memory for the poller: the client's loss
		p.mu.Lock()
		defer p.mu.Unlock()
		p.owed, p.paying = 0, false
	}
}

// payPipe writes the tokens that are owed, and may take for ever. It is run before what Close has
// run.
func (p *EventWriter) payPipe() {
	for most := len(tokens); ; {
		p.mu.Lock()
		n := min(p.owed, most)
		p.paying = n > 0
		p.mu.Unlock()
		if n == 0 {
			return
		}
		n, err := unix.Write(p.fd, tokens[:n])
		p.mu.Lock()
		switch {
		case err == nil:
			p.owed -= n
		case err == unix.EINTR:
		case err == unix.EAGAIN && most > 1:
			most = 1 // a pipe takes all or nothing
		default:
			p.owed = 0
		}
		p.mu.Unlock()
	}
}

// Close has the client find the end: at once by a socket, soon by a pipe. It does not block.
func (p *EventWriter) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if p.over = true; !p.isPipe {
		_ = unix.Shutdown(p.fd, unix.SHUT_RDWR) // who pays wakes, too
	}
	f := p.f
	p.run.Later(func() {
		if f != nil {
			f.Close()
		} else {
			unix.Close(p.fd)
		}
		p.closed()
	})
}
