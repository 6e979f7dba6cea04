package roi_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roi"
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// The octets of each message, by the figures of the draft: ROI-009, ROI-010, ROI-011, ROI-012,
// ROI-018, ROI-030, and the rest as docs/decisions.md has it.
func TestGolden(t *testing.T) {
	for _, tt := range []struct {
		name  string
		m     roi.Message
		octet string
	}{
		{"Read Request", roi.Message{Kind: roi.ReadRequest, Credits: 7, STag: 0x11223344,
			Offset: 0x0102030405060708, Size: 0x8000, Sink: 0x55667788, SinkOffset: 0x1112131415161718},
			"0200 10070000 11223344 0102030405060708 00008000 55667788 1112131415161718"},
		{"Send", roi.Message{Kind: roi.Send, Number: 3, SendOffset: 1000},
			"0200 20000000 00000003 000003e8"},
		{"last of a Send", roi.Message{Kind: roi.Send, Final: true, Credits: 255, Number: 0xffffffff},
			"0200 28ff0000 ffffffff 00000000"},
		{"Credit Return", roi.Message{Kind: roi.CreditReturn, Credits: 9}, "0200 30090000"},
		{"Failure", roi.Message{Kind: roi.Failure, Cause: iwarp.TermNoBuffer}, "0200 f0120200"},
		{"Write", roi.Message{STag: 0x11223344, Offset: 0x55}, "8200 00000000 11223344 0000000000000055"},
		{"last of a Write", roi.Message{Final: true, STag: 1}, "8200 40000000 00000001 0000000000000000"},
		{"last of a notifying Write", roi.Message{Notify: true, Final: true, Notifying: true,
			Client: 0xfffff, STag: 1}, "c200 601ffffe 00000001 0000000000000000"},
		{"Read Response", roi.Message{Response: true, Client: 1, STag: 1},
			"8200 80000002 00000001 0000000000000000"},
		{"last of a Read Response, with credits", roi.Message{Notify: true, Response: true, Final: true,
			Credits: 255, STag: 1}, "c200 dfe00000 00000001 0000000000000000"},
	} {
		want := unhex(tt.octet)
		if got := tt.m.Append(nil); !bytes.Equal(got, want) {
			t.Errorf("%s: % x, want % x", tt.name, got, want)
		}
		m, data, err := roi.Parse(want)
		if err != nil || m != tt.m || len(data) != 0 {
			t.Errorf("%s: read as %+v, %d octets, %v", tt.name, m, len(data), err)
		}
		if n := tt.m.Kind.Len(); n != len(want) {
			t.Errorf("%s: a length of %d, want %d", tt.name, n, len(want))
		}
	}
}

// Reserved fields are not looked at: ROI-019.
func TestReserved(t *testing.T) {
	for _, tt := range []struct{ plain, odd string }{
		{"0200 10070000 11223344 0102030405060708 00008000 55667788 1112131415161718",
			"3eff 1f07ffff 11223344 0102030405060708 00008000 55667788 1112131415161718"},
		{"0200 28090000 00000003 000003e8", "3eff 2f09ffff 00000003 000003e8"},
		{"0200 30090000", "3eff 3f09ffff"},
		{"0200 f0120200", "3eff ff1202ff"},
		{"c200 601ffffe 00000001 0000000000000000", "feff 601fffff 00000001 0000000000000000"},
	} {
		want, _, err := roi.Parse(unhex(tt.plain))
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := roi.Parse(unhex(tt.odd)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", tt.odd, got, err, want)
		}
	}
}

// What is no message says which rule it breaks: ROI-039, and DDPP's version.
func TestMalformed(t *testing.T) {
	whole := map[roi.Kind]string{
		roi.ReadRequest:  "0200 10000000 11223344 0102030405060708 00008000 55667788 1112131415161718",
		roi.Send:         "0200 28000000 00000003 000003e8",
		roi.CreditReturn: "0200 30000000", roi.Failure: "0200 f0120200",
		roi.Data: "8200 00000000 11223344 0000000000000055",
	}
	bad := func(what string, seg []byte, want iwarp.TermCode) {
		t.Helper()
		var le *iwarp.LocalError
		if m, _, err := roi.Parse(seg); !errors.As(err, &le) || le.Cause != want {
			t.Errorf("%s, % x: %+v, %v; want %v", what, seg, m, err, want)
		}
	}
	for k, s := range whole {
		seg := unhex(s)
		for n := range len(seg) {
			bad("short", seg[:n], iwarp.TermRemoteOperation)
		}
		if k != roi.Send && k != roi.Data {
			bad("long", append(unhex(s), 0), iwarp.TermRemoteOperation)
		}
		for v := range byte(4) {
			seg[0] = seg[0]&^3 | v
			switch {
			case v == 2:
			case k == roi.Data:
				bad("version", seg, iwarp.TermTaggedVersion)
			default:
				bad("version", seg, iwarp.TermUntaggedVersion)
			}
		}
	}
	for tp := range byte(16) {
		if tp >= 1 && tp <= 3 || tp == 15 {
			continue
		}
		seg := unhex("0200 00000000")
		seg[2] = tp << 4
		bad("Tp", seg, iwarp.TermUnexpectedOpcode)
	}
}

// The set-up's octets, what is none, and which two agree: ROI-007, ROI-038.
func TestSetup(t *testing.T) {
	s := roi.Setup{Sends: true, SendCredits: 0x1234, Reads: true, ReadCredits: 16}
	b := s.Append(nil)
	if want := unhex("524f4930 0300 1234 0010 0000"); !bytes.Equal(b, want) || len(b) != roi.SetupLen {
		t.Errorf("% x, want % x", b, want)
	}
	got, rest, ok := roi.ParseSetup(append(b, "hello"...))
	if !ok || got != s || string(rest) != "hello" {
		t.Errorf("%+v, %q, %t", got, rest, ok)
	}
	for i := range b {
		odd := bytes.Clone(b)
		odd[i] ^= 0x80
		if _, rest, ok := roi.ParseSetup(odd); ok != (i >= 6 && i < 10) || !ok && len(rest) != len(odd) {
			t.Errorf("octet %d changed: %t", i, ok)
		}
		if _, _, ok := roi.ParseSetup(b[:i]); ok {
			t.Errorf("%d octets are taken for a Setup", i)
		}
	}
	for _, sends := range []bool{false, true} {
		for _, reads := range []bool{false, true} {
			x := roi.Setup{Sends: sends, Reads: reads}
			for _, y := range []roi.Setup{{}, {Sends: true}, {Reads: true}, {Sends: true, Reads: true}} {
				err := x.Agree(&y)
				if agree := y.Sends == sends && y.Reads == reads; (err == nil) != agree {
					t.Errorf("%+v and %+v: %v", x, y, err)
				}
			}
			if sends {
				x.SendCredits, x.ReadCredits = 3, 0
			} else {
				x.SendCredits = 1
			}
			if err := x.Agree(&roi.Setup{Sends: sends, Reads: reads}); (err == nil) != sends {
				t.Errorf("%+v: %v", x, err)
			}
		}
	}
	if err := (&roi.Setup{}).Agree(&roi.Setup{ReadCredits: 1}); !errors.Is(err, roi.ErrSetup) {
		t.Errorf("credits for Reads without their flow control: %v", err)
	}
}

// What a transport has to be: ROI-034, ROI-035, ROI-036, ROI-037.
func TestCarrier(t *testing.T) {
	none, sends, reads := roi.Setup{}, roi.Setup{Sends: true}, roi.Setup{Reads: true}
	for _, tt := range []struct {
		c    roi.Carrier
		s    roi.Setup
		want bool
	}{
		{roi.Carrier{}, both, true},
		{roi.Carrier{Unordered: true}, none, false},
		{roi.Carrier{Unreliable: true}, none, false},
		{roi.Carrier{Unreliable: true}, sends, false},
		{roi.Carrier{Unreliable: true}, reads, false},
		{roi.Carrier{Multisource: true}, none, true},
		{roi.Carrier{Multisource: true}, sends, false},
		{roi.Carrier{Multisource: true}, reads, false},
		{roi.Carrier{Multidestination: true}, none, true},
		{roi.Carrier{Multidestination: true}, sends, true},
		{roi.Carrier{Multidestination: true}, reads, false},
	} {
		_, err := roi.NewEndpoint(&end{t: t}, roi.Config{Own: tt.s, Peer: tt.s, Carrier: tt.c})
		if (err == nil) != tt.want || err != nil && !errors.Is(err, roi.ErrSetup) {
			t.Errorf("%+v, %+v: %v", tt.c, tt.s, err)
		}
	}
}
