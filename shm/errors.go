package shm

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
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

// terminateError is what the word at QPError, or the cause in an event, stands for; nil if it holds
// none.
func terminateError(word uint32) *rdma.TerminateError {
	if word&abi.ErrorValid == 0 {
		return nil
	}
	c := word & abi.ErrorCauseMax
	e := &rdma.TerminateError{
		Remote: word&abi.ErrorRemote != 0,
		Layer:  uint8(c >> 12), Type: uint8(c >> 8 & 0xf), Code: uint8(c),
	}
	e.Text = causeText(e.Layer, e.Type, e.Code)
	return e
}

// causeText puts the triple of a Terminate message into words: RFC 5040, section 4.8; RFC 5041,
// section 7.2; RFC 5044, section 8; RFC 6581, section 8.
func causeText(layer, typ, code uint8) string {
	if s, ok := causes[[3]uint8{layer, typ, code}]; ok {
		return s
	}
	switch {
	case layer == 0 && typ == 0:
		return "local catastrophic error"
	case layer == 0 && typ == 1:
		return "remote protection error"
	case layer == 0 && typ == 2:
		return "remote operation error"
	case layer == 1 && typ == 0:
		return "local catastrophic error in DDP"
	case layer == 2, layer == 1 && typ == 3:
		return "error of the transport"
	}
	return "unknown cause"
}

var causes = map[[3]uint8]string{
	{0, 1, 0x00}: "read: invalid STag",
	{0, 1, 0x01}: "read: base or bounds violation",
	{0, 1, 0x02}: "read: access rights violation",
	{0, 1, 0x03}: "read: STag not associated with the stream",
	{0, 1, 0x04}: "read: TO wrap",
	{0, 1, 0x09}: "STag to invalidate not associated with the stream",
	{0, 2, 0x05}: "invalid RDMAP version",
	{0, 2, 0x06}: "unexpected opcode",
	{0, 2, 0x07}: "catastrophic error, localized to the stream",
	{0, 2, 0x08}: "catastrophic error, global",
	{0, 2, 0x09}: "STag cannot be invalidated",
	{1, 1, 0x00}: "invalid STag",
	{1, 1, 0x01}: "base or bounds violation",
	{1, 1, 0x02}: "STag not associated with the stream",
	{1, 1, 0x03}: "TO wrap",
	{1, 1, 0x04}: "invalid DDP version, tagged",
	{1, 2, 0x01}: "invalid QN",
	{1, 2, 0x02}: "no receive buffer",
	{1, 2, 0x03}: "MSN out of range",
	{1, 2, 0x04}: "invalid MO",
	{1, 2, 0x05}: "message too long for its buffer",
	{1, 2, 0x06}: "invalid DDP version, untagged",
	{2, 0, 0x01}: "TCP connection closed or lost",
	{2, 0, 0x02}: "MPA CRC error",
	{2, 0, 0x03}: "MPA framing error",
	{2, 0, 0x04}: "invalid MPA Request or Reply frame",
	{2, 0, 0x05}: "local catastrophic error in MPA",
	{2, 0, 0x06}: "insufficient IRD resources",
	{2, 0, 0x07}: "no matching RTR option",
}
