package shmtest

import (
	"testing"

	"github.com/vrnic/vrnic/shm/internal/proctest"
)

// HoldPipe and SlowSocket are proctest's, for tests elsewhere.
func HoldPipe(t testing.TB, r int) (release func()) { return proctest.HoldPipe(t, r) }

func SlowSocket(t testing.TB) (fd int, release func()) { return proctest.SlowSocket(t) }
