package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestWriteRows(t *testing.T) {
	rows := []json.RawMessage{
		json.RawMessage(
			`{"dev":"vrnic0","qpn":7,"state":"RTS","comm":"rping","addrs":["10.0.0.1","fd00::1"],"mine":true}`),
		json.RawMessage(
			`{"dev":"v1","qpn":12345,"state":"CLOSING","comm":"evil\u001b[2J\nx y","addrs":[],"mine":false}`),
		json.RawMessage(`{"dev":"v1","pid":null,"note":""}`),
	}
	var b strings.Builder
	if err := writeRows(&b, allOf(rows)); err != nil {
		t.Fatal(err)
	}
	want := `dev vrnic0 qpn 7     state RTS     comm rping              addrs 10.0.0.1,fd00::1 mine yes
dev v1     qpn 12345 state CLOSING comm "evil\x1b[2J\nx y" addrs -                mine no
dev v1 pid - note -
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}

	b.Reset()
	if err := writeJSON(&b, allOf(rows)); err != nil {
		t.Fatal(err)
	}
	var again []json.RawMessage
	if err := json.Unmarshal([]byte(b.String()), &again); err != nil || len(again) != len(rows) {
		t.Errorf("the JSON form is read back as %d rows, %v:\n%s", len(again), err, b.String())
	}
	b.Reset()
	if err := writeJSON(&b, allOf(nil)); err != nil || b.String() != "[]\n" {
		t.Errorf("no rows print as %q, %v", b.String(), err)
	}
	for _, bad := range []string{"", "7", "[]", `{"a":`, `{"a":1`} {
		if _, err := parseRow(json.RawMessage(bad)); err == nil {
			t.Errorf("%q was taken as a row", bad)
		}
	}
}

// Whatever a program calls itself, a row is one line, and awk finds each value behind its key.
func FuzzRow(f *testing.F) {
	f.Add("rping", "x")
	f.Add("a b", "\x1b]0;\a\n")
	f.Fuzz(func(t *testing.T, comm, key string) {
		key = string([]rune(key)) // what is no UTF-8 JSON replaces, octet by octet
		raw, err := json.Marshal(map[string]string{key: comm})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := writeRows(&b, allOf([]json.RawMessage{raw})); err != nil {
			t.Fatal(err)
		}
		s := b.String()
		if strings.Count(s, "\n") != 1 || !strings.HasSuffix(s, "\n") {
			t.Fatalf("%q is not one line", s)
		}
		if strings.ContainsFunc(s[:len(s)-1], func(r rune) bool {
			return r < ' ' || 0x7f <= r && r < 0xa0
		}) {
			t.Fatalf("%q holds control characters", s)
		}
		if !slices.Contains(strings.SplitN(s[:len(s)-1], " ", 2), plain(key)) && !strings.ContainsRune(
			key, ' ') {
			t.Fatalf("%q does not start with its key %q", s, key)
		}
	})
}
