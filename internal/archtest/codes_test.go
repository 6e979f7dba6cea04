package archtest

import (
	"fmt"
	"go/scanner"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// codeDocs are the documents that have the codes which comments cite. Each code of the first has to
// be cited; the others tell of things that matter without a comment, too.
var codeDocs = []string{"docs/decisions.md", "docs/qp-states.md", "docs/interop.md"}

var (
	anchorForm = regexp.MustCompile(`<a id="([^"]+)"></a>`)
	headForm   = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	codeForm   = regexp.MustCompile(`[A-Z]-?[0-9]{1,2}`)
	wordEnd    = regexp.MustCompile(`[\w'-]$`)
	wordStart  = regexp.MustCompile(`^\w`)
	citeForm   = regexp.MustCompile(`docs/[a-z0-9-]+\.md#[\w-]+`)
	linkForm   = regexp.MustCompile(`\]\(([\w./-]*)(?:#([\w-]+))?\)`)
	unknowns   = regexp.MustCompile(`(?i)\bledgers?\b|\bVABI\b|\bverbs-abi\b|\bdesign, section\b`)
)

// notCodes look like codes and are none: RFC 9260's timers and rules with letters, layers of a
// network, and a language.
var notCodes = regexp.MustCompile(`\bT[123]\b|\b[Rr]ule [A-Z][0-9]\b|\bL[2-4]\b|\bOf C23\b`)

// anchors are the places of a document that a link can name: those given by hand, and its headings.
func anchors(text string) map[string]bool {
	out := make(map[string]bool)
	for _, m := range anchorForm.FindAllStringSubmatch(text, -1) {
		out[m[1]] = true
	}
	for _, m := range headForm.FindAllStringSubmatch(anchorForm.ReplaceAllString(text, ""), -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r > 127 || '0' <= r && r <= '9' || 'a' <= r && r <= 'z':
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		out[slug] = true
	}
	return out
}

// codes are the codes that a comment names. In S-1 and A21 that is all; the E2 of 0xE2 is none.
func codes(comment string) (out []string) {
	comment = notCodes.ReplaceAllString(comment, " ")
	for _, at := range codeForm.FindAllStringIndex(comment, -1) {
		before, after := comment[:at[0]], comment[at[1]:]
		if !wordEnd.MatchString(before) && !wordStart.MatchString(after) {
			out = append(out, comment[at[0]:at[1]])
		}
	}
	return out
}

// checkCodes holds comments, by the place that each begins at, to documents, by their names, and
// says what is wrong.
func checkCodes(comments map[string]string, docs map[string]string) (complaints []string) {
	known, cited := make(map[string]bool), make(map[string]bool)
	places := make(map[string]map[string]bool)
	for name, text := range docs {
		places[name] = anchors(text)
		if slices.Contains(codeDocs, name) {
			for a := range places[name] {
				known[a] = true
			}
		}
	}
	for at, text := range comments {
		for _, c := range codes(text) {
			cited[c] = true
			if !known[c] {
				complaints = append(complaints, fmt.Sprintf("%s: %s is in none of %s", at, c, codeDocs))
			}
		}
		for _, c := range citeForm.FindAllString(text, -1) {
			if name, a, _ := strings.Cut(c, "#"); !places[name][a] {
				complaints = append(complaints, fmt.Sprintf("%s: there is no %s", at, c))
			}
		}
		if w := unknowns.FindString(text); w != "" {
			complaints = append(complaints, fmt.Sprintf("%s: a reader has no %s", at, w))
		}
	}
	// An entry goes to the next one.
	text := docs[codeDocs[0]]
	for _, at := range anchorForm.FindAllStringSubmatchIndex(text, -1) {
		c, entry := text[at[2]:at[3]], text[at[1]:]
		if next := anchorForm.FindStringIndex(entry); next != nil {
			entry = entry[:next[0]]
		}
		entry = strings.Join(strings.Fields(entry), " ")
		if codeForm.FindString(c) == c && !cited[c] && !strings.Contains(entry, "Not cited: ") {
			complaints = append(complaints, fmt.Sprintf("%s: no comment cites %s", codeDocs[0], c))
		}
	}
	slices.Sort(complaints)
	return complaints
}

// comments finds those of a file in Go, C or assembler, by the place that each line begins at: a
// comment of several lines is one, as a sentence may go over them.
func comments(f file) map[string]string {
	out := make(map[string]string)
	if path.Ext(f.name) == ".go" {
		files := token.NewFileSet()
		in := files.AddFile(f.name, -1, len(f.text))
		var s scanner.Scanner
		s.Init(in, f.text, func(token.Position, string) {}, scanner.ScanComments)
		for {
			pos, tok, text := s.Scan()
			if tok == token.EOF {
				return out
			}
			if tok == token.COMMENT {
				out[files.Position(pos).String()] = text
			}
		}
	}
	text, line := string(f.text), 1
	for i := 0; i < len(text); i++ {
		rest := text[i:]
		n := 1
		var end int
		switch {
		case strings.HasPrefix(rest, "//"):
			if end = strings.Index(rest, "\n"); end < 0 {
				end = len(rest)
			}
			n = end
			out[fmt.Sprintf("%s:%d", f.name, line)] += rest[:n]
		case strings.HasPrefix(rest, "/*"):
			if end = strings.Index(rest, "*/"); end < 0 {
				end = len(rest)
			}
			n = min(end+2, len(rest))
			out[fmt.Sprintf("%s:%d", f.name, line)] += rest[:end]
		case rest[0] == '"' || rest[0] == '\'':
			for n < len(rest) && rest[n] != rest[0] && rest[n] != '\n' {
				if rest[n] == '\\' {
					n++
				}
				n++
			}
			n = min(n+1, len(rest))
		}
		line += strings.Count(rest[:n], "\n")
		i += n - 1
	}
	return out
}

// Each code in a comment can be looked up in docs, and each place of a document that a comment
// names is there; no comment speaks of papers that the repository does not have.
func TestCodes(t *testing.T) {
	all, docs := make(map[string]string), make(map[string]string)
	for _, f := range files(t) {
		switch path.Ext(f.name) {
		case ".md":
			docs[f.name] = string(f.text)
		case ".go", ".c", ".h", ".s":
			if strings.HasPrefix(f.name, "internal/archtest/codes_test") {
				continue
			}
			for at, text := range comments(f) {
				all[at] = text
			}
		}
	}
	for _, c := range checkCodes(all, docs) {
		t.Error(c)
	}
}

// Links of documents lead somewhere.
func TestDocLinks(t *testing.T) {
	docs, there := make(map[string]string), make(map[string]bool)
	for _, f := range files(t) {
		if path.Ext(f.name) == ".md" {
			docs[f.name] = string(f.text)
		}
		for p := f.name; p != "."; p = path.Dir(p) {
			there[p] = true
		}
	}
	for name, text := range docs {
		for _, m := range linkForm.FindAllStringSubmatch(text, -1) {
			to := name
			if m[1] != "" {
				to = path.Join(path.Dir(name), m[1])
			}
			if !there[to] || m[2] != "" && !anchors(docs[to])[m[2]] {
				t.Errorf("%s: %s leads nowhere", name, m[0])
			}
		}
	}
}

// What is wrong is found.
func TestCheckCodes(t *testing.T) {
	docs := map[string]string{
		"docs/decisions.md": "## <a id=\"checks\"></a>The checks\n\n<a id=\"A1\"></a>**A1.** One.\n" +
			"\n<a id=\"A2\"></a>**A2.** Two. Not cited: why.\n",
		"docs/qp-states.md": "| <a id=\"Q12\"></a>Q12 |\n",
		"docs/interop.md":   "<a id=\"S3\"></a>",
		"docs/abi.md":       "## Error mapping\n",
	}
	const one = "// A1" // what has to be cited
	for comment, want := range map[string]string{
		"":                                "",
		"// the end: Q12; S3, A2":         "",
		"// docs/decisions.md#A2 and #A1": "",
		"// docs/decisions.md#checks":     "",
		"// docs/abi.md#error-mapping":    "",
		"// rule R3 of section 6.3.2, T3, 0xE2, x1": "",
		"// A3":                         "A3 is in none",
		"/* (Q13) */":                   "Q13 is in none",
		"// I-24: the other way":        "I-24 is in none",
		"// docs/decisions.md#A2, #A31": "A31 is in none",
		"// docs/decisions.md#check":    "there is no docs/decisions.md#check",
		"// docs/abi.md#A1":             "there is no docs/abi.md#A1",
		"// docs/abj.md#error-mapping":  "there is no docs/abj.md#error-mapping",
		"// as the ledger has it":       "has no ledger",
		"// VABI-6.8: each violation":   "has no VABI",
		"// verbs-abi.md, section 6.4":  "has no verbs-abi",
		"// as in design, section 7":    "has no design",
		"// C23 of the standard":        "C23 is in none",
	} {
		got := strings.Join(checkCodes(map[string]string{"x.go:1": comment, "x.go:2": one}, docs), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", comment, got, want)
		}
	}
	want := []string{"docs/decisions.md: no comment cites A1"}
	if got := checkCodes(nil, docs); !slices.Equal(got, want) {
		t.Errorf("nothing is cited: %q", got)
	}
	src := "int f() { /* A1\n A2 */ return '\"'; } // A3\n" +
		"#define X \"// A4 \\\" /*\" /* A5 *//* A6 */\n"
	found := map[string]string{"x.c:1": "/* A1\n A2 ", "x.c:2": "// A3", "x.c:3": "/* A5 /* A6 "}
	if got := comments(file{"x.c", []byte(src)}); !maps.Equal(got, found) {
		t.Errorf("comments of a C file: %q", got)
	}
}
