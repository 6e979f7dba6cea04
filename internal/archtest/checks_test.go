package archtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	checks = regexp.MustCompile(`(?m)^CHECKS := (.*)$`)
	parts  = regexp.MustCompile(`make check CHECKS=(?:"([^"]*)"|(\S+))`)
)

// TestContinuousIntegration: what `make check` checks by itself, .ci/run checks in several steps,
// each part in one of them.
func TestContinuousIntegration(t *testing.T) {
	text := map[string]string{}
	for _, f := range files(t) {
		text[f.name] = string(f.text)
	}
	all := checks.FindStringSubmatch(text["Makefile"])
	if all == nil {
		t.Fatal("the Makefile has no list CHECKS")
	}
	var run []string
	for _, m := range parts.FindAllStringSubmatch(text[".ci/run"], -1) {
		run = append(run, strings.Fields(m[1]+m[2])...)
	}
	want := strings.Fields(all[1])
	slices.Sort(run)
	slices.Sort(want)
	if !slices.Equal(run, want) {
		t.Errorf(".ci/run has the checks %q, the Makefile %q", run, want)
	}
}
