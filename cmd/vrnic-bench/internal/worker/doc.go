// Package worker is an end of a measurement in a process of its own, a client of a daemon: Serve is
// in that process, an End in the one that measures.
package worker
