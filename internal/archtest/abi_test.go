package archtest

import (
	"flag"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated parts of docs")

// fakeImporter lets a package be checked as far as its own constants and structs go.
type fakeImporter struct{}

func (fakeImporter) Import(p string) (*types.Package, error) {
	pkg := types.NewPackage(p, path.Base(p))
	pkg.MarkComplete()
	return pkg, nil
}

// A source is a package that has been read: what it declares, and the comments of its fields.
type source struct {
	*types.Package
	comments map[string]string // of struct.field
}

// packageOf reads the package in which name is declared at the top; dirs are looked into in order.
func packageOf(t *testing.T, name string, dirs ...string) source {
	t.Helper()
	for _, dir := range dirs {
		set := token.NewFileSet()
		var parsed []*ast.File
		for _, f := range goFiles(t) {
			if path.Dir(f.name) == dir && !f.isTest() {
				p, err := parser.ParseFile(set, f.name, f.text, parser.ParseComments)
				if err != nil {
					t.Fatal(err)
				}
				parsed = append(parsed, p)
			}
		}
		conf := types.Config{Importer: fakeImporter{}, Error: func(error) {}}
		pkg, _ := conf.Check(dir, set, parsed, nil) // what it takes from elsewhere is not looked at
		if pkg == nil || pkg.Scope().Lookup(name) == nil {
			continue
		}
		s := source{pkg, make(map[string]string)}
		for _, p := range parsed {
			ast.Inspect(p, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				st, ok := spec.Type.(*ast.StructType)
				if !ok {
					return false
				}
				for _, f := range st.Fields.List {
					text := f.Comment.Text()
					if text == "" {
						text = f.Doc.Text()
					}
					for _, n := range f.Names {
						s.comments[spec.Name.Name+"."+n.Name] = strings.Join(strings.Fields(text), " ")
					}
				}
				return false
			})
		}
		return s
	}
	t.Fatalf("none of %v declares %s", dirs, name)
	return source{}
}

// constOf is the value of a constant.
func (s source) constOf(name string) (int64, bool) {
	c, ok := s.Scope().Lookup(name).(*types.Const)
	if !ok {
		return 0, false
	}
	return constant.Int64Val(constant.ToInt(c.Val()))
}

// structTable shows the structs that want names and those in them, field by field, in the order of
// want.
func (s source) structTable(want []string) string {
	sizes := types.SizesFor("gc", "amd64")
	local := func(*types.Package) string { return "" }
	var out strings.Builder
	out.WriteString("| struct | octets | offset | type | field | |\n|---|--:|--:|---|---|---|\n")
	for i := 0; i < len(want); i++ {
		obj := s.Scope().Lookup(want[i])
		if obj == nil {
			continue
		}
		st, ok := obj.Type().Underlying().(*types.Struct)
		if !ok {
			continue
		}
		var fields []*types.Var
		for f := range st.Fields() {
			fields = append(fields, f)
			typ := f.Type()
			if a, ok := typ.Underlying().(*types.Array); ok {
				typ = a.Elem()
			}
			if n, ok := typ.(*types.Named); ok && !slices.Contains(want, n.Obj().Name()) {
				if _, ok := n.Underlying().(*types.Struct); ok {
					want = append(want, n.Obj().Name())
				}
			}
		}
		for k, off := range sizes.Offsetsof(fields) {
			begin := "| |"
			if k == 0 {
				begin = fmt.Sprintf("| %s | %d", want[i], sizes.Sizeof(st))
			}
			f := fields[k]
			comment := strings.ReplaceAll(s.comments[want[i]+"."+f.Name()], "|", "\\|")
			typ := types.TypeString(f.Type(), local)
			fmt.Fprintf(&out, "%s | %d | %s | %s | %s |\n", begin, off, typ, f.Name(), comment)
		}
	}
	return out.String()
}

// callTable shows the calls of shm/rpc/messages.table, and returns the structs that they have.
func callTable(t *testing.T) (table string, structs []string) {
	t.Helper()
	const name = "shm/rpc/messages.table"
	all := files(t)
	i := slices.IndexFunc(all, func(f file) bool { return f.name == name })
	if i < 0 {
		t.Fatalf("there is no %s", name)
	}
	var out strings.Builder
	out.WriteString("| op | | request | reply | descriptors |\n|--:|---|---|---|---|\n")
	var head, request, fds string
	for line := range strings.Lines(string(all[i].text)) {
		if m := callForm.FindStringSubmatch(line); m != nil {
			upper := strings.ToUpper(wordBegin.ReplaceAllString(m[2], "${1}${3}_${2}${4}"))
			head, fds = fmt.Sprintf("| %s | %s", m[1], upper), ""
			if m := givesForm.FindStringSubmatch(line); m != nil {
				with := map[string]string{"takes": "request", "gives": "reply"}[m[1]]
				fds = fmt.Sprintf("%s with the %s ", m[2], with)
			}
		}
		m := bodyForm.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if m[2] != "-" && !slices.Contains(structs, m[2]) {
			structs = append(structs, m[2])
		}
		if m[1] == "request" {
			request = strings.Replace(m[2], "-", "nothing", 1)
			continue
		}
		fmt.Fprintf(&out, "%s | %s | %s | %s|\n", head, request, m[2], fds)
	}
	return out.String(), structs
}

var limitForm = regexp.MustCompile(`limitInt(?:64)?\("([a-z-]+)",\s+"([^"]+)",\s+(\S+),`)

// limitTable shows the quotas of the server.
func limitTable(t *testing.T) string {
	t.Helper()
	computed := map[string]string{
		"defaultMappings()":       "half of what the kernel allows",
		"defaultPipes()":          "half of the descriptors",
		"defaultIDs()":            "one for each 8 KiB of memory, at least 131072",
		"defaultRegions()":        "one for each 2 KiB of memory",
		"defaultLent()":           "the memory of the machine, at least 4 GiB",
		"defaultQueues()":         "a quarter of the memory, at least 256 MiB",
		"defaultRings()":          "an eighth of the memory, at least 256 MiB",
		"defaultSessions()":       "256 to 4096: a 16th of the descriptors, a quarter of the threads",
		"defaultSessionsPerUID()": "a quarter of `sessions`",
	}
	var out strings.Builder
	out.WriteString("| name | default | |\n|---|--:|---|\n")
	n := 0
	for _, f := range goFiles(t) {
		if !strings.HasPrefix(f.name, "shm/") || f.isTest() {
			continue
		}
		for _, m := range limitForm.FindAllStringSubmatch(string(f.text), -1) {
			val, ok := computed[m[3]]
			if !ok {
				tv, err := types.Eval(token.NewFileSet(), nil, token.NoPos, m[3])
				if err != nil {
					t.Fatalf("%s: the default of %s: %v", f.name, m[1], err)
				}
				val = tv.Value.ExactString()
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", m[1], val, m[2])
			n++
		}
	}
	if n < 15 {
		t.Errorf("only %d limits were found: has limitInt another form?", n)
	}
	return out.String()
}

var (
	offsetRow = regexp.MustCompile("(?m)^\\| (\\d+) \\| *[a-z0-9]* *\\| `(\\w+)` \\|")
	boundRow  = regexp.MustCompile("(?m)^\\| `([A-Z]\\w+)` \\| (\\d+) \\|")
	inlineVal = regexp.MustCompile("`((?:SQ|Arm|Slot|Room)[A-Z]\\w+)` (\\d+)")
	callForm  = regexp.MustCompile(`^call (\d+) (\w+)`)
	givesForm = regexp.MustCompile(` (takes|gives)=(\d)`)
	bodyForm  = regexp.MustCompile(`^\t(request|reply) (\S+)`)
	wordBegin = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)
)

// docs/abi.md has the offsets, bounds, numbers and structs of the ABI as they are in the code, and
// docs/direct.md those of the direct path.
func TestABIDoc(t *testing.T) {
	const name = "../../docs/abi.md"
	text := doc(t, "abi.md")
	abi, rpc := packageOf(t, "SessMagic", "shm/abi"), packageOf(t, "HelloRequest", "shm/rpc")

	all := text + doc(t, "direct.md")
	shown := make(map[string]bool)
	check := func(what, value string) {
		shown[what] = true
		n, ok := abi.constOf(what)
		if !ok {
			n, ok = rpc.constOf(what)
		}
		if !ok || fmt.Sprint(n) != value {
			t.Errorf("docs/abi.md: %s is %d, not %s", what, n, value)
		}
	}
	for _, m := range offsetRow.FindAllStringSubmatch(all, -1) {
		check(m[2], m[1])
	}
	for _, m := range boundRow.FindAllStringSubmatch(text, -1) {
		check(m[1], m[2])
	}
	for _, m := range inlineVal.FindAllStringSubmatch(all, -1) {
		check(m[1], m[2])
	}
	word := regexp.MustCompile(
		`^(Sess|QP|SQ|SGE|RQ|CQE?|Chan|Arm|Max|Min|Pair|Dir|Room|Slot|Keys?|Bits)[A-Z]`)
	for _, c := range slices.Concat(abi.Scope().Names(), rpc.Scope().Names()) {
		_, ok := abi.constOf(c)
		_, too := rpc.constOf(c)
		if (ok || too) && word.MatchString(c) && !shown[c] && !slices.Contains(notInDoc, c) {
			t.Errorf("docs/abi.md does not show %s", c)
		}
	}

	calls, structs := callTable(t)
	for _, s := range structs {
		if rpc.Scope().Lookup(s) == nil {
			t.Errorf("docs/abi.md: there is no struct %s", s)
		}
	}

	written := text
	parts := map[string]string{
		"calls": calls, "structs": rpc.structTable(structs), "limits": limitTable(t),
	}
	for part, table := range parts {
		begin, end := "<!-- "+part+": written by TestABIDoc -update -->\n", "<!-- end of "+part+" -->"
		i, j := strings.Index(written, begin), strings.Index(written, end)
		if i < 0 || j < i {
			t.Fatalf("docs/abi.md has no place for %s", part)
		}
		written = written[:i+len(begin)] + table + written[j:]
	}
	if written == text {
		return
	}
	if !*update {
		t.Errorf("docs/abi.md is not as the code: go test ./internal/archtest -run TestABIDoc -update")
		return
	}
	if err := os.WriteFile(name, []byte(written), 0o644); err != nil {
		t.Fatal(err)
	}
}

// notInDoc are constants of a form that docs/abi.md shows, and why it does not show these: they are
// lengths or numbers that a table has in another form.
var notInDoc = []string{
	"SGELen", "CQELen", "PairHeaderLen", "KeysHeaderLen", "BitsHeaderLen", "RoomLen", "SlotLen", "KeyLen",
	"MaxDevices", "MaxAddrs", "MaxPrivate", "MaxOption", "QPAttrState", "QPAttrAccess",
}
