package sctp

import (
	"fmt"
	"testing"
	"time"
)

// One that listens for several uses shows the indication of who asks, if it is one of them, and
// both ends know it then.
func TestAnswerAdaptation(t *testing.T) {
	for _, asked := range []uint32{1, 9, 5} {
		w := newWorld(t)
		a, b := w.node("a", Config{Options: Options{Adaptation: &asked}}, addrA),
			w.node("b", Config{}, addrB)
		if err := b.e.Listen(5043, ListenConfig{Options: &Options{
			Adaptation: ptr(uint32(1)), AnswerAdaptation: true,
			AdmitAdaptation: func(code uint32, present bool) bool {
				return present && (code == 1 || code == 9)
			},
		}}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: a.addrs, RemotePort: 5043,
			Remotes: b.addrs}); err != nil {
			t.Fatal(err)
		}
		a.pump()
		w.Run(100 * time.Millisecond)
		if asked == 5 {
			b.want("refused", "ABORT")
			continue
		}
		b.want("passive side", fmt.Sprintf("INIT ACK cookie adaptation=%d", asked), "COOKIE ACK")
		for _, n := range []*node{a, b} {
			if code, ok := n.last.PeerAdaptation(); !ok || code != asked {
				t.Errorf("asked for %d: the peer shows %d, %t", asked, code, ok)
			}
		}
	}
}

// The whole life of an association: set-up, messages both ways, shutdown. SCTP-157, SCTP-042,
// SCTP-047.
func TestLife(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a", Config{Options: Options{Adaptation: ptr(uint32(1))}}, addrA),
		w.node("b", Config{}, addrB)
	if err := b.e.Listen(5043, ListenConfig{Options: &Options{Adaptation: ptr(uint32(0))}}); err !=
		nil {
		t.Fatal(err)
	}
	if _, err := a.e.Dial(w.Now, DialConfig{LocalPort: 4000, Locals: a.addrs, RemotePort: 5043,
		Remotes: b.addrs}); err != nil {
		t.Fatal(err)
	}
	a.pump()
	w.Run(100 * time.Millisecond)
	a.want("active side", "INIT adaptation=1", "COOKIE ECHO")
	b.want("passive side", "INIT ACK cookie adaptation=0", "COOKIE ACK")
	a.post(SendOptions{Stream: 3, PPID: 16, Unordered: true}, "hello")
	w.Run(time.Second)
	a.want("a message", "DATA sid=3 ppid=16 .UBE len=5")
	b.want("the first DATA is acknowledged at once", "SACK")
	b.post(SendOptions{PPID: 17}, text(5000))
	w.Run(time.Second)
	if len(a.msgs) != 1 || a.msgs[0] != text(5000) || b.msgs[0] != "hello" {
		t.Fatalf("a got %q, b got %q", a.msgs, b.msgs)
	}
	a.sent, b.sent = nil, nil
	a.last.Shutdown(w.Now)
	a.pump()
	w.Run(time.Second)
	a.want("shutdown", "SHUTDOWN cum=", "SHUTDOWN COMPLETE")
	b.want("shutdown", "SHUTDOWN ACK")
	if ev := a.wantEvent("down", EventDown); ev.Err != nil {
		t.Fatal(ev.Err)
	}
	if ev := b.wantEvent("down", EventDown); ev.Err != nil {
		t.Fatal(ev.Err)
	}
	if w.refs != 0 || a.e.Associations() != 0 || b.e.Associations() != 0 {
		t.Fatalf("%d packets held, %d and %d associations left", w.refs, a.e.Associations(),
			b.e.Associations())
	}
}
