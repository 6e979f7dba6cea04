package rawroce

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
)

var ends = [2][2]netip.Addr{
	{netip.MustParseAddr("10.77.0.9"), netip.MustParseAddr("10.77.0.2")},
	{netip.MustParseAddr("fd77::9"), netip.MustParseAddr("fd77::2")},
}

// The checksum of IPv4 is right whatever is summed.
func TestSum(t *testing.T) {
	a := netip.AddrFrom4([4]byte{223, 255, 255, 254})
	b := Packet{Src: a, Dst: a}.Bytes()[:20]
	for id := range 1 << 16 {
		binary.BigEndian.PutUint16(b[4:], uint16(id))
		if FixIPv4(b); Sum(b) != 0xffff {
			t.Fatalf("% x", b)
		}
	}
}

// What the kernel keeps of a header is told from the ICRC, and a wrong ICRC stays one.
func TestIdentify(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		p := Packet{Src: ends[0][0], Dst: ends[0][1], Opcode: SendOnly, QPN: 17, PSN: uint32(i),
			ID: uint16(rnd.Uint32()), Payload: make([]byte, rnd.IntN(300))}
		b := p.Bytes()
		if i%2 == 1 { // without DF
			b[6] = 0
			FixIPv4(b)
			FixICRC(b)
		}
		seen := append([]byte(nil), b...)
		copy(seen[4:], []byte{0, 0, 0x40, 0})
		identify(seen)
		FixIPv4(seen)
		if string(seen) != string(b) {
			t.Fatalf("% x for % x", seen[:20], b[:20])
		}
	}
	b := Packet{Src: ends[0][0], Dst: ends[0][1], Opcode: SendOnly}.Bytes()
	binary.BigEndian.PutUint32(b[len(b)-4:], 0x12345678)
	identify(b)
	FixIPv4(b)
	if _, err := Read(b); err == nil {
		t.Error("a wrong ICRC is right")
	}
}

// Whatever comes is refused, or is a packet that is the same when it is built anew.
func FuzzRead(f *testing.F) {
	for _, e := range ends {
		for op := range extLen {
			p := Packet{Src: e[0], Dst: e[1], Opcode: op, Ext: make([]byte, extLen[op]),
				Payload: []byte("five.")}
			f.Add(p.Bytes())
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Read(b)
		if err != nil {
			return
		}
		q, err := Read(p.Bytes())
		or16(&p.SrcPort, 0xc0de) // 0 stands for something
		or16(&p.PKey, 0xffff)
		if p.TTL == 0 {
			p.TTL = 64
		}
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Errorf("%+v is %+v when it is built anew: %v", p, q, err)
		}
	})
}
