package bulk

const fast = true

// blocks copies n octets, a multiple of block above 0, to dst, which is at the beginning of a line.
// With each it asks for the next one in the source, with the last for the one that is ahead octets
// further.
//
//go:noescape
func blocks(dst, src *byte, n, ahead int)
