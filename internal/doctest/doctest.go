// Package doctest holds the command lines that README.md, CONTRIBUTING.md and docs show to a
// program: each command and option in them is one that the program has.
package doctest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// Commands complains of what documents show of app that app does not have, and of values of options
// that parse, by the option's name, does not take. root is the folder of the repository.
func Commands(t testing.TB, app *cli.App, root string, parse map[string]func(string) error) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no docs: %v", err)
	}
	n := 0
	for _, name := range append(names, filepath.Join(root, "README.md"),
		filepath.Join(root, "CONTRIBUTING.md")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range lines(string(text), app.Name) {
			n++
			if why := wrong(app, words, parse); why != "" {
				t.Errorf("%s: %s %s: %s", filepath.Base(name), app.Name, strings.Join(words, " "), why)
			}
		}
	}
	if n == 0 {
		t.Errorf("no document shows %s", app.Name)
	}
}

var (
	fenced   = regexp.MustCompile("(?s)```.*?```")
	indented = regexp.MustCompile(`(?m)^ {4}(.*)$`)
	inline   = regexp.MustCompile("`([^`]+)`")
	goesOn   = regexp.MustCompile(`\\\n *`)
)

// lines are the command lines of a program in a text of Markdown: the words behind its name, up to
// what belongs to the shell or to another program.
func lines(text, program string) (out [][]string) {
	text = withoutOutput(goesOn.ReplaceAllString(fenced.ReplaceAllString(text, ""), ""))
	for _, m := range slices.Concat(indented.FindAllStringSubmatch(text, -1),
		inline.FindAllStringSubmatch(indented.ReplaceAllString(text, ""), -1)) {
		code, _, _ := strings.Cut(m[1], "#")
		words := strings.Fields(code)
		i := slices.IndexFunc(words, func(w string) bool {
			return w == program || w == "bin/"+program || w == "./cmd/"+program
		})
		if i < 0 {
			continue
		}
		words = words[i+1:]
		if end := slices.IndexFunc(words, func(w string) bool {
			return strings.ContainsAny(w[:1], "&|;>") || w == "--"
		}); end >= 0 {
			words = words[:end]
		}
		out = append(out, words)
	}
	return out
}

// withoutOutput leaves out what a block prints: the lines behind one with a prompt.
func withoutOutput(text string) string {
	var b strings.Builder
	prompted := false
	for line := range strings.Lines(text) {
		switch code, ok := strings.CutPrefix(line, "    "); {
		case !ok:
			prompted = false
		case strings.HasPrefix(code, "$ "):
			prompted = true
		case prompted:
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// placeholder finds what a reader has to replace.
var placeholder = regexp.MustCompile(`\b[A-Z]{2,}\b|\.\.\.`)

// wrong says what app does not have of words, or parse does not take. A command with ArgsUsage
// takes others than its subcommands: what follows one is the command's to know.
func wrong(app *cli.App, words []string, parse map[string]func(string) error) string {
	flags, commands, takes := app.Flags, app.Commands, false
	for i := 0; i < len(words); i++ {
		w := words[i]
		if name, ok := strings.CutPrefix(w, "-"); ok {
			name, value, hasValue := strings.Cut(strings.TrimPrefix(name, "-"), "=")
			k := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
			switch {
			case name == "help" || name == "h":
			case k < 0:
				return fmt.Sprintf("there is no option %s", w)
			case !hasValue && flags[k].(cli.DocGenerationFlag).TakesValue():
				if i++; i < len(words) {
					value = words[i]
				}
			}
			if f := parse[name]; f != nil && !placeholder.MatchString(value) {
				if err := f(value); err != nil {
					return fmt.Sprintf("%q of --%s: %v", value, name, err)
				}
			}
			continue
		}
		k := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(w) })
		switch {
		case k >= 0:
			c := commands[k]
			flags, commands, takes = c.Flags, c.Subcommands, c.ArgsUsage != ""
		case len(commands) > 0 && takes:
			return ""
		case len(commands) > 0 && !placeholder.MatchString(w):
			return fmt.Sprintf("there is no command %s", w)
		}
	}
	return ""
}
