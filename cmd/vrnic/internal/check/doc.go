// Package check is what `vrnic exec --check` says of a program. The library libvrnic-check.so
// follows what the program does and tells facts, a datagram each; a Listener takes them, finds
// sources and lines in the program's own symbols, and words them.
package check
