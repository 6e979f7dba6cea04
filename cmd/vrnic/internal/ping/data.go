package ping

import (
	"bytes"
	"strconv"
)

// The data is text: a heading with the number of the round, then characters that run from 'A' to
// 'z' and around, beginning one later each round, and a NUL at the end.
const (
	heading   = "rdma-ping-"
	firstChar = 'A'
	lastChar  = 'z'
	numChars  = lastChar - firstChar + 1
)

// fillData makes b the data of a round. b holds MinSize octets at least.
func fillData(b []byte, round int) {
	text := append(strconv.AppendInt(append(b[:0:0], heading...), int64(round), 10), ": "...)
	n := copy(b, text)
	c := firstChar + round%numChars
	for i := n; i < len(b); i++ {
		b[i] = byte(c)
		if c++; c > lastChar {
			c = firstChar
		}
	}
	b[len(b)-1] = 0
}

// printable is the text in b up to the first NUL, each octet that is no printable ASCII as a dot:
// a peer must not get control sequences to a terminal.
func printable(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	out := make([]byte, len(b))
	for i, c := range b {
		if c < ' ' || c > '~' {
			c = '.'
		}
		out[i] = c
	}
	return out
}
