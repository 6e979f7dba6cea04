package server

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// lend makes a region of a fresh mem, and returns the client's view and the daemon's.
func (c *rawClient) lend(ts *testServer, q *rawQP, size int, off, length uint64) ([]byte,
	*osmem.Memory, *rpc.RegMRReply, uint32) {
	c.t.Helper()
	fd := c.memfd(int64(size), unix.F_SEAL_SHRINK)
	view := c.mmap(fd)
	var m rpc.AddMemReply
	c.do(rpc.OpAddMem, &rpc.AddMemRequest{}, &m, fd)
	if m.Size != uint64(size) {
		c.t.Fatalf("size %d, want %d", m.Size, size)
	}
	var mr rpc.RegMRReply
	c.do(rpc.OpRegMR, &rpc.RegMRRequest{PD: q.pd, Mode: rpc.ModeShared, Mem: m.Mem, Offset: off,
		Length: length, IOVA: 1 << 40, Access: 1 | 1<<20}, &mr)
	return view, ts.memory(mr.LKey), &mr, m.Mem
}

// memory is what the (only) handler got for a key.
func (ts *testServer) memory(key uint32) *osmem.Memory {
	ts.f.mu.Lock()
	defer ts.f.mu.Unlock()
	for h := range ts.f.sessions {
		if m := h.mrs[key]; m != nil {
			return m
		}
	}
	ts.t.Fatalf("no region %d", key)
	return nil
}

func TestSharedMemory(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	view, m, mr, mem := c.lend(ts, q, 16384, 100, 5000)
	if !m.Shared() || m.Len() != 5000 {
		t.Errorf("shared %v, %d octets", m.Shared(), m.Len())
	}
	if err := m.WriteAt([]byte("hello"), 4995); err != nil || !bytes.Equal(view[5095:5100],
		[]byte("hello")) {
		t.Errorf("write: %v, %q", err, view[5095:5100])
	}
	copy(view[100:], "abc")
	b := make([]byte, 3)
	if err := m.ReadAt(b, 0); err != nil || string(b) != "abc" {
		t.Errorf("read: %v, %q", err, b)
	}
	for _, off := range []uint64{4998, 5001, 1 << 63, ^uint64(0), ^uint64(0) - 1} {
		if err := m.ReadAt(b, off); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("read of 3 at %d: %v", off, err)
		}
		if err := m.WriteAt(b, off); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("write of 3 at %d: %v", off, err)
		}
	}
	for name, req := range map[string]*rpc.RegMRRequest{
		"beyond the mem": {PD: q.pd, Mode: rpc.ModeShared, Mem: mem, Offset: 16000, Length: 400},
		"offset beyond":  {PD: q.pd, Mode: rpc.ModeShared, Mem: mem, Offset: 16385},
		"offset wraps":   {PD: q.pd, Mode: rpc.ModeShared, Mem: mem, Offset: ^uint64(0), Length: 2},
		"iova wraps":     {PD: q.pd, Mode: rpc.ModeShared, Mem: mem, IOVA: ^uint64(0) - 1, Length: 3},
		"unknown mode":   {PD: q.pd, Mode: 2, Mem: mem},
		"unknown access": {PD: q.pd, Mode: rpc.ModeShared, Mem: mem, Access: 1 << 5},
		"mode 0, no fd":  {PD: q.pd, Mode: rpc.ModeApp, Addr: 65536, Length: 1},
		"length of 2^47": {PD: q.pd, Mode: rpc.ModeShared, Mem: mem, Length: 1 << 47},
	} {
		if _, err := c.try(rpc.OpRegMR, req, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// After DEREG_MR nothing is reached through it, also by a handler that kept it, once the mem
	// has gone too.
	c.do(rpc.OpDeregMR, &rpc.HandleRequest{Handle: mr.MR}, nil)
	c.do(rpc.OpDelMem, &rpc.HandleRequest{Handle: mem}, nil)
	if err := m.ReadAt(b, 0); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("read of a region that is gone: %v", err)
	}
	q.roundTrip(t, 9) // nothing faulted
	if len(ts.f.causes()) != 0 {
		t.Errorf("the session ended: %v", ts.f.causes())
	}
}

func TestSharedMemoryDoesNotAllocate(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	_, m, _, _ := c.lend(ts, q, 4096, 0, 4096)
	b := make([]byte, 1000)
	if n := testing.AllocsPerRun(100, func() { m.ReadAt(b, 5); m.WriteAt(b, 7) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A mapping that faults in spite of the seals ends its session, not the daemon.
func TestFaultEndsTheSession(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	path := filepath.Join(t.TempDir(), "f")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Truncate(8192)
	r, err := osmem.MapRegion(int(f.Fd()), 8192, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	f.Truncate(0)
	ts.f.mu.Lock()
	var s *Session
	for h := range ts.f.sessions {
		s = h.s
	}
	ts.f.mu.Unlock()
	m := osmem.SharedMemory(r, 0, 8192, s.Fail)
	defer m.Close()
	if err := m.ReadAt(make([]byte, 10), 0); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("read: %v", err)
	}
	if err := m.WriteAt(make([]byte, 10), 0); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("write: %v", err)
	}
	if _, _, _, ended := c.recv(); !ended {
		t.Error("the session goes on")
	}
	ts.want("a violation", func() bool { return ts.srv.Stats().Violations == 1 })
	// Other panics are not swallowed.
	defer func() {
		if recover() == nil {
			t.Error("a bug was taken for a fault")
		}
	}()
	long := osmem.SharedMemory(r, 0, 1<<20, s.Fail)
	defer long.Close()
	long.ReadAt(make([]byte, 10), 10000)
}

// Mode 0: the program's own memory, through its mem descriptor.
func TestAppMemory(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	c.do(rpc.OpSetMem, &rpc.SetMemRequest{NonceAddr: c.nonceAddr()}, nil, c.openMem())
	fd := c.memfd(3*4096, 0)
	buf := c.mmap(fd)
	base := uint64(uintptrOf(buf))
	reg := func(addr, n uint64) (*osmem.Memory, error) {
		var mr rpc.RegMRReply
		if _, err := c.try(rpc.OpRegMR, &rpc.RegMRRequest{PD: q.pd, Mode: rpc.ModeApp, Addr: addr,
			Length: n, IOVA: addr}, &mr); err != nil {
			return nil, err
		}
		return ts.memory(mr.LKey), nil
	}
	m, err := reg(base+10, 8000)
	if err != nil {
		t.Fatal(err)
	}
	if m.Shared() {
		t.Error("own memory is not shared memory")
	}
	if err := m.WriteAt([]byte("hello"), 7995); err != nil || string(buf[8005:8010]) != "hello" {
		t.Errorf("write: %v, %q", err, buf[8005:8010])
	}
	b := make([]byte, 5)
	if err := m.ReadAt(b, 7995); err != nil || string(b) != "hello" {
		t.Errorf("read: %v, %q", err, b)
	}
	if err := m.ReadAt(b, 7996); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("read beyond the region: %v", err)
	}
	// A hole in the middle: a short transfer is an error.
	if err := unix.Mprotect(buf[:4096], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	hole := c.mmap(c.memfd(2*4096, 0))
	hm, err := reg(uint64(uintptrOf(hole)), 3*4096)
	if err != nil {
		t.Fatal(err)
	}
	unmapTail(hole)
	if err := hm.ReadAt(make([]byte, 8192), 0); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("read over a hole: %v", err)
	}
	if err := hm.WriteAt(make([]byte, 8192), 0); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("write over a hole: %v", err)
	}
	for _, x := range [][2]uint64{{^uint64(0) - 5, 10}, {1<<63 - 5, 10}, {1 << 63, 1}} {
		if _, err := reg(x[0], x[1]); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("address %#x: %v", x[0], err)
		}
	}
}

// A copy that hangs keeps its session's place in the quotas, and `show client` says so.
func TestStuckSession(t *testing.T) {
	ts := newServer(t, "sessions=1")
	ts.strangers.Store(true)
	c := ts.client()
	c.do(rpc.OpSetMem, &rpc.SetMemRequest{NonceAddr: c.nonceAddr()}, nil, c.openMem())
	ts.f.mu.Lock()
	var s *Session
	for h := range ts.f.sessions {
		s = h.s
	}
	ts.f.mu.Unlock()
	release := make(chan struct{})
	s.mu.Lock()
	app := s.app
	s.mu.Unlock()
	s.Go(func() { // as a copy into a page that nobody serves
		app.Begin()
		<-release
		app.End()
	})
	ts.want("the copy has begun", func() bool { return ts.srv.Clients()[0].Copies == 1 })
	c.close()
	ts.want("the session is stuck", func() bool {
		r := ts.srv.Clients()
		return len(r) == 1 && r[0].State == "stuck"
	})
	if ts.srv.Stats().Mappings == 0 {
		t.Error("its memory was given back while a goroutine is in it")
	}
	other := rawConnect(t, ts.path)
	if _, err := other.try(rpc.OpHello, goodHello(), nil); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("its place is taken: %v", err)
	}
	close(release)
	ts.want("it is gone", func() bool { return len(ts.srv.Clients()) == 0 })
}
