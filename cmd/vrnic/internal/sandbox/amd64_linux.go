//go:build amd64

package sandbox

import "golang.org/x/sys/unix"

// archCalls are system calls that not every architecture has.
var archCalls = []uintptr{unix.SYS_POLL, unix.SYS_NEWFSTATAT}
