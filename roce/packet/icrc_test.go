package packet_test

import (
	"bytes"
	"encoding/hex"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/rocetest"
)

func octets(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A Send of 64 octets 7B by rxe, over either IP; the sums were computed by zlib's crc32.
func examples(t testing.TB) map[string][]byte {
	data := bytes.Repeat([]byte{0x7b}, 64)
	return map[string][]byte{
		"IPv4": slices.Concat(octets(t, `4500006c1cf74000401108d80a5800010a580002
			c12112b700580000 0400ffff0000001180f2a41c`), data, octets(t, "92ffb8b3")),
		"IPv6": slices.Concat(octets(t, `6000000000581140fd880000000000000000000000000001
			fd880000000000000000000000000002 c14412b700580000 0400ffff0000001280bf4a9a`), data,
			octets(t, "8b9722e9")),
	}
}

// ROCE-032 to ROCE-035: what routers change does not matter, and every other bit does.
func TestICRC(t *testing.T) {
	free := map[string]map[int]byte{
		"IPv4": {1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff, 26: 0xff, 27: 0xff, 32: 0xff},
		"IPv6": {0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff, 46: 0xff, 47: 0xff, 52: 0xff},
	}
	for name, ip := range examples(t) {
		if !Check(ip) {
			t.Fatalf("%s: a good packet is not", name)
		}
		for i := range ip {
			for bit := byte(1); bit != 0; bit <<= 1 {
				ip[i] ^= bit
				if may := free[name][i]&bit != 0; Check(ip) != may {
					t.Errorf("%s: octet %d with bit %#02x changed: %t, want %t", name, i, bit, !may, may)
				}
				ip[i] ^= bit
			}
		}
	}
}

// IPv4 options count as they are. What is cut is not right, and no crash.
func TestICRCOptionsAndCut(t *testing.T) {
	ip := examples(t)["IPv4"]
	long := slices.Concat(ip[:20], octets(t, "01010101 94040000"), ip[20:len(ip)-ICRCLen])
	long[0] = 0x47
	c, ok := Start(long)
	if !ok {
		t.Fatal("no Start with options")
	}
	long = c.Add(long[28+8+BTHLen:]).Append(long)
	if !Check(long) {
		t.Error("not right with options")
	}
	for i := 20; i < 28; i++ {
		if long[i] ^= 1; Check(long) {
			t.Errorf("octet %d of the options does not count", i)
		}
		long[i] ^= 1
	}
	for name, ip := range examples(t) {
		for n := range ip {
			if Check(ip[:n]) {
				t.Errorf("%s: right with %d octets of %d", name, n, len(ip))
			}
		}
	}
	for _, bad := range []string{"", "40", "44", "50", "f0"} {
		b := make([]byte, 100)
		copy(b, octets(t, bad))
		if _, ok := Start(b); ok {
			t.Errorf("Start takes an IP header that begins %q", bad)
		}
	}
}

// The pieces in which a payload is added make no difference.
func TestICRCPieces(t *testing.T) {
	for name, ip := range examples(t) {
		head := len(ip) - len(rocetest.Datagram(ip)) + BTHLen
		for n := head; n <= len(ip)-ICRCLen; n++ {
			c, _ := Start(ip)
			if b := c.Add(ip[head:n]).Add(ip[n : len(ip)-ICRCLen]).Append(nil); !bytes.Equal(b,
				ip[len(ip)-ICRCLen:]) {
				t.Errorf("%s: in pieces of %d octets % x", name, n-head, b)
			}
		}
	}
}

// The sum of octets is hash/crc32's for every length that takes another way through the code.
func TestICRCAdd(t *testing.T) {
	b := make([]byte, 2000)
	for i := range b {
		b[i] = byte(i * i >> 3)
	}
	for n := range len(b) - 8 {
		p := b[n%8:][:n]
		want := ICRC(crc32.Update(uint32(n*n), crc32.IEEETable, p))
		if got := ICRC(n * n).Add(p); got != want {
			t.Fatalf("%d octets: %#x, want %#x", n, got, want)
		}
	}
}

func BenchmarkICRC(b *testing.B) {
	for _, n := range []int{64, 1024, 4096} {
		b.Run(hexLen(n), func(b *testing.B) {
			ip := append(examples(b)["IPv4"][:40:40], make([]byte, n+ICRCLen)...)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				Check(ip)
			}
		})
	}
}

// The ICRC of a packet in one piece is that of its parts, and the packet stays as it is.
func TestICRCOf(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, first := range []byte{0x45, 0x46, 0x4f, 0x60} {
		head := int(first&0xf) * 4
		if first>>4 == 6 {
			head = 40
		}
		for n := head + 8 + BTHLen; n < 600; n++ {
			ip := make([]byte, n)
			for i := range ip {
				ip[i] = byte(rng.Uint32())
			}
			ip[0] = first
			was := bytes.Clone(ip)
			want, _ := Start(ip)
			want = want.Add(ip[head+8+BTHLen:])
			if got, ok := Of(ip); !ok || got != want {
				t.Fatalf("%#x, %d octets: %#x, want %#x", first, n, got, want)
			}
			if !bytes.Equal(ip, was) {
				t.Fatalf("%#x, %d octets: the packet was changed", first, n)
			}
		}
		if _, ok := Of(append([]byte{first}, make([]byte, head+8+BTHLen-2)...)); ok {
			t.Errorf("%#x: a packet that is cut has an ICRC", first)
		}
	}
}
