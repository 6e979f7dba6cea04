package peer

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestCompareRelease(t *testing.T) {
	got := []string{"6.1.0-56-amd64", "6.1.0-9-amd64", "5.10.0-30-amd64", "6.12.3-1-amd64"}
	slices.SortFunc(got, compareRelease)
	want := []string{"5.10.0-30-amd64", "6.1.0-9-amd64", "6.1.0-56-amd64", "6.12.3-1-amd64"}
	if !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// cpio(1) reads what cpioWriter writes: names, directories made on the way, contents.
func TestCPIO(t *testing.T) {
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skipf("needs cpio(1) to compare with: %v", err)
	}
	var b bytes.Buffer
	c := newCPIO(&b)
	c.symlink("lib", "usr/lib")
	c.file("/usr/lib/x.so", []byte("five5"))
	c.file("usr/lib/x.so", []byte("written before"))
	c.file("init", bytes.Repeat([]byte("x"), 1001))
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{"-t", "lib\nusr\nusr/lib\nusr/lib/x.so\ninit\n"},
		{"-i --to-stdout usr/lib/x.so", "five5"},
	} {
		cmd := exec.Command("cpio", append(strings.Fields(tt.args), "--quiet")...)
		cmd.Stdin = bytes.NewReader(b.Bytes())
		out, err := cmd.Output()
		if err != nil || string(out) != tt.want {
			t.Errorf("cpio %s: %q, %v; want %q", tt.args, out, err, tt.want)
		}
	}
}

// A kernel image that is cut anywhere, or says lengths it does not have, is refused.
func TestVmlinuxRefuses(t *testing.T) {
	image := make([]byte, 0x260)
	copy(image[0x202:], "HdrS")
	for n := range image {
		if _, err := vmlinux(image[:n]); err == nil {
			t.Fatalf("%d octets were taken for a kernel", n)
		}
	}
	copy(image[0x24c:], "\xff\xff\xff\xff")
	if _, err := vmlinux(image); err == nil {
		t.Error("a payload longer than the image was accepted")
	}
}

// An edit of siw's source that does not fit exactly once is refused: the source is another one.
func TestEdit(t *testing.T) {
	for _, tt := range []struct {
		text string
		ok   bool
	}{
		{"a\nconst bool peer_to_peer;\nb", true},
		{"a\nconst bool peer_to_peer = true;\nb", false},
		{"\nconst bool peer_to_peer;\nconst bool peer_to_peer;", false},
		{"", false},
	} {
		files := map[string]string{"siw_main.c": tt.text}
		err := edit(files, []siwEdit{flag("peer_to_peer", "")})
		if (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.text, err)
		}
		if want := "a\nbool peer_to_peer;\nmodule_param(peer_to_peer, bool, 0644);\nb"; tt.ok && files["siw_main.c"] != want {
			t.Errorf("%q became %q, want %q", tt.text, files["siw_main.c"], want)
		}
	}
}
