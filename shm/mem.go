package shm

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A buffer is memory of this process that the daemon has mapped too.
type buffer struct {
	d   *Device
	mem uint32        // the daemon's handle
	all *osmem.Region // the mapping: whole pages
	b   []byte        // what was asked for

	mu     sync.Mutex
	mrs    int  // +checklocks:mu
	closed bool // +checklocks:mu
}

// AllocBuffer implements rdma.Device. A Buffer is a mapping of the daemon, of which there
// are not many: make few large ones and register parts of them.
func (d *Device) AllocBuffer(size int) (_ rdma.Buffer, err error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if size <= 0 || size > math.MaxInt-osmem.PageSize {
		return nil, errInvalid("buffer of %d octets", size)
	}
	all, fd, err := osmem.NewRegion("buffer", size, nil)
	if err != nil {
		return nil, fmt.Errorf("shm: buffer of %d octets: %w", size, err)
	}
	defer osmem.CloseFDs([]int{fd})
	defer func() {
		if err != nil {
			all.Release()
		}
	}()
	var rep rpc.AddMemReply
	if _, err := d.c.rpc(rpc.OpAddMem, "lend a buffer", &rpc.AddMemRequest{}, &rep, fd); err != nil {
		return nil, err
	}
	b := &buffer{d: d, mem: rep.Mem, all: all, b: all.Mem[:size:size]}
	if err := add(d, d.bufs, b, struct{}{}); err != nil {
		_ = d.c.callHandle(rpc.OpDelMem, "return a buffer", rep.Mem) // err says more
		return nil, err
	}
	return b, nil
}

// Bytes implements rdma.Buffer. The slice is good until Close.
func (b *buffer) Bytes() []byte { return b.b }

// Close implements rdma.Buffer.
func (b *buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	if b.mrs != 0 {
		return fmt.Errorf("shm: buffer has %d memory regions: %w", b.mrs, rdma.ErrBusy)
	}
	if err := b.d.c.callHandle(rpc.OpDelMem, "return a buffer", b.mem); err != nil &&
		b.d.c.gone() == nil {
		return err
	}
	b.closed = true
	remove(b.d, b.d.bufs, b)
	b.all.Release()
	b.all, b.b = nil, nil
	return nil
}

// hold takes a reference of an MR; false if p is not within b.
func (b *buffer) hold(p []byte) (off uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, false
	}
	lo, at := addrOf(b.b), addrOf(p)
	if at < lo || at-lo > uint64(len(b.b)) || uint64(len(p)) > uint64(len(b.b))-(at-lo) {
		return 0, false
	}
	b.mrs++
	return at - lo, true
}

func (b *buffer) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mrs--
}

// A protDomain implements rdma.PD.
type protDomain struct {
	d      *Device
	handle uint32

	regions regionTable

	mu     sync.Mutex
	closed bool                        // +checklocks:mu
	ending bool                        // the device closes: nothing new
	mrs    map[*memRegion]struct{}     // +checklocks:mu
	mws    map[*memWindow]struct{}     // +checklocks:mu
	srqs   map[*sharedQueue]struct{}   // +checklocks:mu
	ahs    map[*addressHandle]struct{} // +checklocks:mu
}

// AllocPD implements rdma.Device.
func (d *Device) AllocPD() (rdma.PD, error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	var rep rpc.AllocPDReply
	if err := d.c.call(rpc.OpAllocPD, "allocate PD", &rpc.AllocPDRequest{Ctx: d.ctx},
		&rep); err != nil {
		return nil, err
	}
	pd := &protDomain{
		d: d, handle: rep.PD, mrs: make(map[*memRegion]struct{}),
		mws: make(map[*memWindow]struct{}), srqs: make(map[*sharedQueue]struct{}),
		ahs: make(map[*addressHandle]struct{}),
	}
	if err := add(d, d.pds, pd, struct{}{}); err != nil {
		_ = d.c.callHandle(rpc.OpDeallocPD, "free PD", rep.PD) // err says more
		return nil, err
	}
	return pd, nil
}

// Close implements rdma.PD.
func (pd *protDomain) Close() error {
	pd.mu.Lock()
	defer pd.mu.Unlock()
	if pd.closed {
		return nil
	}
	mrs, mws, srqs, ahs := len(pd.mrs), len(pd.mws), len(pd.srqs), len(pd.ahs)
	if mrs+mws+srqs+ahs != 0 {
		return fmt.Errorf("shm: PD has %d memory regions, %d windows, %d SRQs and %d address handles: %w",
			mrs, mws, srqs, ahs, rdma.ErrBusy)
	}
	if err := pd.d.c.callHandle(rpc.OpDeallocPD, "free PD", pd.handle); err != nil &&
		pd.d.c.gone() == nil {
		return err
	}
	pd.closed = true
	remove(pd.d, pd.d.pds, pd)
	return nil
}

// closeAll closes pd and what is in it: windows before the regions that they are bound to.
func (pd *protDomain) closeAll() {
	pd.mu.Lock()
	pd.ending = true
	var all []io.Closer
	for q := range pd.srqs {
		all = append(all, q)
	}
	for mw := range pd.mws {
		all = append(all, mw)
	}
	for ah := range pd.ahs {
		all = append(all, ah)
	}
	var mrs []io.Closer
	for mr := range pd.mrs {
		if mr.buf == nil { // of AllocMR: it may stand on another
			all = append(all, mr)
		} else {
			mrs = append(mrs, mr)
		}
	}
	pd.mu.Unlock()
	for _, o := range append(all, mrs...) {
		o.Close() // the session's end does it too
	}
	pd.Close()
}

// A memRegion implements rdma.MR: a part of one buffer.
type memRegion struct {
	pd         *protDomain
	buf        *buffer // nil: of AllocMR
	handle     uint32
	lkey, rkey uint32
	addr       uint64
	b          []byte
	access     rdma.Access
	ended      atomic.Bool // its keys open nothing any more

	mu     sync.Mutex
	closed bool
}

// RegisterMemory implements rdma.PD: b must lie in one Buffer of the device.
func (pd *protDomain) RegisterMemory(b []byte, access rdma.Access) (rdma.MR, error) {
	if err := pd.d.usable(); err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, errInvalid("memory region of 0 octets")
	}
	var buf *buffer
	var off uint64
	for _, c := range keys(pd.d, pd.d.bufs) {
		var ok bool
		if off, ok = c.hold(b); ok {
			buf = c
			break
		}
	}
	if buf == nil {
		return nil, errInvalid("memory that is not part of one Buffer of this device (make it with " +
			"AllocBuffer)")
	}
	addr := addrOf(b)
	mr, err := pd.newMR(buf, b, access, rpc.OpRegMR, "register memory", &rpc.RegMRRequest{
		PD: pd.handle, Access: uint32(access), Addr: addr, IOVA: addr,
		Length: uint64(len(b)), Offset: off, Mode: rpc.ModeShared, Mem: buf.mem,
	})
	if err != nil {
		buf.release()
		return nil, err
	}
	return mr, nil
}

// newMR asks for a region over b of buf, both nil for one without memory.
func (pd *protDomain) newMR(buf *buffer, b []byte, access rdma.Access, op rpc.Op, what string,
	req rpc.Message) (rdma.MR, error) {
	pd.mu.Lock()
	defer pd.mu.Unlock()
	if pd.closed || pd.ending {
		return nil, errClosed("PD")
	}
	var rep rpc.RegMRReply
	if err := pd.d.c.call(op, what, req, &rep); err != nil {
		return nil, err
	}
	mr := &memRegion{pd: pd, buf: buf, b: b, handle: rep.MR, lkey: rep.LKey, rkey: rep.RKey,
		access: access}
	if b != nil {
		mr.addr = addrOf(b)
		pd.regions.add(mr)
	}
	pd.mrs[mr] = struct{}{}
	return mr, nil
}

func (mr *memRegion) LKey() uint32  { return mr.lkey }
func (mr *memRegion) RKey() uint32  { return mr.rkey }
func (mr *memRegion) Addr() uint64  { return mr.addr }
func (mr *memRegion) Bytes() []byte { return mr.b }

// Close implements rdma.MR.
func (mr *memRegion) Close() error {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if mr.closed {
		return nil
	}
	err := mr.pd.d.c.callHandle(rpc.OpDeregMR, "deregister memory", mr.handle)
	var ce *CallError
	if errors.As(err, &ce) {
		return err
	}
	mr.closed = true // also when the session is over: nobody has it mapped any more
	if mr.buf != nil {
		mr.pd.regions.remove(mr.lkey)
		mr.pd.d.settle()
	}
	mr.pd.mu.Lock()
	delete(mr.pd.mrs, mr)
	mr.pd.mu.Unlock()
	if mr.buf != nil {
		mr.buf.release()
	}
	return nil
}

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
