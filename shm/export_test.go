package shm

import "github.com/vrnic/vrnic/rdma"

// Views of the client's mappings: writing there is what a hostile daemon can do.

// CQMem is the memory of a CQ, and ChanMem that of its channel.
func CQMem(q rdma.CQ) []byte   { return q.(*compQueue).mem.Mem }
func ChanMem(q rdma.CQ) []byte { return q.(*compQueue).ch.mem.Mem }

// QPMem is the memory of a QP.
func QPMem(q rdma.QP) []byte { return q.(*queuePair).mem.Mem }

// PairMem is the memory of the pair that a QP is in, which its peer's program writes to.
func PairMem(q rdma.QP) []byte { return q.(*queuePair).direct.mem.Mem }

// CQBits is the bitmap of a CQ, which its peers' programs write to; nil: it has none.
func CQBits(q rdma.CQ) []byte {
	if bits := q.(*compQueue).bits; bits != nil {
		return bits.Mem
	}
	return nil
}
