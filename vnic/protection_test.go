package vnic_test

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Nothing puts TLS on top of RDMAP or DDP as their protection, and the documents tell users why
// they should not. SEC-044.
func TestNoTLS(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "../shm",
		"../cmd/vrnic/internal/ping").Output()
	if err != nil {
		t.Fatal(err)
	}
	if deps := strings.Fields(string(out)); !slices.Contains(deps, "sync") ||
		slices.Contains(deps, "crypto/tls") {
		t.Error("crypto/tls is among the dependencies")
	}
	doc, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	doc = bytes.Join(bytes.Fields(doc), []byte(" "))
	for _, s := range []string{"Do not put TLS on top of RDMAP or DDP", "RFC 5042, section 5.4.2"} {
		if !bytes.Contains(doc, []byte(s)) {
			t.Errorf("docs/security.md does not say %q", s)
		}
	}
}

// The duties that RFC 5040, section 8.1, and RFC 5041, section 8.3, take over from RFC 5042 are the
// rows SEC of the table: each has a test, or says why it does not concern this program. DDP-099,
// RDMAP-125.
func TestSecurityDuties(t *testing.T) {
	table, err := os.ReadFile("../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(table)) {
		if !strings.HasPrefix(line, "| SEC-") {
			continue
		}
		rows++
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if last := cells[len(cells)-1]; !strings.HasPrefix(last, "`") && !strings.HasPrefix(last,
			"n/a: ") {
			t.Errorf("%s", line)
		}
	}
	if rows != 45 {
		t.Errorf("%d rows, RFC 5042 has 45 requirements", rows)
	}
}
