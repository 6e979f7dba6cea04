package iwarp_test

import (
	"fmt"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// A pipe joins two Endpoints without a transport: what one reads the other takes, in place.
type pipe struct {
	a, b  *raw
	buf   []byte
	order [1]uint64
}

func newPipe(emss int) *pipe { return newMarkedPipe(emss, false) }

func newMarkedPipe(emss int, markers bool) *pipe {
	p := &pipe{buf: make([]byte, 512<<10)}
	mk := func(pa Params) *raw {
		r := &raw{h: newHost()}
		r.h.silent, r.h.last = true, &payload{}
		pa.MarkersIn, pa.MarkersOut = markers, markers
		r.Endpoint = NewEndpoint(pa, r.h, Config{EMSS: emss, Extensions: true})
		r.h.mem[0x10] = make([]byte, 1<<20)
		r.h.posted = [][]byte{make([]byte, 64)}
		return r
	}
	p.a, p.b = mk(initiator), mk(responder)
	p.a.PostWrite(0, 0, 0, nil, 0)
	p.move(p.a, p.b)
	return p
}

func (p *pipe) move(from, to *raw) {
	for n := from.Len(); n > 0; n = from.Len() {
		n, err := from.Read(p.buf[:n])
		if err != nil {
			panic(err)
		}
		from.Commit(n)
		if k, err := to.Write(p.buf[:n]); k != n || err != nil || to.Err() != nil {
			panic(fmt.Sprint(k, err, to.Err()))
		}
	}
}

func (p *pipe) send(m *payload) {
	if err := p.a.PostSend(1, OpSend, 0, m, uint32(len(m.b))); err != nil {
		panic(err)
	}
	p.move(p.a, p.b)
}

func (p *pipe) write(m *payload) {
	if err := p.a.PostWrite(1, 0x10, 0, m, uint32(len(m.b))); err != nil {
		panic(err)
	}
	p.move(p.a, p.b)
}

// read reads n octets; the host takes turns on one token.
func (p *pipe) read(n uint32) {
	p.order[0] = 1
	p.a.h.order = p.order[:]
	if err := p.a.PostRead(1, 0x99, 0, n, 0x10, 0); err != nil {
		panic(err)
	}
	p.move(p.a, p.b)
	p.move(p.b, p.a)
}

func (p *pipe) atomic() {
	p.order[0] = 1
	p.a.h.order = p.order[:]
	if err := p.a.PostAtomic(1, Atomic{STag: 0x10, Data: 1}); err != nil {
		panic(err)
	}
	p.move(p.a, p.b)
	p.move(p.b, p.a)
}

func (p *pipe) immediate() {
	if err := p.a.PostImmediate(1, true, 5); err != nil {
		panic(err)
	}
	p.move(p.a, p.b)
}

// A message costs no allocation on either side, whole FPDUs or cut ones.
func TestAllocs(t *testing.T) {
	for _, markers := range []bool{false, true} {
		t.Run(fmt.Sprintf("markers=%t", markers),
			func(t *testing.T) { testAllocs(t, newMarkedPipe(1460, markers)) })
	}
}

func testAllocs(t *testing.T, p *pipe) {
	p.a.h.sinks[1] = make([]byte, 1<<20)
	small, large := &payload{b: pattern(64, 0)}, &payload{b: pattern(100_000, 0)}
	for name, f := range map[string]func(){
		"Send":       func() { p.send(small) },
		"Write":      func() { p.write(small) },
		"long Write": func() { p.write(large) },
		"Read":       func() { p.read(64) },
		"long Read":  func() { p.read(100_000) },
		"atomic":     p.atomic,
		"immediate":  p.immediate,
		"cut": func() {
			if err := p.a.PostWrite(1, 0x10, 0, large, uint32(len(large.b))); err != nil {
				t.Fatal(err)
			}
			for p.a.Pending() {
				n := min(p.a.Len(), 1000) // each second FPDU through staging and gathering
				p.a.Read(p.buf[:n])
				p.a.Commit(n)
				p.b.Write(p.buf[:n])
			}
		},
		"taken in parts": func() {
			if err := p.a.PostWrite(1, 0x10, 0, large, uint32(len(large.b))); err != nil {
				t.Fatal(err)
			}
			for p.a.Pending() {
				n, _ := p.a.Read(p.buf)
				n = (n + 1) / 2
				p.a.Commit(n)
				p.b.Write(p.buf[:n])
			}
		},
	} {
		f()
		if n := testing.AllocsPerRun(50, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if p.a.Err() != nil || p.b.Err() != nil {
		t.Fatal(p.a.Err(), p.b.Err())
	}
}

func BenchmarkSend64(b *testing.B) {
	p := newPipe(1460)
	m := &payload{b: pattern(64, 0)}
	b.SetBytes(64)
	b.ReportAllocs()
	for b.Loop() {
		p.send(m)
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, emss := range []int{1460, 8948, 65483} {
		for _, n := range []int{64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("emss=%d/size=%d", emss, n), func(b *testing.B) {
				p := newPipe(emss)
				m := &payload{b: pattern(n, 0)}
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					p.write(m)
				}
			})
		}
	}
}

func BenchmarkWriteMarkers(b *testing.B) {
	for _, emss := range []int{1460, 65483} {
		b.Run(fmt.Sprintf("emss=%d", emss), func(b *testing.B) {
			p := newMarkedPipe(emss, true)
			m := &payload{b: pattern(64<<10, 0)}
			b.SetBytes(64 << 10)
			b.ReportAllocs()
			for b.Loop() {
				p.write(m)
			}
		})
	}
}

func BenchmarkAtomic(b *testing.B) {
	p := newPipe(1460)
	b.ReportAllocs()
	for b.Loop() {
		p.atomic()
	}
}

func BenchmarkImmediate(b *testing.B) {
	p := newPipe(1460)
	b.ReportAllocs()
	for b.Loop() {
		p.immediate()
	}
}

func BenchmarkRead64K(b *testing.B) {
	p := newPipe(1460)
	p.a.h.sinks[1] = make([]byte, 64<<10)
	b.SetBytes(64 << 10)
	b.ReportAllocs()
	for b.Loop() {
		p.read(64 << 10)
	}
}
