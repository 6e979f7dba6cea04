package abicheck

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// The ABI in C is verbs/abi*.h, in Go it is these files of packages abi and rpc. wqe.go has the
// structs of what lies in rings, of which the C side has those in ringStructs.
var (
	ringFiles = []string{"abi/layout.go", "rpc/constants.go", "rpc/cm.go", "rpc/calls.go",
		"rpc/messages.go"}
	ringStructs = map[string]bool{"CQE": true, "SGE": true}
)

// WQEs are prefixes in C, and views with more in them in Go; abi.h itself holds them to the
// offsets.
var onlyInC = map[string]bool{"SENDWQE": true, "RECVWQE": true}

// canonical is a name without what C and Go do differently: CMIDs in Go are cm_ids in C.
func canonical(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "_", ""))
}

// goABI is what the Go side says, under canonical names: constants, and for each struct its size
// and for each of its fields "@OFFSET+SIZE", with the sign of numbers.
type goABI struct {
	consts  map[string]string
	structs map[string]map[string]string
}

func parseGoABI(t *testing.T) goABI {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	inABI := make(map[string]bool)
	for _, name := range append([]string{"abi/wqe.go"}, ringFiles...) {
		f, err := parser.ParseFile(fset, filepath.Join(shmDir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.Name.Name = "abi" // the two are looked at as one package
		files = append(files, f)
		inABI[path.Base(name)] = name != "abi/wqe.go"
	}
	// The files rest on others of their packages and on imports, for functions: of no interest here.
	cfg := types.Config{
		Error:            func(error) {},
		Importer:         importNothing{},
		IgnoreFuncBodies: true,
	}
	pkg, _ := cfg.Check("abi", fset, files, nil)
	sizes := types.SizesFor("gc", "amd64")
	abi := goABI{consts: map[string]string{}, structs: map[string]map[string]string{}}
	for _, name := range pkg.Scope().Names() {
		obj := pkg.Scope().Lookup(name)
		here := inABI[filepath.Base(fset.Position(obj.Pos()).Filename)]
		if !obj.Exported() || !here && !ringStructs[name] {
			continue
		}
		switch obj := obj.(type) {
		case *types.Const:
			abi.consts[canonical(name)] = constant.ToInt(obj.Val()).ExactString()
		case *types.TypeName:
			if s, ok := obj.Type().Underlying().(*types.Struct); ok && s.NumFields() > 0 {
				abi.structs[canonical(name)] = goStruct(t, name, s, sizes)
			}
		}
	}
	return abi
}

func goStruct(t *testing.T, name string, s *types.Struct, sizes types.Sizes) map[string]string {
	m := map[string]string{"": fmt.Sprint(sizes.Sizeof(s))}
	var fields []*types.Var
	for f := range s.Fields() {
		fields = append(fields, f)
	}
	for i, off := range sizes.Offsetsof(fields) {
		f := fields[i]
		if b, ok := f.Type().Underlying().(*types.Basic); ok && b.Kind() == types.Invalid {
			t.Fatalf("%s.%s has a type from elsewhere", name, f.Name())
		}
		m[canonical(f.Name())] = fmt.Sprintf("@%d+%d%s", off, sizes.Sizeof(f.Type()), signOf(f.Type()))
	}
	return m
}

// signOf is "", or " signed" of a number that may be negative.
func signOf(t types.Type) string {
	if b, ok := t.Underlying().(*types.Basic); ok && b.Info()&types.IsInteger != 0 &&
		b.Info()&types.IsUnsigned == 0 {
		return " signed"
	}
	return ""
}

type importNothing struct{}

func (importNothing) Import(path string) (*types.Package, error) {
	return nil, errors.New("not needed")
}

var (
	cDefine = regexp.MustCompile(`(?m)^#define VRNIC_(\w+) (.*)$`)
)

// TestRingABI compares verbs/abi*.h with package abi: every constant, and of every struct every
// offset, size and sign, must be on both sides and the same.
func TestRingABI(t *testing.T) {
	ctest.Need(t)
	want := parseGoABI(t)
	if len(want.consts) < 150 || len(want.structs) < 50 {
		t.Fatalf("only %d constants and %d structs of package abi were found", len(want.consts),
			len(want.structs))
	}
	h := parseHeaders(t, filepath.Join(verbsDir, "abi.h"), filepath.Join(verbsDir, "abi_control.h"),
		filepath.Join(verbsDir, "abi_cm.h"))

	// The names of all macros, the compiler knows: those that stand for something.
	var b strings.Builder
	b.WriteString("#include \"abi.h\"\n" + printerHead + "int main(void)\n{\n")
	names := make(map[string]string) // as printed -> canonical
	for _, m := range cDefine.FindAllStringSubmatch(macros(t, "abi.h"), -1) {
		if strings.HasSuffix(m[1], "_H") && m[2] == "" {
			continue // the guard of a header
		}
		b.WriteString("\tCONST(VRNIC_" + m[1] + ")\n")
		names["VRNIC_"+m[1]] = canonical(m[1])
	}
	h.printer(&b, func(string) bool { return false })
	for s, fields := range h.structs {
		for _, f := range fields {
			b.WriteString("\t_Generic(((struct " + s + " *)0)->" + f + ", int32_t: printf(\"sign:" + s +
				"." + f + " 1\\n\"), default: 0);\n")
		}
	}
	b.WriteString("\treturn 0;\n}\n")
	got := values(t, compile(t, "ring", b.String(), "-Wno-unused-value"))

	seen := make(map[string]bool)
	for printed, name := range names {
		seen[name] = true
		w, ok := want.consts[name]
		if !ok {
			t.Errorf("%s is not in package abi", printed)
		} else if got[printed] != w {
			t.Errorf("%s is %s, and %s in package abi", printed, got[printed], w)
		}
	}
	for name := range want.consts {
		if !seen[name] {
			t.Errorf("the constant %s of package abi is not in verbs/abi.h", name)
		}
	}
	compareStructs(t, h, got, want)
}

func compareStructs(t *testing.T, h header, got map[string]string, want goABI) {
	t.Helper()
	seen := make(map[string]bool)
	for s, fields := range h.structs {
		name := canonical(strings.TrimPrefix(s, "vrnic_"))
		if onlyInC[name] {
			continue
		}
		seen[name] = true
		w, ok := want.structs[name]
		if !ok {
			t.Errorf("struct %s is not in package abi", s)
			continue
		}
		if got["struct:"+s] != w[""] {
			t.Errorf("struct %s has %s octets, and %s in package abi", s, got["struct:"+s], w[""])
		}
		if len(fields) != len(w)-1 {
			t.Errorf("struct %s has %d fields, and %d in package abi", s, len(fields), len(w)-1)
		}
		for _, f := range fields {
			g := got[s+"."+f]
			if got["sign:"+s+"."+f] == "1" {
				g += " signed"
			}
			if wf := w[canonical(f)]; g != wf {
				t.Errorf("%s.%s is %q, and %q in package abi", s, f, g, wf)
			}
		}
	}
	for name := range want.structs {
		if !seen[name] {
			t.Errorf("the struct %s of package abi is not in verbs/abi.h", name)
		}
	}
}
