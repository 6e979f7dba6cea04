package integration

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

// tshark reads the recordings of siw as package iwarp does: the same segments, with the same
// numbers in their headers. What iwarp makes of them is in the text beside each. (tshark 4.0 does
// not know siw's bit order of a Terminate, and cannot check a CRC that was not agreed on; neither
// is looked at here.)
func TestTsharkAgrees(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	files, _ := filepath.Glob("../iwarp/testdata/*.pcap")
	if len(files) < 10 {
		t.Fatalf("%d recordings", len(files))
	}
	for _, pcap := range files {
		t.Run(filepath.Base(pcap), func(t *testing.T) {
			text, err := os.ReadFile(strings.TrimSuffix(pcap, ".pcap") + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			ours := map[string]int{}
			for _, line := range strings.Split(string(text), "\n") {
				m := fpduLine.FindStringSubmatch(line)
				if m == nil {
					continue
				}
				header, _, _ := strings.Cut(m[2], "{") // a Terminate quotes another
				op, ok := opcodes[m[1]]
				if !ok {
					t.Fatalf("unknown message in %q", line)
				}
				ours[fmt.Sprint("opcode ", op)]++
				// The first of each name is the segment's own; a Read Request names more.
				seen := map[string]bool{}
				for _, f := range headerField.FindAllStringSubmatch(header, -1) {
					if op == 1 && (f[1] == "stag" || f[1] == "to") || seen[f[1]] {
						continue
					}
					seen[f[1]] = true
					n, err := strconv.ParseUint(f[2], 0, 64)
					if err != nil {
						t.Fatal(err)
					}
					ours[fmt.Sprint(f[1], " ", n)]++
				}
			}
			names := []string{"opcode", "stag", "to", "qn", "msn", "mo"}
			theirs := map[string]int{}
			out := tshark(t, pcap, "-Y", "iwarp_ddp_rdmap", "-T", "fields", "-e", "iwarp_rdma.opcode", "-e",
				"iwarp_ddp.stag",
				"-e", "iwarp_ddp.tagged_offset", "-e", "iwarp_ddp.qn", "-e", "iwarp_ddp.msn", "-e",
				"iwarp_ddp.mo")
			for line := range strings.Lines(out) {
				for i, field := range strings.Split(strings.TrimRight(line, "\n"), "\t") {
					for _, v := range strings.FieldsFunc(field, func(r rune) bool { return r == ',' }) {
						n, err := strconv.ParseUint(v, 0, 64)
						if err != nil {
							t.Fatal(err)
						}
						theirs[fmt.Sprint(names[i], " ", n)]++
					}
				}
			}
			if !maps.Equal(ours, theirs) {
				t.Errorf("iwarp finds %v\ntshark finds %v", ours, theirs)
			}
			t.Logf("%d kinds of numbers", len(ours))
		})
	}
}

var (
	fpduLine = regexp.MustCompile(
		`^    FPDU \d+ octets: (RDMA Write|RDMA Read Request|RDMA Read Response|Send with SE and Invalidate|Send with Invalidate|Send with SE|Send|Terminate) (.*)$`)
	headerField = regexp.MustCompile(`\b(stag|to|qn|msn|mo)=(\w+)`)
	opcodes     = map[string]int{
		"RDMA Write": 0, "RDMA Read Request": 1, "RDMA Read Response": 2, "Send": 3,
		"Send with Invalidate": 4,
		"Send with SE":         5, "Send with SE and Invalidate": 6, "Terminate": 7,
	}
)
