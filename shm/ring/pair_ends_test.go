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
	// What comes in, by slots that both directions have for the same: the second is too far for at.
	for _, slot := range [][4]uint32{{1, 105, abi.SlotImm, abi.NoSlab}, {1, 1<<32 - 8, abi.SlotImm, 0},
		{1, 1<<32 - 1, abi.SlotImm | abi.SlotWrite, abi.NoSlab}, {1, 8, abi.SlotWrite, abi.NoSlab},
		{1, 0, abi.SlotImm, ring.PairSlab - 7}, {1, 0, 1 << 10, abi.NoSlab}} {
		var b []byte
		for _, w := range slot {
			b = abi.Order.AppendUint32(b, w)
		}
		f.Add(uint16(abi.PairOff+4), abi.Order.AppendUint32(nil, abi.PairHeaderLen),
			uint16(abi.PairHeaderLen+abi.DirSlots(pairDepth)), uint16(3), b)
	}
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
			h := &ring.PairHead{Length: uint32(n), Flags: []uint32{abi.SQSolicited, 0, abi.SlotImm,
				abi.SlotImm | abi.SlotWrite}[i%4]}
			if to := out.Begin(h); to != nil {
				if want := int(n); i%4 != 3 && len(to) != want || i%4 == 3 && len(to) != 0 {
					t.Fatalf("message %d has room for %d octets, want %d", i, len(to), want)
				}
				copy(to, other)
				out.End(h)
				out.Wanted(i%2 == 0, i%3 == 0)
			}
			out.HasRoom()
			in.Stamped(i)
			if m, ok := in.Message(i); ok {
				bytes.Count(m.Octets, other[:min(1, len(other))]) // they are there to be read
				want := m.Length
				if m.Flags&abi.SlotWrite != 0 {
					want = 0
				}
				if n := uint32(len(m.Octets)); n > ring.PairSlab || n != want ||
					m.Flags&^(abi.SQSolicited|abi.SlotImm|abi.SlotWrite) != 0 {
					t.Fatalf("a message of %d octets: %+v", n, m.PairHead)
				}
				in.Taken(&m)
			}
		}
	})
}
