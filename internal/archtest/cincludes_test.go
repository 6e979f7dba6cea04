package archtest

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A room is a folder of C. The programs of tests have no line: they include what they are to test.
type room struct {
	shows []string // the headers that other rooms may include
	uses  []string // the rooms below, whose headers these are
}

// rooms says which C may know which. What a room does not show is its own, and no room calls one
// above it: what must go up goes by a function that the room above has handed down.
//
//	rsocket -> rdmacm, versions -> ibverbs -> pair -> core -> verbs, the ABI of the rings
//	rsocketd, a program -> rsocket
//	preload, rspreload, check -> guard, which are linked with none of them
//	setting below all, in each library that has use for it
var rooms = map[string]room{
	"verbs": {shows: []string{"abi.h", "rsockets.h", "valgrind.h",
		"vrnic_alloc.h"}},
	"verbs/core": {shows: []string{"core.h"}, uses: []string{"verbs", "verbs/setting"}},
	"verbs/pair": {shows: []string{"board.h", "keys.h", "mark.h", "pair.h", "remote.h", "wake.h"},
		uses: []string{"verbs", "verbs/core"}},
	"verbs/ibverbs": {shows: []string{"ibverbs.h"}, uses: []string{"verbs", "verbs/core",
		"verbs/pair", "verbs/ibverbs/abi"}},
	"verbs/ibverbs/abi": {shows: []string{"ibv.h"}},
	"verbs/rdmacm": {shows: []string{"rdmacm.h"}, uses: []string{"verbs", "verbs/core",
		"verbs/ibverbs", "verbs/ibverbs/abi"}},
	"verbs/rsocket": {shows: []string{"rsocket.h"}, uses: []string{"verbs", "verbs/core",
		"verbs/ibverbs", "verbs/ibverbs/abi", "verbs/rdmacm"}},
	// What is there for the sake of symbol versions.
	"verbs/versions":  {uses: []string{"verbs", "verbs/core", "verbs/ibverbs", "verbs/ibverbs/abi"}},
	"verbs/rsocketd":  {uses: []string{"verbs", "verbs/rsocket"}},
	"verbs/preload":   {uses: []string{"verbs/setting"}},
	"verbs/rspreload": {uses: []string{"verbs"}},
	"verbs/check": {uses: []string{"verbs/guard", "verbs/ibverbs/abi",
		"verbs/rdmacm"}},
	"verbs/guard":            {shows: []string{"guard.h"}},
	"verbs/setting":          {shows: []string{"setting.h"}},
	"integration/sctppeer/c": {},
}

// maxCFiles is where a room has more than one idea for certain.
const maxCFiles = 20

// TestCIncludes holds each include of a file in a room to the rooms.
func TestCIncludes(t *testing.T) {
	all := cFiles(t)
	number := make(map[string]int)
	for _, f := range all {
		dir := path.Dir(f.name)
		number[dir]++
		for _, inc := range f.includes {
			if why := mayInclude(dir, inc); why != "" {
				t.Errorf("%s: #include %q: %s", f.name, inc, why)
			} else if findC(all, dir, inc) == nil {
				t.Errorf("%s: #include %q: no such file in its own folder or from verbs on", f.name, inc)
			}
		}
	}
	for dir := range rooms {
		if n := number[dir]; n == 0 || n > maxCFiles {
			t.Errorf("%s: %d files of C, want 1 to %d", dir, n, maxCFiles)
		}
	}
}

// mayInclude says why a file in dir may not include inc; "" if it may. A name without a folder is
// of the own room, or of verbs, from where all others are named.
func mayInclude(dir, inc string) string {
	own := rooms[dir]
	switch where := path.Dir(inc); {
	case strings.Contains(inc, ".."):
		return "a room is named from verbs on"
	case where == ".":
		return ""
	default:
		other := path.Join("verbs", where)
		if _, ok := rooms[path.Join(dir, where)]; ok {
			other = path.Join(dir, where)
		}
		switch r, ok := rooms[other]; {
		case !ok:
			return "no such room"
		case !slices.Contains(own.uses, other):
			return dir + " is not above " + other
		case !slices.Contains(r.shows, path.Base(inc)):
			return "it is private to " + other
		}
		return ""
	}
}

// TestCCircles: no file of C reaches itself by includes and calls. A header and the source of its
// name count as one, and what an inline function calls, whoever calls that function calls.
func TestCCircles(t *testing.T) {
	all := cFiles(t)
	edges := make(map[string][]string)
	for _, f := range all {
		for _, inc := range f.includes {
			if to := findC(all, path.Dir(f.name), inc); to != nil {
				edges[f.unit()] = append(edges[f.unit()], to.unit())
			}
		}
		for _, to := range f.calls(all) {
			edges[f.unit()] = append(edges[f.unit()], to.unit())
			if from, dir := path.Dir(f.name), path.Dir(to.name); from != dir &&
				!slices.Contains(rooms[from].uses, dir) {
				t.Errorf("%s calls %s, and %s is not above %s", f.name, to.name, from, dir)
			}
		}
	}
	if len(edges) < 30 {
		t.Fatalf("only %d files of C call or include another", len(edges))
	}
	if c := circle(edges); c != nil {
		t.Errorf("a circle: %s", strings.Join(c, " -> "))
	}
}

// circle returns a way from a node back to it, or nil.
func circle(edges map[string][]string) []string {
	const under, done = 1, 2
	state := make(map[string]int)
	var way []string
	var visit func(n string) []string
	visit = func(n string) []string {
		if state[n] == under {
			return append(slices.Clone(way[slices.Index(way, n):]), n)
		}
		if state[n] == done {
			return nil
		}
		state[n] = under
		way = append(way, n)
		for _, to := range edges[n] {
			if to == n {
				continue
			}
			if c := visit(to); c != nil {
				return c
			}
		}
		way = way[:len(way)-1]
		state[n] = done
		return nil
	}
	for _, n := range slices.Sorted(maps.Keys(edges)) {
		if c := visit(n); c != nil {
			return c
		}
	}
	return nil
}

// A cFile is what a file of C defines and what it names.
type cFile struct {
	name     string
	includes []string
	defines  []string            // functions that other files can call
	inline   map[string][]string // of a header: what each of its inline functions names
	names    []string            // in the bodies of its functions and in its initializers
}

func (f *cFile) unit() string { return strings.TrimSuffix(f.name, path.Ext(f.name)) }

// calls returns the files that define what f names, of the rooms that it can be linked with.
func (f *cFile) calls(all []*cFile) (out []*cFile) {
	inline, seen := make(map[string][]string), make(map[string]bool)
	for _, g := range all {
		maps.Copy(inline, g.inline)
	}
	todo := slices.Clone(f.names)
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		todo = append(todo, inline[name]...)
		for _, g := range all {
			if g != f && linked(f.name, g.name) && slices.Contains(g.defines, name) {
				out = append(out, g)
			}
		}
	}
	return out
}

// linked: what is preloaded has the names of functions that are another library's to all others.
func linked(a, b string) bool {
	a, b = path.Dir(a), path.Dir(b)
	preloaded := []string{"verbs/preload", "verbs/rspreload", "verbs/check",
		"verbs/guard"}
	return a == b || within(a, "verbs") && within(b, "verbs") && !slices.Contains(preloaded, a) &&
		!slices.Contains(preloaded, b)
}

func findC(all []*cFile, dir, inc string) *cFile {
	for _, name := range []string{path.Join(dir, inc), path.Join("verbs", inc)} {
		if i := slices.IndexFunc(all, func(f *cFile) bool { return f.name == name }); i >= 0 {
			return all[i]
		}
	}
	return nil
}

func cFiles(t *testing.T) (out []*cFile) {
	t.Helper()
	for _, f := range files(t) {
		if _, ok := rooms[path.Dir(f.name)]; ok && (path.Ext(f.name) == ".c" ||
			path.Ext(f.name) == ".h") {
			out = append(out, parseC(f.name, string(f.text)))
		}
	}
	return out
}

var (
	cNoise   = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`)
	cInclude = regexp.MustCompile(`(?m)^#include "([^"]+)"`)
	cLine    = regexp.MustCompile(`(?m)^#(?:[^\n]*\\\n)*[^\n]*`)
	cName    = regexp.MustCompile(`(?:\.|->)?\b[A-Za-z_]\w*`)
	// The last parentheses of a head hold the parameters.
	cFunction = regexp.MustCompile(`(\w+)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*$`)
)

// parseC finds what stands in braces behind a head, at the top of a file: functions, and
// initializers behind a =.
func parseC(name, text string) *cFile {
	f := &cFile{name: name, inline: make(map[string][]string)}
	for _, m := range cInclude.FindAllStringSubmatch(text, -1) {
		f.includes = append(f.includes, m[1])
	}
	text = cNoise.ReplaceAllString(text, " ")
	macros := strings.Join(cLine.FindAllString(text, -1), "\n")
	text = cLine.ReplaceAllString(text, "")
	f.names = namesOf(macros)
	depth, start, head := 0, 0, ""
	for i, c := range text {
		switch {
		case c == '{':
			if depth++; depth == 1 {
				head, start = text[start:i], i+1
			}
		case c == '}':
			if depth--; depth == 0 {
				f.add(head, text[start:i])
				start = i + 1
			}
		case c == ';' && depth == 0:
			if _, value, ok := strings.Cut(text[start:i], "="); ok {
				f.names = append(f.names, namesOf(value)...)
			}
			start = i + 1
		}
	}
	return f
}

// add takes what stands in braces behind head.
func (f *cFile) add(head, body string) {
	m := cFunction.FindStringSubmatch(head)
	static := strings.Contains(head, "static")
	switch {
	case m == nil && strings.Contains(head, "="):
		f.names = append(f.names, namesOf(body)...)
	case m == nil:
	case static && path.Ext(f.name) == ".h":
		f.inline[m[1]] = namesOf(body)
	default:
		if !static {
			f.defines = append(f.defines, m[1])
		}
		f.names = append(f.names, namesOf(body)...)
	}
}

// namesOf returns the names in a piece of C that are not those of fields.
func namesOf(text string) []string {
	return slices.DeleteFunc(cName.FindAllString(text, -1), func(n string) bool {
		return n[0] == '.' || n[0] == '-'
	})
}

// The reader of C itself: what it must see, and what it must not take for a call.
func TestParseC(t *testing.T) {
	low := parseC("verbs/core/low.c", `
#include <errno.h>
#include "core.h" /* "not this" */
static int hidden(void) { return 0; }
EXPORT __attribute__((noreturn)) void low_die(const char *why, void (*then)(int), ...)
{
	if (why) { hidden(); }
}
`)
	core := parseC("verbs/core/core.h", `
void low_die(const char *why, void (*then)(int), ...);
static inline void die(void) { low_die("middle()", NULL); }
`)
	high := parseC("verbs/ibverbs/high.c", `
#include "core/core.h"
void high(struct ops *o) { o->low_die = 0; o->other.low_die(); }
`)
	by := parseC("verbs/ibverbs/by.c", "void by(void) { die(); }")
	table := parseC("verbs/ibverbs/table.c",
		"static const struct op ops[] = { { 1, high } };\nint (*hook)(void) = by;\n")
	all := []*cFile{low, core, high, by, table}
	if want := []string{"core.h"}; !slices.Equal(low.includes, want) {
		t.Errorf("includes %q, want %q", low.includes, want)
	}
	if want := []string{"low_die"}; !slices.Equal(low.defines, want) {
		t.Errorf("low.c defines %q, want %q", low.defines, want)
	}
	for _, tt := range []struct {
		from *cFile
		want []*cFile
	}{
		{low, nil}, {core, nil}, {high, nil}, {by, []*cFile{low}}, {table, []*cFile{high, by}},
	} {
		got := tt.from.calls(all)
		for _, w := range append(slices.Clone(got), tt.want...) {
			if !slices.Contains(got, w) || !slices.Contains(tt.want, w) {
				t.Errorf("%s calls %s: %v, want %v", tt.from.name, w.name, slices.Contains(got, w),
					slices.Contains(tt.want, w))
			}
		}
	}
	for _, tt := range []struct{ dir, inc, why string }{
		{"verbs/core", "abi.h", ""},
		{"verbs/core", "ibverbs/ibv.h", "verbs/core is not above verbs/ibverbs"},
		{"verbs/rdmacm", "core/core.h", ""},
		{"verbs/rdmacm", "core/private.h", "it is private to verbs/core"},
		{"verbs/rdmacm", "ibverbs/objects.h", "it is private to verbs/ibverbs"},
		{"verbs/preload", "core/core.h", "verbs/preload is not above verbs/core"},
		{"verbs/ibverbs", "../core/core.h", "a room is named from verbs on"},
		{"verbs/ibverbs", "cor/core.h", "no such room"},
	} {
		if got := mayInclude(tt.dir, tt.inc); got != tt.why {
			t.Errorf("%s includes %s: %q, want %q", tt.dir, tt.inc, got, tt.why)
		}
	}
	if c := circle(map[string][]string{"a": {"a", "b"}, "b": {"c"}, "c": {"b"},
		"d": {"a"}}); !slices.Equal(c, []string{"b", "c", "b"}) {
		t.Errorf("the circle is %q", c)
	}
}
