package server

import (
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
)

// A Session is one client of a Server. Its control goroutine answers requests, its doorbell thread
// looks after bells, and the handler may add goroutines with Go. When the socket closes, or the
// client violates the ABI, all of it ends and everything is given back.
type Session struct {
	srv  *Server
	id   uint32
	conn *seqpacket.Conn
	peer osmem.Peer
	h    Handler // nil before HELLO

	over      chan struct{} // closed when the session has ended
	once      sync.Once
	cause     error          // why; set before over is closed
	extra     sync.WaitGroup // goroutines of Go
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
	app     *osmem.AppMem
	ctxs    handles[*ctxObj]
	pds     handles[*pdObj]
	mrs     handles[*mrObj]
	mws     handles[*mwObj]
	mems    handles[*memObj]
	chans   handles[*chanObj]
	cqs     handles[*cqObj]
	srqs    handles[*srqObj]
	qps     handles[*qpObj]
	qpNums  map[qpKey]*qpObj
	cmChans handles[*cmChannel]
	ids     handles[*CMID] // +checklocks:mu

	memBytes  int64
	ringBytes int64

	list  listSnapshot
	reply []byte
}

func newSession(srv *Server, id uint32, conn *seqpacket.Conn, peer osmem.Peer) *Session {
	return &Session{srv: srv, id: id, conn: conn, peer: peer, over: make(chan struct{}),
		since:  srv.cfg.Now(),
		qpNums: make(map[qpKey]*qpObj), state: "hello"}
}

// ID numbers the session within the daemon's life.
func (s *Session) ID() uint32 { return s.id }

// Peer is who connected, by the kernel's word at that time.
func (s *Session) Peer() osmem.Peer { return s.peer }

// Comm is what the client calls itself; not to be believed, nor printed without escaping.
func (s *Session) Comm() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.comm
}

// Limits are the quotas that hold.
func (s *Session) Limits() Limits { return s.srv.limits }

// Done is closed when the session has ended; its resources are given back after that.
func (s *Session) Done() <-chan struct{} { return s.over }

// Fail ends the session for a violation. It does not block and may be called with locks held.
func (s *Session) Fail(err error) { s.end(err) }

// Go runs f on a goroutine that counts as the session's: its place in the quotas is free only when
// f has returned. f must end soon after Done is closed, unless a copy of mode 0 memory hangs.
// It may be called until Handler.Close returns.
func (s *Session) Go(f func()) {
	s.extra.Add(1)
	go func() {
		defer s.extra.Done()
		f()
	}()
}

func (s *Session) ended() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// end records the first cause and wakes everything that waits for the client.
func (s *Session) end(cause error) {
	s.once.Do(func() {
		s.cause = cause
		close(s.over)
		s.conn.Close()
	})
}

// run is the control goroutine.
func (s *Session) run() {
	defer s.srv.wg.Done()
	s.srv.accepted.Add(1)
	stop := s.srv.cfg.AfterFunc(s.srv.helloTime(), func() { s.end(errNoHello) })
	err := s.hello(stop)
	for err == nil {
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
	if s.h != nil {
		s.h.Close(cause)
	}
	s.extra.Wait()
	s.freeAll()
	s.srv.remove(s)
}

// freeAll releases what is left in the tables. The handler is gone.
func (s *Session) freeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.qps.m {
		q.mem.Release()
	}
	for _, q := range s.srqs.m {
		q.mem.Release()
	}
	for _, c := range s.cqs.m {
		c.ring.Close()
		c.mem.Release()
	}
	for _, c := range s.chans.m {
		c.close()
	}
	for _, m := range s.mrs.m {
		if m.mem != nil {
			m.mem.Close()
		}
	}
	for _, m := range s.mems.m {
		m.region.Release()
	}
	for _, c := range s.ctxs.m {
		c.events.close()
	}
	for _, c := range s.cmChans.m {
		c.close()
	}
	if s.app != nil {
		s.app.Release()
	}
	if s.bell != nil {
		s.bell.Close()
	}
	if s.pageMem != nil {
		s.pageMem.Release()
	}
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
		osmem.CloseFD(fd)
		return abi.Violation("descriptor with HELLO")
	}
	h, body, err := abi.ParseMessage(msg)
	if err != nil {
		return err
	}
	if h.Op != abi.OpHello {
		return abi.Violation("%v before HELLO", h.Op)
	}
	if !stop() && s.ended() {
		return errNoHello
	}
	var req abi.HelloRequest
	if err := abi.DecodeRequest(h, body, &req); err != nil {
		return s.refuse(h, err, &abi.Empty{})
	}
	if req.Magic != abi.MagicHello {
		return abi.Violation("HELLO with magic %#x", req.Magic)
	}
	rep := &abi.HelloReply{Magic: abi.MagicHello, Major: abi.Major, Minor: min(abi.Minor, req.Minor),
		Session: s.id}
	if req.Major != abi.Major {
		rep.Minor = abi.Minor
		return s.refuse(h, syscall.EPROTONOSUPPORT, rep)
	}
	s.mu.Lock()
	s.comm = abi.CString(req.Comm[:])
	s.mu.Unlock()
	memfd, err := s.openPage()
	if err != nil {
		return s.refuse(h, err, &abi.Empty{})
	}
	defer osmem.CloseFD(memfd)
	hd, err := s.srv.cfg.NewSession(s)
	if err != nil {
		return s.refuse(h, err, &abi.Empty{})
	}
	s.h = hd
	names := hd.Devices()
	rep.NumDevices = uint32(len(names))
	for i, n := range names[:min(len(names), abi.MaxDevices)] {
		rep.Devices[i] = abi.MakeDeviceName(n)
	}
	s.setState("live")
	s.startBell()
	return s.send(h, nil, rep, []int{memfd, s.bell.FD})
}

// refuse answers HELLO with an error and ends the session.
func (s *Session) refuse(h abi.Header, why error, body abi.Message) error {
	if err := s.send(h, why, body, nil); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errRefused, why)
}

// openPage makes the session page and the doorbell. What it made is freed with the session.
func (s *Session) openPage() (memfd int, err error) {
	rand.Read(s.nonce[:]) // never fails
	bells := uint32(s.srv.limits.QPs + s.srv.limits.SRQs)
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
	size = osmem.PageUp(size)
	if int64(size) > s.srv.limits.RingBytes-s.ringBytes || !s.srv.takeMapping() {
		return nil, -1, syscall.ENOMEM
	}
	r, fd, err := osmem.NewRegion(name, size, func() { s.srv.mappings.Add(-1) })
	if err != nil {
		s.srv.mappings.Add(-1)
		return nil, -1, err
	}
	s.mu.Lock()
	s.ringBytes += int64(size)
	s.mu.Unlock()
	return r, fd, nil
}

// freeRing gives newRing's memory back, once nothing touches it.
func (s *Session) freeRing(r *osmem.Region) {
	s.mu.Lock()
	s.ringBytes -= int64(len(r.Mem))
	s.mu.Unlock()
	r.Release()
}

// serve answers one request.
func (s *Session) serve() error {
	msg, fd, err := s.conn.Read()
	if err != nil {
		return err
	}
	h, body, err := abi.ParseMessage(msg)
	if err == nil && fd >= 0 && h.Op.Takes() == 0 {
		err = abi.Violation("descriptor with %v", h.Op)
	}
	if err == nil && h.Op == abi.OpHello {
		err = abi.Violation("second HELLO")
	}
	if err != nil {
		if fd >= 0 {
			osmem.CloseFD(fd)
		}
		return err
	}
	if !h.Op.Quick() {
		if err := s.conn.Flush(); err != nil {
			if fd >= 0 {
				osmem.CloseFD(fd)
			}
			return err
		}
	}
	op := &operation{s: s, h: h, body: body, fd: fd}
	rep, opErr := op.do()
	if op.fd >= 0 {
		osmem.CloseFD(op.fd)
	}
	if abi.IsViolation(opErr) {
		err = opErr
	} else {
		if opErr != nil || rep == nil {
			rep = &abi.Empty{}
		}
		err = s.send(h, opErr, rep, op.out)
	}
	for _, f := range op.close {
		osmem.CloseFD(f)
	}
	return err
}

// send answers a request.
func (s *Session) send(h abi.Header, status error, body abi.Message, fds []int) error {
	s.reply = abi.AppendMessage(s.reply[:0], abi.Header{Op: h.Op, Seq: h.Seq,
		Status: abi.Status(status)}, body)
	if len(fds) == 0 {
		return s.conn.Reply(s.reply)
	}
	return s.conn.Write(s.reply, fds)
}

// An operation is one request under way.
type operation struct {
	s     *Session
	h     abi.Header
	body  []byte
	fd    int   // that came with it, or -1; what takes it sets -1
	out   []int // descriptors for the reply
	close []int // those of them that are the client's alone
}

// send adds a descriptor that goes with the reply and is closed here after it.
func (o *operation) send(fd int) {
	o.out = append(o.out, fd)
	o.close = append(o.close, fd)
}
