// Package version says what a program is built from.
package version

import "runtime/debug"

// String is the version of the main module, and the commit if the build knows it.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
	}
	return v
}
