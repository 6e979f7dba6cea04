package port

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
)

// UnixConfig describes a port whose link is a Unix stream socket. Each frame on it is preceded by
// its length in four octets, most significant first, as QEMU's -netdev stream has it.
type UnixConfig struct {
	Path string // of the socket
	Name string // of the port on the switch; empty: "unix-listen:PATH" or "unix-connect:PATH"
	// OnLink, if not nil, is called when a peer is there, and with why when it has gone; of a port
	// that connects also, with why, when the first attempt fails, or one fails otherwise than the one
	// before. It is one call after the other, on a goroutine of the port, which Close waits for.
	OnLink func(up bool, why error)
}

const (
	unixHeaderLen = 4
	// maxUnixFrame is the longest frame that is taken from a peer; it is what QEMU takes. One
	// that claims to be longer cannot be in step with us any more and is disconnected.
	maxUnixFrame = 4096 + 65536
	// unixQueueLen is how much may wait for a peer that does not read, in octets. Frames that do
	// not fit are dropped.
	unixQueueLen = 4 << 20
	// unixRead is the size of a read, and unixWrite of what waits for no more.
	unixRead  = 256 << 10
	unixWrite = 64 << 10
)

// A UnixPort is a port whose link is a Unix stream socket.
type Unix struct {
	cfg  UnixConfig
	kind string // "unix-listen" or "unix-connect"
	at   *ethswitch.Attachment

	ctx    context.Context // done when Close was called
	cancel context.CancelFunc
	wg     sync.WaitGroup
	peers  atomic.Uint64 // connections so far

	mu      sync.Mutex    // guards the rest; held over a write that does not wait
	conn    *net.UnixConn // +checklocks:mu
	raw     syscall.RawConn
	down    string     // of no peer: why there is none, or ""
	pending []byte     // frames, each with its length, that the peer has not taken
	more    *sync.Cond // pending has become full enough for the flusher, or conn has changed
	flusher bool       // the flusher has the turn to write
}

var _ ethswitch.Port = (*Unix)(nil)

func newUnixPort(sw *ethswitch.Switch, c UnixConfig, kind string) (*Unix, error) {
	if c.Name == "" {
		c.Name = kind + ":" + c.Path
	}
	p := &Unix{cfg: c, kind: kind}
	p.more = sync.NewCond(&p.mu)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	var err error
	if p.at, err = sw.Attach(ethswitch.PortOptions{Name: c.Name, Kind: "unix"}, p); err != nil {
		p.cancel()
		return nil, err
	}
	return p, nil
}

// ListenUnix makes a port that takes one peer at a time at c.Path, and the next one when that has
// gone. A socket that is there and that nobody listens on is replaced; anything else at that path
// is an error. The socket is for its owner only and is removed on Close.
func ListenUnix(sw *ethswitch.Switch, c UnixConfig) (*Unix, error) {
	l, own, err := listenUnix(c.Path)
	if err != nil {
		return nil, fmt.Errorf("netstack: unix-listen:%s: %w", c.Path, err)
	}
	p, err := newUnixPort(sw, c, "unix-listen")
	if err != nil {
		closeUnix(l, c.Path, own)
		return nil, err
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		stop := context.AfterFunc(p.ctx, func() { l.Close() })
		defer stop()
		defer closeUnix(l, c.Path, own)
		p.accept(l)
	}()
	return p, nil
}

// accept serves one peer after the other.
func (p *Unix) accept(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		switch {
		case err == nil:
			p.serve(conn)
		case p.ctx.Err() != nil:
			return
		default: // out of files, say: try again
			if !p.pause(100 * time.Millisecond) {
				return
			}
		}
	}
}

// listenUnix binds path. own is what is there now, so that nothing else is removed later.
func listenUnix(path string) (l *net.UnixListener, own os.FileInfo, err error) {
	l, err = bindUnix(path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, nil, err
		}
		l, err = bindUnix(path)
	}
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	if own, err = os.Lstat(path); err != nil {
		l.Close()
		os.Remove(path)
		return nil, nil, err
	}
	return l, own, nil
}

// bindUnix makes a socket at path that only the daemon's user can connect to. It has its mode
// before it has a name, which might be somebody else's by the time of a chmod.
func bindUnix(path string) (*net.UnixListener, error) {
	c := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) (err error) {
		if cerr := rc.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	l, err := c.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// removeStale removes the socket at path if nobody listens on it.
func removeStale(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if fi.Mode().Type() != os.ModeSocket {
		return errors.New("there is a file there that is not a socket")
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		conn.Close()
		return errors.New("somebody listens there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// closeUnix closes l and removes its socket, unless that is somebody else's by now.
func closeUnix(l *net.UnixListener, path string, own os.FileInfo) {
	if fi, err := os.Lstat(path); err == nil && os.SameFile(fi, own) {
		os.Remove(path)
	}
	l.Close()
}

// Delays between attempts to connect.
const (
	minRedial = 10 * time.Millisecond
	maxRedial = time.Second
)

// ConnectUnix makes a port that connects to c.Path, and again whenever the peer has gone. It
// returns at once: the peer, or the path, may come later, and is looked for each second.
func ConnectUnix(sw *ethswitch.Switch, c UnixConfig) (*Unix, error) {
	p, err := newUnixPort(sw, c, "unix-connect")
	if err != nil {
		return nil, err
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		p.redial()
	}()
	return p, nil
}

// redial connects and serves until the port is closed.
func (p *Unix) redial() {
	var d net.Dialer
	delay := minRedial
	for {
		conn, err := d.DialContext(p.ctx, "unix", p.cfg.Path)
		if err == nil {
			began := time.Now()
			p.serve(conn.(*net.UnixConn))
			if time.Since(began) > maxRedial {
				delay = minRedial // it was a peer, not somebody who hangs up
			}
		} else if p.ctx.Err() == nil && p.setDown(err) {
			p.tell(false, fmt.Errorf("%w; it is tried again", err))
		}
		if !p.pause(delay) {
			return
		}
		delay = min(2*delay, maxRedial)
	}
}

// setDown notes why there is no peer, and reports whether that is something else than before.
func (p *Unix) setDown(why error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.down
	p.down = why.Error()
	return p.down != was
}

func (p *Unix) tell(up bool, why error) {
	if p.cfg.OnLink != nil && p.ctx.Err() == nil {
		p.cfg.OnLink(up, why)
	}
}

// pause waits; it reports false if the port was closed.
func (p *Unix) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// Close disconnects the peer, takes the port off its switch, removes the socket and returns when no
// goroutine is left.
func (p *Unix) Close() error {
	p.at.Detach()
	p.cancel()
	p.wg.Wait()
	return nil
}

// serve carries frames between conn and the switch until the peer has gone or the port is closed.
func (p *Unix) serve(conn *net.UnixConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return
	}
	stop := context.AfterFunc(p.ctx, func() { conn.Close() })
	defer stop()

	p.mu.Lock()
	p.conn, p.raw, p.flusher = conn, raw, false
	p.pending, p.down = p.pending[:0], ""
	p.mu.Unlock()
	p.peers.Add(1)
	p.tell(true, nil)

	done := make(chan struct{})
	go func() {
		defer close(done)
		p.flush(conn)
	}()
	why := p.receive(conn)

	conn.Close()
	p.mu.Lock()
	p.conn, p.raw, p.down = nil, nil, why.Error()
	p.pending = p.pending[:0]
	p.more.Broadcast()
	p.mu.Unlock()
	<-done
	p.tell(false, why)
}

// Connected reports whether there is a peer.
func (p *Unix) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn != nil
}

// Name is the port's name on the switch.
func (p *Unix) Name() string { return p.cfg.Name }

// Stats returns the port's counters.
func (p *Unix) Stats() ethswitch.PortStats { return p.at.Stats() }

// String implements Port.
func (p *Unix) String() string {
	s := p.kind + " " + p.cfg.Path
	if p.Connected() {
		return s + " connected"
	}
	p.mu.Lock()
	why := p.down
	p.mu.Unlock()
	if p.peers.Load() > 0 {
		s += " peer gone"
	} else {
		s += " no peer yet"
	}
	if why != "" && why != errPeerGone.Error() {
		s += " (" + why + ")"
	}
	return s
}
