package cm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	protocol "github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/vnic/internal/handle"
	"github.com/vrnic/vrnic/vnic/internal/session"
	"github.com/vrnic/vrnic/vnic/record"
)

// A Config says what the connection manager of a device works with. Durations of 0 or less: no
// limit.
type Config struct {
	Name    string  // of the device
	Network Network // nil: only QPs of the device reach each other
	// OnWire says that what stays on the device goes through Network, too.
	OnWire func() bool
	// Addrs are the device's addresses. Owns reports whether one is, and Route which of them reaches
	// remote.
	Addrs []netip.Addr
	Owns  func(netip.Addr) bool
	Route func(remote netip.Addr) (local netip.Addr, err error)
	Log   *slog.Logger

	Connect    time.Duration // for a stream, or an SCTP association, to be there
	MPARequest time.Duration // from a stream to a complete MPA Request
	MPAReply   time.Duration // from a request to its answer
	Turn       time.Duration // for which a handshake that does not get on delays those behind it

	RoCE *RoCE // nil: a device of iWARP
	// Tape records what sets up a connection of QP qpn, or of 0, which is not known yet; nil, both:
	// nobody wants that.
	Tape func(qpn uint32) *record.Tape

	// See vnic.Config.
	MaxPending, MaxPendingPerPeer   int
	MaxHalfOpen, MaxHalfOpenPerPeer int
	MaxConnsPerPeer                 int
}

// A Manager is the connection manager of one device: what all its users share.
type Manager struct {
	cfg    Config
	net    network
	ports  portTable
	admit  admission
	assocs session.Pool

	spoilMu sync.Mutex
	spoil   []*func() (Event, bool) // +checklocks:spoilMu
}

// SpoilConnects has f say, of each connection that is asked for from now on, whether it comes to
// nothing, and of which event its ID hears then. stop ends it.
func (m *Manager) SpoilConnects(f func() (ev Event, fails bool)) (stop func()) {
	m.spoilMu.Lock()
	defer m.spoilMu.Unlock()
	m.spoil = append(m.spoil, &f)
	return func() {
		m.spoilMu.Lock()
		defer m.spoilMu.Unlock()
		m.spoil = slices.DeleteFunc(m.spoil, func(g *func() (Event, bool)) bool { return g == &f })
	}
}

// spoiled says whether the next connection comes to nothing; the first one who says so has a say.
func (m *Manager) spoiled() (ev Event, fails bool) {
	m.spoilMu.Lock()
	defer m.spoilMu.Unlock()
	for _, f := range m.spoil {
		if e, ok := (*f)(); ok && !fails {
			ev, fails = e, true
		}
	}
	return ev, fails
}

// New makes the connection manager of a device.
func New(cfg Config) *Manager {
	for _, d := range []*time.Duration{&cfg.Connect, &cfg.MPARequest, &cfg.MPAReply, &cfg.Turn} {
		if *d <= 0 {
			*d = math.MaxInt64 / 2
		}
	}
	return &Manager{cfg: cfg, net: newNetwork(cfg.Network), assocs: session.Pool{Tape: cfg.Tape}}
}

// A UserConfig says what a user of a device may have.
type UserConfig struct {
	Number     uint32 // tells the users of a device apart; not 0
	MaxIDs     int
	MaxPending int // connection requests to its listeners, half open or unanswered
	IRD, ORD   int
	// Owner is whom ports count for, beside other users'; with HalfPorts he has half of those that
	// are chosen from at most.
	Owner     any
	HalfPorts bool
	// InlineEvents: handlers may be called within ResolveAddr, ResolveRoute and Accept, whose caller
	// then holds no lock that they take. It saves waking a goroutine for each of them.
	InlineEvents bool
}

// A User is what one context of a device has of its connection manager.
type User struct {
	m       *Manager
	cfg     UserConfig
	stop    chan struct{} // closed by Shutdown
	workers workers
	calls   handshakeQueues   // of attempts to connect
	events  eventQueue        // what resolving has brought
	pending int               // requests to its listeners; guarded by m.admit.mu
	account *protocol.Account // of a device of RoCE; gsi's

	mu     sync.Mutex
	closed bool              // +checklocks:mu
	ids    handle.Table[*ID] // +checklocks:mu
}

// NewUser makes a user of m.
func (m *Manager) NewUser(cfg UserConfig) *User {
	u := &User{m: m, cfg: cfg, stop: make(chan struct{}), calls: handshakeQueues{most: m.cfg.Turn}}
	u.events.user = u
	u.account = &protocol.Account{Max: cfg.MaxPending, Owner: u}
	return u
}

// NewID makes an identifier of a port space, whose events go to handler. rdma.ErrLimit,
// rdma.ErrClosed; rdma.ErrUnsupported for datagrams on a device of iWARP.
func (u *User) NewID(space PortSpace, handler func(Event)) (*ID, error) {
	if space != PortSpaceTCP && (space != PortSpaceUDP || u.m.cfg.RoCE == nil) {
		return nil, fmt.Errorf("create a CM id of port space %#x on device %s: %w", uint32(space),
			u.m.cfg.Name, rdma.ErrUnsupported)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, fmt.Errorf("device %s: %w", u.m.cfg.Name, rdma.ErrClosed)
	}
	id := &ID{m: u.m, user: u, space: space, handler: handler}
	h, err := u.ids.Add(id, u.cfg.MaxIDs)
	if err != nil {
		return nil, fmt.Errorf("create a CM id: %w", err)
	}
	id.handle = h
	return id, nil
}

// IDs returns the identifiers that are there, in any order.
func (u *User) IDs() []*ID {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ids.Slice()
}

// Shutdown closes all identifiers; nobody is told of what follows. It waits for nobody: see Wait.
func (u *User) Shutdown() {
	u.mu.Lock()
	closed := u.closed
	u.closed = true
	ids := u.ids.Slice()
	u.mu.Unlock()
	if closed {
		return
	}
	u.workers.close()
	close(u.stop)
	for _, id := range ids {
		id.shut()
	}
}

// Wait waits until the goroutines of a user that was shut down are gone.
func (u *User) Wait() { u.workers.wg.Wait() }

// start runs f on a goroutine that Wait waits for; false: u was shut down.
func (u *User) start(f func()) bool { return u.workers.start(f) }

func unmap(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// signal puts a token into a one-slot channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// await waits until c is closed, or ctx ends.
func await(ctx context.Context, c <-chan struct{}) {
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// errno wraps a syscall.Errno with what was asked for.
func errno(e syscall.Errno, format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), e)
}

// status is the -errno of an rdma_cm event for err; other when err holds none.
func status(err error, other syscall.Errno) int32 {
	var e syscall.Errno
	if errors.As(err, &e) {
		return -int32(e)
	}
	return -int32(other)
}
