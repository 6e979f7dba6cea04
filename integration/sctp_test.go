package integration

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/integration/sctppeer/peertest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// Two daemons of an ordinary user, and programs on them over SCTP: data moves both ways, over IPv4
// and IPv6, and what passes is what tshark calls SCTP with DDP in it. SCTP-001, SCTP-004.
func TestSCTPUnixLink(t *testing.T) {
	a, b, wire := tapped(t)
	for i, addr := range addrsA {
		server := a.serve("-a", addr)
		for _, size := range sizes {
			b.ping(addr, 3, size, "--sctp")
		}
		b.ping(addr, 3, 100) // the same server over TCP
		server.interrupt()
		server = b.serve("-a", addrsB[i])
		a.ping(addrsB[i], 3, 65535, "--sctp")
		server.interrupt()
	}
	b.stop()
	a.stop()
	checkSCTP(t, wire.stop())
}

// The same over TAPs, in two namespaces that bridges join.
func TestSCTPBridge(t *testing.T) {
	lab := newLab(t)
	a := up(t, lab.A, "--device", deviceA, "--port", "tap:ta")
	b := up(t, lab.B, "--device", deviceB, "--port", "tap:tb")
	for ns, tap := range map[*netlab.NS]string{lab.A: "ta", lab.B: "tb"} {
		if err := lab.Plug(ns, tap); err != nil {
			t.Fatal(err)
		}
	}
	wire := sniff(t, lab.A, "ta")
	for i := range addrsA {
		server := a.serve("-a", addrsA[i])
		for _, size := range sizes {
			b.ping(addrsA[i], 3, size, "--sctp")
		}
		server.interrupt()
	}
	b.stop() // it shuts its associations down
	pcap := wire.stop()
	a.stop()
	checkSCTP(t, pcap)
}

// SCTP over UDP sockets of the host: no port on the switch, no privilege, and so it passes what
// passes UDP. SCTP-176.
func TestSCTPUDP(t *testing.T) {
	a := up(t, nil, "--device", "vrnic0,host=127.77.0.2")
	b := up(t, nil, "--device", "vrnic0,host=127.77.0.3,sctp-udp=9999")
	server := a.serve()
	for _, size := range sizes {
		b.ping("127.77.0.2", 3, size, "--sctp")
	}
	b.ping("127.77.0.2", 3, 100) // the same server over TCP
	server.interrupt()
	for _, d := range []*daemon{a, b} {
		proctest.Eventually(t, patience, "the QPs of all programs are gone",
			func() bool { return len(d.show("qp")) == 0 })
	}
}

// checkSCTP has tshark look at a recording: set-up, DDP's indication and both PPIDs are there,
// every checksum is good, and nothing is malformed or aborted.
func checkSCTP(t *testing.T, pcap string) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	options := peertest.TsharkOptions()
	count := func(filter string) int {
		return strings.Count(tshark(t, pcap, append(options, "-Y", filter)...), "\n")
	}
	for filter, what := range map[string]string{
		"sctp.chunk_type == 1 && sctp.adaptation_layer_indication == 1": "INIT with DDP's indication",
		"sctp.chunk_type == 2 && sctp.adaptation_layer_indication == 1": "INIT ACK with it",
		"sctp.data_payload_proto_id == 16":                              "DDP segments",
		"sctp.data_payload_proto_id == 17":                              "session control",
		"sctp.chunk_type == 14":                                         "SHUTDOWN COMPLETE",
	} {
		if n := count(filter); n == 0 {
			t.Errorf("tshark finds no %s (%s) in %s", what, filter, pcap)
		} else {
			t.Logf("%6d %s", n, what)
		}
	}
	for _, bad := range []string{"sctp.checksum.status == 0", "sctp && _ws.malformed",
		"sctp.chunk_type == 6"} {
		if n := count(bad); n > 0 {
			t.Errorf("tshark finds %d packets with %s in %s", n, bad, pcap)
		}
	}
}
