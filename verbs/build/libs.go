// Package build holds the C libraries for verbs programs, as `make -C verbs` left them here before
// this was compiled: libibverbs.so.1, librdmacm.so.1 and libvrnic-ifaddrs.so. They are not in the
// repository. Without them the package compiles too, and holds none.
package build

import (
	"embed"
	"io/fs"
	"strings"
)

// The pattern has to match something for this to compile: this file.
//
//go:embed lib*
var files embed.FS

// Libraries returns the content of each library by its name. What they hold must not be changed.
func Libraries() (map[string][]byte, error) {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, err
	}
	libs := make(map[string][]byte)
	for _, e := range entries {
		if e.IsDir() || !strings.Contains(e.Name(), ".so") {
			continue
		}
		if libs[e.Name()], err = fs.ReadFile(files, e.Name()); err != nil {
			return nil, err
		}
	}
	return libs, nil
}
