package sessiontest

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

var ne = binary.NativeEndian

// nobody is a user that is neither root nor who runs the tests as root.
const nobody = 65534

// walk is what a program does to see all of the control plane, and after which request of the
// daemon's each step comes.
var walk = []struct {
	op      rpc.Op
	command string
	answer  string // of an honest daemon
}{
	{rpc.OpHello, "list", "2 fake0 fake1"},
	{rpc.OpCtxOpen, "open", "ok"},
	{rpc.OpQueryPort, "queries 1", "ok"},
	{rpc.OpCreateChan, "chan", "ok"},
	{rpc.OpCreateCQ, "cq 0 4 0", "ok 4"},
	{rpc.OpAllocPD, "pd", "ok"},
	{rpc.OpSetMem, "mr malloc 100 0 1", "ok"},
	{rpc.OpAllocMW, "mw 1", "ok"},
}

// take walks up to the step that begins with op, and returns the answer to that.
func take(p *program, op rpc.Op) string {
	p.t.Helper()
	for _, s := range walk {
		if s.op == op {
			return p.do(s.command)
		}
		p.want(s.command, s.answer)
	}
	p.t.Fatalf("no step for %v", op)
	return ""
}

// setHeader changes a field of a message's header.
func setHeader(off int, v uint32) func(msg []byte, fds []int) ([]byte, []int) {
	return func(msg []byte, fds []int) ([]byte, []int) {
		ne.PutUint32(msg[off:], v)
		return msg, fds
	}
}

// grow appends n octets of value b to a message.
func grow(n int, b byte) func(msg []byte, fds []int) ([]byte, []int) {
	return func(msg []byte, fds []int) ([]byte, []int) {
		for range n {
			msg = append(msg, b)
		}
		ne.PutUint32(msg[12:], uint32(len(msg)-rpc.HeaderLen))
		return msg, fds
	}
}

// extra adds n descriptors to those of a reply.
func extra(n int) func(msg []byte, fds []int) ([]byte, []int) {
	return func(msg []byte, fds []int) ([]byte, []int) {
		for range n {
			if fd, err := unix.Eventfd(0, 0); err == nil {
				fds = append(fds, fd)
			}
		}
		return msg, fds
	}
}

// A reply that is not the one that is due ends the session, wherever it comes, and never the
// program.
func TestHostileReplies(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name   string
		tamper func(msg []byte, fds []int) ([]byte, []int)
	}{
		{"hangs up", func(msg []byte, fds []int) ([]byte, []int) { return nil, fds }},
		{"empty", func(msg []byte, fds []int) ([]byte, []int) { return msg[:0], nil }},
		{"no header", func(msg []byte, fds []int) ([]byte, []int) { return msg[:rpc.HeaderLen-1], fds }},
		{"other op", func(msg []byte, fds []int) ([]byte, []int) { msg[0]++; return msg, fds }},
		{"flags", func(msg []byte, fds []int) ([]byte, []int) { msg[2] = 1; return msg, fds }},
		{"other seq", func(msg []byte, fds []int) ([]byte, []int) { msg[4]++; return msg, fds }},
		{"status above 0", setHeader(8, 1)},
		{"status far below 0", setHeader(8, 1<<31)},
		{"status -4096", setHeader(8, ^uint32(4095))},
		{"length too long", setHeader(12, 4000)},
		{"length too short", setHeader(12, 4)},
		{"length wraps", setHeader(12, ^uint32(0)-15)},
		{"unknown words", grow(8, 1)},
		{"longer than any message", grow(5000, 0)},
		{"descriptors too many", extra(1)},
		{"descriptors far too many", extra(30)},
	} {
		for _, step := range walk {
			t.Run(fmt.Sprintf("%s/%v", tt.name, step.op), func(t *testing.T) {
				f := newFake(t, func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
					if op != step.op {
						return msg, fds
					}
					return tt.tamper(msg, fds)
				})
				p := start(t, f.path)
				if got := take(p, step.op); got != "EIO" {
					t.Fatalf("answer %q, want EIO\n%s", got, p.errs)
				}
				f.session(0).ended()
				if s := p.said(); !strings.Contains(s, "vrnic: ") {
					t.Errorf("nothing said why: %q", s)
				}
			})
		}
	}
}

// What the daemon still looks for on the network the library asks for again, for half a minute.
// RVB-006.
func TestInProgress(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name     string
		progress int32 // so often it is still looked for
		tick     string
		want     string
		asked    int32
	}{
		{"found", 3, "0", "ok", 4},
		{"never found", 1000, "1000", "ETIMEDOUT", 31},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked atomic.Int32
			f := newFake(t, func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
				if op == rpc.OpAllocPD && asked.Add(1) <= tt.progress {
					msg, _ = setHeader(8, ^uint32(syscall.EINPROGRESS-1))(msg, nil)
				}
				return msg, fds
			})
			p := start(t, f.path)
			p.want("open", "ok", "tick "+tt.tick, "ok", "pd", tt.want)
			if n := asked.Load(); n != tt.asked {
				t.Errorf("asked %d times, want %d", n, tt.asked)
			}
		})
	}
}

// What a reply lacks of descriptors, or brings with a refusal.
func TestHostileDescriptors(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name   string
		tamper func(msg []byte, fds []int) ([]byte, []int)
	}{
		{"none", func(msg []byte, fds []int) ([]byte, []int) { closeAll(fds); return msg, nil }},
		{"one less", func(msg []byte, fds []int) ([]byte, []int) {
			closeAll(fds[:1])
			return msg, fds[1:]
		}},
		{"with a refusal", func(msg []byte, fds []int) ([]byte, []int) {
			h, _, _ := rpc.ParseMessage(msg)
			h.Status = -int32(unix.ENOMEM)
			return rpc.AppendMessage(nil, h, &rpc.Empty{}), fds
		}},
	} {
		for _, op := range []rpc.Op{rpc.OpHello, rpc.OpCtxOpen, rpc.OpCreateChan, rpc.OpCreateCQ} {
			t.Run(fmt.Sprintf("%s/%v", tt.name, op), func(t *testing.T) {
				f := newFake(t, func(o rpc.Op, msg []byte, fds []int) ([]byte, []int) {
					if o != op {
						return msg, fds
					}
					return tt.tamper(msg, fds)
				})
				p := start(t, f.path)
				if got := take(p, op); got != "EIO" {
					t.Fatalf("answer %q, want EIO\n%s", got, p.errs)
				}
				f.session(0).ended()
			})
		}
	}
}

// By the rules of evolution a reply may be shorter than its struct, or longer with zeros.
func TestOtherLengths(t *testing.T) {
	need(t)
	for _, tamper := range []func(msg []byte, fds []int) ([]byte, []int){
		grow(64, 0),
		func(msg []byte, fds []int) ([]byte, []int) {
			for len(msg) > rpc.HeaderLen && msg[len(msg)-1] == 0 {
				msg = msg[:len(msg)-1]
			}
			ne.PutUint32(msg[12:], uint32(len(msg)-rpc.HeaderLen))
			return msg, fds
		},
	} {
		f := newFake(t, func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
			return tamper(msg, fds)
		})
		p := start(t, f.path)
		for _, s := range walk {
			p.want(s.command, s.answer)
		}
	}
}

// A refusal is an errno for the program, and the session goes on.
func TestRefusals(t *testing.T) {
	need(t)
	for _, step := range walk[1:] {
		refuse := true
		f := newFake(t, func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
			if op != step.op || !refuse {
				return msg, fds
			}
			refuse = false
			closeAll(fds)
			h, _, _ := rpc.ParseMessage(msg)
			h.Status = -int32(unix.ENOMEM)
			return rpc.AppendMessage(nil, h, &rpc.Empty{}), nil
		})
		p := start(t, f.path)
		if got := take(p, step.op); got != "ENOMEM" {
			t.Fatalf("%v: answer %q, want ENOMEM\n%s", step.op, got, p.errs)
		}
		if got := p.do(step.command); got != step.answer {
			t.Fatalf("%v: answer %q, want %q\n%s", step.op, got, step.answer, p.errs)
		}
	}
}

// otherMem puts memory of size octets that begins with b, with seals, into the place of the
// descriptor i of a reply.
func otherMem(t testing.TB, i, size, seals int, b []byte) func(msg []byte, fds []int) (
	[]byte, []int) {
	return func(msg []byte, fds []int) ([]byte, []int) {
		fd, err := unix.MemfdCreate("vrnic-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err == nil {
			err = unix.Ftruncate(fd, int64(size))
		}
		if err == nil {
			_, err = unix.Pwrite(fd, b, 0)
		}
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		}
		if err != nil {
			t.Error(err)
		}
		unix.Close(fds[i])
		fds[i] = fd
		return msg, fds
	}
}

// poke changes a word of the memory that is descriptor i of a reply.
func poke(t testing.TB, i int, off int64, v uint32) func(msg []byte, fds []int) ([]byte, []int) {
	return func(msg []byte, fds []int) ([]byte, []int) {
		if _, err := unix.Pwrite(fds[i], ne.AppendUint32(nil, v), off); err != nil {
			t.Error(err)
		}
		return msg, fds
	}
}

// notMemory puts something else into the place of descriptor i.
func notMemory(t testing.TB, i int) func(msg []byte, fds []int) ([]byte, []int) {
	return func(msg []byte, fds []int) ([]byte, []int) {
		unix.Close(fds[i])
		fd, err := unix.Eventfd(0, 0)
		if err != nil {
			t.Error(err)
		}
		fds[i] = fd
		return msg, fds
	}
}

// Memory from the daemon whose size, seals or first line make no sense is not used.
func TestHostileMemory(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		op   rpc.Op
		name string
		fd   int
		off  int64
		v    uint32
	}{
		{rpc.OpHello, "magic", 0, abi.SessMagic, 1},
		{rpc.OpHello, "version", 0, abi.SessMajor, 9},
		{rpc.OpHello, "bells at", 0, abi.SessBellOff, 1 << 20},
		{rpc.OpHello, "bells between words", 0, abi.SessBellOff, 130},
		{rpc.OpHello, "bells that wrap", 0, abi.SessBellOff, ^uint32(3)},
		{rpc.OpHello, "bells", 0, abi.SessBellWords, 1 << 10},
		{rpc.OpHello, "bells, octets that wrap", 0, abi.SessBellWords, 1 << 30},
		{rpc.OpCreateChan, "magic", 1, abi.ChanMagic, 0},
		{rpc.OpCreateChan, "handle", 1, abi.ChanHandle, 1},
		{rpc.OpCreateChan, "no slots", 1, abi.ChanSize, 0},
		{rpc.OpCreateChan, "slots", 1, abi.ChanSize, 4097},
		{rpc.OpCreateChan, "many slots", 1, abi.ChanSize, 8192},
		{rpc.OpCreateChan, "too many slots", 1, abi.ChanSize, 1 << 31},
		{rpc.OpCreateChan, "slots at", 1, abi.ChanOff, 1 << 30},
		{rpc.OpCreateChan, "slots between words", 1, abi.ChanOff, 193},
		{rpc.OpCreateCQ, "magic", 0, abi.CQMagic, 0},
		{rpc.OpCreateCQ, "handle", 0, abi.CQHandle, 1},
		{rpc.OpCreateCQ, "no entries", 0, abi.CQSize, 0},
		{rpc.OpCreateCQ, "fewer entries", 0, abi.CQSize, 2},
		{rpc.OpCreateCQ, "entries", 0, abi.CQSize, 5},
		{rpc.OpCreateCQ, "many entries", 0, abi.CQSize, 256},
		{rpc.OpCreateCQ, "too many entries", 0, abi.CQSize, 1 << 31},
		{rpc.OpCreateCQ, "entries at", 0, abi.CQCQEOff, 1 << 31},
		{rpc.OpCreateCQ, "entries between words", 0, abi.CQCQEOff, 257},
	} {
		t.Run(fmt.Sprintf("%v/%s", tt.op, tt.name), func(t *testing.T) {
			hostileMemory(t, tt.op, poke(t, tt.fd, tt.off, tt.v))
		})
	}
	for op, fd := range map[rpc.Op]int{rpc.OpHello: 0, rpc.OpCreateChan: 1, rpc.OpCreateCQ: 0} {
		for name, tamper := range map[string]func([]byte, []int) ([]byte, []int){
			"not sealed":         otherMem(t, fd, 1<<20, 0, nil),
			"may shrink":         otherMem(t, fd, 1<<20, unix.F_SEAL_GROW, nil),
			"may not be written": otherMem(t, fd, 1<<20, goodSeals|unix.F_SEAL_WRITE, nil),
			"all zero":           otherMem(t, fd, 1<<20, goodSeals, nil),
			"short":              otherMem(t, fd, 127, goodSeals, nil),
			"empty":              otherMem(t, fd, 0, goodSeals, nil),
			"enormous":           otherMem(t, fd, 1<<40, goodSeals, nil),
			"no memory":          notMemory(t, fd),
		} {
			t.Run(fmt.Sprintf("%v/%s", op, name), func(t *testing.T) { hostileMemory(t, op, tamper) })
		}
	}
	for _, op := range []rpc.Op{rpc.OpCtxOpen, rpc.OpCreateChan} {
		t.Run(fmt.Sprintf("%v/no pipe", op), func(t *testing.T) { hostileMemory(t, op, notMemory(t, 0)) })
	}
}

func hostileMemory(t *testing.T, op rpc.Op, tamper func(msg []byte, fds []int) ([]byte, []int)) {
	f := newFake(t, func(o rpc.Op, msg []byte, fds []int) ([]byte, []int) {
		if o != op {
			return msg, fds
		}
		return tamper(msg, fds)
	})
	p := start(t, f.path)
	if got := take(p, op); got != "EIO" && got != "EPROTO" && got != "EPERM" {
		t.Fatalf("answer %q, want EIO\n%s", got, p.errs)
	}
	f.session(0).ended()
}

// What the daemon writes into rings later.
func TestHostileRings(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name string
		do   func(s *session)
		wait string // a command that finds it
	}{
		{"more completions than entries", func(s *session) { ne.PutUint32(s.cq(0).mem[abi.CQProd:], 5) },
			"poll 0"},
		{"fewer completions than before", func(s *session) {
			ne.PutUint32(s.cq(0).mem[abi.CQProd:], ^uint32(0))
		}, "poll 0"},
		{"more events than slots", func(s *session) {
			ne.PutUint32(s.ch(0).mem[abi.ChanProd:], 4097)
			s.token()
		}, "get 0"},
		{"an event of no CQ", func(s *session) {
			mem := s.ch(0).mem
			ne.PutUint32(mem[ne.Uint32(mem[abi.ChanOff:]):], 4711)
			ne.PutUint32(mem[abi.ChanProd:], 1)
			s.token()
		}, "get 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t, nil)
			p := open(t, f)
			p.want("chan", "ok", "cq 0 4 0", "ok 4")
			s := f.session(0)
			tt.do(s)
			p.do(tt.wait)
			s.ended()
			p.want("get 0", "EIO", "poll 0", "0", "queries 1", "EIO", "delcq 0", "ok", "delchan 0", "ok",
				"close", "ok")
		})
	}
}

// Tokens without events are spurious: who waits goes on waiting.
func TestSpuriousTokens(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("chan", "ok", "cq 0 4 0", "ok 4", "arm 0 0", "ok")
	s := f.session(0)
	s.token()
	p.send("bg get 0")
	p.quiet("there is no event")
	s.cq(0).push(t)
	p.wantLine("bg get 0")
	s.mu.Lock()
	token(nth(s.async, 0).pipe)
	s.mu.Unlock()
	p.send("bg async")
	p.quiet("there is no event")
	s.raise(rpc.AsyncEvent{Type: 9})
	p.wantLine("bg async type 9")
}

// docs/abi.md#threat-model: a daemon of a third user gets nothing, and programs with raised
// privilege get no device.
func TestTrust(t *testing.T) {
	b := need(t)
	needtest.Root(t) // to be two users
	t.Run("daemon of another user", func(t *testing.T) {
		f := listenAs(t, nobody)
		p := start(t, f.path)
		p.want("list", "EPERM", "open", "EPERM")
		if s := p.said(); strings.Count(s, "runs as uid 65534, which is neither root nor this user") !=
			1 {
			t.Errorf("said %q", s)
		}
		if s := f.session(0); len(s.reqs) != 0 {
			t.Errorf("the library asked for %v", s.reqs)
		}
	})
	t.Run("daemon of root", func(t *testing.T) {
		f := newFake(t, nil)
		openTo(t, f)
		p := startAs(t, b.shell, f.path, nobody)
		p.want("list", "2 fake0 fake1", "open", "ok", "pd", "ok", "mr malloc 100 0 1", "ok")
	})
	t.Run("setuid", func(t *testing.T) {
		ctest.Native(t, "the kernel starts the emulator, which is not setuid")
		f := newFake(t, nil)
		file := filepath.Join(ctest.Dir, "setuid-shell")
		if out, err := exec.Command("cp", b.shell, file).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := os.Chown(file, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		p := startFile(t, file, f.path, "ASAN_OPTIONS=detect_leaks=0") // which ptraces
		p.want("list", "EPERM", "list", "EPERM")
		if s := p.said(); strings.Count(s, "raised privilege") != 1 {
			t.Errorf("said %q (is %s on a file system without setuid?)", s, ctest.Dir)
		}
	})
}

// openTo lets any user connect to a daemon.
func openTo(t *testing.T, f *fake) {
	t.Helper()
	for dir := filepath.Dir(f.path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(f.path, 0o666); err != nil {
		t.Fatal(err)
	}
}

// listenAs starts a daemon whose socket says that it is of a user.
func listenAs(t *testing.T, uid int) *fake {
	t.Helper()
	// The kernel notes who calls listen(2), which is a thread's affair.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path := filepath.Join(t.TempDir(), "vrnic.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid),
		^uintptr(0)); errno != 0 {
		t.Fatal(errno)
	}
	err = unix.Listen(fd, 8)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0)); errno != 0 {
		panic(errno) // the thread must not go on
	}
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, listenerOf(t, fd), nil)
}
