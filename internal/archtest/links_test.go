package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"testing"
)

// TestNoLinkIsAsserted: what one link or stream can do and another cannot is a method with a
// default (link.Abilities, llp.Stream), so that a new one needs no line where they are used.
// Whoever asks for the type of one has missed that. A Network's stream is asked once, by llp.Of.
func TestNoLinkIsAsserted(t *testing.T) {
	kinds := map[string]bool{"link": true, "loop": true, "stream": true, "llp": true, "session": true}
	n := 0
	for _, f := range goFiles(t) {
		if f.isTest() || !within(f.name, "vnic") || isDouble(module+path.Dir(f.name)) {
			continue
		}
		n++
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, f.name, f.text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(typ ast.Expr) {
			if star, ok := typ.(*ast.StarExpr); ok {
				typ = star.X
			}
			s, ok := typ.(*ast.SelectorExpr)
			if !ok || s.Sel.Name == "Sink" { // whoever takes octets may take segments, too
				return
			}
			if pkg, ok := s.X.(*ast.Ident); ok && kinds[pkg.Name] {
				t.Errorf("%v: asks for a %s.%s", fset.Position(typ.Pos()), pkg.Name, s.Sel.Name)
			}
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.TypeAssertExpr:
				ask(node.Type)
			case *ast.TypeSwitchStmt:
				for _, c := range node.Body.List {
					for _, typ := range c.(*ast.CaseClause).List {
						ask(typ)
					}
				}
			}
			return true
		})
	}
	if n == 0 {
		t.Error("no file was looked at")
	}
}
