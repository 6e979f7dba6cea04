// Package cni is a plugin of the Container Network Interface: each container gets a TAP on the
// switch of a daemon, alone or behind other plugins of a network, with addresses of an IPAM plugin.
//
// The plugin makes the TAP in the container's network namespace, with its own rights, and hands it
// to the daemon, which needs none. The daemon knows the port by a name made of the network's, the
// container's and the interface's, so that nothing has to be kept here.
package cni
