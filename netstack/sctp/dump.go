package sctp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Describe puts a packet into words: ports, tag, and each chunk with its fields. It reads anything.
func Describe(b []byte) string {
	h, ok := parseHeader(b)
	if !ok {
		return fmt.Sprintf("%d octets, no SCTP packet", len(b))
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%d>%d tag=%08x", h.srcPort, h.dstPort, h.tag)
	if !GoodChecksum(b) {
		s.WriteString(" bad checksum")
	}
	rest := b[headerLen:]
	for {
		c, r, ok := nextChunk(rest)
		if !ok {
			break
		}
		s.WriteString(" | ")
		describeChunk(&s, c)
		rest = r
	}
	if len(rest) > 0 {
		fmt.Fprintf(&s, " | %d octets left", len(rest))
	}
	return s.String()
}

func describeChunk(s *strings.Builder, c chunk) {
	s.WriteString(c.typ().String())
	switch c.typ() {
	case chunkData:
		if d, ok := parseData(c); ok {
			fmt.Fprintf(s, " tsn=%d sid=%d ssn=%d ppid=%d %s len=%d", d.tsn(), d.stream(), d.ssn(), d.ppid(),
				dataFlags(d.flags()), len(d.data()))
		}
	case chunkInit, chunkInitAck:
		var x setup
		if parseSetup(c, &x) {
			fmt.Fprintf(s, " itag=%08x rwnd=%d out=%d in=%d tsn=%d", x.tag, x.rwnd, x.out, x.in, x.tsn)
			describeParams(s, c[initLen:])
		}
	case chunkSack:
		if x, ok := parseSack(c); ok {
			fmt.Fprintf(s, " cum=%d rwnd=%d", x.cum(), x.rwnd())
			for i := range x.blocks() {
				start, end := x.block(i)
				fmt.Fprintf(s, " gap=%d-%d", start, end)
			}
			for i := range x.dups() {
				fmt.Fprintf(s, " dup=%d", x.dup(i))
			}
		}
	case chunkShutdown:
		if cum, ok := parseShutdown(c); ok {
			fmt.Fprintf(s, " cum=%d", cum)
		}
	case chunkHeartbeat, chunkHeartbeatAck:
		describeParams(s, c.value())
	case chunkAbort, chunkShutdownComplete, chunkError:
		if c.flags()&flagT != 0 {
			s.WriteString(" T")
		}
		causes, _ := parseCauses(c.value())
		for _, x := range causes {
			fmt.Fprintf(s, " (%v)", x)
		}
	case chunkCookieEcho:
		fmt.Fprintf(s, " len=%d", len(c.value()))
	default:
		if len(c.value()) > 0 {
			fmt.Fprintf(s, " len=%d", len(c.value()))
		}
	}
}

func dataFlags(f byte) string {
	b := []byte("....")
	for i, n := range []byte("IUBE") {
		if f&(flagI>>i) != 0 {
			b[i] = n
		}
	}
	return string(b)
}

func describeParams(s *strings.Builder, b []byte) {
	for {
		p, rest, ok := nextParam(b)
		if !ok {
			return
		}
		b = rest
		switch a, isAddr := addrOf(p); {
		case isAddr:
			fmt.Fprintf(s, " addr=%v", a)
		case p.typ() == paramCookie:
			fmt.Fprintf(s, " cookie=%d", len(p.value()))
		case p.typ() == paramAdaptation && len(p) == adaptationParamLen:
			fmt.Fprintf(s, " adaptation=%d", binary.BigEndian.Uint32(p.value()))
		case p.typ() == paramHeartbeatInfo:
			fmt.Fprintf(s, " info=%d", len(p.value()))
		default:
			fmt.Fprintf(s, " %04x=%x", p.typ(), p.value())
		}
	}
}
