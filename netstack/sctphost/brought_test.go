package sctphost_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctphost"
)

// A pipeEnd is a port whose frames somebody carries to the other one.
type pipeEnd struct {
	frames chan []byte
	at     *ethswitch.Attachment
}

func newPipeEnd(t *testing.T, sw *ethswitch.Switch) *pipeEnd {
	t.Helper()
	e := &pipeEnd{frames: make(chan []byte, 1024)}
	at, err := sw.Attach(ethswitch.PortOptions{Name: "pipe", Kind: "memory"}, e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(at.Detach)
	e.at = at
	return e
}

// Transmit implements ethswitch.Port.
func (e *pipeEnd) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	e.frames <- f.AppendTo(nil)
	return true
}

func (*pipeEnd) Offloads(frame.GSO) bool { return false }
func (*pipeEnd) String() string          { return "pipe" }

// A deferrer answers what has come when all of it has.
type deferrer struct {
	t        *testing.T
	conn     *sctphost.Conn
	got      int
	deferred int  // calls of Defer that did not fail
	answered bool // what Defer was given has run
}

func (d *deferrer) Message(m *sctp.Message) {
	d.got++
	d.conn.Release(m, true)
	first := d.got == 2
	if d.conn.Defer(func() {
		if !first {
			return
		}
		d.answered = true
		if d.got != 4 {
			d.t.Errorf("called when %d messages are there", d.got)
		}
		if id, err := d.conn.Send(sctp.SendOptions{}, bytes.NewReader([]byte("all")),
			false); id == 0 {
			d.t.Error(err)
		}
	}) {
		d.deferred++
	}
}

func (*deferrer) Event(*sctp.Event) {}
func (*deferrer) Down(error)        {}

// What a handler leaves to the goroutine that brings packets is done by that, behind all messages
// that have come together, and may send: the answer is out when the packets have been brought.
// Where somebody else hands messages out it is not done.
func TestDefer(t *testing.T) {
	clock := faketime.NewManualClock() // so that no timer's goroutine hands anything out
	var ends [2]*pipeEnd
	var stacks [2]*netstack.Stack
	for i := range ends {
		sw := ethswitch.New(ethswitch.Config{})
		ends[i] = newPipeEnd(t, sw)
		var err error
		stacks[i], err = netstack.NewStack(sw, netstack.Config{Name: fmt.Sprintf("vrnic%d", i),
			Addrs: netstacktest.Addresses(i + 1)[:1], Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stacks[i].Close() })
	}
	x, y := ends[0], ends[1]
	courier := ethswitch.NewCourier(y.at)
	to, from := &deferrer{t: t}, newSCTPPeer(false)
	l, err := stacks[1].SCTP().Listen(sctphost.ListenConfig{
		Addr:   netip.AddrPortFrom(stacks[1].Addrs()[0].Addr(), 7),
		Accept: func(c *sctphost.Conn) sctphost.Handler { to.conn = c; return to }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	up := make(chan error, 1)
	go func() {
		c, err := stacks[0].SCTP().Dial(t.Context(), sctphost.DialConfig{Remote: l.Addr(),
			Handler: from})
		from.conn = c
		up <- err
	}()
	next := func(e *pipeEnd) *frame.Frame {
		t.Helper()
		select {
		case f := <-e.frames:
			return frame.New(f, frame.Offload{})
		case <-time.After(time.Minute):
			t.Fatal("no frame comes")
			return nil
		}
	}
	bring := func(to *pipeEnd, f *frame.Frame) {
		_ = to.at.Input(f) // counts what it drops
		f.Release()
	}
	for dialing := true; dialing; {
		select {
		case f := <-x.frames:
			courier.Bring(frame.New(f, frame.Offload{}), true, nil)
		case f := <-y.frames:
			bring(x, frame.New(f, frame.Offload{}))
		case err := <-up:
			if dialing = false; err != nil {
				t.Fatal(err)
			}
		}
	}
	send := func() {
		t.Helper()
		if id, err := from.conn.Send(sctp.SendOptions{}, bytes.NewReader(make([]byte, 1200)),
			false); id == 0 {
			t.Fatal(err)
		}
	}
	send() // IP comes to know the two ends
	for to.got == 0 {
		courier.Bring(next(x), true, nil)
	}

	before := to.deferred
	for range 3 {
		send()
	}
	for range 3 {
		courier.Gather(next(x))
	}
	courier.BringAll()
	if n := to.deferred - before; n != 3 || !to.answered {
		t.Errorf("of 3 messages that came together %d were left to who brought them; answered: %t", n,
			to.answered)
	}
	for len(from.got) == 0 {
		bring(x, next(y))
	}
	if got := <-from.got; string(got) != "all" {
		t.Errorf("%q came back", got)
	}

	before = to.deferred
	send()
	for to.got < 5 {
		bring(y, next(x))
	}
	if to.deferred != before {
		t.Error("a message was left to who brings nothing")
	}
}
