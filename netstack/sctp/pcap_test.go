package sctp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"
)

// A recorded packet of SCTP.
type recorded struct {
	at       time.Duration // since the first
	src, dst netip.Addr
	data     []byte
}

// readPcap reads the SCTP packets of a little-endian pcap file of Ethernet frames.
func readPcap(t testing.TB, name string) (all []recorded) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	if len(b) < 24 || le.Uint32(b) != 0xa1b2c3d4 || le.Uint32(b[20:]) != 1 {
		t.Fatalf("%s: not a pcap file of Ethernet frames", name)
	}
	var first time.Duration
	for b = b[24:]; len(b) >= 16; {
		at := time.Duration(le.Uint32(b))*time.Second + time.Duration(le.Uint32(b[4:]))*time.Microsecond
		n := int(le.Uint32(b[8:]))
		frame := b[16 : 16+n]
		b = b[16+n:]
		if src, dst, data := sctpOf(frame); data != nil {
			if all == nil {
				first = at
			}
			all = append(all, recorded{at - first, src, dst, data})
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s: no SCTP", name)
	}
	return all
}

// sctpOf finds the SCTP packet in an Ethernet frame, without padding; nil if there is none.
func sctpOf(b []byte) (src, dst netip.Addr, data []byte) {
	if len(b) < 14+40 && (len(b) < 14+20 || binary.BigEndian.Uint16(b[12:]) != 0x0800) {
		return
	}
	switch ip := b[14:]; {
	case binary.BigEndian.Uint16(b[12:]) == 0x0800 && ip[9] == 132:
		return netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])),
			ip[int(ip[0]&15)*4 : binary.BigEndian.Uint16(ip[2:])]
	case binary.BigEndian.Uint16(b[12:]) == 0x86dd && ip[6] == 132:
		return netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])),
			ip[40 : 40+int(binary.BigEndian.Uint16(ip[4:]))]
	}
	return
}

// rebuild decodes a packet and builds it again with the functions that build ours.
func rebuild(b []byte) ([]byte, error) {
	h, ok := parseHeader(b)
	if !ok {
		return nil, fmt.Errorf("no header")
	}
	out := h.append(nil)
	for rest := b[headerLen:]; len(rest) > 0; {
		var c chunk
		if c, rest, ok = nextChunk(rest); !ok {
			return nil, fmt.Errorf("octets left over")
		}
		var err error
		if out, err = rebuildChunk(out, c); err != nil {
			return nil, fmt.Errorf("%v: %w", c.typ(), err)
		}
	}
	finish(out)
	return out, nil
}

func rebuildChunk(b []byte, c chunk) ([]byte, error) {
	at := len(b)
	switch c.typ() {
	case chunkData:
		d, ok := parseData(c)
		if !ok {
			return nil, fmt.Errorf("short")
		}
		b = appendDataHeader(b, d.flags(), d.tsn(), d.stream(), d.ssn(), d.ppid(), len(d.data()))
		return appendPadding(append(b, d.data()...), at), nil
	case chunkInit, chunkInitAck:
		var s setup
		if !parseSetup(c, &s) {
			return nil, fmt.Errorf("short")
		}
		b = appendSetupHeader(b, c.typ(), s.tag, s.rwnd, s.out, s.in, s.tsn)
		b, err := rebuildParams(b, c[initLen:])
		if err != nil {
			return nil, err
		}
		return endChunk(b, at), nil
	case chunkSack:
		s, ok := parseSack(c)
		if !ok {
			return nil, fmt.Errorf("short")
		}
		var gaps []gap
		var dups []TSN
		for i := range s.blocks() {
			start, end := s.block(i)
			gaps = append(gaps, gap{start, end})
		}
		for i := range s.dups() {
			dups = append(dups, s.dup(i))
		}
		return appendSack(b, s.cum(), s.rwnd(), gaps, dups), nil
	case chunkShutdown:
		cum, ok := parseShutdown(c)
		if !ok {
			return nil, fmt.Errorf("short")
		}
		return appendShutdown(b, cum), nil
	case chunkHeartbeat, chunkHeartbeatAck, chunkAbort, chunkError:
		b = beginChunk(b, c.typ(), c.flags())
		b, err := rebuildParams(b, c.value())
		if err != nil {
			return nil, err
		}
		return endChunk(b, at), nil
	}
	return appendChunk(b, c.typ(), c.flags(), c.value()), nil
}

func rebuildParams(b, params []byte) ([]byte, error) {
	for len(params) > 0 {
		p, rest, ok := nextParam(params)
		if !ok {
			return nil, fmt.Errorf("parameters are cut")
		}
		params = rest
		switch a, isAddr := addrOf(p); {
		case isAddr:
			b = appendAddr(b, a)
		case p.typ() == paramAdaptation && len(p) == adaptationParamLen:
			b = appendParam32(b, p.typ(), binary.BigEndian.Uint32(p.value()))
		default:
			b = appendParam(b, p.typ(), p.value())
		}
	}
	return b, nil
}
