package seqpacket

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A socket has the mode that was asked for. What somebody has put in its place between bind and
// chmod keeps its own: a link to a file, or another name of a socket.
func TestSetOwner(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "vrnic.sock")
	l, err := Listen(path, 0o666, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mode := func(path string) os.FileMode {
		t.Helper()
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode().Perm()
	}
	if m := mode(path); m != 0o666 {
		t.Errorf("a socket of mode %o, want 666", m)
	}

	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if _, err := setOwner(link, os.Getegid(), 0o666); err == nil || mode(file) != 0o600 {
		t.Errorf("a link: error %v, and its file has mode %o", err, mode(file))
	}
	other := filepath.Join(dir, "other.sock")
	if err := unix.Link(path, other); err != nil {
		t.Fatal(err)
	}
	if _, err := setOwner(other, -1, 0o600); err == nil || mode(path) != 0o666 {
		t.Errorf("another name: error %v, and the socket has mode %o", err, mode(path))
	}
}

// What came without descriptors is taken, empty messages, too, and a descriptor is found behind
// them: it stays where it is, for who closes the socket.
func TestDrain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sent  []string
		fd    bool // with the last one
		plain bool
	}{
		{"nothing", nil, false, true},
		{"messages", []string{"a", "", "", "longer"}, false, true},
		{"a descriptor", []string{"a"}, true, false},
		{"a descriptor behind messages", []string{"a", "", "b"}, true, false},
		{"a descriptor with an empty message", []string{"", ""}, true, false},
	} {
		for _, gone := range []bool{false, true} {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(pair[0]), "")
			c, err := net.FileConn(f)
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range tt.sent {
				var rights []byte
				if tt.fd && i == len(tt.sent)-1 {
					rights = unix.UnixRights(pair[1])
				}
				if err := unix.Sendmsg(pair[1], []byte(m), rights, nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			if gone {
				unix.Close(pair[1])
			}
			End(c.(*net.UnixConn))
			if plain := Drain(c.(*net.UnixConn)); plain != tt.plain {
				t.Errorf("%s, the client gone %t: plain %t", tt.name, gone, plain)
			}
			c.Close()
			if !gone {
				unix.Close(pair[1])
			}
		}
	}
}
