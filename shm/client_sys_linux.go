package shm

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What the client asks of the operating system: mapping the daemon's memory after looking at it,
// memory of its own to lend, the read ends of event pipes, and giving up the processor.

// maxDaemonMem bounds one memfd of the daemon, in octets: far above the largest ring, and far below
// what would exhaust the address space.
const maxDaemonMem = 1 << 30

// mapDaemonMem maps the whole of a memfd that the daemon sent and closes fd. It does so only if the
// memory cannot shrink under the mapping (docs/abi.md#threat-model): a regular, sealed file of
// minSize octets at least.
func mapDaemonMem(fd, minSize int) (*region, error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("shm: memory from the daemon: %w", os.NewSyscallError("fstat", err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("shm: memory from the daemon is not a regular file")
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("shm: memory from the daemon is not sealed against shrinking")
	}
	if st.Size < int64(minSize) || st.Size > maxDaemonMem {
		return nil, fmt.Errorf("shm: memory from the daemon has %d octets, want %d to %d", st.Size, minSize, maxDaemonMem)
	}
	r, err := mapRegion(fd, int(st.Size), nil)
	if err != nil {
		return nil, fmt.Errorf("shm: memory from the daemon: %w", err)
	}
	return r, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Daemon tells whose process the daemon is: the one that listens on the socket.
func (c *Client) Daemon() (Peer, error) { return peerOf(c.raw) }

// peerGone says whether the other end of the socket fd has been closed. It takes nothing from it.
func peerGone(fd int) bool {
	var b [1]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false
		case err != nil:
			return true
		default:
			return n == 0
		}
	}
}

// A pipe is the read end of an event pipe: one octet stands for at least one event that is queued
// elsewhere. One goroutine reads at a time; any may kick.
type pipe struct {
	f   *os.File
	buf [256]byte
}

// newPipe takes fd over, also when it fails.
func newPipe(fd int) (*pipe, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return nil, errors.New("shm: the daemon sent something else than a pipe for events")
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl(O_NONBLOCK)", err)
	}
	return &pipe{f: os.NewFile(uintptr(fd), "vrnic-events")}, nil
}

// wait blocks until an event may have been queued since the last wait. errKicked: see kick. Other
// errors mean that no event will come again: io.EOF, os.ErrClosed.
func (p *pipe) wait() error {
	_, err := p.take()
	return err
}

// take is wait, and tells how many octets were there. With a full buffer there may be more, or events for which there was no
// room in the pipe.
func (p *pipe) take() (n int, err error) {
	n, err = p.f.Read(p.buf[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// Undone first, and only then does the caller look why: a kick that comes in between
		// ends the next wait at once.
		p.f.SetReadDeadline(time.Time{}) //nolint:errcheck // a closed pipe says so in the next Read
		return 0, errKicked
	}
	return n, err
}

var errKicked = errors.New("shm: woken to look again")

// kick makes the wait under way, or the next one, return errKicked. Whoever kicks has stored before
// why; whoever waits looks after each errKicked.
func (p *pipe) kick() {
	p.f.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // closed: nobody waits
}

func (p *pipe) close() { p.f.Close() } //nolint:errcheck // a read end has nothing to lose

// isNoDaemon says whether err, of connecting, means that no daemon listens there.
func isNoDaemon(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}
