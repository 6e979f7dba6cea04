package iwarp_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// unhex reads octets in hexadecimal: blanks and line ends between them do not matter.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

const (
	reqKey = "4d504120494420526571204672616d65 "
	repKey = "4d504120494420526570204672616d65 "
)

// MPA-034: the check value, the iSCSI vector, and pieces.
func TestCRC(t *testing.T) {
	if got := CRC(0).Add([]byte("123456789")); got != 0xe3069283 {
		t.Errorf("check value %08x", uint32(got))
	}
	if got := CRC(0).Add([]byte("1234")).Add(nil).Add([]byte("56789")); got != 0xe3069283 {
		t.Errorf("in pieces %08x", uint32(got))
	}
	var b [4]byte
	CRC(0).Add(make([]byte, 32)).Put(b[:])
	if !bytes.Equal(b[:], unhex("aa36918a")) {
		t.Errorf("32 zero octets: % x", b)
	}
}

// MPA-009, 010, 011: sizes. MPA-003, 041: section 7's table.
func TestSizes(t *testing.T) {
	for n := range 64 {
		if got, want := FPDULen(n), 4*((n+2+3)/4)+4; got != want || got%4 != 0 {
			t.Errorf("FPDULen(%d) = %d, want %d", n, got, want)
		}
	}
	for emss, want := range map[int]int{
		1: 128, 64: 128, 88: 128, 134: 128, 140: 134, 536: 530, 1440: 1434, 1448: 1442, 1460: 1454,
		1461: 1454, 1463: 1454, 8948: 8942, 8960: 8954, 65483: 64768, 65535: 64768,
	} {
		if got := MULPDU(emss); got != want {
			t.Errorf("MULPDU(%d) = %d, want %d", emss, got, want)
		}
		if emss >= 140 && FPDULen(MULPDU(emss)) > emss {
			t.Errorf("EMSS %d: the FPDU has %d octets", emss, FPDULen(MULPDU(emss)))
		}
	}
}

// startFrames are Requests and Replies of either form, and the borders of MPA's rules.
var startFrames = []struct {
	str  string
	wire string
	f    StartFrame
}{
	{`MPA Request rev=1 markers=off crc=on pd="hello"`,
		reqKey + "40 01 0005 68656c6c6f",
		StartFrame{CRC: true, Revision: 1, PrivateData: []byte("hello")}},
	{`MPA Reply rev=1 markers=off crc=on accepted pd=""`,
		repKey + "40 01 0000", StartFrame{Reply: true, CRC: true, Revision: 1}},
	{`MPA Reply rev=1 markers=on crc=on accepted pd=""`,
		repKey + "c0 01 0000", StartFrame{Reply: true, CRC: true, Markers: true, Revision: 1}},
	{`MPA Reply rev=1 markers=off crc=on REJECTED pd=""`,
		repKey + "60 01 0000", StartFrame{Reply: true, CRC: true, Rejected: true, Revision: 1}},
	{`MPA Request rev=2 markers=off crc=off ird=1 ord=1 client-server pd=""`, // 2a
		reqKey + "10 02 0004 0001 0001", StartFrame{Revision: 2, Enhanced: true, Data: EnhancedData{
			IRD: 1, ORD: 1}}},
	// 2b, EMPA-009
	{`MPA Request rev=2 markers=off crc=on ird=4 ord=4 peer-to-peer rtr=write+read pd="ping"`,
		reqKey + "50 02 0008 8004 c004 70696e67",
		StartFrame{CRC: true, Revision: 2, Enhanced: true, Data: EnhancedData{true, RTRWrite | RTRRead, 4,
			4}, PrivateData: []byte("ping")}},
	{`MPA Reply rev=2 markers=off crc=on accepted ird=4 ord=4 peer-to-peer rtr=write pd="pong"`, // 2c
		repKey + "50 02 0008 8004 8004 706f6e67",
		StartFrame{Reply: true, CRC: true, Revision: 2, Enhanced: true, Data: EnhancedData{true, RTRWrite,
			4, 4}, PrivateData: []byte("pong")}},
	{`MPA Reply rev=2 markers=off crc=on REJECTED ird=4 ord=4 peer-to-peer rtr=write pd="no"`, // 2d
		repKey + "70 02 0006 8004 8004 6e6f",
		StartFrame{Reply: true, CRC: true, Rejected: true, Revision: 2, Enhanced: true,
			Data: EnhancedData{true, RTRWrite, 4, 4}, PrivateData: []byte("no")}},
	{`MPA Request rev=2 markers=off crc=off ird=none given ord=none given peer-to-peer rtr=send pd=""`,
		reqKey + "10 02 0004 ffff 3fff", StartFrame{Revision: 2, Enhanced: true, Data: EnhancedData{
			true, RTRSend, NotNegotiated, NotNegotiated}}},
}

func TestStartFrames(t *testing.T) {
	for _, tt := range startFrames {
		wire := unhex(tt.wire)
		got, err := tt.f.Append(nil)
		if err != nil || !bytes.Equal(got, wire) {
			t.Errorf("%s: encoded %x, %v", tt.str, got, err)
		}
		f, n, err := ParseStartFrame(append(wire[:len(wire):len(wire)], 1, 2, 3))
		if err != nil || n != len(wire) {
			t.Errorf("%s: decoded %d octets, %v", tt.str, n, err)
		}
		if f.String() != tt.str {
			t.Errorf("got  %s\nwant %s", f, tt.str)
		}
		if len(f.PrivateData) == 0 {
			f.PrivateData = nil
		}
		if !reflect.DeepEqual(f, tt.f) {
			t.Errorf("%s: decoded %+v", tt.str, f)
		}
		for n := range wire {
			if _, _, err := ParseStartFrame(wire[:n]); err == nil {
				t.Errorf("%s: decode of %d octets succeeded", tt.str, n)
			}
		}
	}
}

// MPA-066, MPA-063, EMPA-005, 006, 008, 010: what the decoder does not look at, and what it
// refuses.
func TestStartFrameFields(t *testing.T) {
	f, _, err := ParseStartFrame(unhex(reqKey + "5f 01 0004 61626364"))
	if err != nil || f.Enhanced || string(f.PrivateData) != "abcd" {
		t.Errorf("revision 1 with all reserved bits: %+v, %v", f, err)
	}
	f, _, err = ParseStartFrame(unhex(reqKey + "7f 02 0004 00010001"))
	if err != nil || !f.Enhanced || f.Rejected || f.Markers {
		t.Errorf("revision 2 with all reserved bits and R: %+v, %v", f, err)
	}
	for pd := range 4 {
		b := append(unhex(reqKey+"10 02 00"), byte(pd), 1, 2, 3, 4)
		if _, _, err := ParseStartFrame(b); err == nil {
			t.Errorf("S=1 with %d octets: no error", pd)
		}
		b = append(unhex(repKey+"30 02 00"), byte(pd), 1, 2, 3, 4)
		if f, n, err := ParseStartFrame(b); err != nil || f.Enhanced || !f.Rejected || n != 20+pd {
			t.Errorf("rejection with S=1 and %d octets: %+v, %v", pd, f, err)
		}
	}
	if _, _, err := ParseStartFrame(append(unhex(reqKey+"40 01 0201"), make([]byte, 600)...)); err ==
		nil {
		t.Error("PD_Length 513: no error")
	}
	if _, _, err := ParseStartFrame(append(unhex(reqKey+"40 01 0200"), make([]byte, 512)...)); err !=
		nil {
		t.Errorf("PD_Length 512: %v", err)
	}
	for i := range 16 {
		b := unhex(reqKey + "40 01 0000")
		b[i] ^= 1
		if _, _, err := ParseStartFrame(b); err == nil && i != 9 {
			t.Errorf("Key with octet %d damaged: no error", i)
		}
	}
	for _, enhanced := range []bool{false, true} {
		limit := 512
		if enhanced {
			limit = 508
		}
		f := StartFrame{Revision: 2, Enhanced: enhanced, PrivateData: make([]byte, limit)}
		if b, err := f.Append(nil); err != nil || len(b) != 532 {
			t.Errorf("S=%t, %d octets: %d, %v", enhanced, limit, len(b), err)
		}
		f.PrivateData = make([]byte, limit+1)
		if _, err := f.Append(nil); err == nil {
			t.Errorf("S=%t, %d octets: no error", enhanced, limit+1)
		}
	}
}

// segments are an example or more of each message, whose CRCs were computed by other programs: the
// ULPDU, what follows it in the FPDU, and how it is shown. make builds it with the encoders.
var segments = []struct {
	name, ulpdu, tail, str string
	make                   func() []byte
}{
	{"mpa 3 Send", "41 43 00000000 00000000 00000001 00000000 68656c6c6f", "000000 b990b10c",
		"Send qn=0 msn=1 mo=0 last len=5",
		func() []byte { return append(AppendUntagged(nil, true, OpSend, 0, 1, 0), "hello"...) }},
	{"mpa 5a RTR Send", "41 43 00000000 00000000 00000001 00000000", "587be8c4",
		"Send qn=0 msn=1 mo=0 last len=0",
		func() []byte { return AppendUntagged(nil, true, OpSend, 0, 1, 0) }},
	{"mpa 5b RTR Write", "c1 40 00000001 0000000000000000", "ebd34c5f",
		"RDMA Write stag=0x00000001 to=0x0 last len=0",
		func() []byte { return AppendTagged(nil, true, OpWrite, 1, 0) }},
	{"mpa 5c RTR Read", "41 41 00000000 00000001 00000001 00000000 00000000 0000000000000000 " +
		"00000000 00000001 0000000000000000", "ba10e3c9",
		"RDMA Read Request qn=1 msn=1 mo=0 last read 0 octets from stag=0x00000001 to=0x0 into stag=0x00000000 to=0x0",
		func() []byte {
			return AppendReadRequest(AppendUntagged(nil, true, OpReadRequest, 0, 1, 0), 0, 0, 0, 1, 0)
		}},
	{"mpa 5c Response", "c1 42 00000000 0000000000000000", "6975d6ca",
		"RDMA Read Response stag=0x00000000 to=0x0 last len=0",
		func() []byte { return AppendTagged(nil, true, OpReadResponse, 0, 0) }},
	{"mpa 6 Write", "c1 40 00000100 0000000000001000 4142434445464748", "c1f081ec",
		"RDMA Write stag=0x00000100 to=0x1000 last len=8",
		func() []byte { return append(AppendTagged(nil, true, OpWrite, 0x100, 0x1000), "ABCDEFGH"...) }},
	{"mpa 7 Terminate", "41 47 00000000 00000002 00000001 00000000 20020000", "7fe42585",
		"Terminate qn=2 msn=1 mo=0 last Terminate 2/0/02 MPA CRC error",
		func() []byte {
			return (&Terminate{Cause: TermCRC}).Append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0))
		}},
	{"mpa 7 Terminate, siw", "41 47 00000000 00000002 00000001 00000000 02020000", "75d367ed",
		"Terminate qn=2 msn=1 mo=0 last Terminate 2/0/02 MPA CRC error [siw's bit order]", nil},
	{"mpa 7 IRD", "41 47 00000000 00000002 00000001 00000000 20060000", "6540fb1b",
		"Terminate qn=2 msn=1 mo=0 last Terminate 2/0/06 insufficient IRD resources",
		func() []byte {
			return (&Terminate{Cause: TermInsufficientIRD}).Append(AppendUntagged(nil, true, OpTerminate,
				0, 1, 0))
		}},
	{"mpa 7 RTR", "41 47 00000000 00000002 00000001 00000000 20070000", "1bd2babe",
		"Terminate qn=2 msn=1 mo=0 last Terminate 2/0/07 no matching RTR option",
		func() []byte {
			return (&Terminate{Cause: TermNoRTR}).Append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0))
		}},
	{"E1", "41 43 00000000 00000000 00000001 00000000 a0a1a2a3a4a5a6", "00 f5337f8f",
		"Send qn=0 msn=1 mo=0 last len=7",
		func() []byte {
			return append(AppendUntagged(nil, true, OpSend, 0xffffffff, 1, 0), unhex("a0a1a2a3a4a5a6")...)
		}},
	{"E2", "41 46 00012a5c 00000000 00000002 00000000 646f6e65", "d6fab6cd",
		"Send with SE and Invalidate inv=0x00012a5c qn=0 msn=2 mo=0 last len=4",
		func() []byte {
			return append(AppendUntagged(nil, true, OpSendSEInvalidate, 0x12a5c, 2, 0), "done"...)
		}},
	{"E3 first", "81 40 0007c341 00007f3a10002ff8 101112131415161718191a1b1c1d1e1f", "2ff545d8",
		"RDMA Write stag=0x0007c341 to=0x7f3a10002ff8 len=16",
		func() []byte {
			return append(AppendTagged(nil, false, OpWrite, 0x7c341, 0x7f3a10002ff8),
				unhex("101112131415161718191a1b1c1d1e1f")...)
		}},
	{"E3 last", "c1 40 0007c341 00007f3a10003008 2021222324", "000000 0d7617b5",
		"RDMA Write stag=0x0007c341 to=0x7f3a10003008 last len=5",
		func() []byte {
			return append(AppendTagged(nil, true, OpWrite, 0x7c341, 0x7f3a10003008), unhex("2021222324")...)
		}},
	{"E4", "41 41 00000000 00000001 00000001 00000000 0015be07 0000560000001000 00000008 0007c341 " +
		"00007f3a10002ff8", "6b2f603e",
		"RDMA Read Request qn=1 msn=1 mo=0 last read 8 octets from stag=0x0007c341 to=0x7f3a10002ff8 into stag=0x0015be07 to=0x560000001000",
		func() []byte {
			return AppendReadRequest(AppendUntagged(nil, true, OpReadRequest, 0, 1, 0), 0x15be07,
				0x560000001000, 8, 0x7c341, 0x7f3a10002ff8)
		}},
	{"E5", "c1 42 0015be07 0000560000001000 1011121314151617", "f8a20b28",
		"RDMA Read Response stag=0x0015be07 to=0x560000001000 last len=8",
		func() []byte {
			return append(AppendTagged(nil, true, OpReadResponse, 0x15be07, 0x560000001000),
				unhex("1011121314151617")...)
		}},
	{"E6", "41 47 00000000 00000002 00000001 00000000 1100c000 002e c140 00bad0ff 0000000000004000",
		"fd780962",
		"Terminate qn=2 msn=1 mo=0 last Terminate 1/1/00 invalid STag length=46 of {RDMA Write stag=0x00bad0ff to=0x4000 last}",
		func() []byte {
			return (&Terminate{Cause: TermInvalidSTag, HasLength: true, Length: 46, Header: AppendTagged(nil,
				true, OpWrite, 0xbad0ff, 0x4000)}).
				Append(AppendUntagged(nil, true, OpTerminate, 0, 1, 0))
		}},
	{"E6, siw", "41 47 00000000 00000002 00000001 00000000 11000300 0020 c140 00bad0ff " +
		"0000000000004000", "",
		"Terminate qn=2 msn=1 mo=0 last Terminate 1/1/00 invalid STag [siw's bit order] length=32 of " +
			"{RDMA Write stag=0x00bad0ff to=0x4000 last}", nil},
	{"E7", "41 47 00000000 00000002 00000001 00000000 0100e000 002e 4141 00000000 00000001 00000001 " +
		"00000000" +
		"0015be07 0000560000001000 00001000 00bad0ff 0000000000000010", "1955fd69",
		"Terminate qn=2 msn=1 mo=0 last Terminate 0/1/00 read: invalid STag length=46 of {RDMA Read Request qn=1 msn=1 mo=0 last} {read 4096 octets from stag=0x00bad0ff to=0x10 into stag=0x0015be07 to=0x560000001000}",
		func() []byte {
			return (&Terminate{Cause: TermReadInvalidSTag, HasLength: true, Length: 46,
				Header:      AppendUntagged(nil, true, OpReadRequest, 0, 1, 0),
				ReadRequest: AppendReadRequest(nil, 0x15be07, 0x560000001000, 4096, 0xbad0ff, 0x10)}).Append(
				AppendUntagged(nil, true, OpTerminate, 0, 1, 0))
		}},
	{"E8", "41 4a 00000000 00000001 00000002 00000000 00000000 000000a1 0007c341 00007f3a10003010" +
		"0000000000000005 0000000000000000 0000000000000000 ffffffffffffffff", "e1bc1dff",
		"Atomic Request qn=1 msn=2 mo=0 last id=0xa1 FetchAdd at stag=0x0007c341 to=0x7f3a10003010 add=0x5 mask=0x0",
		func() []byte {
			// What FetchAdd does not use is not sent: EXT-022.
			return AppendAtomicRequest(AppendUntagged(nil, true, OpAtomicRequest, 0x77, 2, 0), 0xa1,
				Atomic{Op: AtomicFetchAdd, STag: 0x7c341, TO: 0x7f3a10003010, Data: 5, Compare: 7,
					CompareMask: 8})
		}},
	{"E8 Response", "41 4b 00000000 00000003 00000001 00000000 000000a1 000000000000002a", "4a22de84",
		"Atomic Response qn=3 msn=1 mo=0 last id=0xa1 old=0x2a",
		func() []byte {
			return AppendAtomicResponse(AppendUntagged(nil, true, OpAtomicResponse, 0x77, 1, 0), 0xa1, 0x2a)
		}},
	{"E9", "41 4a 00000000 00000001 00000003 00000000 00000002 000000a2 0007c341 00007f3a10003010" +
		"1111222233334444 ffffffffffffffff 000000000000002f ffffffffffffffff", "68eb449d",
		"Atomic Request qn=1 msn=3 mo=0 last id=0xa2 CmpSwap at stag=0x0007c341 to=0x7f3a10003010 compare=0x2f mask=0xffffffffffffffff swap=0x1111222233334444 mask=0xffffffffffffffff",
		func() []byte {
			return AppendAtomicRequest(AppendUntagged(nil, true, OpAtomicRequest, 0, 3, 0), 0xa2,
				Atomic{Op: AtomicCompareSwap, STag: 0x7c341, TO: 0x7f3a10003010, Data: 0x1111222233334444,
					Mask: ^uint64(0), Compare: 0x2f, CompareMask: ^uint64(0)})
		}},
	{"E9 Response", "41 4b 00000000 00000003 00000002 00000000 000000a2 000000000000002f", "9e5ead48",
		"Atomic Response qn=3 msn=2 mo=0 last id=0xa2 old=0x2f",
		func() []byte {
			return AppendAtomicResponse(AppendUntagged(nil, true, OpAtomicResponse, 0, 2, 0), 0xa2, 0x2f)
		}},
	{"E10", "41 48 00000000 00000000 00000003 00000000 000000c7 00000000", "71aea85f",
		"Immediate Data qn=0 msn=3 mo=0 last data=000000c700000000",
		func() []byte {
			return append(AppendUntagged(nil, true, OpImmediate, 0x77, 3, 0), 0, 0, 0, 0xc7, 0, 0, 0, 0)
		}},
	{"E10 with SE, cut", "01 49 00000000 00000000 00000003 00000000 000000c7", "",
		"Immediate Data with SE qn=0 msn=3 mo=0 len=4", nil},
	{"Atomic Request, more to come", "01 4a 00000000 00000001 00000002 00000000 00000000 00000000" +
		"00000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000",
		"",
		"Atomic Request qn=1 msn=2 mo=0 len=52", nil},
	{"Atomic Request with a reserved AOpCode",
		"41 4a 00000000 00000001 00000002 00000000 ffffff31 00000000" +
			"00000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000",
		"",
		"Atomic Request qn=1 msn=2 mo=0 last id=0x0 AOpCode(1) at stag=0x00000000 to=0x0 add=0x0 mask=0x0", nil},
}

// EXT-007, EXT-018, EXT-049: the octets of RFC 7306's messages.
func TestWorkedExamples(t *testing.T) {
	for _, tt := range segments {
		t.Run(tt.name, func(t *testing.T) {
			u := unhex(tt.ulpdu)
			if tt.make != nil {
				if got := tt.make(); !bytes.Equal(got, u) {
					t.Errorf("encoded %x\nwant    %x", got, u)
				}
			}
			if got := DescribeSegment(u); got != tt.str {
				t.Errorf("got  %s\nwant %s", got, tt.str)
			}
			if tt.tail == "" {
				return
			}
			want := append(append([]byte{0, byte(len(u))}, u...), unhex(tt.tail)...)
			if got := AppendFPDU(nil, u, true); !bytes.Equal(got, want) {
				t.Errorf("FPDU %x\nwant %x", got, want)
			}
		})
	}
	for n := range UntaggedHeaderLen {
		if _, _, err := ParseUntagged(make([]byte, n)); err == nil {
			t.Errorf("untagged header of %d octets: no error", n)
		}
	}
	for n := range TaggedHeaderLen {
		if _, _, err := ParseTagged(make([]byte, n)); err == nil {
			t.Errorf("tagged header of %d octets: no error", n)
		}
	}
	for n := range 40 {
		if _, err := ParseReadRequest(make([]byte, n)); (err == nil) != (n == ReadRequestLen) {
			t.Errorf("Read Request of %d octets: %v", n, err)
		}
	}
	for n := range 64 {
		if _, err := ParseAtomicRequest(make([]byte, n)); (err == nil) != (n == 52) {
			t.Errorf("Atomic Request of %d octets: %v", n, err)
		}
		if _, err := ParseAtomicResponse(make([]byte, n)); (err == nil) != (n == 12) {
			t.Errorf("Atomic Response of %d octets: %v", n, err)
		}
	}
}

// A1, A2, A3, A4, A14, A22, A23, A27, A28: the variants of a Terminate that peers send. The siw
// forms are those of S12 and S13.
func TestTerminateVariants(t *testing.T) {
	const (
		tagged = "c140 00bad0ff 0000000000004000"
		send   = "4143 00000000 00000000 00000003 00000000"
		inv    = "4144 00000007 00000000 00000003 00000000"
		read   = "4141 00000000 00000001 00000001 00000000"
		rreq   = "0015be07 0000560000001000 00001000 00bad0ff 0000000000000010"
		zero18 = "000000000000000000000000000000000000"
		atomic = "414a 00000000 00000001 00000002 00000000"
	)
	for _, tt := range []struct{ wire, want string }{
		{"20020000", "2/0/02"},
		{"02020000", "2/0/02 swapped"},
		{"20030000", "2/0/03"},
		{"02030000", "2/0/03 swapped"},
		{"20060000", "2/0/06"}, // A28: cannot be told from siw's 0/2/06
		{"00ff0000", "0/0/FF"},
		{"00000000", "0/0/00"},
		{"12021fff", "1/2/02"}, // RDMAP-035: reserved bits, and nothing behind
		{"1202c000 0019" + send, "1/2/02 len=25 hdr=18"},
		{"21020300 0007" + send, "1/2/02 swapped len=7 hdr=18"},
		{"1100c000 002e" + tagged, "1/1/00 len=46 hdr=14"},
		{"11000300 0020" + tagged, "1/1/00 swapped len=32 hdr=14"},
		{"0100e000 002e" + read + rreq, "0/1/00 len=46 hdr=18 rr"},
		{"10000700 0000" + read + rreq, "0/1/00 swapped len=0 hdr=18 rr"},
		{"20070300 001c" + read, "0/2/07 swapped len=28 hdr=18"},
		{"0207c000 001c" + read, "0/2/07 len=28 hdr=18"},
		{"01000300 0010" + tagged, "1/0/00 swapped len=16 hdr=14"},
		{"1000c000 0010" + tagged, "1/0/00 len=16 hdr=14"},         // A23
		{"0109e000 0016" + inv, "0/1/09 len=22 hdr=18"},            // A4: R without a copy
		{"10090700 0016" + inv, "0/1/09 swapped len=22 hdr=18"},    // the same of siw
		{"0206e000 002e" + read + rreq, "0/2/06 len=46 hdr=18 rr"}, // A22
		{"20020000 0000" + zero18, "2/0/02"},                       // A2: zero-filled copies
		{"23020000", "2/3/02"},                                     // A27
		{"0102c000 0016" + tagged, "0/1/02 len=22 hdr=14"},         // A1
		// A14: no RDMAP header of an atomic, or one of zeroes
		{"0102c000 0046" + atomic, "0/1/02 len=70 hdr=18"},
		{"0207c000 0046" + atomic, "0/2/07 len=70 hdr=18"},
		{"0100e000 0046" + atomic + zero18 + "00000000000000000000", "0/1/00 len=70 hdr=18"},
		{"0100e000 0046" + atomic + zero18 + zero18 + "00000000000000000000000000000000",
			"0/1/00 len=70 hdr=18"},
		// nor what somebody else put there
		{"0104e000 0046" + atomic + rreq + zero18 + "000000000007", "0/1/04 len=70 hdr=18"},
		{"1202c000 00", "1/2/02"},
		{"1202c000", "1/2/02"},
		{"1202c000 0019 4143", "1/2/02 len=25"},
		{"01000000", "0/1/00"},
		{"f9990000", "15/9/99"},
	} {
		p, err := ParseTerminate(unhex(tt.wire))
		got := fmt.Sprintf("%d/%d/%02X", p.Cause.Layer, p.Cause.Type, p.Cause.Code)
		if p.Swapped {
			got += " swapped"
		}
		if p.HasLength {
			got += fmt.Sprintf(" len=%d", p.Length)
		}
		if p.Header != nil {
			got += fmt.Sprintf(" hdr=%d", len(p.Header))
		}
		if p.ReadRequest != nil {
			got += " rr"
		}
		if err != nil || got != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.wire, got, err, tt.want)
		}
	}
	for n := range 4 {
		if _, err := ParseTerminate(make([]byte, n)); err == nil {
			t.Errorf("Terminate of %d octets: no error", n)
		}
	}
}

// Every registered triple has a text of its own and survives the codec; figure 10's copies.
func TestTermCodes(t *testing.T) {
	seen := map[string]TermCode{}
	for l := range uint8(4) {
		for ty := range uint8(4) {
			for c := range 256 {
				code := TermCode{l, ty, uint8(c)}
				p, err := ParseTerminate((&Terminate{Cause: code}).Append(nil))
				if !code.Registered() {
					continue
				}
				if err != nil || p.Cause != code || p.Swapped {
					t.Errorf("%v: read as %v, %v", code, p, err)
				}
				if l == 0 && ty == 0 {
					continue
				}
				if other, ok := seen[code.Text()]; ok {
					t.Errorf("%v and %v have the same text", code, other)
				}
				seen[code.Text()] = code
			}
		}
	}
	if len(seen) != 32 {
		t.Errorf("%d registered triples outside of 0/0, want 32", len(seen))
	}
}

func TestDescribeStream(t *testing.T) {
	b := unhex(reqKey + "40 01 0005 68656c6c6f")
	b = AppendFPDU(b, append(AppendUntagged(nil, true, OpSend, 0, 1, 0), "hello"...), true)
	b = AppendFPDU(b, append(AppendUntagged(nil, true, OpSend, 0, 2, 0), "hello"...), false)
	b = append(b, 0, 9, 1)
	got := strings.Join(DescribeStream(b, true, 0), "\n")
	want := `MPA Request rev=1 markers=off crc=on pd="hello"
FPDU 32 octets: Send qn=0 msn=1 mo=0 last len=5
FPDU 32 octets: Send qn=0 msn=2 mo=0 last len=5 BAD CRC
3 octets of a cut FPDU`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := DescribeStream(b, true, 1); len(got) != 3 || got[2] != "... 35 octets more" {
		t.Errorf("limited: %q", got)
	}
}
