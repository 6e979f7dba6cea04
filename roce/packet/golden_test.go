package packet_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/golden"
	"github.com/vrnic/vrnic/internal/needtest"
	. "github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/rocetest"
)

// Every packet that rxe sent is taken apart, has the right ICRC, and is made again octet for octet
// (ROCE-025, ROCE-032); what was read is the golden text.
func TestGolden(t *testing.T) {
	for _, name := range rocetest.Recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".pcap"), func(t *testing.T) {
			var text strings.Builder
			for i, ip := range rocetest.Packets(t, name) {
				var h Header
				payload, err := h.Parse(rocetest.Datagram(ip))
				if err != nil {
					t.Fatalf("packet %d: %v", i, err)
				}
				if !Check(ip) {
					t.Errorf("packet %d: the ICRC is wrong", i)
				}
				if got := remake(t, ip, &h, payload); !bytes.Equal(got, ip) {
					t.Errorf("packet %d is made as\n% x, was\n% x", i, got, ip)
				}
				fmt.Fprintf(&text, "%v data %d\n", &h, len(payload))
			}
			golden.Check(t, filepath.Join("testdata",
				strings.TrimSuffix(filepath.Base(name), ".pcap")+".txt"), text.String())
		})
	}
}

// remake makes the packet of h anew behind the IP and UDP headers of ip.
func remake(t *testing.T, ip []byte, h *Header, payload []byte) []byte {
	t.Helper()
	head := len(ip) - len(rocetest.Datagram(ip))
	b := h.Append(bytes.Clone(ip[:head]))
	c, ok := Start(b)
	if !ok {
		t.Fatal("Start does not take the headers")
	}
	c = c.Add(b[head+BTHLen:]).Add(payload)
	pad := make([]byte, PadOf(len(payload)))
	return c.Add(pad).Append(append(append(b, payload...), pad...))
}

// What tshark reads of the recordings is what Parse does.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	fields := []string{"bth.opcode", "bth.se", "bth.m", "bth.padcnt", "bth.p_key",
		"bth.destqp", "bth.a",
		"bth.psn", "reth.va", "reth.r_key", "reth.dmalen", "aeth.syndrome", "aeth.msn", "deth.q_key",
		"deth.srcqp", "immdt", "ieth", "atomiceth.swapdt", "atomiceth.cmpdt", "atomicacketh.origremdt"}
	// tshark takes a while to start.
	all := filepath.Join(t.TempDir(), "all.pcap")
	args := []string{"-n", "-r", all, "-Y", "infiniband", "-T", "fields", "-E", "occurrence=f"}
	for _, f := range fields {
		args = append(args, "-e", "infiniband."+f)
	}
	var packets [][]byte
	if err := os.WriteFile(all, merged(t, &packets), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(packets) {
		t.Fatalf("tshark finds %d packets, there are %d", len(lines), len(packets))
	}
	compared := 0
	for i, ip := range packets {
		var h Header
		if _, err := h.Parse(rocetest.Datagram(ip)); err != nil {
			t.Fatal(err)
		}
		said := values(&h)
		for k, text := range strings.Split(lines[i], "\t") {
			if text == "" {
				continue // not of this packet
			}
			base := 0
			if fields[k] == "immdt" || fields[k] == "ieth" {
				base = 16 // tshark prints them as octets
			}
			if v, err := strconv.ParseUint(text, base, 64); err != nil || v != said[k] {
				t.Errorf("%v: tshark has %s %s (%v), Parse %#x", &h, fields[k], text, err, said[k])
			}
			compared++
		}
	}
	if compared < 8*len(packets) {
		t.Errorf("tshark said %d things of %d packets", compared, len(packets))
	}
}

// merged is all recordings as one file, and packets what is in them.
func merged(t *testing.T, packets *[][]byte) (file []byte) {
	t.Helper()
	for _, name := range rocetest.Recordings(t) {
		b := rocetest.Recording(t, name)
		if file == nil {
			file = b[:24:24]
		}
		file = append(file, b[24:]...)
		*packets = append(*packets, rocetest.Packets(t, name)...)
	}
	return file
}

// values are h's in the order in which tshark is asked.
func values(h *Header) []uint64 {
	flag := func(on bool) uint64 {
		if on {
			return 1
		}
		return 0
	}
	imm := uint64(h.Imm[0])<<24 | uint64(h.Imm[1])<<16 | uint64(h.Imm[2])<<8 | uint64(h.Imm[3])
	return []uint64{uint64(h.Opcode), flag(h.Solicited), flag(h.Migrated), uint64(h.Pad),
		uint64(h.PKey), uint64(h.Dest), flag(h.AckReq), uint64(h.PSN), h.Addr, uint64(h.RKey),
		uint64(h.DMA), uint64(h.Syndrome), uint64(h.MSN), uint64(h.QKey), uint64(h.Source), imm,
		uint64(h.RKey), h.Swap, h.Compare, h.Original}
}
