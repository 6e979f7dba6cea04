package sctppeer_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/sctp"
	"github.com/vrnic/vrnic/netstack/sctp/sctptest"
)

const ppid = 16

// bothRoles runs a test with usrsctp as the passive and as the active side of the set-up.
func bothRoles(t *testing.T, f func(t *testing.T, active bool)) {
	for _, active := range []bool{true, false} {
		name := "vrnic connects"
		if !active {
			name = "usrsctp connects"
		}
		t.Run(name, func(t *testing.T) { f(t, active) })
	}
}

// Associations with usrsctp as it comes, which offers ECN, authentication, reconfiguration, partial
// reliability, NR-SACK and packet drop reports, and as a bare one; data on several streams;
// shutdown by either side. SCTP-015, SCTP-031, SCTP-041, SCTP-047, SCTP-070, SCTP-157, SCTP-173,
// SCTP-175.
func TestUsrsctp(t *testing.T) {
	bothRoles(t, func(t *testing.T, active bool) {
		for _, plain := range []int{0, 1} {
			for _, unordered := range []bool{false, true} {
				for _, weEnd := range []bool{true, false} {
					t.Run(fmt.Sprintf("plain %d unordered %v we end it %v", plain, unordered, weEnd),
						func(t *testing.T) {
							life(t, active, plain, unordered, weEnd)
						})
				}
			}
		}
	})
}

func life(t *testing.T, active bool, plain int, unordered, weEnd bool) {
	w := newWorld(t, sctp.Options{})
	w.connect(active, fmt.Sprintf("plain %d", plain))
	if !active && plain == 0 {
		init := w.theirs[0]
		for _, param := range [][]byte{{0x80, 0x00, 0, 4}, {0x80, 0x08}, {0xc0, 0x00, 0, 4},
			{0x80, 0x02}} {
			if !bytes.Contains(init, param) {
				t.Errorf("usrsctp's INIT lacks %x: %s", param, sctp.Describe(init))
			}
		}
	}
	w.bothWays(50, 5, 700, unordered)

	w.do("read on")
	w.say(sctp.SendOptions{Stream: 3, PPID: 0x01020304}, "the last")
	if weEnd {
		if err := w.assoc.Shutdown(w.Now); err != nil {
			t.Fatal(err)
		}
		w.flush()
		w.said("msg 3 ") // what was sent before is delivered
		w.said("end")
	} else {
		if line := w.said("msg 3 "); !strings.HasSuffix(line, hex.EncodeToString([]byte("the last"))) ||
			!strings.Contains(line, " 16909060 ") {
			t.Errorf("usrsctp got %q", line)
		}
		w.do("shutdown")
		w.event(sctp.EventPeerShutdown)
	}
	if ev := w.event(sctp.EventDown); ev.Err != nil {
		t.Errorf("the association ended by %v", ev.Err)
	}
	if w.assoc.State() != sctp.StateClosed || w.e.Associations() != 0 {
		t.Errorf("state %v, %d associations", w.assoc.State(), w.e.Associations())
	}
	// An INIT ACK with Forward-TSN-Supported (RFC 3758), which is to be reported, is the one thing
	// that is.
	report := active && plain == 0
	for _, b := range append(w.ours, w.theirs...) {
		c := chunks(b)
		if report && c[0] == 10 && bytes.HasSuffix(b, []byte{9, 0, 0, 12, 0, 8, 0, 8, 0xc0, 0, 0, 4}) {
			w.said("reported ")
			report = false
			continue
		}
		if bytes.ContainsAny(c, "\x06\x09") {
			t.Errorf("an ERROR or ABORT was sent: %s", sctp.Describe(b))
		}
	}
	if active {
		if report {
			t.Error("Forward-TSN-Supported was not reported")
		}
		return
	}
	for _, b := range w.theirs {
		if c := chunks(b); c[0] == 10 && len(b)-16 >= 200 {
			t.Errorf("our cookie has %d octets", len(b)-16)
		}
	}
}

// Messages of up to 64 KiB through a network that loses, doubles and reorders, cut into small
// fragments, both ways at once. SCTP-102, SCTP-111.
func TestUsrsctpImpaired(t *testing.T) {
	bothRoles(t, func(t *testing.T, active bool) {
		for seed, c := range []struct {
			loss, dup, late, maxseg, size, count int
			unordered                            bool
		}{
			{0, 0, 0, 200, 65536, 8, false},
			{0, 0, 0, 200, 65536, 8, true},
			{2, 5, 10, 0, 1000, 300, false},
			{5, 5, 10, 0, 1000, 300, true},
			{3, 10, 20, 200, 65536, 6, false},
			{3, 10, 20, 200, 65536, 6, true},
			{10, 20, 30, 0, 3000, 60, false},
			{20, 0, 0, 0, 500, 60, true},
		} {
			t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
				w := newWorld(t, sctp.Options{})
				w.connect(active, fmt.Sprintf("maxseg %d", c.maxseg))
				w.Fate = impaired(uint64(seed), c.loss, c.dup, c.late)
				flags := "-"
				if c.unordered {
					flags = "u"
				}
				const streams = 4
				w.do("read check")
				w.do("bulk %d %d %d %s %d", c.count, streams, ppid, flags, c.size)
				w.sendAll(c.count, sctp.SendOptions{PPID: ppid, Unordered: c.unordered}, streams,
					func(int) int { return c.size })
				w.goodMessages(c.count, streams, c.size, ppid, c.unordered)
				w.goodAtPeer(c.count, streams, func(int) int { return c.size }, c.unordered)
				if err := w.assoc.Shutdown(w.Now); err != nil {
					t.Fatal(err)
				}
				w.flush()
				if ev := w.event(sctp.EventDown); ev.Err != nil {
					t.Errorf("the association ended by %v", ev.Err)
				}
				s := w.e.Stats()
				if s.Malformed+s.BadChecksum+s.BadTag+s.DataDropped != 0 {
					t.Errorf("odd counts: %+v", s)
				}
				t.Logf("%v; sent again %d (fast %d), T3 %d, duplicates %d", w.Now.Sub(sctptest.Start),
					s.Retransmits, s.FastRetransmits, s.Timeouts, s.Duplicates)
			})
		}
	})
}

// Either side aborts, and the other learns why. SCTP-154.
func TestUsrsctpAbort(t *testing.T) {
	bothRoles(t, func(t *testing.T, active bool) {
		const why = "too much of everything"
		w := newWorld(t, sctp.Options{})
		w.connect(active)
		w.assoc.Abort(w.Now, why)
		w.flush()
		// The event carries the chunk: type, flags, length; cause, length, reason.
		if line, want := w.said("lost"), hex.EncodeToString([]byte("\x06\x00\x00\x1e\x00\x0c\x00\x1a"+
			why)); !strings.Contains(line, want) {
			t.Errorf("usrsctp says %q, want %s in it", line, want)
		}

		w = newWorld(t, sctp.Options{})
		w.connect(active)
		w.do("abort %s", why)
		var p *sctp.PeerAbort
		if ev := w.event(sctp.EventDown); !errors.As(ev.Err, &p) || len(p.Causes) != 1 ||
			p.Causes[0].Code != sctp.CauseUserAbort || string(p.Causes[0].Info) != why {
			t.Errorf("we see %v", ev.Err)
		}
	})
}

// The adaptation indication arrives, on both sides and as either. SCTP-169, SDDP-001, SDDP-002.
func TestUsrsctpAdaptation(t *testing.T) {
	bothRoles(t, func(t *testing.T, active bool) {
		code := uint32(1)
		w := newWorld(t, sctp.Options{Adaptation: &code})
		w.connect(active, "adapt 7")
		if line := w.said("adapt"); line != "adapt 1" {
			t.Errorf("usrsctp says %q", line)
		}
		if code, ok := w.assoc.PeerAdaptation(); code != 7 || !ok {
			t.Errorf("we see %d, %v", code, ok)
		}

		w = newWorld(t, sctp.Options{})
		w.connect(active)
		w.Run(time.Second)
		for _, line := range w.peer.Said {
			if strings.HasPrefix(line, "adapt") {
				t.Errorf("we sent none and usrsctp says %q", line)
			}
		}
		if _, ok := w.assoc.PeerAdaptation(); ok {
			t.Error("usrsctp sent none and we see one")
		}
	})
}

// Heartbeats on demand: each side answers the other's with what is in it. SCTP-134.
func TestUsrsctpHeartbeat(t *testing.T) {
	w := newWorld(t, sctp.Options{})
	w.connect(true)
	w.Run(time.Second)
	w.ours, w.theirs = nil, nil
	w.do("heartbeat")
	w.Run(5 * time.Millisecond)
	if len(w.theirs) != 1 || len(w.ours) != 1 {
		t.Fatalf("%d and %d packets", len(w.theirs), len(w.ours))
	}
	if q, a := w.theirs[0], w.ours[0]; q[12] != 4 || a[12] != 5 || !bytes.Equal(q[14:], a[14:]) {
		t.Errorf("%s is answered by %s", sctp.Describe(q), sctp.Describe(a))
	}
	w.ours, w.theirs = nil, nil
	if err := w.assoc.RequestHeartbeat(w.Now, peerAddr); err != nil {
		t.Fatal(err)
	}
	w.flush()
	w.Run(5 * time.Millisecond)
	if len(w.theirs) != 1 || len(w.ours) != 1 || w.ours[0][12] != 4 || w.theirs[0][12] != 5 {
		t.Fatalf("%d and %d packets", len(w.theirs), len(w.ours))
	}
	if p := w.assoc.Paths()[0]; p.Errors != 0 || p.SRTT == 0 {
		t.Errorf("the path is %+v", p)
	}
}

// A reader that stops holds the sender, and one that goes on lets it go on; nothing is lost.
// SCTP-072.
func TestUsrsctpZeroWindow(t *testing.T) {
	const count, streams, size = 200, 3, 2000
	bothRoles(t, func(t *testing.T, active bool) {
		t.Run("usrsctp stops", func(t *testing.T) {
			w := newWorld(t, sctp.Options{SendBuffer: 64 << 10})
			w.connect(active, "rcvbuf 20000")
			w.do("read off")
			w.sendAll(count, sctp.SendOptions{PPID: ppid}, streams, func(int) int { return size })
			w.Run(20 * time.Second)
			sent := len(w.ours)
			w.Run(30 * time.Second)
			// Window probes, no more often than the RTO allows.
			if n := len(w.ours) - sent; n > 31 {
				t.Errorf("%d packets in 30 s, with a window of 0", n)
			}
			if w.assoc.State() != sctp.StateEstablished {
				t.Fatalf("state %v", w.assoc.State())
			}
			// Beyond the window there is one chunk at most, the probe.
			if octets, window := outstanding(w.ours, w.theirs); octets > max(window, 1480-28) ||
				window > 2*size {
				t.Errorf("%d octets are sent with a window of %d", octets, window)
			}
			w.do("read check")
			w.goodAtPeer(count, streams, func(int) int { return size }, false)
		})
		t.Run("we stop", func(t *testing.T) {
			w := newWorld(t, sctp.Options{RecvBuffer: 20000})
			w.connect(active)
			w.keep = true
			w.do("bulk %d %d %d - %d", count, streams, ppid, size)
			w.Run(20 * time.Second)
			sent, came := len(w.theirs), len(w.received)
			w.Run(30 * time.Second)
			if n := len(w.theirs) - sent; n > 31 {
				t.Errorf("usrsctp sends %d packets in 30 s, with a window of 0", n)
			}
			if n := len(w.received) * size; len(w.received) != came || n > 20000 {
				t.Errorf("%d messages, then %d", came, len(w.received))
			}
			w.keep = false
			for _, m := range w.held {
				m.Release()
			}
			w.flush()
			w.goodMessages(count, streams, size, ppid, false)
		})
	})
}

// Nobody listens: the one who asks learns it at once. SCTP-151.
func TestUsrsctpRefused(t *testing.T) {
	w := newWorld(t, sctp.Options{})
	w.do("connect %d x %d", peerPort, ourPort)
	w.Until("usrsctp to give up", 100*time.Millisecond, func() bool {
		return len(w.peer.Said) > 0
	})
	if s := strings.Join(w.peer.Said, "; "); !strings.Contains(s, "Connection refused") &&
		!strings.Contains(s, "failed") {
		t.Errorf("usrsctp says %q", s)
	}

	w = newWorld(t, sctp.Options{})
	w.begin()
	var p *sctp.PeerAbort
	if ev := w.event(sctp.EventDown); !errors.As(ev.Err, &p) || !p.Refused() {
		t.Errorf("we see %v", ev.Err)
	}
	if d := w.Now.Sub(sctptest.Start); d > 100*time.Millisecond {
		t.Errorf("it took %v", d)
	}
}

// A peer that allows four streams gets no fifth one. SCTP-024.
func TestUsrsctpStreams(t *testing.T) {
	bothRoles(t, func(t *testing.T, active bool) {
		w := newWorld(t, sctp.Options{OutStreams: 10, InStreams: 6})
		w.connect(active, "in 4", "out 9")
		if out, in := w.assoc.Streams(); out != 4 || in != 6 {
			t.Errorf("%d out, %d in", out, in)
		}
		w.say(sctp.SendOptions{Stream: 3}, "three")
		w.said("msg 3 ")
		if _, err := w.assoc.Send(w.Now, sctp.SendOptions{Stream: 4},
			strings.NewReader("four")); !errors.Is(err, sctp.ErrStream) {
			t.Errorf("stream 4: %v", err)
		}
		w.do("send 5 0 - 616263")
		w.Until("a message", time.Second, func() bool { return len(w.received) == 1 })
		if err := w.peer.Do("send 6 0 - 616263"); err == nil {
			t.Error("usrsctp sends on stream 6 of 6")
		}
	})
}

// A message with the I bit is acknowledged at once, one without it later. SCTP-092.
func TestUsrsctpImmediate(t *testing.T) {
	for flags, limit := range map[string]time.Duration{"i": 2 * time.Millisecond,
		"-": 200 * time.Millisecond} {
		w := newWorld(t, sctp.Options{})
		w.connect(true)
		w.do("send 0 0 - 00") // the first one is acknowledged at once anyhow
		w.Run(time.Second)
		w.ours = nil
		begin := w.Now
		w.do("send 0 0 %s 616263", flags)
		w.Until("a SACK", time.Second, func() bool { return len(w.ours) > 0 })
		// The message took a millisecond.
		if d := w.Now.Sub(begin); d > limit+time.Millisecond || flags == "-" && d < 100*time.Millisecond {
			t.Errorf("flags %s: a SACK after %v", flags, d)
		}
	}
}

// Whoever has lost the association says so: DATA for what we do not know is answered by an ABORT
// that usrsctp takes. SCTP-153.
func TestUsrsctpDead(t *testing.T) {
	w := newWorld(t, sctp.Options{})
	w.connect(true)
	w.reboot()
	w.do("send 0 0 - 616263")
	w.said("lost")
	// The tag is that of the packet that came, which the T bit says: usrsctp would not look.
	abort := w.ours[len(w.ours)-1]
	if data := w.theirs[len(w.theirs)-1]; abort[12] != 6 || abort[13] != 1 || !bytes.Equal(abort[4:8],
		data[4:8]) {
		t.Errorf("%s is answered by %s", sctp.Describe(data), sctp.Describe(abort))
	}
}

// Restarts of either side under the same ports: the other is told, and the new association works.
// SCTP-059.
func TestUsrsctpRestart(t *testing.T) {
	t.Run("of vrnic", func(t *testing.T) {
		w := newWorld(t, sctp.Options{})
		w.connect(true)
		w.say(sctp.SendOptions{}, "before")
		w.said("msg 0 0 ")
		w.cfg.Rand = sctptest.Seeded(2) // new tags
		w.reboot()
		w.begin()
		w.event(sctp.EventUp)
		w.said("restart")
		w.say(sctp.SendOptions{}, "after")
		w.said("msg 0 0 ")
		w.do("send 0 0 - 616263")
		w.Until("a message", time.Second, func() bool { return len(w.received) == 1 })
	})
	t.Run("of usrsctp", func(t *testing.T) {
		w := newWorld(t, sctp.Options{})
		w.connect(false)
		w.start(build(t))
		w.do("connect %d x %d", peerPort, ourPort)
		if ev := w.event(sctp.EventDown); !errors.Is(ev.Err, sctp.ErrRestarted) {
			t.Errorf("we see %v", ev.Err)
		}
		if ev := w.event(sctp.EventUp); !ev.Inbound {
			t.Error("the new association is not inbound")
		}
		w.said("up")
		w.say(sctp.SendOptions{}, "after")
		w.said("msg 0 0 ")
		w.do("send 0 0 - 616263")
		w.Until("a message", time.Second, func() bool { return len(w.received) == 1 })
	})
}

// Many networks, good and bad, and messages around the size of a chunk. SCTP-102, SCTP-111.
func TestUsrsctpSeeds(t *testing.T) {
	for seed := range 60 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, sctp.Options{})
			size, count := []int{100, 1000, 1452, 1453, 5000, 40_000}[seed%6], 20+seed%50
			if size > 4000 {
				count = 10
			}
			w.Fate = impaired(uint64(seed), seed%17, seed%13, seed%29)
			w.connect(seed%2 == 0, fmt.Sprintf("maxseg %d", []int{0, 300, 1000}[seed%3]))
			w.bothWays(count, 3, size, seed%4 < 2)
			if err := w.assoc.Shutdown(w.Now); err != nil {
				t.Fatal(err)
			}
			w.flush()
			if ev := w.event(sctp.EventDown); ev.Err != nil {
				t.Errorf("the association ended by %v", ev.Err)
			}
		})
	}
}
