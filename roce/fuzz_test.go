package roce_test

import (
	"testing"
	"time"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// A peer that sends anything, in any order, cannot have an RC write outside what it was given (the
// host looks), complete a request twice, out of order or before its packets have gone out, or send
// without end: each packet in draws a bounded answer (ROCE-205, 212, 217, 218).
func FuzzRC(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23})
	for op := range byte(0x18) {
		f.Add([]byte{0x80, 5, 0x81, 2, 0x40 | op, 0, 100, op, 0xc0, 0x40 | op, 1, 0, 0x40 | op, 0, 100})
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &raw{t: t, cfg: config(), host: newHost(t, 2048), now: epoch}
		r.rc = NewRC(r.cfg, r.host)
		take := func() (v byte) {
			if len(b) > 0 {
				v, b = b[0], b[1:]
			}
			return v
		}
		lengths := []int{0, 4, 8, 88, 252, 256, 260, 512}
		posted, sent := 0, 0
		for len(b) > 0 {
			switch v := take(); {
			case v&0x80 != 0 && v&0x40 != 0:
				r.pass(time.Second)
			case v&0x80 != 0:
				if r.rc.Outstanding() < 32 && r.rc.Fault() == nil {
					r.post(Op(v&7), lengths[v>>3&7]*3)
					posted++
				}
			case v&0x40 != 0:
				how := take()
				r.in(packet.Opcode(v&0x1f), int(int8(take())), lengths[how&7], func(h *packet.Header) {
					h.AckReq = how&8 != 0
					if how&0x10 != 0 {
						h.DMA, h.Addr = uint32(how)*8, base+uint64(how&0xe0)
					}
					if how&0x20 != 0 {
						h.Syndrome = packet.Syndrome(how)
					}
				})
			default:
				r.receive(lengths[v&7] + 100)
			}
			for n := 0; ; n++ {
				if _, ok := r.rc.Append(nil, r.now); !ok {
					break
				}
				if sent++; n > 1000 {
					t.Fatal("it sends without end")
				}
			}
		}
		for i, token := range r.done {
			if token != uint64(i+1) || len(r.done) > posted {
				t.Fatalf("request %d is done as number %d, of %d", token, i+1, posted)
			}
		}
		if sent == 0 && len(r.done) > 0 {
			t.Fatal("done before anything was sent")
		}
	})
}
