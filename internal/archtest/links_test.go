package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"testing"
)

var kindName = regexp.MustCompile(`(Link|Stream|Port)$`)

// TestNoLinkIsAsserted: what one link, stream or port can do and another cannot is a method, with a
// default where there are many (link.Abilities, llp.Stream), so that a new one needs no line where
// they are used. Whoever asks for the type of one has missed that. A Network's stream is asked
// once, by llp.Of.
func TestNoLinkIsAsserted(t *testing.T) {
	kinds := map[string]bool{
		"link": true,                  // and each of its own below
		"llp":  true, "session": true, // streams
		"ethswitch": true, "port": true, // ports
	}
	for _, f := range goFiles(t) {
		if dir := path.Dir(f.name); path.Dir(dir) == "vnic/internal/link" && !isDouble(module+dir) {
			kinds[path.Base(dir)] = true
		}
	}
	if !kinds["stream"] || !kinds["packets"] {
		t.Fatalf("not all links were found: %v", kinds)
	}
	n := 0
	for _, f := range goFiles(t) {
		if f.isTest() || isDouble(module+path.Dir(f.name)) {
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
			switch typ := typ.(type) {
			case *ast.SelectorExpr:
				pkg, ok := typ.X.(*ast.Ident)
				if ok && kinds[pkg.Name] && typ.Sel.Name != "Sink" { // octets, segments: both may go in
					t.Errorf("%v: asks for a %s.%s", fset.Position(typ.Pos()), pkg.Name, typ.Sel.Name)
				}
			case *ast.Ident: // a kind of what its own package is about
				if kinds[parsed.Name.Name] && kindName.MatchString(typ.Name) {
					t.Errorf("%v: asks for a %s", fset.Position(typ.Pos()), typ.Name)
				}
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
