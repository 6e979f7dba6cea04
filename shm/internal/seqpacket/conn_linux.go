package seqpacket

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A Conn is the daemon's end of a control socket.
type Conn struct {
	c   *net.UnixConn
	rc  syscall.RawConn
	buf [rpc.MaxMessage]byte
	oob []byte

	// Discard closes a descriptor that has come against the rules, which can take for ever: it does
	// not wait. nil: Read closes it.
	Discard func(fd int)

	// Replies that wait until there is no request more: who is woken for one finds all of them.
	replies [MaxOutstanding][]byte
	waiting int
}

// MaxOutstanding is how many requests of one client the daemon may have at a time: the control
// goroutine answers one after the other, and finds the next without being woken for it. What it
// answers has room in a socket's buffer.
const MaxOutstanding = 8

func NewConn(c *net.UnixConn) (*Conn, osmem.Peer, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, osmem.Peer{}, err
	}
	peer, err := PeerOf(rc)
	if err != nil {
		return nil, osmem.Peer{}, err
	}
	// Room for exactly one descriptor: with CMSG_SPACE(4) the padding lets a second one in.
	return &Conn{c: c, rc: rc, oob: make([]byte, unix.CmsgLen(4))}, peer, nil
}

// PeerOf tells whose process made the other end of a connected socket: connected it, or listened.
func PeerOf(rc syscall.RawConn) (osmem.Peer, error) {
	var cred *unix.Ucred
	var netns uint64
	var cerr error
	if err := rc.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		// What accept(2) returns is of the namespace of who has connected.
		netns, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE) // since 5.14
	}); err != nil {
		return osmem.Peer{}, err
	}
	if cerr != nil {
		return osmem.Peer{}, os.NewSyscallError("SO_PEERCRED", cerr)
	}
	return osmem.Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid, NetNS: netns}, nil
}

// PeerLabel is the security label of who made the other end; "" where there are none.
func (c *Conn) PeerLabel() (label string, err error) {
	if cerr := c.rc.Control(func(fd uintptr) {
		label, err = unix.GetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_PEERSEC)
	}); cerr != nil {
		return "", cerr
	}
	if err == unix.ENOPROTOOPT {
		return "", nil
	}
	return label, err
}

// Read waits for the next message. msg is good until the next call; fd is -1 or the descriptor that
// came with it and belongs to the caller. io.EOF: the client has gone. An error that is a
// *ProtocolError: it has sent what it must not.
func (c *Conn) Read() (msg []byte, fd int, err error) {
	n, oobn, flags, err := c.receive(c.oob, 0)
	fd = -1
	if oobn > 0 { // also with a message of 0 octets, which looks like the end
		fds, perr := ReceivedFDs(c.oob[:oobn])
		if perr != nil || len(fds) > 1 || flags&unix.MSG_CTRUNC != 0 {
			for _, f := range fds {
				c.discard(f)
			}
			return nil, -1, abi.Violation("control data that is not one descriptor")
		}
		if len(fds) == 1 {
			fd = fds[0]
		}
	}
	switch {
	case flags&unix.MSG_CTRUNC != 0:
		err = abi.Violation("more than one descriptor")
	case flags&unix.MSG_TRUNC != 0:
		err = abi.Violation("message longer than %d octets", rpc.MaxMessage)
	case err == nil && n == 0, errors.Is(err, syscall.ECONNRESET):
		err = io.EOF
	}
	if err != nil {
		if fd >= 0 {
			c.discard(fd)
		}
		return nil, -1, err
	}
	return c.buf[:n], fd, nil
}

func (c *Conn) discard(fd int) {
	if c.Discard != nil {
		c.Discard(fd)
		return
	}
	unix.Close(fd)
}

// ReceivedFDs takes the descriptors out of ancillary data. It returns those it found also with an
// error.
func ReceivedFDs(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	cms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range cms {
		got, perr := unix.ParseUnixRights(&cms[i])
		if perr != nil {
			err = perr
		}
		fds = append(fds, got...)
	}
	return fds, err
}

// ReadPlain is Read for a client that may not send descriptors. They are not received, so that
// none has to be closed here: that is left to Close.
func (c *Conn) ReadPlain() (msg []byte, err error) {
	_, _, flags, err := c.receive(nil, unix.MSG_PEEK)
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		return nil, abi.Violation("descriptor where there can be none")
	}
	if err != nil {
		return nil, err
	}
	msg, _, err = c.Read() // the same message: nobody else reads
	return msg, err
}

// receive takes a message, as recvmsg does with those flags. Replies go before it waits for one.
func (c *Conn) receive(oob []byte, how int) (n, oobn, flags int, err error) {
	var rerr error
	err = c.rc.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, rerr = unix.Recvmsg(int(fd), c.buf[:], oob,
				unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC|how)
			switch rerr {
			case unix.EINTR:
			case unix.EAGAIN:
				if rerr = c.send(int(fd)); rerr != nil {
					return true
				}
				return false
			default:
				return true
			}
		}
	})
	if err == nil {
		err = rerr
	}
	return n, oobn, flags, err
}

// Reply sends a message behind those before it: soon, but not before other requests that are there
// already have been answered, if they are quick. It never waits: a client that does not read its
// replies is in violation.
func (c *Conn) Reply(msg []byte) error {
	c.replies[c.waiting] = append(c.replies[c.waiting][:0], msg...)
	if c.waiting++; c.waiting < MaxOutstanding {
		return nil
	}
	return c.Flush()
}

// Write sends a message with fds, which stay the caller's, behind all replies. It does not wait
// either.
func (c *Conn) Write(msg []byte, fds []int) error {
	if err := c.Flush(); err != nil {
		return err
	}
	var serr error
	err := c.rc.Write(func(fd uintptr) bool {
		serr = sendNow(int(fd), msg, fds)
		return true
	})
	if err == nil {
		err = serr
	}
	return err
}

// Flush sends the replies that wait.
func (c *Conn) Flush() error {
	if c.waiting == 0 {
		return nil
	}
	var serr error
	err := c.rc.Write(func(fd uintptr) bool {
		serr = c.send(int(fd))
		return true
	})
	if err == nil {
		err = serr
	}
	return err
}

func (c *Conn) send(fd int) error {
	n := c.waiting
	c.waiting = 0
	for _, msg := range c.replies[:n] {
		if err := sendNow(fd, msg, nil); err != nil {
			return err
		}
	}
	return nil
}

func sendNow(fd int, msg []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		switch _, err := unix.SendmsgN(fd, msg, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err {
		case unix.EINTR:
		case unix.EAGAIN:
			return abi.Violation("replies are not read")
		default:
			return err
		}
	}
}

// End ends the connection: the client sees that, and Read returns. It does not wait.
func (c *Conn) End() { End(c.c) }

// End is that of a connection that is no Conn yet.
func End(c *net.UnixConn) {
	// An error says that the client was faster.
	_, _ = c.CloseRead(), c.CloseWrite()
}

// maxDrained is more messages than a socket holds (net.unix.max_dgram_qlen).
const maxDrained = 4096

// Drain takes what the client of a connection that has ended had sent, as far as no descriptor came
// with it. false: one did, and to close c can take for ever (see Conn.Close).
func Drain(c *net.UnixConn) (plain bool) {
	rc, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = rc.Control(func(fd uintptr) { plain = drain(int(fd)) })
	return err == nil && plain
}

func drain(fd int) bool {
	// Messages have a sender, the end of the file has none; for descriptors there is no room.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) != nil {
		return false
	}
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for range maxDrained {
		_, oobn, flags, _, err := unix.Recvmsg(fd, b[:], oob, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR, err == unix.ECONNRESET: // the client has gone, and is told of once
			continue
		case err != nil, flags&unix.MSG_CTRUNC != 0:
			return false
		case oobn == 0:
			return true
		}
		_, _, _, _, _ = unix.Recvmsg(fd, b[:], nil, unix.MSG_DONTWAIT) // this one
	}
	return false
}

// Drain is that of a Conn.
func (c *Conn) Drain() (plain bool) { return Drain(c.c) }

// Close gives the socket back. It can take for ever: what the client has sent and nobody has
// received goes, descriptors with it, and the last close of one waits for what the kernel may have
// to do for it (SO_LINGER).
func (c *Conn) Close() error { return c.c.Close() }

// A Listener is the daemon's socket, with a lock beside it that says who it belongs to.
type Listener struct {
	*net.UnixListener
	Path string
	lock *os.File
	dev  uint64
	ino  uint64
}

// Listen makes a SOCK_SEQPACKET socket at path with the given mode and group (-1: leave). A
// socket file that a dead daemon left is replaced; one that somebody listens on is an error, and so
// is anything that is not a socket.
func Listen(path string, mode fs.FileMode, gid int) (*Listener, error) {
	return ListenBehind(path+".lock", path, mode, gid)
}

// ListenBehind is Listen with the lock in another place: one that clients, who may see the
// directory of the socket, cannot reach.
func ListenBehind(lockFile, path string, mode fs.FileMode, gid int) (_ *Listener, err error) {
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()
	lock, err := lockPath(lockFile)
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { unlockPath(lock) })
	if err := removeStale(path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // net.FileListener makes its own
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("bind %s: %w", path, err)
	}
	undo = append(undo, func() { os.Remove(path) })
	// The mode counts before the first connection can be made, which is at listen.
	st, err := setOwner(path, gid, mode)
	if err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, 128); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return &Listener{UnixListener: l.(*net.UnixListener), Path: path, lock: lock, dev: st.Dev,
		ino: st.Ino}, nil
}

// Inherit takes a socket that somebody else has made and listens on, such as the service manager.
// Its file stays when it is closed.
func Inherit(fd int) (*Listener, error) {
	f := os.NewFile(uintptr(fd), "the socket that was handed over")
	if f == nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, syscall.EBADF)
	}
	defer f.Close() // net.FileListener makes its own
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	listens := 0
	if err == nil {
		listens, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	}
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is no socket: %w", fd, err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	at, ok := name.(*unix.SockaddrUnix)
	if !ok || typ != unix.SOCK_SEQPACKET || listens == 0 {
		return nil, fmt.Errorf("descriptor %d is not a Unix socket of type SOCK_SEQPACKET that listens "+
			"(ListenSequentialPacket= of systemd.socket)", fd)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return &Listener{UnixListener: u, Path: at.Name}, nil
}

// setOwner gives the socket file at path to the group gid (-1: leave it), and has it have that
// mode. Who may write the directory could put something else there, a link to a file of root's:
// what is no socket, or has another name, is left alone.
func setOwner(path string, gid int, mode fs.FileMode) (st unix.Stat_t, err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return st, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return st, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Nlink != 1 {
		return st, fmt.Errorf("%s was replaced by something else: choose a directory that "+
			"nobody else can write", path)
	}
	if gid >= 0 {
		if err := unix.Fchownat(fd, "", -1, gid, unix.AT_EMPTY_PATH); err != nil {
			return st, &fs.PathError{Op: "chown", Path: path, Err: err}
		}
	}
	// fchmod does not take such a descriptor. Before Linux 6.6 it takes /proc.
	if err = unix.Fchmodat(fd, "", uint32(mode.Perm()), unix.AT_EMPTY_PATH); err != nil {
		err = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), uint32(mode.Perm()))
	}
	if err != nil {
		return st, &fs.PathError{Op: "chmod", Path: path, Err: err}
	}
	return st, nil
}

// Close also removes the socket file, if it is still ours.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	if l.lock == nil { // of Inherit
		return err
	}
	var st unix.Stat_t
	if unix.Lstat(l.Path, &st) == nil && st.Dev == l.dev && st.Ino == l.ino {
		// Who has given up privileges may not be allowed to. The next daemon takes the file over.
		if rerr := os.Remove(l.Path); err == nil && !errors.Is(rerr, fs.ErrPermission) {
			err = rerr
		}
	}
	unlockPath(l.lock)
	return err
}

// errInUse says that another daemon has the socket.
func errInUse(path string) error {
	return fmt.Errorf("a daemon is running on %s already: choose another path: %w", path,
		syscall.EADDRINUSE)
}

// lockPath takes the lock that makes looking at a socket file and replacing it one step.
func lockPath(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("no socket can be made here, choose another path: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if err == unix.EWOULDBLOCK {
				return nil, errInUse(strings.TrimSuffix(path, ".lock"))
			}
			return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		// Its last owner may have removed it between our open and our lock.
		var here, there unix.Stat_t
		if unix.Fstat(int(f.Fd()), &here) == nil && unix.Lstat(path, &there) == nil &&
			here.Dev == there.Dev && here.Ino == there.Ino {
			return f, nil
		}
		f.Close()
	}
}

func unlockPath(f *os.File) {
	os.Remove(f.Name()) // an empty file left behind does no harm
	f.Close()           // releases the lock
}

// removeStale removes a socket at path that nobody listens on. The caller holds the lock.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is in the way: it is not a socket", path)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	switch err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err {
	case unix.ECONNREFUSED: // nobody listens
		return os.Remove(path)
	case nil, unix.EAGAIN, unix.EPROTOTYPE: // one does; its queue may be full, its type another
		return errInUse(path)
	default:
		return fmt.Errorf("%s is in the way: %w", path, err)
	}
}

// GroupID resolves the name or number of a group; "" is -1.
func GroupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		if n, nerr := strconv.ParseUint(name, 10, 31); nerr == nil {
			return int(n), nil
		}
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}
