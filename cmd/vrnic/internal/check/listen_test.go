package check

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
)

// tell has a Listener take datagrams, and returns what it says and how many findings it counts.
func tell(t *testing.T, opts Options, datagrams ...string) (string, int) {
	t.Helper()
	return tellAs(t, opts, func(secret string) (all []string) {
		for _, d := range datagrams {
			all = append(all, secret+"\n"+d)
		}
		return all
	})
}

// tellAs is tell for datagrams that are made with the secret of those who may tell.
func tellAs(t *testing.T, opts Options, datagrams func(secret string) []string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	opts.Out = &out
	l, err := Listen(opts)
	if err != nil {
		t.Fatal(err)
	}
	name, secret, _ := strings.Cut(l.Address, " ")
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: "@" + name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, d := range datagrams(secret) {
		if _, err := io.WriteString(conn, d); err != nil {
			t.Fatal(err)
		}
	}
	n, err := l.Close()
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), n
}

const leak = "what leak\npid 7\nnumber count 2\nnumber octets 4096\nnumber status 0\n" +
	"object object mr 4096 77 2048\nframe object 4660 /no/such/program\n"

// A finding is said in words and in JSON, once each, with its places as far as they are known.
func TestListener(t *testing.T) {
	var lines bytes.Buffer
	out, n := tell(t, Options{JSON: &lines}, leak, leak,
		strings.Replace(leak, "4660", "4661", 1))
	if n != 2 || strings.Count(out, "vrnic check: ") != 2 {
		t.Errorf("%d findings, and it says %q", n, out)
	}
	for _, want := range []string{"2 memory regions registered, 4096 octets in all", "ibv_dereg_mr",
		"made by program+0x1234"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("it does not say %q: %q", want, out)
		}
	}
	var f Finding
	first, _, _ := strings.Cut(lines.String(), "\n")
	if err := json.Unmarshal([]byte(first), &f); err != nil || f.What != "leak" || f.PID != 7 ||
		f.Level != Wrong || f.Numbers["count"] != 2 || len(f.Sites) != 1 {
		t.Errorf("JSON: %+v, %v", f, err)
	}
}

// What may be meant is told to those who ask.
func TestNotes(t *testing.T) {
	failed := strings.Replace(leak, "status 0", "status 1", 1)
	private := "what long-private-data\ntext call rdma_connect\nnumber length 57\nnumber room 56\n"
	if out, n := tell(t, Options{}, failed, private); n != 0 || out != "" {
		t.Errorf("%d findings: %q", n, out)
	}
	if out, n := tell(t, Options{Pedantic: true}, failed, private); n != 2 {
		t.Errorf("%d findings: %q", n, out)
	}
}

// A program that writes all over what is told ends nothing; a terminal gets what it can show.
func TestHostile(t *testing.T) {
	out, n := tell(t, Options{}, "", "what", "what no-such\n", "what leak\nnumber count many\n",
		"frame here\n", "object x mr 1\n", strings.Repeat("x", maxDatagram+1),
		"what busy\ntext call \x1b[2J\nnumber hanging 1\nframe here 1 /a\x07b\nframe \x1b[2J 1 /a\n",
		"what leak\nnumber count 1\nobject object \x1b 1 1 1\n")
	if n != 2 || strings.ContainsAny(out, "\x1b\x07") {
		t.Errorf("%d findings: %q", n, out)
	}
	// Each fact has words whatever is missing.
	for what := range words {
		if out, n := tell(t, Options{Pedantic: true}, "what "+what+"\n"); n != 1 || strings.Contains(out,
			"%!") {
			t.Errorf("%s: %d findings: %q", what, n, out)
		}
	}
}

// Each user of the machine can read the socket's name: who knows that alone tells nothing.
func TestStrangers(t *testing.T) {
	if out, n := tellAs(t, Options{}, func(secret string) []string {
		return []string{leak, "\n" + leak, secret[1:] + "\n" + leak}
	}); n != 0 || out != "" {
		t.Errorf("%d findings: %q", n, out)
	}
}

// The library asks what was counted of a queue pair, and gets numbers, or that nobody knows.
func TestCounts(t *testing.T) {
	l, err := Listen(Options{Out: io.Discard, Counts: func(device string, qpn uint32) (Counts, bool) {
		c := Counts{Stalls: 3, InWrites: 4, InReads: 5, InAtomics: 6}
		if qpn == 7 {
			c.Refused = &Refused{"RDMA Read", 8, 9, 10, "outside"}
		}
		return c, device == "vrnic0" && qpn != 6
	}})
	if err != nil {
		t.Fatal(err)
	}
	name, secret, _ := strings.Cut(l.Address, " ")
	to := &net.UnixAddr{Name: "@" + name, Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@" + name + "-asks",
		Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := make([]byte, 64)
	for ask, want := range map[string]string{"5 vrnic0": "3 4 5 6",
		"7 vrnic0": "3 4 5 6 8 9 10 outside RDMA Read",
		"6 vrnic0": "unknown",
		"x":        "unknown"} {
		if _, err := conn.WriteToUnix([]byte(secret+"\nask-counts "+ask+"\n"), to); err != nil {
			t.Fatal(err)
		}
		if k, err := conn.Read(b); err != nil || string(b[:k]) != want {
			t.Errorf("the answer to %q is %q, %v, want %q", ask, b[:k], err, want)
		}
	}
	if n, err := l.Close(); n != 0 || err != nil {
		t.Errorf("%d findings, %v", n, err)
	}
}
