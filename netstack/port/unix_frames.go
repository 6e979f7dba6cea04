package port

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// receive passes the peer's frames on until the stream ends or cannot be right, and says why. Those
// that one read has brought go together, so that one answer, or ACK, is enough for them.
func (p *Unix) receive(conn io.Reader) error {
	r := unixReader{buf: make([]byte, unixRead)}
	courier := ethswitch.NewCourier(p.at)
	for {
		octets, err := r.next(conn)
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return errPeerGone
		case errors.Is(err, io.ErrUnexpectedEOF):
			return errors.New("the peer has gone in the middle of a frame")
		case errors.Is(err, errUnixFrame):
			return fmt.Errorf("disconnected: %w", err)
		default:
			return fmt.Errorf("the peer has gone: %w", err)
		}
		f := frame.New(octets, frame.Offload{})
		if !r.more() {
			_ = p.at.Input(f) // counts what it drops
			f.Release()
			continue
		}
		for courier.Gather(f) && r.more() {
			octets, _ = r.next(nil) // it is there
			f = frame.New(octets, frame.Offload{})
		}
		courier.BringAll()
	}
}

// A unixReader cuts a stream into frames.
type unixReader struct {
	buf  []byte // larger than the longest frame
	r, w int    // buf[r:w] is unread
}

var errPeerGone = errors.New("the peer has gone")

var errUnixFrame = fmt.Errorf("a frame is longer than %d octets by what is before it: "+
	"no such stream as QEMU's", maxUnixFrame)

// whole is the length of the next frame, if all of it is there.
func (u *unixReader) whole() (n int, ok bool, err error) {
	if u.w-u.r < unixHeaderLen {
		return 0, false, nil
	}
	claim := binary.BigEndian.Uint32(u.buf[u.r:])
	if claim > maxUnixFrame {
		return 0, false, errUnixFrame
	}
	return int(claim), unixHeaderLen+int(claim) <= u.w-u.r, nil
}

// more reports whether next returns a frame without reading.
func (u *unixReader) more() bool {
	_, ok, _ := u.whole()
	return ok
}

// next returns the next frame, good until the next call. It reads from src only when it has no
// whole frame.
func (u *unixReader) next(src io.Reader) ([]byte, error) {
	for {
		n, ok, err := u.whole()
		if err != nil {
			return nil, err
		}
		if ok {
			frame := u.buf[u.r+unixHeaderLen:][:n]
			u.r += unixHeaderLen + n
			return frame, nil
		}
		if u.r == u.w {
			u.r, u.w = 0, 0
		} else if len(u.buf)-u.r < unixHeaderLen+maxUnixFrame {
			u.w = copy(u.buf, u.buf[u.r:u.w])
			u.r = 0
		}
		n, err = src.Read(u.buf[u.w:])
		u.w += n
		if n == 0 && err != nil {
			if err == io.EOF && u.r != u.w {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// Transmit implements Port. The frame is written at once if the socket takes it, else by the
// flusher; several that are sent together in one write.
func (p *Unix) Transmit(f *frame.Frame, d *ethswitch.Delivery) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A super-frame becomes somewhat longer when it is cut, never twice as long unless its
	// segments are smaller than their headers; those may go over the limit once.
	if p.conn == nil || len(p.pending)+f.Len() > unixQueueLen {
		return false
	}
	f.Plain(func(s *frame.Frame) bool {
		p.pending = binary.BigEndian.AppendUint32(p.pending, uint32(s.Len()))
		p.pending = s.AppendTo(p.pending)
		return true
	})
	if !p.flusher && (len(p.pending) >= unixWrite || d.Deferred() != p && !d.Defer(p)) {
		p.writeSomeLocked()
	}
	return true
}

// Finish writes what was sent together.
func (p *Unix) Finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.flusher && len(p.pending) > 0 {
		p.writeSomeLocked()
	}
}

// Offloads implements Port. The peer does not take super-frames: Transmit cuts them itself, so that
// all segments go out in one write.
func (p *Unix) Offloads(frame.GSO) bool { return true }

// writeSomeLocked writes what the socket takes without waiting and leaves the rest to the flusher.
func (p *Unix) writeSomeLocked() {
	var n int
	var werr error
	err := p.raw.Write(func(fd uintptr) bool {
		n, werr = syscall.Write(int(fd), p.pending)
		return true // whatever came of it: do not wait
	})
	if err != nil || werr != nil && werr != syscall.EAGAIN && werr != syscall.EINTR {
		p.pending = p.pending[:0] // receive sees that the peer has gone
		return
	}
	n = max(n, 0)
	if n == len(p.pending) {
		p.pending = p.pending[:0]
		return
	}
	p.pending = p.pending[:copy(p.pending, p.pending[n:])]
	p.flusher = true
	p.more.Signal()
}

// flush writes what Transmit could not, until conn is not the peer any more.
func (p *Unix) flush(conn *net.UnixConn) {
	var out []byte
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.conn == conn {
		if len(p.pending) == 0 {
			p.flusher = false
		}
		if !p.flusher {
			p.more.Wait()
			continue
		}
		out, p.pending = p.pending, out[:0]
		p.mu.Unlock()
		_, err := conn.Write(out)
		p.mu.Lock()
		if err != nil {
			conn.Close() // ends receive
			for p.conn == conn {
				p.pending = p.pending[:0]
				p.more.Wait()
			}
		}
	}
}
