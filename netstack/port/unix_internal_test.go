package port

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
)

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
