package rawsctp

import (
	"encoding/binary"
	"os"
	"sync"
	"time"
)

// A Link carries packets of SCTP to a daemon and back. A connected UDP socket is one.
type Link interface {
	Read(packet []byte) (int, error)
	Write(packet []byte) (int, error)
	SetReadDeadline(t time.Time) error
	Close() error
}

// A Station gives what comes to an address to the peers there, each of which has a port of its own.
type Station struct {
	Send func(packet []byte) // set before there are peers

	mu sync.Mutex
	// +checklocks:mu
	peers map[uint16]*stationLink
}

// NewStation makes one without peers.
func NewStation() *Station { return &Station{peers: map[uint16]*stationLink{}} }

// Peer makes a peer there, for a port of the daemon's.
func (s *Station) Peer(port uint16) *Peer {
	l := &stationLink{s: s, came: make(chan []byte, 1<<12)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		p := New(l, port)
		if s.peers[p.Src] == nil {
			l.port, s.peers[p.Src] = p.Src, l
			return p
		}
	}
}

// Take takes a packet that has come. What is for nobody is lost.
func (s *Station) Take(packet []byte) {
	if len(packet) < headerLen {
		return
	}
	s.mu.Lock()
	l := s.peers[binary.BigEndian.Uint16(packet[2:])]
	s.mu.Unlock()
	if l == nil {
		return
	}
	select {
	case l.came <- append([]byte(nil), packet...):
	default: // as a socket that is full
	}
}

// A stationLink is the Link of one peer, whose goroutine uses it.
type stationLink struct {
	s    *Station
	port uint16
	came chan []byte
	by   time.Time
}

func (l *stationLink) Read(b []byte) (int, error) {
	late := time.NewTimer(time.Until(l.by))
	defer late.Stop()
	select {
	case p := <-l.came:
		return copy(b, p), nil
	default:
	}
	select {
	case p := <-l.came:
		return copy(b, p), nil
	case <-late.C:
		return 0, os.ErrDeadlineExceeded
	}
}

func (l *stationLink) Write(b []byte) (int, error) {
	l.s.Send(b)
	return len(b), nil
}

func (l *stationLink) SetReadDeadline(t time.Time) error {
	l.by = t
	return nil
}

func (l *stationLink) Close() error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	delete(l.s.peers, l.port)
	return nil
}
