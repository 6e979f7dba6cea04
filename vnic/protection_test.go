package vnic_test

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Nothing puts TLS on top of RDMAP or DDP as their protection, and the documents tell users why they
// should not. SEC-044.
func TestNoTLS(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "../shm", "../cmd/vrnic/internal/ping").Output()
	if err != nil {
		t.Fatal(err)
	}
	if deps := strings.Fields(string(out)); !slices.Contains(deps, "sync") || slices.Contains(deps, "crypto/tls") {
		t.Error("crypto/tls is among the dependencies")
	}
	doc, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	doc = bytes.Join(bytes.Fields(doc), []byte(" "))
	for _, s := range []string{"Do not put TLS on top of RDMAP or DDP", "RFC 5042, section 5.4.2"} {
		if !bytes.Contains(doc, []byte(s)) {
			t.Errorf("docs/limits.md does not say %q", s)
		}
	}
}
