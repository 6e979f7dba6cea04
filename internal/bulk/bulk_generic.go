//go:build !amd64

package bulk

const fast = false

func blocks(dst, src *byte, n, ahead int) {}
