package iwarp

import "encoding/binary"

// Markers (RFC 5044, section 4.3): in a direction whose receiver asked for them (M=1), a Marker
// starts at every 512th octet of the stream behind the start frame, the first one included. It is
// reserved(16) FPDUPTR(16): how many octets before the Marker the ULPDU_Length of its FPDU starts.
// A Marker between two FPDUs belongs to the second, goes out with it and holds 0.
//
// Positions are offsets in the stream, modulo 2^32 as sequence numbers are: TCP's own are not
// needed.
const (
	markerEvery = 512
	markerLen   = 4
)

// markersIn is how many Markers lie in the size octets from pos on.
func markersIn(pos uint32, size int) int {
	r := int(pos % markerEvery)
	return (r+size+markerEvery-1)/markerEvery - (r+markerEvery-1)/markerEvery
}

// markedLen is how many octets an FPDU of n octets takes with its Markers if it, or the Marker
// that leads it, starts at pos. Between two Markers there are 508 octets of FPDU.
func markedLen(pos uint32, n int) int {
	r := int(pos % markerEvery)
	if r > 0 && n <= markerEvery-r {
		return n
	}
	gap := 0
	if r > 0 {
		gap = markerEvery - r
	}
	return n + markerLen*(1+(n-gap-1)/(markerEvery-markerLen))
}

// MULPDUMarkers is MULPDU for a direction with markers: EMSS - (6 + 4 * ceil(EMSS/512) + EMSS mod
// 4), within 128..64768. RFC 5044, section 4.5.
func MULPDUMarkers(emss int) int {
	return min(max(emss-(6+markerLen*((emss+markerEvery-1)/markerEvery)+emss&3), MinMULPDU), MaxMULPDU)
}

// sealMarked completes b, the octets of the stream from pos on that an FPDU with its Markers takes.
// The FPDU is at the end of b with its ULPDU of n octets in place; what precedes it is room for the
// Markers, up to which its octets move.
func sealMarked(b []byte, n int, crc bool, pos uint32) CRC {
	src := markerLen * markersIn(pos, len(b))
	plain := b[src:]
	binary.BigEndian.PutUint16(plain, uint16(n))
	clear(plain[fpduHeaderLen+n:])
	start := pos // of the ULPDU_Length
	if pos%markerEvery == 0 {
		start += markerLen
	}
	for dst := 0; dst < len(b); {
		at := pos + uint32(dst)
		if at%markerEvery == 0 {
			ptr := uint16(0)
			if dst > 0 {
				ptr = uint16(at - start)
			}
			binary.BigEndian.PutUint16(b[dst:], 0)
			binary.BigEndian.PutUint16(b[dst+2:], ptr)
			dst += markerLen
			at += markerLen
		}
		k := copy(b[dst:], b[src:min(src+int(markerEvery-at%markerEvery), len(b))])
		dst, src = dst+k, src+k
	}
	if !crc {
		return 0
	}
	c := CRC(0).Add(b[:len(b)-fpduCRCLen])
	c.Put(b[len(b)-fpduCRCLen:])
	return c
}

// AppendMarkedFPDU appends the FPDU of ulpdu, at most 65535 octets, with the Markers that it has at
// offset pos of its stream: there it starts, or the Marker does that leads it.
func AppendMarkedFPDU(b, ulpdu []byte, crc bool, pos uint32) []byte {
	size := FPDULen(len(ulpdu))
	total := markedLen(pos, size)
	at := len(b)
	b = append(b, make([]byte, total)...)
	copy(b[at+total-size+fpduHeaderLen:], ulpdu)
	sealMarked(b[at:], len(ulpdu), crc, pos)
	return b
}

// An unmarker takes the Markers out of an inbound stream while FPDUs are gathered. Each of them is
// looked at; an FPDU with one that does not point to it is refused when its CRC has been found
// good.
type unmarker struct {
	on     bool
	pos    uint32 // offset in the stream of the next octet
	marker [markerLen]byte
	n      int    // octets in marker
	open   bool   // an FPDU has begun, be it by the Marker that leads it
	start  uint32 // offset of its ULPDU_Length
	crc    CRC    // of what came of it, Markers included, up to its CRC field
	bad    bool   // a Marker of it is wrong
	got    uint16 // its FPDUPTR
	want   uint16
}

// writeMarked is Write for a stream with Markers. All of it goes through the buffer: there is
// hardly an FPDU without a Marker inside.
func (e *Endpoint) writeMarked(b []byte) (n int, err error) {
	r := &e.rx
	m := &r.mark
	for n < len(b) {
		if e.err != nil {
			e.stats.Dropped += uint64(len(b) - n)
			return len(b), nil
		}
		if m.n > 0 || m.pos%markerEvery == 0 {
			k := copy(m.marker[m.n:], b[n:])
			m.n += k
			m.pos += uint32(k)
			n += k
			if m.n == markerLen {
				m.take()
			}
			continue
		}
		if !m.open {
			m.begin(m.pos)
		}
		k := r.gather(b[n:min(n+int(markerEvery-m.pos%markerEvery), len(b))])
		m.cover(r, k)
		m.pos += uint32(k)
		n += k
		if !r.whole() {
			continue
		}
		m.open = false
		e.stats.OctetsIn += uint64(m.pos-m.start) + uint64(m.lead())
		if e.fpdu(r.buf[:r.n:r.n], int(binary.BigEndian.Uint16(r.buf)), false) == errHold {
			r.checked = true
			return n, ErrNoReceive
		}
		r.n = 0
	}
	return n, nil
}

// begin notes an FPDU whose ULPDU_Length is at start.
func (m *unmarker) begin(start uint32) { m.open, m.start, m.crc, m.bad = true, start, 0, false }

// lead is how many octets the Marker takes that leads the FPDU.
func (m *unmarker) lead() int {
	if m.start%markerEvery == markerLen {
		return markerLen
	}
	return 0
}

// take looks at a whole Marker: "the receiver MUST treat the Marker's two low bits as zero", its
// reserved half is not looked at, and both are under the CRC. RFC 5044, section 4.2.
func (m *unmarker) take() {
	m.n = 0
	want := uint16(0)
	if m.open {
		// A pointer is as wide as ULPDU_Length: modulo 2^16 (docs/decisions.md#M7).
		want = uint16(m.pos - markerLen - m.start)
	} else {
		m.begin(m.pos)
	}
	m.crc = m.crc.Add(m.marker[:])
	if got := binary.BigEndian.Uint16(m.marker[2:]) &^ 3; got != want && !m.bad {
		m.bad, m.got, m.want = true, got, want
	}
}

// cover adds the last k gathered octets to the CRC, but for the CRC field itself.
func (m *unmarker) cover(r *receiver, k int) {
	if !r.crc {
		return
	}
	end := r.n
	if r.n >= fpduHeaderLen {
		end = min(end, FPDULen(int(binary.BigEndian.Uint16(r.buf)))-fpduCRCLen)
	}
	if from := r.n - k; from < end {
		m.crc = m.crc.Add(r.buf[from:end])
	}
}
