package rawhost

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

var errFull = errors.New("full")

// errTimeout is a deadline's end, as package net has it.
type errTimeout struct{}

func (errTimeout) Error() string   { return os.ErrDeadlineExceeded.Error() }
func (errTimeout) Timeout() bool   { return true }
func (errTimeout) Temporary() bool { return true }
func (errTimeout) Unwrap() error   { return os.ErrDeadlineExceeded }

// A Frame is an Ethernet frame on its way.
type Frame struct {
	ToDaemon bool
	Octets   []byte
}

// A Filter sees each frame and says what is carried in its place: the frame, nothing, others. It is
// called for one frame at a time in each direction.
type Filter func(Frame) [][]byte

// A link is a netstack.Port whose other end is the socket of a Unix-stream port: each frame goes
// behind its length in four octets.
type link struct {
	at     *ethswitch.Attachment
	c      net.Conn
	out    chan []byte
	filter atomic.Pointer[Filter]
	done   chan struct{}
	over   sync.Once
	wg     sync.WaitGroup
}

func newLink(sw *ethswitch.Switch, path string) (*link, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	l := &link{c: c, out: make(chan []byte, 8192), done: make(chan struct{})}
	if l.at, err = sw.Attach(ethswitch.PortOptions{Name: "link", Kind: "unix"}, l); err != nil {
		c.Close()
		return nil, err
	}
	l.wg.Go(l.read)
	l.wg.Go(l.write)
	return l, nil
}

// SetFilter sets what sees all frames from now on; nil: nothing.
func (h *Host) SetFilter(f Filter) {
	if f == nil {
		h.link.filter.Store(nil)
		return
	}
	h.link.filter.Store(&f)
}

func (l *link) filtered(f Frame) [][]byte {
	if p := l.filter.Load(); p != nil {
		return (*p)(f)
	}
	return [][]byte{f.Octets}
}

// Transmit implements netstack.Port.
func (l *link) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	return l.send(f.AppendTo(nil))
}

// send queues a frame; the writer filters it, so that filters see one at a time.
func (l *link) send(frame []byte) bool {
	select {
	case l.out <- frame:
		return true
	case <-l.done:
		return false
	default:
		return false
	}
}

// Offloads implements netstack.Port: frames have to be whole and no longer than the MTU.
func (l *link) Offloads(frame.GSO) bool { return false }
func (l *link) String() string          { return "raw" }

func (l *link) write() {
	w := bufio.NewWriterSize(l.c, 1<<18)
	for {
		var frame []byte
		select {
		case frame = <-l.out:
		default:
			if w.Flush() != nil {
				return
			}
			select {
			case frame = <-l.out:
			case <-l.done:
				return
			}
		}
		for _, o := range l.filtered(Frame{true, frame}) {
			// An error stays until Flush.
			_, _ = w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(o))))
			_, _ = w.Write(o)
		}
	}
}

func (l *link) read() {
	r := bufio.NewReaderSize(l.c, 1<<18)
	var head [4]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > frame.MaxLen {
			return
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		for _, o := range l.filtered(Frame{false, b}) {
			f := frame.New(o, frame.Offload{})
			_ = l.at.Input(f) // a frame that is dropped is sent again
			f.Release()
		}
	}
}

func (l *link) close() {
	l.over.Do(func() {
		l.at.Detach()
		close(l.done)
		l.c.Close()
		l.wg.Wait()
	})
}

// A Segment is what a frame says of TCP.
type Segment struct {
	Source, Dest uint16
	Seq, Ack     uint32
	Flags        byte
	Window       uint16
	Payload      []byte
}

// Flags of TCP.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	ACK = 0x10
)

// TCP finds the TCP segment in an IPv4 frame.
func (f Frame) TCP() (s Segment, ok bool) {
	b := f.Octets
	const ether = 14
	if len(b) < ether+20 || binary.BigEndian.Uint16(b[12:]) != 0x0800 {
		return s, false
	}
	ip := b[ether:]
	ihl, total := int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[9] != 6 || ihl < 20 || total < ihl+20 || len(ip) < total {
		return s, false
	}
	t := ip[ihl:total]
	off := int(t[12]>>4) * 4
	if off < 20 || off > len(t) {
		return s, false
	}
	return Segment{
		Source: binary.BigEndian.Uint16(t), Dest: binary.BigEndian.Uint16(t[2:]),
		Seq: binary.BigEndian.Uint32(t[4:]),
		Ack: binary.BigEndian.Uint32(t[8:]), Flags: t[13], Window: binary.BigEndian.Uint16(t[14:]),
		Payload: t[off:],
	}, true
}
