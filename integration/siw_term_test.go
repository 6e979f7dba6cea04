package integration

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A siwFault is something that one end does to the other, which answers by a Terminate. Pairs
// are for siw and for vrnic as the end at fault.
type siwFault struct {
	name string
	do   func(p *pair, from, to side)
	// ctrl is the Terminate Control that the other end sends: siw's, which has its bits the other
	// way round (siw's own header names them so), and vrnic's, as RFC 5040, section 4.8, has it.
	// Empty: none is sent, and why says what happens.
	ctrl [2]string
	why  [2]string
	// async is what siw tells its program about the fault of vrnic.
	async []rdma.AsyncEventType
}

// accessLen is how much of the other end's memory is asked for.
const accessLen = 100

// reach is a Write or Read of a region of the other end, at an offset and with bits of the key
// changed.
func reach(op rdma.Opcode, rights rdma.Access, pd int, off int, key uint32) func(p *pair, from,
	to side) {
	return func(p *pair, from, to side) {
		r := to.region(4096, rights, pd)
		own := from.region(4096, rdma.LocalWrite, 0)
		from.post(work{id: 1, op: op, r: own, n: accessLen, addr: r.addr + uint64(off), key: r.key ^ key})
	}
}

// otherSTag changes the upper 24 bits of a key, which name the region.
const otherSTag = 0x5a5a5a00

var siwFaults = []siwFault{
	{name: "Write, unknown STag", do: reach(rdma.OpWrite, reachable, 0, 0, otherSTag), ctrl: [2]string{
		"1100c000", "11000300"}},
	{name: "Write, key of the STag wrong", do: reach(rdma.OpWrite, reachable, 0, 0, 1),
		ctrl: [2]string{"1100c000", "11000300"}},
	{name: "Write, out of bounds", do: reach(rdma.OpWrite, reachable, 0, 4096-accessLen+1, 0),
		ctrl: [2]string{"1101c000", "11010300"}, async: []rdma.AsyncEventType{rdma.EventQPAccessErr}},
	{name: "Write, no right to", do: reach(rdma.OpWrite, rdma.LocalWrite|rdma.RemoteRead, 0, 0, 0),
		ctrl: [2]string{"1100c000", "11000300"}, async: []rdma.AsyncEventType{rdma.EventQPAccessErr}},
	{name: "Write, other protection domain", do: reach(rdma.OpWrite, reachable, 1, 0, 0),
		ctrl: [2]string{"1102c000", "11020300"}, async: []rdma.AsyncEventType{rdma.EventQPAccessErr}},
	{name: "Read, unknown STag", do: reach(rdma.OpRead, reachable, 0, 0, otherSTag), ctrl: [2]string{
		"0100e000", "10000700"}, async: []rdma.AsyncEventType{rdma.EventQPReqErr}},
	{name: "Read, out of bounds", do: reach(rdma.OpRead, reachable, 0, 4096-accessLen+1, 0),
		ctrl: [2]string{"0101e000", "10010700"}, async: []rdma.AsyncEventType{rdma.EventQPReqErr}},
	{name: "Read, no right to", do: reach(rdma.OpRead, rdma.LocalWrite|rdma.RemoteWrite, 0, 0, 0),
		ctrl: [2]string{"0102e000", ""}, why: [2]string{
			"", "siw answers: it does not look at the right to read"}},
	{name: "Read, other protection domain", do: reach(rdma.OpRead, reachable, 1, 0, 0),
		ctrl: [2]string{"0103e000", "10030700"}, async: []rdma.AsyncEventType{rdma.EventQPReqErr}},
	{name: "Send, longer than the receive", do: func(p *pair, from, to side) {
		to.recv(1, p.memOf(to), 0, accessLen-1)
		from.post(work{id: 1, op: rdma.OpSend, r: p.memOf(from), n: accessLen})
	}, ctrl: [2]string{"1205c000", "21020300"}, async: []rdma.AsyncEventType{rdma.EventQPFatal}},
	{name: "Send of segments, too long", do: func(p *pair, from, to side) {
		to.recv(1, p.memOf(to), 0, 2900)
		from.post(work{id: 1, op: rdma.OpSend, r: p.memOf(from), n: 3000})
	}, ctrl: [2]string{"1205c000", "21020300"}, async: []rdma.AsyncEventType{rdma.EventQPFatal}},
	{name: "Send, no receive", do: func(p *pair, from, to side) {
		from.post(work{id: 1, op: rdma.OpSend, r: p.memOf(from), n: accessLen})
	}, ctrl: [2]string{"1202c000", "21020300"}},
	{name: "Send with Invalidate, unknown STag", do: func(p *pair, from, to side) {
		to.recv(1, p.memOf(to), 0, accessLen)
		from.post(work{id: 1, op: rdma.OpSendInv, r: p.memOf(from), n: accessLen,
			key: p.memOf(to).key ^ otherSTag})
	}, ctrl: [2]string{"0209c000", ""}, why: [2]string{"", "siw fails the receive and goes on"}},
}

// siwGot is what siw's driver says of a Terminate that it receives.
var siwGot = regexp.MustCompile(`siw: got TERMINATE\. layer (\d+), type (\d+), code (\d+)`)

// terminate commits a fault and checks what either end says of it.
func (m *siwMatrix) terminate(
	ctx context.Context, k plan, f *siwFault, at initiator,
) (retries int) {
	p, retries := m.open(ctx, k)
	if _, err := m.g.Kmsg(ctx); err != nil {
		must(err)
	}
	p.s.async()
	from, to := p.sides()[at], p.sides()[1-at]
	f.do(p, from, to)
	want := f.ctrl[at]
	if want == "" {
		// It goes on: nothing is terminated, and both ends still talk.
		m.goesOn(p, from, to)
		return retries
	}
	p.v.ended(20 * time.Second)
	p.s.ended(20 * time.Second)
	var cause *rdma.TerminateError
	err := p.v.conn.Err()
	if !errors.As(err, &cause) {
		failf("vrnic's connection has ended with %v, want a Terminate", err)
	}
	ctrl, _ := hex.DecodeString(want)
	layer, etype := ctrl[0]>>4, ctrl[0]&15
	if at == fromVrnic { // siw has sent it
		layer, etype = etype, layer
	}
	if cause.Remote != (at == fromVrnic) || cause.Layer != layer || cause.Type != etype ||
		cause.Code != ctrl[1] {
		failf("vrnic reports %+v, want layer %d, type %d, code %#02x, remote: %t", cause, layer, etype,
			ctrl[1], at == fromVrnic)
	}
	if at == fromSiw {
		// What vrnic has sent, as siw reads it.
		said, err := m.g.Kmsg(ctx)
		must(err)
		want := fmt.Sprintf("layer %d, type %d, code %d", ctrl[0]&15, ctrl[0]>>4, ctrl[1])
		if got := siwGot.FindString(said); !strings.HasSuffix(got, want) || got == "" {
			failf("siw's driver says %q, want a Terminate of %s", said, want)
		}
	} else if got := p.s.async(); !slices.Equal(got, f.async) {
		failf("siw's program is told %v, want %v", got, f.async)
	}
	m.terms = append(m.terms, siwTerm{p.port, at, want})
	p.free()
	return retries
}

// goesOn wants a connection on which siw has overlooked a fault of vrnic to be as good as before.
func (m *siwMatrix) goesOn(p *pair, from, to side) {
	if got := from.poll(1, 5*time.Second); len(got) != 1 || got[0].status != rdma.WCSuccess {
		failf("%v's request has completed as %+v, want success: siw overlooks it", from, got)
	}
	// The receive of an invalidation that failed.
	for _, d := range to.poll(1, 300*time.Millisecond) {
		if d.status != rdma.WCRemInvReq {
			failf("%v's receive has completed as %+v", to, d)
		}
	}
	for i, x := range []side{from, to} {
		y := []side{to, from}[i]
		y.recv(8, p.memOf(y), 0, 10)
		x.post(work{id: 9, op: rdma.OpSend, r: p.memOf(x), n: 10})
		succeeded(x, 9, 1)
		succeeded(y, 8, 1)
	}
	// Siw has prepared a Terminate for the invalidation, and would send it now if it were to close.
	p.finish(p.v)
	p.free()
}

// faultTable says what comes of each fault, in whatever setting.
func (m *siwMatrix) faultTable() string {
	var s strings.Builder
	s.WriteString("| fault | by siw: vrnic's Terminate Control | by vrnic: siw's | connections | " +
		"retries | seconds |\n|---|---|---|--:|--:|--:|\n")
	for i := range siwFaults {
		f := &siwFaults[i]
		var says [2]string
		for at := range says {
			says[at] = f.ctrl[at]
			if says[at] == "" {
				says[at] = "none: " + f.why[at]
			}
		}
		var sum siwCell
		for _, r := range m.rows {
			for at := range initiator(2) {
				sum.add(r.cells[faultName(f, at)])
			}
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s |\n", f.name, says[0], says[1], sum.columns())
	}
	return s.String()
}

func faultName(f *siwFault, at initiator) string { return fmt.Sprintf("%s, by %v", f.name, at) }

// checkSiwWire has tshark decode a recording: nothing malformed, checksums right, and a good CRC in
// every FPDU of the connections that have them, by port of the server.
func checkSiwWire(t *testing.T, pcap string, crc map[uint16]bool) {
	t.Helper()
	options := []string{"-o", "ip.check_checksum:true", "-o", "tcp.check_checksum:true", "-Y"}
	text := tshark(t, pcap, append(options, "iwarp_mpa.fpdu", "-T", "fields", "-e", "tcp.srcport",
		"-e", "tcp.dstport",
		"-e", "iwarp_mpa.ulpdulength", "-e", "iwarp_mpa.crc_check")...)
	fpdus, crcs, plain := 0, 0, 0
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 4 {
			t.Fatalf("tshark: %q", line)
		}
		with, ok := crc[portOf(f[0])]
		if !ok {
			if with, ok = crc[portOf(f[1])]; !ok {
				t.Errorf("FPDUs between ports %s and %s, where none are expected", f[0], f[1])
			}
		}
		n := len(strings.Split(f[2], ","))
		got := 0
		if f[3] != "" {
			got = len(strings.Split(f[3], ","))
		}
		if with && got != n || !with && got != 0 {
			t.Errorf("ports %s and %s: %d FPDUs and %d CRCs, with CRCs: %t", f[0], f[1], n, got, with)
		}
		if fpdus += n; with {
			crcs += n
		} else {
			plain += n
		}
	}
	t.Logf("tshark: %d FPDUs, %d of them with CRC and %d without", fpdus, crcs, plain)
	if crcs == 0 {
		t.Errorf("tshark finds no FPDU with CRC in %s", pcap)
	}
	faults := "_ws.malformed || iwarp_mpa.bad_length || ip.checksum.status == 0 || " +
		"(tcp.checksum.status == 0 && tcp.checksum != 0xffff)"
	if out := tshark(t, pcap, append(options, faults, "-V")...); out != "" {
		t.Errorf("tshark complains about:\n%.20000s", out)
	}
}

func portOf(s string) uint16 {
	n, _ := strconv.ParseUint(s, 10, 16) // 0 is nobody's
	return uint16(n)
}

// A siwTerm is a Terminate that must be in the recording.
type siwTerm struct {
	port uint16    // of the connection's server
	at   initiator // who was at fault: the other end has sent it
	ctrl string
}

// checkTerminates wants in the recording the Terminates of terms, one on each connection, and no
// others.
func checkTerminates(t *testing.T, pcap string, terms []siwTerm) {
	t.Helper()
	want := make(map[string]string)
	for _, x := range terms {
		want[fmt.Sprint(x.port)] = x.ctrl
	}
	// Untagged, last segment, Terminate, queue 2, MSN 1, offset 0: RFC 5040, section 4.8.
	head := regexp.MustCompile(`^....4[0-9a-f]47[0-9a-f]{8}000000020000000100000000(.{8})`)
	for line := range strings.Lines(tshark(t, pcap, "-Y", "iwarp_rdma.opcode == 7", "-T", "fields",
		"-e", "tcp.srcport", "-e", "tcp.dstport", "-e", "tcp.payload")) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Errorf("tshark: %q", line)
			continue
		}
		port := f[0]
		if _, ok := want[port]; !ok {
			port = f[1]
		}
		ctrl, ok := want[port]
		delete(want, port)
		// It may be behind other FPDUs in its TCP segment.
		found := ""
		for at := 0; at+8 < len(f[2]) && found == ""; at += 8 {
			if m := head.FindStringSubmatch(f[2][at:]); m != nil {
				found = m[1]
			}
		}
		if !ok || found != ctrl {
			t.Errorf("ports %s and %s: Terminate Control %s on the wire, want %q", f[0], f[1], found, ctrl)
		}
	}
	for port, ctrl := range want {
		t.Errorf("no Terminate on the connection of port %s, want %s", port, ctrl)
	}
}
