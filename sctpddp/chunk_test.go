package sctpddp_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/iwarp"
	. "github.com/vrnic/vrnic/sctpddp"
)

// The figures of RFC 5043, section 5.2.3, and of RFC 6581, section 9, in octets.
//
// SDDP-014, SDDP-019; ESDDP-001, ESDDP-002.
func TestControlBytes(t *testing.T) {
	for _, tt := range []struct {
		c    Control
		wire string
	}{
		{Control{SSN: 0, Function: FuncInitiate, PrivateData: []byte("hi")}, "0000 0001 6869"},
		{Control{SSN: 0, Function: FuncInitiate}, "0000 0001"},
		{Control{SSN: 0, Function: FuncAccept, PrivateData: []byte{0xff}}, "0000 0002 ff"},
		{Control{SSN: 0, Function: FuncReject}, "0000 0003"},
		{Control{SSN: 0xfffe, Function: FuncTerminate}, "fffe 0004"},
		{Control{Function: FuncEnhancedInitiate, HasData: true, Data: iwarp.EnhancedData{PeerToPeer: true,
			RTR: iwarp.RTRSend, IRD: 0, ORD: 1}, PrivateData: []byte("x")},
			"0000 0005 c000 0001 78"},
		{Control{Function: FuncEnhancedInitiate, HasData: true, Data: iwarp.EnhancedData{PeerToPeer: true,
			RTR: iwarp.RTRWrite, IRD: 0x1234, ORD: 0x3ffe}},
			"0000 0005 9234 bffe"},
		{Control{Function: FuncEnhancedAccept, HasData: true, Data: iwarp.EnhancedData{PeerToPeer: true,
			RTR: iwarp.RTRRead, IRD: 0x3fff, ORD: 0x3fff}},
			"0000 0006 bfff 7fff"},
		{Control{Function: FuncEnhancedAccept, HasData: true, Data: iwarp.EnhancedData{IRD: 1, ORD: 0}},
			"0000 0006 0001 0000"},
		{Control{SSN: 1, Function: FuncEnhancedReject, HasData: true, Data: iwarp.EnhancedData{
			PeerToPeer: true, RTR: iwarp.RTRSend | iwarp.RTRWrite | iwarp.RTRRead, IRD: 2, ORD: 3},
			PrivateData: []byte("no")},
			"0001 0007 c002 c003 6e6f"},
	} {
		want := unhex(tt.wire)
		got, err := tt.c.Append(nil)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: %x, want %x: %v", tt.c, got, want, err)
		}
		back, err := ParseControl(want)
		if err != nil || fmt.Sprint(back) != fmt.Sprint(tt.c) && len(tt.c.PrivateData) > 0 {
			t.Errorf("% x: %v, %v", want, back, err)
		}
		if d := Describe(PPIDControl, want); !strings.Contains(d, tt.c.Function.String()) {
			t.Errorf("described as %q", d)
		}
		for n := range want {
			c, err := ParseControl(want[:n])
			if n < 4 || c.Function.Enhanced() && n < 8 && c.Function != FuncEnhancedReject {
				if err == nil {
					t.Errorf("% x cut to %d octets is taken as %v", want, n, c)
				}
			}
		}
	}
}

// SDDP-020, 022, 023, 024; ESDDP-004, 005: what no control message may be.
func TestControlLimits(t *testing.T) {
	pd := func(n int) []byte { return bytes.Repeat([]byte{7}, n) }
	for _, tt := range []struct {
		f    Function
		n    int
		good bool
	}{
		{FuncInitiate, 512, true}, {FuncInitiate, 513, false}, {FuncAccept, 512, true},
		{FuncReject, 513, false},
		{FuncEnhancedInitiate, 508, true}, {FuncEnhancedInitiate, 509, false},
		{FuncEnhancedReject, 509, false},
		{FuncTerminate, 0, true}, {FuncTerminate, 1, false},
	} {
		c := Control{Function: tt.f, HasData: tt.f.Enhanced(), PrivateData: pd(tt.n)}
		b, err := c.Append(nil)
		if (err == nil) != tt.good || err != nil && !errors.Is(err, iwarp.ErrPrivateData) {
			t.Errorf("%v with %d octets: %v", tt.f, tt.n, err)
		}
		if err == nil && len(b) > 4+MaxPrivateData {
			t.Errorf("%v: %d octets", tt.f, len(b))
		}
		if err != nil && len(b) != 0 {
			t.Errorf("%v: an error and %d octets", tt.f, len(b))
		}
	}
	for msg, want := range map[string]string{
		"0000 0000": "unknown", "0000 0008": "unknown", "0000 ffff": "unknown", "0000": "short",
		"":                                       "short",
		"0000 0001" + fmt.Sprintf("%x", pd(513)): "512", "0000 0005" + fmt.Sprintf("%x", pd(513)): "512",
		"0000 0005 0102": "less than 4", "0000 0006": "less than 4",
	} {
		if _, err := ParseControl(unhex(msg)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: %v, want %q", msg, err, want)
		}
	}
	// What is odd and harmless: D6, D9.
	if c, err := ParseControl(unhex("0001 0007 010203")); err != nil || c.HasData ||
		len(c.PrivateData) != 3 {
		t.Errorf("short Enhanced Reject: %v, %v", c, err)
	}
	if c, err := ParseControl(unhex("0001 0004 010203")); err != nil || len(c.PrivateData) != 3 {
		t.Errorf("Terminate with private data: %v, %v", c, err)
	}
}

// SDDP-014, 017, 018: the figure of RFC 5043, section 5.2.2, around the two kinds of DDP segments.
func TestSegmentBytes(t *testing.T) {
	tagged := "0102 c140 00000007 0000000000000010 aabb"
	untagged := "fffe 4143 00000000 00000000 00000001 00000000"
	for wire, want := range map[string]string{
		tagged:   "ssn=258 ",
		untagged: "ssn=65534 ",
	} {
		msg := unhex(wire)
		ssn, seg, err := ParseSegment(msg)
		if err != nil || len(seg) != len(msg)-2 || fmt.Sprintf("ssn=%d ", ssn) != want {
			t.Errorf("%s: %d, %d octets, %v", wire, ssn, len(seg), err)
		}
		if d := Describe(PPIDSegment, msg); !strings.HasPrefix(d, want) {
			t.Errorf("described as %q", d)
		}
		need := 2 + iwarp.TaggedHeaderLen
		if wire == untagged {
			need = 2 + iwarp.UntaggedHeaderLen
		}
		for n := range need {
			if _, _, err := ParseSegment(msg[:n]); err == nil {
				t.Errorf("%s: taken with %d octets", wire, n)
			}
		}
		if _, _, err := ParseSegment(msg[:need]); err != nil {
			t.Errorf("%s: %v with %d octets", wire, err, need)
		}
	}
	if d := Describe(5, []byte{1}); d != "ppid 5, 1 octets" {
		t.Error(d)
	}
}

// Decode, encode, decode agrees.
func FuzzControl(f *testing.F) {
	for _, s := range []string{"0000 0001 6869", "0000 0005 c000 0001 78", "0001 0007 c002 c003 6e6f",
		"0001 0007 c002", "fffe 0004"} {
		f.Add(unhex(s))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		c, err := ParseControl(msg)
		if err != nil {
			return
		}
		if c.Function == FuncTerminate {
			c.PrivateData = nil // never sent
		}
		b, err := c.Append(nil)
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		again, err := ParseControl(b)
		if err != nil || fmt.Sprint(again.SSN, again.Function, again.HasData, again.Data) != fmt.Sprint(
			c.SSN, c.Function, c.HasData, c.Data) || !bytes.Equal(again.PrivateData, c.PrivateData) {
			t.Fatalf("%v became %v: %v", c, again, err)
		}
		if c.Function != FuncTerminate && !bytes.Equal(b, msg) {
			t.Fatalf("% x became % x", msg, b)
		}
	})
}

// A segment is what follows the number, whole, or an error.
func FuzzSegment(f *testing.F) {
	f.Add(unhex("0102 c140 00000007 0000000000000010 aabb"))
	f.Add(unhex("fffe 4143 00000000 00000000 00000001 00000000"))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, msg []byte) {
		ssn, seg, err := ParseSegment(msg)
		if err != nil {
			if len(msg) >= 20 {
				t.Fatalf("%d octets: %v", len(msg), err)
			}
			return
		}
		if got := append([]byte{byte(ssn >> 8), byte(ssn)}, seg...); !bytes.Equal(got, msg) {
			t.Fatalf("% x became % x", msg, got)
		}
		Describe(PPIDSegment, msg)
		Describe(PPIDControl, msg)
	})
}
