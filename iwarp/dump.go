package iwarp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// DescribeStartFrame shows the MPA Request or Reply at the start of b in one line.
func DescribeStartFrame(b []byte) string {
	f, _, err := ParseStartFrame(b)
	if err != nil {
		return fmt.Sprintf("malformed MPA start frame (%v)", err)
	}
	return f.String()
}

func (f StartFrame) String() string {
	name := "MPA Request"
	if f.Reply {
		name = "MPA Reply"
	}
	s := fmt.Sprintf("%s rev=%d markers=%s crc=%s", name, f.Revision, onOff(f.Markers), onOff(f.CRC))
	if f.Reply {
		if f.Rejected {
			s += " REJECTED"
		} else {
			s += " accepted"
		}
	}
	if f.Enhanced {
		s += " " + f.Data.String()
	}
	if f.ROI {
		s += " ROI"
	}
	return s + " pd=" + quotePD(f.PrivateData)
}

func (d EnhancedData) String() string {
	model := "client-server"
	if d.PeerToPeer {
		model = "peer-to-peer rtr=" + d.RTR.String()
	}
	return fmt.Sprintf("ird=%s ord=%s %s", reads(d.IRD), reads(d.ORD), model)
}

func reads(n uint16) string {
	if n == NotNegotiated {
		return "none given"
	}
	return fmt.Sprint(n)
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// quotePD shows private data: as text if it is, at most 32 octets.
func quotePD(b []byte) string {
	rest := ""
	if len(b) > 32 {
		rest = fmt.Sprintf("... (%d octets)", len(b))
		b = b[:32]
	}
	for _, c := range b {
		if c < 0x20 || c > 0x7e {
			return fmt.Sprintf("%x%s", b, rest)
		}
	}
	return fmt.Sprintf("%q%s", b, rest)
}

// DescribeSegment shows a ULPDU, a DDP segment with its RDMAP header, in one line.
func DescribeSegment(b []byte) string {
	hdr := UntaggedHeaderLen
	if len(b) > 0 && DDPControl(b[0]).Tagged() {
		hdr = TaggedHeaderLen
	}
	if len(b) < hdr {
		return fmt.Sprintf("malformed segment of %d octets", len(b))
	}
	s := describeHeader(b[:hdr])
	body := b[hdr:]
	ddp, op := DDPControl(b[0]), RDMAPControl(b[1]).Opcode()
	whole := ddp.Last() && (ddp.Tagged() || UntaggedHeader(b).MO() == 0)
	switch {
	case op == OpReadRequest && whole && len(body) == ReadRequestLen:
		return s + " " + ReadRequest(body).String()
	case op == OpAtomicRequest && whole && len(body) == atomicRequestLen:
		return s + " " + AtomicRequest(body).String()
	case op == OpAtomicResponse && whole && len(body) == atomicResponseLen:
		return s + " " + AtomicResponse(body).String()
	case (op == OpImmediate || op == OpImmediateSE) && whole && len(body) == immediateLen:
		return s + fmt.Sprintf(" data=%x", body)
	case op == OpTerminate && whole:
		t, err := ParseTerminate(body)
		if err != nil {
			return s + " malformed: " + err.Error()
		}
		return s + " " + t.String()
	}
	return s + fmt.Sprintf(" len=%d", len(body))
}

func describeHeader(b []byte) string {
	ddp, rdmap := DDPControl(b[0]), RDMAPControl(b[1])
	var s strings.Builder
	s.WriteString(rdmap.Opcode().String())
	if ddp.Version() != ddpVersion || rdmap.Version() != rdmapVersion {
		fmt.Fprintf(&s, " DV=%d RV=%d", ddp.Version(), rdmap.Version())
	}
	if ddp.Tagged() {
		h := TaggedHeader(b)
		fmt.Fprintf(&s, " stag=%#08x to=%#x", uint32(h.STag()), h.TO())
	} else {
		h := UntaggedHeader(b)
		if rdmap.Opcode().Invalidates() {
			fmt.Fprintf(&s, " inv=%#08x", uint32(h.Invalidate()))
		}
		fmt.Fprintf(&s, " qn=%d msn=%d mo=%d", h.QN(), uint32(h.MSN()), h.MO())
	}
	if ddp.Last() {
		s.WriteString(" last")
	}
	return s.String()
}

func (h TaggedHeader) String() string   { return describeHeader(h) }
func (h UntaggedHeader) String() string { return describeHeader(h) }

func (r ReadRequest) String() string {
	return fmt.Sprintf("read %d octets from stag=%#08x to=%#x into stag=%#08x to=%#x",
		r.Size(), uint32(r.SrcSTag()), r.SrcTO(), uint32(r.SinkSTag()), r.SinkTO())
}

// DescribeStream shows the octets that one side of a connection sent, from its start frame on, one
// line per frame, at most limit lines of FPDUs (0: all). crc says that CRCs were agreed on.
func DescribeStream(b []byte, crc bool, limit int) []string {
	return describeStream(b, crc, false, limit)
}

// DescribeMarkedStream is DescribeStream for the octets of a side whose peer has asked for markers.
func DescribeMarkedStream(b []byte, crc bool, limit int) []string {
	return describeStream(b, crc, true, limit)
}

func describeStream(b []byte, crc, marked bool, limit int) []string {
	f, n, err := ParseStartFrame(b)
	if err != nil {
		return []string{DescribeStartFrame(b)}
	}
	lines := []string{f.String()}
	pos := uint32(0)
	for b = b[n:]; len(b) > 0; {
		if limit > 0 && len(lines) > limit {
			return append(lines, fmt.Sprintf("... %d octets more", len(b)))
		}
		lead := 0
		if marked && pos%markerEvery == 0 {
			lead = markerLen
		}
		ulpdu, size := 0, len(b)+1
		if len(b) >= lead+fpduHeaderLen {
			ulpdu = int(binary.BigEndian.Uint16(b[lead:]))
			size = FPDULen(ulpdu)
			if marked {
				size = markedLen(pos, size)
			}
		}
		if size > len(b) {
			return append(lines, fmt.Sprintf("%d octets of a cut FPDU", len(b)))
		}
		fpdu := b[:size]
		if marked {
			fpdu = withoutMarkers(fpdu, pos)
		}
		pos += uint32(size)
		s := fmt.Sprintf("FPDU %d octets: %s", size,
			DescribeSegment(fpdu[fpduHeaderLen:fpduHeaderLen+ulpdu]))
		if crc && CRC(0).Add(b[:size-fpduCRCLen]) != crcAt(b[size-fpduCRCLen:]) {
			s += " BAD CRC"
		}
		lines, b = append(lines, s), b[size:]
	}
	return lines
}

// withoutMarkers is a copy of an FPDU without the Markers it has at offset pos of its stream.
func withoutMarkers(b []byte, pos uint32) (plain []byte) {
	for len(b) > 0 {
		if pos%markerEvery == 0 {
			b, pos = b[markerLen:], pos+markerLen
			continue
		}
		n := min(int(markerEvery-pos%markerEvery), len(b))
		plain = append(plain, b[:n]...)
		b, pos = b[n:], pos+uint32(n)
	}
	return plain
}
