package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Calls that have a function run on another goroutine, by their last names.
var elsewhere = []string{"AfterFunc", "Go", "Parallel"}

// outer are packages that start goroutines for who uses them.
var outer = []string{"net/http", "testing/synctest"}

// TestAlone: whoever `make race` runs without the race detector starts no goroutine, nor do its
// tests or what they import: the detector would find nothing there. needtest, with which a test
// waits or skips, is no part of what it tests.
func TestAlone(t *testing.T) {
	all := files(t)
	i := slices.IndexFunc(all, func(f file) bool { return f.name == "Makefile" })
	alone := aloneOf(string(all[i].text))
	if len(alone) == 0 {
		t.Fatal("the Makefile has no list ALONE")
	}
	folders := map[string][]file{}
	for _, f := range all {
		if path.Ext(f.name) == ".go" {
			folders[path.Dir(f.name)] = append(folders[path.Dir(f.name)], f)
		}
	}
	for _, dir := range alone {
		if len(folders[dir]) == 0 {
			t.Errorf("ALONE has %s, where there is no Go", dir)
		}
		for _, why := range company(t, folders, dir) {
			t.Errorf("%s belongs under the race detector, not in ALONE of the Makefile: %s", dir, why)
		}
	}
}

// aloneOf are the folders of the list in a Makefile.
func aloneOf(makefile string) (dirs []string) {
	list := regexp.MustCompile(`(?m)^ALONE := ((?:.*\\\n)*.*)$`).FindStringSubmatch(makefile)
	if list == nil {
		return nil
	}
	for _, dir := range strings.Fields(strings.ReplaceAll(list[1], "\\\n", " ")) {
		dirs = append(dirs, strings.TrimPrefix(dir, "./"))
	}
	return dirs
}

// company says where the tests of a folder, or what they rest on, start goroutines.
func company(t *testing.T, folders map[string][]file, dir string) (where []string) {
	t.Helper()
	seen := map[string]bool{}
	var look func(dir string, tests bool)
	look = func(d string, tests bool) {
		if seen[d] || d == "internal/needtest" {
			return
		}
		seen[d] = true
		for _, f := range folders[d] {
			if f.isTest() && !tests {
				continue
			}
			where = append(where, starts(t, f)...)
			for _, imp := range f.imports(t) {
				own, ok := strings.CutPrefix(imp, module)
				switch {
				case ok:
					look(own, false)
				case slices.Contains(outer, imp),
					strings.Contains(imp, ".") && !strings.HasPrefix(imp, sys+"/"):
					where = append(where, f.name+" imports "+imp)
				}
			}
		}
	}
	look(dir, true)
	return where
}

// starts says where a file starts goroutines.
func starts(t *testing.T, f file) (where []string) {
	t.Helper()
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, f.name, f.text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			where = append(where, fset.Position(n.Pos()).String()+" has a go statement")
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(elsewhere, s.Sel.Name) {
				where = append(where, fset.Position(n.Pos()).String()+" calls "+s.Sel.Name)
			}
		}
		return true
	})
	return where
}

// The rule itself: a goroutine of a test, of what it imports, and of what that imports is found.
func TestCompany(t *testing.T) {
	folders := map[string][]file{}
	for name, text := range map[string]string{
		"a/a.go":                 "package a",
		"a/a_test.go":            "package a; import _ \"" + module + "internal/needtest\"",
		"internal/needtest/n.go": "package needtest; func f() { go f() }",
		"b/b_test.go":            "package b; func f() { go f() }",
		"c/c.go":                 "package c; import _ \"" + module + "d\"",
		"d/d.go":                 "package d; import _ \"" + module + "e\"",
		"d/d_test.go":            "package d; func f() { go f() }",
		"e/e.go":                 "package e; func f() { wg.Go(f) }",
		"g/g_test.go":            "package g; func f() { t.Parallel() }",
		"h/h_test.go":            "package h; import _ \"net/http\"",
		"i/i.go":                 "package i; import _ \"gvisor.dev/gvisor/pkg/tcpip\"",
		"j/j.go":                 "package j; import _ \"golang.org/x/sys/unix\"",
	} {
		folders[path.Dir(name)] = append(folders[path.Dir(name)], file{name, []byte(text)})
	}
	for dir, want := range map[string]string{
		"a": "", "b": "b/b_test.go:1:23 has a go statement", "c": "e/e.go:1:23 calls Go",
		"d": "d/d_test.go:1:23 has a go statement e/e.go:1:23 calls Go",
		"g": "g/g_test.go:1:23 calls Parallel", "h": "h/h_test.go imports net/http",
		"i": "i/i.go imports gvisor.dev/gvisor/pkg/tcpip", "j": "",
	} {
		where := company(t, folders, dir)
		slices.Sort(where)
		if got := strings.Join(where, " "); got != want {
			t.Errorf("%s: %q, want %q", dir, got, want)
		}
	}
	const makefile = "A := ./x\nALONE := ./a ./b/c \\\n\t./d\nrace:\n"
	if got := aloneOf(makefile); !slices.Equal(got, []string{"a", "b/c", "d"}) {
		t.Errorf("%q", got)
	}
}
