// Package gsi is QP 1 of a RoCE device, by which connections are managed: it takes the messages
// that come for roce/cm and sends those of it, gives it the time, and tells the owners of
// connections, listeners and look-ups what happens to them.
//
// Nobody who calls it waits: messages go out, and owners are told, by a goroutine of the Manager,
// which is there while it has something to do. Finding the way to a peer takes a goroutine of its
// own, of which there is a bounded number.
package gsi

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/record"
)

// An Owner is what the Owner fields of roce/cm's objects hold. Happened is called for one event
// after the other, with no lock held; it must not wait. It may call Do.
type Owner interface{ Happened(e cm.Event) }

// A Config says what a Manager works with. The functions may be called at any time.
type Config struct {
	CM cm.Config // Rand nil: the system's randomness
	// Route finds the way to a peer, and may wait for it until ctx ends. nil: there is no network.
	Route func(ctx context.Context, local, remote netip.Addr) (datagram.Route, error)
	// Stays reports whether what goes to an address is for the device itself, without the network.
	Stays func(netip.Addr) bool
	Log   *slog.Logger
}

// maxBacklog is how many messages wait to go out; what comes then is dropped.
const maxBacklog = 1024

// A Manager is QP 1 of a device. Any goroutine may use it.
type Manager struct {
	cfg  Config
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup // goroutines; Add with mu held and closed false

	mu      sync.Mutex
	closed  bool        // +checklocks:mu
	running bool        // +checklocks:mu
	cm      *cm.Manager // +checklocks:mu
	timer   *time.Timer // +checklocks:mu
	packets []cm.Packet // +checklocks:mu
	events  []cm.Event  // +checklocks:mu
	routes  routes      // +checklocks:mu
	psn     packet.PSN  // +checklocks:mu
}

// New makes a Manager.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg, routes: routes{known: map[pair]*route{}}}
	m.ctx, m.stop = context.WithCancel(context.Background())
	if cfg.CM.Rand == nil {
		cfg.CM.Rand = random
	}
	m.cm = cm.New(cfg.CM)
	return m
}

// Record has the calls of roce/cm's Manager recorded by t from now on, until stop is called.
func (m *Manager) Record(t *record.Tape) (stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	record.NewManager(t, m.cm, &m.cfg.CM)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.cm.Note(nil)
	}
}

// random is a number of the system's.
func random() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return binary.NativeEndian.Uint32(b[:])
}

// Do calls f with roce/cm's Manager, which nobody else uses meanwhile. What comes of it is sent and
// told behind it. f must not call m. After Close it is not called.
func (m *Manager) Do(f func(now time.Time, c *cm.Manager)) (ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	f(time.Now(), m.cm)
	m.takeLocked()
	return true
}

// Receive takes a packet for QP 1 whose ICRC is right. What is not from another device's QP 1, or
// does not have QP 1's Q_Key, is dropped.
func (m *Manager) Receive(p *datagram.Packet, h *packet.Header, payload []byte) {
	if h.Opcode != packet.SendOnly.Of(packet.UD) || h.QKey != mad.QKey || h.Source != mad.QPN ||
		h.PKey&0x7fff != packet.DefaultPKey&0x7fff || p.Group {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed && len(m.packets) < maxBacklog {
		m.cm.Receive(time.Now(), p.Src, p.Dst, payload)
		m.takeLocked()
	}
}

// takeLocked takes what has come of a call, and has it seen to.
//
// +checklocks:m.mu
func (m *Manager) takeLocked() {
	m.packets = append(m.packets, m.cm.Packets()...)
	m.events = append(m.events, m.cm.Events()...)
	if len(m.packets)+len(m.events) > 0 {
		m.runLocked()
		return
	}
	m.setTimerLocked()
}

// +checklocks:m.mu
func (m *Manager) runLocked() {
	if !m.running && !m.closed {
		m.running = true
		m.wg.Add(1)
		go m.run()
	}
}

// setTimerLocked has run called when it is time; while it runs it looks by itself.
//
// +checklocks:m.mu
func (m *Manager) setTimerLocked() {
	at, ok := m.cm.Deadline()
	if m.running || m.closed || !ok {
		return
	}
	if m.timer == nil {
		m.timer = time.AfterFunc(time.Until(at), func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.runLocked()
		})
		return
	}
	m.timer.Reset(time.Until(at))
}

// run sends and tells until there is nothing more.
func (m *Manager) run() {
	defer m.wg.Done()
	for {
		packets, events, ok := m.next()
		if !ok {
			return
		}
		for i := range packets {
			m.send(&packets[i])
		}
		for _, e := range events {
			m.tell(e)
		}
	}
}

func (m *Manager) next() (packets []cm.Packet, events []cm.Event, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.cm.Expire(time.Now())
		packets = append(m.packets, m.cm.Packets()...)
		events = append(m.events, m.cm.Events()...)
	}
	m.packets, m.events = nil, nil
	if len(packets)+len(events) == 0 {
		m.running = false
		m.setTimerLocked()
		return nil, nil, false
	}
	return packets, events, true
}

// tell tells the owner of what e is about.
func (m *Manager) tell(e cm.Event) {
	var owner any
	switch {
	case e.Listener != nil:
		owner = e.Listener.Owner
	case e.Conn != nil:
		owner = e.Conn.Owner
	case e.Lookup != nil:
		owner = e.Lookup.Owner
	}
	if o, ok := owner.(Owner); ok {
		o.Happened(e)
	}
}

// send sends p, when the way is known.
func (m *Manager) send(p *cm.Packet) {
	if m.cfg.Stays != nil && m.cfg.Stays(p.To) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.closed {
			m.cm.Receive(time.Now(), p.From, p.To, p.MAD)
			m.takeLocked()
		}
		return
	}
	if r := m.route(p); r != nil {
		m.transmit(r, p)
	}
}

func (m *Manager) transmit(to datagram.Route, p *cm.Packet) {
	m.mu.Lock()
	psn := m.psn
	m.psn = psn.Add(1)
	m.mu.Unlock()
	_ = to.Send(&single{p: p, psn: psn}) // a message that is lost is repeated
}

// A single is a datagram.Source of one message.
type single struct {
	p    *cm.Packet
	psn  packet.PSN
	done bool
}

// NextPacket implements datagram.Source.
func (s *single) NextPacket(b []byte) ([]byte, bool) {
	if s.done {
		return b, false
	}
	s.done = true
	t := udp.NewTemplate(udp.Flow{Src: s.p.From, Dst: s.p.To, SrcPort: udp.SourcePort(mad.QPN),
		TrafficClass: s.p.TrafficClass})
	h := packet.Header{
		Opcode: packet.SendOnly.Of(packet.UD), Migrated: true, PKey: packet.DefaultPKey, Dest: mad.QPN,
		PSN: s.psn, QKey: mad.QKey, Source: mad.QPN,
	}
	return t.Finish(append(h.Append(t.Append(b)), s.p.MAD...)), true
}

// Stats is what has been counted.
func (m *Manager) Stats() (s cm.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cm.Stats()
}

// Load says what there is at present.
func (m *Manager) Load() cm.Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cm.Load()
}

// Close ends it: nothing is sent or told any more. It waits for goroutines of m.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
	m.mu.Unlock()
	m.stop()
	m.wg.Wait()
}
