package ring

import (
	"sync/atomic"

	"github.com/vrnic/vrnic/shm/abi"
)

// Slabs carry small messages of programs whose own memory the daemon would have to reach by system
// calls (mode 0): the library copies a message into the tx slab when it is posted, and a received
// one out of the rx slab when its completion is polled. A slab is a ring of octets, its size a
// power of two. Indices run free; a message lies in one piece, so that its index tells where it is:
// the octet with index i is at i & (size-1), and an index is found from an offset as the next one
// from the other side's index on that lies there. What is skipped that way is free space.

// A txSlabConsumer is the daemon's account of a tx slab. It belongs to whoever runs the QP.
type txSlabConsumer struct {
	prodWord *atomic.Uint32 // the client's
	consWord *atomic.Uint32 // ours; only ever written
	size     uint32
	taken    uint32   // where the octets of the requests that were taken end
	cons     uint32   // and of those that were retired
	ends     []uint32 // by slot of the send queue: taken, when it was taken
}

func newTxSlabConsumer(mem []byte, l *abi.QPLayout) txSlabConsumer {
	return txSlabConsumer{prodWord: abi.Word(mem, abi.QPTxSlabProd),
		consWord: abi.Word(mem, abi.QPTxSlabCons), size: l.TxSlabSize, ends: make([]uint32, l.SQSize)}
}

// take takes note of the octets of w, whose range has been checked to lie inside the slab: they
// must have been put since those of the request before, and not run into octets of earlier ones
// that have not been retired. An error is a *ProtocolError.
func (s *txSlabConsumer) take(w *abi.SendWQE, slot uint32) error {
	if w.Flags&abi.SQSlab != 0 {
		put, used := s.prodWord.Load()-s.cons, s.taken-s.cons
		n := (w.SlabOff-s.taken)&(s.size-1) + w.Length
		if put > s.size || used > put || n > put-used {
			return abi.Violation("send WQE with %d octets at %d of the slab: %d of %d were put, %d taken",
				w.Length, w.SlabOff, put, s.size, used)
		}
		s.taken += n
	}
	s.ends[slot] = s.taken
	return nil
}

// free gives back the octets of all requests up to the one in slot.
func (s *txSlabConsumer) free(slot uint32) {
	s.cons = s.ends[slot]
	s.consWord.Store(s.cons)
}

// A RxSlabProducer is the daemon's end of an rx slab. One message at a time comes in. It belongs to
// whoever runs the QP's receive side.
type RxSlabProducer struct {
	consWord *atomic.Uint32 // the client's
	prodWord *atomic.Uint32 // ours; only ever written
	size     uint32         // 0: there is none
	prod     uint32
	begin    uint32 // of the message that comes in
	fail     func(error)
}

func newRxSlabProducer(mem []byte, l *abi.QPLayout, fail func(error)) RxSlabProducer {
	return RxSlabProducer{consWord: abi.Word(mem, abi.QPRxSlabCons),
		prodWord: abi.Word(mem, abi.QPRxSlabProd), size: l.RxSlabSize, fail: fail}
}

// Reserve finds room for a message of at most n octets and returns its offset; false if there is
// none, or if it is none for a slab. What was reserved before and not committed is free again. An
// error is a *ProtocolError; the session has been told.
func (s *RxSlabProducer) Reserve(n uint64) (off uint32, ok bool, err error) {
	if n == 0 || n > abi.MaxSlabRecv || n > uint64(s.size) {
		return 0, false, nil
	}
	cons := s.consWord.Load()
	if s.prod-cons > s.size {
		err := abi.Violation("rxslab_cons %d with %d put and %d octets", cons, s.prod, s.size)
		if s.fail != nil {
			s.fail(err)
		}
		return 0, false, err
	}
	s.begin = abi.Align64(s.prod)
	if s.begin&(s.size-1)+uint32(n) > s.size {
		s.begin = (s.begin + s.size - 1) &^ (s.size - 1)
	}
	if s.begin+uint32(n)-cons > s.size {
		return 0, false, nil
	}
	return s.begin & (s.size - 1), true, nil
}

// Commit says that the message has come, of n octets: at most what was reserved. Push its
// completion after it.
func (s *RxSlabProducer) Commit(n uint32) {
	s.prod = s.begin + n
	s.prodWord.Store(s.prod)
}

// A TxSlabProducer is the client's end of a tx slab. Calls must not overlap.
type TxSlabProducer struct {
	mem      []byte
	prodWord *atomic.Uint32
	consWord *atomic.Uint32
	prod     uint32
}

func newTxSlabProducer(mem []byte, l *abi.QPLayout) TxSlabProducer {
	return TxSlabProducer{mem: slabMem(mem, l.TxSlabOff, l.TxSlabSize),
		prodWord: abi.Word(mem, abi.QPTxSlabProd), consWord: abi.Word(mem, abi.QPTxSlabCons)}
}

// Put copies b into the slab and returns the offset for SendWQE.SlabOff; false if there is no room
// for it now. The requests must be put into the send queue in the same order. An error is a
// *ProtocolError.
func (s *TxSlabProducer) Put(b []byte) (off uint32, ok bool, err error) {
	size, n := uint32(len(s.mem)), uint64(len(b))
	if n == 0 || n > uint64(size) {
		return 0, false, nil
	}
	used := s.prod - s.consWord.Load()
	if used > size {
		return 0, false, abi.Violation("txslab_cons passed txslab_prod")
	}
	begin := s.prod
	if begin&(size-1)+uint32(n) > size {
		begin = (begin + size - 1) &^ (size - 1)
	}
	if begin-s.prod+used+uint32(n) > size {
		return 0, false, nil
	}
	off = begin & (size - 1)
	copy(s.mem[off:], b)
	s.prod = begin + uint32(n)
	s.prodWord.Store(s.prod)
	return off, true, nil
}

// A RxSlabConsumer is the client's end of an rx slab. Calls must not overlap.
type RxSlabConsumer struct {
	mem      []byte
	prodWord *atomic.Uint32
	consWord *atomic.Uint32
	cons     uint32
}

func newRxSlabConsumer(mem []byte, l *abi.QPLayout) RxSlabConsumer {
	return RxSlabConsumer{mem: slabMem(mem, l.RxSlabOff, l.RxSlabSize),
		prodWord: abi.Word(mem, abi.QPRxSlabProd), consWord: abi.Word(mem, abi.QPRxSlabCons)}
}

// Take copies the octets that a CQE says are in the slab to p, as far as they go, and gives their
// place back. Completions of a QP are taken in their order. An error is a *ProtocolError.
func (s *RxSlabConsumer) Take(e *abi.CQE, p []byte) (n int, err error) {
	size := uint32(len(s.mem))
	if e.SlabOff > size || e.SlabLen > size-e.SlabOff {
		return 0, abi.Violation("CQE with %d octets at %d of a slab of %d", e.SlabLen, e.SlabOff, size)
	}
	skip := (e.SlabOff - s.cons) & (size - 1)
	if ready := s.prodWord.Load() - s.cons; ready > size || skip+e.SlabLen > ready {
		return 0, abi.Violation("CQE with %d octets at %d of the slab, %d taken of %d", e.SlabLen,
			e.SlabOff, s.cons, s.cons+ready)
	}
	n = copy(p, s.mem[e.SlabOff:e.SlabOff+e.SlabLen])
	s.cons += skip + e.SlabLen
	s.consWord.Store(s.cons)
	return n, nil
}

func slabMem(mem []byte, off, size uint32) []byte {
	if size == 0 {
		return nil
	}
	return mem[off : off+size : off+size]
}
