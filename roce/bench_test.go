package roce_test

import (
	"fmt"
	"testing"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// BenchmarkWrite is what a Write costs both engines, with the copies, and without ICRC and IP.
func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{64, 4096, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ends := newPair(b, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				ends.write(b, n)
			}
		})
	}
}

// Nothing is allocated for a message.
func TestAllocs(t *testing.T) {
	ends := newPair(t, 5000)
	if n := testing.AllocsPerRun(100, func() { ends.write(t, 5000) }); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// A benchPair is two ends without a network.
type benchPair struct {
	ends [2]*RC
	host [2]*host
	buf  []byte
	q    Request
	h    packet.Header
}

func newPair(t testing.TB, n int) *benchPair {
	p := &benchPair{buf: make([]byte, 0, packet.MaxHeaderLen+MaxMTU+packet.ICRCLen)}
	cfg := config()
	cfg.MTU, cfg.Window = 1024, 256
	for i := range p.ends {
		p.host[i] = newHost(t, n)
		p.host[i].srq = true
		p.ends[i] = NewRC(cfg, p.host[i])
		cfg = mirror(cfg)
	}
	p.q = Request{Op: Write, Length: uint32(n), Data: octets(make([]byte, n)), Addr: base, RKey: rkey}
	return p
}

func (p *benchPair) write(t testing.TB, n int) {
	p.host[0].done = p.host[0].done[:0]
	if err := p.ends[0].Post(&p.q); err != nil {
		t.Fatal(err)
	}
	for len(p.host[0].done) == 0 {
		p.carry(t, 0)
		p.carry(t, 1)
	}
}

func (p *benchPair) carry(t testing.TB, from int) {
	for {
		b, ok := p.ends[from].Append(p.buf, epoch)
		if !ok {
			return
		}
		payload, err := p.h.Parse(b[:len(b)+packet.ICRCLen])
		if err != nil {
			t.Fatal(err)
		}
		p.ends[1-from].Receive(epoch, &p.h, payload)
	}
}
