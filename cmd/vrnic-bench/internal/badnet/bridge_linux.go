package badnet

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/netstack/port/impair"
)

// BridgeReady is what a bridge says when it can be asked.
const BridgeReady = "ready"

// A bridgeRequest asks a bridge to begin anew, with another schedule, or else for its report.
type bridgeRequest struct {
	Begin *impair.Schedule `json:",omitempty"`
}

// A BridgeReport is what a bridge has done since it began.
type BridgeReport struct {
	impair.Stats               // of both directions
	Failed       uint64        // frames that the other TAP did not take
	Late         time.Duration // of a hundred frames one left later than this behind its time
	CPU          time.Duration // of both directions
	Elapsed      time.Duration
}

// The room of a bridge.
const (
	maxFrame = 2048 // octets; MTU 1500
	// turnFrames are read before those that are due are looked at again.
	turnFrames = 32
	// leastNap is the shortest sleep: frames that are due within it leave together, so that a thread
	// need not wake for each. Where the delay is long, so are naps, by napShare, up to mostNap. New
	// frames do not end them: a wire does not take the processor from who sends.
	leastNap = 20 * time.Microsecond
	napShare = 100
	mostNap  = 100 * time.Microsecond
	// bridgeTAPQueue is how many frames may wait in a TAP for the bridge to read them, so that they
	// are dropped by its model only.
	bridgeTAPQueue = 20000
)

// RunBridge carries frames between two TAPs, one in the namespace a and one in b, both of that
// name, which it makes, and answers each request line of in with a line on out, until in ends.
func RunBridge(a, b, tap string, in io.Reader, out io.Writer) error {
	var fds [2]int
	for i, path := range []string{a, b} {
		ns, err := netlab.At(path)
		if err != nil {
			return err
		}
		defer ns.Close()
		if fds[i], err = ns.OpenTAP(tap, bridgeTAPQueue); err != nil {
			return err
		}
		defer unix.Close(fds[i])
	}
	// Each thread that carries keeps a P, and collecting garbage would stop them: that has its time
	// when they begin anew.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 8))
	debug.SetGCPercent(-1)
	dirs := [...]*direction{{in: fds[0], out: fds[1]}, {in: fds[1], out: fds[0]}}
	begin := func(s impair.Schedule) {
		for i, d := range dirs {
			d.begin(s.Link(uint64(i+1)), s.Delay)
		}
	}
	began, cpu := time.Now(), ownCPU()
	begin(impair.Schedule{})
	for _, d := range dirs {
		go d.run()
	}
	if _, err := fmt.Fprintln(out, BridgeReady); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var req bridgeRequest
		if err := json.Unmarshal(lines.Bytes(), &req); err != nil {
			return err
		}
		var rep BridgeReport
		if req.Begin != nil {
			runtime.GC()
			began, cpu = time.Now(), ownCPU()
			begin(*req.Begin)
		} else {
			late := hist.New()
			for _, d := range dirs {
				d.report(&rep, late)
			}
			rep.Late, rep.CPU, rep.Elapsed = late.Quantile(0.99), ownCPU()-cpu, time.Since(began)
		}
		if err := json.NewEncoder(out).Encode(rep); err != nil {
			return err
		}
	}
	return lines.Err()
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // it is there since Linux 2.6.12
	return time.Duration(ts.Nano())
}

// A direction carries frames one way, on a thread of its own.
type direction struct {
	in, out int // files

	mu     sync.Mutex // held over a turn, and to begin and report
	link   *impair.Link
	nap    time.Duration
	queue  impair.Line[[]byte]
	free   [][]byte
	late   *hist.Hist
	failed uint64
}

var started = time.Now()

// clock is the time of links.
func clock() time.Duration { return time.Since(started) }

// begin forgets what is on its way.
func (d *direction) begin(l *impair.Link, delay time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nap = max(min(delay/napShare, mostNap), leastNap)
	d.link, d.queue, d.late, d.failed = l, impair.Line[[]byte]{}, hist.New(), 0
}

func (d *direction) report(r *BridgeReport, late *hist.Hist) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.Frames += d.link.Frames
	r.Lost += d.link.Lost
	r.Overflow += d.link.Overflow
	r.Doubled += d.link.Doubled
	r.Failed += d.failed
	late.Merge(d.late)
}

// run carries frames until the process ends. Go's scheduler is not told of its system calls: behind
// one of which it is, a thread may wait for others that have less of a claim to the processor.
func (d *direction) run() {
	runtime.LockOSThread()
	// Both are best effort: without them frames leave later where others want the processor.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO,
		Priority: 1}, 0)
	for {
		// Interrupted or not: look.
		if nap := d.turn(); nap > 0 {
			ts := unix.NsecToTimespec(int64(nap))
			_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
			continue
		}
		fds := [1]unix.PollFd{{Fd: int32(d.in), Events: unix.POLLIN}}
		_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), uintptr(len(fds)), 0,
			0, 0, 0)
	}
}

// turn reads what is there and writes what is due. It returns how long to sleep; 0: until a frame
// comes.
func (d *direction) turn() (nap time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		more := d.read()
		now := clock()
		for {
			if due, ok := d.queue.Next(); !ok || due > now {
				break
			}
			due, f := d.queue.Pop()
			d.late.Add(now - due)
			if _, errno := rawIO(unix.SYS_WRITE, d.out, f); errno != 0 {
				d.failed++
			}
			d.free = append(d.free, f)
			now = clock()
		}
		if more {
			continue
		}
		if d.queue.Len() == 0 {
			return 0
		}
		return d.nap
	}
}

// read takes some frames; more may be there if it says so.
func (d *direction) read() (more bool) {
	for range turnFrames {
		f := d.room()
		n, errno := rawIO(unix.SYS_READ, d.in, f)
		if errno != 0 {
			d.free = append(d.free, f)
			return false
		}
		f = f[:n]
		fate := d.link.Carry(clock(), n)
		if fate.Copies == 0 {
			d.free = append(d.free, f)
			continue
		}
		if fate.Copies == 2 {
			again := d.room()
			d.queue.Push(fate.At[1], again[:copy(again, f)])
		}
		d.queue.Push(fate.At[0], f)
	}
	return true
}

// rawIO reads or writes a frame.
func rawIO(call uintptr, fd int, b []byte) (n int, errno unix.Errno) {
	k, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)))
	return int(k), errno
}

// room is a frame for as much as there can be.
func (d *direction) room() []byte {
	n := len(d.free)
	if n == 0 {
		return make([]byte, maxFrame)
	}
	f := d.free[n-1]
	d.free = d.free[:n-1]
	return f[:maxFrame]
}
