package peertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/sctppeer"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctphost"
)

// A Plain is an SCTP of ours and a program that can reach each other.
type Plain struct {
	SCTP   *sctphost.Host
	Ours   []netip.Addr
	Theirs []netip.Addr
	Start  func(t *testing.T) *sctppeer.Peer

	// NoReason says that the program cannot tell why it aborts.
	NoReason bool

	sessions uint16
	last     *sctppeer.Peer // two of them on one network would abort each other's associations
}

// An association is one between them.
type association struct {
	*Plain
	t    *testing.T
	ctx  context.Context
	p    *sctppeer.Peer
	port uint16
	conn *sctphost.Conn

	mu       sync.Mutex
	received []received
	change   chan struct{} // closed when something has come
	down     chan error
	// +checklocks:mu
	seen []string // events of paths
}

type received struct {
	stream    uint16
	ppid      uint32
	unordered bool
	data      []byte
}

func (a *association) Message(m *sctp.Message) {
	r := received{m.Stream, m.PPID, m.Unordered, m.Append(nil)}
	a.mu.Lock()
	c := a.conn
	a.received = append(a.received, r)
	a.wake()
	a.mu.Unlock()
	c.Release(m, false)
}

func (a *association) Event(ev *sctp.Event) {
	a.mu.Lock()
	if ev.Kind == sctp.EventPath {
		a.seen = append(a.seen, fmt.Sprint(ev.Addr, ev.Path))
	}
	a.wake()
	a.mu.Unlock()
}

func (a *association) Down(err error) { a.down <- err }

func (a *association) wake() {
	close(a.change)
	a.change = make(chan struct{})
}

// until waits until ok, which is asked whenever something has come.
func (a *association) until(what string, ok func() bool) {
	a.t.Helper()
	for {
		a.mu.Lock()
		done, change := ok(), a.change
		a.mu.Unlock()
		if done {
			return
		}
		select {
		case <-change:
		case <-a.ctx.Done():
			a.mu.Lock()
			defer a.mu.Unlock()
			a.t.Fatalf("no %s: %d messages have come; paths %+v", what, len(a.received), a.seen)
		}
	}
}

func (a *association) do(format string, args ...any) {
	a.t.Helper()
	if err := a.p.Do(a.ctx, format, args...); err != nil {
		a.t.Fatal(err)
	}
}

func (a *association) said(prefixes ...string) string {
	a.t.Helper()
	line, err := a.p.Wait(a.ctx, prefixes...)
	if err != nil {
		a.t.Fatal(err)
	}
	return line
}

func (p *Plain) begin(t *testing.T, set ...string) *association {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	if p.last != nil {
		p.last.Stop()
	}
	p.last = p.Start(t)
	a := &association{Plain: p, t: t, ctx: ctx, p: p.last, port: firstPort + p.sessions,
		change: make(chan struct{}), down: make(chan error, 1)}
	p.sessions++
	t.Cleanup(func() {
		if t.Failed() {
			for i, l := range a.p.Said() {
				if i < 30 {
					t.Logf("peer: %.200s", l)
				}
			}
			if a.conn != nil {
				t.Logf("our paths: %+v", a.conn.Paths())
			}
		}
		if a.conn != nil {
			a.conn.Abort("the test is over")
		}
	})
	for _, x := range set {
		a.do("set %s", x)
	}
	return a
}

func addrs(list []netip.Addr) string {
	s := make([]string, len(list))
	for i, a := range list {
		s[i] = a.String()
	}
	return strings.Join(s, " ")
}

// options are those of a Stack, but that a path is given up as soon as by the program after "set
// pathmax 2".
var options = func() sctp.Options {
	o := sctphost.DefaultOptions()
	o.RTOInitial, o.PathMaxRetrans = o.RTOMin, 2
	return o
}()

// connect sets the association up, from us or from the program.
func (a *association) connect(active bool) {
	a.t.Helper()
	if active {
		a.do("listen %d %s", a.port, addrs(a.Theirs))
		a.mu.Lock() // until conn is there
		c, err := a.SCTP.Dial(a.ctx, sctphost.DialConfig{
			Local: a.Ours[0], Addrs: a.Ours, Remote: netip.AddrPortFrom(a.Theirs[0], a.port),
			Options: &options, Handler: a,
		})
		a.conn = c
		a.mu.Unlock()
		if err != nil {
			a.t.Fatal(err)
		}
	} else {
		accepted := make(chan struct{})
		l, err := a.SCTP.Listen(sctphost.ListenConfig{
			Addr: netip.AddrPortFrom(a.Ours[0], a.port), Addrs: a.Ours, Options: &options,
			Accept: func(c *sctphost.Conn) sctphost.Handler {
				a.mu.Lock()
				a.conn = c
				a.mu.Unlock()
				close(accepted)
				return a
			},
		})
		if err != nil {
			a.t.Fatal(err)
		}
		a.t.Cleanup(func() { l.Close() })
		a.do("connect %d %v 0 %s", a.port, a.Ours[0], addrs(a.Theirs))
		select {
		case <-accepted:
		case <-a.ctx.Done():
			a.t.Fatal("nobody connected")
		}
	}
	a.said("up")
}

// bulk sends count messages either way at once, and checks all.
func (a *association) bulk(count, streams, size int, unordered bool, meanwhile func()) {
	a.t.Helper()
	flags := "-"
	if unordered {
		flags = "u"
	}
	a.do("read check")
	a.do("bulk %d %d 16 %s %d", count, streams, flags, size)
	half := make(chan struct{})
	over := make(chan error, 1)
	go func() {
		var sendErr error
		for n := 0; n < count && sendErr == nil; {
			a.mu.Lock()
			change := a.change
			a.mu.Unlock()
			o := sctp.SendOptions{Stream: uint16(n % streams), PPID: 17, Unordered: unordered}
			id, err := a.conn.Send(o, bytes.NewReader(sctppeer.Fill(n, size)), false)
			switch {
			case err != nil:
				sendErr = err
			case id != 0:
				if n++; n == count/2 {
					close(half)
				}
			default:
				select {
				case <-change:
				case <-a.ctx.Done():
					sendErr = a.ctx.Err()
				}
			}
		}
		over <- sendErr
	}()
	if meanwhile != nil {
		select {
		case <-half:
			meanwhile()
		case err := <-over:
			a.t.Fatalf("send: %v", err)
		}
	}
	if err := <-over; err != nil {
		a.t.Fatalf("send: %v", err)
	}
	a.until(fmt.Sprintf("%d messages", count), func() bool { return len(a.received) >= count })
	next, seen := make([]int, streams), map[int]bool{}
	for _, m := range a.received {
		n := int(binary.BigEndian.Uint32(m.data))
		if !bytes.Equal(m.data, sctppeer.Fill(n, size)) || m.ppid != 16 || m.unordered != unordered ||
			int(m.stream) != n%streams || seen[n] {
			a.t.Fatalf("message %d on stream %d, PPID %d, is not as it was sent", n, m.stream, m.ppid)
		}
		seen[n] = true
		if !unordered && next[m.stream] != n/streams {
			a.t.Fatalf("stream %d: message %d instead of %d", m.stream, n/streams, next[m.stream])
		}
		next[m.stream]++
	}
	a.received = nil
	clear(next)
	clear(seen)
	for range count {
		var stream, n, order, got int
		line := a.said("good")
		if _, err := fmt.Sscanf(line, "good %d %d %d %d", &stream, &n, &order, &got); err != nil ||
			seen[n] || stream != n%streams || got != size {
			a.t.Fatalf("the peer got: %s (%v)", line, err)
		}
		seen[n] = true
		if !unordered && next[stream] != n/streams {
			a.t.Fatalf("stream %d: message %d reached the peer instead of %d", stream, n/streams,
				next[stream])
		}
		next[stream]++
	}
}

// end ends the association by a shutdown of either side.
func (a *association) end(byUs bool) {
	a.t.Helper()
	if byUs {
		a.conn.Shutdown()
	} else {
		a.do("shutdown")
	}
	a.ended(nil)
	a.said("down", "end") // whichever the program has reason to say first
}

// ended waits for the end on our side; as is the errors.As target that it must fit, nil none.
func (a *association) ended(as any) {
	a.t.Helper()
	select {
	case err := <-a.down:
		if as == nil && err != nil || as != nil && !errors.As(err, as) {
			a.t.Errorf("the association ended by %v", err)
		}
	case <-a.ctx.Done():
		a.t.Errorf("the association has not ended")
	}
}

func roles(t *testing.T, f func(*testing.T, bool)) {
	t.Run("we connect", func(t *testing.T) { f(t, true) })
	t.Run("the peer connects", func(t *testing.T) { f(t, false) })
}

// Data is the test of associations in both roles: ordered and unordered messages on several
// streams, whole and in fragments, both ways at once, and shutdown by either side.
func (p *Plain) Data(t *testing.T) {
	roles(t, func(t *testing.T, active bool) {
		for _, c := range []struct {
			count, streams, size int
			unordered, byUs      bool
		}{{400, 7, 1200, false, true}, {400, 7, 1200, true, false}, {20, 3, 60_000, false, false},
			{20, 3, 60_000, true, true}} {
			t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
				a := p.begin(t)
				a.connect(active)
				a.bulk(c.count, c.streams, c.size, c.unordered, nil)
				a.end(c.byUs)
			})
		}
	})
}

// Abort is the test of aborts, and of what the other side hears of them.
func (p *Plain) Abort(t *testing.T) {
	const why = "enough of that"
	roles(t, func(t *testing.T, active bool) {
		a := p.begin(t)
		a.connect(active)
		a.conn.Abort(why)
		if line := a.said("lost"); !strings.Contains(line, hex.EncodeToString([]byte(why))) {
			t.Errorf("the peer says %q", line)
		}
		a = p.begin(t)
		a.connect(active)
		a.do("abort %s", why)
		var e *sctp.PeerAbort
		if a.ended(&e); e == nil || len(e.Causes) != 1 || e.Causes[0].Code != sctp.CauseUserAbort ||
			!p.NoReason && string(e.Causes[0].Info) != why {
			t.Errorf("we see %v", e)
		}
	})
}

// Refused is the test of ports at which nobody listens.
func (p *Plain) Refused(t *testing.T) {
	a := p.begin(t)
	if _, err := a.SCTP.Dial(a.ctx, sctphost.DialConfig{Remote: netip.AddrPortFrom(a.Theirs[0],
		a.port), Handler: a}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("we see %v", err)
	}
	begin := time.Now()
	// the answer may be there by then
	_ = a.p.Do(a.ctx, "connect %d %v 0 %s", a.port, a.Ours[0], addrs(a.Theirs))
	a.said("gone Connection re")
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("the peer took %v to see it", d)
	}
}

// Impaired is the test of a network that is not good, both ways.
func (p *Plain) Impaired(t *testing.T, count int) {
	for _, c := range []struct {
		streams, size int
		unordered     bool
	}{{5, 1000, false}, {5, 1000, true}, {3, 12_000, false}, {3, 12_000, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			a := p.begin(t)
			a.connect(c.unordered)
			begin := time.Now()
			a.bulk(max(10, count*1000/c.size), c.streams, c.size, c.unordered, nil)
			t.Logf("%v", time.Since(begin).Round(time.Millisecond))
			a.end(c.unordered)
		})
	}
}

// Multihomed is the test of an association over two pairs of addresses. In the middle of a transfer
// both ways cut breaks the first one; nothing is lost.
func (p *Plain) Multihomed(t *testing.T, cut, mend func()) {
	roles(t, func(t *testing.T, active bool) {
		defer mend()
		a := p.begin(t, "rto 300", "pathmax 2")
		a.connect(active)
		// Both ends know both addresses, and confirm them.
		for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			confirmed := 0
			for _, x := range a.conn.Paths() {
				if x.Confirmed && x.Active {
					confirmed++
				}
			}
			if confirmed == len(a.Theirs) {
				break
			}
			if time.Since(begin) > Patience {
				t.Fatalf("paths: %+v", a.conn.Paths())
			}
		}
		a.do("status")
		if line := a.said("status"); !strings.HasSuffix(line, fmt.Sprintf(" paths %d", len(a.Ours))) {
			t.Errorf("the peer's %s", line)
		}
		a.bulk(300, 4, 3000, false, cut)
		for _, x := range a.conn.Paths() {
			t.Logf("path %v to %v: errors %d, active %v", x.Local, x.Addr, x.Errors, x.Active)
		}
		a.end(active)
	})
}

// Carries says whether an Ethernet frame is IPv4 of a network.
func Carries(frame []byte, n netip.Prefix) bool {
	const ethernet, ip = 14, 20
	if len(frame) < ethernet+ip || frame[12] != 8 || frame[13] != 0 {
		return false
	}
	return n.Contains(netip.AddrFrom4([4]byte(frame[ethernet+12:]))) ||
		n.Contains(netip.AddrFrom4([4]byte(frame[ethernet+16:])))
}
