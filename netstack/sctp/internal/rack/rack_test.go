package rack

import (
	"testing"
	"time"
)

const ms = time.Millisecond

// A transmission is lost when one after it has arrived and it is late by more than the window.
func TestLost(t *testing.T) {
	var d Detector
	if _, ok := d.Lost(0, 1, 0); ok {
		t.Error("lost before anything has arrived")
	}
	d.Delivered(12*ms, 2*ms, 3, false)
	if by, ok := d.Lost(1*ms, 2, 5*ms); !ok || by != 16*ms {
		t.Errorf("until %v, %t", by, ok)
	}
	if _, ok := d.Lost(3*ms, 4, 0); ok {
		t.Error("lost though sent after what has arrived")
	}
	if d.MinRTT() != 10*ms || d.Window(time.Hour) != 10*ms/4 || d.Window(ms) != ms {
		t.Errorf("round trip %v, window %v", d.MinRTT(), d.Window(time.Hour))
	}
	// What was sent twice and is acknowledged too soon tells nothing of the second time.
	d.Delivered(13*ms, 12*ms, 9, true)
	if _, ok := d.Lost(3*ms, 4, 0); ok {
		t.Error("the first transmission's acknowledgement counts for the second")
	}
	d.Delivered(25*ms, 12*ms, 9, true)
	if by, ok := d.Lost(3*ms, 4, 0); !ok || by != 16*ms {
		t.Errorf("until %v, %t", by, ok)
	}
	// The order wraps.
	d = Detector{}
	d.Delivered(12*ms, 2*ms, 1, false)
	if _, ok := d.Lost(1*ms, ^uint32(0), 0); !ok {
		t.Error("the order does not wrap")
	}
}

// The window is as wide as lateness was, and narrow again when there was none for long.
func TestWindow(t *testing.T) {
	var d Detector
	d.Delivered(10*ms, 0, 5, false)
	if d.Reordered() {
		t.Error("nothing was late")
	}
	d.Delivered(14*ms, 0, 4, false)
	if !d.Reordered() || d.Window(time.Hour) != 5*ms {
		t.Errorf("a window of %v after 4 ms", d.Window(time.Hour))
	}
	d.Spurious(18 * ms)
	if d.Window(time.Hour) != 10*ms {
		t.Errorf("a window of %v after 8 ms", d.Window(time.Hour))
	}
	for range persistFor {
		if d.Window(time.Hour) != 10*ms {
			t.Errorf("a window of %v", d.Window(time.Hour))
		}
		d.Recovered()
	}
	if d.Window(time.Hour) != 10*ms/4 {
		t.Errorf("a window of %v", d.Window(time.Hour))
	}
	// The shortest round trip is that of the last seconds.
	for at := 20 * ms; at < 3*minSpan; at += 100 * ms {
		d.Delivered(at+40*ms, at, 6, false)
	}
	if d.MinRTT() != 40*ms {
		t.Errorf("shortest round trip %v", d.MinRTT())
	}
	if d.Forget(); d.Reordered() || d.MinRTT() != 0 || d.Window(time.Hour) != 1 {
		t.Errorf("%+v", d)
	}
}
