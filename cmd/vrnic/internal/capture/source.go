package capture

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/onlookers"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// What one capture may take of the daemon's memory.
const (
	maxQueued = 4096     // frames that wait for the socket
	maxOctets = 16 << 20 // of memory for them
)

// A source is a capture on the daemon's side.
type source struct {
	conn   *net.UnixConn
	ports  []Port
	snap   int
	remove []func()

	queue   chan *seen
	octets  atomic.Int64 // of memory, of what is in the queue
	dropped atomic.Uint64
	stop    chan struct{}
	once    sync.Once
}

// A seen is a frame as it was seen, or what has happened to a request.
type seen struct {
	frame.Offload
	at     time.Time
	port   int
	in     bool
	len    int
	octets []byte
	event  Event // if it is one, and no frame
}

// Those of pool i have room for 1<<i octets, or for a whole frame: what waits takes no more than
// twice the memory of its packets.
var seenPools [bits.UintSize]sync.Pool

// newSeen has room for n octets.
func newSeen(n int) *seen {
	size := bits.Len(uint(max(n, 1) - 1))
	if p, ok := seenPools[size].Get().(*seen); ok {
		return p
	}
	return &seen{octets: make([]byte, 0, min(1<<size, frame.MaxLen))}
}

// free gives p back.
func (p *seen) free() { seenPools[bits.Len(uint(cap(p.octets)-1))].Put(p) }

// size is the memory that p takes.
func (p *seen) size() int64 { return int64(cap(p.octets)) }

// A tap is a source at one of its ports.
type tap struct {
	*source
	port int
	in   bool // what goes into the switch comes in: the port is none of a device
}

// A Config says what is captured.
type Config struct {
	Switch *ethswitch.Switch
	Ports  []Port
	Snap   int // the first octets of each packet
	// Requests, if set, has those Of queue pairs hear of requests until stop is called.
	Requests func(*Requests) (stop func())
	// Conn is where it goes. Who asked ends the capture by shutting the other end.
	Conn *net.UnixConn
	// Done is called in the end.
	Done func()
}

// Begin begins a capture. If that succeeds its Conn is its own.
func Begin(set *onlookers.Set, cfg *Config) error {
	return set.Begin(func() (run, end func(), err error) {
		c, err := open(cfg)
		if err != nil {
			return nil, nil, err
		}
		return func() { c.run(); cfg.Done() }, c.close, nil
	})
}

// open makes a source.
func open(cfg *Config) (*source, error) {
	s := &source{conn: cfg.Conn, ports: cfg.Ports, snap: cfg.Snap,
		queue: make(chan *seen, maxQueued), stop: make(chan struct{})}
	for i, p := range cfg.Ports {
		remove, err := cfg.Switch.Tap(p.Name, &tap{s, i, p.Kind != "stack"})
		if err != nil {
			s.end()
			return nil, err
		}
		s.remove = append(s.remove, remove)
	}
	if cfg.Requests != nil {
		s.remove = append(s.remove, cfg.Requests(&Requests{s: s}))
	}
	return s, nil
}

// end takes the taps away and has the writer end. It may be called again.
func (s *source) end() {
	s.once.Do(func() {
		for _, remove := range s.remove {
			remove()
		}
		close(s.stop)
	})
}

// See implements ethswitch.Tap.
func (t *tap) See(f *frame.Frame, in bool) {
	n := f.Len()
	keep := n
	if f.GSO == frame.GSONone && f.Csum != frame.CsumPartial { // else it is cut, or summed, later
		keep = min(n, t.snap)
	}
	p := newSeen(keep)
	p.Offload, p.at, p.port, p.in, p.len = f.Offload, time.Now(), t.port, in == t.in, n
	p.octets, p.event = p.octets[:0], Event{}
	for v := range f.Views() {
		p.octets = append(p.octets, v[:min(len(v), keep-len(p.octets))]...)
	}
	t.enqueue(p)
}

// enqueue has p written, if there is room.
func (s *source) enqueue(p *seen) {
	if s.octets.Add(p.size()) > maxOctets {
		s.drop(p)
		return
	}
	select {
	case s.queue <- p:
	default:
		s.drop(p)
	}
}

// drop counts p, which finds no room.
func (s *source) drop(p *seen) {
	s.dropped.Add(1)
	s.release(p)
}

// release gives back what was counted for p.
func (s *source) release(p *seen) {
	s.octets.Add(-p.size())
	p.free()
}

// run writes what is seen until who asked ends it, or Set.Close does.
func (s *source) run() {
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(io.Discard, s.conn) // until the other end is shut
		s.end()
	})
	defer wg.Wait()
	defer s.close()
	w := bufio.NewWriterSize(s.conn, 1<<16)
	if s.hello(w) != nil {
		return
	}
	for {
		select {
		case p := <-s.queue:
			if s.write(w, p) != nil || len(s.queue) == 0 && w.Flush() != nil {
				return
			}
			continue
		default:
		}
		select {
		case p := <-s.queue:
			if s.write(w, p) != nil || len(s.queue) == 0 && w.Flush() != nil {
				return
			}
		case <-s.stop:
			if len(s.queue) > 0 {
				continue
			}
			h := head{kind: kindEnd, dropped: s.dropped.Load()}
			_, _ = w.Write(h.append(nil)) // the error is Flush's
			_ = w.Flush()                 // of nobody who looks any more
			return
		}
	}
}

func (s *source) hello(w *bufio.Writer) error {
	ports, err := json.Marshal(s.ports)
	if err != nil {
		return fmt.Errorf("ports: %w", err)
	}
	h := head{kind: kindPorts, length: uint32(len(ports))}
	_, err = w.Write(append(h.append(nil), ports...))
	return errors.Join(err, w.Flush())
}

// write writes the packets that p stands for.
func (s *source) write(w *bufio.Writer, p *seen) (err error) {
	defer s.release(p)
	h := head{kind: kindPacket, nanos: p.at.UnixNano(), dropped: s.dropped.Load(),
		port: uint16(p.port)}
	if p.event.Kind != "" {
		return s.happened(w, &h, &p.event)
	}
	if p.in {
		h.in = 1
	}
	if p.GSO == frame.GSONone && p.Csum != frame.CsumPartial {
		return s.packet(w, &h, p.octets, p.len)
	}
	f := frame.New(p.octets, p.Offload)
	defer f.Release()
	if f.Check() != nil { // it has passed that when it was seen
		return nil
	}
	var b []byte
	f.Plain(func(plain *frame.Frame) bool {
		b = plain.AppendTo(b[:0])
		err = s.packet(w, &h, b, len(b))
		return err == nil
	})
	return err
}

func (s *source) packet(w *bufio.Writer, h *head, b []byte, n int) error {
	b = b[:min(len(b), s.snap)]
	h.length, h.original = uint32(len(b)), uint32(n)
	var space [headLen]byte
	if _, err := w.Write(h.append(space[:0])); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

func (s *source) happened(w *bufio.Writer, h *head, e *Event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("event: %w", err)
	}
	h.kind, h.length = kindEvent, uint32(len(b))
	if _, err := w.Write(h.append(nil)); err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// close ends the capture at once, and without the record that says that all has come. It may be
// called again.
func (s *source) close() {
	s.conn.Close()
	s.end()
}
