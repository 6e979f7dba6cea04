// Program linters runs linters that each want the whole module with its types, and two of them all
// that it imports, too: it is loaded once for all. It is a module of its own: go.mod above keeps to
// what the product needs.
package main

import (
	"go/token"

	"github.com/golangci/unconvert"
	"github.com/gordonklaus/ineffassign/pkg/ineffassign"
	"github.com/nishanths/exhaustive/passes/exhaustive"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/multichecker"
	"gvisor.dev/gvisor/tools/checklocks"
)

var conversions = &analysis.Analyzer{
	Name: "unconvert",
	Doc:  "finds conversions to the type that a value has already",
	Run: func(pass *analysis.Pass) (any, error) {
		files := map[string]*token.File{}
		for _, f := range pass.Files {
			file := pass.Fset.File(f.FileStart)
			files[file.Name()] = file
		}
		for _, at := range unconvert.Run(pass) {
			line := files[at.Filename].LineStart(at.Line)
			pass.Reportf(line+token.Pos(at.Column-1), "unnecessary conversion")
		}
		return nil, nil
	},
}

func main() {
	multichecker.Main(ineffassign.Analyzer, conversions, exhaustive.Analyzer, checklocks.Analyzer)
}
