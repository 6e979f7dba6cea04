package vnic

import "sync"

// Memory that is reached by calls (mode 0) costs a call for each copy, however short, while messages
// come and go in segments. So segments of a message are put together here, on both ways: what
// arrives is collected as long as it continues what came before, and what goes out is read ahead to the end of
// its piece.

// farSize is how many octets are copied at once at most.
const farSize = 128 << 10

// farDirect is the length from which on a copy is a call of its own: one more costs no more than to collect
// so many octets.
const farDirect = 32 << 10

type farBuffer [farSize]byte

// farBuffers are those that no QP uses: only as many are out as QPs are in the midst of a message.
var farBuffers = sync.Pool{New: func() any { return new(farBuffer) }}

// A LastWriter is Memory that can write the end of a message so that whoever sees the last octet of p
// sees all of it: programs poll it (ib_write_lat).
type LastWriter interface {
	WriteLast(p []byte, off int64) (int, error)
}

// A farHold is what a hold has of memory that is reached by calls.
type farHold struct {
	collect bool // what is written may wait for flush
	buf     *farBuffer
	m       *MR    // of what is in buf
	addr    uint64 // of its first octet
	n       int
}

// write places p in m, now or, if collect is set, until flush. last: p is the end of a message.
func (f *farHold) write(m *MR, p []byte, addr uint64, last bool) error {
	if f.n > 0 && (f.m != m || addr != f.addr+uint64(f.n)) {
		if err := f.flush(false); err != nil {
			return err
		}
	}
	if f.n > 0 && len(p) >= farDirect {
		if err := f.flush(false); err != nil {
			return err
		}
	}
	if !f.collect || f.n == 0 && (last || len(p) >= farDirect) {
		return m.writeAt(p, addr, last)
	}
	if f.n == 0 {
		f.m, f.addr = m, addr
		if f.buf == nil {
			f.buf = farBuffers.Get().(*farBuffer)
		}
	}
	for {
		k := copy(f.buf[f.n:], p)
		f.n += k
		if p = p[k:]; len(p) == 0 {
			break
		}
		next := f.addr + uint64(f.n)
		if err := f.flush(false); err != nil {
			return err
		}
		f.m, f.addr = m, next
	}
	if last {
		return f.flush(true)
	}
	return nil
}

// flush places what was collected.
func (f *farHold) flush(last bool) error {
	if f.n == 0 {
		return nil
	}
	m, n := f.m, f.n
	f.m, f.n = nil, 0
	return m.writeAt(f.buf[:n], f.addr, last)
}

// read fills p from m. So many octets as ahead says are wanted next.
func (f *farHold) read(m *MR, p []byte, addr uint64, ahead uint32) error {
	if f.m == m && addr >= f.addr && addr-f.addr < uint64(f.n) {
		if m.disabled() {
			return errGone
		}
		k := copy(p, f.buf[addr-f.addr:f.n])
		p, addr = p[k:], addr+uint64(k)
	}
	if len(p) == 0 {
		return nil
	}
	if ahead == 0 || len(p) >= farDirect {
		return m.readAt(p, addr)
	}
	if f.buf == nil {
		f.buf = farBuffers.Get().(*farBuffer)
	}
	n := min(farSize, uint64(len(p))+uint64(ahead))
	f.m, f.n = nil, 0
	if err := m.readAt(f.buf[:n], addr); err != nil {
		return err
	}
	f.m, f.addr, f.n = m, addr, int(n)
	copy(p, f.buf[:])
	return nil
}

// forget forgets what was read ahead.
func (f *farHold) forget() { f.m, f.n = nil, 0 }

// drop gives the buffer back. Nothing waits for flush.
func (f *farHold) drop() {
	f.forget()
	if f.buf != nil {
		farBuffers.Put(f.buf)
		f.buf = nil
	}
}

// writeMem writes p at offset off of memory that is reached by calls.
func writeMem(mem Memory, p []byte, off int64, last bool) error {
	var n int
	var err error
	if w, ok := mem.(LastWriter); ok && last && len(p) > 1 {
		n, err = w.WriteLast(p, off)
	} else {
		n, err = mem.WriteAt(p, off)
	}
	return full(n, len(p), err)
}
