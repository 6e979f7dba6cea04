package recovery

import (
	"fmt"
	"math"
	"testing"
	"time"
)

const (
	ms  = time.Millisecond
	mss = 1000
)

// newSender has segments 1 to n under way, of 1000 octets each, on a path of 10 ms.
func newSender(n int) *Sender {
	s := new(Sender)
	s.Init(0, mss)
	s.cwnd = 100 * mss
	s.RTT(0, 10*ms)
	s.Sent(Seq(n*mss), mss)
	return s
}

// seg is where segment i begins, the first one being 1.
func seg(i int) Seq { return Seq((i - 1) * mss) }

// block is segments from up to to.
func block(from, to int) Block { return Block{seg(from), seg(to + 1)} }

// ack acknowledges all before segment next, and blocks.
func (s *Sender) ack(at time.Duration, next int, blocks ...Block) {
	s.Acked(Ack{At: at, Number: seg(next), Blocks: blocks})
}

// again looks at the time, and returns the first segments of what is to be sent again.
func (s *Sender) again(now time.Duration) (segments []int) {
	s.Look(now)
	s.Pace()
	for {
		b, ok := s.Next(now)
		if !ok {
			return segments
		}
		segments = append(segments, int(b.Start)/mss+1)
	}
}

func want(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: segments %v, want %v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: segments %v, want %v", what, got, want)
		}
	}
}

// As long as nothing was ever late three segments behind a gap say that it is lost.
func TestThreeBehind(t *testing.T) {
	s := newSender(10)
	s.ack(10*ms, 1, block(2, 2))
	s.ack(10*ms, 1, block(2, 3))
	want(t, "two behind", s.again(10*ms))
	s.ack(10*ms, 1, block(2, 4))
	want(t, "three behind", s.again(10*ms), 1)
	if w := s.Threshold(); w != 70*mss {
		t.Errorf("threshold %d after a loss at 100 segments, want 70", w)
	}
	s.ack(20*ms, 11)
	if s.Recovering() || s.Window() > 2*maxBurst*mss {
		t.Errorf("recovering %v, window %d when all has arrived", s.Recovering(), s.Window())
	}
}

// With fewer behind it a gap is lost a quarter of a round trip later.
func TestQuarterOfARoundTrip(t *testing.T) {
	s := newSender(3)
	s.ack(10*ms, 1, block(2, 2))
	if next := s.Look(10 * ms); next != 10*ms+10*ms/4 {
		t.Errorf("looks again at %v", next)
	}
	want(t, "a quarter later", s.again(10*ms+10*ms/4), 1)
}

// What has come late once is waited for, for as long as that took.
func TestLate(t *testing.T) {
	s := newSender(40)
	s.ack(10*ms, 1, block(2, 2))
	s.ack(14*ms, 3) // segment 1 came 4 ms late
	if s.Recovering() {
		t.Fatal("it was taken for a loss")
	}
	s.ack(20*ms, 3, block(4, 20))
	want(t, "4 ms later", s.again(24*ms))
	s.ack(24*ms, 21)
	s.ack(30*ms, 21, block(22, 39))
	want(t, "4.9 ms later", s.again(34*ms+900*time.Microsecond))
	want(t, "5 ms later", s.again(35*ms), 21)
	if s.Stats.Recoveries != 1 {
		t.Errorf("%d recoveries", s.Stats.Recoveries)
	}
}

// A retransmission is lost when something has arrived that was sent after it.
func TestLostAgain(t *testing.T) {
	s := newSender(10)
	s.ack(10*ms, 1, block(2, 10))
	want(t, "lost", s.again(10*ms), 1)
	s.Sent(seg(12), mss) // segment 11 goes out behind it
	s.ack(20*ms, 1, block(2, 11))
	want(t, "lost again", s.again(20*ms), 1)
	if s.Stats.LostAgain != 1 {
		t.Errorf("%d lost again", s.Stats.LostAgain)
	}

	s = newSender(10)
	s.ack(10*ms, 1, block(2, 3), block(5, 10))
	want(t, "two lost", s.again(10*ms), 1, 4)
	s.ack(21*ms, 1, block(2, 10)) // the second retransmission has arrived
	want(t, "overtaken by a retransmission", s.again(21*ms), 1)
}

// A loss that was none gives the window back: the peer has got twice what was sent again.
func TestDuplicateUndoes(t *testing.T) {
	s := newSender(20)
	s.ack(10*ms, 1, block(2, 4))
	want(t, "lost", s.again(10*ms), 1)
	s.ack(11*ms, 5)               // the first transmission
	s.ack(20*ms, 10, block(1, 1)) // the second
	if s.Recovering() || s.Window()+s.pipe() < 26*mss || s.Threshold() < 100*mss ||
		s.Stats.Undone != 1 || s.mult != 2 {
		t.Errorf("recovering %v, window %d, %d undone, mult %d", s.Recovering(), s.Window(),
			s.Stats.Undone, s.mult)
	}
	// The network has doubled something, and nothing is undone.
	s = newSender(20)
	s.ack(10*ms, 5, block(1, 1))
	if s.reordered || s.Stats.Undone != 0 {
		t.Error("a frame that the network has doubled is taken for a retransmission")
	}
}

// The same by timestamps, before the retransmission can have arrived.
func TestEarlyUndoes(t *testing.T) {
	s := newSender(20)
	s.ack(10*ms, 1, block(2, 4))
	want(t, "lost", s.again(10*ms), 1)
	s.Acked(Ack{At: 12 * ms, Number: seg(6), Early: true})
	if s.Recovering() || s.Window() < 25*mss || s.Threshold() < 100*mss || s.Stats.Undone != 1 {
		t.Errorf("recovering %v, window %d, %d undone", s.Recovering(), s.Window(), s.Stats.Undone)
	}
}

// A timeout has all sent again that has not arrived, one segment first, and is undone when the peer
// acknowledges what was not sent again (RFC 5682).
func TestTimeout(t *testing.T) {
	s := newSender(10)
	s.ack(10*ms, 1, block(5, 6))
	s.Timeout(300 * ms)
	want(t, "after a timeout", s.again(300*ms), 1)
	if s.Window() != mss || s.Threshold() != 70*mss {
		t.Errorf("window %d, threshold %d", s.Window(), s.Threshold())
	}
	s.ack(310*ms, 2)
	want(t, "then", s.again(310*ms), 2, 3)
	s.ack(320*ms, 4)
	want(t, "and then", s.again(320*ms), 4, 7, 8, 9)
	s.ack(330*ms, 11)
	if s.Recovering() || s.Stats.Undone != 0 {
		t.Errorf("recovering %v, %d undone", s.Recovering(), s.Stats.Undone)
	}

	s = newSender(10)
	s.Timeout(300 * ms)
	want(t, "after a timeout", s.again(300*ms), 1)
	s.ack(301*ms, 5)
	if s.Recovering() || s.Window() < 16*mss || s.Threshold() < 100*mss || s.Stats.Undone != 1 ||
		s.board.lost != 0 {
		t.Errorf("recovering %v, window %d, %d undone, %d octets lost", s.Recovering(), s.Window(),
			s.Stats.Undone, s.board.lost)
	}
}

// A peer may drop what it has said to have (RFC 2018, section 8). That is seen when all before that
// is acknowledged and nothing more: a timeout has all of it sent again, and not one segment for
// each timeout.
func TestReneging(t *testing.T) {
	s := newSender(10)
	s.ack(10*ms, 1, block(3, 6), block(8, 9))
	s.ack(30*ms, 3) // what was missing has come
	s.Timeout(300 * ms)
	want(t, "after a timeout", s.again(300*ms), 3)
	s.ack(310*ms, 4)
	want(t, "then", s.again(310*ms), 4, 5)
	s.ack(320*ms, 6)
	want(t, "and then", s.again(320*ms), 6, 7, 8, 9)
	s.ack(330*ms, 11)
	if s.Recovering() || s.pipe() != 0 || s.board.open != 0 {
		t.Errorf("at the end: %v", s)
	}
}

// What a peer says that cannot be is passed over.
func TestHostileACKs(t *testing.T) {
	s := newSender(10)
	for _, b := range []Block{{seg(5), seg(5)}, {seg(6), seg(5)}, {seg(5), seg(12)},
		{0x80000000, 0x80000001}, {seg(9), 0x7fffffff}} {
		s.Acked(Ack{Number: 0, Blocks: []Block{b}})
	}
	s.Acked(Ack{Number: seg(11) + 1})
	if s.board.una != 0 || s.board.high != 0 || s.pipe() != 10*mss {
		t.Errorf("una %d, high %d, %d octets under way", s.board.una, s.board.high, s.pipe())
	}
	// One octet in two, of as much as there is.
	s.Sent(maxGaps*8, mss)
	for i := range Seq(maxGaps * 4) {
		s.Acked(Ack{Number: 0, Blocks: []Block{{2*i + 1, 2*i + 2}}})
	}
	if n := len(s.board.gaps); n > maxGaps+1 {
		t.Errorf("%d gaps are kept", n)
	}
}

// In a recovery as much is sent as arrives, times what the window has become less.
func TestProportional(t *testing.T) {
	s := newSender(100)
	s.ack(10*ms, 1, block(2, 4))
	want(t, "lost", s.again(10*ms), 1)
	sent := 0
	for i := 5; i <= 100; i++ {
		s.ack(10*ms, 1, block(2, i))
		s.Look(10 * ms)
		s.Pace()
		if n := s.Room() / mss; n > 0 {
			sent += n
			s.Sent(s.nxt+Seq(n*mss), mss)
		}
	}
	if sent < 65 || sent > 72 {
		t.Errorf("%d segments for 96 that have arrived, want 70 of 100", sent)
	}
}

// CUBIC is back at the window before the loss after K seconds (RFC 9438, section 4.2), and no
// slower than Reno before.
func TestCubic(t *testing.T) {
	var c cubic
	const rtt = 100 * ms
	w := c.lost(1000)
	if w != 700 {
		t.Fatalf("window %v", w)
	}
	k := math.Cbrt(1000 * 0.3 / 0.4)
	at := time.Duration(0)
	for now := time.Second; ; now += rtt {
		if w = c.acked(w, w, now, rtt); w >= 1000 && at == 0 {
			at = now - time.Second
		}
		if now > 20*time.Second {
			break
		}
	}
	if d := at.Seconds() - k; d > 0.3 || d < -0.3 {
		t.Errorf("back at 1000 segments after %v, want %.1f s", at, k)
	}
	c = cubic{}
	w = c.lost(20)
	for now := time.Second; now < 2*time.Second; now += ms {
		w = c.acked(w, w, now, ms)
	}
	if w < 500 {
		t.Errorf("%v segments after 1000 short round trips, Reno would have more than 500", w)
	}
}

// BenchmarkManyGaps is what an ACK costs where as many gaps are known as can be: of a peer that
// makes them, or of a long path that loses every other segment.
func BenchmarkManyGaps(b *testing.B) {
	for _, gaps := range []int{10, 1000, maxGaps - 1} {
		b.Run(fmt.Sprint("gaps=", gaps), func(b *testing.B) {
			s := newSender(2*gaps + 2)
			for i := range gaps {
				s.ack(10*ms, 1, block(2*i+2, 2*i+2))
			}
			s.again(10 * ms)
			now := 10 * ms
			for b.Loop() {
				now++
				s.ack(now, 1, block(2*gaps, 2*gaps))
				s.again(now)
			}
		})
	}
}

// BenchmarkManyLost is what it costs to send one of many gaps again, and to hear that it has come.
func BenchmarkManyLost(b *testing.B) {
	for _, gaps := range []int{10, 1000, maxGaps - 1} {
		b.Run(fmt.Sprint("gaps=", gaps), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := newSender(2*gaps + 2)
				s.cwnd = maxWindow
				for i := range gaps {
					s.ack(10*ms, 1, block(2*i+2, 2*i+2))
				}
				s.Look(10 * ms)
				b.StartTimer()
				for i := range gaps / 2 {
					if _, ok := s.Next(10 * ms); !ok {
						b.Fatal("nothing to send")
					}
					at := 2*(gaps-i) - 1 // from the end
					s.ack(20*ms, 1, block(at, at))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*(gaps/2)), "ns/gap")
		})
	}
}
