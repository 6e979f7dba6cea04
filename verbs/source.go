// Package verbs holds the C source of the libraries for verbs programs, for hosts where vrnic was
// built without them: `make -C` builds them from it.
package verbs

import "embed"

//go:embed Makefile *.h *.map core pair ibverbs rdmacm rsocket rsocketd rspreload versions
//go:embed preload setting check guard
var Source embed.FS
