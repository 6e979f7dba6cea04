package iwarp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	. "github.com/vrnic/vrnic/iwarp"
)

// drain takes all octets that s wants sent.
func drain(s interface {
	Source
	Commit(int)
}) []byte {
	b, _ := io.ReadAll(s)
	s.Commit(len(b))
	return b
}

func startInitiator(t *testing.T, cfg StartConfig, pd string) (*Initiator, []byte) {
	t.Helper()
	s, err := NewInitiator(cfg, []byte(pd))
	if err != nil {
		t.Fatal(err)
	}
	return s, drain(s)
}

func config(edit func(c *StartConfig)) StartConfig {
	c := DefaultStartConfig()
	if edit != nil {
		edit(&c)
	}
	return c
}

// outcome shows what an Initiator came to, and what it sends.
func outcome(s *Initiator) string {
	p, err := s.Result()
	out := p.String()
	if err != nil {
		var le *LocalError
		out = err.Error()
		if errors.As(err, &le) {
			out = fmt.Sprintf("%d/%d/%d", le.Cause.Layer, le.Cause.Type, le.Cause.Code)
		}
	}
	if b := drain(s); len(b) > 0 {
		out += fmt.Sprintf(" sends %x", b)
	}
	return out
}

// MPA-030, 057, 062, 065, 067, 070, 075; EMPA-001, 002, 003, 015, 029, 030, 031: Requests as sent.
func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  StartConfig
		pd   string
		want string
	}{
		{"default", DefaultStartConfig(), "ping", reqKey + "50 02 0008 c020 c020 70696e67"},
		{"zero value", StartConfig{}, "", reqKey + "50 02 0004 c000 c000"},
		{"revision 1", config(func(c *StartConfig) { c.Revision = 1 }), "hello", reqKey +
			"40 01 0005 68656c6c6f"},
		{"markers", config(func(c *StartConfig) { c.Markers = true }), "", reqKey +
			"d0 02 0004 c020 c020"},
		{"no CRC", config(func(c *StartConfig) { c.CRC = CRCOff }), "", reqKey + "10 02 0004 c020 c020"},
		{"Write and Read offered", config(func(c *StartConfig) {
			c.RTR, c.IRD, c.ORD = RTRWrite|RTRRead, 4, 4
		}), "ping", reqKey + "50 02 0008 8004 c004 70696e67"},
		{"client-server", config(func(c *StartConfig) { c.ClientServer, c.IRD, c.ORD = true, 1, 2 }), "",
			reqKey + "50 02 0004 0001 0002"},
		{"nothing wanted", config(func(c *StartConfig) { c.ClientServer, c.IRD, c.ORD = true, 0, 0 }), "",
			reqKey + "40 02 0000"},
	} {
		_, b := startInitiator(t, tt.cfg, tt.pd)
		if !bytes.Equal(b, unhex(tt.want)) {
			t.Errorf("%s: %x", tt.name, b)
		}
	}
	for name, cfg := range map[string]StartConfig{
		"revision 3": config(func(c *StartConfig) { c.Revision = 3 }),
		"IRD 129":    config(func(c *StartConfig) { c.IRD = 129 }),
		"ORD 129":    config(func(c *StartConfig) { c.ORD = 129 }),
		"CRC mode":   config(func(c *StartConfig) { c.CRC = 9 }),
		"RTR kinds":  config(func(c *StartConfig) { c.RTR = 8 }),
	} {
		if _, err := NewInitiator(cfg, nil); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := NewResponder(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// MPA-071, EMPA-008
	if _, err := NewInitiator(DefaultStartConfig(), make([]byte, 509)); !errors.Is(err,
		ErrPrivateData) {
		t.Errorf("509 octets: %v", err)
	}
	if _, err := NewInitiator(DefaultStartConfig(), make([]byte, 508)); err != nil {
		t.Errorf("508 octets: %v", err)
	}
}

const (
	term6       = "001641470000000000000002000000010000000020060000654" + "0fb1b"
	markedTerm7 = "000000000016414700000000000000020000000100000000200700009cf988cd"
	term7       = "0016414700000000000000020000000100000000200700001bd2babe"
)

// The Initiator's side of RFC 5044, section 7.1, and RFC 6581, section 9. Each row is a Reply to
// the default Request (IRD and ORD 32) or to that of cfg.
func TestInitiator(t *testing.T) {
	rev1 := func(c *StartConfig) { c.Revision = 1 }
	noCRC := func(c *StartConfig) { c.CRC = CRCOff }
	required := func(c *StartConfig) { c.CRC = CRCRequired }
	required1 := func(c *StartConfig) { c.CRC, c.Revision = CRCRequired, 1 }
	cs := func(c *StartConfig) { c.ClientServer = true }
	plain := func(c *StartConfig) { c.ClientServer, c.IRD, c.ORD = true, 0, 0 }
	ord5 := func(c *StartConfig) { c.ORD, c.IRD = 5, 3 }
	readOnly := func(c *StartConfig) { c.RTR = RTRRead }
	markers := func(c *StartConfig) { c.Markers = true }
	limit64 := func(c *StartConfig) { c.MaxIRD = 64 }
	for _, tt := range []struct {
		name  string
		edit  func(*StartConfig)
		reply string
		want  string
	}{
		{"accepted", nil, repKey + "50 02 0008 8020 8020 706f6e67",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=write pd=4"},
		{"CRC of the request alone", nil, repKey + "10 02 0004 8020 8020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=write pd=0"},
		{"CRC of the Reply alone", noCRC, repKey + "50 02 0004 8020 8020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=write pd=0"},
		{"no CRC", noCRC, repKey + "10 02 0004 8020 8020",
			"initiator rev=2 enhanced=true crc=off ird=32 ord=32 p2p=true rtr=write pd=0"},
		// EMPA-048
		{"CRC required", required, repKey + "10 02 0004 8020 8020",
			"2/0/5 sends 0016414700000000000000020000000100000000200500001680d5f1"},
		{"CRC required, revision 1", required1, repKey + "00 01 0000", "2/0/5"},
		{"CRC required and confirmed", required, repKey + "50 02 0004 8020 8020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=write pd=0"},
		{"reserved bits", nil, repKey + "5f 02 0004 8020 8020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=write pd=0"},
		// MPA-060, 061, 068, 072, 081; EMPA-010, 016
		{"Request", nil, reqKey + "50 02 0004 8020 8020", "2/0/4"},
		{"wrong Key", nil, "00" + repKey[2:] + "50 02 0004 8020 8020", "2/0/4"},
		{"text", nil, "485454502f312e3120", "2/0/4"},
		{"revision 0", nil, repKey + "50 00 0004 8020 8020", "2/0/4"},
		{"revision 1, S=1", nil, repKey + "50 01 0004 8020 8020", "2/0/4"},
		{"revision 3", nil, repKey + "50 03 0004 8020 8020", "2/0/4"},
		{"revision 255", nil, repKey + "50 ff 0004 8020 8020", "2/0/4"},
		{"plain Reply to an enhanced Request", nil, repKey + "40 02 0000", "2/0/4"},
		{"enhanced Reply to a plain Request", rev1, repKey + "50 02 0004 8020 8020", "2/0/4"},
		{"enhanced Reply to a plain Request, revision 2", plain, repKey + "50 02 0004 0000 0000",
			"2/0/4"},
		{"PD_Length 513", nil, repKey + "50 02 0201", "2/0/4"},
		{"S=1 without data", nil, repKey + "50 02 0000", "2/0/4"},
		// MPA-019, 020, 022: M is each side's own; the Terminate is led by its Marker.
		{"markers for the peer", nil, repKey + "d0 02 0004 8020 8020",
			"initiator rev=2 enhanced=true crc=on markers=out ird=32 ord=32 p2p=true rtr=write pd=0"},
		{"markers for us", markers, repKey + "50 02 0004 8020 8020",
			"initiator rev=2 enhanced=true crc=on markers=in ird=32 ord=32 p2p=true rtr=write pd=0"},
		{"markers for both", markers, repKey + "d0 02 0004 8020 8020",
			"initiator rev=2 enhanced=true crc=on markers=both ird=32 ord=32 p2p=true rtr=write pd=0"},
		{"markers, revision 1", rev1, repKey + "c0 01 0000",
			"initiator rev=1 enhanced=false crc=on markers=out ird=32 ord=32 p2p=false rtr=none pd=0"},
		{"no common kind, markers", readOnly, repKey + "d0 02 0004 c020 8020", "2/0/7 sends " +
			markedTerm7},
		// revision 1
		{"revision 1", rev1, repKey + "40 01 0000",
			"initiator rev=1 enhanced=false crc=on ird=32 ord=32 p2p=false rtr=none pd=0"},
		{"revision 1, S bit", rev1, repKey + "50 01 0004 01020304",
			"initiator rev=1 enhanced=false crc=on ird=32 ord=32 p2p=false rtr=none pd=4"},
		{"revision 2 to a Request of 1", rev1, repKey + "40 02 0000",
			"initiator rev=1 enhanced=false crc=on ird=32 ord=32 p2p=false rtr=none pd=0"},
		{"plain, revision 2", plain, repKey + "40 02 0000",
			"initiator rev=2 enhanced=false crc=on ird=0 ord=0 p2p=false rtr=none pd=0"},
		// EMPA-017, 023, 024, 027, 028, 049
		{"less IRD", ord5, repKey + "50 02 0004 8002 8003",
			"initiator rev=2 enhanced=true crc=on ird=3 ord=2 p2p=true rtr=write pd=0"},
		{"more of both", ord5, repKey + "50 02 0004 8040 8007",
			"initiator rev=2 enhanced=true crc=on ird=8 ord=5 p2p=true rtr=write pd=0"},
		{"ORD to the limit", nil, repKey + "50 02 0004 8020 8080",
			"initiator rev=2 enhanced=true crc=on ird=128 ord=32 p2p=true rtr=write pd=0"},
		{"ORD beyond", nil, repKey + "50 02 0004 8020 8081", "2/0/6 sends " + term6},
		{"ORD 16000 against 64", limit64, repKey + "50 02 0004 8020 be80", "2/0/6 sends " + term6},
		{"IRD not negotiated", ord5, repKey + "50 02 0004 bfff 8003",
			"initiator rev=2 enhanced=true crc=on ird=3 ord=5 p2p=true rtr=write pd=0"},
		{"ORD not negotiated", ord5, repKey + "50 02 0004 8005 bfff",
			"initiator rev=2 enhanced=true crc=on ird=3 ord=5 p2p=true rtr=write pd=0"},
		// EMPA-032, 037, 039, 040, 050
		{"all kinds", nil, repKey + "50 02 0004 c020 c020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=write pd=0"},
		{"Read", nil, repKey + "50 02 0004 8020 4020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=read pd=0"},
		{"Read or Send", nil, repKey + "50 02 0004 c020 4020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=read pd=0"},
		{"Read with IRD 0, or Send", nil, repKey + "50 02 0004 c000 4020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=0 p2p=true rtr=send pd=0"},
		{"Send", nil, repKey + "50 02 0004 c020 0020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=send pd=0"},
		{"no kind", nil, repKey + "50 02 0004 8020 0020", "2/0/7 sends " + term7},
		{"Read with IRD 0", nil, repKey + "50 02 0004 8000 4020", "2/0/7 sends " + term7},
		{"no common kind", readOnly, repKey + "50 02 0004 c020 8020", "2/0/7 sends " + term7},
		{"A=0 to A=1", nil, repKey + "50 02 0004 0020 8020", "2/0/7 sends " + term7},
		{"A=1 to A=0", cs, repKey + "50 02 0004 8020 8020", "2/0/7 sends " + term7},
		{"A=0 with flags", cs, repKey + "50 02 0004 4020 c020",
			"initiator rev=2 enhanced=true crc=on ird=32 ord=32 p2p=false rtr=none pd=0"},
		// MPA-064, 082
		{"rejected", nil, repKey + "70 02 0006 8004 8004 6e6f",
			"iwarp: connection rejected by the peer (2 octets of private data)"},
		{"rejected, plain", nil, repKey + "60 01 0002 6e6f",
			"iwarp: connection rejected by the peer (2 octets of private data)"},
		{"rejected, siw's short form", nil, repKey + "30 02 0000",
			"iwarp: connection rejected by the peer (0 octets of private data)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, cut := range []int{1000, 1, 7, 19, 20, 21, 23} {
				s, _ := startInitiator(t, config(tt.edit), "x")
				if _, err := s.Result(); !errors.Is(err, ErrState) {
					t.Errorf("before the Reply: %v", err)
				}
				wire := unhex(tt.reply)
				for b := wire; len(b) > 0; b = b[min(cut, len(b)):] {
					if s.Done() {
						break
					}
					s.Write(b[:min(cut, len(b))])
				}
				if got := outcome(s); got != tt.want {
					t.Errorf("cut %d: %s\nwant %s", cut, got, tt.want)
				}
			}
		})
	}
}

// MPA-050, M6: octets behind the Reply are left to the Endpoint.
func TestOctetsBehindReply(t *testing.T) {
	wire := unhex(repKey + "50 02 0006 8020 8020 6e6f")
	for cut := range len(wire) + 1 {
		s, _ := startInitiator(t, DefaultStartConfig(), "")
		stream := append(wire[:len(wire):len(wire)], "more"...)
		n1, _ := s.Write(stream[:cut])
		n2, err := s.Write(stream[cut:])
		if n1+n2 != len(wire) || !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("cut %d: took %d+%d, %v", cut, n1, n2, err)
		}
		if n, err := s.Write([]byte("x")); n != 0 || err == nil {
			t.Errorf("cut %d: took %d more, %v", cut, n, err)
		}
		if p, err := s.Result(); err != nil || string(p.PrivateData) != "no" {
			t.Errorf("cut %d: %v, %v", cut, p, err)
		}
	}
}

func TestRejectedError(t *testing.T) {
	s, _ := startInitiator(t, DefaultStartConfig(), "")
	s.Write(unhex(repKey + "70 02 0006 8003 8004 6e6f"))
	_, err := s.Result()
	r, ok := errors.AsType[*RejectedError](fmt.Errorf("connect: %w", err))
	if !ok || string(r.PrivateData) != "no" || !r.Enhanced || r.IRD != 3 || r.ORD != 4 ||
		r.Revision != 2 {
		t.Errorf("%+v", r) // EMPA-017
	}
	if s.Len() != 0 {
		t.Error("a rejected Initiator sends something")
	}
}

// The Responder's side of RFC 5044, section 7.1, and RFC 6581, section 9.
func TestResponder(t *testing.T) {
	noCRC := func(c *StartConfig) { c.CRC = CRCOff }
	rev1 := func(c *StartConfig) { c.Revision = 1 }
	writeOnly := func(c *StartConfig) { c.RTR = RTRWrite }
	readOnly := func(c *StartConfig) { c.RTR = RTRRead }
	markers := func(c *StartConfig) { c.Markers = true }
	max8 := func(c *StartConfig) { c.IRD, c.MaxIRD = 4, 8 }
	for _, tt := range []struct {
		name     string
		edit     func(*StartConfig)
		ird, ord uint16
		request  string
		reply    string // to Accept
		want     string
	}{
		{"default", nil, 32, 32, reqKey + "50 02 0008 c020 c020 70696e67", repKey +
			"50 02 0006 c020 c020 6f6b",
			"responder rev=2 enhanced=true crc=on ird=32 ord=32 p2p=true rtr=write+read+send pd=4"},
		{"siw", nil, 32, 32, reqKey + "10 02 0004 0001 0001", repKey + "50 02 0006 0020 0001 6f6b",
			"responder rev=2 enhanced=true crc=on ird=32 ord=1 p2p=false rtr=none pd=0"},
		{"siw, no CRC", noCRC, 32, 32, reqKey + "10 02 0004 0001 0001", repKey +
			"10 02 0006 0020 0001 6f6b",
			"responder rev=2 enhanced=true crc=off ird=32 ord=1 p2p=false rtr=none pd=0"},
		// S7
		{"CRC of the Request", noCRC, 32, 32, reqKey + "50 02 0004 0001 0001", repKey +
			"50 02 0006 0020 0001 6f6b",
			"responder rev=2 enhanced=true crc=on ird=32 ord=1 p2p=false rtr=none pd=0"},
		// MPA-063, 065
		{"R and reserved bits", nil, 32, 32, reqKey + "7f 02 0004 0001 0001", repKey +
			"50 02 0006 0020 0001 6f6b",
			"responder rev=2 enhanced=true crc=on ird=32 ord=1 p2p=false rtr=none pd=0"},
		// MPA-020
		{"markers for the peer", nil, 32, 32, reqKey + "d0 02 0004 0001 0001", repKey +
			"50 02 0006 0020 0001 6f6b",
			"responder rev=2 enhanced=true crc=on markers=out ird=32 ord=1 p2p=false rtr=none pd=0"},
		{"markers for us", markers, 32, 32, reqKey + "50 02 0004 0001 0001", repKey +
			"d0 02 0006 0020 0001 6f6b",
			"responder rev=2 enhanced=true crc=on markers=in ird=32 ord=1 p2p=false rtr=none pd=0"},
		{"markers for both, revision 1", markers, 32, 32, reqKey + "c0 01 0000", repKey +
			"c0 01 0002 6f6b",
			"responder rev=1 enhanced=false crc=on markers=both ird=32 ord=32 p2p=false rtr=none pd=0"},
		{"revision 1", nil, 32, 32, reqKey + "40 01 0000", repKey + "40 01 0002 6f6b", // EMPA-004, 012
			"responder rev=1 enhanced=false crc=on ird=32 ord=32 p2p=false rtr=none pd=0"},
		// MPA-066, EMPA-006
		{"revision 1, S bit", nil, 32, 32, reqKey + "5f 01 0004 61626364", repKey + "40 01 0002 6f6b",
			"responder rev=1 enhanced=false crc=on ird=32 ord=32 p2p=false rtr=none pd=4"},
		{"revision 2, S=0", nil, 32, 32, reqKey + "40 02 0000", repKey + "40 02 0002 6f6b",
			"responder rev=2 enhanced=false crc=on ird=32 ord=32 p2p=false rtr=none pd=0"},
		// M5
		{"revision 2, S=0, to revision 1", rev1, 32, 32, reqKey + "40 02 0000", repKey +
			"40 01 0002 6f6b",
			"responder rev=1 enhanced=false crc=on ird=32 ord=32 p2p=false rtr=none pd=0"},
		// EMPA-018
		{"less of the peer", nil, 8, 8, reqKey + "50 02 0004 0002 0004", repKey +
			"50 02 0006 0008 0002 6f6b",
			"responder rev=2 enhanced=true crc=on ird=8 ord=2 p2p=false rtr=none pd=0"},
		// EMPA-019, S10
		{"IRD raised", nil, 1, 8, reqKey + "50 02 0004 0010 0005", repKey + "50 02 0006 0008 0008 6f6b",
			"responder rev=2 enhanced=true crc=on ird=8 ord=8 p2p=false rtr=none pd=0"},
		// M15
		{"IRD raised to the limit", max8, 4, 8, reqKey + "50 02 0004 0010 0080", repKey +
			"50 02 0006 0008 0008 6f6b",
			"responder rev=2 enhanced=true crc=on ird=8 ord=8 p2p=false rtr=none pd=0"},
		// EMPA-025
		{"ORD not negotiated", nil, 4, 4, reqKey + "50 02 0004 0001 3fff", repKey +
			"50 02 0006 3fff 0001 6f6b",
			"responder rev=2 enhanced=true crc=on ird=4 ord=1 p2p=false rtr=none pd=0"},
		// EMPA-026
		{"IRD not negotiated", nil, 4, 4, reqKey + "50 02 0004 3fff 0001", repKey +
			"50 02 0006 0004 3fff 6f6b",
			"responder rev=2 enhanced=true crc=on ird=4 ord=4 p2p=false rtr=none pd=0"},
		// EMPA-032
		{"A=0 with flags", nil, 4, 4, reqKey + "50 02 0004 4004 c004", repKey +
			"50 02 0006 0004 0004 6f6b",
			"responder rev=2 enhanced=true crc=on ird=4 ord=4 p2p=false rtr=none pd=0"},
		{"Send offered", nil, 4, 4, reqKey + "50 02 0004 c004 0004", repKey + "50 02 0006 c004 0004 6f6b",
			"responder rev=2 enhanced=true crc=on ird=4 ord=4 p2p=true rtr=send pd=0"},
		{"one supported", writeOnly, 4, 4, reqKey + "50 02 0004 c004 c004", repKey +
			"50 02 0006 8004 8004 6f6b",
			"responder rev=2 enhanced=true crc=on ird=4 ord=4 p2p=true rtr=write pd=0"},
		// EMPA-038
		{"none supported", writeOnly, 4, 4, reqKey + "50 02 0004 c004 4004", repKey +
			"50 02 0006 8004 8004 6f6b",
			"responder rev=2 enhanced=true crc=on ird=4 ord=4 p2p=true rtr=write pd=0"},
		// M14
		{"none offered", nil, 4, 4, reqKey + "50 02 0004 8004 0004", repKey + "50 02 0006 c004 c004 6f6b",
			"responder rev=2 enhanced=true crc=on ird=4 ord=4 p2p=true rtr=write+read+send pd=0"},
		// EMPA-020
		{"Read with ORD 0", readOnly, 0, 0, reqKey + "50 02 0004 8004 4000", repKey +
			"50 02 0006 8001 4000 6f6b",
			"responder rev=2 enhanced=true crc=on ird=1 ord=0 p2p=true rtr=read pd=0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, cut := range []int{1000, 1, 19, 20, 21} {
				s, err := NewResponder(config(tt.edit))
				if err != nil {
					t.Fatal(err)
				}
				for b := unhex(tt.request); len(b) > 0; b = b[min(cut, len(b)):] {
					if _, ok := s.Request(); ok || s.Len() > 0 {
						t.Fatal("an answer before the Request is whole") // MPA-076
					}
					s.Write(b[:min(cut, len(b))])
				}
				if _, ok := s.Request(); !ok {
					t.Fatalf("cut %d: no Request, %v", cut, s.Err())
				}
				p, err := s.Accept(tt.ird, tt.ord, []byte("ok"))
				if err != nil || p.String() != tt.want {
					t.Errorf("cut %d: %v, %v\nwant %s", cut, p, err, tt.want)
				}
				if b := drain(s); !bytes.Equal(b, unhex(tt.reply)) {
					t.Errorf("cut %d: Reply %x", cut, b)
				}
				if _, err := s.Accept(1, 1, nil); !errors.Is(err, ErrState) {
					t.Errorf("second answer: %v", err)
				}
				if err := s.Reject(nil); !errors.Is(err, ErrState) {
					t.Errorf("second answer: %v", err)
				}
				if n, _ := s.Write([]byte("x")); n != 0 {
					t.Error("takes octets behind its Reply")
				}
			}
		})
	}
}

// MPA-059, 068, 072, 081, EMPA-010, 013: closed without a word.
func TestResponderRefuses(t *testing.T) {
	rev1 := func(c *StartConfig) { c.Revision = 1 }
	for _, tt := range []struct {
		name    string
		edit    func(*StartConfig)
		request string
		sends   string
	}{
		{"Reply", nil, repKey + "40 01 0000", ""},
		{"Key, octet 0", nil, "4c504120494420526571204672616d65 40 01 0000", ""},
		{"Key, octet 15", nil, "4d504120494420526571204672616d64 40 01 0000", ""},
		{"text", nil, "474554202f20485454502f312e300d0a0d0a", ""},
		{"revision 0", nil, reqKey + "40 00 0000", ""},
		{"revision 3", nil, reqKey + "40 03 0000", ""},
		{"PD_Length 513", nil, reqKey + "40 01 0201", ""},
		{"S=1 with 3 octets", nil, reqKey + "50 02 0003 010203", ""},
		{"octets behind", nil, reqKey + "40 01 0000 00", ""},
		{"enhanced at revision 1", rev1, reqKey + "50 02 0004 00010001", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, cut := range []int{1000, 1, 20} {
				s, err := NewResponder(config(tt.edit))
				if err != nil {
					t.Fatal(err)
				}
				for b := unhex(tt.request); len(b) > 0; b = b[min(cut, len(b)):] {
					s.Write(b[:min(cut, len(b))])
				}
				var le *LocalError
				if !errors.As(s.Err(), &le) || le.Cause.Layer != LayerLLP {
					t.Fatalf("cut %d: %v", cut, s.Err())
				}
				if b := drain(s); !bytes.Equal(b, unhex(tt.sends)) {
					t.Errorf("cut %d: sends %x", cut, b)
				}
				if _, err := s.Accept(1, 1, nil); !errors.Is(err, ErrState) {
					t.Errorf("cut %d: Accept: %v", cut, err)
				}
			}
		})
	}
}

// MPA-077, EMPA-011, 012: rejections in the form of the Request.
func TestReject(t *testing.T) {
	for request, want := range map[string]string{
		reqKey + "50 02 0004 8004 c000": repKey + "70 02 0006 8020 c004 6e6f",
		reqKey + "d0 02 0004 8004 c000": repKey + "70 02 0006 8020 c004 6e6f",
		reqKey + "40 02 0000":           repKey + "60 02 0002 6e6f",
		reqKey + "40 01 0000":           repKey + "60 01 0002 6e6f",
	} {
		s, _ := NewResponder(config(func(c *StartConfig) { c.Markers = true })) // a rejection has M=0: S9
		s.Write(unhex(request))
		if err := s.Reject(make([]byte, 513)); !errors.Is(err, ErrPrivateData) {
			t.Errorf("513 octets: %v", err)
		}
		if err := s.Reject([]byte("no")); err != nil {
			t.Error(err)
		}
		if b := drain(s); !bytes.Equal(b, unhex(want)) {
			t.Errorf("Reply %x\nwant  %x", b, unhex(want))
		}
	}
}

// A start frame that the transport takes in parts is sent whole and once.
func TestStartCommit(t *testing.T) {
	s, err := NewInitiator(DefaultStartConfig(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for s.Len() > 0 {
		var p [7]byte
		s.Read(p[:])
		s.Commit(0) // not taken
		n, _ := s.Read(p[:])
		got = append(got, p[:(n+1)/2]...)
		s.Commit((n + 1) / 2)
	}
	if !bytes.Equal(got, unhex(reqKey+"50 02 0009 c020 c020 68656c6c6f")) {
		t.Errorf("%x", got)
	}
}
