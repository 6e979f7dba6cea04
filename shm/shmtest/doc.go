// Package shmtest holds doubles for both sides of a session.
//
// Loop is a server.Handler: an RNIC without a network that connects the QPs of its
// clients with each other. It does what the client's tests need and no more; it is slow and has one
// lock.
//
// RawClient is a client that does only what it is told: any message, any descriptor, any word of
// the rings. It is how tests attack a server.
package shmtest
