package server

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// A rawClient sends what it is told to, right or wrong.
type rawClient struct {
	t    failer
	fd   int
	seq  uint32
	page []byte
	bell int
	own  []int
	maps [][]byte
}

func rawConnect(t failer, path string) *rawClient {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, fd: fd, bell: -1}
	if tb, ok := t.(testing.TB); ok {
		tb.Cleanup(c.close)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal("connect:", err)
	}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	return c
}

func (c *rawClient) close() {
	for _, m := range c.maps {
		unix.Munmap(m)
	}
	for _, fd := range append(c.own, c.fd, c.bell) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	c.maps, c.own, c.fd, c.bell = nil, nil, -1, -1
}

// sendRaw sends octets with descriptors; an error is returned, as the server may have closed.
func (c *rawClient) sendRaw(b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		if err := unix.Sendmsg(c.fd, b, oob, nil, unix.MSG_NOSIGNAL); err != unix.EINTR {
			return err
		}
	}
}

// recv returns the next reply. ended: the server has closed.
func (c *rawClient) recv() (h rpc.Header, body []byte, fds []int, ended bool) {
	c.t.Helper()
	buf, oob := make([]byte, rpc.MaxMessage+1), make([]byte, 256)
	n, oobn, _, _, err := unix.Recvmsg(c.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR { // with a receive timeout the kernel does not restart it
		n, oobn, _, _, err = unix.Recvmsg(c.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if n == 0 && err == nil || err == unix.ECONNRESET || err == unix.EPIPE {
		return h, nil, nil, true
	}
	if err != nil {
		c.t.Fatal("recv:", err)
	}
	h, body, err = rpc.ParseMessage(buf[:n])
	if err != nil {
		c.t.Fatal(err)
	}
	if oobn > 0 {
		if fds, err = seqpacket.ReceivedFDs(oob[:oobn]); err != nil {
			c.t.Fatal(err)
		}
		c.own = append(c.own, fds...)
	}
	return h, body, fds, false
}

// try does a request and returns the reply's status as an error, or errEnded.
func (c *rawClient) try(op rpc.Op, req, rep rpc.Message, fds ...int) ([]int, error) {
	c.t.Helper()
	c.seq++
	if err := c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: op, Seq: c.seq}, req),
		fds...); err != nil {
		return nil, errEnded
	}
	h, body, got, ended := c.recv()
	if ended {
		return nil, errEnded
	}
	if h.Op != op || h.Seq != c.seq {
		c.t.Fatalf("reply %+v to %v, seq %d", h, op, c.seq)
	}
	if rep != nil {
		if err := rpc.Decode(body, rep); err != nil {
			c.t.Fatal(err)
		}
	}
	return got, rpc.Errno(h.Status)
}

var errEnded = errors.New("the server has ended the session")

func (c *rawClient) do(op rpc.Op, req, rep rpc.Message, fds ...int) []int {
	c.t.Helper()
	got, err := c.try(op, req, rep, fds...)
	if err != nil {
		c.t.Fatalf("%v: %v", op, err)
	}
	return got
}

func (c *rawClient) mmap(fd int) []byte {
	c.t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		c.t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		c.t.Fatal("mmap:", err)
	}
	c.maps = append(c.maps, b)
	return b
}

func goodHello() *rpc.HelloRequest {
	return &rpc.HelloRequest{Magic: abi.MagicHello, Major: abi.Major, Minor: abi.Minor, Comm: [16]byte{
		't', 'e', 's', 't'}}
}

// hello shakes hands.
func (c *rawClient) hello() *rawClient {
	c.t.Helper()
	var rep rpc.HelloReply
	fds := c.do(rpc.OpHello, goodHello(), &rep)
	if len(fds) != 2 || rep.Magic != abi.MagicHello || rep.NumDevices != 2 ||
		rep.Devices[1].String() != "fake1" {
		c.t.Fatalf("HELLO gave %d descriptors, %+v", len(fds), rep)
	}
	c.page, c.bell = c.mmap(fds[0]), fds[1]
	c.own = c.own[:len(c.own)-1] // bell is closed by itself
	return c
}

func (ts *testServer) client() *rawClient {
	ts.t.Helper()
	return rawConnect(ts.t, ts.path).hello()
}

// Ring makes rawClient a Doorbell.
func (c *rawClient) Ring() error {
	_, err := unix.Write(c.bell, binary.NativeEndian.AppendUint64(nil, 1))
	return err
}
func (c *rawClient) Wait() error { panic("not the client's") }

// A rawQP is a QP with all that it needs.
type rawQP struct {
	ctx, pd, chanl, cq, qp, qpn, bell uint32
	m                                 *ring.ClientQP
	c                                 *ring.CQConsumer
	ch                                *ring.ChannelConsumer
	ringer                            *ring.BellRinger
	pipe, async                       int
	mem, cqMem                        []byte
}

func (c *rawClient) newQP() *rawQP {
	c.t.Helper()
	q := &rawQP{}
	var ctx rpc.CtxOpenReply
	q.async = c.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}, &ctx)[0]
	var pd rpc.AllocPDReply
	c.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: ctx.Ctx}, &pd)
	var ch rpc.CreateChanReply
	fds := c.do(rpc.OpCreateChan, &rpc.CreateChanRequest{Ctx: ctx.Ctx}, &ch)
	var err error
	q.pipe = fds[0]
	if q.ch, err = ring.OpenChannelConsumer(c.mmap(fds[1])); err != nil {
		c.t.Fatal(err)
	}
	var cq rpc.CreateCQReply
	fds = c.do(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: ctx.Ctx, CQE: 60, Chan: ch.Chan}, &cq)
	q.cqMem = c.mmap(fds[0])
	if q.c, err = ring.OpenCQConsumer(q.cqMem); err != nil || cq.CQE != 64 || q.c.Handle() != cq.CQ {
		c.t.Fatalf("%v, %+v", err, cq)
	}
	var qp rpc.CreateQPReply
	fds = c.do(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: pd.PD, SendCQ: cq.CQ, RecvCQ: cq.CQ,
		Caps: rpc.QPCaps{MaxSendWR: 10, MaxRecvWR: 10}}, &qp)
	q.mem = c.mmap(fds[0])
	if q.m, err = ring.OpenClientQP(q.mem); err != nil || q.m.QPN != qp.QPN ||
		qp.Caps.MaxSendWR != 16 {
		c.t.Fatalf("%v, %+v", err, qp)
	}
	if q.ringer, err = ring.OpenBellRinger(c.page, c); err != nil {
		c.t.Fatal(err)
	}
	q.ctx, q.pd, q.chanl, q.cq, q.qp, q.qpn, q.bell = ctx.Ctx, pd.PD, ch.Chan, cq.CQ, qp.QP,
		qp.QPN, qp.Bell
	return q
}

// roundTrip posts a request and waits for its event and completion.
func (q *rawQP) roundTrip(t failer, id uint64) {
	t.Helper()
	q.c.Arm(false)
	if err := q.m.SQ.Put(&abi.SendWQE{WRID: id, Op: 2, Flags: abi.SQSignaled}); err != nil {
		t.Fatal(err)
	}
	q.m.SQ.Commit()
	if err := q.ringer.Ring(q.bell); err != nil {
		t.Fatal(err)
	}
	q.wantEvent(t)
	var e abi.CQE
	if ok, err := q.c.Poll(&e); !ok || err != nil || e.WRID != id || e.QPN != q.qpn {
		t.Fatalf("completion %v, %v, %+v; want wr_id %d", ok, err, e, id)
	}
}

func (q *rawQP) wantEvent(t failer) {
	t.Helper()
	readToken(t, q.pipe)
	if h, ok, err := q.ch.Pop(); !ok || err != nil || h != q.cq {
		t.Fatalf("event %d, %v, %v; want CQ %d", h, ok, err, q.cq)
	}
	q.c.TakeEvent()
}

// readToken waits up to 10 s.
func readToken(t failer, pipe int) {
	t.Helper()
	pfd := []unix.PollFd{{Fd: int32(pipe), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(pfd, 10000)
		if err == unix.EINTR {
			continue
		}
		if n == 0 || err != nil {
			t.Fatalf("no event: %v", err)
		}
		break
	}
	var b [1]byte
	if n, err := unix.Read(pipe, b[:]); n != 1 || err != nil {
		t.Fatalf("token: %d, %v", n, err)
	}
}

func tokenThere(pipe int) bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(pipe), Events: unix.POLLIN}}, 0)
	return n == 1
}

// memfd makes memory to lend; seals 0: none.
func (c *rawClient) memfd(size int64, seals int) int {
	c.t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		c.t.Fatal(err)
	}
	c.own = append(c.own, fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		c.t.Fatal(err)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			c.t.Fatal(err)
		}
	}
	return fd
}

// openFile opens a file to lend.
func (c *rawClient) openFile(path string, flags int) int {
	c.t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	c.own = append(c.own, fd)
	return fd
}

// nonceAddr is where this process has mapped the nonce.
func (c *rawClient) nonceAddr() uint64 {
	return uint64(uintptr(unsafe.Pointer(&c.page[abi.SessNonce])))
}

func (c *rawClient) openMem() int {
	c.t.Helper()
	fd, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	c.own = append(c.own, fd)
	return fd
}

func uintptrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// unmapTail leaves a hole behind the first page of a mapping of two pages that was made with mmap.
func unmapTail(b []byte) {
	unix.RawSyscall(unix.SYS_MUNMAP, uintptrOf(b)+uintptr(os.Getpagesize()), uintptr(os.Getpagesize()),
		0)
}
