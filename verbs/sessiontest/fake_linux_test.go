package sessiontest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A fake is a daemon with two devices, of which programs can make all but QPs, SRQs and
// connections.
type fake struct {
	t    testing.TB
	path string
	ln   *net.UnixListener
	wg   sync.WaitGroup

	// tamper, if not nil, changes a reply; nil as the message hangs up. Descriptors are closed after
	// it.
	tamper func(op rpc.Op, msg []byte, fds []int) ([]byte, []int)

	// keepPipes has the pipes of what is destroyed stay open until the daemon dies.
	keepPipes bool

	// pipes has events be told of by pipes, as older daemons do.
	pipes bool

	mu       sync.Mutex
	closed   bool
	sessions []*session // in the order of connecting
	came     *sync.Cond // for sessions
}

// A session is one client of a fake.
type session struct {
	f    *fake
	c    *net.UnixConn
	over chan struct{} // closed when the client has gone

	mu    sync.Mutex
	reqs  []any // requests, decoded, in order
	next  uint32
	page  []byte
	async map[uint32]*queue // by context
	chans map[uint32]*channel
	cqs   map[uint32]*cq
	mem   int // the client's, lent, or -1
	nonce uint64
	mem1  uint32           // the first of ADD_MEM
	pd    uint32           // the last one made
	reply rpc.DestroyReply // to DESTROY_CQ, but for its tokens
	cm    *cmFake
}

type queue struct {
	pipe   int // the write end, or -1
	events []rpc.AsyncEvent
}

type channel struct {
	ring *ring.ChannelProducer
	mem  []byte
	pipe int
}

type cq struct {
	s    *session
	ctx  uint32
	ring *ring.CQProducer
	mem  []byte
}

const goodSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

var devices = []string{"fake0", "fake1"}

// newFake starts a daemon; tamper may be nil.
func newFake(t testing.TB, tamper func(op rpc.Op, msg []byte, fds []int) ([]byte, []int)) *fake {
	t.Helper()
	return newFakeAt(t, filepath.Join(t.TempDir(), "vrnic.sock"), tamper)
}

func newFakeAt(t testing.TB, path string, tamper func(op rpc.Op, msg []byte, fds []int) ([]byte,
	[]int)) *fake {
	t.Helper()
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, ln, tamper)
}

func serve(t testing.TB, ln *net.UnixListener, tamper func(op rpc.Op, msg []byte, fds []int) (
	[]byte, []int)) *fake {
	f := &fake{t: t, path: ln.Addr().String(), ln: ln, tamper: tamper}
	f.came = sync.NewCond(&f.mu)
	f.wg.Add(1)
	go f.accept()
	t.Cleanup(f.kill)
	return f
}

func (f *fake) accept() {
	defer f.wg.Done()
	for {
		c, err := f.ln.AcceptUnix()
		if err != nil {
			return
		}
		s := &session{f: f, c: c, over: make(chan struct{}), async: make(map[uint32]*queue),
			chans: make(map[uint32]*channel),
			cqs:   make(map[uint32]*cq), mem: -1, cm: newCMFake()}
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			c.Close()
			return
		}
		f.sessions = append(f.sessions, s)
		f.came.Broadcast()
		f.wg.Add(1)
		f.mu.Unlock()
		go s.serve()
	}
}

// kill ends the daemon: sockets first, or the pipes first.
func (f *fake) kill() { f.die(false) }

func (f *fake) die(pipesFirst bool) {
	f.mu.Lock()
	f.closed = true
	sessions := slices.Clone(f.sessions)
	f.mu.Unlock()
	f.ln.Close()
	for _, s := range sessions {
		if pipesFirst {
			s.closePipes()
		}
		s.c.Close()
	}
	f.wg.Wait()
}

// session waits for the nth client, from 0 on.
func (f *fake) session(n int) *session {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.sessions) <= n {
		f.came.Wait()
	}
	return f.sessions[n]
}

func (s *session) serve() {
	defer s.f.wg.Done()
	defer s.release()
	buf, oob := make([]byte, rpc.MaxMessage), make([]byte, 64)
	for {
		n, oobn, _, _, err := s.c.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		fd := -1
		if cm, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(cm) == 1 {
			if fds, err := unix.ParseUnixRights(&cm[0]); err == nil && len(fds) == 1 {
				fd = fds[0]
			}
		}
		h, body, err := rpc.ParseMessage(buf[:n])
		if err != nil {
			s.f.t.Errorf("the library sent: %v", err)
			return
		}
		if h.Flags != 0 || h.Status != 0 {
			s.f.t.Errorf("the library sent %v with flags %#x, status %d", h.Op, h.Flags, h.Status)
		}
		rep, fds, errno := s.answer(h.Op, body, fd)
		if rep == nil || errno != 0 {
			rep = &rpc.Empty{}
		}
		msg := rpc.AppendMessage(nil, rpc.Header{Op: h.Op, Seq: h.Seq, Status: -int32(errno)}, rep)
		if s.f.tamper != nil {
			msg, fds = s.f.tamper(h.Op, msg, fds)
		}
		if msg == nil {
			closeAll(fds)
			return
		}
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		_, _, err = s.c.WriteMsgUnix(msg, rights, nil)
		closeAll(fds)
		if err != nil {
			return
		}
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// release is what the end of a session does in a daemon: the socket is closed, and then the rest.
func (s *session) release() {
	s.c.Close()
	s.closePipes()
	s.mu.Lock()
	if s.mem >= 0 {
		unix.Close(s.mem)
		s.mem = -1
	}
	s.mu.Unlock()
	close(s.over)
}

// ended waits for the session's end.
func (s *session) ended() {
	s.f.t.Helper()
	select {
	case <-s.over:
	case <-time.After(answerTime):
		s.f.t.Fatal("the session has not ended")
	}
}

func (s *session) closePipes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.chans {
		closePipe(&c.pipe)
	}
	for _, q := range s.async {
		closePipe(&q.pipe)
	}
	s.cm.close()
}

func closePipe(fd *int) {
	if *fd >= 0 {
		unix.Close(*fd)
		*fd = -1
	}
}

func token(fd int) {
	if fd >= 0 {
		unix.Write(fd, []byte{1}) // as a daemon does
	}
}

// memfd makes memory of size octets, mapped and open.
func (s *session) memfd(size, seals int) (mem []byte, fd int) {
	t := s.f.t
	fd, err := unix.MemfdCreate("vrnic-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err == nil && seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		t.Error(err)
		return make([]byte, size), fd
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem, fd
}

func (s *session) newPipe() (r, w int) {
	var p [2]int
	var err error
	if s.f.pipes {
		err = unix.Pipe2(p[:], unix.O_CLOEXEC)
	} else {
		p, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		unix.Shutdown(p[1], unix.SHUT_RD)
	}
	if err != nil {
		s.f.t.Error(err)
	}
	return p[0], p[1]
}

// byEither runs a test with a fake that tells of events by sockets, and with one that has pipes.
func byEither(t *testing.T, test func(t *testing.T, f *fake)) {
	for _, pipes := range []bool{false, true} {
		t.Run(fmt.Sprintf("pipes=%v", pipes), func(t *testing.T) {
			f := newFake(t, nil)
			f.pipes = pipes
			test(t, f)
		})
	}
}

// decode fills req from a request's body, and keeps it for the test to look at.
func (s *session) decode(body []byte, req rpc.Message) {
	if err := rpc.Decode(body, req); err != nil {
		s.f.t.Errorf("the library sent a %T: %v", req, err)
	}
	s.reqs = append(s.reqs, req)
}

// last is the last request of a type.
func last[T any](t testing.TB, s *session) *T {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range slices.Backward(s.reqs) {
		if v, ok := r.(*T); ok {
			return v
		}
	}
	t.Fatalf("the library sent no %T", *new(T))
	return nil
}

// answer carries a request out. A handle that the library got wrong, since a reply was changed,
// names nothing.
func (s *session) answer(op rpc.Op, body []byte, fd int) (rep rpc.Message, fds []int,
	errno syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	n := s.next
	if fd >= 0 && op != rpc.OpSetMem {
		defer unix.Close(fd)
	}
	if (fd >= 0) != (op == rpc.OpSetMem || op == rpc.OpAddMem) {
		s.f.t.Errorf("descriptor %d with %v", fd, op)
	}
	var handle rpc.HandleRequest
	switch op {
	case rpc.OpHello:
		var req rpc.HelloRequest
		s.decode(body, &req)
		mem, fd := s.memfd(4096, goodSeals)
		s.page = mem
		ring.NewSessionPage(mem, n, 64, [abi.NonceLen]byte{1, 2, 3})
		bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			s.f.t.Error(err)
		}
		r := &rpc.HelloReply{Magic: abi.MagicHello, Major: abi.Major, Minor: abi.Minor,
			NumDevices: uint32(len(devices))}
		for i, name := range devices {
			r.Devices[i] = rpc.MakeDeviceName(name)
		}
		return r, []int{fd, bell}, 0
	case rpc.OpQueryDevice:
		var req rpc.QueryDeviceRequest
		s.decode(body, &req)
		if int(req.Device) >= len(devices) {
			return nil, nil, syscall.ENODEV
		}
		return &rpc.QueryDeviceReply{Name: rpc.MakeDeviceName(devices[req.Device]), MaxCQE: 1024,
			MaxCQ: 16, MaxPD: 16, MaxMR: 16, MaxIRD: maxIRD, MaxORD: maxORD}, nil, 0
	case rpc.OpQueryPort:
		return &rpc.QueryPortReply{State: 4, GIDs: 1, LinkLayer: 2}, nil, 0
	case rpc.OpCtxOpen:
		r, w := s.newPipe()
		s.async[n] = &queue{pipe: w}
		return &rpc.CtxOpenReply{Ctx: n}, []int{r}, 0
	case rpc.OpCtxClose:
		s.decode(body, &handle)
		if q := s.async[handle.Handle]; q != nil && !s.f.keepPipes {
			closePipe(&q.pipe)
		}
		return nil, nil, 0
	case rpc.OpGetAsyncEvent:
		s.decode(body, &handle)
		q := s.async[handle.Handle]
		if q == nil || len(q.events) == 0 {
			return nil, nil, syscall.EAGAIN
		}
		e := q.events[0]
		q.events = q.events[1:]
		return &e, nil, 0
	case rpc.OpCreateChan:
		mem, fd := s.memfd(ring.ChannelMemSize, goodSeals)
		r, w := s.newPipe()
		ch := &channel{mem: mem, pipe: w}
		ch.ring = ring.NewChannelProducer(mem, n, func() { token(ch.pipe) }, nil)
		s.chans[n] = ch
		return &rpc.CreateChanReply{Chan: n}, []int{r, fd}, 0
	case rpc.OpDestroyChan:
		s.decode(body, &handle)
		if ch := s.chans[handle.Handle]; ch != nil && !s.f.keepPipes {
			closePipe(&ch.pipe)
			delete(s.chans, handle.Handle)
		}
		return nil, nil, 0
	case rpc.OpCreateCQ:
		var req rpc.CreateCQRequest
		s.decode(body, &req)
		size := uint32(1)
		for size < req.CQE {
			size *= 2
		}
		mem, fd := s.memfd((ring.CQMemSize(size)+4095)&^4095, goodSeals)
		var events *ring.ChannelProducer
		if ch := s.chans[req.Chan]; ch != nil {
			events = ch.ring
		}
		s.cqs[n] = &cq{s: s, ctx: req.Ctx, mem: mem, ring: ring.NewCQProducer(mem, size, n, events, nil)}
		return &rpc.CreateCQReply{CQ: n, CQE: size}, []int{fd}, 0
	case rpc.OpDestroyCQ:
		s.decode(body, &handle)
		r := s.reply
		if c := s.cqs[handle.Handle]; c != nil && s.async[c.ctx] != nil {
			q := s.async[c.ctx]
			q.events = slices.DeleteFunc(q.events, func(e rpc.AsyncEvent) bool {
				if e.Handle == handle.Handle {
					r.Tokens++
				}
				return e.Handle == handle.Handle
			})
		}
		delete(s.cqs, handle.Handle)
		return &r, nil, 0
	case rpc.OpAllocPD:
		s.pd = n
		return &rpc.AllocPDReply{PD: n}, nil, 0
	case rpc.OpSetMem:
		var req rpc.SetMemRequest
		s.decode(body, &req)
		s.mem, s.nonce = fd, req.NonceAddr
		return nil, nil, 0
	case rpc.OpAddMem:
		var req rpc.AddMemRequest
		s.decode(body, &req)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			s.f.t.Error(err)
		}
		if s.mem1 == 0 {
			s.mem1 = n
		}
		return &rpc.AddMemReply{Mem: n, Size: uint64(st.Size)}, nil, 0
	case rpc.OpRegMR:
		var req rpc.RegMRRequest
		s.decode(body, &req)
		return &rpc.RegMRReply{MR: n, LKey: n << 8, RKey: n<<8 | 1}, nil, 0
	case rpc.OpReregMR:
		var req rpc.ReregMRRequest
		s.decode(body, &req)
		return &rpc.RegMRReply{MR: req.MR, LKey: n << 8, RKey: n<<8 | 1}, nil, 0
	case rpc.OpAllocMW:
		return &rpc.AllocMWReply{MW: n, RKey: n << 8}, nil, 0
	case rpc.OpDelMem, rpc.OpDeallocPD, rpc.OpDeregMR, rpc.OpDeallocMW:
		s.decode(body, &handle)
		return nil, nil, 0
	}
	return s.cm.answer(s, op, body)
}

// cq is the nth CQ that was made and is there, from 0 on; ch is the same of channels.
func (s *session) cq(n int) *cq {
	s.mu.Lock()
	defer s.mu.Unlock()
	return nth(s.cqs, n)
}

func (s *session) ch(n int) *channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return nth(s.chans, n)
}

func nth[V any](m map[uint32]V, n int) V {
	var keys []uint32
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return m[keys[n]]
}

// push raises a completion, which counts as one of an unknown QP.
func (c *cq) push(t testing.TB) {
	t.Helper()
	c.s.mu.Lock() // the channel's pipe is closed with it
	defer c.s.mu.Unlock()
	if err := c.ring.Push(&abi.CQE{QPN: 99}, true); err != nil {
		t.Error(err)
	}
}

// token writes one to the pipe of the first channel.
func (s *session) token() {
	s.mu.Lock()
	defer s.mu.Unlock()
	token(nth(s.chans, 0).pipe)
}

// raise queues an async event of the first context.
func (s *session) raise(e rpc.AsyncEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := nth(s.async, 0)
	q.events = append(q.events, e)
	token(q.pipe)
}

// listenerOf makes a listener of a descriptor.
func listenerOf(t testing.TB, fd int) *net.UnixListener {
	t.Helper()
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	ln, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	return ln.(*net.UnixListener)
}
