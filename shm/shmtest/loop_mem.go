package shmtest

import (
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// A loopPD implements shm.PDHandler.
type loopPD struct {
	c    *loopCtx
	uses int
}

func (p *loopPD) Close() error {
	p.c.sess.l.mu.Lock()
	defer p.c.sess.l.mu.Unlock()
	if p.uses != 0 {
		return syscall.EBUSY
	}
	p.c.sess.count(-1)
	return nil
}

// use counts objects of the PD made (1) or closed (-1): l.mu is held.
func (p *loopPD) use(n int) {
	p.uses += n
	p.c.sess.count(n)
}

// A loopMR implements shm.MRHandler; also a window or a fast registration, while it is valid.
type loopMR struct {
	pd     *loopPD
	mem    *osmem.Memory
	off    uint64 // in mem
	length uint64
	iova   uint64
	access uint32
	key    uint32
	on     *loopMR // what a window or a fast registration stands on
	users  int     // of those on this one
	qp     *loopQP // the only one that it serves; nil: any of the PD
}

// newKey is a key that no object has had in its upper 24 bits.
func (l *Loop) newKey() uint32 {
	l.nextKey += 0x101
	return l.nextKey
}

func (p *loopPD) RegMR(
	req *rpc.RegMRRequest, mem *osmem.Memory, old server.MRHandler,
) (server.MRHandler, error) {
	l := p.c.sess.l
	l.mu.Lock()
	defer l.mu.Unlock()
	mr := &loopMR{pd: p, mem: mem, length: mem.Len(), iova: req.IOVA, access: req.Access}
	if old == nil {
		mr.key = l.newKey()
	} else {
		was := old.(*loopMR)
		if was.users != 0 {
			return nil, syscall.EBUSY
		}
		was.pd.use(-1)
		mr.key = was.key
	}
	l.mrs[mr.key] = mr
	p.use(1)
	return mr, nil
}

func (mr *loopMR) Keys() (lkey, rkey uint32) { return mr.key, mr.key }

func (mr *loopMR) Close() error {
	l := mr.pd.c.sess.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if mr.users != 0 {
		return syscall.EBUSY
	}
	delete(l.mrs, mr.key)
	mr.pd.use(-1)
	return nil
}

// A loopKey implements shm.MWHandler, and shm.MRHandler for a region of AllocMR: a name for a part
// of a region, which requests give and take.
type loopKey struct {
	pd   *loopPD
	key  uint32
	most uint64
	typ  rdma.MWType // 0: a fast registration
	now  *loopMR     // what it is valid for, nil if nothing
}

func (p *loopPD) newLoopKey(typ rdma.MWType, most uint64) *loopKey {
	l := p.c.sess.l
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &loopKey{pd: p, key: l.newKey(), typ: typ, most: most}
	l.keyed[k.key>>8] = k
	p.use(1)
	return k
}

func (p *loopPD) AllocMR(maxLen uint64) (server.MRHandler, error) {
	return p.newLoopKey(0, maxLen), nil
}

func (p *loopPD) AllocMW(typ uint32) (server.MWHandler, error) {
	if typ != uint32(rdma.MWType1) && typ != uint32(rdma.MWType2) {
		return nil, syscall.EINVAL
	}
	return p.newLoopKey(rdma.MWType(typ), 1<<63), nil
}

func (k *loopKey) RKey() uint32              { return k.key }
func (k *loopKey) Keys() (lkey, rkey uint32) { return k.key, k.key }

func (k *loopKey) Close() error {
	l := k.pd.c.sess.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(k)
	delete(l.keyed, k.key>>8)
	k.pd.use(-1)
	return nil
}

// end makes k valid for nothing.
func (l *Loop) end(k *loopKey) {
	if k.now != nil {
		delete(l.mrs, k.now.key)
		k.now.on.users--
		k.now = nil
	}
}

// bind carries BIND_MW and REG_MR out.
func (q *loopQP) bind(w *abi.SendWQE) rdma.WCStatus {
	l := q.l
	k := l.keyed[w.RKey>>8]
	if k == nil || k.pd != q.pd || w.NumSGE != 1 ||
		(k.typ == 0) != (rdma.Opcode(w.Op) == rdma.OpRegMR) || k.now != nil && k.typ != rdma.MWType1 {
		return rdma.WCMWBind
	}
	l.end(k)
	if w.CmpAdd == 0 && k.typ == rdma.MWType1 {
		return rdma.WCSuccess
	}
	on := l.mrs[w.SGE[0].LKey]
	if on == nil || on.pd != q.pd || k.typ != 0 && on.access&uint32(rdma.MWBind) == 0 ||
		w.CmpAdd == 0 || w.CmpAdd > k.most ||
		w.RemoteAddr < on.iova || w.RemoteAddr-on.iova > on.length ||
		w.CmpAdd > on.length-(w.RemoteAddr-on.iova) {
		return rdma.WCMWBind
	}
	k.now = &loopMR{
		pd: q.pd, mem: on.mem, off: on.off + w.RemoteAddr - on.iova, length: w.CmpAdd,
		iova:   w.SGE[0].Addr,
		access: uint32(w.Swap), key: w.RKey, on: on,
	}
	if k.typ == rdma.MWType2 {
		k.now.qp = q
	}
	on.users++
	l.mrs[w.RKey] = k.now
	return rdma.WCSuccess
}

// invalidate ends what key names, if it is a window or a fast registration that q may end.
func (q *loopQP) invalidate(key uint32) bool {
	k := q.l.keyed[key>>8]
	if k == nil || k.now == nil || k.now.key != key || k.pd != q.pd || k.typ == rdma.MWType1 ||
		k.now.qp != nil && k.now.qp != q {
		return false
	}
	q.l.end(k)
	return true
}

// copyAt copies between p and the octets at addr of the region with this key, if its rights allow
// it on q.
func (q *loopQP) copyAt(key uint32, addr uint64, p []byte, right rdma.Access, write bool) bool {
	mr := q.l.mrs[key]
	if mr == nil || mr.pd != q.pd || mr.qp != nil && mr.qp != q ||
		mr.access&uint32(right) != uint32(right) ||
		addr < mr.iova || addr-mr.iova > mr.length || uint64(len(p)) > mr.length-(addr-mr.iova) {
		return false
	}
	if write {
		return mr.mem.WriteAt(p, mr.off+addr-mr.iova) == nil
	}
	return mr.mem.ReadAt(p, mr.off+addr-mr.iova) == nil
}
