// Package docker is a driver of Docker's networks, a remote one of libnetwork's: each container of
// such a network has a device of a daemon, and a TAP on the daemon's switch, which are one station:
// the container's address is the kernel's there, and the device's.
//
// The driver makes the TAP, with its own rights; Docker moves it into the container; and then the
// daemon gets it, as a port. What belongs to an endpoint is named after it, so that a driver that
// has started anew finds it: it keeps nothing that matters.
package docker
