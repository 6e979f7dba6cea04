package server

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/limitlog"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// docs/abi.md#threat-model: each violation ends the session that it came from, with a line in the
// log and a count, and no other; nothing is left of it.
func TestViolations(t *testing.T) {
	msg := func(op rpc.Op, body rpc.Message) []byte {
		return rpc.AppendMessage(nil, rpc.Header{Op: op}, body)
	}
	for _, tt := range []struct {
		name  string
		fresh bool // before HELLO
		why   string
		do    func(ts *testServer, c *rawClient)
	}{
		{"wrong magic", true, "magic", func(ts *testServer, c *rawClient) {
			c.sendRaw(msg(rpc.OpHello, &rpc.HelloRequest{Magic: 0x564e5248, Major: abi.Major}))
		}},
		{"request before HELLO", true, "before HELLO",
			func(ts *testServer, c *rawClient) { c.sendRaw(msg(rpc.OpAllocPD, &rpc.AllocPDRequest{})) }},
		{"descriptor with HELLO", true, "descriptor",
			func(ts *testServer, c *rawClient) { c.sendRaw(msg(rpc.OpHello, goodHello()), c.memfd(1, 0)) }},
		{"second HELLO", false, "second HELLO",
			func(ts *testServer, c *rawClient) { c.sendRaw(msg(rpc.OpHello, goodHello())) }},
		{"truncated header", false, "no header",
			func(ts *testServer, c *rawClient) { c.sendRaw(make([]byte, 15)) }},
		{"length is not the message's", false, "length", func(ts *testServer, c *rawClient) {
			c.sendRaw(append(msg(rpc.OpAllocPD, &rpc.AllocPDRequest{}), 0))
		}},
		{"oversized", false, "longer than",
			func(ts *testServer, c *rawClient) { c.sendRaw(make([]byte, rpc.MaxMessage+1)) }},
		{"two descriptors", false, "descriptor", func(ts *testServer, c *rawClient) {
			c.sendRaw(msg(rpc.OpAddMem, &rpc.AddMemRequest{}), c.memfd(4096, unix.F_SEAL_SHRINK),
				c.memfd(4096, unix.F_SEAL_SHRINK))
		}},
		{"many descriptors", false, "descriptor", func(ts *testServer, c *rawClient) {
			fds := make([]int, 200)
			for i := range fds {
				fds[i] = c.fd
			}
			c.sendRaw(msg(rpc.OpAddMem, &rpc.AddMemRequest{}), fds...)
		}},
		{"descriptor on another request", false, "descriptor with ALLOC_PD",
			func(ts *testServer, c *rawClient) {
				c.sendRaw(msg(rpc.OpAllocPD, &rpc.AllocPDRequest{}), c.memfd(4096, unix.F_SEAL_SHRINK))
			}},
		{"sq_prod jumps", false, "sq_prod", func(ts *testServer, c *rawClient) {
			q := c.newQP()
			abi.Word(q.mem, abi.QPSQProd).Store(1 << 30)
			q.ringer.Ring(q.bell)
		}},
		{"absurd nsge", false, "SGEs", func(ts *testServer, c *rawClient) {
			q := c.newQP()
			abi.Order.PutUint16(q.mem[q.m.Layout.SQOff+abi.SQNumSGE:], 0xfff0)
			abi.Word(q.mem, abi.QPSQProd).Store(1)
			q.ringer.Ring(q.bell)
		}},
		{"CQ cons jumps", false, "CQ cons", func(ts *testServer, c *rawClient) {
			q := c.newQP()
			abi.Word(c.maps[len(c.maps)-2], abi.CQCons).Store(1 << 31)
			for q.m.SQ.Posted() < 65 { // the CQ holds 64
				if q.m.SQ.Put(&abi.SendWQE{}) != nil {
					osmem.Yield() // until the daemon has retired one
				}
				q.m.SQ.Commit()
				q.ringer.Ring(q.bell)
			}
		}},
		{"channel cons jumps", false, "channel cons", func(ts *testServer, c *rawClient) {
			q := c.newQP()
			abi.Word(c.maps[len(c.maps)-3], abi.ChanCons).Store(1 << 31)
			q.c.Arm(false)
			q.m.SQ.Put(&abi.SendWQE{})
			q.m.SQ.Commit()
			q.ringer.Ring(q.bell)
		}},
		{"doorbell made non-blocking", false, "non-blocking", func(ts *testServer, c *rawClient) {
			unix.SetNonblock(c.bell, true)
			c.Ring()
		}},
		{"replies not read", false, "not read", func(ts *testServer, c *rawClient) {
			for range 100000 {
				if c.sendRaw(msg(rpc.OpQueryDevice, &rpc.QueryDeviceRequest{})) != nil {
					break
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ts := newServer(t)
			honest := ts.client()
			hq := honest.newQP()
			c := rawConnect(t, ts.path)
			if !tt.fresh {
				c.hello()
			}
			tt.do(ts, c)
			ts.want("the session ends", func() bool {
				return ts.srv.Stats().Sessions == 1 && ts.srv.Stats().Violations == 1
			})
			for {
				if _, _, _, ended := c.recv(); ended {
					break
				}
			}
			if log := ts.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, tt.why) {
				t.Errorf("the log says %q; want one line with %q", log, tt.why)
			}
			if !tt.fresh {
				if cs := ts.f.causes(); len(cs) != 1 || !abi.IsViolation(cs[0]) {
					t.Errorf("the handler was told %v", cs)
				}
			}
			hq.roundTrip(t, 1)
		})
	}
}

// A client that rings without bells is slowed down (TestBarrenWakesPause), and no more: it still
// works.
func TestDoorbellFlood(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	stop, done := make(chan struct{}), make(chan struct{})
	var rung atomic.Uint64
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				c.Ring()
				rung.Add(1)
				osmem.Yield()
			}
		}
	}()
	for i := range uint64(20) {
		for until := rung.Load() + 100; rung.Load() < until; {
			osmem.Yield()
		}
		q.roundTrip(t, i)
	}
	close(stop)
	<-done
	if len(ts.f.causes()) != 0 {
		t.Error("a flood is no violation")
	}
}

// Bells that no QP can have are nobody's.
func TestForgedBells(t *testing.T) {
	ts := newServer(t, "qps=5")
	c := ts.client()
	q := c.newQP()
	for i := range abi.Words(c.page, abi.SessHeaderLen, 1) {
		abi.Word(c.page, abi.SessHeaderLen+4*uint32(i)).Store(^uint32(0))
	}
	q.roundTrip(t, 1)
}

// The pause itself: after 64 barren wakes each further one is a millisecond apart.
func TestBarrenWakesPause(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	wakes := func(n int) time.Duration {
		start := time.Now()
		for range n {
			for abi.Word(c.page, abi.SessSleeping).Load() == 0 { // until the daemon sleeps again
				osmem.Yield()
			}
			abi.Word(c.page, abi.SessSleeping).Store(0)
			c.Ring()
		}
		return time.Since(start)
	}
	wakes(barrenWakes)
	if d := wakes(50); d < 40*barrenPause {
		t.Errorf("50 further wakes took %v", d)
	}
}

// However full the client keeps the doorbell, and whatever it reads away, the session ends.
func TestFullDoorbellDoesNotHoldTheEnd(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	bell, err := unix.Dup(c.bell)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	var full [8]byte
	abi.Order.PutUint64(full[:], ^uint64(0)-1)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				// Fill it if it is empty, and read it away at times.
				unix.SetNonblock(bell, true)
				unix.Write(bell, full[:])
				unix.SetNonblock(bell, false)
			}
		}
	}()
	c.close()
	ts.want("the session is gone", func() bool { return ts.srv.Stats().Sessions == 0 })
	close(stop)
	<-done
}

// What ADD_MEM may bring: docs/abi.md#descriptors.
func TestAddMemChecks(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	seal := unix.F_SEAL_SHRINK
	add := func(fd int) error {
		t.Helper()
		_, err := c.try(rpc.OpAddMem, &rpc.AddMemRequest{}, nil, fd)
		return err
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	c.own = append(c.own, p[:]...)
	disk := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(disk, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	written := c.memfd(4096, seal)
	if _, err := unix.FcntlInt(uintptr(written), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		t.Fatal(err)
	}
	cases := map[string]int{
		"unsealed":                    c.memfd(4096, 0),
		"sealed against growing only": c.memfd(4096, unix.F_SEAL_GROW),
		"empty":                       c.memfd(0, seal),
		"sealed against writing":      written,
		"pipe":                        p[0],
		"directory":                   c.openFile("/", unix.O_RDONLY),
		"file on a disk":              c.openFile(disk, unix.O_RDWR),
		"file of /proc":               c.openFile("/proc/self/mem", unix.O_RDWR),
		"device":                      c.openFile("/dev/zero", unix.O_RDWR),
	}
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		if f, err := os.CreateTemp("/dev/shm", "vrnic-test"); err == nil {
			os.Remove(f.Name())
			f.Truncate(4096)
			defer f.Close()
			cases["file in /dev/shm"] = int(f.Fd())
		}
	}
	if fd, err := unix.MemfdCreate("huge",
		unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB); err == nil {
		c.own = append(c.own, fd)
		unix.Ftruncate(fd, 2<<20)
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
		cases["huge pages"] = fd
	}
	ro := c.memfd(4096, seal)
	cases["read-only"] = c.openFile("/proc/self/fd/"+itoa(ro), unix.O_RDONLY)
	for name, fd := range cases {
		if err := add(fd); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.try(rpc.OpAddMem, &rpc.AddMemRequest{}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no descriptor: %v", err)
	}
	if _, err := c.try(rpc.OpAddMem, &rpc.AddMemRequest{Flags: 1}, nil,
		c.memfd(4096, seal)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("unknown flag: %v", err)
	}
	if err := add(c.memfd(4096, seal)); err != nil {
		t.Errorf("the right one: %v", err)
	}
	if n := len(ts.f.causes()); n != 0 {
		t.Error("an honest mistake ended the session")
	}
}

func itoa(n int) string {
	b := []byte{}
	for ; n > 0 || len(b) == 0; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(b)
}

// What SET_MEM may bring: docs/abi.md#descriptors.
func TestSetMemChecks(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	good := c.openMem()
	set := func(fd int, addr uint64) error {
		t.Helper()
		_, err := c.try(rpc.OpSetMem, &rpc.SetMemRequest{NonceAddr: addr}, nil, fd)
		return err
	}
	// A file that holds the nonce at the right place is not enough.
	lure := c.memfd(1<<20, 0)
	if _, err := unix.Pwrite(lure, c.page[abi.SessNonce:abi.SessNonce+abi.NonceLen],
		65536); err != nil {
		t.Fatal(err)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	c.own = append(c.own, p[:]...)
	// Nor is a file of /proc that holds it: the arguments, which only root may open for writing.
	if fd, err := unix.Open("/proc/self/cmdline", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		c.own = append(c.own, fd)
		args := unsafe.Slice(unsafe.StringData(os.Args[0]), abi.NonceLen)
		was := bytes.Clone(args)
		copy(args, c.page[abi.SessNonce:])
		err := set(fd, 0)
		copy(args, was)
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("arguments with the nonce: %v", err)
		}
	}
	for _, tt := range []struct {
		name string
		fd   int
		addr uint64
	}{
		{"pipe", p[0], 65536},
		{"memfd with the nonce", lure, 65536},
		{"read-only", c.openFile("/proc/self/mem", unix.O_RDONLY), c.nonceAddr()},
		{"write-only", c.openFile("/proc/self/mem", unix.O_WRONLY), c.nonceAddr()},
		{"wrong address", good, c.nonceAddr() + 1},
		{"address below 64 KiB", good, 100},
		{"address that wraps", good, ^uint64(0) - 3},
		{"address beyond files", good, 1 << 63},
		{"unmapped address", good, 1 << 40},
		{"other file of /proc", c.openFile("/proc/self/comm", unix.O_RDWR), 65536},
		{"memory of another session's nonce", good, ts.client().nonceAddr()},
	} {
		if err := set(tt.fd, tt.addr); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := c.try(rpc.OpSetMem, &rpc.SetMemRequest{NonceAddr: c.nonceAddr()}, nil); !errors.Is(
		err, syscall.EINVAL) {
		t.Errorf("no descriptor: %v", err)
	}
	if err := set(good, c.nonceAddr()); err != nil {
		t.Errorf("the right one: %v", err)
	}
	if err := set(good, c.nonceAddr()); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("a second time: %v", err)
	}
}

// Lines are escaped and few: a burst, then one a second.
func TestLogIsLimited(t *testing.T) {
	ts := newServer(t)
	evil := func() {
		c := rawConnect(t, ts.path)
		h := goodHello()
		copy(h.Comm[:], "a\nb\x1b[31m\x00")
		c.do(rpc.OpHello, h, nil)
		c.sendRaw([]byte{1})
		c.recv()
		c.close()
	}
	for range 3 * limitlog.Burst {
		evil()
	}
	ts.want("all are counted", func() bool { return ts.srv.Stats().Violations == 3*limitlog.Burst })
	log := ts.log.String()
	if n := strings.Count(log, "\n"); n != limitlog.Burst || strings.Contains(log, "\x1b") {
		t.Errorf("%d lines: %q", n, log)
	}
	ts.mu.Lock()
	ts.now = ts.now.Add(limitlog.Interval)
	ts.mu.Unlock()
	evil()
	ts.want("one more line", func() bool {
		return strings.Count(ts.log.String(), "\n") == limitlog.Burst+1
	})
	if !strings.Contains(ts.log.String(), "dropped_before=20") {
		t.Errorf("what was left out is not counted: %q", ts.log.String())
	}
}

// A client that leaves its tokens in the pipe loses some; the daemon does not wait for it.
func TestUnreadTokensDoNotBlock(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	size, err := unix.FcntlInt(uintptr(q.pipe), unix.F_SETPIPE_SZ, 4096)
	if err != nil {
		t.Fatal(err)
	}
	for i := range size + 100 {
		q.c.Arm(false)
		q.m.SQ.Put(&abi.SendWQE{WRID: uint64(i)})
		q.m.SQ.Commit()
		q.ringer.Ring(q.bell)
		var ok bool
		for end := time.Now().Add(time.Minute); !ok; osmem.Yield() {
			if _, ok, err = q.ch.Pop(); err != nil || time.Now().After(end) {
				t.Fatalf("event %d: %v; arm %d, bells %#x, sleeping %d, sq_done %d of %d, causes %v, log %q", i,
					err, abi.Word(q.cqMem, abi.CQArm).Load(),
					abi.Word(c.page, abi.SessHeaderLen).Load(), abi.Word(c.page, abi.SessSleeping).Load(),
					q.m.SQ.Done(), q.m.SQ.Posted(), ts.f.causes(), ts.log)
			}
		}
		q.c.TakeEvent()
		if ok, err := q.c.Poll(new(abi.CQE)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	ts.want("a full pipe", func() bool {
		n, err := unix.IoctlGetInt(q.pipe, unix.TIOCINQ)
		return n == size && err == nil
	})
}
