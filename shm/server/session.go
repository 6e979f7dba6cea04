package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A Session is one client of a Server. Its control goroutine answers requests, its doorbell thread
// looks after bells, and the handler may add goroutines with Go. When the socket closes, or the
// client violates the ABI, all of it ends and everything is given back.
type Session struct {
	srv  *Server
	id   uint32
	conn *seqpacket.Conn
	peer osmem.Peer
	// guest is the name of the socket that the client came by; "": the daemon's own.
	guest string
	h     Handler // nil before HELLO
	// looks is why the session may only list and count: there was no room for another one.
	looks   error
	reasons bool // the client wants to know why; set by HELLO
	again   bool // the client knows EINPROGRESS; set by HELLO
	// the client knows what is answered of a device that has gone; set by HELLO
	tellsGone bool
	sockets   bool        // the client takes sockets for event pipes; set by HELLO
	direct    atomic.Bool // it has the direct path, and may; set by HELLO
	minor     uint16      // of the version that both sides have; set by HELLO

	limits Limits // those that held when it began

	ctx       context.Context // ends when the session has ended
	cancel    context.CancelFunc
	once      sync.Once
	cause     error          // why; set before ctx ends
	extra     sync.WaitGroup // goroutines of Go
	errands   errands
	since     time.Time
	nonce     [abi.NonceLen]byte
	page      *ring.SessionPage
	pageMem   *osmem.Region
	bell      *osmem.EventFD
	linger    linger
	bellEnded chan struct{} // closed when the doorbell thread has ended; nil if it was not started
	bellObjs  []atomic.Pointer[bellObj]
	// freeBell: no lower one is free. The control goroutine's.
	freeBell uint32

	// mu guards the tables against those who look (List, the doorbell thread) and against
	// PushRequest. Only the control goroutine changes the others. Never held over a handler's method.
	mu      sync.Mutex
	comm    string // +checklocks:mu
	state   string // +checklocks:mu
	self    self   // +checklocks:mu
	shown   []int  // descriptors of its namespaces; the control goroutine's
	app     *osmem.AppMem
	ctxs    handles[*ctxObj]
	pds     handles[*pdObj]
	mrs     handles[*mrObj]
	mws     handles[*mwObj]
	mems    handles[*memObj]
	chans   handles[*chanObj]
	cqs     handles[*cqObj]
	ahs     handles[*ahObj]
	srqs    handles[*srqObj]
	qps     handles[*qpObj]
	qpNums  map[qpKey]*qpObj
	cmChans handles[*cmChannel]
	ids     handles[*CMID] // +checklocks:mu

	memBytes  int64
	ringBytes int64
	groups    int // multicast groups that QPs and ids are members of; each counts

	list   listing
	listed int // rows so far
	reply  []byte
}

// newSession makes a session of srv.
//
// +checklocks:srv.mu
func newSession(srv *Server, id uint32, conn *seqpacket.Conn, peer osmem.Peer,
	guest string) *Session {
	s := &Session{srv: srv, id: id, conn: conn, peer: peer, guest: guest, since: srv.cfg.Now(),
		limits: srv.limits, qpNums: make(map[qpKey]*qpObj), state: "hello"}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	conn.Discard = s.discard
	return s
}

// ID numbers the session within the daemon's life.
func (s *Session) ID() uint32 { return s.id }

// Peer is who connected, by the kernel's word at that time.
func (s *Session) Peer() osmem.Peer { return s.peer }

// Guest is the name of the socket that the client came by, or what its Within says; "": the
// daemon's own.
func (s *Session) Guest() string { return s.guest }

// AsksAgain says that the client sends a request again that is answered by EINPROGRESS. It is for
// handlers' methods.
func (s *Session) AsksAgain() bool { return s.again }

// TellsGone says that the client tells a device that has gone from one that there is not.
func (s *Session) TellsGone() bool { return s.tellsGone }

// account is whom what the session has is counted for.
func (s *Session) account() account { return accountOf(s.guest, s.peer) }

// Account is whom bounds of a user's hold for, a value that can be compared: the client's user, or
// all users of a Guest's socket.
func (s *Session) Account() any { return s.account() }

// Comm is what the client calls itself; not to be believed, nor printed without escaping.
func (s *Session) Comm() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.comm
}

// Objects is how many objects of all kinds there are, and how many rows have been listed: what is
// garbage when the session has ended. For Handler.Close.
func (s *Session) Objects() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed + len(s.pds.m) + len(s.mrs.m) + len(s.mws.m) + len(s.mems.m) + len(s.cqs.m) +
		len(s.srqs.m) + len(s.qps.m) + len(s.ids.m) + len(s.ahs.m)
}

// Limits are the quotas that hold.
func (s *Session) Limits() Limits { return s.limits }

// Done is closed when the session has ended; its resources are given back after that.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Context ends when the session has ended: what a Handler waits for waits no longer then.
func (s *Session) Context() context.Context { return s.ctx }

// Fail ends the session for a violation. It does not block and may be called with locks held.
func (s *Session) Fail(err error) { s.end(err) }

func (s *Session) ended() bool { return s.ctx.Err() != nil }

// end records the first cause and wakes everything that waits for the client.
func (s *Session) end(cause error) {
	s.once.Do(func() {
		s.cause = cause
		s.cancel()
		s.conn.End()
	})
}

// run is the control goroutine.
func (s *Session) run() {
	defer s.srv.wg.Done()
	s.srv.accepted.Add(1)
	stop := s.srv.cfg.AfterFunc(s.srv.helloTime(), func() { s.end(errNoHello) })
	err := s.hello(stop)
	for err == nil && !s.ended() {
		err = s.serve()
	}
	stop()
	_ = s.conn.Flush() // the end is known already
	s.end(err)
	s.teardown()
}

var (
	errNoHello = errors.New("shm: client did not say HELLO in time")
	errRefused = errors.New("shm: client was refused")
)

// teardown gives everything back. It is the control goroutine's last act.
func (s *Session) teardown() {
	s.setState("ending")
	cause := s.cause
	switch {
	case errors.Is(cause, io.EOF), errors.Is(cause, net.ErrClosed), errors.Is(cause, syscall.EPIPE),
		errors.Is(cause, syscall.ECONNRESET):
		cause = nil // the client closed, or died: the two look alike
	case abi.IsViolation(cause):
		s.srv.warn("client ended for a violation", "session", s.id, "pid", s.peer.PID, "uid", s.peer.UID,
			"comm", fmt.Sprintf("%q", s.Comm()), "why", fmt.Sprintf("%q", cause.Error()))
		s.srv.violations.Add(1)
	case errors.Is(cause, errNoHello), errors.Is(cause, errRefused):
		s.srv.refused.Add(1)
	}
	if s.bellEnded != nil {
		s.bell.Stop()
		<-s.bellEnded
	}
	s.linger.stop()
	s.list.end()
	if s.h != nil {
		s.h.Close(cause)
	}
	s.endEvents()
	s.Go(func() { _ = s.conn.Close() }) // nothing to lose
	s.extra.Wait()
	s.freeAll()
	s.srv.remove(s)
}

// endEvents has the client find the end of all that it is told of events by.
func (s *Session) endEvents() {
	for _, c := range s.chans.m {
		c.ctx.events.dropChan(c.ring)
		c.pipe.Close()
	}
	for _, c := range s.ctxs.m {
		c.events.close()
	}
	for _, c := range s.cmChans.m {
		c.close()
	}
}

// freeAll releases what is left in the tables. The handler is gone.
func (s *Session) freeAll() {
	for _, r := range s.freeTables() { // for which the client can have the kernel take for ever
		r.Release()
	}
}

// freeTables is freeAll but for what it returns.
func (s *Session) freeTables() (rings []*osmem.Region) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.qps.m {
		rings = append(rings, q.mem)
		s.giveQueue(q.own)
	}
	for _, q := range s.srqs.m {
		rings = append(rings, q.mem)
	}
	for _, c := range s.cqs.m {
		c.ring.Close()
		rings = append(rings, c.mem)
		if c.next != nil {
			rings = append(rings, c.next)
		}
		c.bits.close(func(r *osmem.Region) { rings = append(rings, r) })
	}
	for _, c := range s.chans.m {
		rings = append(rings, c.mem)
	}
	for _, m := range s.mrs.m {
		if m.mem != nil {
			m.mem.Close()
		}
	}
	s.srv.regions.give(s.account(), int64(len(s.mrs.m)+len(s.mws.m)))
	s.srv.ids.give(s.account(), int64(len(s.ids.m)+len(s.pds.m)+len(s.ahs.m)))
	for _, id := range s.ids.m {
		id.giveSocket()
	}
	s.leaveGroups(s.groups)
	for _, m := range s.mems.m {
		s.releaseMem(m)
	}
	if s.app != nil {
		s.app.Release()
	}
	osmem.CloseFDs(s.shown)
	if s.bell != nil {
		s.bell.Close()
	}
	if s.pageMem != nil {
		rings = append(rings, s.pageMem)
	}
	return rings
}

func (s *Session) setState(st string) {
	s.mu.Lock()
	s.state = st
	s.mu.Unlock()
}

// hello does the handshake.
func (s *Session) hello(stop func() bool) error {
	msg, fd, err := s.conn.Read()
	if err != nil {
		return err
	}
	if fd >= 0 {
		s.discard(fd)
		return abi.Violation("descriptor with HELLO")
	}
	h, body, err := rpc.ParseMessage(msg)
	if err != nil {
		return err
	}
	if h.Op != rpc.OpHello {
		return abi.Violation("%v before HELLO", h.Op)
	}
	if !stop() && s.ended() {
		return errNoHello
	}
	var req rpc.HelloRequest
	if err := rpc.DecodeRequest(h, body, &req); err != nil {
		return s.refuse(h, err, refusal(err, s.reasons))
	}
	if req.Magic != abi.MagicHello {
		return abi.Violation("HELLO with magic %#x", req.Magic)
	}
	rep := &rpc.HelloReply{Magic: abi.MagicHello, Major: abi.Major, Minor: min(abi.Minor, req.Minor),
		Session: s.id}
	if req.Major != abi.Major {
		rep.Minor = abi.Minor
		return s.refuse(h, syscall.EPROTONOSUPPORT, rep)
	}
	s.reasons, s.again = req.Features&rpc.FeatureReasons != 0, req.Features&rpc.FeatureAgain != 0
	s.tellsGone = req.Features&rpc.FeatureGone != 0
	s.sockets = req.Features&rpc.FeatureSockets != 0
	s.minor = rep.Minor
	if req.Features&rpc.FeatureDirect != 0 && s.offerDirect() {
		rep.Features |= rpc.FeatureDirect
	}
	s.mu.Lock()
	s.comm = rpc.CString(req.Comm[:])
	s.mu.Unlock()
	memfd, err := s.openPage()
	if err != nil {
		return s.refuse(h, err, refusal(err, s.reasons))
	}
	defer osmem.CloseFD(memfd)
	hd, err := s.srv.cfg.NewSession(s)
	if err != nil {
		return s.refuse(h, err, refusal(err, s.reasons))
	}
	s.h = hd
	names := hd.Devices()
	rep.NumDevices = uint32(len(names))
	for i, n := range names[:min(len(names), rpc.MaxDevices)] {
		rep.Devices[i] = rpc.MakeDeviceName(n)
	}
	s.setState("live")
	if s.looks == nil {
		s.startBell()
	}
	return s.send(h, nil, rep, []int{memfd, s.bell.FD})
}

// refuse answers HELLO with an error and ends the session.
func (s *Session) refuse(h rpc.Header, why error, body rpc.Message) error {
	if err := s.send(h, why, body, nil); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errRefused, why)
}

// openPage makes the session page and the doorbell. What it made is freed with the session.
func (s *Session) openPage() (memfd int, err error) {
	rand.Read(s.nonce[:]) // never fails
	bells := uint32(s.limits.QPs + s.limits.SRQs)
	s.pageMem, memfd, err = s.newRing("session", ring.SessionPageSize(bells))
	if err != nil {
		return -1, err
	}
	s.page = ring.NewSessionPage(s.pageMem.Mem, s.id, bells, s.nonce)
	s.bellObjs = make([]atomic.Pointer[bellObj], bells)
	bell, err := osmem.NewEventFD()
	if err != nil {
		osmem.CloseFD(memfd)
		return -1, err
	}
	s.bell = bell
	return memfd, nil
}

// newRing makes memory for a ring, within the quotas.
func (s *Session) newRing(name string, size int) (*osmem.Region, int, error) {
	return s.newShared(name, size, osmem.NewRegion)
}

// newShared is newRing with what makes it.
func (s *Session) newShared(name string, size int,
	make func(name string, size int, free func()) (*osmem.Region, int, error),
) (*osmem.Region, int, error) {
	size = osmem.PageUp(size)
	s.mu.Lock()
	fits := int64(size) <= s.limits.RingBytes-s.ringBytes
	s.mu.Unlock()
	if !fits {
		return nil, -1, s.overLimit("ring-bytes")
	}
	if err := s.takeMapping(); err != nil {
		return nil, -1, err
	}
	r, fd, err := make(name, size, s.giveMapping)
	if err != nil {
		s.giveMapping()
		return nil, -1, err
	}
	r.KeepFromDumps()
	s.mu.Lock()
	s.ringBytes += int64(size)
	s.mu.Unlock()
	return r, fd, nil
}

// takeMapping reserves a place for one more mapping.
func (s *Session) takeMapping() error {
	if s.looks != nil { // of its page only
		s.srv.mappings.force(s.account(), 1)
		return nil
	}
	return s.srv.mappings.take(s.account(), s.Privileged())
}

func (s *Session) giveMapping() { s.srv.mappings.give(s.account(), 1) }

// freeRing gives newRing's memory back, once nothing touches it. It does not wait.
func (s *Session) freeRing(r *osmem.Region) { s.Later(func() { s.releaseRing(r) }) }

// releaseRing is freeRing for an errand, of whatever session.
func (s *Session) releaseRing(r *osmem.Region) {
	n := int64(len(r.Mem))
	r.Release()
	s.mu.Lock()
	s.ringBytes -= n
	s.mu.Unlock()
}

// serve answers one request.
func (s *Session) serve() error {
	msg, fd, err := s.conn.Read()
	if err != nil {
		return err
	}
	h, body, err := rpc.ParseMessage(msg)
	// A client of a later version hears that its call is not known here, whatever comes with it.
	if err == nil && fd >= 0 && h.Op.Known() && h.Op.Takes() == 0 {
		err = abi.Violation("descriptor with %v", h.Op)
	}
	if err == nil && h.Op == rpc.OpHello {
		err = abi.Violation("second HELLO")
	}
	if err == nil && !h.Op.Quick() {
		err = s.conn.Flush()
	}
	if err != nil {
		if fd >= 0 {
			s.discard(fd)
		}
		return err
	}
	op := &operation{s: s, h: h, body: body, fd: fd}
	rep, opErr := op.do()
	s.settle()
	if op.fd >= 0 && !s.foreign(func() func() { osmem.CloseFD(op.fd); return nil }) {
		opErr = errForeign
	}
	if abi.IsViolation(opErr) {
		err = opErr
	} else {
		if opErr != nil {
			rep = refusal(opErr, s.reasons)
		} else if rep == nil {
			rep = &rpc.Empty{}
		}
		err = s.send(h, opErr, rep, op.out)
	}
	osmem.CloseFDs(op.close)
	if len(op.ends) > 0 {
		s.Later(func() { osmem.CloseFDs(op.ends) })
	}
	if f := s.srv.watcher.Load(); f != nil && err == nil {
		(*f)(&Call{Session: s, Op: h.Op, Request: body, Reply: s.reply[rpc.HeaderLen:], Err: opErr})
	}
	return err
}

// refusal is the body of a reply that refuses: words, if the client wants them and there are some.
func refusal(why error, words bool) rpc.Message {
	var r *Refusal
	if !words || !errors.As(why, &r) {
		return &rpc.Empty{}
	}
	rep := &rpc.Refusal{}
	copy(rep.Why[:len(rep.Why)-1], r.Why)
	return rep
}

// send answers a request.
func (s *Session) send(h rpc.Header, status error, body rpc.Message, fds []int) error {
	s.reply = rpc.AppendFor(s.reply[:0], rpc.Header{Op: h.Op, Seq: h.Seq,
		Status: rpc.Status(status)}, body, s.minor)
	if len(fds) == 0 {
		return s.conn.Reply(s.reply)
	}
	return s.conn.Write(s.reply, fds)
}

// An operation is one request under way.
type operation struct {
	s     *Session
	h     rpc.Header
	body  []byte
	fd    int   // that came with it, or -1; what takes it sets -1
	out   []int // descriptors for the reply
	close []int // those of them that are the client's alone
	ends  []int // of these the ones that others can use already
}

// send adds a descriptor that goes with the reply and is closed here after it.
func (o *operation) send(fd int) {
	o.out = append(o.out, fd)
	o.close = append(o.close, fd)
}

// sendEnd is send for one end of something that octets go through: to close it can take for ever,
// when the client has it, or a peer the other end.
func (o *operation) sendEnd(fd int) {
	o.out = append(o.out, fd)
	o.ends = append(o.ends, fd)
}
