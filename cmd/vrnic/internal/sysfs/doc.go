// Package sysfs keeps a directory in which a daemon's devices look as the kernel shows RDMA devices
// in /sys and /dev: what programs find there that read it themselves.
//
// Ask makes a Tree of a daemon's answers. Hold, for `vrnic exec`, sees to it that there is such a
// directory for a program and that a keeper, one for all programs of a user with the same daemon,
// brings it up to date each second. Keep is that keeper. How a program comes to see the directory
// at /sys and /dev is verbs/preload's.
package sysfs
