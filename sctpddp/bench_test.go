package sctpddp_test

import (
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	. "github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/sctpddp/sctpddptest"
)

// What the adaptation layer costs a segment that is sent, and two that come: in order, or the wrong
// way round.
func BenchmarkSession(b *testing.B) {
	x, y := sctpddptest.NewPair(sctpddptest.Link{})
	a, _ := NewMux(x, Config{Initiator: true}, epoch)
	c, _ := NewMux(y, Config{Backlog: 1}, epoch)
	s, err := a.Open(plain, nil)
	if err != nil {
		b.Fatal(err)
	}
	m, _ := y.Next()
	c.Input(epoch, m)
	p, _ := c.Request()
	p.Accept(plain, nil)
	m, _ = x.Next()
	a.Input(epoch, m)
	SetAssoc(s, &nullAssoc{})
	SetSink(p, &quietSink{})
	seg := append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 7, 0), make([]byte, 1400)...)
	src := &bytesSource{b: seg}
	b.Run("send", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			src.at = 0
			if n, err := s.WriteFrom(src); n != len(seg) || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	ssn := 1
	for name, swap := range map[string]int{"ordered": 0, "swapped": 1} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			msgs := [2]Message{}
			for i := range msgs {
				msgs[i] = Message{PPID: PPIDSegment, Unordered: true, Missing: 1,
					Data: append([]byte{0, 0}, seg...)}
			}
			for b.Loop() {
				for i := range msgs {
					n := ssn + (i ^ swap)
					msgs[i].Data[0], msgs[i].Data[1] = byte(n>>8), byte(n)
					p.Input(msgs[i])
				}
				ssn += 2
			}
			if p.State() != StateOpen {
				b.Fatal(p.Err())
			}
		})
	}
}
