package shmtest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// rawTimeout bounds each wait of a RawClient for the server.
const rawTimeout = time.Minute

// ErrHungUp says that the server has ended the session.
var ErrHungUp = errors.New("shmtest: the server has hung up")

// A RawClient speaks to a server's socket without any sense of what is right. Methods that are
// handy for honest steps (Hello, NewQP ...) end the test if the server refuses; Call, Send and Recv
// report. Everything is given back when the test ends.
type RawClient struct {
	T       testing.TB
	Conn    *net.UnixConn
	Seq     uint32
	Session []byte // the session page, after Hello
	Bell    int    // the doorbell eventfd, after Hello
	Reply   rpc.HelloReply

	Features uint64 // of Hello, beside FeatureAgain

	maps [][]byte
	fds  []int
}

// NewRaw connects to the socket and sends nothing.
func NewRaw(t testing.TB, path string) *RawClient {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	r := &RawClient{T: t, Conn: conn, Bell: -1}
	t.Cleanup(r.Close)
	return r
}

// Close ends the session, as death would, and gives everything back.
func (r *RawClient) Close() {
	r.Conn.Close()
	for _, m := range r.maps {
		_ = unix.Munmap(m)
	}
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.maps, r.fds = nil, nil
}

// keep makes fd go with the client.
func (r *RawClient) keep(fds ...int) { r.fds = append(r.fds, fds...) }

// Send sends one message as it is, with any number of descriptors, which stay the caller's.
func (r *RawClient) Send(msg []byte, fds ...int) error {
	var oob []byte
	if len(fds) != 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := r.Conn.WriteMsgUnix(msg, oob, nil)
	return err
}

// Recv takes the next message. Descriptors are kept until Close.
func (r *RawClient) Recv() (msg []byte, fds []int, err error) {
	_ = r.Conn.SetReadDeadline(time.Now().Add(rawTimeout))
	buf, oob := make([]byte, rpc.MaxMessage+1), make([]byte, 256)
	n, oobn, _, _, err := r.Conn.ReadMsgUnix(buf, oob)
	if oobn != 0 {
		cms, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range cms {
			got, _ := unix.ParseUnixRights(&cms[i])
			fds = append(fds, got...)
		}
		r.keep(fds...)
	}
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || err == nil && n == 0 {
		return nil, fds, ErrHungUp
	}
	return buf[:n], fds, err
}

// Call sends a request and takes the reply. A refusal is the errno; the end of the session is
// ErrHungUp. body and rep point to structs of package rpc; rep may be nil.
func (r *RawClient) Call(op rpc.Op, body, rep rpc.Message, fds ...int) ([]int, error) {
	r.Seq++
	msg := rpc.AppendMessage(nil, rpc.Header{Op: op, Seq: r.Seq}, body)
	if err := r.Send(msg, fds...); err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return nil, ErrHungUp
		}
		return nil, err
	}
	msg, got, err := r.Recv()
	if err != nil {
		return nil, err
	}
	h, b, err := rpc.ParseMessage(msg)
	if err != nil {
		return got, err
	}
	if h.Op != op || h.Seq != r.Seq {
		return got, fmt.Errorf("shmtest: a reply to %v (%d) for %v (%d)", h.Op, h.Seq, op, r.Seq)
	}
	if h.Status != 0 {
		return got, rpc.Errno(h.Status)
	}
	if rep != nil {
		return got, rpc.Decode(b, rep)
	}
	return got, nil
}

// Must is Call, and ends the test if it fails.
func (r *RawClient) Must(op rpc.Op, body, rep rpc.Message, fds ...int) []int {
	r.T.Helper()
	got, err := r.Call(op, body, rep, fds...)
	if err != nil {
		r.T.Fatalf("%v: %v", op, err)
	}
	return got
}

// WantEnd ends the test unless the server ends the session soon.
func (r *RawClient) WantEnd(why string) {
	r.T.Helper()
	for {
		_, _, err := r.Recv()
		if errors.Is(err, ErrHungUp) {
			return
		}
		if err != nil {
			r.T.Fatalf("%s: the session goes on: %v", why, err)
		}
	}
}

// Hello begins the session in order.
func (r *RawClient) Hello() *RawClient {
	r.T.Helper()
	fds := r.Must(rpc.OpHello, &rpc.HelloRequest{Magic: abi.MagicHello, Major: abi.Major,
		Minor: abi.Minor, Features: rpc.FeatureAgain | r.Features}, &r.Reply)
	r.Session, r.Bell = r.Map(fds[0]), fds[1]
	return r
}

// Map maps the whole of a memfd, for reading and writing.
func (r *RawClient) Map(fd int) []byte {
	r.T.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		r.T.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		r.T.Fatal(err)
	}
	r.maps = append(r.maps, b)
	return b
}

// Memfd makes a memfd of size octets with these seals.
func (r *RawClient) Memfd(size int64, seals int) int {
	r.T.Helper()
	fd, err := unix.MemfdCreate("vrnic-raw", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		r.keep(fd)
		err = unix.Ftruncate(fd, size)
	}
	if err == nil && seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		r.T.Fatal(err)
	}
	return fd
}

// OpenMem opens this process's own memory with these flags, as SET_MEM wants it with O_RDWR.
func (r *RawClient) OpenMem(flags int) int {
	r.T.Helper()
	fd, err := unix.Open("/proc/self/mem", flags|unix.O_CLOEXEC, 0)
	if err != nil {
		r.T.Fatal(err)
	}
	r.keep(fd)
	return fd
}

// SetMem lends the memory of this whole process, as the C library does.
func (r *RawClient) SetMem() {
	r.T.Helper()
	r.Must(rpc.OpSetMem, &rpc.SetMemRequest{NonceAddr: Addr(r.Session[abi.SessNonce:])}, nil,
		r.OpenMem(os.O_RDWR))
}

// Addr is the address of b's first octet in this process. Use it with memory that does not move and
// that outlives its use: a mapping.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Pages makes n zeroed octets of this process's own memory that stay where they are until Close.
func (r *RawClient) Pages(n int) []byte {
	r.T.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		r.T.Fatal(err)
	}
	r.maps = append(r.maps, b)
	return b
}

// RegMR registers b of this process's own memory (mode 0); SetMem comes first. Addresses count
// from iova.
func (r *RawClient) RegMR(pd uint32, b []byte, iova uint64, access uint32) rpc.RegMRReply {
	r.T.Helper()
	var rep rpc.RegMRReply
	r.Must(rpc.OpRegMR, &rpc.RegMRRequest{
		PD: pd, Access: access, Addr: Addr(b), Length: uint64(len(b)), IOVA: iova, Mode: rpc.ModeApp,
	}, &rep)
	return rep
}

// Ctx opens a device and returns the context.
func (r *RawClient) Ctx(device uint32) uint32 {
	r.T.Helper()
	var rep rpc.CtxOpenReply
	r.Must(rpc.OpCtxOpen, &rpc.CtxOpenRequest{Device: device}, &rep)
	return rep.Ctx
}

// PD makes a protection domain.
func (r *RawClient) PD(ctx uint32) uint32 {
	r.T.Helper()
	var rep rpc.AllocPDReply
	r.Must(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: ctx}, &rep)
	return rep.PD
}

// A RawCQ is a completion queue with nobody's hand on its words.
type RawCQ struct {
	Handle uint32
	Mem    []byte
	Ring   *ring.CQConsumer
}

// CQ makes a completion queue without a channel.
func (r *RawClient) CQ(ctx, depth, channel uint32) *RawCQ {
	r.T.Helper()
	var rep rpc.CreateCQReply
	fds := r.Must(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: ctx, CQE: depth, Chan: channel}, &rep)
	q := &RawCQ{Handle: rep.CQ, Mem: r.Map(fds[0])}
	var err error
	if q.Ring, err = ring.OpenCQConsumer(q.Mem); err != nil {
		r.T.Fatal(err)
	}
	return q
}

// Next waits for a completion.
func (r *RawClient) Next(q *RawCQ) (e abi.CQE) {
	r.T.Helper()
	for end := time.Now().Add(rawTimeout); ; time.Sleep(100 * time.Microsecond) {
		ok, err := q.Ring.Poll(&e)
		if ok || err != nil || time.Now().After(end) {
			if !ok {
				r.T.Fatalf("no completion: %v", err)
			}
			return e
		}
	}
}

// A RawQP is a queue pair with nobody's hand on its words.
type RawQP struct {
	rpc.CreateQPReply
	Mem  []byte
	Ring *ring.ClientQP
	r    *RawClient
	wqe  abi.SendWQE
}

// QP makes a queue pair.
func (r *RawClient) QP(pd uint32, scq, rcq *RawCQ, caps rpc.QPCaps) *RawQP {
	r.T.Helper()
	return r.NewQP(rpc.CreateQPRequest{PD: pd, SendCQ: scq.Handle, RecvCQ: rcq.Handle, Caps: caps})
}

// NewQP makes the queue pair that req asks for.
func (r *RawClient) NewQP(req rpc.CreateQPRequest) *RawQP {
	r.T.Helper()
	q := &RawQP{r: r}
	fds := r.Must(rpc.OpCreateQP, &req, &q.CreateQPReply)
	q.Mem = r.Map(fds[0])
	var err error
	if q.Ring, err = ring.OpenClientQP(q.Mem); err != nil {
		r.T.Fatal(err)
	}
	return q
}

// A RawSRQ is a shared receive queue with nobody's hand on its words.
type RawSRQ struct {
	rpc.CreateSRQReply
	Mem  []byte
	Ring *ring.ClientSRQ
	r    *RawClient
}

// SRQ makes a shared receive queue.
func (r *RawClient) SRQ(pd, maxWR, maxSGE uint32) *RawSRQ {
	r.T.Helper()
	q := &RawSRQ{r: r}
	fds := r.Must(rpc.OpCreateSRQ, &rpc.CreateSRQRequest{PD: pd, MaxWR: maxWR, MaxSGE: maxSGE},
		&q.CreateSRQReply)
	q.Mem = r.Map(fds[0])
	var err error
	if q.Ring, err = ring.OpenClientSRQ(q.Mem); err != nil {
		r.T.Fatal(err)
	}
	return q
}

// PostRecv posts in order, and rings only if it has to.
func (q *RawSRQ) PostRecv(w *abi.RecvWQE) {
	q.r.T.Helper()
	if err := q.Ring.RQ.Put(w); err != nil {
		q.r.T.Fatal(err)
	}
	if q.Ring.RQ.Commit() {
		q.r.RingBell(q.Bell)
	}
}

// Word is the shared word at off of mem.
func Word(mem []byte, off uint32) *atomic.Uint32 {
	_ = mem[off : off+4]
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off]))
}

// RingBell sets a bell and always writes to the doorbell.
func (r *RawClient) RingBell(bell uint32) {
	words := Word(r.Session, abi.SessBellOff).Load()
	Word(r.Session, words+bell>>5*4).Or(1 << (bell & 31))
	_, _ = unix.Write(r.Bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// PostSend posts in order.
func (q *RawQP) PostSend(set func(w *abi.SendWQE)) {
	q.r.T.Helper()
	q.wqe = abi.SendWQE{}
	set(&q.wqe)
	if err := q.Ring.SQ.Put(&q.wqe); err != nil {
		q.r.T.Fatal(err)
	}
	q.Ring.SQ.Commit()
	q.r.RingBell(q.Bell)
}

// PostRecv posts in order.
func (q *RawQP) PostRecv(w *abi.RecvWQE) {
	q.r.T.Helper()
	if err := q.Ring.RQ.Put(w); err != nil {
		q.r.T.Fatal(err)
	}
	q.Ring.RQ.Commit()
	q.r.RingBell(q.Bell)
}

// PostRaw writes a send request as it is into the next slot and moves sq_prod by n.
func (q *RawQP) PostRaw(wqe []byte, n uint32) {
	prod := Word(q.Mem, abi.QPSQProd)
	l := &q.Ring.Layout
	off := l.SQOff + prod.Load()&(l.SQSize-1)*l.SQStride
	copy(q.Mem[off:off+l.SQStride], wqe)
	prod.Add(n)
	q.r.RingBell(q.Bell)
}

// CM makes a connection manager channel and returns it with its pipe.
func (r *RawClient) CM() (channel uint32, pipe int) {
	r.T.Helper()
	var rep rpc.CMCreateChanReply
	fds := r.Must(rpc.OpCMCreateChan, &rpc.Empty{}, &rep)
	return rep.Chan, fds[0]
}

// ID makes a connection manager id.
func (r *RawClient) ID(channel uint32) uint32 {
	r.T.Helper()
	var rep rpc.CMCreateIDReply
	r.Must(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: channel, PS: rpc.PSTCP, Type: 2}, &rep)
	return rep.ID
}

// WantEvent waits for the next connection event, which must be of type typ.
func (r *RawClient) WantEvent(channel, typ uint32) (ev rpc.CMEvent) {
	r.T.Helper()
	for end := time.Now().Add(rawTimeout); ; time.Sleep(time.Millisecond) {
		_, err := r.Call(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: channel}, &ev)
		switch {
		case errors.Is(err, syscall.EAGAIN) && time.Now().Before(end):
		case err != nil:
			r.T.Fatalf("waiting for event %d: %v", typ, err)
		case ev.Type != typ:
			r.T.Fatalf("event %d with status %d, want %d", ev.Type, ev.Status, typ)
		default:
			return ev
		}
	}
}
