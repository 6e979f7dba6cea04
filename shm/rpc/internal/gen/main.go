// Gen writes what follows from messages.table and from the constants of packages abi and rpc:
// the Go structs, their codec and the calls (messages.go, messages_unsafe.go, calls.go), and the C
// headers (verbs/abi.h, verbs/abi_control.h, verbs/abi_cm.h). go generate runs it in the folder of
// package rpc.
package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
)

// sources have the constants that C has, too.
var sources = []string{"../abi/layout.go", "constants.go", "cm.go"}

// verbsDir is where the C headers are, seen from package rpc.
const verbsDir = "../../verbs"

func main() {
	out, err := generate(".")
	for name, text := range out {
		if err == nil {
			err = os.WriteFile(name, text, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

type generator struct {
	table    *table
	fset     *token.FileSet
	files    map[string]*ast.File
	consts   map[string]int
	comments map[string]string   // of constants, behind them
	order    map[string][]string // the constants of a file
}

// generate returns the files by name; dir is that of package rpc.
func generate(dir string) (map[string][]byte, error) {
	g := &generator{
		fset: token.NewFileSet(), files: make(map[string]*ast.File), consts: make(map[string]int),
		comments: make(map[string]string), order: make(map[string][]string),
	}
	for _, name := range sources {
		f, err := parser.ParseFile(g.fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		f.Name.Name = "abi" // they are evaluated as one package
		g.files[name] = f
	}
	if err := g.evaluate(); err != nil {
		return nil, err
	}
	var err error
	if g.table, err = parseTable(filepath.Join(dir, "messages.table"), g.consts); err != nil {
		return nil, err
	}
	c := func(name string) string { return filepath.Join(dir, verbsDir, name) }
	out := map[string][]byte{
		c("abi.h"):         g.abiHeader(),
		c("abi_control.h"): g.part("abi_control.h", "constants.go"),
		c("abi_cm.h"):      g.part("abi_cm.h", "cm.go"),
	}
	for name, f := range map[string]func() ([]byte, error){
		"calls.go": g.table.goCalls, "messages.go": g.table.goStructs,
		"messages_unsafe.go": g.table.goCodec,
	} {
		if out[filepath.Join(dir, name)], err = f(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// evaluate finds the values of the constants.
func (g *generator) evaluate() error {
	// Only the constants are of interest: the structs of messages.go may be missing.
	cfg := types.Config{Error: func(error) {}, Importer: noImporter{}, IgnoreFuncBodies: true}
	var all []*ast.File
	for _, name := range sources {
		all = append(all, g.files[name])
	}
	pkg, _ := cfg.Check("abi", g.fset, all, nil)
	for _, name := range sources {
		for _, d := range g.files[name].Decls {
			d, ok := d.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				continue
			}
			for _, s := range d.Specs {
				s := s.(*ast.ValueSpec)
				c := pkg.Scope().Lookup(s.Names[0].Name).(*types.Const)
				v, ok := constant.Int64Val(constant.ToInt(c.Val()))
				if !ok || len(s.Names) != 1 || len(s.Values) != 1 {
					return fmt.Errorf("%s: one name and one integer a line, please", c.Name())
				}
				g.consts[c.Name()] = int(v)
				g.order[name] = append(g.order[name], c.Name())
				g.comments[c.Name()] = strings.TrimSpace(strings.TrimPrefix(commentOf(s), "//"))
			}
		}
	}
	return nil
}

func commentOf(s *ast.ValueSpec) string {
	if s.Comment == nil {
		return ""
	}
	return s.Comment.List[0].Text
}

func (g *generator) line(p token.Pos) int { return g.fset.Position(p).Line }

type noImporter struct{}

func (noImporter) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not needed", path)
}
