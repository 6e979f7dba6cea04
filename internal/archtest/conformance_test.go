package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// titles says how many requirements each title has; they are numbered from 1.
var titles = []struct {
	name, title string
	n           int
}{
	{"MPA", "MPA (RFC 5044)", 102}, {"EMPA", "Enhanced set-up (RFC 6581)", 50},
	{"DDP", "DDP (RFC 5041)", 101},
	{"RDMAP", "RDMAP (RFC 5040)", 127}, {"EXT", "Extensions (RFC 7306)", 49},
	{"SEC", "Security (RFC 5042)", 45},
	{"SCTP", "SCTP (RFC 9260)", 179}, {"SDDP", "DDP over SCTP (RFC 5043)", 93},
	{"ESDDP", "Enhanced set-up over SCTP (RFC 6581)", 32},
	{"ROCE", "RoCEv2 (IBA volume 1, chapter 9, annex A17)", 232},
	{"RVB", "Verbs of RoCE (ibv_modify_qp and its kin)", 51},
	{"RCM", "RoCE's connection manager (IBA volume 1, chapter 12, annex A11)", 67},
	{"RSYS", "What programs read in /sys and /dev (RoCE devices)", 19},
	{"ROI", "The iWarp of 2002 (draft-bailey-roi-rdma-00)", 39},
	{"IPOIB", "IP over InfiniBand (RFC 4391, 4755)", 44},
}

const conformanceTable = "docs/conformance.md"

// A requirement is a row of the table.
type requirement struct {
	line  int
	cover []string // package.Test
	note  string   // open or n/a, and why
}

var (
	rowStart = regexp.MustCompile(`^\| ([A-Z]+-\d{3}) \|`)
	testName = regexp.MustCompile("^`([a-z]+)\\.((?:Test|Fuzz)[A-Z]\\w*)`$")
	// citedTest is also in the rows of what no text asks for, which have no ID.
	citedTest = regexp.MustCompile("`([a-z]+\\.(?:Test|Fuzz)[A-Z]\\w*)`")
	noteForm  = regexp.MustCompile(`^(open(: .+)?|n/a: .+)$`)
)

// parseConformance reads the table's rows; complaints are what is wrong with their form.
func parseConformance(text string) (rows map[string]requirement, complaints []string) {
	rows = map[string]requirement{}
	for i, line := range strings.Split(text, "\n") {
		m := rowStart.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		id := m[1]
		complain := func(format string, args ...any) {
			complaints = append(complaints, fmt.Sprintf("%s:%d: %s: %s", conformanceTable, i+1, id,
				fmt.Sprintf(format, args...)))
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 4 || strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[2]) == "" {
			complain("not four cells with something in them")
			continue
		}
		if _, ok := rows[id]; ok {
			complain("is there twice")
		}
		r := requirement{line: i + 1}
		if noteForm.MatchString(cells[3]) {
			r.note = cells[3]
		} else {
			for _, c := range strings.Split(cells[3], ", ") {
				m := testName.FindStringSubmatch(c)
				if m == nil {
					complain("%q is no test, nor open, nor n/a with a reason", c)
					continue
				}
				r.cover = append(r.cover, m[1]+"."+m[2])
			}
		}
		rows[id] = r
	}
	return rows, complaints
}

var (
	idStart = regexp.MustCompile(`\b(MPA|EMPA|DDP|RDMAP|EXT|SEC|SCTP|SDDP|ESDDP|ROCE|RCM|RVB|RSYS|ROI|IPOIB)-(\d{3})\b`)
	idRange = regexp.MustCompile(`^(?:\.\.| to )-?(\d{3})\b`)
	idMore  = regexp.MustCompile(`^,?(?: and)? -?(\d{3})\b`)
)

// requirements finds the IDs that text names, in the forms DDP-001, 002; DDP-003..005 and SEC-010
// to -013.
func requirements(text string) (ids []string) {
	for text != "" {
		at := idStart.FindStringSubmatchIndex(text)
		if at == nil {
			return ids
		}
		title := text[at[2]:at[3]]
		last, _ := strconv.Atoi(text[at[4]:at[5]])
		ids = append(ids, fmt.Sprintf("%s-%03d", title, last))
		text = text[at[1]:]
		for {
			if m := idRange.FindStringSubmatch(text); m != nil {
				end, _ := strconv.Atoi(m[1])
				for last++; last <= end; last++ {
					ids = append(ids, fmt.Sprintf("%s-%03d", title, last))
				}
				last, text = end, text[len(m[0]):]
			} else if m := idMore.FindStringSubmatch(text); m != nil {
				last, _ = strconv.Atoi(m[1])
				ids, text = append(ids, fmt.Sprintf("%s-%03d", title, last)), text[len(m[0]):]
			} else {
				break
			}
		}
	}
	return ids
}

// A testFunc is a test or fuzz target and what its comment and its body say.
type testFunc struct {
	file, name string
	ids        []string
}

// tests finds those of a test file. The last one has no name: it stands for the rest of the file.
func tests(t *testing.T, f file) (out []testFunc) {
	t.Helper()
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, f.name, f.text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	rest := bytes.Clone(f.text)
	for _, d := range tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") && !strings.HasPrefix(
			fn.Name.Name, "Fuzz") {
			continue
		}
		from, to := fn.Pos(), fn.End()
		if fn.Doc != nil {
			from = fn.Doc.Pos()
		}
		i, j := fset.Position(from).Offset, fset.Position(to).Offset
		out = append(out, testFunc{f.name, fn.Name.Name,
			requirements(comment.ReplaceAllString(string(f.text[i:j]), " "))})
		clear(rest[i:j])
	}
	return append(out, testFunc{f.name, "", requirements(comment.ReplaceAllString(string(rest), " "))})
}

// comment is a line break in a comment: a list of IDs may go over it.
var comment = regexp.MustCompile(`\n// `)

// TestConformanceTable holds docs/conformance.md to the titles' counts and to the tests.
func TestConformanceTable(t *testing.T) {
	all := files(t)
	i := slices.IndexFunc(all, func(f file) bool { return f.name == conformanceTable })
	if i < 0 {
		t.Fatalf("there is no %s", conformanceTable)
	}
	rows, complaints := parseConformance(string(all[i].text))
	for _, c := range complaints {
		t.Error(c)
	}
	total := 0
	var sums [3]int // covered, open, n/a
	for _, l := range titles {
		total += l.n
		var counts [3]int
		for n := 1; n <= l.n; n++ {
			r, ok := rows[fmt.Sprintf("%s-%03d", l.name, n)]
			if !ok {
				t.Errorf("%s: %s-%03d is missing", conformanceTable, l.name, n)
			}
			switch {
			case strings.HasPrefix(r.note, "open"):
				counts[1]++
			case r.note != "":
				counts[2]++
			default:
				counts[0]++
			}
		}
		for i, n := range counts {
			sums[i] += n
		}
		wantSum(t, all[i].text, l.title, counts)
	}
	wantSum(t, all[i].text, "all", sums)
	if len(rows) != total {
		t.Errorf("%s has %d rows, want %d: an ID that no title has", conformanceTable, len(rows), total)
	}

	exists := map[string]bool{}
	var funcs []testFunc
	for _, f := range all {
		if path.Ext(f.name) != ".go" || !f.isTest() || path.Base(path.Dir(f.name)) == "archtest" {
			continue
		}
		for _, fn := range tests(t, f) {
			funcs = append(funcs, fn)
			exists[path.Base(path.Dir(f.name))+"."+fn.name] = true
		}
	}
	for id, r := range rows {
		for _, c := range r.cover {
			if !exists[c] {
				t.Errorf("%s:%d: %s: there is no %s", conformanceTable, r.line, id, c)
			}
		}
	}
	for _, m := range citedTest.FindAllSubmatch(all[i].text, -1) {
		if c := string(m[1]); !exists[c] {
			t.Errorf("%s: there is no %s", conformanceTable, c)
		}
	}
	// What a test says of itself is in the table; what a helper says is there for some test of the
	// package.
	for _, fn := range funcs {
		pkg := path.Base(path.Dir(fn.file))
		for _, id := range fn.ids {
			r, ok := rows[id]
			switch {
			case !ok:
				t.Errorf("%s: %s: there is no requirement %s", fn.file, fn.name, id)
			case fn.name == "" && !slices.ContainsFunc(r.cover,
				func(c string) bool { return strings.HasPrefix(c, pkg+".") }):
				t.Errorf("%s names %s, but the table has no test of %s for it", fn.file, id, pkg)
			case fn.name != "" && !slices.Contains(r.cover, pkg+"."+fn.name):
				t.Errorf("%s: %s names %s, but the table does not name it there", fn.file, fn.name, id)
			}
		}
	}
}

// wantSum looks for the line that sums up what a title's rows come to.
func wantSum(t *testing.T, text []byte, title string, n [3]int) {
	t.Helper()
	if line := fmt.Sprintf("| %s | %d | %d | %d |\n", title, n[0], n[1], n[2]); !bytes.Contains(text,
		[]byte(line)) {
		t.Errorf("%s: the sums are not right, want %s", conformanceTable, line)
	}
}

func TestRequirements(t *testing.T) {
	for text, want := range map[string]string{
		"A29, DDP-079, DDP-003, 004: a Send":         "[DDP-079 DDP-003 DDP-004]",
		"SEC-005, -010 to -013, -019 and 021; x 022": "[SEC-005 SEC-010 SEC-011 SEC-012 SEC-013 SEC-019 SEC-021]",
		"EMPA-016..018, 020":                         "[EMPA-016 EMPA-017 EMPA-018 EMPA-020]",
		"MPA-1, VABI-6.8, XMPA-001, MPA-0011":        "[]",
		"SDDP-001, 002; ESDDP-003, SCTP-104":         "[SDDP-001 SDDP-002 ESDDP-003 SCTP-104]",
		"(DDP-021, RDMAP-091)":                       "[DDP-021 RDMAP-091]",
	} {
		if got := fmt.Sprint(requirements(text)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// What is wrong with a table is found.
func TestParseConformance(t *testing.T) {
	for text, want := range map[string]string{
		"| MPA-001 | 3 | words | `iwarp.TestX`, `vnic.FuzzY` |":  "",
		"| MPA-001 | 3 | words | open |":                         "",
		"| MPA-001 | 3 | words | n/a: why |":                     "",
		"| MPA-001 | 3 | words | n/a |":                          "is no test",
		"| MPA-001 | 3 | words | iwarp.TestX |":                  "is no test",
		"| MPA-001 | 3 | words | `iwarp.Helper` |":               "is no test",
		"| MPA-001 | 3 | open |":                                 "four cells",
		"| MPA-001 | 3 | a | open |\n| MPA-001 | 3 | a | open |": "twice",
	} {
		_, complaints := parseConformance(text)
		if got := strings.Join(complaints, "\n"); want == "" && got != "" ||
			!strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
