package frame

import "testing"

// FuzzVnetHeader: what was read is written the same, and a frame whose header passes the check can
// be cut and completed inside its own octets.
func FuzzVnetHeader(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 60))
	f.Add([]byte{1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0}, make([]byte, 3000))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 34, 0, 6, 0}, make([]byte, 60))
	f.Add([]byte{2, 0x81, 0, 0, 1, 0, 0, 0, 0, 0}, make([]byte, 60))
	f.Fuzz(func(t *testing.T, hdr, octets []byte) {
		o, err := ParseVirtio(hdr)
		if err != nil {
			return
		}
		var b [VirtioHeaderLen]byte
		PutVirtio(&b, o)
		if p, err := ParseVirtio(b[:]); err != nil || p != o {
			t.Fatalf("%+v became %+v, %v", o, p, err)
		}
		fr := New(octets, o)
		defer fr.Release()
		if fr.Check() != nil {
			return
		}
		fr.Plain(func(s *Frame) bool {
			if s.GSO != GSONone || s.Csum == CsumPartial {
				t.Fatalf("not plain: %+v", s.Offload)
			}
			if s.Len() > len(octets) || s.Len() < EtherHeaderLen {
				t.Fatalf("%d octets out of %d", s.Len(), len(octets))
			}
			return true
		})
	})
}
