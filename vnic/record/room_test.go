package record

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/cm"
	"github.com/vrnic/vrnic/roce/mad"
)

// opened is a Tape of the next subject, which s is about.
func opened(r *Recorder, s Subject) *Tape {
	tape := r.Tape("vrnic0", 3)
	s.Device, s.QPN = tape.about.Device, tape.about.QPN
	tape.about = s
	tape.id = r.open(s)
	return tape
}

// packetsOpened are connections of RoCE made with that.
func packetsOpened(r *Recorder, n int, unreliable bool, c roce.Config) {
	for range n {
		if unreliable {
			opened(r, Subject{Kind: Connection, UC: &c})
		} else {
			opened(r, Subject{Kind: Connection, RC: &c})
		}
	}
}

// A queue that no daemon has is not made, however few octets ask for it.
func TestHostileQueues(t *testing.T) {
	most := roce.Config{MTU: 256, SendQueue: maxRequests, MaxRead: maxKept, MaxDestRead: maxKept}
	for name, change := range map[string]func(c *roce.Config){
		"requests":          func(c *roce.Config) { c.SendQueue = maxRequests + 1 },
		"Reads":             func(c *roce.Config) { c.MaxRead = maxKept + 1 },
		"Reads of the peer": func(c *roce.Config) { c.MaxDestRead = maxKept + 1 },
		"fewer than none":   func(c *roce.Config) { c.MaxDestRead = -1 },
	} {
		c := most
		change(&c)
		for _, unreliable := range []bool{false, true} {
			b := written(t, func(r *Recorder) { packetsOpened(r, 1, unreliable, c) })
			if o := play(b); !errors.Is(o.err, errNoCall) {
				t.Errorf("%s, unreliable %v: %v", name, unreliable, o.err)
			}
		}
		b := written(t, func(r *Recorder) {
			tape := opened(r, Subject{Kind: Connection, RC: &roce.Config{MTU: 256}})
			tape.call(opUpdate, nil, asText(&c))
			tape.done(0, nil, nil)
		})
		if o := play(b); !errors.Is(o.err, errNoCall) {
			t.Errorf("%s, later on: %v", name, o.err)
		}
	}
	b := written(t, func(r *Recorder) { packetsOpened(r, 1, false, most) })
	if o := play(b); !errors.Is(o.err, io.EOF) {
		t.Errorf("what a daemon may have: %v", o.err)
	}
}

// wideStreams records endpoints of SCTP, between which there come to be associations with as many
// streams as there can be, over each of which a message is sent, or waits for one before it.
func wideStreams(t testing.TB, r *Recorder, n, octets int, early bool) {
	t.Helper()
	now := time.Unix(1, 0)
	addrs := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	opt := sctp.Options{SendBuffer: 1 << 20, RecvBuffer: 1 << 20}
	if octets == 0 {
		opt.OutStreams, opt.InStreams = math.MaxUint16, math.MaxUint16
	}
	var e [2]*sctp.Endpoint
	for i := range e {
		var err error
		e[i], err = sctp.NewEndpoint(sctp.Config{Rand: rand.NewChaCha8([32]byte{byte(i)}),
			Journal: NewSCTP(r.Tape("vrnic0", 0)), Options: opt})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := e[1].Listen(7, sctp.ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	carry := func(lost bool) {
		for range 6 {
			for i := range e {
				for d, ok := e[i].Output(now, nil); ok; d, ok = e[i].Output(now, nil) {
					if !lost {
						e[1-i].Input(now, sctp.Packet{Src: d.Src, Dst: d.Dst, Data: d.Data})
					}
					lost = false
				}
				for _, ok := e[i].NextEvent(); ok; _, ok = e[i].NextEvent() {
				}
			}
		}
	}
	for i := range n {
		a, err := e[0].Dial(now, sctp.DialConfig{LocalPort: uint16(9 + i), Locals: addrs[:1],
			RemotePort: 7, Remotes: addrs[1:]})
		if err != nil {
			t.Fatal(err)
		}
		carry(false)
		if octets > 0 {
			if _, err := a.Send(now, sctp.SendOptions{}, bytes.NewReader(make([]byte, octets))); err != nil {
				t.Fatal(err)
			}
		}
		if early {
			carry(true)
		}
	}
}

// However many engines a file has: together they hold no more than a replay may, and each is no
// more than a daemon's. Without that a file of a megabyte took the memory of the machine.
func TestHeldInAll(t *testing.T) {
	const left = 1 << 20 // which the engines before these have not taken
	for name, f := range map[string]func(r *Recorder){
		"RC": func(r *Recorder) {
			packetsOpened(r, 100, false, roce.Config{MTU: 256, SendQueue: maxRequests})
		},
		"Reads of the peer": func(r *Recorder) {
			packetsOpened(r, 100, false, roce.Config{MTU: 256, MaxDestRead: maxKept})
		},
		"Reads of the peer, later on": func(r *Recorder) {
			for range 100 {
				tape := opened(r, Subject{Kind: Connection, RC: &roce.Config{MTU: 256}})
				tape.call(opUpdate, nil, asText(&roce.Config{MTU: 256, MaxDestRead: maxKept}))
				tape.done(0, nil, nil)
			}
		},
		"UC": func(r *Recorder) {
			packetsOpened(r, 100, true, roce.Config{MTU: 256, SendQueue: maxRequests})
		},
		"FPDUs that have begun": func(r *Recorder) {
			for range 100 {
				e := NewEndpoint(r.Tape("vrnic0", 3), iwarp.Params{}, &host{}, iwarp.Config{})
				_, _ = e.Write([]byte{0xff, 0xf0, 0, 0, 0, 0, 0})
			}
		},
		"SCTP": func(r *Recorder) {
			for range 1000 {
				NewSCTP(r.Tape("vrnic0", 0))
			}
		},
		"streams":              func(r *Recorder) { wideStreams(t, r, 4, 0, false) },
		"messages of SCTP":     func(r *Recorder) { wideStreams(t, r, 8, 400_000, false) },
		"connection managers":  managersOpened,
		"what a Manager keeps": managerWith,
		"messages behind one that is missing": func(r *Recorder) {
			wideStreams(t, r, 40, 20_000, true)
		},
	} {
		in, err := NewReader(bytes.NewReader(written(t, f)))
		if err != nil {
			t.Fatal(err)
		}
		p := NewPlayer(in.Meta)
		p.held = heldRoom - left
		for err == nil {
			var rec Record
			if rec, err = in.Next(); err == nil {
				_, _, err = p.Take(&rec)
			}
		}
		if !errors.Is(err, errHeld) {
			t.Errorf("%s: %v, with %d octets of %d", name, err, p.held-(heldRoom-left), left)
		}
	}
}

// managersOpened are many Managers that have nothing.
func managersOpened(r *Recorder) {
	for range 1500 {
		NewManager(r.Tape("rocep0", 0), cm.New(cm.Config{}), &cm.Config{})
	}
}

// managerWith is a Manager that begins with many listeners.
func managerWith(r *Recorder) {
	m := cm.New(cm.Config{})
	for i := range 2000 {
		_, _ = m.Listen(r.began, &cm.ListenRequest{Service: cm.Service{Space: mad.PortSpaceTCP,
			Port: uint16(i + 1)}, Addr: netip.MustParseAddr("10.0.0.1"), Backlog: 3})
	}
	NewManager(r.Tape("rocep0", 0), m, &cm.Config{})
}

// Engines are given the same room to read into: a file may have each be asked for much at once.
func TestRoomToRead(t *testing.T) {
	b := written(t, func(r *Recorder) {
		for range 20 {
			tape := opened(r, Subject{Kind: Connection, IWARP: &IWARP{}})
			tape.call(opRead, nil, "", maxOctets)
			tape.done(0, nil, nil)
		}
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if o := play(b); !errors.Is(o.err, io.EOF) {
		t.Fatal(o.err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 2*maxOctets {
		t.Errorf("%d octets were taken", n)
	}
}

// A packet is kept as long as there is a message in it, and counts as long: what is sent and taken
// over and over again is not held.
func TestHeldIsGivenBack(t *testing.T) {
	b := written(t, func(r *Recorder) { associate(t, r, 9, 10, 11, 12) })
	in, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	p := NewPlayer(in.Meta)
	most, kept := 0, 0
	for err == nil {
		var rec Record
		if rec, err = in.Next(); err == nil {
			_, _, err = p.Take(&rec)
		}
		kept = 0
		for _, c := range p.conns {
			kept += c.engine.(*sctpPlayer).kept
		}
		most = max(most, kept)
	}
	if !errors.Is(err, io.EOF) || most == 0 || kept != 0 {
		t.Errorf("%d octets of packets are kept behind the end, and %d before: %v", kept, most, err)
	}
}
