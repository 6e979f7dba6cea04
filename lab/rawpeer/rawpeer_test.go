package rawpeer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Frames that were built and decoded by others: RFC 5044's CRC rules, worked by script and read
// with tshark.
func TestFrames(t *testing.T) {
	hello := Send(1, 0, []byte("hello"))
	at := func(pos uint32) Framer { return Framer{CRC: true, Markers: true, Pos: pos} }
	for _, tt := range []struct {
		name  string
		f     Framer
		seg   Seg
		octet string
	}{
		{"Send", Framer{CRC: true}, hello, "0017 4143 00000000 00000000 00000001 00000000 68656c6c6f " +
			"000000 b990b10c"},
		{"Marker behind the header", at(492), hello.Sequence(2),
			"0017 4143 00000000 00000000 00000002 00000000 00000014 68656c6c6f 000000 bb7aef23"},
		{"Marker before the CRC", at(484), hello.Sequence(2),
			"0017 4143 00000000 00000000 00000002 00000000 68656c6c6f 000000 0000001c 5a375eac"},
		{"Marker in front", at(512), hello.Sequence(2),
			"00000000 0017 4143 00000000 00000000 00000002 00000000 68656c6c6f 000000 d5299f20"},
		{"empty Send", Framer{CRC: true}, Send(1, 0, nil),
			"0012 4143 00000000 00000000 00000001 00000000 587be8c4"},
		{"empty Write", Framer{CRC: true}, Write(1, 0, nil),
			"000e c140 00000001 0000000000000000 ebd34c5f"},
		{"empty Read", Framer{CRC: true}, ReadRequest(1, Read{SrcSTag: 1}),
			"002e 4141 00000000 00000001 00000001 00000000 00000000 0000000000000000 00000000 00000001 " +
				"0000000000000000 ba10e3c9"},
		{"empty Read Response", Framer{CRC: true}, ReadResponse(0, 0, nil),
			"000e c142 00000000 0000000000000000 6975d6ca"},
		{"Write", Framer{CRC: true}, Write(0x100, 0x1000, []byte("ABCDEFGH")),
			"0016 c140 00000100 0000000000001000 4142434445464748 c1f081ec"},
		{"Terminate", Framer{CRC: true}, Terminate(2, 0, 2, Bare, Seg{}),
			"0016 4147 00000000 00000002 00000001 00000000 20020000 7fe42585"},
		{"Send with SE and Invalidate", Framer{CRC: true}, SendInv(2, 0x12a5c, []byte("done")).Opcode(
			OpSendSEInv),
			"0016 4146 00012a5c 00000000 00000002 00000000 646f6e65 d6fab6cd"},
		{"Read Request", Framer{CRC: true}, ReadRequest(1, Read{0x15be07, 0x560000001000, 8, 0x7c341,
			0x7f3a10002ff8}),
			"002e 4141 00000000 00000001 00000001 00000000 0015be07 0000560000001000 00000008 0007c341 " +
				"00007f3a10002ff8 6b2f603e"},
		{"Terminate for a Write", Framer{CRC: true}, Terminate(1, 1, 0, WithDDP,
			Write(0xbad0ff, 0x4000, make([]byte, 32))),
			"0026 4147 00000000 00000002 00000001 00000000 1100c000 002e c140 00bad0ff 0000000000004000 " +
				"fd780962"},
		{"Terminate for a Read", Framer{CRC: true}, Terminate(0, 1, 0, WithRead,
			ReadRequest(1, Read{0x15be07, 0x560000001000, 0x1000, 0xbad0ff, 0x10})),
			`0046 4147 00000000 00000002 00000001 00000000 0100e000 002e 4141 00000000 00000001 00000001 00000000
			0015be07 0000560000001000 00001000 00bad0ff 0000000000000010 1955fd69`},
		{"FetchAdd", Framer{CRC: true}, AtomicRequest(2, Atomic{FetchAdd, 0xa1, 0x7c341, 0x7f3a10003010,
			5, 0, 0, 1<<64 - 1}),
			`0046 414a 00000000 00000001 00000002 00000000 00000000 000000a1 0007c341 00007f3a10003010
			0000000000000005 0000000000000000 0000000000000000 ffffffffffffffff e1bc1dff`},
		{"Atomic Response", Framer{CRC: true}, AtomicResponse(1, 0xa1, 0x2a),
			"001e 414b 00000000 00000003 00000001 00000000 000000a1 000000000000002a 4a22de84"},
		{"Immediate Data", Framer{CRC: true}, Immediate(3, []byte{0, 0, 0, 0xc7, 0, 0, 0, 0}),
			"001a 4148 00000000 00000000 00000003 00000000 000000c7 00000000 71aea85f"},
	} {
		want := unhex(t, tt.octet)
		f := tt.f
		b := f.Append(nil, tt.seg.ULPDU(), Lie{})
		if !bytes.Equal(b, want) || f.Pos != tt.f.Pos+uint32(len(b)) {
			t.Errorf("%s:\ngot  %x\nwant %x", tt.name, b, want)
		}
		d := Deframer{CRC: true, Markers: tt.f.Markers, R: bytes.NewReader(want), pos: tt.f.Pos}
		u, err := d.Next()
		if err != nil || !bytes.Equal(u, tt.seg.ULPDU()) {
			t.Errorf("%s: read %x, %v", tt.name, u, err)
		}
		if _, err := d.Next(); err != io.EOF {
			t.Errorf("%s: behind it %v", tt.name, err)
		}
		for i := range want[:len(want)-1] {
			d := Deframer{CRC: true, Markers: tt.f.Markers, R: bytes.NewReader(want[:i+1]), pos: tt.f.Pos}
			if _, err := d.Next(); !errors.Is(err, errFraming) {
				t.Errorf("%s: of %d octets: %v", tt.name, i+1, err)
			}
			bad := bytes.Clone(want)
			bad[i] ^= 0x10
			d = Deframer{CRC: true, Markers: tt.f.Markers, R: bytes.NewReader(bad), pos: tt.f.Pos}
			if u, err := d.Next(); err == nil {
				t.Errorf("%s: with a wrong octet %d it is %x", tt.name, i, u)
			}
		}
		if s, ok := ParseSeg(tt.seg.ULPDU()); !ok || !bytes.Equal(s.ULPDU(), tt.seg.ULPDU()) {
			t.Errorf("%s: parsed %+v, %t", tt.name, s, ok)
		}
		if !strings.Contains(DumpSeg(tt.seg.ULPDU()), opNames[tt.seg.Op()]) {
			t.Errorf("%s: %s", tt.name, DumpSeg(tt.seg.ULPDU()))
		}
	}
}

func TestStarts(t *testing.T) {
	for want, s := range map[string]Start{
		"4d504120494420526571204672616d65 40 01 0005 68656c6c6f": Request(FlagC,
			[]byte("hello")...),
		"4d504120494420526571204672616d65 50 02 0008 8004 c004 70696e67": Request(FlagC,
			[]byte("ping")...).Enhanced(WordA|4, WordC|WordD|4),
		"4d504120494420526570204672616d65 70 02 0006 8004 8004 6e6f": Reply(FlagC|FlagR,
			[]byte("no")...).Enhanced(WordA|4, WordC|4),
	} {
		b := s.Append(nil)
		if !bytes.Equal(b, unhex(t, want)) {
			t.Errorf("%+v: %x, want %s", s, b, want)
		}
		got, _, err := readStart(bytes.NewReader(b))
		if err != nil || !bytes.Equal(got.Append(nil), b) {
			t.Errorf("%s: read %+v, %v", want, got, err)
		}
		for n := range b {
			if _, _, err := readStart(bytes.NewReader(b[:n])); err == nil {
				t.Errorf("%s: %d octets are enough", want, n)
			}
		}
	}
	for _, bad := range []Start{Request(FlagR), Request(0x08), Request(FlagS),
		Request(0, make([]byte, 513)...), {Key: "MPA ID Reg Frame", Claim: -1}} {
		if _, _, err := readStart(bytes.NewReader(bad.Append(nil))); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// What no sender may send is found.
func TestChecker(t *testing.T) {
	w := Write(1, 16, make([]byte, 20))
	for name, segs := range map[string][]Seg{
		"DV":                        {w.DDPVersion(2)},
		"reserved bits of DDP":      {w.DDPReserved(1)},
		"RV":                        {w.RDMAPVersion(0)},
		"reserved bits of RDMAP":    {w.RDMAPReserved(1)},
		"opcode":                    {w.Opcode(12)},
		"T":                         {Send(1, 0, nil).FlipT()},
		"QN":                        {Send(1, 0, nil).QueueNumber(1)},
		"MSN":                       {Send(1, 0, nil), Send(3, 0, nil)},
		"first MSN":                 {Send(0, 0, nil)},
		"MO":                        {Send(1, 0, make([]byte, 5)).More(), Send(1, 4, nil)},
		"reserved field":            {Send(1, 0, nil).Reserved(1)},
		"STag changes":              {w.More(), Write(2, 36, make([]byte, 3))},
		"TO jumps":                  {w.More(), Write(1, 37, make([]byte, 3))},
		"empty at the end":          {w.More(), Write(1, 36, nil)},
		"message in a message":      {w.More(), Send(1, 0, nil)},
		"tagged in a Send":          {Send(1, 0, nil).More(), w},
		"Read Request in pieces":    ReadRequest(1, Read{}).Split(20),
		"long Read Request":         {ReadRequest(1, Read{}).Longer(1)},
		"behind a Terminate":        {Terminate(0, 0, 0xff, Bare, Seg{}), w},
		"Terminate, reserved bits":  {untagged(OpTerminate, 2, 1, 0, []byte{0, 0, 1, 0})},
		"Terminate without a copy":  {untagged(OpTerminate, 2, 1, 0, []byte{0, 0, 0xc0, 0})},
		"Terminate with too much":   {Terminate(0, 0, 0xff, Bare, Seg{}).Longer(0)},
		"Terminate with MSN 2":      {Terminate(0, 0, 0xff, Bare, Seg{}).Sequence(2)},
		"shorter than its header":   {w.Cut(13)},
		"Immediate Data, 4 octets":  {Immediate(1, make([]byte, 4))},
		"Atomic Response, QN 1":     {AtomicResponse(1, 0, 0).QueueNumber(1)},
		"Atomic Request, 51 octets": {AtomicRequest(1, Atomic{}).Cut(18 + 51)},
	} {
		var c Checker
		for i, s := range segs {
			err := c.Check(s.ULPDU())
			if last := i == len(segs)-1; (err != nil) != last && !(name == "Read Request in pieces" &&
				err != nil) {
				t.Errorf("%s: segment %d: %v", name, i+1, err)
			} else if err != nil {
				break
			}
		}
	}
	var c Checker
	for i, s := range []Seg{
		w, Send(1, 0, nil), ReadRequest(1, Read{}), w.More(), Write(1, 36, make([]byte, 4)),
		Immediate(2, make([]byte, 8)),
		AtomicRequest(2, Atomic{}), AtomicResponse(1, 0, 0), SendInv(3, 77, make([]byte, 9)).More(),
		Terminate(0, 1, 0, WithRead, ReadRequest(1, Read{})),
	} {
		if err := c.Check(s.ULPDU()); err != nil {
			t.Errorf("segment %d: %v", i+1, err)
		}
	}
}

// Whatever comes, a Deframer ends; what it takes, a Framer makes again, octet for octet but for
// what nobody looks at; and the names of the fields cover the ULPDU without going beyond it.
func FuzzDeframer(f *testing.F) {
	for _, markers := range []bool{false, true} {
		fr := Framer{CRC: true, Markers: markers}
		b := fr.Append(nil, Write(1, 2, make([]byte, 600)).ULPDU(), Lie{})
		b = fr.Append(b, Terminate(1, 1, 0, WithDDP, Write(1, 2, nil)).ULPDU(), Lie{})
		f.Add(b, true, markers)
		f.Add(fr.Append(nil, Send(1, 0, nil).ULPDU(), Lie{}), false, markers)
	}
	f.Fuzz(func(t *testing.T, stream []byte, crc, markers bool) {
		d := Deframer{CRC: crc, Markers: markers, R: bytes.NewReader(stream)}
		fr := Framer{CRC: crc, Markers: markers}
		var c Checker
		for {
			u, err := d.Next()
			if err != nil {
				break
			}
			at := fr.Pos
			again := fr.Append(nil, u, Lie{})
			n := len(again)
			if !crc {
				n -= 4 // the field means nothing
			}
			if !bytes.Equal(again[:n], stream[at:][:n]) {
				t.Fatalf("made  %x\ntook %x", again, stream[at:fr.Pos])
			}
			_ = c.Check(u)
			covered := 0
			for _, x := range SegFields(u) {
				if x.Off > covered || x.Off+x.Len > len(u) && x.Off >= len(u) && len(u) > 18 {
					t.Fatalf("field %+v of %d octets, %d are covered", x, len(u), covered)
				}
				covered = max(covered, x.Off+x.Len)
			}
			if covered < len(u) {
				t.Fatalf("the fields of %x end at %d", u, covered)
			}
			_ = DumpSeg(u)
		}
		_, _, _ = readStart(bytes.NewReader(stream))
		_ = DumpStart(stream)
	})
}
