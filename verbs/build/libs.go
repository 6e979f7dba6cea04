// Package build holds the C libraries for verbs programs, as `make -C verbs` left them here before
// this was compiled: libibverbs.so.1, librdmacm.so.1 and what is preloaded; and in libmusl those of
// `make -C verbs musl`, for programs whose C library is musl. They are not in the repository.
// Without them the package compiles too, and holds none.
package build

import (
	"embed"
	"errors"
	"io/fs"
	"path"
	"strings"
)

// The pattern has to match something for this to compile, and each folder that it matches to hold
// something, while `make` is not done too: this file, and libmusl/README.
//
//go:embed lib*
var files embed.FS

// Libraries returns the content of each library by its name, of those for musl or of the others.
// What they hold must not be changed.
func Libraries(musl bool) (map[string][]byte, error) {
	dir := "."
	if musl {
		dir = "libmusl"
	}
	entries, err := fs.ReadDir(files, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	libs := make(map[string][]byte)
	for _, e := range entries {
		if e.IsDir() || !strings.Contains(e.Name(), ".so") {
			continue
		}
		if libs[e.Name()], err = fs.ReadFile(files, path.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return libs, nil
}
