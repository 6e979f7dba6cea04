//go:build !amd64

package prefetch

func read([]byte) {}
