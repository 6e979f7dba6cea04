package ping

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// The content of the first three Sends of five rounds of 64 octets between two rpings on Linux
// 6.1 siw: the client's source, the server's go ahead, the client's sink.
var siwMessages = []struct {
	hex  string
	info info
}{
	{"00005619065ce370" + "c944ac00" + "00000040", info{0x5619065ce370, 0xc944ac00, 64}},
	{"0000000000000000" + "00000000" + "00000000", info{}},
	{"00005619065ce550" + "3b961000" + "00000040", info{0x5619065ce550, 0x3b961000, 64}},
}

func TestInfoAgreesWithRping(t *testing.T) {
	for _, tt := range siwMessages {
		wire, _ := hex.DecodeString(tt.hex)
		got, err := parseInfo(wire)
		if err != nil || got != tt.info {
			t.Errorf("parseInfo(%s) = %v, %v; want %v", tt.hex, got, err, tt.info)
		}
		b := bytes.Repeat([]byte{0xff}, infoLen)
		tt.info.put(b)
		if !bytes.Equal(b, wire) {
			t.Errorf("%v put as %x, rping has %s", tt.info, b, tt.hex)
		}
		for n := range wire {
			if _, err := parseInfo(wire[:n]); err == nil {
				t.Errorf("parseInfo of %d octets succeeded", n)
			}
		}
		if _, err := parseInfo(append(wire, 0)); err == nil {
			t.Error("parseInfo of 17 octets succeeded")
		}
	}
}

// What the rpings of that capture printed.
var rpingLines = []string{
	"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr",
	"rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs",
	"rdma-ping-2: CDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrst",
	"rdma-ping-3: DEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstu",
	"rdma-ping-4: EFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuv",
}

func TestDataAgreesWithRping(t *testing.T) {
	for round, want := range rpingLines {
		b := make([]byte, 64)
		fillData(b, round)
		if got := string(printable(b)); got != want {
			t.Errorf("round %d: %q, rping has %q", round, got, want)
		}
		if b[63] != 0 {
			t.Errorf("round %d ends with %#x, not with NUL", round, b[63])
		}
	}
}

func TestDataRunsAround(t *testing.T) {
	b := make([]byte, 256)
	for _, round := range []int{0, numChars - 1, numChars, 1<<63 - 1} {
		fillData(b, round)
		text := string(b[:len(b)-1])
		head, run, ok := strings.Cut(text, ": ")
		if !ok || !strings.HasPrefix(head, heading) {
			t.Fatalf("round %d: %q has no heading", round, text)
		}
		if want := byte(firstChar + round%numChars); run[0] != want {
			t.Errorf("round %d begins with %q, want %q", round, run[0], want)
		}
		for i := 1; i < len(run); i++ {
			want := run[i-1] + 1
			if want > lastChar {
				want = firstChar
			}
			if run[i] != want {
				t.Fatalf("round %d: octet %d is %q behind %q", round, i, run[i], run[i-1])
			}
		}
	}
	small := make([]byte, MinSize)
	fillData(small, 1<<63-1)
	if got, want := string(small), "rdma-ping-9223372036854775807: \x00"; got != want {
		t.Errorf("the smallest buffer holds %q, want %q", got, want)
	}
}

func TestPrintableStopsControlSequences(t *testing.T) {
	for in, want := range map[string]string{
		"a\x1b[2Jb\x00c": "a.[2Jb",
		"\x00x":          "",
		"no end\xff\n":   "no end..",
	} {
		if got := string(printable([]byte(in))); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzInfo(f *testing.F) {
	for _, m := range siwMessages {
		b, _ := hex.DecodeString(m.hex)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := parseInfo(b)
		if (err == nil) != (len(b) == infoLen) {
			t.Fatalf("%d octets: %v", len(b), err)
		}
		if err == nil {
			var out [infoLen]byte
			i.put(out[:])
			if !bytes.Equal(out[:], b) {
				t.Fatalf("%x came back as %x", b, out)
			}
		}
	})
}
