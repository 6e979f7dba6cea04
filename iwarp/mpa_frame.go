package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// MPA Request and Reply frame: Key(16) flags(1) Rev(1) PD_Length(2) Private Data(0..512).
// RFC 5044, section 7.1.1; S and the enhanced data: RFC 6581, section 6.
const (
	startHeaderLen = 20
	enhancedLen    = 4
	// MaxPrivateData is the limit of PD_Length; with enhanced data the program has 4 less.
	MaxPrivateData = 512
	maxStartFrame  = startHeaderLen + MaxPrivateData

	startM, startC, startR, startS = 0x80, 0x40, 0x20, 0x10
	startROI                       = 0x01 // of Res: docs/decisions.md#W2
)

var (
	keyRequest = []byte("MPA ID Req Frame")
	keyReply   = []byte("MPA ID Rep Frame")
)

// NotNegotiated in IRD or ORD of EnhancedData says that the number is not negotiated here.
const NotNegotiated = 0x3fff

// RTRKinds is a set of ready-to-receive messages (RFC 6581, section 9.2).
type RTRKinds uint8

const (
	RTRWrite RTRKinds = 1 << iota // zero-length RDMA Write: flag C
	RTRRead                       // zero-length RDMA Read: flag D
	RTRSend                       // zero-length Send: flag B

	rtrAll = RTRWrite | RTRRead | RTRSend
)

func (k RTRKinds) String() string {
	s := ""
	for i, n := range [...]string{"write", "read", "send"} {
		if k&(1<<i) != 0 {
			if s != "" {
				s += "+"
			}
			s += n
		}
	}
	if s == "" {
		return "none"
	}
	return s
}

// EnhancedData is what a start frame with S=1 begins its private data with:
// A(1) B(1) IRD(14) C(1) D(1) ORD(14). RFC 6581, section 9.
type EnhancedData struct {
	PeerToPeer bool     // A
	RTR        RTRKinds // B, C, D
	IRD, ORD   uint16   // 0..0x3ffe, or NotNegotiated
}

// Append appends the four octets.
func (d EnhancedData) Append(b []byte) []byte {
	x, y := d.IRD&0x3fff, d.ORD&0x3fff
	if d.PeerToPeer {
		x |= 0x8000
	}
	if d.RTR&RTRSend != 0 {
		x |= 0x4000
	}
	if d.RTR&RTRWrite != 0 {
		y |= 0x8000
	}
	if d.RTR&RTRRead != 0 {
		y |= 0x4000
	}
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, x), y)
}

// ParseEnhancedData reads the first four octets of b, which are there.
func ParseEnhancedData(b []byte) (d EnhancedData) {
	x, y := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	d.PeerToPeer = x&0x8000 != 0
	d.IRD, d.ORD = x&0x3fff, y&0x3fff
	if x&0x4000 != 0 {
		d.RTR |= RTRSend
	}
	if y&0x8000 != 0 {
		d.RTR |= RTRWrite
	}
	if y&0x4000 != 0 {
		d.RTR |= RTRRead
	}
	return d
}

// A StartFrame is an MPA Request or Reply.
type StartFrame struct {
	Reply    bool
	Markers  bool // M: the sender wants markers in what it receives
	CRC      bool // C
	Rejected bool // R: of Replies
	Revision uint8
	Enhanced bool // S: Data is there
	ROI      bool // what follows is not iWARP but package roi's
	Data     EnhancedData
	// PrivateData is the program's, without the enhanced data.
	PrivateData []byte
}

var (
	errStartShort    = errors.New("start frame is not complete")
	errStartKey      = errors.New("not the Key of an MPA start frame")
	errStartLength   = errors.New("PD_Length above 512")
	errStartEnhanced = errors.New("S=1 with less than 4 octets of private data")
)

// Append appends the frame. ErrPrivateData: more than 512 octets, the enhanced data counted.
func (f *StartFrame) Append(b []byte) ([]byte, error) {
	n := len(f.PrivateData)
	if f.Enhanced {
		n += enhancedLen
	}
	if n > MaxPrivateData {
		return b, fmt.Errorf("%w: %d octets, %d with the connection data; at most %d", ErrPrivateData,
			len(f.PrivateData), n, MaxPrivateData)
	}
	if f.Enhanced && f.Revision < 2 {
		return b, fmt.Errorf("%w: enhanced data needs revision 2", ErrConfig)
	}
	key, flags := keyRequest, byte(0)
	if f.Reply {
		key = keyReply
		if f.Rejected {
			flags |= startR
		}
	}
	if f.Markers {
		flags |= startM
	}
	if f.CRC {
		flags |= startC
	}
	if f.Enhanced {
		flags |= startS
	}
	if f.ROI {
		flags |= startROI
	}
	b = append(b, key...)
	b = append(b, flags, f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.Enhanced {
		b = f.Data.Append(b)
	}
	return append(b, f.PrivateData...), nil
}

// ParseStartFrame reads the frame at the start of b and returns its length. Reserved bits are
// ignored, but for ROI's, S in revision 1 as well. An error that is not errStartShort is final:
// more octets do not mend it. PrivateData aliases b.
func ParseStartFrame(b []byte) (f StartFrame, n int, err error) {
	k := min(len(b), len(keyRequest))
	isReq, isRep := bytes.Equal(b[:k], keyRequest[:k]), bytes.Equal(b[:k], keyReply[:k])
	if !isReq && !isRep {
		return f, 0, errStartKey
	}
	if len(b) < startHeaderLen {
		return f, 0, errStartShort
	}
	pd := int(binary.BigEndian.Uint16(b[18:]))
	if pd > MaxPrivateData {
		return f, 0, errStartLength
	}
	flags := b[16]
	f = StartFrame{
		Reply: isRep, Markers: flags&startM != 0, CRC: flags&startC != 0,
		Rejected: isRep && flags&startR != 0, Revision: b[17], ROI: flags&startROI != 0,
	}
	// "S looked at in Rev 2 only": EMPA-006.
	enhanced := f.Revision >= 2 && flags&startS != 0
	if enhanced && pd < enhancedLen {
		// A rejection of that form still is one (EMPA-010): siw sends it.
		if !f.Rejected {
			return f, 0, errStartEnhanced
		}
		enhanced = false
	}
	n = startHeaderLen + pd
	if len(b) < n {
		return f, 0, errStartShort
	}
	f.PrivateData = b[startHeaderLen:n:n]
	if enhanced {
		f.Enhanced = true
		f.Data = ParseEnhancedData(f.PrivateData)
		f.PrivateData = f.PrivateData[enhancedLen:]
	}
	return f, n, nil
}

// A startReader gathers one start frame from pieces.
type startReader struct {
	buf [maxStartFrame]byte
	n   int
}

var errOtherKey = errors.New("iwarp: not the Key of the frame that is awaited")

// add takes octets of b up to the end of a frame with that key and says how many. done: f is the
// frame, whose private data is a copy; a caller that awaits one with a key refuses another.
func (r *startReader) add(b, key []byte) (used int, f StartFrame, done bool, err error) {
	for {
		f, total, err := ParseStartFrame(r.buf[:r.n])
		if err == nil {
			f.PrivateData = bytes.Clone(f.PrivateData)
			return used, f, r.n == total, nil
		}
		if !errors.Is(err, errStartShort) {
			return used, f, false, err
		}
		// The header first, then as much as it announces: never an octet too many.
		want := startHeaderLen
		if r.n >= startHeaderLen {
			want += int(binary.BigEndian.Uint16(r.buf[18:]))
		}
		n := copy(r.buf[r.n:want], b[used:])
		if n == 0 {
			// "A Request received while waiting for a Reply is an error": MPA-061.
			if n = min(r.n, len(key)); string(r.buf[:n]) != string(key[:n]) {
				return used, f, false, errOtherKey
			}
			return used, f, false, nil
		}
		r.n += n
		used += n
	}
}
