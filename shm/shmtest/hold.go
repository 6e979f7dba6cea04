package shmtest

import "sync"

// Hold stops the Loop from doing anything until the returned function is called (once or more
// often).
//
// +checklocksignore: release gives the lock back.
func (l *Loop) Hold() (release func()) {
	l.mu.Lock()
	return sync.OnceFunc(l.mu.Unlock)
}
