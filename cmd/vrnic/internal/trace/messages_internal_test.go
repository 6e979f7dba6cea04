package trace

import (
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
	"github.com/vrnic/vrnic/roce/packet"
)

// A queue pair of RoCE that is connected again, with lower packet numbers or with the same, has its
// packets known by their requests; what is sent again is of the request that it was of.
func TestRoCEConnectedAgain(t *testing.T) {
	tr := New("roce0", 7, nil, func(*Line) error { return nil })
	connect := func(dest, first uint32) {
		tr.connected(&capture.QP{Dev: "roce0", Num: 7, Dest: &dest, SQPSN: &first})
	}
	out := func(psn packet.PSN) *uint64 {
		return tr.ofPacket(0, &packet.Header{Opcode: packet.SendOnly, PSN: psn})
	}
	post := func(id uint64, behind int) {
		tr.event(&capture.Event{Kind: capture.Post, WRID: id, Op: "SEND", Behind: behind})
	}
	complete := func(id uint64, status string) {
		tr.event(&capture.Event{Kind: capture.Complete, WRID: id, Op: "SEND", Status: status})
	}
	connect(9, 5000)
	post(1, 0)
	post(2, 1)
	want(t, "a Send", out(5000), 1)
	want(t, "the next", out(5001), 2)
	want(t, "the first again", out(5000), 1)
	complete(1, "success")
	complete(2, "flushed")

	connect(10, 100)
	post(3, 0)
	want(t, "a Send of a connection with lower numbers", out(100), 3)
	want(t, "it comes again", out(100), 3)
	complete(3, "success")

	// Reset, and connected to the same: nobody has seen it without a connection.
	post(4, 0)
	post(5, 1)
	want(t, "a Send of a connection with the same numbers", out(100), 4)
	want(t, "the next", out(101), 5)
	want(t, "the first again", out(100), 4)

	// Connected elsewhere while requests are under way, which are over unseen.
	connect(11, 50)
	post(6, 0)
	want(t, "a Send elsewhere", out(50), 6)
}
