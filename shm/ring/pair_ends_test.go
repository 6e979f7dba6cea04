package ring_test

import (
	"bytes"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
)

// FuzzPairEnds: whatever the other program, or the daemon, writes into a pair, at any time, it is
// refused, or what comes out lies in its own direction and nothing else is written.
func FuzzPairEnds(f *testing.F) {
	f.Add(uint16(0), []byte{}, uint16(64), uint16(100), []byte{1, 0, 0, 0, 64})
	f.Add(uint16(abi.PairOff), []byte{0, 0, 1}, uint16(0), uint16(9000), []byte{})
	f.Add(uint16(abi.PairSlots), []byte{8}, uint16(400), uint16(0), []byte{255, 255, 255, 255})
	f.Add(uint16(70), []byte{}, uint16(abi.PairHeaderLen), uint16(5000), []byte{1, 0, 0, 0, 9, 9})
	f.Fuzz(func(t *testing.T, headerAt uint16, header []byte, at, n uint16, other []byte) {
		p := newPairTest(t, 0)
		p.pair.Dirs[0].Open()
		p.pair.Dirs[1].Open()
		write := func(at uint16, b []byte) {
			if int(at) < len(p.mem) {
				copy(p.mem[at:], b)
			}
		}
		write(headerAt, header)
		out, in, err := ring.OpenPair(p.mem, 0, pairDepth)
		if err != nil {
			if !abi.IsViolation(err) {
				t.Fatal(err)
			}
			return
		}
		for i := range uint32(2 * pairDepth) {
			write(at, other)
			in.Room(i, 100)
			if to := out.Begin(uint32(n)); to != nil {
				if len(to) != int(n) {
					t.Fatalf("room for %d octets, want %d", len(to), n)
				}
				copy(to, other)
				out.End(uint32(n), i%2 == 0)
				out.Wanted(i%2 == 0, i%3 == 0)
			}
			out.HasRoom()
			in.Stamped(i)
			if m, ok := in.Message(i); ok {
				bytes.Count(m.Octets, other[:min(1, len(other))]) // they are there to be read
				if len(m.Octets) > ring.PairSlab {
					t.Fatalf("a message of %d octets", len(m.Octets))
				}
				in.Taken(&m)
			}
		}
	})
}
