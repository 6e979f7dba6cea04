package verbs

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/shm"
)

// A verbs program gets all its data, and compares them, on a network that loses, doubles, reorders
// and spoils packets, and knows nothing of it but the time: between two devices, and within one.
func TestImpairedPingpong(t *testing.T) {
	for _, peer := range []string{"rocep1", "rocep0"} {
		t.Run(peer, func(t *testing.T) { impairedPingpong(t, peer) })
	}
}

func impairedPingpong(t *testing.T, peer string) {
	need(t, "ibv_rc_pingpong")
	d := up(t, nil, "--device", "rocep0,addr=10.78.0.2/24,mtu=4200,transport=roce", "--device",
		"rocep1,addr=10.78.0.3/24,mtu=4200,transport=roce")
	if err := d.client.Change(t.Context(), shm.Change{Verb: shm.Set, Key: "impair",
		Value: "both 7 rocep0\ndelay 200us\nloss 1%\nduplicate 2%\ncorrupt 1%\nreorder 2%"}); err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(nextPort.Add(1))
	line := "ibv_rc_pingpong -p " + port + " -g 1 -c -n 150 -s 8192"
	server := d.startOn("rocep0", strings.Fields(line)...)
	listensTCP(t, server)
	client := d.startOn(peer, strings.Fields(line+" 127.0.0.1")...)
	client.succeed(2*time.Minute, `^\d+ bytes in [\d.]+ seconds`, "!invalid data")
	server.succeed(2*time.Minute, "!invalid data")
	rows, err := d.client.List("impair")
	if err != nil || len(rows) != 2 {
		t.Fatalf("%s, %v", rows, err)
	}
	for _, raw := range rows {
		var r struct{ Packets, Lost, Duplicated, Corrupted, Reordered int }
		if err := json.Unmarshal(raw, &r); err != nil || r.Packets < 300 || r.Lost == 0 ||
			r.Duplicated == 0 || r.Corrupted == 0 || r.Reordered == 0 {
			t.Errorf("%s, %v", raw, err)
		}
	}
	if err := d.client.Change(t.Context(), shm.Change{Verb: shm.Del, Key: "impair"}); err != nil {
		t.Error(err)
	}
}
