package sctpnet

import (
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/vnic"
)

// Associations, be they asked for or awaited, have the times that their host was made with, and
// what DDP needs beside these. The host's own are not changed by that.
func TestOptions(t *testing.T) {
	o := sctphost.DefaultOptions()
	o.UserTimeout, o.HeartbeatInterval = 2*time.Second, 700*time.Millisecond
	h, err := sctphost.New(nil, nil, nil, nil, o) // on no network: nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	n := New(h, nil)
	for _, uses := range [][]vnic.SCTPUse{{vnic.SCTPForDDP}, {vnic.SCTPForDDP, vnic.SCTPForROI}} {
		got := n.ddpOptions(uses...)
		if got.UserTimeout != o.UserTimeout || got.HeartbeatInterval != o.HeartbeatInterval {
			t.Errorf("%v: after %v and %v, want %v and %v", uses, got.UserTimeout, got.HeartbeatInterval,
				o.UserTimeout, o.HeartbeatInterval)
		}
		if got.OutStreams != ddpStreams || got.InStreams != ddpStreams || got.Adaptation == nil {
			t.Errorf("%v: %+v", uses, got)
		}
	}
	if now := h.Options(); now.Adaptation != nil || now.OutStreams != o.OutStreams {
		t.Errorf("the host's own: %+v", now)
	}
}
