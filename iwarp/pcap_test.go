package iwarp_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
)

// A flow is one direction of a recorded TCP connection: its octets in order, and for each recorded
// segment that brought new ones, in the order of the recording, how many there were by then.
type flow struct {
	src, dst netip.AddrPort
	next     uint32 // sequence number expected
	syn      bool
	data     []byte
	later    map[uint32][]byte // segments that came early
	fin      bool
	peer     *flow
}

// An arrival says that flow f had n octets.
type arrival struct {
	f *flow
	n int
}

// A conversation is a recorded TCP connection. client sent the SYN.
type conversation struct {
	client, server *flow
	arrivals       []arrival
}

// readPcap reads a little-endian pcap file of Ethernet frames and puts TCP together.
func readPcap(name string) ([]*conversation, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 ||
		binary.LittleEndian.Uint32(b[20:]) != 1 {
		return nil, fmt.Errorf("%s: not a pcap file of Ethernet frames", name)
	}
	var convs []*conversation
	flows := map[[2]netip.AddrPort]*flow{}
	owner := map[*flow]*conversation{}
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if len(b) < 16+n {
			return nil, fmt.Errorf("%s: cut", name)
		}
		frame := b[16 : 16+n]
		b = b[16+n:]
		src, dst, seg := tcpOf(frame)
		if seg == nil {
			continue
		}
		seq, flags := binary.BigEndian.Uint32(seg[4:]), seg[13]
		payload := seg[int(seg[12]>>4)*4:]
		key := [2]netip.AddrPort{src, dst}
		f := flows[key]
		if flags&2 != 0 && (f == nil || f.fin || f.next != seq+1) { // SYN
			f = &flow{src: src, dst: dst, next: seq + 1, syn: true, later: map[uint32][]byte{}}
			flows[key] = f
			if flags&16 == 0 {
				c := &conversation{client: f}
				convs, owner[f] = append(convs, c), c
			} else if p := flows[[2]netip.AddrPort{dst, src}]; p != nil {
				c := owner[p]
				c.server, owner[f] = f, c
				f.peer, p.peer = p, f
			}
			continue
		}
		if f == nil {
			continue
		}
		if f.add(seq, payload) {
			c := owner[f]
			c.arrivals = append(c.arrivals, arrival{f, len(f.data)})
		}
		f.fin = f.fin || flags&5 != 0
	}
	return slices.DeleteFunc(convs, func(c *conversation) bool { return c.server == nil }), nil
}

// add takes a segment and says whether octets came of it.
func (f *flow) add(seq uint32, p []byte) bool {
	had := len(f.data)
	if len(p) > 0 {
		f.later[seq] = slices.Clone(p)
	}
	for again := true; again; {
		again = false
		for s, q := range f.later {
			if skip := int(int32(f.next - s)); skip >= 0 {
				delete(f.later, s)
				if skip < len(q) {
					f.data = append(f.data, q[skip:]...)
					f.next += uint32(len(q) - skip)
				}
				again = true
			}
		}
	}
	return len(f.data) > had
}

// tcpOf finds the TCP segment in an Ethernet frame, without padding; nil if there is none.
func tcpOf(b []byte) (src, dst netip.AddrPort, seg []byte) {
	if len(b) < 14 {
		return
	}
	var from, to netip.Addr
	switch ip := b[14:]; binary.BigEndian.Uint16(b[12:]) {
	case 0x0800:
		if len(ip) < 20 || ip[9] != 6 {
			return
		}
		from, _ = netip.AddrFromSlice(ip[12:16])
		to, _ = netip.AddrFromSlice(ip[16:20])
		seg = ip[int(ip[0]&15)*4 : binary.BigEndian.Uint16(ip[2:])]
	case 0x86dd:
		if len(ip) < 40 || ip[6] != 6 {
			return
		}
		from, _ = netip.AddrFromSlice(ip[8:24])
		to, _ = netip.AddrFromSlice(ip[24:40])
		seg = ip[40 : 40+int(binary.BigEndian.Uint16(ip[4:]))]
	default:
		return
	}
	if len(seg) < 20 {
		return src, dst, nil
	}
	return netip.AddrPortFrom(from, binary.BigEndian.Uint16(seg)),
		netip.AddrPortFrom(to, binary.BigEndian.Uint16(seg[2:])), seg
}
