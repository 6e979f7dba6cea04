package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/internal/limitlog"
	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A Config says how a Server treats its clients. NewSession is required.
type Config struct {
	// NewSession makes what is behind a session. It is called once per client, after its HELLO,
	// on the session's control goroutine; an error is the reply's status.
	NewSession func(*Session) (Handler, error)

	Mode  fs.FileMode // of the socket; 0: 0600
	Group string      // name or number of the socket's group; "": leave it
	// FD is a socket that listens already, in place of one that is made: Mode and Group are its
	// maker's. 0: none.
	FD int
	// Guests are further sockets.
	Guests []Guest
	Limits *Limits // nil: DefaultLimits
	Direct bool    // clients of one user may exchange messages without the daemon
	Log    *slog.Logger

	// Privileged says who may see every session's objects, and use what is kept when others have
	// filled the daemon; nil: root, and the daemon's own user.
	Privileged func(osmem.Peer) bool

	// AfterFunc is time.AfterFunc, for tests. stop reports whether it was in time.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
	// Now is time.Now, for tests.
	Now func() time.Time
}

// A Guest is a socket for clients of whom nobody looks after the daemon, whoever they are: root of
// a container is one. They see what is their own, and together have what one user may have. Anybody
// who reaches the socket may connect.
type Guest struct {
	Name string // what Session.Guest says; needed
	Path string
	Lock string // a file beside it that only the daemon reaches
	// Within, if not nil, is what stands in place of Name for who has come from the network namespace
	// of that cookie, which is something to count for of its own; "": Name.
	Within func(netns uint64) string
}

// ErrServerClosed is the cause of sessions that Server.Close ends.
var ErrServerClosed = errors.New("shm: server closed")

// maxRefusals is how many connections beyond the limits may wait to be told so.
const maxRefusals = 16

// A Server lends a Handler's devices to the processes that connect to its socket.
type Server struct {
	cfg    Config
	l      *seqpacket.Listener
	guests []*seqpacket.Listener // as Config.Guests
	log    slog.Handler
	rights osmem.ProcessRights
	wg     sync.WaitGroup // accept loop and control goroutines

	ids         *pool
	regions     *pool
	mappings    *pool
	pipes       *pool
	shared      *pool // descriptors: TakeDescriptor
	memberships *pool
	queues      *pool // octets
	violations  atomic.Uint64
	refused     atomic.Uint64
	accepted    atomic.Uint64

	mu       sync.Mutex
	limits   Limits                       // of sessions that begin; +checklocks:mu
	closed   bool                         // +checklocks:mu
	lastID   uint32                       // +checklocks:mu
	sessions map[*Session]struct{}        // until the last goroutine of each is back
	perUser  map[account]int              // of them, but for those that only look; +checklocks:mu
	lookers  int                          // +checklocks:mu
	refusals map[*seqpacket.Conn]struct{} // +checklocks:mu

	leaving leaving

	watcher atomic.Pointer[func(*Call)] // see Watch; nil: nobody's
}

// A Call is one that a client has made, but for HELLO. Its octets are good for a moment.
type Call struct {
	Session        *Session
	Op             rpc.Op
	Request, Reply []byte // what is behind the headers
	Err            error  // why it was refused; nil: it was not
}

// Watch has f told of each call when it has been answered, by the session's goroutine, which waits
// for it, until stop is called. false: somebody else is told.
func (srv *Server) Watch(f func(*Call)) (stop func(), ok bool) {
	if !srv.watcher.CompareAndSwap(nil, &f) {
		return nil, false
	}
	return func() { srv.watcher.Store(nil) }, true
}

// Listen makes the socket at path and serves it until Close. A stale socket file is replaced.
func Listen(path string, cfg Config) (*Server, error) {
	if cfg.NewSession == nil {
		return nil, errors.New("shm: server.Config.NewSession is nil")
	}
	gid, err := seqpacket.GroupID(cfg.Group)
	if err != nil {
		return nil, fmt.Errorf("socket group: %w", err)
	}
	if cfg.Mode == 0 {
		cfg.Mode = 0o600
	}
	if cfg.Privileged == nil {
		cfg.Privileged = func(p osmem.Peer) bool { return p.UID == 0 || p.UID == uint32(os.Geteuid()) }
	}
	if cfg.AfterFunc == nil {
		cfg.AfterFunc = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, limits: DefaultLimits(), sessions: make(map[*Session]struct{}),
		perUser:  make(map[account]int),
		refusals: make(map[*seqpacket.Conn]struct{})}
	if cfg.Limits != nil {
		s.limits = *cfg.Limits
	}
	s.ids = newPool("ids", "connection manager ids and protection domains", s.limits.IDs)
	s.regions = newPool("regions", "memory regions and windows", s.limits.Regions)
	s.mappings = newPool("mappings", "memory mappings", s.limits.Mappings)
	s.pipes = newPool("pipes", "event pipes", s.limits.Pipes)
	s.shared = newPool("pipes", "descriptors for peers", s.limits.Pipes/pipesToShared)
	s.memberships = newPool("memberships", "memberships in multicast groups", s.limits.Memberships)
	s.queues = newPool("queue-bytes", "octets of memory for queues", s.limits.QueueBytes)
	s.rights = osmem.ThisProcess()
	s.log = limitlog.New(cfg.Log.Handler())
	if cfg.FD != 0 {
		s.l, err = seqpacket.Inherit(cfg.FD)
	} else {
		s.l, err = seqpacket.Listen(path, cfg.Mode, gid)
	}
	if err != nil {
		return nil, err
	}
	for _, g := range cfg.Guests {
		l, err := seqpacket.ListenBehind(g.Lock, g.Path, 0o666, -1)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("socket for %s: %w", g.Name, err), s.closeListeners())
		}
		s.guests = append(s.guests, l)
	}
	s.wg.Add(1 + len(s.guests))
	go s.accept(s.l, Guest{})
	for i, l := range s.guests {
		go s.accept(l, cfg.Guests[i])
	}
	return s, nil
}

func (s *Server) closeListeners() error {
	err := s.l.Close()
	for _, l := range s.guests {
		err = errors.Join(err, l.Close())
	}
	return err
}

// Path is where the socket is.
func (s *Server) Path() string { return s.l.Path }

// Stats counts since the start.
type Stats struct {
	Sessions   int    // there now
	Accepted   uint64 // sessions begun
	Refused    uint64 // clients over a limit, of another version, or too slow to say HELLO
	Violations uint64 // sessions ended for one
	Mappings   int64  // there now
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	n := len(s.sessions)
	s.mu.Unlock()
	return Stats{Sessions: n, Accepted: s.accepted.Load(), Refused: s.refused.Load(),
		Violations: s.violations.Load(), Mappings: s.mappings.count()}
}

// Close ends all sessions, removes the socket and waits until everything has been given back, but
// for the sockets of clients that were refused.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.wg.Wait()
		return nil
	}
	s.closed = true
	all := make([]*Session, 0, len(s.sessions))
	for sess := range s.sessions {
		all = append(all, sess)
	}
	for c := range s.refusals {
		c.End()
	}
	s.mu.Unlock()
	err := s.closeListeners()
	for _, sess := range all {
		sess.end(ErrServerClosed)
	}
	s.wg.Wait()
	return err
}

func (s *Server) accept(l *seqpacket.Listener, guest Guest) {
	defer s.wg.Done()
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors or memory: others may give some back.
			s.warn("accept", "err", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err := s.begin(c, guest); err != nil {
			s.warn("new client", "err", err)
			seqpacket.End(c)
			s.leaving.close(c.Close, seqpacket.Drain(c))
		}
	}
}

// begin starts a session for c, or tells c why not.
func (s *Server) begin(c *net.UnixConn, by Guest) error {
	conn, peer, err := seqpacket.NewConn(c)
	if err != nil {
		return err
	}
	guest := by.Name
	if by.Within != nil {
		guest = cmp.Or(by.Within(peer.NetNS), guest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	who, privileged := accountOf(guest, peer), s.privileged(guest, peer)
	full := s.room(who, privileged)
	if full != nil && (!privileged || s.lookers >= maxLookers) {
		s.refused.Add(1)
		if len(s.refusals) >= maxRefusals {
			return fmt.Errorf("too many clients of %v", who)
		}
		s.refusals[conn] = struct{}{}
		s.wg.Add(1)
		go s.refuse(conn, full)
		return nil
	}
	s.lastID++
	if s.lastID == 0 {
		s.lastID = 1
	}
	sess := newSession(s, s.lastID, conn, peer, guest)
	s.sessions[sess] = struct{}{}
	if sess.looks = full; full != nil {
		s.lookers++
	} else {
		s.perUser[who]++
	}
	s.wg.Add(1)
	go sess.run()
	return nil
}

// remove frees a session's place in the quotas.
func (s *Server) remove(sess *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, sess)
	if sess.looks != nil {
		s.lookers--
		return
	}
	who := sess.account()
	if s.perUser[who]--; s.perUser[who] == 0 {
		delete(s.perUser, who)
	}
}

// refuse answers the HELLO of a client for which there is no room, and says why.
func (s *Server) refuse(c *seqpacket.Conn, why error) {
	defer s.wg.Done()
	stop := s.cfg.AfterFunc(s.helloTime(), c.End)
	defer stop()
	defer func() {
		c.End()
		s.leaving.close(c.Close, c.Drain())
		s.mu.Lock()
		delete(s.refusals, c)
		s.mu.Unlock()
	}()
	msg, err := c.ReadPlain()
	if err != nil {
		return
	}
	if h, body, err := rpc.ParseMessage(msg); err == nil {
		var req rpc.HelloRequest
		err := rpc.Decode(body, &req)
		rep := refusal(why, err == nil && req.Features&rpc.FeatureReasons != 0)
		// It may have gone.
		_ = c.Write(rpc.AppendMessage(nil, rpc.Header{Op: h.Op, Seq: h.Seq, Status: rpc.Status(why)},
			rep), nil)
	}
}

// maxLeaving is how many goroutines may hang in closing a socket of a client that has no session.
const maxLeaving = 16

// A leaving closes sockets of clients that have no session, which can take for ever (see
// seqpacket.Conn.Close) if descriptors are on their way through them, and nobody waits for that. A
// socket more than maxLeaving waits for its turn; the kernel bounds the descriptors that a user has
// on their way.
type leaving struct {
	mu   sync.Mutex
	n    int            // goroutines; +checklocks:mu
	wait []func() error // +checklocks:mu
}

// close calls c: now if there is nothing in its way (plain: see seqpacket.Drain), else soon, or
// when the kernel is done with others. It does not wait.
func (l *leaving) close(c func() error, plain bool) {
	if plain {
		_ = c() // nothing to lose
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n >= maxLeaving {
		l.wait = append(l.wait, c)
		return
	}
	l.n++
	go l.run(c)
}

func (l *leaving) run(c func() error) {
	for ok := true; ok; c, ok = l.next() {
		_ = c() // nothing to lose
	}
}

func (l *leaving) next() (c func() error, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wait) == 0 {
		l.n--
		return nil, false
	}
	c, l.wait = l.wait[0], l.wait[1:]
	return c, true
}

func (s *Server) helloTime() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.limits.HelloMS) * time.Millisecond
}

// SetLimits changes the limits. Those of one session are of sessions that begin from now on, those
// of all together hold at once: what is over them stays, and nothing comes to it.
func (s *Server) SetLimits(l Limits) {
	s.mu.Lock()
	s.limits = l
	s.mu.Unlock()
	for p, max := range map[*pool]int64{s.ids: int64(l.IDs), s.regions: int64(l.Regions),
		s.mappings: int64(l.Mappings), s.pipes: int64(l.Pipes),
		s.shared: int64(l.Pipes / pipesToShared), s.memberships: int64(l.Memberships),
		s.queues: l.QueueBytes} {
		p.mu.Lock()
		p.max = max
		p.mu.Unlock()
	}
}

// newEventPipe is a socket, or a pipe for clients that know nothing else, within the quota.
func (s *Session) newEventPipe() (*osmem.EventWriter, int, error) {
	pipes := s.srv.pipes
	if err := pipes.take(s.account(), s.Privileged()); err != nil {
		return nil, -1, err
	}
	make := osmem.NewEventPipe
	if s.sockets {
		make = osmem.NewEventSocket
	}
	p, fd, err := make(s, func() { pipes.give(s.account(), 1) })
	if err != nil {
		pipes.give(s.account(), 1)
	}
	return p, fd, err
}

// newPackets is as newEventPipe, and counts as one.
func (s *Session) newPackets() (*osmem.Packets, int, error) {
	pipes := s.srv.pipes
	if err := pipes.take(s.account(), s.Privileged()); err != nil {
		return nil, -1, err
	}
	p, fd, err := osmem.NewPackets(s, func() { pipes.give(s.account(), 1) })
	if err != nil {
		pipes.give(s.account(), 1)
	}
	return p, fd, err
}

// warn logs, within limits: a client cannot fill the disk.
func (s *Server) warn(msg string, args ...any) {
	if !s.log.Enabled(context.Background(), slog.LevelWarn) {
		return
	}
	r := slog.NewRecord(s.cfg.Now(), slog.LevelWarn, msg, 0)
	r.Add(args...)
	_ = s.log.Handle(context.Background(), r) // there is nobody else to tell
}
