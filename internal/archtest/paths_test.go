package archtest

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var pathForm = regexp.MustCompile("`([a-zA-Z0-9_.-]+(?:/[a-zA-Z0-9_.-]+)+/?|[a-zA-Z0-9_-]+/)`")

// missingPaths are the files and folders that text names in backticks and that are not among there.
// A name counts if it begins with a folder at the top of the repository.
func missingPaths(text string, there map[string]bool) (missing []string) {
	for _, m := range pathForm.FindAllStringSubmatch(text, -1) {
		p := strings.TrimSuffix(m[1], "/")
		if top, _, _ := strings.Cut(p, "/"); there[top] && !there[p] {
			missing = append(missing, m[1])
		}
	}
	return missing
}

// tree is every file and folder of the repository.
func tree(t *testing.T) map[string]bool {
	t.Helper()
	there := make(map[string]bool)
	for _, f := range files(t) {
		for p := f.name; p != "."; p = path.Dir(p) {
			there[p] = true
		}
	}
	return there
}

// Documents name files and folders that are there.
func TestDocPaths(t *testing.T) {
	there := tree(t)
	for _, p := range []string{"bin", "verbs/build/obj"} { // what make builds
		there[p] = true
	}
	for _, f := range files(t) {
		if path.Ext(f.name) != ".md" || strings.HasPrefix(f.name, "docs/notebook/") ||
			f.name == "CHANGELOG.md" { // those tell of other times
			continue
		}
		for _, p := range missingPaths(string(f.text), there) {
			t.Errorf("%s: there is no %s", f.name, p)
		}
	}
}

// What is missing is found.
func TestMissing(t *testing.T) {
	there := map[string]bool{"vnic": true, "vnic/qp.go": true, "docs": true}
	for text, want := range map[string][]string{
		"`vnic/qp.go`, `vnic/`, vnic/gone.go": nil,
		"`vnic/gone.go` and `docs/x/`":        {"vnic/gone.go", "docs/x/"},
		"`/dev/net/tun`, `16 GB/s`, `a/b`":    nil,
	} {
		if got := missingPaths(text, there); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
