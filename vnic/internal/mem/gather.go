package mem

import "sync"

// Memory that is reached by calls costs a call for each copy, however short, while messages
// come and go in segments. So segments of a message are put together here, on both ways: what
// arrives is collected as long as it continues what came before, and what goes out is read ahead to
// the end of its piece.

// gatherSize is how many octets are copied at once at most.
const gatherSize = 128 << 10

// directLen is the length from which on a copy is a call of its own: one more costs no more than to
// collect so many octets.
const directLen = 32 << 10

type gatherBuffer [gatherSize]byte

// gatherBuffers are those that no QP uses: only as many are out as QPs are in the midst of a
// message.
var gatherBuffers = sync.Pool{New: func() any { return new(gatherBuffer) }}

// A LastWriter is Memory that can write the end of a message so that whoever sees the last octet of
// p sees all of it: programs poll it (ib_write_lat).
type LastWriter interface {
	WriteLast(p []byte, off int64) (int, error)
}

// A gather is what a Hold has of memory that is reached by calls.
type gather struct {
	collect bool // what is written may wait for flush
	buf     *gatherBuffer
	m       *MR    // of what is in buf
	addr    uint64 // of its first octet
	n       int
}

// write places p in m, now or, if collect is set, until flush. last: p is the end of a message.
func (g *gather) write(m *MR, p []byte, addr uint64, last bool) error {
	if g.n > 0 && (g.m != m || addr != g.addr+uint64(g.n)) {
		if err := g.flush(false); err != nil {
			return err
		}
	}
	if g.n > 0 && len(p) >= directLen {
		if err := g.flush(false); err != nil {
			return err
		}
	}
	if !g.collect || g.n == 0 && (last || len(p) >= directLen) {
		return m.Write(p, addr, last)
	}
	if g.n == 0 {
		g.m, g.addr = m, addr
		if g.buf == nil {
			g.buf = gatherBuffers.Get().(*gatherBuffer)
		}
	}
	for {
		k := copy(g.buf[g.n:], p)
		g.n += k
		if p = p[k:]; len(p) == 0 {
			break
		}
		next := g.addr + uint64(g.n)
		if err := g.flush(false); err != nil {
			return err
		}
		g.m, g.addr = m, next
	}
	if last {
		return g.flush(true)
	}
	return nil
}

// flush places what was collected.
func (g *gather) flush(last bool) error {
	if g.n == 0 {
		return nil
	}
	m, n := g.m, g.n
	g.m, g.n = nil, 0
	return m.Write(g.buf[:n], g.addr, last)
}

// read fills p from m. So many octets as ahead says are wanted next.
func (g *gather) read(m *MR, p []byte, addr uint64, ahead uint32) error {
	if g.m == m && addr >= g.addr && addr-g.addr < uint64(g.n) {
		if m.Revoked() {
			return ErrGone
		}
		k := copy(p, g.buf[addr-g.addr:g.n])
		p, addr = p[k:], addr+uint64(k)
	}
	if len(p) == 0 {
		return nil
	}
	if ahead == 0 || len(p) >= directLen {
		return m.Read(p, addr)
	}
	if g.buf == nil {
		g.buf = gatherBuffers.Get().(*gatherBuffer)
	}
	n := min(gatherSize, uint64(len(p))+uint64(ahead))
	g.m, g.n = nil, 0
	if err := m.Read(g.buf[:n], addr); err != nil {
		return err
	}
	g.m, g.addr, g.n = m, addr, int(n)
	copy(p, g.buf[:])
	return nil
}

// forget forgets what was read ahead.
func (g *gather) forget() { g.m, g.n = nil, 0 }

// release gives the buffer back. Nothing waits for flush.
func (g *gather) release() {
	g.forget()
	if g.buf != nil {
		gatherBuffers.Put(g.buf)
		g.buf = nil
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
