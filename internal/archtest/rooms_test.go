package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// maxFiles is how many product files a folder may have: more do not fit on a screen, and hold more
// than one idea.
const maxFiles = 22

// An exception is a folder that may have more files, and why that is better than dividing it.
type exception struct {
	files int
	why   string
}

var exceptions = map[string]exception{}

// TestFilesPerFolder limits the product files of a folder, in Go and in C.
func TestFilesPerFolder(t *testing.T) {
	counts := make(map[string]int)
	for _, f := range files(t) {
		ext := path.Ext(f.name)
		c := (ext == ".c" || ext == ".h") && !strings.Contains(f.name, "/testdata/")
		if c || ext == ".go" && !f.isTest() {
			counts[path.Dir(f.name)]++
		}
	}
	for _, complaint := range tooMany(counts, exceptions) {
		t.Error(complaint)
	}
}

// tooMany says what is wrong with the folders, and with the exceptions.
func tooMany(counts map[string]int, exceptions map[string]exception) (complaints []string) {
	for dir, n := range counts {
		e, ok := exceptions[dir]
		limit := max(maxFiles, e.files)
		switch {
		case n > limit:
			complaints = append(complaints, fmt.Sprintf(
				"%s: %d files, at most %d; which ideas does it hold?", dir, n, limit))
		case ok && n <= maxFiles:
			complaints = append(complaints, fmt.Sprintf("%s: %d files need no exception", dir, n))
		}
	}
	for dir, e := range exceptions {
		if len(strings.Fields(e.why)) < 5 {
			complaints = append(complaints, dir+": an exception without a reason")
		}
		if counts[dir] == 0 {
			complaints = append(complaints, dir+": an exception for nothing")
		}
	}
	slices.Sort(complaints)
	return complaints
}

func TestTooMany(t *testing.T) {
	why := "one table of opcodes, a file for each, as the standard numbers them"
	for name, tt := range map[string]struct {
		counts     map[string]int
		exceptions map[string]exception
		want       string
	}{
		"few": {map[string]int{"a": maxFiles}, nil, ""},
		"too many": {map[string]int{"a": maxFiles + 1}, nil,
			"a: 23 files, at most 22; which ideas does it hold?"},
		"a reason": {map[string]int{"a": 30}, map[string]exception{"a": {30, why}}, ""},
		"beyond that, too": {map[string]int{"a": 31}, map[string]exception{"a": {30, why}},
			"a: 31 files, at most 30; which ideas does it hold?"},
		"no reason": {map[string]int{"a": 30}, map[string]exception{"a": {30, " "}},
			"a: an exception without a reason"},
		"hardly a reason": {map[string]int{"a": 30}, map[string]exception{"a": {30, "it is large"}},
			"a: an exception without a reason"},
		"not needed": {map[string]int{"a": 3}, map[string]exception{"a": {30, why}},
			"a: 3 files need no exception"},
		"gone": {map[string]int{"a": 3}, map[string]exception{"b": {30, why}},
			"b: an exception for nothing"},
	} {
		if got := strings.Join(tooMany(tt.counts, tt.exceptions), "\n"); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// drawers are names under which anything could be kept.
var drawers = []string{
	"util", "utils", "misc", "common", "help", "helper", "helpers", "shared", "stuff", "tools",
	"various", "base", "more",
}

// TestNoDrawers refuses files and folders that do not say what is in them. What a command prints is
// called as the command is.
func TestNoDrawers(t *testing.T) {
	for _, f := range files(t) {
		if part, ok := drawer(f.name); ok && path.Ext(f.name) != ".golden" {
			t.Errorf("%s: what is in %q?", f.name, part)
		}
	}
}

// drawer finds the part of a name that says nothing: all of a folder's or file's name, or a word of
// it.
func drawer(name string) (part string, ok bool) {
	for p := range strings.SplitSeq(name, "/") {
		stem, _, _ := strings.Cut(p, ".")
		words := strings.FieldsFunc(strings.TrimSuffix(stem, "_test"),
			func(r rune) bool { return r == '_' || r == '-' })
		if slices.ContainsFunc(words, func(w string) bool {
			return slices.Contains(drawers, strings.ToLower(w))
		}) {
			return p, true
		}
	}
	return "", false
}

func TestDrawer(t *testing.T) {
	for name, want := range map[string]bool{
		"vnic/qp.go": false, "vnic/util.go": true, "shm/ring_helpers.go": true,
		"internal/common/x.go": true,
		"server_more_test.go":  true,
		"misc_test.go":         true, "vnic/utilization.go": false, "docs/otherwise.md": false,
	} {
		if _, got := drawer(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
