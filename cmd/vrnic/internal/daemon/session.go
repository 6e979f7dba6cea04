package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/direct"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/logs"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/relay"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// A session is what one client process has: a vnic.Context of each device that it uses, and the
// ids of its connection manager. shm calls it from one goroutine; the RNIC's events come from any.
type session struct {
	d   *Daemon
	shm *server.Session
	log *slog.Logger
	// devs are by device number: those that there were when the session began, as far as it may see
	// them, and those that it has asked for since. One that has gone keeps its number, and is vacant
	// if the session has nothing there. of finds them. The control goroutine changes both with d.mu
	// held, under which others read them.
	devs []*sessionDevice
	of   map[*device]*sessionDevice
	// within are the stations of the client's network, if it has come by the socket for those.
	within []station

	// the control goroutine's
	lends  bool           // its own memory: LendMem was called
	relays []*relay.Relay // of the UDP ports that its ids have
}

var _ server.Handler = (*session)(nil)

// newSession is called on the session's own goroutine, which may wait.
func (d *Daemon) newSession(s *server.Session) (server.Handler, error) {
	<-d.ready
	if !d.up {
		return nil, syscall.ENODEV
	}
	h := &session{d: d, shm: s, of: make(map[*device]*sessionDevice),
		log: d.log.With(logs.Part, "clients", "session", s.ID())}
	if strings.HasPrefix(s.Guest(), guest.Net+":") {
		h.within = d.stationsIn(s.Peer().NetNS)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	h.addDevices()
	d.sessions[h] = struct{}{}
	return h, nil
}

// maxSessionDevices bounds the numbers of one session: how many devices come and go in its life.
const maxSessionDevices = 1 << 16

// vacant has the number of a device that has gone, of which a session has nothing.
var vacant = func() *sessionDevice {
	sd := &sessionDevice{dev: new(device)}
	sd.dev.gone.Store(true)
	return sd
}()

// addDevices gives a number to each device that the session sees and that has none, and lets go of
// those that have gone. One that is being taken away gets no number: behind one of which nobody has
// heard, programs that do not tell gone devices from none look for no more. d.mu is held.
func (s *session) addDevices() {
	for dev, sd := range s.of {
		if dev.gone.Load() && !slices.Contains(s.d.devices, dev) && sd.ctx == nil {
			s.devs[sd.number] = vacant
			delete(s.of, dev)
		}
	}
	for _, dev := range s.d.devices {
		if s.of[dev] != nil || !s.sees(dev) || dev.gone.Load() || len(s.devs) == maxSessionDevices {
			continue
		}
		sd := &sessionDevice{s: s, number: uint32(len(s.devs)), dev: dev,
			domains: make(map[*direct.Domain]struct{})}
		sd.held.hush(dev.quiet.Load())
		s.devs = append(s.devs, sd)
		s.of[dev] = sd
	}
}

// look has the session see devices that were added since it began.
func (s *session) look() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.addDevices()
}

// on is what the session has of a device; nil: nothing. Anybody may ask.
func (s *session) on(dev *device) *sessionDevice {
	s.d.mu.RLock()
	defer s.d.mu.RUnlock()
	return s.of[dev]
}

// sees says whether dev is there for the session: a container's socket is of one device, of all, or
// of those of the container's network.
func (s *session) sees(dev *device) bool {
	switch s.shm.Guest() {
	case "", guest.All, dev.spec.Name:
		return true
	}
	return slices.Contains(s.within, dev.station)
}

// listed are all devices that there are now, for who looks: also those that came later than the
// session, which has nothing there.
func (s *session) listed() (devs []*sessionDevice) {
	for _, dev := range s.d.deviceList() {
		if !s.sees(dev) {
			continue
		}
		if sd := s.on(dev); sd != nil {
			devs = append(devs, sd)
		} else {
			devs = append(devs, &sessionDevice{s: s, dev: dev})
		}
	}
	return devs
}

func (s *session) Devices() []string {
	names := make([]string, len(s.devs))
	for i, sd := range s.devs {
		names[i] = sd.dev.spec.Name
	}
	return names
}

// device is the session's view of a device; ENODEV if there is no such number. Who asks for the
// first that is not there looks for more.
func (s *session) device(number uint32) (*sessionDevice, error) {
	if uint64(number) == uint64(len(s.devs)) {
		s.look()
	}
	if !s.numbered(number) || s.devs[number].dev.gone.Load() {
		return nil, syscall.ENODEV
	}
	return s.devs[number], nil
}

// numbered says that there is a device of that number, or was.
func (s *session) numbered(number uint32) bool { return uint64(number) < uint64(len(s.devs)) }

func (s *session) OpenContext(
	device uint32, events *server.AsyncQueue,
) (server.ContextHandler, error) {
	sd, err := s.device(device)
	if err != nil {
		return nil, err
	}
	sd.dev.taking.RLock()
	defer sd.dev.taking.RUnlock()
	if sd.dev.gone.Load() {
		return nil, syscall.ENODEV
	}
	if _, err := sd.context(); err != nil {
		return nil, errno(err)
	}
	sd.openEvents(events)
	return &contextHandler{sd: sd, events: events}, nil
}

// LendMem: memory that can hang comes next. All of the session that could touch it, on any device,
// is run by its own goroutines from now on.
func (s *session) LendMem() error {
	s.lends = true
	for _, sd := range s.devs {
		sd.mu.Lock()
		ctx := sd.ctx
		sd.mu.Unlock()
		if ctx == nil {
			continue
		}
		if err := ctx.AllowBlocking(); err != nil {
			return errno(err)
		}
	}
	return nil
}

// MemGone implements server.Handler.
func (s *session) MemGone() {
	for _, sd := range s.devs {
		for d := range sd.domains {
			d.MemGone()
		}
	}
}

// Close ends all that the session has, on all devices at once, and then waits for what still runs.
func (s *session) Close(cause error) {
	for _, sd := range s.devs {
		sd.shutdown()
	}
	for _, r := range s.relays {
		r.Close()
	}
	for _, sd := range s.devs {
		sd.wait()
		sd.leaveDirect()
	}
	s.d.mu.Lock()
	delete(s.d.sessions, s)
	s.d.mu.Unlock()
	s.d.reclaim.sessionEnded(s.shm.Objects())
	s.log.Debug("session over", "cause", cause)
}

// A sessionDevice is a device as one session uses it. Contexts that the client opens share one
// vnic.Context: a QP of one may be connected by an id that knows no context.
type sessionDevice struct {
	s      *session
	number uint32
	dev    *device

	mu sync.Mutex
	// guarded by mu, under which the control goroutine alone makes it; by the first use
	ctx  *vnic.Context
	over bool // +checklocks:mu

	// taken under the RNIC's locks: nothing of it is called with it held
	asyncMu sync.Mutex
	async   map[asyncSource]asyncQueue // +checklocks:asyncMu
	// direct are QPs that may have a direct path; the control goroutine's.
	direct map[*direct.End]struct{}
	// domains are its protection domains; the control goroutine's.
	domains map[*direct.Domain]struct{}
	// opened are where contexts hear of what is about the device.
	opened map[*server.AsyncQueue]struct{} // +checklocks:asyncMu

	held held
}

// held are connection events that wait for the end of a quiet time.
type held struct {
	mu    sync.Mutex
	quiet bool     // +checklocks:mu
	tell  []func() // +checklocks:mu
}

// maxHeld bounds them; what comes behind is lost.
const maxHeld = 4096

// do tells, or has that wait.
func (h *held) do(tell func()) {
	h.mu.Lock()
	if !h.quiet {
		h.mu.Unlock()
		tell()
		return
	}
	if len(h.tell) < maxHeld {
		h.tell = append(h.tell, tell)
	}
	h.mu.Unlock()
}

// hush begins a quiet time, or ends it and tells of what has come.
func (h *held) hush(on bool) {
	for {
		h.mu.Lock()
		tell := h.tell
		if on || len(tell) == 0 {
			h.quiet = on
			h.mu.Unlock()
			return
		}
		h.tell = nil // what comes meanwhile is behind it
		h.mu.Unlock()
		for _, f := range tell {
			f()
		}
	}
}

// hush has the session's program told of no events of the device, or of those that have come since.
func (sd *sessionDevice) hush(on bool) {
	sd.asyncMu.Lock()
	for q := range sd.opened {
		q.Quiet(on)
	}
	sd.asyncMu.Unlock()
	sd.held.hush(on)
}

// An asyncSource is what an async event of the RNIC can be about: a QP number or vnic's handle of a
// CQ.
type asyncSource struct{ kind, object uint32 }

// An asyncQueue is where the client hears of it, and the handle by which it knows it.
type asyncQueue struct {
	queue  *server.AsyncQueue
	handle uint32
	rings  *ring.DaemonQP // of a QP: they hold why it ended
}

// fails is what a call of the session on the device is made to fail with.
func (sd *sessionDevice) fails(call string) error {
	return sd.s.d.faults.Call(sd.dev.spec.Name, call)
}

// context is the session's context on the device. Only the control goroutine calls it.
func (sd *sessionDevice) context() (*vnic.Context, error) {
	sd.mu.Lock()
	defer sd.mu.Unlock()
	if sd.over {
		return nil, fmt.Errorf("session is over: %w", rdma.ErrClosed)
	}
	if sd.dev.gone.Load() {
		return nil, fmt.Errorf("device %s: %w", sd.dev.spec.Name, rdma.ErrDeviceGone)
	}
	if sd.ctx != nil {
		return sd.ctx, nil
	}
	ctx, err := sd.dev.vnic.Open(vnic.ContextConfig{
		Limits: sd.dev.card().Bound(clientLimits(sd.s.shm.Limits())),
		Label:  strconv.FormatUint(uint64(sd.s.shm.ID()), 10),
		PID:    int(sd.s.shm.Peer().PID),
		Comm:   sd.s.shm.Comm(),
		User:   sd.s.shm.Account(),
		OnViolation: func(err error) {
			sd.s.shm.Fail(err)
		},
		Lifetime:     sd.s.shm.Context(),
		Privileged:   sd.s.shm.Peer().UID == 0 && sd.s.shm.Guest() == "",
		HalfPorts:    !sd.s.shm.Privileged(),
		OnAsync:      sd.onAsync,
		InlineEvents: true,
		Impatient:    sd.s.shm.AsksAgain(),
	})
	if err != nil {
		return nil, err
	}
	if sd.s.lends || sd.dev.adversary != nil { // whose memory is never directly addressable
		if err := ctx.AllowBlocking(); err != nil {
			return nil, errors.Join(err, ctx.Close())
		}
	}
	sd.ctx = ctx
	return ctx, nil
}

func (sd *sessionDevice) shutdown() {
	sd.mu.Lock()
	sd.over = true
	ctx := sd.ctx
	sd.mu.Unlock()
	if ctx != nil {
		ctx.Shutdown()
	}
}

// inUse reports whether the client has the device open, or an id of the connection manager there.
func (sd *sessionDevice) inUse() bool {
	sd.asyncMu.Lock()
	opened := len(sd.opened)
	sd.asyncMu.Unlock()
	sd.mu.Lock()
	ctx := sd.ctx
	sd.mu.Unlock()
	if opened > 0 || ctx == nil {
		return opened > 0
	}
	for range sd.dev.vnic.EachCM(ctx) {
		return true
	}
	return false
}

func (sd *sessionDevice) wait() {
	sd.mu.Lock()
	ctx := sd.ctx
	sd.mu.Unlock()
	if ctx != nil {
		<-ctx.Done()
	}
}

// keep and drop say which QPs may have a direct path: when the session ends none of them is closed.
func (sd *sessionDevice) keep(e *direct.End) {
	if sd.direct == nil {
		sd.direct = make(map[*direct.End]struct{})
	}
	sd.direct[e] = struct{}{}
}

func (sd *sessionDevice) drop(e *direct.End) { delete(sd.direct, e) }

// leaveDirect is for when the session has ended.
func (sd *sessionDevice) leaveDirect() {
	for e := range sd.direct {
		e.Remove()
	}
	for d := range sd.domains {
		d.Close()
	}
}

// watch says where events of an object go, unwatch that nobody wants them any more.
func (sd *sessionDevice) watch(src asyncSource, q asyncQueue) {
	sd.asyncMu.Lock()
	defer sd.asyncMu.Unlock()
	if sd.async == nil {
		sd.async = make(map[asyncSource]asyncQueue)
	}
	sd.async[src] = q
}

func (sd *sessionDevice) unwatch(src asyncSource) {
	sd.asyncMu.Lock()
	defer sd.asyncMu.Unlock()
	delete(sd.async, src)
}

// openEvents says where a context hears of what is about the device, closeEvents that it is closed.
func (sd *sessionDevice) openEvents(q *server.AsyncQueue) {
	sd.asyncMu.Lock()
	defer sd.asyncMu.Unlock()
	if sd.opened == nil {
		sd.opened = make(map[*server.AsyncQueue]struct{})
	}
	sd.opened[q] = struct{}{}
	if sd.dev.quiet.Load() {
		q.Quiet(true)
	}
}

func (sd *sessionDevice) closeEvents(q *server.AsyncQueue) {
	sd.asyncMu.Lock()
	defer sd.asyncMu.Unlock()
	delete(sd.opened, q)
}

func (sd *sessionDevice) onAsync(ev rdma.AsyncEvent) {
	t, ok := asyncEvents[ev.Type]
	if !ok {
		return
	}
	sd.asyncMu.Lock()
	if t.kind == rpc.ObjNone {
		for q := range sd.opened {
			q.Push(rpc.AsyncEvent{Type: t.ring, Kind: t.kind})
		}
		sd.asyncMu.Unlock()
		return
	}
	q, ok := sd.async[asyncSource{t.kind, ev.Object}]
	sd.asyncMu.Unlock()
	if !ok {
		return
	}
	if c := cause(ev.Cause); c != 0 && q.rings != nil {
		q.rings.SetError(c) // the change of state comes after the event
	}
	q.queue.Push(rpc.AsyncEvent{Type: t.ring, Kind: t.kind, Handle: q.handle, Cause: cause(ev.Cause)})
}
