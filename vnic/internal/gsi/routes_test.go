package gsi_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	. "github.com/vrnic/vrnic/vnic/internal/gsi"
)

var (
	own       = netip.MustParseAddr("10.0.0.1")
	neighbour = netip.MustParseAddr("10.0.0.2")
	server    = netip.MustParseAddr("10.0.0.3")
)

// A link has two neighbours, who answer after a millisecond; nobody is behind other addresses.
type link struct {
	mu   sync.Mutex
	sent map[netip.Addr]int // messages, by where they went
	reqs int                // of them, that ask for a connection
	now  int                // searches at present
	most int
}

func (l *link) find(ctx context.Context, _, to netip.Addr) (datagram.Route, error) {
	l.count(1)
	defer l.count(-1)
	if to != neighbour && to != server {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select {
	case <-time.After(time.Millisecond):
		return route{l, to}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *link) count(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now += n
	l.most = max(l.most, l.now)
}

// counts is how many messages went to an address, and how many ask for a connection; searches are
// those under way, and the most that ever were.
func (l *link) counts(a netip.Addr) (sent, reqs int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent[a], l.reqs
}

func (l *link) searches() (now, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.most
}

type route struct {
	l  *link
	to netip.Addr
}

func (route) NextHop() [6]byte { return [6]byte{2} }
func (route) MTU() int         { return 1500 }
func (r route) Send(src datagram.Source) error {
	for {
		b, ok := src.NextPacket(make([]byte, 0, 1500))
		if !ok {
			return nil
		}
		p, err := udp.Parse(b)
		if err != nil {
			return err
		}
		var h packet.Header
		payload, err := h.Parse(p.Datagram)
		if err != nil {
			return err
		}
		_, msg, err := mad.Parse(payload)
		if err != nil {
			return err
		}
		r.l.mu.Lock()
		r.l.sent[r.to]++
		if msg.Attribute() == mad.AttrREQ {
			r.l.reqs++
		}
		r.l.mu.Unlock()
	}
}

// asks has a question come from an address that is answered at once: nobody listens.
func asks(m *Manager, from netip.Addr) {
	head := mad.Address{Source: from, Dest: own, Port: 1}
	b := mad.Append(nil, 1, &mad.SIDRREQ{RequestID: 1, PKey: 0xffff,
		ServiceID: mad.ServiceID(mad.PortSpaceUDP, 1), PrivateData: head.Append(nil)})
	m.Receive(&datagram.Packet{Packet: udp.Packet{Src: from, Dst: own}}, &packet.Header{
		Opcode: packet.SendOnly.Of(packet.UD), QKey: mad.QKey, Source: mad.QPN, PKey: packet.DefaultPKey,
	}, b)
}

// However many packets come with sources where nobody is, neighbours are answered, and programs
// reach theirs, though the same addresses are forged. The searches have a bound (ROCE-207, 209).
func TestForgedSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{sent: map[netip.Addr]int{}}
		m := New(Config{CM: cm.Config{PathMTU: func() uint8 { return 3 }}, Route: l.find})
		defer m.Close()
		forged := netip.MustParseAddr("10.9.0.0")
		flood := func(d time.Duration) { // 2,000 a second
			for end := time.Now().Add(d); time.Now().Before(end); {
				forged = forged.Next()
				asks(m, forged)
				time.Sleep(time.Second / 2000)
			}
		}
		flood(time.Second)
		asks(m, neighbour)
		flood(50 * time.Millisecond)
		if n, _ := l.counts(neighbour); n != 1 {
			t.Errorf("a neighbour is answered %d times while others forge theirs, want once", n)
		}
		for range 1000 { // all at once, the way to server among them
			forged = forged.Next()
			asks(m, forged)
		}
		flood(25 * time.Millisecond)
		for range 100 {
			asks(m, server)
		}
		m.Do(func(now time.Time, c *cm.Manager) {
			if _, err := c.Connect(now, &cm.Request{From: own, To: server, QPN: 99}); err != nil {
				t.Fatal(err)
			}
		})
		for range 1000 {
			forged = forged.Next()
			asks(m, forged)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if _, n := l.counts(server); n != 1 {
			t.Errorf("a program's request has gone out %d times, want once", n)
		}
		if _, most := l.searches(); most > 2*64+1 {
			t.Errorf("%d ways were looked for at a time", most)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n, _ := l.searches(); n != 0 {
			t.Errorf("%d searches go on", n)
		}
	})
}

// A program's messages find room among answers that wait for the same way.
func TestOwnFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{sent: map[netip.Addr]int{}}
		m := New(Config{CM: cm.Config{PathMTU: func() uint8 { return 3 }}, Route: l.find})
		defer m.Close()
		for range 100 {
			asks(m, server)
		}
		synctest.Wait()
		for i := range uint32(10) {
			m.Do(func(now time.Time, c *cm.Manager) {
				if _, err := c.Connect(now, &cm.Request{From: own, To: server, QPN: 99 + i}); err != nil {
					t.Fatal(err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if sent, reqs := l.counts(server); reqs != 10 || sent != 16 {
			t.Errorf("%d messages have waited, %d of them programs', want 16 and 10", sent, reqs)
		}
	})
}
