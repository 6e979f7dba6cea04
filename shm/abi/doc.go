// Package abi is the memory that a daemon and its clients share: its layout (layout.go, queue.go)
// and the requests and completions in it (wqe.go). It is the one place with its offsets and
// numbers; verbs/abi.h is the same for C. The messages beside it are in package rpc.
//
// # Trust
//
// Neither side believes what the other writes or sends. An impossible value is a violation, a
// *ProtocolError, which ends the session as if the program had died. An honest mistake gets an
// error reply or an error completion.
//
// # Evolution
//
// What the layout has more raises Minor, what is changed there raises Major. Numbers of operations,
// modes and flags are never used again.
package abi
