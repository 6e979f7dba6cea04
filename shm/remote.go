package shm

import (
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// This file has Writes, Reads and atomic operations of the direct path, to memory that is lent
// (docs/decisions.md#X14).

// reach does w, of so many octets, at the peer's memory if that can be done here.
func (d *directPath) reach(w *abi.SendWQE, octets uint64, signaled bool) bool {
	if !d.move(w, octets, nil) {
		return false
	}
	if !signaled {
		return true
	}
	if rdma.Opcode(w.Op) == rdma.OpWrite {
		octets = 0
	}
	d.complete(w, uint32(octets))
	if d.qp.sendCQ.wanted.Load() != 0 { // behind it, as in send
		d.out.Own()
		d.rings = true
	}
	return true
}

// writeImm does w, a Write with immediate data of so many octets.
func (d *directPath) writeImm(w *abi.SendWQE, octets uint64, signaled bool) bool {
	h := d.headOf(w, octets)
	if octets == 0 && !d.writeNothing(w, h) || octets != 0 && !d.move(w, octets, h) {
		return false
	}
	d.end(w, h, signaled)
	return true
}

// writeNothing is move of a Write of no octets, which asks for no key, but for the right to write
// at all.
func (d *directPath) writeNothing(w *abi.SendWQE, told *ring.PairHead) bool {
	if !d.out.Reaches(uint32(rdma.RemoteWrite)) || d.gather(w, 0) == nil ||
		!d.may(true) && !d.await(true) || d.out.Begin(told) == nil {
		return false
	}
	d.out.WroteNothing(d.qp.d.attr.RoCE) // iWARP sends no Write then
	return true
}

// move does w up to its completion; with told, up to the message that tells of it.
func (d *directPath) move(w *abi.SendWQE, octets uint64, told *ring.PairHead) bool {
	op := rdma.Opcode(w.Op)
	right, local := rdma.RemoteAtomic, rdma.LocalWrite
	switch op {
	case rdma.OpWrite, rdma.OpWriteImm:
		right, local = rdma.RemoteWrite, 0
	case rdma.OpRead:
		right = rdma.RemoteRead
	default:
	}
	want := &ring.PairWant{Key: w.RKey, Right: uint32(right), Addr: w.RemoteAddr, Length: octets}
	if !d.remote.IsThere(want) {
		return false
	}
	segs := d.gather(w, local)
	// Last the wait, which would be in vain if anything else were missing.
	if room := told != nil; segs == nil || !d.may(room) && !d.await(room) {
		return false
	}
	switch op {
	case rdma.OpWrite, rdma.OpWriteImm:
		return d.remote.Write(want, segs, told)
	case rdma.OpRead:
		return d.remote.Read(want, segs)
	case rdma.OpFetchAdd:
		return d.remote.FetchAdd(want, segs, w.CmpAdd)
	default:
		return d.remote.CompareSwap(want, segs, w.CmpAdd, w.Swap)
	}
}

// Keys implements ring.PeerMemory.
func (d *directPath) Keys() (*ring.PairKeys, bool) {
	c := d.qp.d.c
	fds, err := c.rpc(rpc.OpDirectKeys, "ask for keys", &rpc.HandleRequest{Handle: d.qp.handle},
		&rpc.Empty{}, -1)
	if err != nil {
		return nil, false
	}
	mem, err := osmem.MapPeers(fds[0], abi.KeysHeaderLen, false)
	if err != nil {
		return nil, false
	}
	k, err := ring.OpenPairKeys(mem.Mem, mem.Release)
	if err != nil {
		mem.Release()
		_ = c.corrupt(err)
		return nil, false
	}
	return k, true
}

// Map implements ring.PeerMemory.
func (d *directPath) Map(n uint32) (octets []byte, free func(), ok bool) {
	fds, err := d.qp.d.c.rpc(rpc.OpDirectMem, "ask for a peer's memory",
		&rpc.DirectMemRequest{QP: d.qp.handle, Mem: n}, &rpc.Empty{}, -1)
	if err != nil {
		return nil, nil, false
	}
	mem, err := osmem.MapPeers(fds[0], 1, true)
	if err != nil {
		return nil, nil, false
	}
	return mem.Mem, mem.Release, true
}
