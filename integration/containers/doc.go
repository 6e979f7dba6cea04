// Package containers tests that verbs programs run in containers on the devices of a daemon outside
// of them. Runtimes are Debian's, images are made on the spot of Debian's packages that are
// installed here: what is in them is Debian's alone.
//
// The test program runs itself again in namespaces of its own, with a /run and network of their
// own: whatever a test or a runtime leaves there (mounts, processes, networks, sockets) goes with
// them.
package containers
