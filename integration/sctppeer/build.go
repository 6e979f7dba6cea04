package sctppeer

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

//go:embed c
var sources embed.FS

// An SCTP is one that the program can be built on.
type SCTP struct {
	source string
	flags  []string
	header string // shows that what it takes is there
	pkg    string // Debian's package with it
}

var (
	Usrsctp = SCTP{"usrsctp.c", []string{"-lusrsctp"}, "/usr/include/usrsctp.h", "libusrsctp-dev"}
	Linux   = SCTP{"linux.c", []string{"-static"}, "/usr/include/linux/sctp.h", "linux-libc-dev"}
)

// Missing returns the Debian packages that Build needs and that are not installed.
func (s SCTP) Missing() (pkgs []string) {
	if _, err := exec.LookPath("gcc"); err != nil {
		pkgs = append(pkgs, "gcc")
	}
	if _, err := os.Stat(s.header); err != nil {
		pkgs = append(pkgs, s.pkg)
	}
	return pkgs
}

// Build compiles the program in dir and returns its path.
func (s SCTP) Build(dir string) (string, error) {
	if err := os.CopyFS(dir, sources); err != nil {
		return "", fmt.Errorf("sctppeer: %w", err)
	}
	cmd := exec.Command("gcc", slices.Concat(
		[]string{"-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-o", "../peer"},
		[]string{"peer.c", "ddp.c", "post.c", "text.c", s.source}, s.flags)...)
	cmd.Dir = filepath.Join(dir, "c")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("sctppeer: %s: %w\n%s", cmd, err, out)
	}
	return filepath.Join(dir, "peer"), nil
}
