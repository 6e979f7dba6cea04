package archtest

import (
	"fmt"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	pathForm = regexp.MustCompile("`([a-zA-Z0-9_.-]+(?:/[a-zA-Z0-9_.-]+)+/?|[a-zA-Z0-9_-]+/)`")
	nameForm = regexp.MustCompile("`([a-z][a-z0-9]*)\\.([A-Za-z]\\w*(?:\\.\\w+)?)(?:\\(\\))?`")
	rowForm  = regexp.MustCompile(`(?m)^\| [^|\n]+ \| ([^|\n]+) \|`)
)

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

// missingNames are the identifiers that text names as `pkg.Name` or `pkg.Type.Name` in backticks
// and that no package of that name declares. Other words with a dot, of packages there are none of,
// are not looked at.
func missingNames(text string, declares map[string]map[string]bool) (missing []string) {
	for _, m := range nameForm.FindAllStringSubmatch(text, -1) {
		ext := slices.Contains([]string{"c", "go", "h", "md", "s"}, m[2])
		if names, ok := declares[m[1]]; ok && !ext && !names[m[2]] {
			missing = append(missing, m[1]+"."+m[2])
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

// docs/architecture.md names functions, methods and types that are there, and its table of where to
// start has at least 20 rows, each with a file or folder.
func TestArchitectureDoc(t *testing.T) {
	declares := make(map[string]map[string]bool)
	for _, f := range goFiles(t) {
		if f.isTest() {
			continue
		}
		p, err := parser.ParseFile(token.NewFileSet(), f.name, f.text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		names := declares[p.Name.Name]
		if names == nil {
			names = make(map[string]bool)
			declares[p.Name.Name] = names
		}
		for _, d := range p.Decls {
			declared(d, func(name string) { names[name] = true })
		}
	}
	text := doc(t, "architecture.md")
	for _, n := range missingNames(text, declares) {
		t.Errorf("docs/architecture.md: there is no %s", n)
	}
	_, table, ok := strings.Cut(text, "## To change")
	if !ok {
		t.Fatal("docs/architecture.md does not say where to start")
	}
	rows := rowForm.FindAllStringSubmatch(table, -1)
	if len(rows) < 22 { // with its head
		t.Errorf("docs/architecture.md says where to start for %d changes", len(rows)-2)
	}
	for _, r := range rows[min(2, len(rows)):] {
		if !pathForm.MatchString(r[1]) {
			t.Errorf("docs/architecture.md: %q names no file", r[0])
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
	declares := map[string]map[string]bool{"vnic": {"New": true, "Device.Close": true}}
	for text, want := range map[string]string{
		"`vnic.New`, `vnic.Device.Close`, `vnic.New()`": "[]",
		"`vnic.Old` and `vnic.Device.Open`":             "[vnic.Old vnic.Device.Open]",
		"`os.File`, `abi.md`, `vnic.md`":                "[]",
	} {
		if got := fmt.Sprint(missingNames(text, declares)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
