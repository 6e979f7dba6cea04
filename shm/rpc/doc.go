// Package rpc is the calls of the socket between a daemon and its clients: their structs and
// calls, which messages.table has and go generate makes, the constants that stand in them
// (constants.go, cm.go), and how they are encoded (codec.go). verbs/abi_control.h and
// verbs/abi_cm.h are the same for C.
//
// # Evolution
//
// A message that is shorter than its struct leaves the rest zero; one that is longer must be zero
// there. What a struct has more raises abi.Minor, what is changed there raises abi.Major. Numbers
// of calls, modes and flags are never used again.
//
//go:generate go run ./internal/gen
package rpc
