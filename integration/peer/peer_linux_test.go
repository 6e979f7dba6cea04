package peer

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
)

func TestCompareRelease(t *testing.T) {
	got := []string{"6.1.0-56-amd64", "6.1.0-9-amd64", "5.10.0-30-amd64", "6.12.3-1-amd64"}
	slices.SortFunc(got, compareRelease)
	want := []string{"5.10.0-30-amd64", "6.1.0-9-amd64", "6.1.0-56-amd64", "6.12.3-1-amd64"}
	if !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// An archive is as the kernel reads it: names, directories made on the way, contents.
func TestCPIO(t *testing.T) {
	var b bytes.Buffer
	c := newCPIO(&b)
	c.symlink("lib", "usr/lib")
	c.file("/usr/lib/x.so", []byte("five5"))
	c.file("usr/lib/x.so", []byte("written before"))
	c.file("init", bytes.Repeat([]byte("x"), 1001))
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"lib 120777 usr/lib", "usr 40755 ", "usr/lib 40755 ", "usr/lib/x.so 100755 five5",
		"init 100755 " + strings.Repeat("x", 1001), "TRAILER!!! 0 "}
	if got := readCPIO(t, b.Bytes()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	t.Run("cpio(1)", func(t *testing.T) {
		if err := needtest.Missing("cpio"); err != nil {
			needtest.Lacking(t, "cpio", err)
		}
		for args, want := range map[string]string{
			"-t":                          "lib\nusr\nusr/lib\nusr/lib/x.so\ninit\n",
			"-i --to-stdout usr/lib/x.so": "five5",
			"-i --to-stdout init":         strings.Repeat("x", 1001),
			"-tv --numeric-uid-gid lib": "lrwxrwxrwx   1 0        0               7 Jan  1  1970 " +
				"lib -> usr/lib\n",
			"-tv --numeric-uid-gid usr/lib": "drwxr-xr-x   1 0        0               0 Jan  1  1970 " +
				"usr/lib\n",
			"-tv --numeric-uid-gid usr/lib/*": "-rwxr-xr-x   1 0        0               5 Jan  1  1970 " +
				"usr/lib/x.so\n",
		} {
			cmd := exec.Command("cpio", append([]string{"--quiet"}, strings.Fields(args)...)...)
			cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
			cmd.Stdin = bytes.NewReader(b.Bytes())
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
				t.Errorf("cpio %s: %q, %v; want %q", args, out, err, want)
			}
		}
	})
}

// readCPIO returns the names, modes and contents of an archive. A header is c_magic and fields of
// eight hexadecimal digits, and both the name behind it and the content end with zeros, up to a
// multiple of four octets from the beginning.
func readCPIO(t *testing.T, all []byte) (entries []string) {
	t.Helper()
	const (
		magic, fields          = 6, 13
		ino, mode, nlink       = 0, 1, 4
		filesize, namesize     = 6, 11
		uid, gid, mtime, check = 2, 3, 5, 12
	)
	rest := all
	take := func(n uint64) string {
		if n > uint64(len(rest)) {
			t.Fatalf("%d octets are missing behind %q", n, entries)
		}
		s := string(rest[:n])
		rest = rest[n:]
		return s
	}
	pad := func() {
		if p := take(uint64(len(rest) & 3)); strings.Trim(p, "\x00") != "" {
			t.Fatalf("padding %q behind %q", p, entries)
		}
	}
	if len(all)&3 != 0 {
		t.Fatalf("%d octets", len(all))
	}
	inodes := make(map[uint64]bool)
	for len(rest) > 0 {
		if m := take(magic); m != "070701" {
			t.Fatalf("magic %q behind %q", m, entries)
		}
		var f [fields]uint64
		for i := range f {
			var err error
			if f[i], err = strconv.ParseUint(take(8), 16, 32); err != nil {
				t.Fatal(err)
			}
		}
		name, ended := strings.CutSuffix(take(f[namesize]), "\x00")
		pad()
		entries = append(entries, fmt.Sprintf("%s %o %s", name, f[mode], take(f[filesize])))
		pad()
		if !ended || inodes[f[ino]] || f[nlink] != 1 || f[uid]|f[gid]|f[mtime]|f[check] != 0 {
			t.Errorf("%q: fields %x", name, f)
		}
		inodes[f[ino]] = true
	}
	return entries
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
		if want := "a\nbool peer_to_peer;\nmodule_param(peer_to_peer, bool, 0644);\nb"; tt.ok &&
			files["siw_main.c"] != want {
			t.Errorf("%q became %q, want %q", tt.text, files["siw_main.c"], want)
		}
	}
}
