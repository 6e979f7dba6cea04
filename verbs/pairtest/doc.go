// Package pairtest holds the two libraries, that in C and that in Go, together in what they do with
// the memory of a pair (docs/direct.md): by the same steps they have to leave the same octets
// there.
//
// There is only test code here. Nothing imports this package.
package pairtest
