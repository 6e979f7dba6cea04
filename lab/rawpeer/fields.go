package rawpeer

import (
	"fmt"
	"strings"
)

// A Field is a part of a start frame or ULPDU: Len octets at Off, or the bits Mask of one.
type Field struct {
	Name     string
	Off, Len int
	Mask     byte // 0: whole octets
}

// value prints what b has there.
func (f Field) value(b []byte) string {
	if f.Off >= len(b) {
		return "missing"
	}
	o := b[f.Off:min(f.Off+f.Len, len(b))]
	if f.Mask != 0 {
		v := o[0] & f.Mask
		for m := f.Mask; m&1 == 0; m >>= 1 {
			v >>= 1
		}
		return fmt.Sprintf("%#x", v)
	}
	s := fmt.Sprintf("%x", o)
	if len(o) > 32 {
		s = fmt.Sprintf("%x... (%d octets)", o[:32], len(o))
	}
	if len(o) < f.Len {
		s += fmt.Sprintf(" (cut: %d of %d octets)", len(o), f.Len)
	}
	return s
}

var startFields = []Field{
	{"Key", 0, 16, 0},
	{"M", 16, 1, FlagM}, {"C", 16, 1, FlagC}, {"R", 16, 1, FlagR}, {"S", 16, 1, FlagS},
	{"Res", 16, 1, 0x0f},
	{"Rev", 17, 1, 0}, {"PD_Length", 18, 2, 0},
}

var wordFields = []Field{
	{"A", 20, 1, 0x80}, {"B", 20, 1, 0x40}, {"IRD high", 20, 1, 0x3f}, {"IRD low", 21, 1, 0},
	{"C", 22, 1, 0x80}, {"D", 22, 1, 0x40}, {"ORD high", 22, 1, 0x3f}, {"ORD low", 23, 1, 0},
}

// StartFields are those of a start frame.
func StartFields(b []byte) []Field {
	f := append([]Field(nil), startFields...)
	from := startLen
	if len(b) >= startLen+4 && b[16]&FlagS != 0 && b[17] >= 2 {
		f = append(f, wordFields...)
		from += 4
	}
	if len(b) > from {
		f = append(f, Field{"private data", from, len(b) - from, 0})
	}
	return f
}

var controlFields = []Field{
	{"T", 0, 1, 0x80}, {"L", 0, 1, 0x40}, {"Rsvd", 0, 1, 0x3c}, {"DV", 0, 1, 0x03},
	{"RV", 1, 1, 0xc0}, {"Rsv", 1, 1, 0x30}, {"Opcode", 1, 1, 0x0f},
}

var (
	taggedFields   = []Field{{"STag", 2, 4, 0}, {"TO", 6, 8, 0}}
	untaggedFields = []Field{{"RsvdULP", 2, 4, 0}, {"QN", 6, 4, 0}, {"MSN", 10, 4, 0},
		{"MO", 14, 4, 0}}
)

// bodyFields are those of the RDMAP headers, by opcode, counted from the end of the DDP header.
var bodyFields = map[byte][]Field{
	OpReadRequest: {{"SinkSTag", 0, 4, 0}, {"SinkTO", 4, 8, 0}, {"RDMARDSZ", 12, 4, 0},
		{"SrcSTag", 16, 4, 0}, {"SrcTO", 20, 8, 0}},
	OpTerminate: {
		{"Layer", 0, 1, 0xf0}, {"EType", 0, 1, 0x0f}, {"Error Code", 1, 1, 0}, {"M", 2, 1, 0x80},
		{"D", 2, 1, 0x40}, {"R", 2, 1, 0x20},
		{"Reserved", 2, 1, 0x1f}, {"Reserved", 3, 1, 0},
	},
	OpImmediate:   {{"Immediate Data", 0, 8, 0}},
	OpImmediateSE: {{"Immediate Data", 0, 8, 0}},
	OpAtomic: {
		{"Reserved", 0, 3, 0}, {"Reserved", 3, 1, 0xf0}, {"AOpCode", 3, 1, 0x0f},
		{"Request Identifier", 4, 4, 0},
		{"Remote STag", 8, 4, 0}, {"Remote TO", 12, 8, 0}, {"Add or Swap Data", 20, 8, 0},
		{"Add or Swap Mask", 28, 8, 0},
		{"Compare Data", 36, 8, 0}, {"Compare Mask", 44, 8, 0},
	},
	OpAtomicResp: {{"Original Request Identifier", 0, 4, 0}, {"Original Remote Data Value", 4, 8, 0}},
}

// SegFields are those of a ULPDU.
func SegFields(u []byte) []Field {
	if len(u) < 2 {
		return []Field{{"octets", 0, len(u), 0}}
	}
	f := append([]Field(nil), controlFields...)
	hdr := untaggedLen
	if u[0]&bitT != 0 {
		f, hdr = append(f, taggedFields...), taggedLen
	} else {
		f = append(f, untaggedFields...)
	}
	if len(u) <= hdr {
		return f
	}
	op, rest := u[1]&0xf, hdr
	if more := bodyFields[op]; more != nil && hdr == untaggedLen {
		for _, b := range more {
			if b.Off += hdr; b.Off < len(u) {
				f = append(f, b)
				rest = max(rest, b.Off+b.Len)
			}
		}
		if op == OpTerminate && len(u) > rest+2 {
			f = append(f, Field{"DDP Segment Length", rest, 2, 0})
			rest += 2
			n := untaggedLen
			if u[rest]&bitT != 0 {
				n = taggedLen
			}
			f = append(f, Field{"DDP header", rest, min(n, len(u)-rest), 0})
			if rest += n; rest < len(u) {
				f = append(f, Field{"RDMAP header", rest, len(u) - rest, 0})
			}
			return f
		}
	}
	if rest < len(u) {
		f = append(f, Field{"payload", rest, len(u) - rest, 0})
	}
	return f
}

var opNames = [16]string{
	"RDMA Write", "Read Request", "Read Response", "Send", "Send with Invalidate", "Send with SE",
	"Send with SE and Invalidate",
	"Terminate", "Immediate Data", "Immediate Data with SE", "Atomic Request", "Atomic Response",
	"opcode 12", "opcode 13", "opcode 14", "opcode 15",
}

// DumpSeg prints a ULPDU with the names of its fields.
func DumpSeg(u []byte) string {
	name := "ULPDU"
	if len(u) >= 2 {
		name = opNames[u[1]&0xf]
	}
	return dump(fmt.Sprintf("%s, %d octets", name, len(u)), u, SegFields(u))
}

// DumpStart prints a start frame with the names of its fields.
func DumpStart(b []byte) string {
	name := "start frame"
	if len(b) >= 16 {
		name = fmt.Sprintf("%q", b[:16])
	}
	return dump(fmt.Sprintf("%s, %d octets", name, len(b)), b, StartFields(b))
}

func dump(title string, b []byte, fields []Field) string {
	var s strings.Builder
	s.WriteString(title)
	for _, f := range fields {
		fmt.Fprintf(&s, " %s=%s", f.Name, f.value(b))
	}
	for off := 0; off < len(b); off += 16 {
		if off >= 96 {
			fmt.Fprintf(&s, "\n    %04x ...", off)
			break
		}
		fmt.Fprintf(&s, "\n    %04x % x", off, b[off:min(off+16, len(b))])
	}
	return s.String()
}

// Name is what the message is called.
func (s Seg) Name() string { return opNames[s.Op()] }
