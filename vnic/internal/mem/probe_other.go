//go:build !linux

package mem

// probe cannot tell here: a fault shows when the memory is used.
func probe([]byte, bool) error { return nil }
