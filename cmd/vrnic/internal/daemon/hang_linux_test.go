package daemon_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// A FUSE file system with one file, "page", of 1 MiB, whose content never comes: a copy to or from
// a mapping of it hangs, deaf to SIGKILL, until the file system's process has ended. It is a
// process of its own, since ours could not end either. Others leave another request about the file
// unanswered.

const hungSize = 1 << 20

// The opcodes of the kernel's requests that matter here: include/uapi/linux/fuse.h.
const (
	fuseLookup, fuseForget, fuseGetattr, fuseOpen, fuseRead       = 1, 2, 3, 14, 15
	fuseRelease, fuseFlush, fuseInit, fuseInterrupt, fuseBatchFgt = 18, 25, 26, 36, 42
)

// TestHelperFUSE is the file system at args[0], until it is killed. It never answers requests
// args[1] about the file.
func TestHelperFUSE(t *testing.T) {
	args := daemontest.Child(t)
	dir := args[0]
	never, err := strconv.Atoi(args[1])
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("vrnic", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
			fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	}
	if err != nil {
		daemontest.Tell("cannot", err)
		return
	}
	daemontest.Tell("mounted")
	ne := binary.NativeEndian
	in, out := make([]byte, 1<<18), make([]byte, 256)
	for {
		n, err := unix.Read(fd, in)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		op, node := ne.Uint32(in[4:]), ne.Uint64(in[16:])
		clear(out)
		b := out[16:]
		attr := func(b []byte, node uint64) {
			ne.PutUint64(b, node)
			ne.PutUint64(b[8:], hungSize)
			mode := uint32(unix.S_IFREG | 0o600)
			if node == 1 {
				mode = unix.S_IFDIR | 0o700
			}
			ne.PutUint32(b[60:], mode)
			ne.PutUint32(b[64:], 1)
		}
		if int(op) == never && node == 2 {
			daemontest.Tell("asked")
			continue
		}
		size, errno := 0, 0
		switch op {
		case fuseForget, fuseBatchFgt, fuseInterrupt:
			continue
		case fuseInit:
			ne.PutUint32(b, 7)
			ne.PutUint32(b[4:], 31)
			ne.PutUint32(b[20:], 1<<16) // max_write
			size = 64
		case fuseLookup:
			if !strings.HasPrefix(string(in[40:n]), "page\x00") {
				errno = int(unix.ENOENT)
				break
			}
			ne.PutUint64(b, 2)
			attr(b[40:], 2)
			size = 128
		case fuseGetattr:
			attr(b[16:], node)
			size = 104
		case fuseOpen:
			size = 16
		case fuseRelease, fuseFlush:
		default:
			errno = int(unix.ENOSYS)
		}
		ne.PutUint32(out, uint32(16+size))
		ne.PutUint32(out[4:], uint32(-errno))
		copy(out[8:16], in[8:16])
		if _, err := unix.Write(fd, out[:16+size]); err != nil && !errors.Is(err, unix.ENOENT) {
			return
		}
	}
}

// hungFile is a file about which requests of one kind hang until the process that is returned has
// been killed.
func hungFile(t *testing.T, never int) (path string, fs *daemontest.ChildProcess) {
	t.Helper()
	needtest.Root(t) // to mount
	if _, err := os.Stat("/dev/fuse"); err != nil {
		needtest.Lacking(t, "fuse", err)
	}
	dir := t.TempDir()
	fs = daemontest.StartChild(t, "TestHelperFUSE", dir, strconv.Itoa(never))
	t.Cleanup(func() {
		fs.Kill()
		unix.Unmount(dir, unix.MNT_DETACH) // it may never have been mounted
	})
	if fs.Line() != "mounted" {
		needtest.Lacking(t, "fuse", "it cannot be mounted here")
	}
	return filepath.Join(dir, "page"), fs
}

// The clients' regions on the file begin here, each connection's part of it hungPart further on.
const hungIOVA, hungPart = rawIOVA << 1, 64 << 10

// TestHelperHung is a client whose memory is a mapping of the file args[1]. It connects to the
// other args, sends from it to the even ones, and tells the key to the odd ones, who write there.
func TestHelperHung(t *testing.T) {
	args := daemontest.Child(t)
	f, err := os.OpenFile(args[1], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	page, err := unix.Mmap(int(f.Fd()), 0, hungSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	e := newRawPartsAt(t, args[0], 0, 1<<16)
	mr := e.RegMR(e.pd, page, hungIOVA, uint32(rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead))
	var qps []*shmtest.RawQP
	for _, addr := range args[2:] {
		e.qp = e.QP(e.pd, e.cq, e.cq, rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4})
		e.connect(netip.MustParseAddrPort(addr))
		qps = append(qps, e.qp)
	}
	daemontest.Tell("key", mr.RKey)
	for i, qp := range qps {
		if i%2 == 1 {
			continue
		}
		qp.PostSend(func(w *abi.SendWQE) {
			w.Op, w.Flags, w.NumSGE = 2, abi.SQSignaled, 1
			w.SGE[0] = abi.SGE{Addr: hungIOVA + uint64(i)*hungPart, Length: 1000, LKey: mr.LKey}
		})
	}
	time.Sleep(time.Hour) // until it is killed
}

// A client whose memory hangs, in the midst of copies out of it and into it, within its device and
// over TCP, holds up nobody but itself: others' messages, new sessions and lists go on. When it is
// killed its peers see that at once, and its session is stuck until the last copy is back.
func TestMemoryHangs(t *testing.T) {
	wantSoon(t, 2*time.Second, func() time.Duration { return memoryHangs(t) })
}

// memoryHangs returns how long the last of the peers took to see that the client has been killed.
func memoryHangs(t *testing.T) (took time.Duration) {
	file, fs := hungFile(t, fuseRead)
	d := daemontest.Start(t)
	t.Cleanup(fs.Kill) // before the daemon waits for its sessions
	admin := d.Dial()
	x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 1<<16)
	y := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 1<<16)
	daemontest.Connect(t, x, y, daemontest.Addr(t, y.Dev, false, 0))
	id := uint64(0)
	others := func(when string) {
		t.Helper()
		id++
		y.Recv(id, 0, 64)
		x.Write(id, 0, 1<<16, y, 0)
		x.WantOK(when, id, rdma.WCWrite)
		x.Send(id, 0, 64)
		x.WantOK(when, id, rdma.WCSend)
		y.WantOK(when, id, rdma.WCRecv)
		if _, err := admin.List("qp"); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		d.Dial().Close()
	}
	others("before")

	args := []string{d.Socket(), file}
	var peers []*daemontest.End
	var accepts []func()
	for _, device := range []string{"vrnic0", "vrnic0", "vrnic1", "vrnic1"} {
		p := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), device), 1<<16)
		addr, accepted := accept(t, p)
		args, accepts, peers = append(args, addr.String()), append(accepts, accepted), append(peers, p)
	}
	client := daemontest.StartChild(t, "TestHelperHung", args...)
	for _, accepted := range accepts {
		accepted()
	}
	rkey, err := strconv.ParseUint(client.Want("key"), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range peers {
		if i%2 == 0 {
			p.Recv(1, 0, 1000)
			continue
		}
		p.Post(&rdma.SendWR{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{
			p.SGE(0, 1000)},
			RemoteAddr: hungIOVA + uint64(i)*hungPart, RKey: uint32(rkey)})
	}
	for range peers {
		fs.Want("asked")
	}
	session := func() (copies int, state string) {
		rows, err := admin.List("client")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if c := clientRow(t, r); int(c.PID) == client.PID() {
				return c.Copies, c.State
			}
		}
		return 0, "gone"
	}
	if n, s := session(); n != len(peers) {
		t.Fatalf("%d copies are under way, session %q", n, s)
	}
	others("while copies hang")
	client.Kill()
	killed := time.Now()
	for _, p := range peers {
		wantDone(t, p)
	}
	took = time.Since(killed)
	others("while the session ends")
	if !needtest.Becomes(func() bool { _, s := session(); return s == "stuck" }) {
		n, s := session()
		t.Errorf("%d copies, session %q, want stuck", n, s)
	}
	fs.Kill()
	if !needtest.Becomes(func() bool { _, s := session(); return s == "gone" }) {
		t.Error("the session is there though no copy hangs")
	}
	others("afterwards")
	return took
}

// The ways in which TestHelperLends hands a descriptor to the daemon, and the requests about its
// file that have no answer then.
var hangingLends = []struct {
	name  string
	never int
	lend  func(e *rawEnd, fd int) error
}{
	{"memory to share, as it is closed", fuseFlush, func(e *rawEnd, fd int) error {
		_, err := e.Call(rpc.OpAddMem, &rpc.AddMemRequest{}, nil, fd)
		return err
	}},
	{"own memory, as the page is read that tells whose it is", fuseRead, func(e *rawEnd,
		fd int) error {
		page, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		_, err = e.Call(rpc.OpSetMem, &rpc.SetMemRequest{NonceAddr: shmtest.Addr(page)}, nil,
			e.OpenMem(os.O_RDWR))
		return err
	}},
}

// TestHelperLends is a client of the daemon at args[0], with a QP that it connects to args[1]. Then
// it hands the file args[2] over, in the way of number args[3]. It is a process of its own, since
// its memory can hang.
func TestHelperLends(t *testing.T) {
	args := daemontest.Child(t)
	n, err := strconv.Atoi(args[3])
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(args[2], unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	e := &rawEnd{RawClient: shmtest.NewRaw(t, args[0]).Hello()}
	ctx := e.Ctx(0)
	e.pd, e.cq = e.PD(ctx), e.CQ(ctx, 8, 0)
	e.qp = e.QP(e.pd, e.cq, e.cq, rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4})
	e.connect(netip.MustParseAddrPort(args[1]))
	if err := hangingLends[n].lend(e, fd); errors.Is(err, shmtest.ErrHungUp) {
		daemontest.Tell("ended")
	} else {
		daemontest.Tell("goes on", err)
	}
	time.Sleep(time.Hour) // until it is killed
}

// stateOf is the state of the session of a process, as `vrnic show client` has it.
func stateOf(t *testing.T, admin *shm.Client, pid int) string {
	t.Helper()
	rows, err := admin.List("client")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if c := clientRow(t, r); int(c.PID) == pid {
			return c.State
		}
	}
	return "gone"
}

// A client hands the daemon a descriptor whose file system does not answer when the daemon looks at
// it, or closes it. Nobody else notices, its peers see soon that it has gone, and it keeps its
// place until the file system has ended.
func TestDescriptorHangs(t *testing.T) {
	for n, tt := range hangingLends {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path, fs := hungFile(t, tt.never)
			d := daemontest.Start(t)
			t.Cleanup(fs.Kill) // before the daemon waits for its sessions
			admin := d.Dial()
			p := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 4096)
			addr, accepted := accept(t, p)
			client := daemontest.StartChild(t, "TestHelperLends", d.Socket(), addr.String(), path,
				strconv.Itoa(n))
			t.Cleanup(fs.Kill) // before the client, which may not be able to end
			accepted()
			fs.Want("asked")
			if w := client.Line(); w != "ended" {
				t.Fatalf("the client's session %s", w)
			}
			wantDone(t, p)
			state := func() string { return stateOf(t, admin, client.PID()) }
			if s := state(); s == "gone" {
				t.Error("the session has given up its place")
			}
			d.Dial().Close()
			fs.Kill()
			if !needtest.Becomes(func() bool { return state() == "gone" }) {
				t.Errorf("the session is %s though nothing hangs", state())
			}
		})
	}
}

// TestHelperHolds is a client of the daemon at args[0] with a QP, to whose memory it writes from a
// mapping of the file args[1], and for ever: it has the kernel's lock of that memory then. Then it
// goes, or first destroys the QP if args[2] says so. It is a process of its own, since its memory
// hangs.
func TestHelperHolds(t *testing.T) {
	args := daemontest.Child(t)
	f, err := os.OpenFile(args[1], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	page, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	r := shmtest.NewRaw(t, args[0]).Hello()
	ctx := r.Ctx(0)
	pd, cq := r.PD(ctx), r.CQ(ctx, 8, 0)
	var qp rpc.CreateQPReply
	mem := r.Must(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: pd, SendCQ: cq.Handle, RecvCQ: cq.Handle,
		Caps: rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4}}, &qp)[0]
	tid := make(chan int)
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		unix.Pwrite(mem, page, 0)
	}()
	within := fmt.Sprintf("/proc/self/task/%d/syscall", <-tid) // of who waits in it
	if !needtest.Becomes(func() bool {
		b, _ := os.ReadFile(within)
		return strings.HasPrefix(string(b), fmt.Sprint(unix.SYS_PWRITE64, " "))
	}) {
		daemontest.Tell("free")
		return
	}
	if args[2] == "destroys" {
		_, err := r.Call(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: qp.QP}, nil)
		daemontest.Tell("destroyed", err)
	} else {
		r.Conn.Close()
		daemontest.Tell("closed")
	}
	time.Sleep(time.Hour) // until it is killed
}

// A client can keep the kernel's lock of memory that the daemon is to give back. Nobody else waits:
// clients are listed, come and go, and others' messages come. The client keeps its place until the
// lock is free.
func TestRingsThatAreHeld(t *testing.T) {
	for does, want := range map[string]string{"closes": "closed", "destroys": "destroyed"} {
		t.Run(does, func(t *testing.T) {
			t.Parallel()
			path, fs := hungFile(t, fuseRead)
			d := daemontest.Start(t)
			t.Cleanup(fs.Kill) // before the daemon waits for its sessions
			admin := d.Dial()
			client := daemontest.StartChild(t, "TestHelperHolds", d.Socket(), path, does)
			t.Cleanup(fs.Kill) // before the client, which cannot end
			fs.Want("asked")
			if w := client.Line(); !strings.HasPrefix(w, want) {
				t.Fatalf("the client %q, want %q", w, want)
			}
			state := func() string { return stateOf(t, admin, client.PID()) }
			if !needtest.Becomes(func() bool { return state() == "ending" }) {
				t.Errorf("the session is %s, want ending", state())
			}
			x := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 4096)
			y := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 4096)
			daemontest.Connect(t, x, y, daemontest.Addr(t, y.Dev, false, 0))
			y.Recv(1, 0, 64)
			x.Send(1, 0, 64)
			x.WantOK("beside it", 1, rdma.WCSend)
			y.WantOK("beside it", 1, rdma.WCRecv)
			if s := state(); s != "ending" {
				t.Errorf("the session is %s though its memory hangs", s)
			}
			fs.Kill()
			if !needtest.Becomes(func() bool { return state() == "gone" }) {
				t.Errorf("the session is %s though nothing hangs", state())
			}
		})
	}
}
