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

var limitForm = regexp.MustCompile(`limitInt(?:64)?\("([a-z-]+)", "([^"]+)", (\S+),`)

// limitTable shows the quotas of the server.
func limitTable(t *testing.T) string {
	t.Helper()
	computed := map[string]string{
		"defaultMappings()": "half of what the kernel allows",
		"defaultPipes()":    "half of the descriptors",
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
	inlineVal = regexp.MustCompile("`((?:SQ|Arm)[A-Z]\\w+)` (\\d+)")
	opRow     = regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Z_]+) \| (\w+)[^|]* \| ([\w-]+) \|`)
)

// docs/abi.md has the offsets, bounds, numbers and structs of the ABI as they are in the code.
func TestABIDoc(t *testing.T) {
	const name = "../../docs/abi.md"
	text := doc(t, "abi.md")
	abi := packageOf(t, "SessMagic", "shm/abi", "shm")

	shown := make(map[string]bool)
	check := func(what, value string) {
		shown[what] = true
		if n, ok := abi.constOf(what); !ok || fmt.Sprint(n) != value {
			t.Errorf("docs/abi.md: %s is %d, not %s", what, n, value)
		}
	}
	for _, m := range offsetRow.FindAllStringSubmatch(text, -1) {
		check(m[2], m[1])
	}
	for _, m := range boundRow.FindAllStringSubmatch(text, -1) {
		check(m[1], m[2])
	}
	for _, m := range inlineVal.FindAllStringSubmatch(text, -1) {
		check(m[1], m[2])
	}
	opName := regexp.MustCompile(`^Op[A-Z]`)
	word := regexp.MustCompile(`^(Sess|QP|SQ|SGE|RQ|CQE?|Chan|Arm|Max|Min)[A-Z]`)
	for _, c := range abi.Scope().Names() {
		_, ok := abi.constOf(c)
		if ok && word.MatchString(c) && !shown[c] && !slices.Contains(notInDoc, c) {
			t.Errorf("docs/abi.md does not show %s", c)
		}
	}

	ops := make(map[int64]bool)
	var structs []string
	add := func(s string) {
		if s != "-" && s != "nothing" && !slices.Contains(structs, s) {
			structs = append(structs, s)
		}
	}
	for _, m := range opRow.FindAllStringSubmatch(text, -1) {
		var op int64
		fmt.Sscan(m[1], &op)
		ops[op] = true
		add(m[3])
		add(m[4])
	}
	for _, c := range abi.Scope().Names() {
		n, ok := abi.constOf(c)
		if ok && opName.MatchString(c) && !ops[n] && !slices.Contains(notInDoc, c) {
			t.Errorf("docs/abi.md does not show operation %d, %s", n, c)
		}
	}
	for _, s := range structs {
		if abi.Scope().Lookup(s) == nil {
			t.Errorf("docs/abi.md: there is no struct %s", s)
		}
	}

	written := text
	parts := map[string]string{"structs": abi.structTable(structs), "limits": limitTable(t)}
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
	"SGELen", "CQELen", "MaxDevices", "MaxAddrs", "MaxPrivate", "MaxOption", "QPAttrState",
	"QPAttrAccess",
}
