package shm

import (
	"errors"
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A memWindow implements rdma.MW.
type memWindow struct {
	pd     *protDomain
	typ    rdma.MWType
	handle uint32
	rkey   uint32

	mu     sync.Mutex
	closed bool // +checklocks:mu
}

// AllocMW implements rdma.PD.
func (pd *protDomain) AllocMW(typ rdma.MWType) (rdma.MW, error) {
	if err := pd.d.usable(); err != nil {
		return nil, err
	}
	pd.mu.Lock()
	defer pd.mu.Unlock()
	if pd.closed || pd.ending {
		return nil, errClosed("PD")
	}
	var rep rpc.AllocMWReply
	if err := pd.d.c.call(rpc.OpAllocMW, "allocate memory window", &rpc.AllocMWRequest{PD: pd.handle,
		Type: uint32(typ)}, &rep); err != nil {
		return nil, err
	}
	mw := &memWindow{pd: pd, typ: typ, handle: rep.MW, rkey: rep.RKey}
	pd.mws[mw] = struct{}{}
	return mw, nil
}

// Type implements rdma.MW.
func (mw *memWindow) Type() rdma.MWType { return mw.typ }

// RKey implements rdma.MW.
func (mw *memWindow) RKey() uint32 { return mw.rkey }

// Close implements rdma.MW.
func (mw *memWindow) Close() error {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	if mw.closed {
		return nil
	}
	err := mw.pd.d.c.callHandle(rpc.OpDeallocMW, "free memory window", mw.handle)
	var ce *CallError
	if errors.As(err, &ce) {
		return err
	}
	mw.closed = true // also when the session is over
	mw.pd.mu.Lock()
	delete(mw.pd.mws, mw)
	mw.pd.mu.Unlock()
	return nil
}

// AllocMR implements rdma.PD. Its LKey and RKey stay those at allocation: a program keeps account
// of the keys that it registers under.
func (pd *protDomain) AllocMR(maxLen uint64) (rdma.MR, error) {
	if err := pd.d.usable(); err != nil {
		return nil, err
	}
	return pd.newMR(nil, nil, 0, rpc.OpAllocMR, "allocate memory region", &rpc.AllocMRRequest{
		PD: pd.handle, MaxLen: maxLen})
}
