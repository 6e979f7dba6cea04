package mem

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A recorder is Memory that notes each call.
type recorder struct {
	b     []byte
	calls []string
	err   error
}

func (r *recorder) note(what string, p []byte, off int64) {
	r.calls = append(r.calls, fmt.Sprintf("%s %d+%d", what, off, len(p)))
}

func (r *recorder) ReadAt(p []byte, off int64) (int, error) {
	r.note("read", p, off)
	if r.err != nil {
		return 0, r.err
	}
	return copy(p, r.b[off:]), nil
}

func (r *recorder) WriteAt(p []byte, off int64) (int, error) {
	r.note("write", p, off)
	if r.err != nil {
		return 0, r.err
	}
	return copy(r.b[off:], p), nil
}

func (r *recorder) WriteLast(p []byte, off int64) (int, error) {
	r.note("last", p, off)
	return copy(r.b[off:], p), nil
}

func (r *recorder) want(t *testing.T, calls ...string) {
	t.Helper()
	if got := strings.Join(r.calls, ", "); got != strings.Join(calls, ", ") {
		t.Errorf("calls %s\nwant %s", got, strings.Join(calls, ", "))
	}
	r.calls = nil
}

func callMR(size int) (*recorder, *MR) {
	r := &recorder{b: make([]byte, size)}
	return r, &MR{mem: r, base: 1000, length: uint64(size)}
}

func octets(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
	return b
}

// Segments that continue each other are one call, up to the end of the message, whose last octet
// comes last; what does not continue comes behind it.
func TestFarWrite(t *testing.T) {
	r, m := callMR(4 * gatherSize)
	data := octets(4*gatherSize, 1)
	h := &Hold{gather: gather{collect: true}}
	put := func(off, n int, last bool) {
		t.Helper()
		if err := h.Write(m, data[off:off+n], 1000+uint64(off), last); err != nil {
			t.Fatal(err)
		}
	}
	put(0, 100, false)
	put(100, 1000, false)
	r.want(t)
	put(1100, 1, true)
	r.want(t, "last 0+1101")
	put(1101, 1, true) // what comes whole needs no buffer
	r.want(t, "write 1101+1")
	put(1102, 50, true)
	r.want(t, "last 1102+50")
	put(2000, 10, false)
	put(3000, 10, false)
	r.want(t, "write 2000+10")
	put(2990, 10, false)
	r.want(t, "write 3000+10")
	if err := h.gather.flush(false); err != nil {
		t.Fatal(err)
	}
	r.want(t, "write 2990+10")
	// More than there is room for, in segments; long ones need no buffer, but have what waits go
	// first.
	at := 1152
	for range 5 {
		put(at, 30000, false)
		at += 30000
	}
	r.want(t, fmt.Sprintf("write 1152+%d", gatherSize))
	put(at, 30000, true)
	at += 30000
	r.want(t, fmt.Sprintf("last %d+%d", 1152+gatherSize, 6*30000-gatherSize))
	put(at, 100, false)
	put(at+100, directLen, false)
	r.want(t, fmt.Sprintf("write %d+100", at), fmt.Sprintf("write %d+%d", at+100, directLen))
	at += 100 + directLen
	put(at, 2*gatherSize, true)
	r.want(t, fmt.Sprintf("last %d+%d", at, 2*gatherSize))
	at += 2 * gatherSize
	if !bytes.Equal(r.b[1152:at], data[1152:at]) || !bytes.Equal(r.b[:1152], data[:1152]) {
		t.Error("the octets differ")
	}
	// Each region by itself.
	r2, m2 := callMR(100)
	r.calls = nil
	put(0, 10, false)
	if err := h.Write(m2, data[:5], 1010, false); err != nil {
		t.Fatal(err)
	}
	r.want(t, "write 0+10")
	h.gather.flush(false)
	r2.want(t, "write 10+5")
	// A region that went away meanwhile, and memory that did.
	put(0, 10, false)
	m.revoke()
	if err := h.gather.flush(false); !errors.Is(err, ErrGone) {
		t.Errorf("flush to a region that is gone: %v", err)
	}
	r2.err = errors.New("no such page")
	h.Write(m2, data[:5], 1010, false)
	if err := h.Write(m2, data[:5], 1010, false); !errors.Is(err, r2.err) {
		t.Errorf("flush to memory that is gone: %v", err)
	}
	h.gather.release()
	if h.gather.buf != nil || h.gather.m != nil {
		t.Error("the buffer is still there")
	}
	// Not collected.
	r, m = callMR(100)
	h = &Hold{}
	put(0, 10, false)
	put(10, 10, true)
	r.want(t, "write 0+10", "last 10+10")
}

// What goes out in segments is read ahead to the end of its piece, and no octet of one message is
// used for another.
func TestFarRead(t *testing.T) {
	r, m := callMR(3 * gatherSize)
	copy(r.b, octets(3*gatherSize, 1))
	h := &Hold{}
	got := make([]byte, 2*gatherSize)
	get := func(off, n, ahead int) {
		t.Helper()
		if err := h.Read(m, got[:n], 1000+uint64(off), uint32(ahead)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[:n], r.b[off:off+n]) {
			t.Fatalf("%d octets at %d differ", n, off)
		}
	}
	get(0, 100, 0)
	r.want(t, "read 0+100")
	get(0, 100, 900)
	get(100, 400, 500)
	get(500, 500, 0)
	r.want(t, "read 0+1000")
	get(10, 1000, gatherSize) // a part is there
	r.want(t, fmt.Sprintf("read 1000+%d", gatherSize))
	get(1010, directLen-1, gatherSize)
	get(gatherSize+998, 2, gatherSize)
	r.want(t)
	get(gatherSize+995, 10, 1000) // half of it is there
	r.want(t, fmt.Sprintf("read %d+1005", gatherSize+1000))
	get(5, directLen, 10)
	r.want(t, fmt.Sprintf("read 5+%d", directLen))
	get(0, 10, 10)
	h.gather.forget()
	r.b[15]++
	get(10, 10, 0)
	r.want(t, "read 0+20", "read 10+10")
	get(0, 10, 10)
	m.revoke()
	if err := h.Read(m, got[:1], 1010, 0); !errors.Is(err, ErrGone) {
		t.Errorf("of a region that is gone, read ahead: %v", err)
	}
	r, m = callMR(100)
	r.err = errors.New("no such page")
	if err := h.Read(m, got[:10], 1000, 10); !errors.Is(err, r.err) {
		t.Errorf("of memory that is gone: %v", err)
	}
	r.err = nil
	get(5, 5, 0)
	r.want(t, "read 0+20", "read 5+5")
	if n := testing.AllocsPerRun(100, func() {
		r.calls = r.calls[:0]
		h.gather.forget()
		h.gather.release()
		h.gather.read(m, got[:10], 1000, 10)
	}); n > 4 { // the recorder's
		t.Errorf("%v allocations", n)
	}
}

// Whatever the length and the place of a message, all of it is written, and its last word in one
// piece.
func TestPlaceLast(t *testing.T) {
	src := octets(64, 3)
	var m MR
	for n := range len(src) {
		for off := range 16 {
			b := make([]byte, 96)
			m.place(b[off:off+n], src[:n], CopyMode{Last: true})
			if !bytes.Equal(b[off:off+n], src[:n]) || !bytes.Equal(b[off+n:], make([]byte, 96-off-n)) ||
				!bytes.Equal(b[:off], make([]byte, off)) {
				t.Fatalf("%d octets at %d: % x", n, off, b)
			}
		}
	}
	for _, tt := range []struct {
		addr    uintptr
		n, want int
	}{
		{0, 1, 1}, {0, 2, 2}, {4, 4, 4}, {0, 8, 8}, {8, 64, 8}, {0, 100, 4}, {0, 3, 1}, {1, 7, 4},
		{6, 4096, 2}, {3, 2, 1},
	} {
		if k := lastWord(tt.addr, tt.n); k != tt.want {
			t.Errorf("the last word of %d octets at %d has %d, want %d", tt.n, tt.addr, k, tt.want)
		}
	}
}
