package sctp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/golden"
)

// Every packet that Linux sent decodes, has a good checksum, and comes out the same when it is
// built again. SCTP-001, SCTP-004, SCTP-006, SCTP-169.
func TestGolden(t *testing.T) {
	names, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(names) < 15 {
		t.Fatalf("%d recordings, %v", len(names), err)
	}
	indications := 0
	for _, name := range names {
		var words strings.Builder
		for i, r := range readPcap(t, name) {
			if !GoodChecksum(r.data) {
				t.Errorf("%s: packet %d: bad checksum", name, i+1)
			}
			again, err := rebuild(r.data)
			if err != nil || !bytes.Equal(again, r.data) {
				t.Errorf("%s: packet %d: %v\n%x\nbuilt again\n%x", name, i+1, err, r.data, again)
			}
			if bytes.Contains(r.data, []byte{0xc0, 6, 0, 8, 0, 0, 0, 1}) {
				indications++
			}
			fmt.Fprintf(&words, "%v > %v %s\n", r.src, r.dst, Describe(r.data))
		}
		golden.Check(t, strings.TrimSuffix(name, ".pcap")+".txt", words.String())
	}
	if indications < 20 {
		t.Errorf("%d packets with the indication of RFC 5061", indications)
	}
}

// The figures of RFC 9260, field by field; what is cut does not decode. SCTP-001, SCTP-006,
// SCTP-087.
func TestChunks(t *testing.T) {
	for _, tt := range []struct {
		words string
		wire  string
		built []byte
	}{
		{
			"DATA tsn=16909060 sid=5 ssn=6 ppid=16 .UBE len=3",
			"00 07 0013 01020304 0005 0006 00000010 616263 00",
			mkData(flagU|flagB|flagE, 0x01020304, 5, 6, 16, "abc"),
		},
		{
			"INIT itag=01020304 rwnd=4096 out=2 in=3 tsn=7 addr=10.1.0.1 addr=fd00::1 adaptation=1",
			"01 00 0038 01020304 00001000 0002 0003 00000007 0005 0008 0a010001 0006 0014 fd000000000000000000000000000001 c006 0008 00000001",
			mkInit(chunkInit, 0x01020304, 4096, 2, 3, 7, appendAddr(nil, addrA),
				appendAddr(nil, addr("fd00::1")), appendParam32(nil, paramAdaptation, 1)),
		},
		{ // section 3.3.4: 10, 11, 12, 14, 15 and 17 have come
			"SACK cum=12 rwnd=4660 gap=2-3 gap=5-5 dup=19",
			"03 00 001c 0000000c 00001234 0002 0001 0002 0003 0005 0005 00000013",
			appendSack(nil, 12, 4660, []gap{{2, 3}, {5, 5}}, []TSN{19}),
		},
		{"SHUTDOWN cum=9", "07 00 0008 00000009", appendShutdown(nil, 9)},
		{"SHUTDOWN COMPLETE T", "0e 01 0004", mk(chunkShutdownComplete, flagT)},
		{
			"ABORT (user-initiated abort: \"why\")", "06 00 000b 000c 0007 776879 00",
			mkParams(chunkAbort, []byte{0, 12, 0, 7, 'w', 'h', 'y'}),
		},
		{
			"ERROR (missing mandatory parameter: 000000010007)", "09 00 000e 0002 000a 00000001 0007 0000",
			mkParams(chunkError, appendMissing(nil, paramCookie)),
		},
		{"HEARTBEAT info=4", "04 00 000c 0001 0008 deadbeef", mkParams(chunkHeartbeat,
			appendParam(nil, 1, []byte{0xde, 0xad, 0xbe, 0xef}))},
		{"COOKIE ECHO len=2", "0a 00 0006 1234 0000", mk(chunkCookieEcho, 0, 0x12, 0x34)},
	} {
		wire, err := hex.DecodeString(strings.ReplaceAll(tt.wire, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(wire, tt.built) {
			t.Errorf("%s\nbuilt %x\nwant  %x", tt.words, tt.built, wire)
		}
		var s strings.Builder
		c, rest, ok := nextChunk(wire)
		if !ok || len(rest) > 0 {
			t.Fatalf("%s: does not decode", tt.words)
		}
		if describeChunk(&s, c); s.String() != tt.words {
			t.Errorf("%s\nis taken for %s", tt.words, s.String())
		}
		for n := range len(c) {
			if _, _, ok := nextChunk(wire[:n]); ok {
				t.Errorf("%s: %d octets of it decode", tt.words, n)
			}
		}
	}
}

// CRC32c: the vectors of RFC 3720, B.4, and where the octets go. SCTP-004.
func TestChecksum(t *testing.T) {
	// The CRC of a packet is that of its octets with zeros in the field: with an empty tail, of 12.
	b := make([]byte, 32)
	finish(b)
	if got := hex.EncodeToString(b[8:12]); got != "aa36918a" { // 32 octets of zero
		t.Errorf("checksum %s", got)
	}
	if !GoodChecksum(b) {
		t.Error("the checksum is not good")
	}
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if GoodChecksum(b) {
				t.Errorf("octet %d, bit %d: a flipped bit goes unnoticed", i, bit)
			}
			b[i] ^= 1 << bit
		}
	}
}

// TSNs and SSNs wrap. SCTP-071.
func TestSerial(t *testing.T) {
	for _, tt := range []struct {
		a, b TSN
		want bool
	}{{1, 2, true}, {2, 1, false}, {1, 1, false}, {0xffffffff, 0, true}, {0, 0xffffffff, false},
		{0x80000000, 0xffffffff, true}} {
		if got := tt.a.before(tt.b); got != tt.want {
			t.Errorf("%d before %d: %v", tt.a, tt.b, got)
		}
	}
	if !ssnBefore(0xffff, 0) || ssnBefore(0, 0xffff) || ssnBefore(3, 3) {
		t.Error("SSNs do not wrap")
	}
}

// A tsnMap agrees with a set.
func TestTSNMap(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		base := TSN(rng.Uint32())
		if seed%4 == 0 {
			base = TSN(0xffffff00) // wraps
		}
		var m tsnMap
		m.init(base)
		set := map[TSN]bool{}
		cum, high := base, base
		for range 3000 {
			x := cum + 1 + TSN(rng.IntN(40))
			if rng.IntN(20) == 0 {
				x = cum + TSN(rng.IntN(5000))
			}
			if has := !cum.before(x) || set[x]; has != m.has(x) {
				t.Fatalf("seed %d: has(%d) is not %v", seed, x, has)
			} else if has {
				continue
			}
			if !m.reaches(x) {
				t.Fatalf("seed %d: %d is out of reach", seed, x)
			}
			m.mark(x)
			set[x] = true
			if high.before(x) {
				high = x
			}
			for set[cum+1] {
				cum++
				delete(set, cum)
			}
			if m.cum != cum || m.high != high || m.above != len(set) ||
				m.missing() != int(high-cum)-len(set) {
				t.Fatalf("seed %d: map %d %d %d %d, set %d %d %d", seed, m.cum, m.high, m.above, m.missing(),
					cum, high, len(set))
			}
			var want []gap
			for off := 1; off <= int(high-cum); off++ {
				if !set[cum+TSN(off)] {
					continue
				}
				if n := len(want); n > 0 && want[n-1].end == uint16(off-1) {
					want[n-1].end++
				} else {
					want = append(want, gap{uint16(off), uint16(off)})
				}
			}
			limit := 1 + rng.IntN(300)
			want = want[:min(limit, len(want))]
			if got := m.gaps(nil, limit); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("seed %d: gaps %v, want %v", seed, got, want)
			}
		}
	}
	var m tsnMap
	m.init(0)
	if m.reaches(maxGap+1) || !m.reaches(maxGap) || !m.reaches(0xfffffff0) {
		t.Error("what a gap ack block cannot speak of is in reach")
	}
	m.mark(maxGap)
	if g := m.gaps(nil, 10); len(g) != 1 || g[0] != (gap{maxGap, maxGap}) {
		t.Errorf("the farthest TSN: %v", g)
	}
}

// What is put into a send buffer is there until it is freed, wherever the ring wraps or grows.
func TestSendBuffer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := sendBuffer{limit: 100_000}
	type held struct {
		pos  uint64
		data []byte
	}
	var all []held
	for range 5000 {
		if n := 1 + rng.IntN(9000); n <= s.room() {
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			pos, err := s.put(bytes.NewReader(data), n)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, held{pos, data})
		}
		if len(all) > 0 && rng.IntN(2) == 0 {
			x := all[0]
			all = all[1:]
			a, b := s.at(x.pos, len(x.data))
			if !bytes.Equal(append(bytes.Clone(a), b...), x.data) {
				t.Fatal("not what was put in")
			}
			s.free(x.pos + uint64(len(x.data)))
		}
	}
	if _, err := s.put(strings.NewReader("short"), 6); err == nil {
		t.Error("a source that has less than it says")
	}
}
