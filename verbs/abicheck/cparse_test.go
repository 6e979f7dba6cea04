package abicheck

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A header is what a C header defines: structs with the paths of their fields ("a", "a.b"), and
// enums with their constants. Enums without a name are one, "".
type header struct {
	structs map[string][]string
	enums   map[string][]string
}

var (
	cComment      = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	cPreprocessor = regexp.MustCompile(`(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*`)
	cToken        = regexp.MustCompile(`[A-Za-z_]\w*|0[xX][0-9a-fA-F]+|\d\w*|[^\s\w]`)
)

// parseHeaders reads the definitions of C headers. It knows as much of C as these need.
func parseHeaders(t *testing.T, files ...string) header {
	t.Helper()
	h := header{structs: map[string][]string{}, enums: map[string][]string{}}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text = cComment.ReplaceAll(text, []byte(" "))
		text = cPreprocessor.ReplaceAll(text, nil)
		toks := cToken.FindAllString(string(text), -1)
		for i := 0; i < len(toks); i++ {
			switch {
			case toks[i] == "enum" && i+1 < len(toks) && toks[i+1] == "{":
				i = h.enum("", toks, i+2)
			case toks[i] == "enum" && i+2 < len(toks) && toks[i+2] == "{":
				i = h.enum(toks[i+1], toks, i+3)
			case (toks[i] == "struct" || toks[i] == "union") && i+2 < len(toks) && toks[i+2] == "{":
				var fields []string
				name := toks[i+1]
				kind := toks[i]
				fields, i = parseFields("", toks, i+3)
				if kind == "struct" {
					h.structs[name] = fields
				}
			}
		}
	}
	return h
}

// enum reads constants from toks[i] on, behind the brace, and returns the index of the other brace.
func (h header) enum(name string, toks []string, i int) int {
	first := true
	for ; toks[i] != "}"; i++ {
		if first {
			h.enums[name] = append(h.enums[name], toks[i])
		}
		first = toks[i] == ","
	}
	return i
}

// parseFields reads members from toks[i] on, behind the brace, and returns the index of the other
// brace.
func parseFields(prefix string, toks []string, i int) (fields []string, end int) {
	for toks[i] != "}" {
		if toks[i] == "struct" || toks[i] == "union" {
			open := i + 1
			if toks[open] != "{" {
				open++
			}
			if toks[open] == "{" {
				var inner []string
				inner, i = parseFields("", toks, open+1)
				i++
				outer := prefix
				if toks[i] != ";" {
					fields = append(fields, prefix+toks[i])
					outer = prefix + toks[i] + "."
					i++
				}
				for _, f := range inner {
					fields = append(fields, outer+f)
				}
				i++ // the semicolon
				continue
			}
		}
		member := toks[i:]
		member = member[:slices.Index(member, ";")]
		i += len(member) + 1
		fields = append(fields, prefix+declared(member))
	}
	return fields, i
}

// declared returns the name that a member declares.
func declared(member []string) string {
	for i := range member {
		if member[i] == "(" && member[i+1] == "*" {
			return member[i+2]
		}
	}
	if i := slices.Index(member, "["); i > 0 {
		member = member[:i]
	}
	return member[len(member)-1]
}

// printer is C code that prints "NAME VALUE" for the size of each struct, the offset and size of
// each of its fields, and each constant.
func (h header) printer(b *strings.Builder, skip func(string) bool) {
	for _, s := range sortedKeys(h.structs) {
		if skip("struct " + s) {
			continue
		}
		b.WriteString("\tSTRUCT(" + s + ")\n")
		for _, f := range h.structs[s] {
			b.WriteString("\tFIELD(" + s + ", " + f + ")\n")
		}
	}
	for _, e := range sortedKeys(h.enums) {
		for _, c := range h.enums[e] {
			if !skip(c) {
				b.WriteString("\tCONST(" + c + ")\n")
			}
		}
	}
}

const printerHead = `
#include <stddef.h>
#include <stdio.h>
#define STRUCT(s) printf("struct:" #s " %zu\n", sizeof(struct s));
#define FIELD(s, f) printf(#s "." #f " @%zu+%zu\n", offsetof(struct s, f), sizeof(((struct s *)0)->f));
#define SIGN(s, f) printf("sign:" #s "." #f " %d\n", (__typeof__(((struct s *)0)->f))-1 < 0);
#define CONST(c) printf(#c " %lld\n", (long long)(c));
`

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
