package rawpeer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
)

// A Unit is an FPDU of a Conversation, or octets in place of one.
type Unit struct {
	Octets []byte // a ULPDU
	Lie    Lie
	Raw    bool // Octets go out as they are
}

// A Conversation is what one end of a connection says: a start frame and FPDUs.
type Conversation struct {
	Start []byte
	Units []Unit
	// How the octets of all FPDUs are cut into writes, and what comes behind them.
	Cuts []int
	End  End
}

// An End is what the speaker does last.
type End int

const (
	SayFIN   End = iota // close its half
	SayReset            // reset
	SayStall            // nothing for a while, then reset
)

// NewConversation is one without lies.
func NewConversation(start Start, segs ...Seg) *Conversation {
	c := &Conversation{Start: start.Append(nil)}
	for _, s := range segs {
		c.Units = append(c.Units, Unit{Octets: s.ULPDU()})
	}
	return c
}

// Stream is the octets of all FPDUs.
func (c *Conversation) Stream(f *Framer) []byte {
	var b []byte
	for _, u := range c.Units {
		if u.Raw {
			b = append(b, u.Octets...)
			f.Pos += uint32(len(u.Octets))
			continue
		}
		b = f.Append(b, u.Octets, u.Lie)
	}
	return b
}

// Mutate puts one lie somewhere, and says in words which.
func (c *Conversation) Mutate(rnd *rand.Rand) string {
	if rnd.IntN(2) == 0 { // no lie by itself: cuts of TCP
		for range 1 + rnd.IntN(20) {
			c.Cuts = append(c.Cuts, 1+rnd.IntN(1<<rnd.IntN(12)))
		}
	}
	i := rnd.IntN(max(len(c.Units), 1))
	if len(c.Units) == 0 {
		return "start frame: " + mutateField(rnd, c.Start, StartFields(c.Start))
	}
	u := &c.Units[i]
	what := func(format string, args ...any) string {
		return fmt.Sprintf("FPDU %d: %s", i, fmt.Sprintf(format, args...))
	}
	switch rnd.IntN(20) {
	case 0, 1:
		return "start frame: " + mutateField(rnd, c.Start, StartFields(c.Start))
	case 2:
		n := uint16(rnd.IntN(1 << (1 + rnd.IntN(16))))
		u.Lie.Length = func(uint16) uint16 { return n }
		return what("ULPDU_Length says %d for %d", n, len(u.Octets))
	case 3:
		bit := uint32(1) << rnd.IntN(32)
		u.Lie.CRC = func(crc uint32) uint32 { return crc ^ bit }
		return what("CRC with bit %#x turned over", bit)
	case 4:
		bit := uint32(1) << rnd.IntN(32)
		u.Lie.Marker = func(_ int, m uint32) uint32 { return m ^ bit }
		return what("Markers with bit %#x turned over", bit)
	case 5:
		u.Lie.Short = 1 + rnd.IntN(min(len(u.Octets), 40))
		return what("its last %d octets are missing", u.Lie.Short)
	case 6:
		c.Units = slices.Delete(c.Units, i, i+1)
		return what("left out")
	case 7:
		c.Units = slices.Insert(c.Units, i, *u)
		return what("twice")
	case 8:
		j := rnd.IntN(len(c.Units))
		c.Units[i], c.Units[j] = c.Units[j], c.Units[i]
		return what("exchanged with %d", j)
	case 9:
		b := make([]byte, 1+rnd.IntN(1<<rnd.IntN(12)))
		for k := range b {
			b[k] = byte(rnd.Uint32())
		}
		raw := rnd.IntN(2) == 0
		c.Units = slices.Insert(c.Units, i, Unit{Octets: b, Raw: raw})
		return what("%d random octets before it, framed: %t", len(b), !raw)
	case 10:
		u.Octets = u.Octets[:rnd.IntN(len(u.Octets)+1)]
		return what("a ULPDU of %d octets", len(u.Octets))
	case 11:
		n := 1 + rnd.IntN(1<<(1+rnd.IntN(13)))
		u.Octets = append(bytes.Clone(u.Octets), make([]byte, n)...)
		return what("%d octets more", n)
	case 12:
		c.Units = c.Units[:i+1]
		u.Lie.Short = rnd.IntN(min(len(u.Octets), 40))
		c.End = End(rnd.IntN(3))
		return what("the stream ends %d octets before its end, in way %d", u.Lie.Short, c.End)
	case 13:
		u.Lie.Pad = byte(1 + rnd.IntN(255))
		return what("pad of %#x", u.Lie.Pad)
	case 14:
		return what("the control fields: %s", mutateField(rnd, u.Octets, controlFields))
	default:
		return what("%s", mutateField(rnd, u.Octets, SegFields(u.Octets)))
	}
}

// mutateField changes one field of b.
func mutateField(rnd *rand.Rand, b []byte, fields []Field) string {
	fields = slices.DeleteFunc(slices.Clone(fields),
		func(f Field) bool { return f.Off+f.Len > len(b) || f.Len == 0 })
	if len(fields) == 0 {
		return "nothing"
	}
	f := fields[rnd.IntN(len(fields))]
	before := f.value(b)
	o := b[f.Off : f.Off+f.Len]
	if f.Mask != 0 {
		o[0] ^= f.Mask & byte(1+rnd.IntN(255))
	} else {
		switch rnd.IntN(6) {
		case 0:
			clear(o)
		case 1:
			for i := range o {
				o[i] = 0xff
			}
		case 2:
			for i := range o {
				o[i] = byte(rnd.Uint32())
			}
		case 3:
			o[rnd.IntN(len(o))] ^= 1 << rnd.IntN(8)
		case 4: // one more
			for i := len(o) - 1; i >= 0; i-- {
				if o[i]++; o[i] != 0 {
					break
				}
			}
		default: // one less
			for i := len(o) - 1; i >= 0; i-- {
				if o[i]--; o[i] != 0xff {
					break
				}
			}
		}
	}
	return fmt.Sprintf("%s %s instead of %s", f.Name, f.value(b), before)
}
