package shm

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
)

// A CallError says that the daemon refused a request. It unwraps to the error of package rdma that
// fits, if one does, and to the errno that the daemon gave.
type CallError struct {
	Op    string // what was asked for: "create QP"
	Errno syscall.Errno
	Why   string // what the daemon says, such as which limit was in the way; "": nothing
}

func (e *CallError) Error() string {
	if e.Why != "" {
		return fmt.Sprintf("shm: %s: %s", e.Op, e.Why)
	}
	if d, ok := errnos[e.Errno]; ok {
		return fmt.Sprintf("shm: %s: %s", e.Op, d.text)
	}
	return fmt.Sprintf("shm: %s: %v", e.Op, e.Errno)
}

func (e *CallError) Unwrap() []error {
	if d, ok := errnos[e.Errno]; ok && d.is != nil {
		return []error{d.is, e.Errno}
	}
	return []error{e.Errno}
}

// errnos says what the errnos of replies and of connection events mean to a program.
var errnos = map[syscall.Errno]struct {
	is   error
	text string
}{
	syscall.EINVAL:     {rdma.ErrInvalid, "invalid argument"},
	syscall.ENOENT:     {rdma.ErrInvalid, "no such object in this session"},
	syscall.ENODEV:     {rdma.ErrInvalid, "no such device"},
	syscall.E2BIG:      {rdma.ErrUnsupported, "the daemon is too old for this request"},
	syscall.EOPNOTSUPP: {rdma.ErrUnsupported, "not supported by this daemon"},
	syscall.ENOSYS:     {rdma.ErrUnsupported, "not supported by this daemon"},
	syscall.ENOMEM: {rdma.ErrLimit,
		"over a limit of this user (raise it with \"vrnic up --limit\")"},
	syscall.EBUSY:         {rdma.ErrBusy, "still in use"},
	syscall.EACCES:        {os.ErrPermission, "not allowed"},
	syscall.EPERM:         {os.ErrPermission, "not allowed"},
	syscall.EIO:           {rdma.ErrDeviceGone, "device is gone"},
	syscall.ENOTCONN:      {rdma.ErrNotConnected, "not connected"},
	syscall.EISCONN:       {rdma.ErrBusy, "already connected"},
	syscall.EADDRINUSE:    {rdma.ErrBusy, "address is in use"},
	syscall.EADDRNOTAVAIL: {rdma.ErrInvalid, "address is not the device's"},
	syscall.ECONNREFUSED:  {nil, "connection refused: nothing listens there"},
	syscall.ECONNRESET:    {nil, "connection reset by the peer"},
	syscall.ECONNABORTED:  {nil, "connection aborted"},
	syscall.ETIMEDOUT:     {os.ErrDeadlineExceeded, "timed out: no answer from there"},
	syscall.EHOSTUNREACH:  {nil, "no route to host"},
	syscall.ENETUNREACH:   {nil, "network is unreachable"},
	syscall.EPROTONOSUPPORT: {rdma.ErrUnsupported,
		"the device reaches that address over SCTP only, or has no SCTP"},
	syscall.EPROTO: {nil, "the peer does not speak iWARP as this end does"},
}

// errGone is the cause of a session's end where nothing worse is known.
var errGone = fmt.Errorf("shm: the vrnic daemon has gone: %w", rdma.ErrDeviceGone)

// goneBecause wraps cause so that it is rdma.ErrDeviceGone.
func goneBecause(cause error) error {
	if errors.Is(cause, rdma.ErrDeviceGone) {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, rdma.ErrDeviceGone)
}

// errCorrupt says that the daemon's side of shared memory or its messages make no sense.
func errCorrupt(format string, args ...any) error {
	return fmt.Errorf("shm: the daemon wrote nonsense: %s: %w", fmt.Sprintf(format, args...),
		rdma.ErrDeviceGone)
}

// errNoDescriptors says that this process could not take what came with a reply. The session goes
// on.
var errNoDescriptors = fmt.Errorf("this process has no file descriptor free (raise its limit, "+
	"\"ulimit -n\"): %w", syscall.EMFILE)

func errClosed(what string) error { return fmt.Errorf("shm: %s: %w", what, rdma.ErrClosed) }

func errInvalid(format string, args ...any) error {
	return fmt.Errorf("shm: %s: %w", fmt.Sprintf(format, args...), rdma.ErrInvalid)
}
