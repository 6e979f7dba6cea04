package sessiontest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// open starts a program that has the first device open.
func open(t testing.TB, f *fake, env ...string) *program {
	t.Helper()
	p := start(t, f.path, env...)
	p.want("open", "ok")
	return p
}

func TestDevices(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := start(t, f.path)
	p.want("list", "2 fake0 fake1", "open fake1", "ok", "device", "ok", "queries 3", "ok",
		"close", "ok")

	p = start(t, f.path, "VRNIC_DEVICE=fake1")
	p.want("list", "1 fake1", "open fake0", "ENODEV", "open", "ok")

	p = start(t, f.path, "VRNIC_DEVICE=fake2")
	p.want("list", "0", "open", "ENODEV")
}

// Without a daemon there is one line that says what to do.
func TestNoDaemon(t *testing.T) {
	need(t)
	for _, tt := range []struct{ name, socket, answer, text string }{
		{"none", t.TempDir() + "/none", "ENOENT", "start one with \"vrnic up\""},
		{"long", strings.Repeat("x", 200), "ENAMETOOLONG", "too long"},
		{"file", os.Args[0], "ECONNREFUSED", "start one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := start(t, tt.socket)
			p.want("list", tt.answer, "list", tt.answer, "open", tt.answer)
			if s := p.said(); strings.Count(s, tt.text) != 1 {
				t.Errorf("%q does not say %q once", s, tt.text)
			}
		})
	}
}

func TestOtherVersion(t *testing.T) {
	need(t)
	f := newFake(t, func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
		h, body, _ := rpc.ParseMessage(msg)
		var rep rpc.HelloReply
		if err := rpc.Decode(body, &rep); err != nil {
			t.Error(err)
		}
		rep.Major, rep.Minor = 7, 3
		closeAll(fds)
		h.Status = -int32(unix.EPROTONOSUPPORT)
		return rpc.AppendMessage(nil, h, &rep), nil
	})
	p := start(t, f.path)
	p.want("list", "EPROTONOSUPPORT")
	if want := fmt.Sprintf("version 7.3 of the ring ABI, this library %d.%d", abi.Major,
		abi.Minor); !strings.Contains(p.said(), want) {
		t.Errorf("%q does not say %q", p.errs, want)
	}
}

// refuseChan is a daemon that refuses channels for want of memory, and says why; it calls told each
// time.
func refuseChan(why string, told func()) func(rpc.Op, []byte, []int) ([]byte, []int) {
	return func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
		h, _, _ := rpc.ParseMessage(msg)
		if op != rpc.OpCreateChan {
			return msg, fds
		}
		closeAll(fds)
		h.Status = -int32(unix.ENOMEM)
		rep := &rpc.Refusal{}
		copy(rep.Why[:], why)
		told()
		return rpc.AppendMessage(nil, h, rep), nil
	}
}

// Why a request was refused is said once, without what a terminal would obey.
func TestRefusal(t *testing.T) {
	need(t)
	f := newFake(t, refuseChan("over the limit of 7 \x1b[31mchannels", func() {}))
	p := open(t, f)
	p.want("chan", "ENOMEM", "chan", "ENOMEM")
	if n := strings.Count(p.said(), "refused a request: over the limit of 7 ?[31mchannels\n"); n != 1 {
		t.Errorf("%q says it %d times", p.errs, n)
	}
}

// Nobody reads what the program writes on standard error: the thread that says why it was refused
// hangs there, and no other one does.
func TestRefusalNobodyReads(t *testing.T) {
	ctest.Native(t, "the program is a script of this machine's shell")
	b := need(t)
	refused := make(chan struct{}, 10)
	f := newFake(t, refuseChan("over the limit", func() { refused <- struct{}{} }))
	dir := t.TempDir()
	fifo, script := filepath.Join(dir, "errors"), filepath.Join(dir, "shell")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(fifo, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for err = nil; err == nil; {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	if err := os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' 2>'%s'\n", b.shell, fifo),
		0o700); err != nil {
		t.Fatal(err)
	}
	p := startFile(t, script, f.path, "VRNIC_DEBUG=")
	p.want("open", "ok")
	p.send("bg chans 1") // "chan" has one table for all threads
	<-refused
	p.want("chan", "ENOMEM", "queries 1", "ok")
	p.quiet("nobody has read yet")
	if _, err := unix.Read(fd, make([]byte, 1<<16)); err != nil {
		t.Fatal(err)
	}
	p.wantLine("bg chans ENOMEM")
}

// Signals without SA_RESTART do not break requests.
func TestSignals(t *testing.T) {
	need(t)
	p := open(t, newFake(t, nil))
	p.want("alarms 100", "ok", "queries 5000", "ok", "chan", "ok", "cq 0 4 0", "ok 4", "delcq 0", "ok",
		"alarms 0", "ok")
}

// The event of a CQ comes once for each time that it was asked for, and in order.
func TestCompletionEvents(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("chan", "ok", "cq 0 4 0", "ok 4", "cq 0 4 0", "ok 4", "readable 0", "0")
	s := f.session(0)
	a, b := s.cq(0), s.cq(1)
	b.push(t)
	p.want("readable 0", "0") // nobody asked
	p.want("arm 0 0", "ok", "arm 1 0", "ok")
	b.push(t)
	a.push(t)
	b.push(t)
	p.want("readable 0", "1", "get 0", "1", "arm 1 0", "ok", "get 0", "0", "readable 0", "0")
	b.push(t)
	p.want("get 0", "1")
	p.want("nonblock 0", "ok", "get 0", "EAGAIN")
	p.want("ack 0 1", "ok", "ack 1 2", "ok", "delchan 0", "EBUSY", "delcq 0", "ok", "delcq 1", "ok",
		"delchan 0", "ok")
}

// V8: to destroy a CQ waits until the events that were given are acknowledged, drops the others,
// and leaves those of other CQs.
func TestDestroyCQ(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("chan", "ok", "cq 0 4 0", "ok 4", "cq 0 4 0", "ok 4", "cq 0 4 0", "ok 4", "arm 0 0", "ok",
		"arm 1 0", "ok", "arm 2 0", "ok")
	s := f.session(0)
	a, b, c := s.cq(0), s.cq(1), s.cq(2)
	a.push(t)
	b.push(t)
	c.push(t)
	p.want("get 0", "0", "delcq 1", "ok", "readable 0", "1")
	p.send("bg delcq 0")
	p.quiet("an event of the CQ is not acknowledged")
	p.want("get 0", "2", "readable 0", "0")
	p.send("ack 0 1")
	got := map[string]bool{p.line(): true, p.line(): true}
	if !got["bg delcq ok"] || !got["ack ok"] {
		t.Errorf("answers %v", got)
	}
	p.want("ack 2 7", "ok", "delcq 2", "ok", "delchan 0", "ok") // more than were given: fio does that
}

// V11: a thread that waits on a channel which another one destroys comes never back; nor does it
// end the program.
func TestDestroyUnderWait(t *testing.T) {
	need(t)
	if ctest.Sanitized("thread") {
		needtest.Skip(t, "to close a descriptor that another thread reads is a race for the thread "+
			"sanitizer, and what this is about")
	}
	f := newFake(t, nil)
	p := open(t, f)
	p.want("chan", "ok")
	p.send("bg get 0")
	p.send("bg async")
	p.reads(2)
	p.want("delchan 0", "ok", "close", "ok")
	p.quiet("the channel has gone")
	p.want("list", "2 fake0 fake1")
	f.kill()
	p.quiet("nor does the daemon's end wake it")
	p.send("exit")
	p.end(7)
}

// reads waits until n threads of the program beside its first are in read(2): one that comes to
// that later finds an object of its own that has been freed.
func (p *program) reads(n int) {
	p.t.Helper()
	call := fmt.Sprintf("%d ", unix.SYS_READ)
	for end := time.Now().Add(answerTime); ; time.Sleep(time.Millisecond) {
		found := 0
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p.cmd.Process.Pid))
		for _, f := range tasks {
			b, _ := os.ReadFile(f)
			if filepath.Base(filepath.Dir(f)) != strconv.Itoa(p.cmd.Process.Pid) &&
				strings.HasPrefix(string(b), call) {
				found++
			}
		}
		if found == n {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("%d threads read, want %d\n%s", found, n, p.errs)
		}
	}
}

// Threads that wait on a channel or a context which another destroys have what they wait on until
// they are gone, however many others are made and destroyed meanwhile. What finds the fault is the
// address sanitizer.
func TestDestroyManyUnderWait(t *testing.T) {
	need(t)
	for _, tt := range []struct{ wait, create, destroy, many string }{
		{"get 0", "chan", "delchan 0", "chans 100"},
		{"async", "open", "close", "opens 100"},
	} {
		t.Run(tt.create, func(t *testing.T) {
			f := newFake(t, nil)
			f.keepPipes = true
			p := open(t, f)
			if tt.create != "open" {
				p.want(tt.create, "ok")
			}
			p.send("bg " + tt.wait)
			p.reads(1)
			p.want(tt.destroy, "ok")
			p.want(tt.create, "ok") // its pipe has the number of the first
			p.want(tt.many, "ok")
			f.kill()
			p.quiet("the thread waits on")
			p.want("queries 1", "EIO", "cancel", "ok")
		})
	}
}

// V11: waits can be cancelled, and leave nothing locked.
func TestCancel(t *testing.T) {
	need(t)
	byEither(t, cancelled)
}

func cancelled(t *testing.T, f *fake) {
	p := open(t, f)
	p.want("chan", "ok", "cq 0 4 0", "ok 4", "arm 0 0", "ok")
	p.send("bg get 0")
	p.quiet("there is no event")
	p.want("cancel", "ok")
	p.send("bg async")
	p.quiet("there is no event")
	p.want("cancel", "ok")
	f.session(0).cq(0).push(t)
	p.want("get 0", "0")
	p.send("bg delcq 0")
	p.quiet("an event is not acknowledged")
	p.want("cancel", "ok", "ack 0 1", "ok", "queries 1", "ok", "delchan 0", "ok", "close", "ok")
}

func TestAsyncEvents(t *testing.T) {
	need(t)
	byEither(t, asyncEvents)
}

func asyncEvents(t *testing.T, f *fake) {
	p := open(t, f)
	p.want("cq -1 4 0", "ok 4", "cq -1 4 0", "ok 4")
	s := f.session(0)
	a, b := s.cq(0).ring.Handle(), s.cq(1).ring.Handle()
	p.send("bg async")
	p.quiet("there is no event")
	s.raise(rpc.AsyncEvent{Type: 0, Kind: rpc.ObjCQ, Handle: b})
	p.wantLine("bg async type 0 cq 1")
	p.want("aack", "ok", "areadable", "0")
	s.raise(rpc.AsyncEvent{Type: 9})
	p.want("areadable", "1", "async", "type 9", "aack", "ok")

	s.raise(rpc.AsyncEvent{Type: 0, Kind: rpc.ObjCQ, Handle: a}) // dropped with its object
	p.want("delcq 0", "ok", "areadable", "0")
	s.raise(rpc.AsyncEvent{Type: 0, Kind: rpc.ObjCQ, Handle: a}) // of an object that has gone
	s.raise(rpc.AsyncEvent{Type: 0, Kind: rpc.ObjCQ, Handle: b})
	p.want("async", "type 0 cq 1")
	p.send("bg delcq 1")
	p.quiet("its event is not acknowledged")
	p.send("aack")
	got := map[string]bool{p.line(): true, p.line(): true}
	if !got["bg delcq ok"] || !got["aack ok"] {
		t.Errorf("answers %v", got)
	}
	p.want("close", "ok")
}

// An event that does not fit its object ends the session: the program would take one for another.
func TestAsyncEventOfOtherKind(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("cq -1 4 0", "ok 4")
	s := f.session(0)
	s.raise(rpc.AsyncEvent{Type: 1, Kind: rpc.ObjCQ, Handle: s.cq(0).ring.Handle()})
	p.want("async", "type 8", "async", "EIO")
	s.ended()
}

// When the daemon dies, what is armed gets an event, once, and then nothing waits any more, in
// whatever order its sockets and pipes close.
func TestDeath(t *testing.T) {
	need(t)
	for _, pipesFirst := range []bool{false, true} {
		byEither(t, func(t *testing.T, f *fake) {
			p := open(t, f)
			p.want("chan", "ok", "cq 0 4 0", "ok 4", "cq 0 4 0", "ok 4", "cq 0 4 0", "ok 4", "pd", "ok",
				"mr malloc 100 0 1", "ok",
				"arm 0 0", "ok", "arm 2 1", "ok")
			p.send("bg get 0")
			p.send("bg async")
			p.quiet("there is no event")
			if pipesFirst {
				f.session(0).closePipes()
				p.quiet("the session is not over")
			}
			f.kill()
			got := []string{p.line(), p.line()}
			if strings.HasPrefix(got[0], "bg async") {
				got[0], got[1] = got[1], got[0]
			}
			if got[0] != "bg get 2" && got[0] != "bg get 0" || got[1] != "bg async type 8" {
				t.Fatalf("answers %q", got)
			}
			other := "0"
			if got[0] == "bg get 0" {
				other = "2"
			}
			p.want("readable 0", "1", "arm 0 0", "ok", "arm 2 0", "ok", "get 0", other, "get 0", "EIO",
				"arm "+other+" 0", "ok", "get 0", "EIO", "async", "EIO", "device", "EIO", "queries 1", "EIO",
				"poll 1", "0",
				"pd", "EIO", "chan", "EIO", "mr malloc 100 0 1", "EIO",
				"delmr 0", "ok", "delpd 0", "ok", "ack 0 1", "ok", "ack 2 1", "ok", "delcq 0", "ok", "delcq 1",
				"ok", "delcq 2", "ok",
				"delchan 0", "ok", "close", "ok", "list", "ENOENT")
		})
	}
}

// After the daemon's end a program can go on with the next daemon, also with memory that it has
// from vrnic_alloc.
func TestNextDaemon(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("pd", "ok", "mr alloc 8192 0 1", "ok")
	f.kill()
	p.want("queries 1", "EIO", "delmr 0", "ok", "delpd 0", "ok", "close", "ok")
	g := newFakeAt(t, f.path, nil)
	p.want("open", "ok", "queries 1", "ok", "pd", "ok", "again 8192", "ok")
	if r := last[rpc.RegMRRequest](t, g.session(0)); r.Mode != rpc.ModeShared || r.Mem == 0 {
		t.Errorf("registered as %+v", r)
	}
	p.want("delmr 1", "ok", "free", "ok", "delpd 1", "ok", "close", "ok")
}

// The child of a fork has no part in its parent's session, and may have its own.
func TestFork(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.want("chan", "ok", "cq 0 4 0", "ok 4", "pd", "ok", "mr malloc 100 0 1", "ok")
	p.send("fork device; poll 0; arm 0 0; get 0; get 0; async; async; mr malloc 100 0 1; delmr 0; " +
		"ack 0 1; delcq 0; delchan 0; delpd 0; close; " +
		"list; open; queries 3; pd; delpd 1; close")
	for _, want := range []string{"device EIO", "poll 0", "arm ok", "get 0", "get EIO", "async type 8",
		"async EIO", "mr EIO",
		"delmr ok", "ack ok", "delcq ok", "delchan ok", "delpd ok", "close ok",
		"list 2 fake0 fake1", "open ok", "queries ok", "pd ok", "delpd ok", "close ok"} {
		p.wantLine("child " + want)
	}
	p.wantLine("fork exit 0")
	f.session(1).ended() // the child's
	p.want("queries 3", "ok", "arm 0 0", "ok")
	f.session(0).cq(0).push(t)
	p.want("get 0", "0", "ack 0 1", "ok", "delcq 0", "ok", "delmr 0", "ok", "delpd 0", "ok")
	p.send("exit")
	p.end(7)
	f.session(0).ended() // no child holds its socket
}

// The child of a fork has none of the daemon's memory, and what it has in its place is its own.
func TestForkMemory(t *testing.T) {
	ctest.Native(t, noMadvise)
	need(t)
	p := open(t, newFake(t, nil))
	p.want("chan", "ok", "cq 0 4 0", "ok 4", "rings", "3") // and the session's page
	p.send("fork occupy; poll 0; delcq 0; delchan 0; close; occupied; rings")
	for _, want := range []string{"occupy 3", "poll 0", "delcq ok", "delchan ok", "close ok",
		"occupied 3", "rings 0"} {
		p.wantLine("child " + want)
	}
	p.wantLine("fork exit 0")
	p.want("delcq 0", "ok", "delchan 0", "ok", "rings", "2") // a channel stays for a while
}

// A child that lives on does not hide its parent's end from the daemon.
func TestForkOutlives(t *testing.T) {
	need(t)
	f := newFake(t, nil)
	p := open(t, f)
	p.send("bg fork sleep 2000; list")
	p.send("sleep 20")
	p.wantLine("sleep ok")
	p.send("exit")
	f.session(0).ended()
	p.wantLine("child sleep ok")
	p.wantLine("child list 2 fake0 fake1")
}

// Forks while other threads are in the middle of things leave no lock behind.
func TestForkStorm(t *testing.T) {
	need(t)
	if ctest.Sanitized("") {
		needtest.Skip(t, "the allocators of sanitizers do not survive a fork among threads")
	}
	p := open(t, newFake(t, nil))
	p.want("pd", "ok", "cq -1 4 0", "ok 4")
	p.send("bg spin")
	p.send("bg spin")
	p.want("storm 100", "ok")
	p.send("stop")
	for range 2 {
		p.wantLine("bg spin ok")
	}
	p.wantLine("stop ok")
}

// Threads may do all at once, with signals in between.
func TestThreads(t *testing.T) {
	need(t)
	p := open(t, newFake(t, nil))
	p.want("pd", "ok", "cq -1 4 0", "ok 4", "alarms 500", "ok")
	p.send("bg spin")
	p.send("bg spin")
	for range 3 {
		p.send("bg churn 50")
	}
	for range 3 {
		p.wantLine("bg churn ok")
	}
	p.send("stop")
	for range 2 {
		p.wantLine("bg spin ok")
	}
	p.wantLine("stop ok")
	p.want("alarms 0", "ok", "delcq 0", "ok", "delpd 0", "ok", "close", "ok")
}

// A session leaves a program its descriptors: the control socket, the doorbell, and what the
// program asked for.
func TestDescriptors(t *testing.T) {
	need(t)
	p := start(t, newFake(t, nil).path)
	before, err := strconv.Atoi(p.do("fds"))
	if err != nil {
		t.Fatal(err)
	}
	fds := func(more int) string { return strconv.Itoa(before + more) }
	p.want("open", "ok", "fds", fds(3), "chan", "ok", "fds", fds(4), "cq 0 4 0", "ok 4", "pd", "ok",
		"mr malloc 100 0 1", "ok", "fds", fds(4),
		"mr memfd 8192 0 1", "ok", "fds", fds(5), // its own
		"delcq 0", "ok", "delchan 0", "ok", "fds", fds(4), "close", "ok", "fds", fds(3))
}

// A program that has no descriptors left gets an error, and keeps its session.
func TestFullOfDescriptors(t *testing.T) {
	need(t)
	p := start(t, newFake(t, nil).path)
	p.want("limit 0", "ok", "open", "EMFILE", "limit 1", "ok", "open", "EMFILE", "limit -1", "ok",
		"open", "ok", "pd", "ok")
	p.want("limit 0", "ok", "chan", "EMFILE", "cq -1 4 0", "EMFILE", "mr malloc 100 0 1", "EMFILE")
	p.want("limit 1", "ok", "chan", "EMFILE", "cq -1 4 0", "ok 4", "mr malloc 100 0 1", "ok",
		"limit 2", "ok", "chan", "ok", "queries 1", "ok")
}

// A program whose last descriptors are gone when the daemon's arrive gets an error and keeps its
// session, and the daemon is told to forget what nobody has.
func TestDescriptorsRunOut(t *testing.T) {
	need(t)
	for _, tt := range []struct {
		op, undo rpc.Op
		command  string
		answer   string // when there is room
	}{
		{rpc.OpCtxOpen, rpc.OpCtxClose, "open", "ok"},
		{rpc.OpCreateChan, rpc.OpDestroyChan, "chan", "ok"},
		{rpc.OpCreateCQ, rpc.OpDestroyCQ, "cq -1 4 0", "ok 4"},
	} {
		t.Run(tt.op.String(), func(t *testing.T) {
			came, goOn := make(chan bool), make(chan bool)
			var armed, undone atomic.Bool
			f := newFake(t, func(op rpc.Op, msg []byte, fds []int) ([]byte, []int) {
				if op == tt.op && armed.CompareAndSwap(true, false) {
					came <- true
					<-goOn
				}
				if op == tt.undo {
					undone.Store(true)
				}
				return msg, fds
			})
			p := start(t, f.path)
			p.want("open", "ok")
			before := p.do("fds")
			armed.Store(true)
			p.send("bg " + tt.command)
			<-came
			p.want("limit 0", "ok")
			goOn <- true
			name, _, _ := strings.Cut(tt.command, " ")
			p.wantLine("bg " + name + " EMFILE")
			if !undone.Load() {
				t.Errorf("no %v", tt.undo)
			}
			p.want("limit -1", "ok", "stop", "ok", "fds", before, tt.command, tt.answer)
		})
	}
}
