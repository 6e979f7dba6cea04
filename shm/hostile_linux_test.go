package shm_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A liar is a daemon that answers with what a test wants. It serves one client.
type liar struct {
	t testing.TB
	c *net.UnixConn
	// answer makes the reply to a request: the whole message, and descriptors that are closed
	// after it. nil: hang up.
	answer func(l *liar, h rpc.Header, body []byte) ([]byte, []int)
}

// lie starts a liar and returns its socket.
func lie(t testing.TB, answer func(*liar, rpc.Header, []byte) ([]byte, []int)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "liar.sock")
	ln := must(net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}))(t)
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		c, err := ln.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		(&liar{t: t, c: c, answer: answer}).serve()
	}()
	return path
}

func (l *liar) serve() {
	buf, oob := make([]byte, rpc.MaxMessage), make([]byte, 64)
	for {
		n, oobn, _, _, err := l.c.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			return
		}
		if cm, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(cm) == 1 {
			if fds, err := unix.ParseUnixRights(&cm[0]); err == nil {
				closeAll(fds)
			}
		}
		h, body, err := rpc.ParseMessage(buf[:n])
		if err != nil {
			l.t.Errorf("the client sent: %v", err)
			return
		}
		msg, fds := l.answer(l, h, body)
		if msg == nil {
			closeAll(fds)
			return
		}
		_, _, err = l.c.WriteMsgUnix(msg, unix.UnixRights(fds...), nil)
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

// reply encodes an answer to h.
func reply(h rpc.Header, status syscall.Errno, body rpc.Message) []byte {
	return rpc.AppendMessage(nil, rpc.Header{Op: h.Op, Seq: h.Seq, Status: -int32(status)}, body)
}

// memfd makes a memfd of size octets that begins with b.
func memfd(t testing.TB, size int, seals int, b []byte) int {
	fd := must(unix.MemfdCreate("vrnic-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
	check(t, unix.Ftruncate(fd, int64(size)))
	must(unix.Pwrite(fd, b, 0))(t)
	if seals != 0 {
		must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals))(t)
	}
	return fd
}

const goodSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// goodHello is what an honest daemon with one device says.
func goodHello(l *liar, h rpc.Header) ([]byte, []int) {
	page := make([]byte, ring.SessionPageSize(64))
	ring.NewSessionPage(page, 1, 64, [abi.NonceLen]byte{})
	rep := &rpc.HelloReply{Magic: abi.MagicHello, Major: abi.Major, Minor: abi.Minor, NumDevices: 1}
	rep.Devices[0] = rpc.MakeDeviceName("liar0")
	bell := must(unix.Eventfd(0, unix.EFD_CLOEXEC))(l.t)
	return reply(h, 0, rep), []int{memfd(l.t, 4096, goodSeals, page), bell}
}

func TestClientHello(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(l *liar, h rpc.Header) ([]byte, []int)
		text   string // in the error
		is     error
	}{
		{"good", goodHello, "", nil},
		{"hang up", func(*liar, rpc.Header) ([]byte, []int) { return nil, nil },
			"ended the session at once", rdma.ErrDeviceGone},
		{"another version", func(l *liar, h rpc.Header) ([]byte, []int) {
			return reply(h, syscall.EPROTONOSUPPORT, &rpc.HelloReply{Magic: abi.MagicHello, Major: 7,
				Minor: 5}), nil
		}, "version 7.5 of the ring ABI, this program 1.2", rdma.ErrUnsupported},
		{"no session free", func(l *liar, h rpc.Header) ([]byte, []int) {
			return reply(h, syscall.ENOMEM, &rpc.Empty{}), nil
		}, "limit", rdma.ErrLimit},
		{"another sequence number", func(l *liar, h rpc.Header) ([]byte, []int) {
			h.Seq++
			return goodHello(l, h)
		}, "nonsense", rdma.ErrDeviceGone},
		{"another op", func(l *liar, h rpc.Header) ([]byte, []int) {
			h.Op = rpc.OpList
			return goodHello(l, h)
		}, "nonsense", rdma.ErrDeviceGone},
		{"positive status", func(l *liar, h rpc.Header) ([]byte, []int) {
			return rpc.AppendMessage(nil, rpc.Header{Op: h.Op, Seq: h.Seq, Status: 1}, &rpc.Empty{}), nil
		}, "nonsense", rdma.ErrDeviceGone},
		{"not a message", func(*liar, rpc.Header) ([]byte, []int) { return []byte("hi"), nil },
			"nonsense", rdma.ErrDeviceGone},
		{"too long", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			return append(msg, make([]byte, rpc.MaxMessage)...), fds
		}, "too long", rdma.ErrDeviceGone},
		{"a tail that is not zero", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			return fixLen(append(msg, 1)), fds
		}, "nonsense", rdma.ErrDeviceGone},
		{"one descriptor", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			unix.Close(fds[1])
			return msg, fds[:1]
		}, "descriptors", rdma.ErrDeviceGone},
		{"three descriptors", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			return msg, append(fds, must(unix.Dup(fds[0]))(l.t))
		}, "nonsense", rdma.ErrDeviceGone},
		{"thirty descriptors", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			for range 28 {
				fds = append(fds, must(unix.Dup(fds[0]))(l.t))
			}
			return msg, fds
		}, "nonsense", rdma.ErrDeviceGone},
		{"refusal with a descriptor", func(l *liar, h rpc.Header) ([]byte, []int) {
			_, fds := goodHello(l, h)
			return reply(h, syscall.ENOMEM, &rpc.Empty{}), fds
		}, "nonsense", rdma.ErrDeviceGone},
		{"wrong magic", func(l *liar, h rpc.Header) ([]byte, []int) {
			_, fds := goodHello(l, h)
			return reply(h, 0, &rpc.HelloReply{Magic: 1}), fds
		}, "nonsense", rdma.ErrDeviceGone},
		{"memory that can shrink", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			unix.Close(fds[0])
			fds[0] = memfd(l.t, 4096, unix.F_SEAL_GROW, nil)
			return msg, fds
		}, "not sealed", rdma.ErrDeviceGone},
		{"memory too small", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			unix.Close(fds[0])
			fds[0] = memfd(l.t, 64, goodSeals, nil)
			return msg, fds
		}, "64 octets", rdma.ErrDeviceGone},
		{"memory without end", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			unix.Close(fds[0])
			fds[0] = memfd(l.t, 1<<40, goodSeals, nil)
			return msg, fds
		}, "octets", rdma.ErrDeviceGone},
		{"a pipe for memory", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			return msg, []int{fds[1], fds[0]}
		}, "memory from the daemon", rdma.ErrDeviceGone},
		{"page of another version", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			must(unix.Pwrite(fds[0], []byte{9}, abi.SessMajor))(l.t)
			return msg, fds
		}, "version", rdma.ErrDeviceGone},
		{"bells outside the page", func(l *liar, h rpc.Header) ([]byte, []int) {
			msg, fds := goodHello(l, h)
			must(unix.Pwrite(fds[0], []byte{0, 16}, abi.SessBellOff))(l.t)
			return msg, fds
		}, "bells", rdma.ErrDeviceGone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			c, err := shm.Dial(lie(t, func(l *liar, h rpc.Header, _ []byte) ([]byte, []int) {
				return tt.answer(l, h)
			}))
			if tt.is == nil {
				check(t, err)
				c.Close()
				return
			}
			if err == nil {
				c.Close()
				t.Fatal("dial succeeded")
			}
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v; want %q in it", err, tt.text)
			}
		})
	}
}

// fixLen sets the length in the header of msg to what msg has.
func fixLen(msg []byte) []byte {
	n := len(msg) - rpc.HeaderLen
	msg[12], msg[13], msg[14], msg[15] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	return msg
}

func TestClientDial(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	if _, err := shm.Dial(filepath.Join(dir, "nothing")); err == nil || !strings.Contains(err.Error(),
		`start one with "vrnic up"`) {
		t.Errorf("no socket: %v", err)
	}
	if _, err := shm.Dial(dir); err == nil || !strings.Contains(err.Error(), "but another file") ||
		errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a directory: %v", err)
	}
	stream := filepath.Join(dir, "stream")
	ln := must(net.Listen("unix", stream))(t)
	defer ln.Close()
	if _, err := shm.Dial(stream); err == nil || !strings.Contains(err.Error(),
		"not the socket of a vrnic daemon") {
		t.Errorf("another program's socket: %v", err)
	}
	t.Setenv("VRNIC_SOCKET", "/x/v")
	if got := shm.DefaultSocket(); got != "/x/v" {
		t.Errorf("VRNIC_SOCKET: %s", got)
	}
	if _, err := shm.Dial(""); err == nil || !strings.Contains(err.Error(), "/x/v") {
		t.Errorf("dial of the default: %v", err)
	}
	t.Setenv("VRNIC_SOCKET", "")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	if got := shm.DefaultSocket(); got != "/run/user/7/vrnic.sock" {
		t.Errorf("XDG_RUNTIME_DIR: %s", got)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	if got := shm.DefaultSocket(); got != "/run/vrnic.sock" {
		t.Errorf("neither: %s", got)
	}
}

// A daemon lies in the answer to a later request: the call fails, the session is over, nothing
// leaks.
func TestClientDistrustsReplies(t *testing.T) {
	pipe := func(l *liar) int {
		var p [2]int
		check(l.t, unix.Pipe2(p[:], unix.O_CLOEXEC))
		unix.Close(p[1])
		return p[0]
	}
	// honest answers enough for a device; what a test does not change.
	honest := func(l *liar, h rpc.Header, body []byte) ([]byte, []int) {
		switch h.Op {
		case rpc.OpHello:
			return goodHello(l, h)
		case rpc.OpQueryDevice:
			return reply(h, 0, &rpc.QueryDeviceReply{Name: rpc.MakeDeviceName("liar0")}), nil
		case rpc.OpCtxOpen:
			return reply(h, 0, &rpc.CtxOpenReply{Ctx: 1}), []int{must(unix.Dup(livePipe(l.t)))(l.t)}
		case rpc.OpCMCreateChan:
			return reply(h, 0, &rpc.CMCreateChanReply{Chan: 1}), []int{must(unix.Dup(livePipe(l.t)))(l.t)}
		case rpc.OpCMGetEvent, rpc.OpGetAsyncEvent:
			return reply(h, syscall.EAGAIN, &rpc.Empty{}), nil
		case rpc.OpCreateChan:
			mem := make([]byte, ring.ChannelMemSize)
			ring.NewChannelProducer(mem, 1, func() {}, nil)
			return reply(h, 0, &rpc.CreateChanReply{Chan: 1}), []int{must(unix.Dup(livePipe(l.t)))(l.t),
				memfd(l.t, len(mem), goodSeals, mem)}
		case rpc.OpCreateCQ:
			mem := make([]byte, ring.CQMemSize(16))
			ring.NewCQProducer(mem, 16, 1, nil, nil)
			return reply(h, 0, &rpc.CreateCQReply{CQ: 1, CQE: 16}),
				[]int{memfd(l.t, len(mem), goodSeals, mem)}
		case rpc.OpCreateQP:
			var req rpc.CreateQPRequest
			check(l.t, rpc.Decode(body, &req))
			caps, _ := rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}.Round(16,
				req.SRQ != 0)
			lay := caps.Layout()
			mem := make([]byte, lay.Size())
			ring.NewDaemonQP(mem, lay, 1, nil)
			num := 1 + req.SRQ // a second QP is made with an SRQ
			binary.LittleEndian.PutUint32(mem[abi.QPNum:], num)
			return reply(h, 0, &rpc.CreateQPReply{QP: num, QPN: num, Bell: 3, Caps: caps}),
				[]int{memfd(l.t, len(mem), goodSeals, mem)}
		case rpc.OpCreateSRQ:
			lay := abi.NewSRQLayout(4, 2)
			mem := make([]byte, lay.Size())
			ring.NewDaemonSRQ(mem, lay, 1, nil)
			return reply(h, 0, &rpc.CreateSRQReply{SRQ: 1, Bell: 4, MaxWR: 4, MaxSGE: 2}),
				[]int{memfd(l.t, len(mem), goodSeals, mem)}
		}
		return reply(h, 0, &rpc.Empty{}), nil
	}
	makeQP := func(d *shm.Device) error {
		pd, err := d.AllocPD()
		if err != nil {
			return err
		}
		cq, err := d.CreateCQ(16)
		if err != nil {
			return err
		}
		if _, err = pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}); err !=
			nil {
			return err
		}
		srq, err := pd.CreateSRQ(rdma.SRQConfig{MaxWR: 4, MaxSGE: 2})
		if err != nil {
			return err
		}
		for i := range 5 { // more than there is room for
			err := srq.PostRecv(&rdma.RecvWR{})
			if errors.Is(err, rdma.ErrDeviceGone) || err != nil && i < 4 {
				return err
			}
		}
		_, err = pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, SRQ: srq})
		return err
	}
	// word alters a word of the memory that comes with a reply.
	word := func(off int64, v uint32) func(*liar, rpc.Header, []byte, []int) ([]byte, []int) {
		return func(l *liar, h rpc.Header, msg []byte, fds []int) ([]byte, []int) {
			must(unix.Pwrite(fds[0], binary.LittleEndian.AppendUint32(nil, v), off))(l.t)
			return msg, fds
		}
	}
	for _, tt := range []struct {
		name string
		op   rpc.Op
		lie  func(l *liar, h rpc.Header, msg []byte, fds []int) ([]byte, []int)
		do   func(c *shm.Client) error
	}{
		{"honest", rpc.OpHello, nil, nil},
		{"async pipe has ended", rpc.OpCtxOpen, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			closeAll(fds)
			return msg, []int{pipe(l)}
		}, func(c *shm.Client) error {
			d, err := c.Open("")
			if err == nil {
				if _, err := d.NextAsyncEvent(testContext(t)); err != nil {
					return errors.Join(errors.New("no DEVICE_FATAL"), err)
				}
				_, err = d.NextAsyncEvent(testContext(t))
			}
			return err
		}},
		{"async pipe is memory", rpc.OpCtxOpen, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			closeAll(fds)
			return msg, []int{memfd(l.t, 10, 0, nil)}
		}, nil},
		{"CM pipe has ended", rpc.OpCMCreateChan, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			closeAll(fds)
			return msg, []int{pipe(l)}
		}, func(c *shm.Client) error {
			c.Open("") // may be quicker than the end of the pipe
			<-c.Done()
			_, err := c.List("qp")
			return err
		}},
		{"channel memory without a channel", rpc.OpCreateChan, func(l *liar, h rpc.Header, msg []byte,
			fds []int) ([]byte, []int) {
			must(unix.Pwrite(fds[1], []byte{0}, 0))(l.t)
			return msg, fds
		}, nil},
		{"channel fds the wrong way round", rpc.OpCreateChan, func(l *liar, h rpc.Header, msg []byte,
			fds []int) ([]byte, []int) {
			return msg, []int{fds[1], fds[0]}
		}, nil},
		{"CQ with two descriptors", rpc.OpCreateCQ, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			return msg, append(fds, must(unix.Dup(fds[0]))(l.t))
		}, nil},
		{"nonsense while pipes stay open", rpc.OpHello, func(l *liar, h rpc.Header, msg []byte,
			fds []int) ([]byte, []int) {
			return msg, fds
		}, func(c *shm.Client) error {
			d, err := c.Open("")
			if err != nil {
				return err
			}
			cq, err := d.CreateCQ(16)
			if err != nil {
				return err
			}
			errs := make(chan error)
			go func() { errs <- cq.Wait(context.Background()) }()
			go func() {
				d.NextAsyncEvent(context.Background()) // DEVICE_FATAL
				_, err := d.NextAsyncEvent(context.Background())
				errs <- err
			}()
			if !needtest.Becomes(func() bool {
				return blocked("shm.(*compQueue).Wait") > 0 && blocked("shm.(*Device).NextAsyncEvent") > 0
			}) {
				return errors.New("they do not block")
			}
			abi.Word(shm.CQMem(cq), abi.CQProd).Store(1000)
			if _, err := cq.Poll(make([]rdma.WC, 1)); !errors.Is(err, rdma.ErrDeviceGone) {
				return err
			}
			for range 2 {
				select {
				case err := <-errs:
					if !errors.Is(err, rdma.ErrDeviceGone) {
						return err
					}
				case <-time.After(testTime):
					return errors.New("a call still blocks")
				}
			}
			return list(c)
		}},
		{"CQ of another handle", rpc.OpCreateCQ, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			return reply(h, 0, &rpc.CreateCQReply{CQ: 2, CQE: 16}), fds
		}, nil},
		{"CQ too small", rpc.OpCreateCQ, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			must(unix.Pwrite(fds[0], []byte{8}, abi.CQSize))(l.t)
			return msg, fds
		}, nil},
		{"CQ larger than its memory", rpc.OpCreateCQ, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			must(unix.Pwrite(fds[0], []byte{0, 1}, abi.CQSize))(l.t)
			return msg, fds
		}, nil},
		{"QP of another number", rpc.OpCreateQP, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			return reply(h, 0, &rpc.CreateQPReply{QP: 1, QPN: 77, Bell: 3}), fds
		}, nil},
		{"QP with a bell past the last", rpc.OpCreateQP, func(l *liar, h rpc.Header, msg []byte,
			fds []int) ([]byte, []int) {
			return reply(h, 0, &rpc.CreateQPReply{QP: 1, QPN: 1, Bell: 64}), fds
		}, nil},
		{"QP smaller than asked", rpc.OpCreateQP, func(l *liar, h rpc.Header, msg []byte, fds []int) (
			[]byte, []int) {
			must(unix.Pwrite(fds[0], []byte{2}, abi.QPSQSize))(l.t)
			return msg, fds
		}, nil},
		{"QP ring outside its memory", rpc.OpCreateQP, func(l *liar, h rpc.Header, msg []byte,
			fds []int) ([]byte, []int) {
			must(unix.Pwrite(fds[0], []byte{0, 0, 1}, abi.QPRQOff))(l.t)
			return msg, fds
		}, nil},
		{"SRQ with the memory of a QP", rpc.OpCreateSRQ, word(abi.QPMagic, abi.MagicQP), nil},
		{"SRQ of another handle", rpc.OpCreateSRQ, word(abi.QPNum, 2), nil},
		{"SRQ smaller than asked", rpc.OpCreateSRQ, word(abi.QPRQSize, 2), nil},
		{"SRQ of no size", rpc.OpCreateSRQ, word(abi.QPRQSize, 0), nil},
		{"SRQ with a stride for less", rpc.OpCreateSRQ, word(abi.QPRQStride, 32), nil},
		{"SRQ ring outside its memory", rpc.OpCreateSRQ, word(abi.QPRQOff, 1<<20), nil},
		{"SRQ that has taken more than was posted", rpc.OpCreateSRQ, word(abi.QPRQHead, 1), nil},
		{"SRQ with a bell past the last", rpc.OpCreateSRQ, func(l *liar, h rpc.Header, msg []byte,
			fds []int) ([]byte, []int) {
			return reply(h, 0, &rpc.CreateSRQReply{SRQ: 1, Bell: 64, MaxWR: 4, MaxSGE: 2}), fds
		}, nil},
		{"QP of a handle that is another's", rpc.OpCreateQP, func(l *liar, h rpc.Header, msg []byte,
			fds []int) ([]byte, []int) {
			must(unix.Pwrite(fds[0], []byte{1}, abi.QPNum))(l.t)
			return reply(h, 0, &rpc.CreateQPReply{QP: 1, QPN: 1, Bell: 3}), fds
		}, nil},
		{"QP without a receive queue", rpc.OpCreateQP, word(abi.QPRQSize, 0), nil},
		{"rows that are no rows", rpc.OpList, func(l *liar, h rpc.Header, _ []byte, _ []int) (
			[]byte, []int) {
			r := &rpc.ListReply{Len: 5}
			copy(r.Data[:], "hello")
			return reply(h, 0, r), nil
		}, list},
		{"more rows than there is room for", rpc.OpList, func(l *liar, h rpc.Header, _ []byte, _ []int) (
			[]byte, []int) {
			return reply(h, 0, &rpc.ListReply{Len: 1 << 31}), nil
		}, list},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			c, err := shm.Dial(lie(t, func(l *liar, h rpc.Header, body []byte) ([]byte, []int) {
				msg, fds := honest(l, h, body)
				if h.Op == tt.op && tt.lie != nil {
					return tt.lie(l, h, msg, fds)
				}
				return msg, fds
			}))
			check(t, err)
			defer c.Close()
			do := tt.do
			if do == nil {
				do = func(c *shm.Client) error {
					d, err := c.Open("")
					if err == nil {
						err = makeQP(d)
					}
					return err
				}
			}
			err = do(c)
			if tt.lie == nil {
				check(t, err)
				return
			}
			if !errors.Is(err, rdma.ErrDeviceGone) {
				t.Errorf("got %v", err)
			}
			<-c.Done()
		})
	}
}

func list(c *shm.Client) error {
	_, err := c.List("qp")
	return err
}

// livePipe is the read end of a pipe that never ends during the test.
func livePipe(t testing.TB) int {
	r, w, err := os.Pipe()
	check(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return int(r.Fd())
}
