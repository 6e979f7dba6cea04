package sessiontest

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// What regions may be, and how the daemon is told where their octets are.
func TestMemoryRegions(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		name, mr string // kind, length, offset, access in hexadecimal
		answer   string
		mode     uint32
		offset   uint64
	}{
		{"heap", "malloc 100 3 1", "ok", rpc.ModeApp, 0},
		{"wishes", "malloc 100 0 3ff0001f", "ok", rpc.ModeApp, 0},
		{"local read", "malloc 100 0 0", "ok", rpc.ModeApp, 0},
		{"remote write without local write", "malloc 100 0 2", "EINVAL", 0, 0},
		{"remote atomic without local write", "malloc 100 0 8", "EINVAL", 0, 0},
		{"zero based", "malloc 100 0 20", "EINVAL", 0, 0},
		{"on demand", "malloc 100 0 41", "ok", rpc.ModeApp, 0},
		{"on demand, not there yet", "hole 8192 0 41", "ok", rpc.ModeApp, 0},
		{"on demand, in large pages", "malloc 100 0 c1", "ok", rpc.ModeApp, 0},
		{"on demand, no octets", "malloc 0 0 41", "EINVAL", 0, 0},
		{"unknown", "malloc 100 0 40000000", "EINVAL", 0, 0},
		{"no octets", "malloc 0 0 1", "EINVAL", 0, 0},
		{"nothing there", "null 100 0 1", "EFAULT", 0, 0},
		{"a page missing", "hole 8192 0 1", "EFAULT", 0, 0},
		{"all of memory", "malloc -1 0 1", "EINVAL", 0, 0},
		{"no access", "none 8192 0 0", "EFAULT", 0, 0},
		{"no access, long", "none 4194304 0 1", "EFAULT", 0, 0},
		{"no access in the middle", "guarded 4194304 0 1", "EFAULT", 0, 0},
		{"read only", "readonly 8192 0 0", "ok", rpc.ModeApp, 0},
		{"read only, long", "readonly 4194304 0 0", "ok", rpc.ModeApp, 0},
		{"read only, to be written", "readonly 8192 0 1", "EFAULT", 0, 0},
		{"read only, long, to be written", "readonly 4194304 0 1", "EFAULT", 0, 0},
		{"read only, with windows", "readonly 8192 0 10", "EFAULT", 0, 0},
		{"a program's text", "text 64 0 0", "ok", rpc.ModeApp, 0},
		{"a program's text, to be written", "text 64 0 1", "EFAULT", 0, 0},
		{"long", "malloc 4194304 5 1", "ok", rpc.ModeApp, 0},
		{"vrnic_alloc", "alloc 8192 100 1", "ok", rpc.ModeShared, 100},
		{"memfd", "memfd 8192 5 1", "ok", rpc.ModeShared, 4096 + 5},
		{"memfd, small", "memfd 4095 0 1", "ok", rpc.ModeApp, 0},
		{"memfd that may shrink", "memfd-open 8192 0 1", "ok", rpc.ModeApp, 0},
		{"memfd that was closed", "memfd-closed 8192 0 1", "ok", rpc.ModeApp, 0},
		{"copy on write of a memfd", "memfd-private 8192 0 1", "ok", rpc.ModeApp, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.answer == "EFAULT" {
				ctest.Native(t, noMadvise)
			}
			f := newFake(t, nil)
			p := open(t, f)
			p.want("pd", "ok")
			got := p.do("mr " + tt.mr)
			if tt.answer != "ok" {
				if got != tt.answer {
					t.Fatalf("answer %q, want %q", got, tt.answer)
				}
				p.want("delpd 0", "ok")
				return
			}
			s := f.session(0)
			r := last[rpc.RegMRRequest](t, s)
			if r.Mode != tt.mode || r.Offset != tt.offset || (r.Mem != 0) != (r.Mode == rpc.ModeShared) ||
				r.Addr != r.IOVA || r.Access>>20 != 0 {
				t.Errorf("registered as %+v, want mode %d, offset %d", r, tt.mode, tt.offset)
			}
			p.want("delpd 0", "EBUSY", "delmr 0", "ok", "delpd 0", "ok")
			s.mu.Lock()
			defer s.mu.Unlock()
			if lent := s.mem >= 0; lent != (tt.mode == rpc.ModeApp) {
				t.Errorf("lent its memory: %v", lent)
			}
		})
	}
}

// Two regions in one memfd share it, and it is taken back with the last.
func TestSharedTwice(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("pd", "ok", "mr alloc 8192 0 1", "ok", "again 4096", "ok", "delmr 0", "ok", "delmr 1", "ok",
		"again 100", "ok", "free", "ok", "delmr 2", "ok")
	s := f.session(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	added := 0
	for _, r := range s.reqs {
		if _, ok := r.(*rpc.AddMemRequest); ok {
			added++
		}
	}
	if h := s.reqs[len(s.reqs)-1].(*rpc.HandleRequest).Handle; added != 1 || h != s.mem1 {
		t.Errorf("shared %d times as %d, the last request was for %d", added, s.mem1, h)
	}
}

// What the daemon gets is this process's memory, and the nonce is where the library says.
func TestLentMemory(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("pd", "ok", "mr malloc 100 0 1", "ok", "mr malloc 100 0 1", "ok") // once for both
	s := f.session(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	got := make([]byte, abi.NonceLen)
	if n, err := unix.Pread(s.mem, got, int64(s.nonce)); n != len(got) || err != nil ||
		!bytes.Equal(got, s.page[abi.SessNonce:][:abi.NonceLen]) {
		t.Errorf("read %d octets (%v): %x", n, err, got)
	}
}

func TestReregister(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("pd", "ok", "pd", "ok", "mr malloc 8192 0 1", "ok",
		"rereg 0 0 0", "-1 EINVAL", "rereg 0 8 0", "-1 EINVAL", "rereg 0 4 2", "-1 EINVAL", "rereg 0 2 1",
		"-1 EINVAL",
		"rereg 0 7 3", "0 ok", "delpd 0", "ok", "delpd 1", "EBUSY")
	s := f.session(0)
	r := last[rpc.ReregMRRequest](t, s)
	if r.Flags != 7 || r.New.PD != s.pd || r.New.Access != 3 || r.New.Length != 4096 ||
		r.New.Addr == 0 || r.New.IOVA != r.New.Addr {
		t.Errorf("changed by %+v", r)
	}
	p.want("delmr 0", "ok", "delpd 1", "ok")
}

// A region does not get rights that its memory does not have.
func TestReregisterReadOnly(t *testing.T) {
	ctest.Native(t, noMadvise)
	need(t)
	open(t, newFake(t, nil)).want("pd", "ok", "pd", "ok", "mr readonly 8192 0 0", "ok",
		"rereg 0 4 1", "-1 EFAULT", "rereg 0 2 0", "0 ok", "rereg 0 6 1", "-1 EFAULT", "delmr 0", "ok")
}

func TestWindows(t *testing.T) {
	need(t)
	p := open(t, newFake(t, nil))
	p.want("pd", "ok", "mw 1", "ok", "mw 2", "ok", "delpd 0", "EBUSY", "delmw 0", "ok", "delpd 0",
		"EBUSY", "delmw 1", "ok", "delpd 0", "ok")
}

// A program whose memory the kernel protects from other processes can register what it shares, and
// is told of the rest.
func TestNotDumpable(t *testing.T) {
	b := need(t)
	needtest.Root(t) // for a daemon of root
	f := newFake(t, nil)
	openTo(t, f)
	p := startAs(t, b.shell, f.path, nobody)
	p.want("open", "ok", "nodump", "ok", "pd", "ok", "mr malloc 100 0 1", "EACCES",
		"mr malloc 100 0 1", "EACCES", "mr alloc 8192 0 1", "ok", "delmr 0", "ok")
	if s := p.said(); strings.Count(s, "cannot lend its memory") != 1 {
		t.Errorf("said %q", s)
	}
}

// What libvrnic-heap.so gives out is found and shared as a memfd of the program's own, and the rest
// of the program's memory is not lent for it.
func TestLentHeap(t *testing.T) {
	b := need(t)
	if ctest.Sanitized("") {
		needtest.Skip(t, "a sanitizer has a malloc of its own")
	}
	f := newFake(t, nil)
	p := open(t, f, "LD_PRELOAD="+filepath.Join(b.libs, "libvrnic-heap.so"))
	p.want("pd", "ok", "mr malloc 65536 100 1", "ok", "mr malloc 100000 0 1", "ok")
	s := f.session(0)
	first := last[rpc.RegMRRequest](t, s)
	p.want("mr malloc 40000000 5 1", "ok")
	second := last[rpc.RegMRRequest](t, s)
	if first.Mode != rpc.ModeShared || second.Mode != rpc.ModeShared || second.Offset != 5 ||
		first.Mem == second.Mem {
		t.Errorf("registered as %+v, and what is larger as %+v", first, second)
	}
	s.mu.Lock()
	if s.mem >= 0 {
		t.Error("the program has lent all its memory")
	}
	s.mu.Unlock()
	p.want("mr malloc 65535 0 1", "ok")
	if r := last[rpc.RegMRRequest](t, s); r.Mode != rpc.ModeApp {
		t.Errorf("what is small was registered as %+v", r)
	}
}
