//go:build !amd64 && !arm64

package sandbox

// restrictCalls has no list for this architecture.
func restrictCalls(Config, bool) (missing string, err error) {
	return "not on this architecture", nil
}
