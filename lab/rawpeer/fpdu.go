package rawpeer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// markerEvery is the distance of Markers in octets of the stream: RFC 5044, section 4.3.
const markerEvery = 512

// A Framer makes the FPDUs of one direction: RFC 5044, sections 4.1 to 4.4.
type Framer struct {
	CRC, Markers bool
	Pos          uint32 // octets of the stream behind the start frame
}

// A Lie is what is wrong with an FPDU.
type Lie struct {
	Length func(n uint16) uint16           // what ULPDU_Length says
	Pad    byte                            // what the pad octets are
	CRC    func(crc uint32) uint32         // what the CRC field says
	Marker func(i int, word uint32) uint32 // what the i-th Marker in it says, before the CRC is made
	Short  int                             // so many octets of its end are not sent
}

// Append appends the FPDU of a ULPDU.
//
//	[Marker] ULPDU_Length(2) ULPDU pad(0-3) CRC(4), with a Marker at each multiple of 512 octets
func (f *Framer) Append(b, ulpdu []byte, lie Lie) []byte {
	n := uint16(len(ulpdu))
	if lie.Length != nil {
		n = lie.Length(n)
	}
	plain := binary.BigEndian.AppendUint16(nil, n)
	plain = append(plain, ulpdu...)
	for len(plain)%4 != 0 {
		plain = append(plain, lie.Pad)
	}
	start, from := len(b), f.Pos
	var length uint32 // where ULPDU_Length is in the stream
	begun, markers := false, 0
	mark := func() {
		at := from + uint32(len(b)-start)
		if !f.Markers || at%markerEvery != 0 {
			return
		}
		word := uint32(0) // a Marker between FPDUs belongs to the next one
		if begun {
			word = (at - length) & 0xffff
		}
		if lie.Marker != nil {
			word = lie.Marker(markers, word)
		}
		markers++
		b = binary.BigEndian.AppendUint32(b, word)
	}
	for i := 0; i < len(plain); i += 4 {
		mark()
		if !begun {
			begun, length = true, from+uint32(len(b)-start)
		}
		b = append(b, plain[i:i+4]...)
	}
	mark() // between pad and CRC
	crc := uint32(0)
	if f.CRC {
		crc = crc32.Checksum(b[start:], castagnoli)
	}
	if lie.CRC != nil {
		crc = lie.CRC(crc)
	}
	b = binary.LittleEndian.AppendUint32(b, crc)
	f.Pos += uint32(len(b) - start)
	return b[:len(b)-lie.Short]
}

// A Deframer takes the FPDUs of one direction apart, and is strict.
type Deframer struct {
	CRC, Markers bool
	R            io.Reader
	pos          uint32
	seen         []byte // of the FPDU at hand, all octets
	length       uint32
	begun        bool
}

// errFraming wraps what is wrong with the framing of what was received.
var errFraming = errors.New("framing")

// take reads n octets of the FPDU, n a multiple of 4, and passes over Markers.
func (d *Deframer) take(n int) ([]byte, error) {
	out := make([]byte, 0, n)
	word := make([]byte, 4)
	for len(out) < n {
		if k, err := io.ReadFull(d.R, word); err != nil {
			d.seen = append(d.seen, word[:k]...)
			return out, err
		}
		at := d.pos
		d.pos += 4
		d.seen = append(d.seen, word...)
		if !d.Markers || at%markerEvery != 0 {
			if !d.begun {
				d.begun, d.length = true, at
			}
			out = append(out, word...)
			continue
		}
		want := uint32(0)
		if d.begun {
			want = (at - d.length) & 0xffff
		}
		if got := binary.BigEndian.Uint32(word); got != want {
			return out, fmt.Errorf("%w: the Marker at octet %d is %#08x, want %#08x", errFraming, at,
				got, want)
		}
	}
	return out, nil
}

// Next reads an FPDU and gives its ULPDU. io.EOF: the stream ended between FPDUs.
func (d *Deframer) Next() ([]byte, error) {
	d.seen, d.begun = d.seen[:0], false
	first, err := d.take(4)
	if err != nil {
		if len(d.seen) == 0 {
			return nil, err
		}
		return nil, fmt.Errorf("%w: the stream ends in an FPDU: %w", errFraming, err)
	}
	n := int(binary.BigEndian.Uint16(first))
	size := (2 + n + 3) &^ 3
	rest, err := d.take(size - 4)
	if err != nil {
		return nil, fmt.Errorf("%w: %d octets of an FPDU for a ULPDU of %d: %w", errFraming,
			len(d.seen), n, err)
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: ULPDU_Length is 0", errFraming)
	}
	whole := append(first, rest...)
	for _, o := range whole[2+n:] {
		if o != 0 {
			return nil, fmt.Errorf("%w: the pad is % x", errFraming, whole[2+n:])
		}
	}
	field, err := d.take(4)
	if err != nil {
		return nil, fmt.Errorf("%w: no CRC behind a ULPDU of %d octets: %w", errFraming, n, err)
	}
	if d.CRC {
		got := binary.LittleEndian.Uint32(field)
		if want := crc32.Checksum(d.seen[:len(d.seen)-4], castagnoli); got != want {
			return nil, fmt.Errorf("%w: CRC %08x, computed %08x", errFraming, got, want)
		}
	}
	return whole[2 : 2+n], nil
}
