package verbs

import (
	"io/fs"
	"path/filepath"
	"testing"
)

// All that the libraries are built from is in Source.
func TestSource(t *testing.T) {
	n := 0
	for _, pattern := range []string{"Makefile", "*.map", "*.h", "*/*.[ch]", "*/abi/*.h"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			n++
			if _, err := fs.Stat(Source, name); err != nil {
				t.Error(err)
			}
		}
	}
	if n < 60 {
		t.Errorf("only %d files were found", n)
	}
}
