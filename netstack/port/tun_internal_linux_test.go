package port

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/vrnic/vrnic/netstack/frame"
)

// superSegment is a packet of TCP with n octets of payload, as a kernel gives it to be cut, and
// what its header says.
func superSegment(r *rand.Rand, v6 bool, n, size int) ([]byte, frame.Offload) {
	ip, off := 20, frame.Offload{GSO: frame.GSOTCPv4}
	if v6 {
		ip, off.GSO = 40, frame.GSOTCPv6
	}
	p := make([]byte, ip+32+n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	total := len(p)
	var addrs []byte
	if v6 {
		p[0], p[6] = 0x60, frame.ProtoTCP
		binary.BigEndian.PutUint16(p[4:], uint16(total-40))
		addrs = p[8:40]
	} else {
		p[0], p[6], p[7], p[9] = 0x45, 0x40, 0, frame.ProtoTCP
		binary.BigEndian.PutUint16(p[2:], uint16(total))
		addrs = p[12:20]
	}
	t := p[ip:]
	t[12], t[13] = 8<<4, 0x99 // CWR, ACK, PSH, FIN
	sum := checksum.Checksum(addrs, uint16(total-ip)+frame.ProtoTCP)
	binary.BigEndian.PutUint16(t[16:], sum)
	off.Csum, off.CsumStart, off.CsumOffset = frame.CsumPartial, uint16(ip), 16
	off.GSOSize, off.HdrLen = uint16(size), uint16(ip+32)
	return p, off
}

// Segments are cut as the switch cuts those of frames.
func TestSegmentCutter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{1, 100, 1400, 1401, 2800, 40000, 65000} {
			p, off := superSegment(r, v6, n, 1400)
			etherType := []byte{8, 0}
			if v6 {
				etherType = []byte{0x86, 0xdd}
			}
			framed := off
			framed.CsumStart += frame.EtherHeaderLen
			framed.HdrLen += frame.EtherHeaderLen
			f := frame.New(append(append(make([]byte, 12), etherType...), p...), framed)
			if err := f.Check(); err != nil {
				t.Fatal(err)
			}
			var c segmentCutter
			c.start(p, &off)
			b := make([]byte, 1500)
			f.Plain(func(s *frame.Frame) bool {
				want := s.AppendTo(nil)[frame.EtherHeaderLen:]
				if !c.more() {
					t.Fatalf("v6 %v, %d octets: too few segments", v6, n)
				}
				if got := b[:c.next(b)]; !bytes.Equal(got, want) {
					t.Fatalf("v6 %v, %d octets:\n% x\n% x", v6, n, got[:60], want[:60])
				}
				return true
			})
			f.Release()
			if c.more() {
				t.Errorf("v6 %v, %d octets: too many segments", v6, n)
			}
		}
	}
}

// Headers that do not fit their packet are not followed, and nothing is written beyond a buffer.
func TestSegmentCutterLies(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p, good := superSegment(r, false, 5000, 1400)
	for name, change := range map[string]func(o *frame.Offload){
		"no size":          func(o *frame.Offload) { o.GSOSize = 0 },
		"no checksum":      func(o *frame.Offload) { o.Csum = frame.CsumValid },
		"TCP inside of IP": func(o *frame.Offload) { o.CsumStart = 19 },
		"TCP at the end":   func(o *frame.Offload) { o.CsumStart = uint16(len(p) - 19) },
		"TCP behind it":    func(o *frame.Offload) { o.CsumStart = 65535 },
		"UDP":              func(o *frame.Offload) { o.GSO = frame.GSOUDP },
	} {
		o := good
		change(&o)
		var c segmentCutter
		if c.start(p, &o); c.more() {
			t.Errorf("%s: it is cut", name)
		}
	}
	var c segmentCutter
	c.start(p, &good)
	if n := c.next(make([]byte, 1000)); n != 0 || c.more() {
		t.Errorf("%d octets of a segment that is too long", n)
	}
	finishSum(p[:20], 18, 2)
	finishSum(p[:20], 30, 0)
}
