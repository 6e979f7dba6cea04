package shm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// settingsFile is where `vrnic cdi` has settings mounted in a container, as lines NAME=VALUE: not
// all that runs there has the environment of its first program.
const settingsFile = "/run/vrnic/settings"

// DefaultSocket is where a daemon is expected: $VRNIC_SOCKET, else what a container has been told,
// else vrnic.sock in $XDG_RUNTIME_DIR, else /run/vrnic.sock.
func DefaultSocket() string {
	if s := os.Getenv("VRNIC_SOCKET"); s != "" {
		return s
	}
	if text, err := os.ReadFile(settingsFile); err == nil {
		for line := range strings.Lines(string(text)) {
			if s, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "VRNIC_SOCKET="); ok {
				return s
			}
		}
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "vrnic.sock")
	}
	return "/run/vrnic.sock"
}

// A Client is a session with a vrnic daemon. All objects that are made through it live in the
// daemon until they are closed, the Client is closed, or this process ends.
//
// A session ends early if the daemon goes or if what it writes into shared memory is impossible;
// see Done. Then nothing blocks any more: calls return rdma.ErrDeviceGone, and CQ.Poll completes
// all that is posted with rdma.WCFlush.
type Client struct {
	path    string
	conn    *net.UnixConn
	raw     syscall.RawConn
	peek    func(fd uintptr) // for checkPeer; made once, as polls call it
	session uint32

	rpcMu sync.Mutex
	queue []queuedCall // +checklocks:rpcMu
	// guarded by rpcMu: somebody has the next five, and takes calls from the queue
	talking bool
	batch   [seqpacket.MaxOutstanding]queuedCall // +checklocks:rpcMu
	seq     uint32
	out     []byte
	in      [rpc.MaxMessage]byte
	oob     [64]byte

	mem   *osmem.Region    // the session page; unmapped last
	bell  *ring.BellRinger // its bells
	door  *osmem.EventFD   // the doorbell
	yield int              // empty polls after which a poll yields the processor

	offersDirect bool // the daemon has the direct path
	sayWho       sync.Once
	known        bool // the daemon has seen who this is; of sayWho

	dead     chan struct{} // closed when the session is over
	deadErr  error         // why; set before dead is closed
	deadOnce sync.Once

	// the devices by number: more come, and one that has gone keeps its own
	namesMu sync.Mutex
	names   []string // +checklocks:namesMu
	left    []bool   // of those which have gone; +checklocks:namesMu

	mu      sync.Mutex
	closed  bool                            // +checklocks:mu
	devices map[*Device]struct{}            // +checklocks:mu
	pipes   map[*osmem.EventReader]struct{} // to be kicked when the session dies
}

// Dial is DialContext without an end.
func Dial(path string) (*Client, error) { return DialContext(context.Background(), path) }

// DialContext opens a session with the daemon at the Unix socket path ("": DefaultSocket()). It
// blocks only while the daemon answers, and not longer than ctx lasts. The error says what to do if
// no daemon is there, if this user may not connect, or if the two do not speak the same version.
func DialContext(ctx context.Context, path string) (*Client, error) {
	if path == "" {
		path = DefaultSocket()
	}
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, "unixpacket", path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, dialError(path, err)
	}
	conn := nc.(*net.UnixConn)
	c := &Client{
		path: path, conn: conn, dead: make(chan struct{}),
		devices: make(map[*Device]struct{}), pipes: make(map[*osmem.EventReader]struct{}),
	}
	c.peek = func(fd uintptr) {
		if seqpacket.PeerGone(int(fd)) {
			_ = c.die(errGone)
		}
	}
	if c.raw, err = conn.SyscallConn(); err == nil {
		err = c.hello(ctx)
	}
	if err != nil {
		c.Close() // err says more
		return nil, err
	}
	return c, nil
}

func dialError(path string, err error) error {
	fi, statErr := os.Stat(path)
	switch {
	case statErr == nil && fi.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s is not the socket of a vrnic daemon but another file: name the one "+
			"that \"vrnic up\" has made", path)
	case isNoDaemon(err):
		return fmt.Errorf("no vrnic daemon at %s: start one with \"vrnic up\": %w", path, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("not allowed to use the vrnic daemon at %s: its socket's mode says who may "+
			"(vrnic up --socket-mode, --socket-group): %w", path, err)
	case errors.Is(err, syscall.EPROTOTYPE):
		return fmt.Errorf("%s is not the socket of a vrnic daemon: %w", path, err)
	}
	return fmt.Errorf("vrnic daemon at %s: %w", path, err)
}

// hello agrees on a version, maps the session page and learns the devices.
func (c *Client) hello(ctx context.Context) error {
	req := &rpc.HelloRequest{Magic: abi.MagicHello, Major: abi.Major, Minor: abi.Minor,
		Features: rpc.FeatureReasons | rpc.FeatureAgain | rpc.FeatureDirect | rpc.FeatureGone |
			rpc.FeatureSockets}
	copy(req.Comm[:len(req.Comm)-1], filepath.Base(os.Args[0]))
	var rep rpc.HelloReply
	fds, err := c.rpcWithin(ctx, rpc.OpHello, "HELLO", req, &rep, -1)
	var ce *CallError
	switch {
	case err != nil && ctx.Err() != nil, errors.Is(err, errNoDescriptors):
		return fmt.Errorf("vrnic daemon at %s: %w", c.path, err)
	case errors.As(err, &ce) && ce.Errno == syscall.EPROTONOSUPPORT:
		return fmt.Errorf("the vrnic daemon at %s speaks version %d.%d of the ring ABI, this program "+
			"%d.%d: install the same release of both: %w",
			c.path, rep.Major, rep.Minor, abi.Major, abi.Minor, rdma.ErrUnsupported)
	case errors.As(err, &ce):
		return fmt.Errorf("vrnic daemon at %s: %w", c.path, err)
	case err != nil:
		return fmt.Errorf("vrnic daemon at %s ended the session at once: %w", c.path, err)
	}
	c.door = &osmem.EventFD{FD: fds[1]}
	if rep.Magic != abi.MagicHello || rep.Major != abi.Major {
		osmem.CloseFDs(fds[:1])
		return c.die(errCorrupt("HELLO with magic %#x, version %d.%d", rep.Magic, rep.Major, rep.Minor))
	}
	if c.mem, err = osmem.MapSealed(fds[0], abi.SessHeaderLen); err != nil {
		return c.die(goneBecause(err))
	}
	if c.bell, err = ring.OpenBellRinger(c.mem.Mem, c.door); err != nil {
		return c.die(goneBecause(err))
	}
	c.yield = int(c.bell.PollYield)
	if c.yield < 1 || c.yield > checkPolls {
		c.yield = abi.PollYield
	}
	c.session = rep.Session
	c.offersDirect = rep.Features&rpc.FeatureDirect != 0
	return c.readNames(ctx, &rep)
}

// maxDevices bounds the devices that come and go in the life of a session.
const maxDevices = 1 << 16

// readNames learns what devices there are: HELLO names the first of them.
func (c *Client) readNames(ctx context.Context, rep *rpc.HelloReply) error {
	c.namesMu.Lock()
	defer c.namesMu.Unlock()
	for i := range int(min(rep.NumDevices, maxDevices)) {
		if i < rpc.MaxDevices {
			c.names, c.left = append(c.names, rep.Devices[i].String()), append(c.left, false)
			continue
		}
		switch err := c.addName(ctx); {
		case errors.Is(err, syscall.ENODEV): // an older daemon's word for one that has gone
			c.names, c.left = append(c.names, ""), append(c.left, true)
		case err != nil:
			return err
		}
	}
	return nil
}

// addName asks for the name of the next device; ENODEV: there is none.
//
// +checklocks:c.namesMu
func (c *Client) addName(ctx context.Context) error {
	var d rpc.QueryDeviceReply
	_, err := c.rpcWithin(ctx, rpc.OpQueryDevice, "query device",
		&rpc.QueryDeviceRequest{Device: uint32(len(c.names))}, &d, -1)
	gone := errors.Is(err, syscall.ENXIO)
	if err != nil && !gone {
		return err
	}
	c.names, c.left = append(c.names, d.Name.String()), append(c.left, gone)
	return nil
}

// lookForDevices asks for devices that were added since, and which of the others have gone.
//
// +checklocks:c.namesMu
func (c *Client) lookForDevices() {
	for i := range c.names {
		if !c.left[i] {
			_, err := c.query(uint32(i))
			c.left[i] = isNoDevice(err)
		}
	}
	for len(c.names) < maxDevices && c.addName(context.Background()) == nil {
	}
}

// query asks for a device by its number.
func (c *Client) query(number uint32) (*rpc.QueryDeviceReply, error) {
	q := new(rpc.QueryDeviceReply)
	return q, c.call(rpc.OpQueryDevice, "query device", &rpc.QueryDeviceRequest{Device: number}, q)
}

// isNoDevice says that err is about a device that is not there, or not any more.
func isNoDevice(err error) bool {
	return errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO)
}

// Devices lists the names of the devices that the daemon has now, in its order; those that it had
// last if the session is over.
func (c *Client) Devices() (names []string) {
	c.namesMu.Lock()
	defer c.namesMu.Unlock()
	c.lookForDevices()
	for i, name := range c.names {
		if !c.left[i] {
			names = append(names, name)
		}
	}
	return names
}

// find is the number of the device with this name ("": of the first), and what it is.
func (c *Client) find(name string) (number uint32, q *rpc.QueryDeviceReply, err error) {
	c.namesMu.Lock()
	defer c.namesMu.Unlock()
	for _, again := range []bool{false, true} {
		if again {
			c.lookForDevices()
		}
		for i, n := range c.names {
			if c.left[i] || name != "" && n != name {
				continue
			}
			if q, err = c.query(uint32(i)); !isNoDevice(err) {
				return uint32(i), q, err
			}
			c.left[i] = true
		}
	}
	var there []string
	for i, n := range c.names {
		if !c.left[i] {
			there = append(there, n)
		}
	}
	why := fmt.Sprintf("no device %q (the daemon has %q)", name, there)
	if len(there) == 0 {
		why = fmt.Sprintf("the daemon at %s has no device", c.path)
	}
	return 0, nil, &CallError{Op: "open device", Errno: syscall.ENODEV, Why: why}
}

// Daemon tells whose process the daemon is: the one that listens on the socket.
func (c *Client) Daemon() (osmem.Peer, error) { return seqpacket.PeerOf(c.raw) }

// Done is closed when the session is over: the daemon has gone, or Close was called.
func (c *Client) Done() <-chan struct{} { return c.dead }

// gone is nil while the session lives, else why it does not.
func (c *Client) gone() error {
	select {
	case <-c.dead:
		return c.deadErr
	default:
		return nil
	}
}

// die ends the session: the first cause counts and is what die returns. It may be called with any
// lock but c.mu held.
func (c *Client) die(cause error) error {
	c.deadOnce.Do(func() {
		c.deadErr = cause
		close(c.dead)
		// The daemon sees the end of the session also where it was this side that gave up.
		c.conn.CloseWrite() // gone already
		c.conn.CloseRead()  // ends an rpc that waits
		go c.kickAll()
	})
	return c.gone()
}

func (c *Client) kickAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.pipes {
		p.Kick()
	}
}

// NewEventReader makes a pipe of fd that the end of the session kicks.
func (c *Client) newPipe(fd int) (*osmem.EventReader, error) {
	p, err := osmem.NewEventReader(fd)
	if err != nil {
		return nil, c.die(goneBecause(err))
	}
	c.mu.Lock()
	c.pipes[p] = struct{}{}
	c.mu.Unlock()
	if c.gone() != nil { // kickAll may have been before
		p.Kick()
	}
	return p, nil
}

func (c *Client) closePipe(p *osmem.EventReader) {
	p.Close()
	c.mu.Lock()
	delete(c.pipes, p)
	c.mu.Unlock()
}

// checkPeer ends the session if the daemon has closed the socket.
func (c *Client) checkPeer() {
	_ = c.raw.Control(c.peek) // closed: the session is over
}

// corrupt ends the session because of what stands in shared memory. A daemon that ends a session
// first closes the socket and then empties the memory, which then makes no sense: look for that.
func (c *Client) corrupt(err error) error {
	c.checkPeer()
	return c.die(goneBecause(err))
}

// Rows asks for the daemon's objects of one kind: "dev", "qp", "mr", "cq", "cm", "gid", "pd",
// "srq", "mw", "peer", "ipoib", "client", "user", "port", "config" or "daemon", each a JSON object.
// Root and the daemon's own user see all, others what is theirs. Rows come as they are asked for,
// however many there are: what is there all the time comes once, what comes or goes meanwhile may.
// An error is the last that comes, also when ctx ends. A Client has one list under way: a second
// one ends the first.
func (c *Client) Rows(ctx context.Context, kind string) iter.Seq2[json.RawMessage, error] {
	k, ok := listKinds[kind]
	if !ok {
		return func(yield func(json.RawMessage, error) bool) {
			yield(nil, errInvalid("list of %q (kinds: %s)", kind,
				strings.Join(slices.Sorted(maps.Keys(listKinds)), ", ")))
		}
	}
	return c.rows(ctx, rpc.OpList, "list "+kind, k)
}

// List is all of Rows.
func (c *Client) List(kind string) ([]json.RawMessage, error) {
	return collect(c.Rows(context.Background(), kind))
}

// StatRows asks for the daemon's counters, one JSON object per device, port, QP and SRQ, in the
// manner of Rows.
func (c *Client) StatRows(ctx context.Context) iter.Seq2[json.RawMessage, error] {
	return c.rows(ctx, rpc.OpStat, "stat", 0)
}

// Stat is all of StatRows.
func (c *Client) Stat() ([]json.RawMessage, error) {
	return collect(c.StatRows(context.Background()))
}

var listKinds = map[string]uint32{
	"dev": rpc.ListDev, "qp": rpc.ListQP, "mr": rpc.ListMR, "cq": rpc.ListCQ, "cm": rpc.ListCM,
	"client": rpc.ListClient, "user": rpc.ListUser, "port": rpc.ListPort, "daemon": rpc.ListDaemon,
	"gid": rpc.ListGID, "pd": rpc.ListPD, "srq": rpc.ListSRQ, "mw": rpc.ListMW, "peer": rpc.ListPeer,
	"ipoib": rpc.ListNetif, "config": rpc.ListConfig, "ctx": rpc.ListCtx,
	"impair": rpc.ListImpair, "fault": rpc.ListFault,
}

// Close ends the session, and with it all Devices of the client: the daemon destroys what they had,
// as if the program had ended. It does not wait for the daemon, and returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	devices := c.devices
	c.devices = nil
	c.mu.Unlock()
	_ = c.die(errClosed("client"))
	c.conn.Close() // the session is over either way
	for d := range devices {
		d.close()
	}
	c.rpcMu.Lock() // nothing uses bells or fd: all QPs are closed, and new ones need an rpc
	defer c.rpcMu.Unlock()
	if c.door != nil {
		c.door.Close()
	}
	if c.mem != nil {
		c.mem.Release()
	}
	c.door, c.mem = nil, nil
	return nil
}

// isNoDaemon says whether err, of connecting, means that no daemon listens there.
func isNoDaemon(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.ENOTDIR)
}
