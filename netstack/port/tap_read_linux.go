package port

import (
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/slice"
)

// rxSizes are the sizes of the buffers a frame is read into, one after the other. A frame takes
// with it those it reaches, so that a short one does not hold much memory and the largest fits.
var rxSizes = [...]int{2 << 10, 16 << 10, 64 << 10}

// rxBuffers are the buffers for the next frame.
type rxBuffers struct {
	hdr   [frame.VirtioHeaderLen]byte
	views [len(rxSizes)]*buffer.View
	iov   []unix.Iovec
}

// fill replaces what the last frame took.
func (r *rxBuffers) fill(hdr bool) {
	r.iov = r.iov[:0]
	if hdr {
		r.iov = append(r.iov, vector(r.hdr[:]))
	}
	for i := range r.views {
		if r.views[i] == nil {
			r.views[i] = buffer.NewViewSize(rxSizes[i])
		}
		r.iov = append(r.iov, vector(r.views[i].AsSlice()))
	}
}

// read reads a frame, if there is one. Go's scheduler is not told of the call, which does not wait:
// it would take the P away from who reads again and again, and look for more of that each 20 us.
func (r *rxBuffers) read(fd int) (n int, err error) {
	k, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(r.iov))), uintptr(len(r.iov)))
	if errno != 0 {
		return 0, errno
	}
	return int(k), nil
}

// frame moves the first n octets into f.
func (r *rxBuffers) frame(f *frame.Frame, n int) {
	for i := range r.views {
		if n == 0 {
			return
		}
		k := min(n, rxSizes[i])
		r.views[i].CapLength(k)
		f.Append(r.views[i])
		r.views[i] = nil
		n -= k
	}
}

func (r *rxBuffers) release() {
	for _, v := range r.views {
		if v != nil {
			v.Release()
		}
	}
}

// A tapReader is what reads a TAP.
type tapReader struct {
	t     *TAP
	rx    rxBuffers
	slice slice.Usual
	ready func(uintptr) bool // look, for Go's poller

	// The frame read last, until it is passed on.
	got   bool
	n     int
	err   error
	first bool // the kernel had nothing before it

	courier *ethswitch.Courier
	owing   int // frames that were brought since what they have put off was done last
}

// look reads a frame, unless it has one, if there is one.
func (r *tapReader) look() bool {
	if r.got {
		return true
	}
	r.rx.fill(r.t.offloads)
	if r.n, r.err = r.rx.read(r.t.fd); r.err == unix.EAGAIN {
		r.first = true
		return false
	}
	r.got = true
	return true
}

// gather gives the courier the long frame that was read, and those that are there behind it. It may
// end with another frame read.
func (r *tapReader) gather() {
	for range ethswitch.BatchFrames {
		f := r.t.frame(&r.rx, r.n)
		room := f == nil || r.courier.Gather(f)
		r.got, r.first = false, false
		if !room || !r.look() || r.err != nil || r.n <= ethswitch.ShortFrame {
			return
		}
	}
}

// settle does what frames have put off, unless another one is there behind them.
func (r *tapReader) settle() {
	if !r.courier.Owes() {
		return
	}
	r.owing++
	if r.owing < ethswitch.SettleFrames && r.look() && r.err == nil && r.n <= ethswitch.ShortFrame {
		return
	}
	r.courier.Settle()
	r.owing, r.first = 0, false
}

// full reports whether a frame of n octets is one that bringFull is for.
func full(n int) bool { return n >= ethswitch.FullFrame && n <= ethswitch.ShortFrame }

// bringFull brings the full frame that was read, together with the full ones that are there behind
// it: they are likely to be of a stream. It may end with another frame read.
func (r *tapReader) bringFull(first bool, more func() bool) {
	f := r.t.frame(&r.rx, r.n)
	if !r.look() || r.err != nil || !full(r.n) {
		if f != nil {
			r.courier.BringOne(f, first, more)
		}
		r.settle()
		return
	}
	for f == nil || r.courier.Gather(f) {
		if !r.look() || r.err != nil || !full(r.n) {
			break
		}
		f = r.t.frame(&r.rx, r.n)
		r.got, r.first = false, false
	}
	r.courier.BringAll()
	r.owing = 0
}

// more is look for who has brought a frame and looks for the next one again and again. The kernel
// tells nobody of that meanwhile.
func (r *tapReader) more() bool {
	r.slice.Share()
	r.t.doze.Ignore()
	return r.look()
}

// wait waits in Go's poller until it has a frame, or returns why there will be none.
func (r *tapReader) wait() error {
	if r.got {
		return nil
	}
	r.slice.End()
	for {
		err := r.t.doze.Wait(r.ready)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !r.t.readOn() {
			return err
		}
	}
}

// read carries frames from the kernel into the switch until endRead. When the device is gone it
// waits for the next one.
//
// It waits in Go's poller. When it has queued a frame for gVisor and waits for the next one, its
// thread goes straight on with the goroutine that handles the frame; a thread that blocks in
// poll(2) itself has to wake another one for that, which made a 64-octet echo take three times as
// long.
func (t *TAP) read() {
	defer t.wg.Done()
	r := &tapReader{t: t, courier: ethswitch.NewCourier(t.at)}
	defer r.rx.release()
	defer r.slice.End()
	r.ready = func(uintptr) bool { return r.look() }
	more := r.more
	for {
		if r.wait() != nil {
			// The port is being closed, or the device was removed while nobody looked: then the file has
			// nothing to tell but an error, which Go calls not pollable.
			r.slice.End()
			if !t.awaitDevice() {
				return
			}
			continue
		}
		first := r.first
		r.got, r.first = false, false
		switch r.err {
		case nil:
			switch {
			case r.n > ethswitch.ShortFrame:
				r.gather()
				r.courier.BringAll()
			case full(r.n):
				r.bringFull(first, more)
			default:
				if f := t.frame(&r.rx, r.n); f != nil {
					r.courier.BringOne(f, first, more)
				}
				r.settle()
			}
		case unix.EINTR:
		default: // EBADFD, EIO: somebody removed the device
			r.slice.End()
			if !t.awaitDevice() {
				return
			}
		}
	}
}

// awaitDevice waits until there is one again; it reports false if the port was closed.
func (t *TAP) awaitDevice() bool {
	select {
	case <-t.stop: // nothing is gone: Close ended the wait
		return false
	default:
	}
	t.lost.Store(true)
	t.tell()
	select {
	case t.doze = <-t.dozes:
		return true
	case <-t.stop:
		return false
	}
}

// readOver is a deadline that is past.
var readOver = time.Unix(1, 0)

// rouse has the reader look, also while it waits. When a device is removed the kernel wakes those
// that wait for frames first, and only then takes the device from its file: who looks between the
// two finds nothing there, waits again, and is not woken a second time.
func (t *TAP) rouse() {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.waits.SetReadDeadline(readOver) // at one that is closed nobody waits
}

// readOn lets the reader go on behind rouse; it reports false if that was endRead.
func (t *TAP) readOn() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.stop:
		return false
	default:
		return t.waits.SetReadDeadline(time.Time{}) == nil
	}
}

// endRead ends read, also when it is about to wait. t.stop is closed.
func (t *TAP) endRead() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waits.SetReadDeadline(readOver)
}

// frame is what was read: n octets, the virtio-net header among them; nil if that header makes no
// sense.
func (t *TAP) frame(rx *rxBuffers, n int) *frame.Frame {
	var o frame.Offload
	if t.offloads {
		var err error
		if o, err = frame.ParseVirtio(rx.hdr[:min(n, frame.VirtioHeaderLen)]); err != nil {
			t.at.CountDrop()
			return nil
		}
		n -= frame.VirtioHeaderLen
	}
	f := frame.Empty()
	f.Offload = o
	rx.frame(f, n)
	return f
}
