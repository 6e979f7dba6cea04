package archtest

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// goName is a name of a package in backticks, perhaps one of a type's.
var goName = regexp.MustCompile("`([a-z]+)\\.([A-Z]\\w*)(?:\\.(\\w+))?`")

// unknownNames are the names in backticks that no file of a package has. words holds those of
// packages, by the name of their folder.
func unknownNames(text string, words map[string]map[string]bool) (unknown []string) {
	for _, m := range goName.FindAllStringSubmatch(text, -1) {
		has := words[m[1]]
		if !has[m[2]] || m[3] != "" && !has[m[3]] {
			unknown = append(unknown, strings.Trim(m[0], "`"))
		}
	}
	return unknown
}

var word = regexp.MustCompile(`\w+`)

// Names of Go that CONTRIBUTING.md gives are there, in the package that it says: package.Name, or
// package.Type.Method.
func TestContributingNames(t *testing.T) {
	words := make(map[string]map[string]bool)
	var text string
	for _, f := range files(t) {
		switch pkg := path.Base(path.Dir(f.name)); {
		case f.name == "CONTRIBUTING.md":
			text = string(f.text)
		case path.Ext(f.name) == ".go":
			if words[pkg] == nil {
				words[pkg] = make(map[string]bool)
			}
			for _, w := range word.FindAllString(string(f.text), -1) {
				words[pkg][w] = true
			}
		}
	}
	for _, name := range unknownNames(text, words) {
		t.Errorf("CONTRIBUTING.md: there is no %s", name)
	}
}

// A name that is not there is found.
func TestUnknownNames(t *testing.T) {
	words := map[string]map[string]bool{"vnic": {"QP": true, "Close": true}}
	for text, want := range map[string][]string{
		"`vnic.QP`, `vnic.QP.Close`, vnic.CQ":     nil,
		"`vnic.CQ`, `vnic.QP.Open` and `rdma.WC`": {"vnic.CQ", "vnic.QP.Open", "rdma.WC"},
	} {
		if got := unknownNames(text, words); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
