// Package wireshark holds a test of the dissector in this folder.
package wireshark

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/sctpddp"
)

// packet is an IPv4 packet with the SCTP chunks.
func packet(chunks ...[]byte) []byte {
	sctp := []byte{0x1c, 0x06, 0x1c, 0x07, 0, 0, 0, 9, 0, 0, 0, 0} // ports, tag, checksum
	sctp = append(sctp, slices.Concat(chunks...)...)
	binary.LittleEndian.PutUint32(sctp[8:], crc32.Checksum(sctp, crc32.MakeTable(crc32.Castagnoli)))
	ip := []byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 132, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(sctp)))
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	return append(ip, sctp...)
}

// data is a DATA chunk with U, B and E set.
func data(tsn uint32, stream uint16, ppid uint32, msg []byte) []byte {
	b := []byte{0, 7}
	b = binary.BigEndian.AppendUint16(b, uint16(16+len(msg)))
	b = binary.BigEndian.AppendUint32(b, tsn)
	b = binary.BigEndian.AppendUint16(b, stream)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint32(b, ppid)
	return append(append(b, msg...), make([]byte, -len(msg)&3)...)
}

func control(t *testing.T, c sctpddp.Control) []byte {
	t.Helper()
	b, err := c.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func segment(ssn uint16, seg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, ssn), seg...)
}

// writePcap writes packets without a link header.
func writePcap(t *testing.T, packets [][]byte) string {
	t.Helper()
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	for _, v := range []uint32{2 | 4<<16, 0, 0, 65535, 101} {
		b = le.AppendUint32(b, v)
	}
	for i, p := range packets {
		for _, v := range []uint32{uint32(i), 0, uint32(len(p)), uint32(len(p))} {
			b = le.AppendUint32(b, v)
		}
		b = append(b, p...)
	}
	name := filepath.Join(t.TempDir(), "sctpddp.pcap")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// What tshark says of messages made by our encoder. SDDP-013.
func TestDissector(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	all := iwarp.RTRSend | iwarp.RTRWrite | iwarp.RTRRead
	readRequest := append(iwarp.AppendUntagged(nil, true, iwarp.OpReadRequest, 0, 1, 0),
		make([]byte, 28)...)
	term := iwarp.Terminate{Cause: iwarp.TermNoRTR}
	tests := []struct {
		ppid uint32
		msg  []byte
		want string // fields that are there
		info string
	}{
		{sctpddp.PPIDControl, control(t, sctpddp.Control{Function: sctpddp.FuncInitiate,
			PrivateData: []byte("hi")}),
			"ssn=0 function=0x0001 private_data=6869", "[Initiate ssn=0]"},
		{sctpddp.PPIDControl, control(t, sctpddp.Control{Function: sctpddp.FuncAccept}),
			"ssn=0 function=0x0002", "[Accept ssn=0]"},
		{sctpddp.PPIDControl, control(t, sctpddp.Control{Function: sctpddp.FuncReject}),
			"ssn=0 function=0x0003", "[Reject ssn=0]"},
		{sctpddp.PPIDControl, control(t, sctpddp.Control{SSN: 7, Function: sctpddp.FuncTerminate}),
			"ssn=7 function=0x0004", "[Terminate ssn=7]"},
		{sctpddp.PPIDControl, control(t, sctpddp.Control{Function: sctpddp.FuncEnhancedInitiate,
			HasData: true, PrivateData: []byte{0xff},
			Data: iwarp.EnhancedData{PeerToPeer: true, RTR: all, IRD: 0x1234, ORD: 0x3fff}}),
			"ssn=0 function=0x0005 enhanced=0xd234ffff a=1 b=1 ird=4660 c=1 d=1 ord=16383 private_data=ff",
			"[Enhanced Initiate ssn=0]"},
		{sctpddp.PPIDControl, control(t, sctpddp.Control{Function: sctpddp.FuncEnhancedAccept,
			HasData: true,
			Data:    iwarp.EnhancedData{PeerToPeer: true, RTR: iwarp.RTRWrite, IRD: 1, ORD: 2}}),
			"ssn=0 function=0x0006 enhanced=0x80018002 a=1 b=0 ird=1 c=1 d=0 ord=2",
			"[Enhanced Accept ssn=0]"},
		{sctpddp.PPIDControl, control(t, sctpddp.Control{Function: sctpddp.FuncEnhancedReject,
			HasData: true}),
			"ssn=0 function=0x0007 enhanced=0x00000000 a=0 b=0 ird=0 c=0 d=0 ord=0",
			"[Enhanced Reject ssn=0]"},
		{sctpddp.PPIDSegment, segment(1, append(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 0x1234,
			0x10), "data"...)),
			"segment.ssn=1 tagged_flag=1 last_flag=1 opcode=0x00 stag=0x00001234 " +
				"tagged_offset=0x0000000000000010", "[segment ssn=1]"},
		{sctpddp.PPIDSegment, segment(65535, append(iwarp.AppendUntagged(nil, false, iwarp.OpSend, 0, 9,
			100), "data"...)),
			"segment.ssn=65535 tagged_flag=0 last_flag=0 opcode=0x03 qn=0 msn=9 mo=100",
			"[segment ssn=65535]"},
		{sctpddp.PPIDSegment, segment(2, readRequest),
			"segment.ssn=2 tagged_flag=0 last_flag=1 opcode=0x01 qn=1 msn=1 mo=0", "[segment ssn=2]"},
		{sctpddp.PPIDSegment, segment(3, term.Append(iwarp.AppendUntagged(nil, true, iwarp.OpTerminate,
			0, 1, 0))),
			"segment.ssn=3 tagged_flag=0 last_flag=1 opcode=0x07 qn=2 msn=1 mo=0 term_layer=0x02 " +
				"term_errcode_llp=0x07", "[segment ssn=3]"},
		// What is wrong is said, and nothing breaks.
		{sctpddp.PPIDControl, []byte{0, 0, 0, 8}, "ssn=0 function=0x0008 message=Unknown function",
			"[unknown function ssn=0]"},
		{sctpddp.PPIDControl, []byte{0, 0, 0}, "message=Too short for its headers", ""},
		{sctpddp.PPIDControl, []byte{0, 0, 0, 5, 1},
			"ssn=0 function=0x0005 private_data=01 message=Too short for its headers",
			"[Enhanced Initiate ssn=0]"},
		{sctpddp.PPIDControl, []byte{0, 1, 0, 4, 1},
			"ssn=1 function=0x0004 private_data=01 message=A Terminate carries no private data",
			"[Terminate ssn=1]"},
		{sctpddp.PPIDControl, append([]byte{0, 0, 0, 1}, make([]byte, 513)...),
			"ssn=0 function=0x0001 private_data=" + strings.Repeat("00", 513) +
				" message=More than 512 octets of private data", "[Initiate ssn=0]"},
		{sctpddp.PPIDSegment, segment(1, iwarp.AppendTagged(nil, true, iwarp.OpWrite, 1, 0)[:13]),
			"message=Too short for its headers", ""},
		{sctpddp.PPIDSegment, segment(1, iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 1, 0)[:17]),
			"message=Too short for its headers", ""},
		{sctpddp.PPIDSegment, []byte{0}, "message=Too short for its headers", ""},
	}
	var packets [][]byte
	for i, tt := range tests {
		packets = append(packets, packet(data(uint32(i), 3, tt.ppid, tt.msg)))
	}
	// Two messages in one packet.
	packets = append(packets, packet(data(100, 3, sctpddp.PPIDSegment, tests[7].msg),
		data(101, 4, sctpddp.PPIDControl, tests[3].msg)))
	pcap := writePcap(t, packets)
	run := func(args ...string) []string {
		t.Helper()
		cmd := exec.Command(tshark, append([]string{"-r", pcap, "-X", "lua_script:sctpddp.lua",
			"--disable-heuristic", "rpcrdma_iwarp", "-o", "sctp.checksum:CRC 32c"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // nobody's preferences
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || strings.Contains(strings.ToLower(stderr.String()), "lua:") {
			t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
		}
		return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	}
	fields := strings.Fields(`_ws.col.Protocol _ws.col.Info sctp.data_sid
		sctpddp.ssn sctpddp.function sctpddp.enhanced sctpddp.a sctpddp.b sctpddp.ird sctpddp.c sctpddp.d sctpddp.ord sctpddp.private_data
		sctpddp_segment.ssn iwarp_ddp.tagged_flag iwarp_ddp.last_flag iwarp_rdma.opcode iwarp_ddp.stag iwarp_ddp.tagged_offset
		iwarp_ddp.qn iwarp_ddp.msn iwarp_ddp.mo iwarp_rdma.term_layer iwarp_rdma.term_errcode_llp _ws.expert.message`)
	args := []string{"-T", "fields", "-E", "separator=|"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	lines := run(args...)
	if len(lines) != len(packets) {
		t.Fatalf("%d lines for %d packets", len(lines), len(packets))
	}
	for i, tt := range tests {
		cells := strings.Split(lines[i], "|")
		if len(cells) != len(fields) {
			t.Fatalf("%q", lines[i])
		}
		var got []string
		for k, c := range cells[3:] {
			if c != "" {
				_, name, _ := strings.Cut(strings.Replace(fields[3+k], "_segment.", ".segment.", 1), ".")
				got = append(got, strings.TrimPrefix(name, "expert.")+"="+c)
			}
		}
		if g := strings.Join(got, " "); g != tt.want || cells[2] != "0x0003" {
			t.Errorf("message %d:\n got %s\nwant %s", i, g, tt.want)
		}
		if !strings.Contains(cells[1], tt.info) || tt.info != "" && cells[0] != "DDP/SCTP" {
			t.Errorf("message %d: %s, %s; want %s", i, cells[0], cells[1], tt.info)
		}
	}
	if last := lines[len(tests)]; !strings.Contains(last, "[segment ssn=1]") ||
		!strings.Contains(last, "[Terminate ssn=7]") {
		t.Errorf("two messages: %s", last)
	}
	if bad := run("-Y", "sctp.checksum.status == 0 || frame.number < 12 && _ws.malformed"); len(
		bad) != 1 || bad[0] != "" {
		t.Errorf("tshark finds fault with %q", bad)
	}
}
