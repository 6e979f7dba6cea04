// Package prefetch asks the processor for memory before it is read.
//
// Octets of a message are copied a segment at a time, and between two copies the segment's CRC is
// computed: that takes as long as a cache miss, but the processor looks no further than a few
// hundred instructions, and what it guesses by itself ends with the page. So each copy would wait
// for its first lines anew.
package prefetch

// Read asks for the octets of p. It is a hint: it changes nothing, and does not fault.
func Read(p []byte) { read(p) }
