//go:build arm64

package sandbox

import "golang.org/x/sys/unix"

// archCalls are system calls that not every architecture has, or not by this name.
var archCalls = []uintptr{unix.SYS_FSTATAT}
