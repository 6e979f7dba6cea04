// Package abi is what a daemon and its clients agree on: the layout of shared memory (layout.go,
// queue.go, wqe.go) and the messages of the control socket (control.go, control_cm.go, codec.go).
// It is the one place with offsets and numbers. verbs/abi*.h is the same for C.
//
// # Trust
//
// Neither side believes what the other writes or sends. An impossible value is a violation, a
// *ProtocolError, which ends the session as if the program had died. An honest mistake gets an
// error reply or an error completion.
//
// # Evolution
//
// A message that is shorter than its struct leaves the rest zero; one that is longer must be zero
// there. What a struct or the layout has more raises Minor, what is changed there raises Major.
// Numbers of operations, modes and flags are never used again.
//
//go:generate go run ./internal/gen
package abi
