package netstack

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// FuzzVnetHeader: what was read is written the same, and a frame whose header passes the check can
// be cut and completed inside its own octets.
func FuzzVnetHeader(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 60))
	f.Add([]byte{1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0}, make([]byte, 3000))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 34, 0, 6, 0}, make([]byte, 60))
	f.Add([]byte{2, 0x81, 0, 0, 1, 0, 0, 0, 0, 0}, make([]byte, 60))
	f.Fuzz(func(t *testing.T, hdr, octets []byte) {
		o, err := parseVnet(hdr)
		if err != nil {
			return
		}
		var b [vnetHeaderLen]byte
		putVnet(&b, o)
		if p, err := parseVnet(b[:]); err != nil || p != o {
			t.Fatalf("%+v became %+v, %v", o, p, err)
		}
		fr := NewFrame(octets, o)
		defer fr.Release()
		if fr.check() != nil {
			return
		}
		fr.plain(func(s *Frame) bool {
			if s.GSO != GSONone || s.Csum == CsumPartial {
				t.Fatalf("not plain: %+v", s.Offload)
			}
			if s.Len() > len(octets) || s.Len() < etherHeaderLen {
				t.Fatalf("%d octets out of %d", s.Len(), len(octets))
			}
			return true
		})
	})
}

// cutReader gives its stream in pieces whose lengths are in cuts.
type cutReader struct{ stream, cuts []byte }

func (c *cutReader) Read(b []byte) (int, error) {
	if len(c.stream) == 0 {
		return 0, io.EOF
	}
	n := len(c.stream)
	if len(c.cuts) > 0 {
		n = min(n, int(c.cuts[0])+1)
		c.cuts = c.cuts[1:]
	}
	n = copy(b, c.stream[:n])
	c.stream = c.stream[n:]
	return n, nil
}

// FuzzUnixStream: where the socket cuts the stream cannot be seen, frames are as long as they say,
// and the reader ends.
func FuzzUnixStream(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 'a', 'b', 0, 0, 0, 0, 0, 0, 0, 1, 'c'}, []byte{0, 2, 1})
	f.Add([]byte{0, 1, 0x10, 0, 1}, []byte{0})
	f.Add([]byte{0, 1, 0x10, 1, 1}, []byte{0})
	f.Add(append([]byte{0, 1, 0x10, 0}, make([]byte, 69632)...), []byte{255, 255})
	f.Fuzz(func(t *testing.T, stream, cuts []byte) {
		frames := func(cuts []byte) (frames [][]byte, end error) {
			u := unixReader{buf: make([]byte, unixHeaderLen+maxUnixFrame)}
			src := &cutReader{stream, cuts}
			for {
				fr, err := u.next(src)
				if err != nil {
					return frames, err
				}
				frames = append(frames, bytes.Clone(fr))
			}
		}
		whole, err1 := frames(nil)
		cut, err2 := frames(cuts)
		if err1 != err2 || len(whole) != len(cut) {
			t.Fatalf("%d frames and %v; cut, %d and %v", len(whole), err1, len(cut), err2)
		}
		var again []byte
		for i := range whole {
			if !bytes.Equal(whole[i], cut[i]) {
				t.Fatalf("frame %d: %x, cut %x", i, whole[i], cut[i])
			}
			again = binary.BigEndian.AppendUint32(again, uint32(len(whole[i])))
			again = append(again, whole[i]...)
		}
		if !bytes.HasPrefix(stream, again) || err1 == io.EOF && len(again) != len(stream) {
			t.Fatalf("the frames are not the stream")
		}
	})
}

// A dispatcher is gVisor's side of a link.
type dispatcher struct {
	stack.NetworkDispatcher
	got []byte
}

func (d *dispatcher) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	d.got = pkt.Data().AsRange().ToSlice()
}

// FuzzFrames sends any octets through a switch to a stack's link: what the switch admits arrives as it
// was; only TCP is delivered on the spot; what claims to be unverified has right checksums when it
// arrives; path MTUs are sensible.
func FuzzFrames(f *testing.F) {
	tcp4 := []byte("\x08\x00\x45\x00\x00\x28\x00\x00\x00\x00\x40\x06\x26\xce\x0a\x00\x00\x01\x0a\x00\x00\x02" +
		"\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x50\x10\x00\x00\x00\x00\x00\x00")
	f.Add(tcp4, uint8(0), uint8(0), uint16(0), uint16(0), uint16(0), false)
	f.Add(append(tcp4, 1, 2, 3), uint8(1), uint8(2), uint16(2), uint16(34), uint16(16), false)
	f.Add([]byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1}, uint8(0), uint8(0), uint16(0), uint16(0), uint16(0), true)
	f.Add(append([]byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 0, 64}, make([]byte, 56)...), uint8(0), uint8(1), uint16(0), uint16(0), uint16(0), true)
	far := append([]byte("\x86\xdd\x60\x00\x00\x00\x00\x74\x3c\x40"), make([]byte, 32+96+20)...) // behind 96 octets of destination options
	far[42], far[43], far[42+96+12] = 6, 11, 0x50
	for csum := range uint8(3) {
		f.Add(far, uint8(0), csum, uint16(0), uint16(0), uint16(0), false)
	}
	f.Fuzz(func(t *testing.T, octets []byte, gso, csum uint8, gsoSize, start, offset uint16, group bool) {
		d := &dispatcher{}
		l := &link{mac: MAC{2, 0, 0, 0, 0, 1}, queue: make(chan *stack.PacketBuffer, 1)}
		l.Attach(d)
		dst := l.mac
		if group {
			dst[0] |= 1
		}
		frame := append(append(append([]byte(nil), dst[:]...), 2, 0, 0, 0, 0, 9), octets...)
		fr := NewFrame(frame, Offload{GSO: GSO(gso), Csum: CsumState(csum % 3),
			GSOSize: gsoSize, CsumStart: start, CsumOffset: offset})
		defer fr.Release()
		if fr.check() != nil {
			return
		}
		whole := NewFrame(frame, fr.Offload)
		defer whole.Release()
		ok := l.Transmit(fr, nil)
		inline := d.got != nil
		if len(l.queue) > 0 {
			l.deliver(<-l.queue)
		}
		if got := d.got; ok && !bytes.Equal(got, frame[etherHeaderLen:]) || !ok && got != nil {
			t.Fatalf("ok=%v, but %x arrived of %x", ok, got, frame)
		}
		if !ok {
			return
		}
		var p packet
		if err := p.parse(whole); err != nil {
			t.Fatal(err)
		}
		if inline != (p.l4 != 0 && p.proto == protoTCP && !p.fragment) {
			t.Fatalf("delivered on the spot: %v; %+v", inline, p)
		}
		if p.absurdTooBig() || !whole.checksumsValid(&p) {
			t.Fatalf("let in: %x", frame)
		}
	})
}
