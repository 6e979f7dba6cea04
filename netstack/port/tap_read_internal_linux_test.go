package port

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/doze"
	"github.com/vrnic/vrnic/netstack/internal/doze/dozetest"
)

// pipeReader is a reader of a pipe, which stands for a TAP.
func pipeReader(t *testing.T) (r *tapReader, write func(string)) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_DIRECT); err != nil {
		t.Fatal(err)
	}
	waits, err := doze.New(tapFile(p[0]))
	if err != nil {
		t.Fatal(err)
	}
	r = &tapReader{t: &TAP{fd: p[0], doze: waits}}
	t.Cleanup(func() {
		waits.Close()
		r.slice.End()
		r.rx.release()
		unix.Close(p[0])
		unix.Close(p[1])
	})
	return r, func(s string) {
		if _, err := unix.Write(p[1], []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
}

// Who brings a frame can look for the next: one that it finds stays until it is passed on, none is
// lost, it is known whether the kernel had nothing before it, and nobody is woken for it.
func TestTAPMore(t *testing.T) {
	runtime.LockOSThread() // the thread's scheduling is changed
	r, write := pipeReader(t)
	for range 3 {
		if err := r.t.doze.Wait(func(uintptr) bool { return true }); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if r.more() {
				t.Fatal("there is more before anything was sent")
			}
		}
		write("one")
		write("another")
		if dozetest.Readable(t, r.t.doze, 0) {
			t.Error("Go's poller is told of what somebody looks for")
		}
		for _, want := range []struct {
			frame string
			first bool
		}{{"one", true}, {"another", false}} {
			for range 2 {
				if !r.more() || r.err != nil {
					t.Fatalf("%s: not found: %v", want.frame, r.err)
				}
			}
			if err := r.wait(); err != nil {
				t.Fatal(err)
			}
			if got := string(r.rx.views[0].AsSlice()[:r.n]); got != want.frame || r.first != want.first {
				t.Errorf("found %q, first %v; want %q, %v", got, r.first, want.frame, want.first)
			}
			if !r.slice.Shares() {
				t.Error("it waits although it has a frame")
			}
			r.got, r.first = false, false
		}
	}
}

// A reader that waits, and was not woken for what is there, finds it when it is roused; a port that
// is being closed ends it all the same.
//
// +checklocksignore: nobody else has the port yet.
func TestTAPRouse(t *testing.T) {
	r, write := pipeReader(t)
	silent, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	defer other.Close()
	if r.t.doze, err = doze.New(tapFile(silent.Fd())); err != nil {
		t.Fatal(err)
	}
	defer r.t.doze.Close()
	r.t.waits, r.t.stop = r.t.doze, make(chan struct{})
	looked := make(chan struct{}, 2)
	r.ready = func(uintptr) bool {
		defer func() { looked <- struct{}{} }()
		return r.look()
	}
	waited := make(chan error)
	go func() { waited <- r.wait() }()
	<-looked
	write("there")
	r.t.rouse()
	if err := <-waited; err != nil || !r.got || r.n != len("there") {
		t.Fatalf("found %v, %d octets: %v", r.got, r.n, err)
	}
	<-looked
	r.got = false
	go func() { waited <- r.wait() }()
	<-looked
	close(r.t.stop)
	if err := r.t.endRead(); err != nil {
		t.Fatal(err)
	}
	r.t.rouse()
	if err := <-waited; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the port is closed: %v", err)
	}
}

// Long frames that are there one behind the other are gathered, up to as many as a batch has. A
// short one stays, for who looks next, and of one whose header makes no sense only a count.
func TestTAPGather(t *testing.T) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	if err != nil {
		t.Fatal(err)
	}
	at := &ethswitch.Attachment{}
	r := &tapReader{t: &TAP{fd: p[0], offloads: true, at: at}, courier: ethswitch.NewCourier(at)}
	defer func() {
		r.rx.release()
		unix.Close(p[0])
		unix.Close(p[1])
	}()
	const long, short = 'l', 's'
	const vnetGSONone = 0
	n := 0
	write := func(kind byte, header byte) {
		b := make([]byte, frame.VirtioHeaderLen+64)
		if kind == long {
			b = make([]byte, ethswitch.ShortFrame+frame.VirtioHeaderLen+1)
		}
		b[1], b[frame.VirtioHeaderLen] = header, byte(n) // gso_type
		n++
		if _, err := unix.Write(p[1], b); err != nil {
			t.Fatal(err)
		}
	}
	next := 0
	gathers := func(want int, got, first bool) {
		t.Helper()
		if !r.look() || r.err != nil || r.n <= ethswitch.ShortFrame {
			t.Fatalf("frame %d: no long one: %v", next, r.err)
		}
		r.gather()
		if len(r.courier.Gathered()) != want || r.got != got || r.first != first {
			t.Errorf("behind frame %d: %d frames, another one read: %v, the kernel had no more: %v; want "+
				"%d, %v, %v",
				next, len(r.courier.Gathered()), r.got, r.first, want, got, first)
		}
		for _, f := range r.courier.Gathered() {
			if b := f.AppendTo(nil); len(b) != ethswitch.ShortFrame+1 || b[0] != byte(next) {
				t.Errorf("frame %d has %d octets", next, len(b))
			}
			next++
			f.Release()
		}
		r.courier = ethswitch.NewCourier(at)
	}
	for range ethswitch.BatchFrames + 2 {
		write(long, vnetGSONone)
	}
	gathers(ethswitch.BatchFrames, false, false)
	gathers(2, false, true)
	write(long, vnetGSONone)
	write(long, 77)
	write(long, vnetGSONone)
	write(short, vnetGSONone)
	write(long, vnetGSONone)
	if !r.look() {
		t.Fatal("nothing there")
	}
	r.gather()
	if len(r.courier.Gathered()) != 2 || !r.got || r.n != frame.VirtioHeaderLen+64 ||
		r.t.at.Stats().RxDrops != 1 {
		t.Errorf("%d frames, then %d octets (%v); dropped %d", len(r.courier.Gathered()), r.n, r.got,
			r.t.at.Stats().RxDrops)
	}
	for _, f := range r.courier.Gathered() {
		f.Release()
	}
	r.courier = ethswitch.NewCourier(at)
	r.got, next = false, n-1
	gathers(1, false, true)
}

// A settles is a port whose work is put off: it counts frames, and how many there were each time
// the work was done.
type settles struct {
	frames int
	done   []int
	kinds  string // s for each short frame, t for those that come together
}

func (s *settles) Transmit(_ *frame.Frame, d *ethswitch.Delivery) bool {
	s.frames++
	kind := "t"
	if d.Short {
		kind = "s"
	}
	s.kinds += kind
	return d.PutOff(s)
}

func (s *settles) Settle()               { s.done, s.frames = append(s.done, s.frames), 0 }
func (*settles) Offloads(frame.GSO) bool { return true }
func (*settles) String() string          { return "" }

// readerTo is the reader of a TAP of which kernel is the other end, and a port that it brings
// frames to.
func readerTo(t *testing.T) (r *tapReader, kernel int, to *settles) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	if err != nil {
		t.Fatal(err)
	}
	sw, to := ethswitch.New(ethswitch.Config{}), &settles{}
	at, err := sw.Attach(ethswitch.PortOptions{Name: "tap"}, &TAP{})
	if err != nil {
		t.Fatal(err)
	}
	toAt, err := sw.Attach(ethswitch.PortOptions{Name: "to"}, to)
	if err != nil {
		t.Fatal(err)
	}
	r = &tapReader{t: &TAP{fd: p[0], at: at}, courier: ethswitch.NewCourier(at)}
	t.Cleanup(func() {
		r.rx.release()
		unix.Close(p[0])
		unix.Close(p[1])
		toAt.Detach()
		at.Detach()
	})
	return r, p[1], to
}

// What frames put off is done when the kernel has no more of them, or SettleFrames have come.
func TestTAPSettle(t *testing.T) {
	r, kernel, to := readerTo(t)
	for _, n := range []int{1, 3, ethswitch.SettleFrames, 2*ethswitch.SettleFrames + 1} {
		for range n {
			if _, err := unix.Write(kernel, make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
		}
		for r.look() {
			if r.err != nil {
				t.Fatal(r.err)
			}
			r.got = false
			r.courier.BringOne(r.t.frame(&r.rx, r.n), false, nil)
			r.settle()
		}
	}
	const most = ethswitch.SettleFrames
	if want := []int{1, 3, most, most, most, 1}; !slices.Equal(to.done, want) || to.frames != 0 {
		t.Errorf("done after %d frames, want %d; %d are left", to.done, want, to.frames)
	}
}

// Full frames that are there one behind the other are brought together; one that is alone, or in
// front of another kind, as a short one.
func TestTAPFull(t *testing.T) {
	r, kernel, to := readerTo(t)
	const short, f, most = 64, ethswitch.FullFrame, ethswitch.SettleFrames
	for _, tt := range []struct {
		lens  []int
		kinds string // of each frame: s as a short one, t together with others
		done  []int
	}{
		{[]int{f}, "s", []int{1}},
		{[]int{f, f, f}, "ttt", []int{3}},
		{[]int{f, short, f}, "sss", []int{3}},
		{[]int{f, f, short}, "tts", []int{2, 1}},
		{slices.Repeat([]int{f}, most+2), strings.Repeat("t", most+2), []int{most, 2}},
	} {
		to.kinds, to.done = "", nil
		for _, n := range tt.lens {
			if _, err := unix.Write(kernel, make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		for r.look() {
			if r.err != nil {
				t.Fatal(r.err)
			}
			r.got = false
			if full(r.n) {
				r.bringFull(false, nil)
				continue
			}
			r.courier.BringOne(r.t.frame(&r.rx, r.n), false, nil)
			r.settle()
		}
		if to.kinds != tt.kinds || !slices.Equal(to.done, tt.done) {
			t.Errorf("%v: brought as %s, want %s; done after %v, want %v", tt.lens, to.kinds, tt.kinds,
				to.done, tt.done)
		}
	}
}
