package containers

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// packages of the image, and what they depend on.
var packages = []string{"ibverbs-utils", "rdmacm-utils", "perftest", "dash", "coreutils"}

func imageFile() string { return filepath.Join(workDir, "image.tar") }

// left out of the image: nothing of it matters to programs.
var leftOut = []string{"/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/",
	"/usr/share/info/", "/usr/share/lintian/", "/usr/share/bash-completion/", "/var/"}

// makeImage writes the files of the packages, as they are installed here, into one of tar's.
func makeImage(file string) error {
	depends := exec.Command("apt-cache", slices.Concat([]string{"depends", "--recurse", "--installed",
		"--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces",
		"--no-enhances"}, packages)...)
	out, err := depends.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", depends, err)
	}
	var all []string
	for line := range strings.Lines(string(out)) {
		if name := strings.TrimSpace(line); line[0] != ' ' && line[0] != '<' &&
			!slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	list := exec.Command("dpkg-query", append([]string{"-L"}, all...)...)
	out, err = list.Output() // which fails for packages that are not there, as those of an alternative
	if err != nil && len(out) == 0 {
		return fmt.Errorf("%s: %w", list, err)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &image{tar.NewWriter(f), make(map[string]bool)}
	names := []string{"/bin", "/sbin", "/lib", "/lib64"} // links into /usr
	for line := range strings.Lines(string(out)) {
		names = append(names, strings.TrimSpace(line))
	}
	for _, name := range names {
		if slices.ContainsFunc(leftOut, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		if err := w.add(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(w.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"), w.Close(), f.Close())
}

type image struct {
	*tar.Writer
	there map[string]bool
}

// add adds a file or a link of this machine; directories come with what is in them.
func (w *image) add(name string) error {
	if !filepath.IsAbs(name) {
		return nil // a word of dpkg-query's
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(name)) // /lib is a link
	if err != nil {
		return err
	}
	name = filepath.Join(dir, filepath.Base(name))
	st, err := os.Lstat(name)
	if err != nil || st.IsDir() || w.there[name] {
		return err
	}
	w.there[name] = true
	link := ""
	if st.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(name); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	h.Name = strings.TrimPrefix(name, "/")
	if err := w.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func (w *image) text(name, content string) error {
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = io.WriteString(w, content)
	}
	return err
}
