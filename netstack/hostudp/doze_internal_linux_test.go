package hostudp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/internal/doze/dozetest"
)

// A watched takes datagrams as RoCE does: behind those that have come together it looks for more,
// if they say so.
type watched struct {
	t     *testing.T
	heard chan string

	// The reader's.
	what  string
	batch *Batch
}

func (w *watched) Receive(d *Datagram) {
	w.what, w.batch = string(d.Data), d.Batch
	d.Batch.Defer(w)
}

// Finish implements what Batch.Defer wants.
func (w *watched) Finish() {
	s, more := w.batch.end.s, w.batch.More()
	switch w.what {
	case "look for more":
		if more() {
			w.t.Error("there is more before it was sent")
		}
		say(w.t, s, "found")
		arrived(w.t, s)
		if dozetest.Readable(w.t, s.own.doze, 0) {
			w.t.Error("the poller is told of what somebody looks for")
		}
		if !more() {
			w.t.Error("what has come is not found")
		}
	case "look, and leave":
		if more() {
			w.t.Error("there is more before it was sent")
		}
		say(w.t, s, "left")
		arrived(w.t, s)
	case "look for nothing":
		if more() {
			w.t.Error("there is more, which nobody has sent")
		}
		w.heard <- w.what
	default:
		w.heard <- w.what
	}
}

// say sends s a datagram of its own.
func say(t *testing.T, s *Socket, what string) {
	m := Message{Size: len(what)}
	if err := s.Send(&m, s.Addr(), [][]byte{[]byte(what)}); err != nil {
		t.Error(err)
	}
}

const patience = time.Minute

// arrived waits until the kernel has something for s.
func arrived(t *testing.T, s *Socket) {
	if !dozetest.Readable(t, s.own.raw, patience) {
		t.Error("nothing has come")
	}
}

// While who has received looks for more, nobody is woken for what comes: it is found by looking.
// What is there when the looking ends is received, and so is what comes later.
func TestDoze(t *testing.T) {
	w := &watched{t: t, heard: make(chan string, 1)}
	s, err := Open(netip.MustParseAddr("127.77.5.4"), 14792, w)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, x := range []struct{ say, want string }{
		{"look for more", "found"},
		{"look, and leave", "left"},
		{"look for nothing", "look for nothing"},
		{"behind it", "behind it"},
	} {
		say(t, s, x.say)
		select {
		case got := <-w.heard:
			if got != x.want {
				t.Fatalf("behind %q %q was received, want %q", x.say, got, x.want)
			}
		case <-time.After(patience):
			t.Fatalf("behind %q nothing was received, want %q", x.say, x.want)
		}
	}
}
