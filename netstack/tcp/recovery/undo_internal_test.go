package recovery

import "testing"

// A recovery that has lost much ends with little under way: no more than some segments go out at
// once, and the window grows from there to what it is to be (RFC 6582, section 3.2, step 3).
func TestNoBurstAfterRecovery(t *testing.T) {
	s := newSender(100)
	s.ack(10*ms, 1, block(81, 100))
	if got := s.again(10 * ms); len(got) == 0 || got[0] != 1 {
		t.Fatalf("sent again: %v", got)
	}
	s.ack(20*ms, 101)
	if s.Recovering() || s.Room() > 80*mss+maxBurst*mss || s.Window() >= s.Threshold() {
		t.Errorf("room %d, window %d, threshold %d", s.Room(), s.Window(), s.Threshold())
	}
	s.Sent(seg(101)+Seq(s.Room()), mss)
	before := s.Window()
	s.ack(30*ms, 111)
	if w := s.Window(); w < before+9*mss {
		t.Errorf("window %d after %d and ten segments more", w, before)
	}
}

// Of two gaps one was late and one is lost: the window stays as small as it has become.
func TestOneOfTwoLost(t *testing.T) {
	s := newSender(20)
	s.ack(10*ms, 1, block(2, 4), block(6, 20))
	want(t, "lost", s.again(10*ms), 1, 5)
	s.Acked(Ack{At: 12 * ms, Number: seg(5), Blocks: []Block{block(6, 20)}, Early: true})
	if !s.Recovering() || s.Stats.Undone != 0 {
		t.Errorf("recovering %v, %d undone, but nothing is known of the second", s.Recovering(),
			s.Stats.Undone)
	}
	s.ack(21*ms, 21)
	s.ack(21*ms, 21, block(1, 1))
	if s.Stats.Undone != 0 || s.Threshold() != 70*mss {
		t.Errorf("%d undone, threshold %d", s.Stats.Undone, s.Threshold())
	}
}

// Both were late: the second ACK says so before the retransmissions can have arrived.
func TestBothLate(t *testing.T) {
	s := newSender(20)
	s.ack(10*ms, 1, block(2, 4), block(6, 20))
	want(t, "lost", s.again(10*ms), 1, 5)
	s.Acked(Ack{At: 12 * ms, Number: seg(5), Blocks: []Block{block(6, 20)}, Early: true})
	s.Acked(Ack{At: 13 * ms, Number: seg(21), Early: true})
	if s.Recovering() || s.Stats.Undone != 1 || s.Threshold() < 100*mss {
		t.Errorf("recovering %v, %d undone, threshold %d", s.Recovering(), s.Stats.Undone, s.Threshold())
	}
}

// What was found lost and has arrived before it was sent again undoes a recovery by itself.
func TestArrivedBeforeAgain(t *testing.T) {
	s := newSender(20)
	s.ack(10*ms, 1, block(2, 4))
	s.Look(10 * ms)
	if !s.Recovering() {
		t.Fatal("no recovery")
	}
	s.ack(11*ms, 5)
	if s.Recovering() || s.Stats.Undone != 1 || s.Threshold() < 100*mss {
		t.Errorf("recovering %v, %d undone, threshold %d", s.Recovering(), s.Stats.Undone, s.Threshold())
	}
}

// That what was sent again in one recovery was not needed may be known in the next one only: then
// the window is what it was before the first.
func TestUndoOfTwoRecoveries(t *testing.T) {
	s := newSender(40)
	s.ack(10*ms, 1, block(2, 4))
	want(t, "lost", s.again(10*ms), 1)
	s.ack(20*ms, 41) // by the first transmission or the second
	s.Sent(seg(81), mss)
	s.ack(21*ms, 41, block(42, 44))
	want(t, "lost", s.again(21*ms), 41)
	if s.Stats.Recoveries != 2 {
		t.Fatalf("%d recoveries", s.Stats.Recoveries)
	}
	s.ack(22*ms, 45, block(1, 1))
	if s.Stats.Undone != 0 {
		t.Error("undone, though nothing is known of the second")
	}
	s.ack(23*ms, 45, block(41, 41))
	if s.Stats.Undone != 1 || s.Threshold() < 100*mss {
		t.Errorf("%d undone, threshold %d", s.Stats.Undone, s.Threshold())
	}
}

// How late something was is known of the first gap only: an ACK that passes several has no word of
// when the others were filled.
func TestLateOfTheFirst(t *testing.T) {
	s := newSender(40)
	s.reordered, s.late = true, 30*ms
	s.ack(10*ms, 1, block(2, 2))
	s.ack(20*ms, 1, block(4, 4))
	s.late = 0
	s.ack(21*ms, 5)
	if s.late != 11*ms {
		t.Errorf("%v late, want 11 ms", s.late)
	}
	s.ack(22*ms, 5, block(6, 6), block(8, 8))
	s.late = 0
	s.ack(22*ms, 5, block(7, 7))
	s.ack(25*ms, 9)
	if s.late != 3*ms {
		t.Errorf("%v late, want 3 ms", s.late)
	}
	s.ack(30*ms, 9, block(14, 14))
	s.ack(31*ms, 10, block(14, 14))
	s.late = 0
	s.board.gaps[0].start = seg(11) // as if what is before had arrived without a word
	s.ack(39*ms, 15)
	if s.late != 0 {
		t.Errorf("%v late, of which nothing is known", s.late)
	}
}

// The same where the second is a timeout: the machine stood still.
func TestUndoOfTimeoutBehindRecovery(t *testing.T) {
	s := newSender(40)
	s.ack(10*ms, 1, block(2, 4))
	want(t, "lost", s.again(10*ms), 1)
	s.ack(11*ms, 41) // by the first transmission
	s.Sent(seg(81), mss)
	s.Timeout(220 * ms)
	want(t, "after a timeout", s.again(220*ms), 41)
	s.ack(221*ms, 81)
	if s.Recovering() || s.Stats.Undone != 1 || s.Threshold() < 100*mss {
		t.Errorf("recovering %v, %d undone, threshold %d", s.Recovering(), s.Stats.Undone, s.Threshold())
	}
}

// Where a retransmission has repaired a loss before the timeout that loss stays punished: F-RTO
// speaks of the timeout (RFC 5682, section 3.2), and ACKs of before it do, too (RFC 3522).
func TestUndoOfTimeoutBehindLoss(t *testing.T) {
	for name, a := range map[string]Ack{
		"F-RTO":      {At: 221 * ms, Number: seg(81)},
		"timestamps": {At: 221 * ms, Number: seg(42), Early: true},
	} {
		s := newSender(40)
		s.ack(10*ms, 1, block(2, 4))
		want(t, "lost", s.again(10*ms), 1)
		s.ack(21*ms, 41) // by the second transmission
		s.Sent(seg(81), mss)
		s.Timeout(220 * ms)
		want(t, "after a timeout", s.again(220*ms), 41)
		s.Acked(a)
		if s.Recovering() || s.Stats.Undone != 1 || s.Threshold() != 70*mss {
			t.Errorf("%s: recovering %v, %d undone, threshold %d", name, s.Recovering(), s.Stats.Undone,
				s.Threshold())
		}
	}
}

// A loss while the window grows back behind a recovery that lost much is cut from what the window
// was to be, not from the little that it was let begin with.
func TestLossWhileGrowingBack(t *testing.T) {
	s := newSender(100)
	s.ack(10*ms, 1, block(81, 100))
	s.again(10 * ms)
	s.ack(20*ms, 101)
	first := s.Threshold()
	s.Sent(seg(101)+Seq(s.Room()), mss)
	s.ack(30*ms, 101, block(102, 105))
	if s.Look(30 * ms); !s.Recovering() || s.Threshold() < first*6/10 {
		t.Errorf("recovering %v, threshold %d after %d", s.Recovering(), s.Threshold(), first)
	}
}
