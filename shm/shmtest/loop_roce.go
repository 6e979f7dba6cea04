package shmtest

import (
	"net/netip"
	"syscall"

	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// What a Loop does not have of RoCE.

// CreateAH implements server.PDHandler.
func (p *loopPD) CreateAH(*rpc.AHAttr) (server.AHHandler, error) { return nil, syscall.EOPNOTSUPP }

// Attach implements server.QPHandler.
func (q *loopQP) Attach([16]byte) error { return syscall.EINVAL }

// Detach implements server.QPHandler.
func (q *loopQP) Detach([16]byte) error { return syscall.EINVAL }

// Join implements server.IDHandler.
func (i *loopID) Join(netip.Addr, uint64) error { return syscall.EOPNOTSUPP }

// Leave implements server.IDHandler.
func (i *loopID) Leave(netip.Addr) error { return syscall.EOPNOTSUPP }

// CheckResize implements server.CQHandler.
func (q *loopCQ) CheckResize(uint32) error { return nil }

// Resize implements server.CQHandler: the ring alone decides what there is room for.
func (q *loopCQ) Resize(int) error { return nil }
