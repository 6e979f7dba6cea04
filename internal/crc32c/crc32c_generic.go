//go:build !amd64

package crc32c

import "hash/crc32"

func update(c uint32, p []byte) uint32 { return crc32.Update(c, table, p) }
