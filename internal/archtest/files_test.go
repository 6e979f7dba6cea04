package archtest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A file is one of the repository's, its name relative to the top with slashes.
type file struct {
	name string
	text []byte
}

func (f file) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

// files returns every file of the repository but git's own, build results and test data; programs
// in C are none.
func files(t *testing.T) []file {
	t.Helper()
	top, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	var out []file
	err = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return unlessGone(err)
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		data := strings.Contains(p, "/testdata/") && !slices.Contains([]string{".c", ".h"},
			filepath.Ext(p))
		if data || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return unlessGone(err)
		}
		name, err := filepath.Rel(top, p)
		out = append(out, file{filepath.ToSlash(name), text})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(out, func(f file) bool { return f.name == "go.mod" }) {
		t.Fatalf("%s is not the top of the repository", top)
	}
	return out
}

// unlessGone is err, or nil for what a build beside the tests has made and removed meanwhile.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func goFiles(t *testing.T) []file {
	t.Helper()
	return slices.DeleteFunc(files(t), func(f file) bool { return path.Ext(f.name) != ".go" })
}

// maxLines is where a source file has more than one concern for certain.
const maxLines = 800

func TestFileLength(t *testing.T) {
	for _, f := range files(t) {
		if !slices.Contains([]string{".go", ".c", ".h", ".py", ".sh"}, path.Ext(f.name)) {
			continue
		}
		if n := bytes.Count(f.text, []byte("\n")); n > maxLines {
			t.Errorf("%s: %d lines, at most %d; what are its concerns?", f.name, n, maxLines)
		}
	}
}

var (
	upwards = regexp.MustCompile(`(?:\.\./)+`)
	// A build takes packages from where the machine says, so no file names a registry.
	registry = regexp.MustCompile(`proxy\.golang\.` + `org|(?:deb|ftp)\.debian\.` +
		`org|registry\.npmjs\.` + `org`)
)

// TestSelfContained refuses what holds on one machine only: paths out of the repository, the
// place it is checked out, the hosts of package registries.
func TestSelfContained(t *testing.T) {
	top, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	place := regexp.MustCompile(`(?:^|[^\w.-])` + regexp.QuoteMeta(top) + "/")
	for _, f := range files(t) {
		if f.name == "go.sum" || bytes.IndexByte(f.text, 0) >= 0 {
			continue
		}
		// Under the race detector the search of each line takes half a minute.
		if !bytes.Contains(f.text, []byte("../")) && !bytes.Contains(f.text, []byte(top+"/")) &&
			!registry.Match(f.text) {
			continue
		}
		depth := strings.Count(f.name, "/")
		for i, line := range bytes.Split(f.text, []byte("\n")) {
			for _, up := range upwards.FindAll(line, -1) {
				if len(up)/len("../") > depth {
					t.Errorf("%s:%d: a path out of the repository: %s", f.name, i+1, line)
				}
			}
			if place.Match(line) {
				t.Errorf("%s:%d: names the place of a checkout: %s", f.name, i+1, line)
			}
			if registry.Match(line) {
				t.Errorf("%s:%d: names a package registry: %s", f.name, i+1, line)
			}
		}
	}
}

// skips are calls that skip a test.
var skips = regexp.MustCompile(`\b(t|tb|b)\.Skip(f|Now)?\(`)

// TestSkipsSayWhy: a skip hides that nothing was tested, and is told by package needtest; only
// helpers that other tests run are not.
func TestSkipsSayWhy(t *testing.T) {
	for _, f := range goFiles(t) {
		if !strings.HasPrefix(f.name, "internal/needtest/") &&
			f.name != "cmd/vrnic/internal/daemon/daemontest/child.go" && skips.Match(f.text) {
			t.Errorf("%s: it skips a test by itself, not by package needtest", f.name)
		}
	}
}
