package torture_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
	"github.com/vrnic/vrnic/lab/torture/roce"
	"github.com/vrnic/vrnic/lab/torture/sctp"
	"github.com/vrnic/vrnic/lab/torture/torturetest"
)

const patience = time.Minute

// some is the suite of iWARP with the cases that words choose.
func some(words ...string) torture.Suite {
	s := iwarp.Suite(iwarp.DialHost)
	s.Cases = torture.Select(s.Cases, words)
	return s
}

// An endpoint is told as what it is: one that refuses as it has to, one that does so in another
// way, one that takes what is wrong, and one that takes nothing any more.
func TestStatus(t *testing.T) {
	suite := some("ddp/QN 4", "ddp/QN 256")
	cases := suite.Cases
	if len(cases) < 2 {
		t.Fatalf("%d cases", len(cases))
	}
	var e *torturetest.Endpoint
	right := func(p *rawpeer.Peer, s rawpeer.Seg) error {
		return p.Put(rawpeer.Terminate(1, 2, 0x01, rawpeer.WithDDP, s))
	}
	for _, tt := range []struct {
		name  string
		wrong func(p *rawpeer.Peer, s rawpeer.Seg) error
		want  torture.Status
		words string
	}{
		{"right", right, torture.Pass, ""},
		{"another code", func(p *rawpeer.Peer, s rawpeer.Seg) error {
			return p.Put(rawpeer.Terminate(1, 2, 0x02, rawpeer.WithDDP, s))
		}, torture.Differs, "Terminate 1/2/02"},
		{"no copy", func(p *rawpeer.Peer, s rawpeer.Seg) error {
			return p.Put(rawpeer.Terminate(1, 2, 0x01, rawpeer.Bare, s))
		}, torture.Differs, "and 4 octets, not"},
		{"malformed", func(p *rawpeer.Peer, s rawpeer.Seg) error {
			return p.Put(rawpeer.Terminate(1, 2, 0x01, 0x03, s))
		}, torture.Differs, "malformed: reserved bits"},
		{"nothing but a FIN", func(*rawpeer.Peer, rawpeer.Seg) error { return nil }, torture.Differs,
			"without a Terminate"},
		{"a RST", func(p *rawpeer.Peer, _ rawpeer.Seg) error { return p.C.Reset() }, torture.Differs,
			"a RST, not"},
		{"it is taken", func(p *rawpeer.Peer, _ rawpeer.Seg) error {
			return p.Put(rawpeer.Send(1, 0, nil))
		}, torture.Fail, "it was taken: Send of 0 octets came"},
		{"the program ends", func(p *rawpeer.Peer, _ rawpeer.Seg) error {
			e.Stop()
			return nil
		}, torture.Down, "now no connection comes up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e = torturetest.New(t, tt.wrong)
			var r torture.Report
			err := torture.Run(t.Context(), torture.Target{Addr: e.Addr, Timeout: patience}, suite, r.Add)
			if err != nil || len(r.Results) != len(cases) || r.Results[0].Status != tt.want ||
				!strings.Contains(r.Results[0].Detail, tt.words) || r.Good() != (tt.want == torture.Pass) {
				t.Fatalf("%v, %+v", err, r.Results)
			}
			if last := r.Results[len(cases)-1]; tt.want == torture.Down && (last.Status != torture.Skip ||
				!strings.Contains(r.Ended, "down since ddp/QN 4")) {
				t.Errorf("behind the one that ended it: %+v, %q", last, r.Ended)
			}
			if tt.want == torture.Differs && !strings.Contains(r.Results[0].Transcript, "QN=") {
				t.Errorf("the transcript is %q", r.Results[0].Transcript)
			}
		})
	}
}

// Requests that are none are to be closed without a word, and one that is answered is told.
func TestRequests(t *testing.T) {
	e := torturetest.New(t, nil)
	var r torture.Report
	if err := torture.Run(t.Context(), torture.Target{Addr: e.Addr, Timeout: patience},
		some("Key differs", "an FPDU behind it"), r.Add); err != nil {
		t.Fatal(err)
	}
	// This endpoint looks at the Key, and takes what is behind a Request.
	if r.Counts[torture.Pass] != 2 || r.Counts[torture.Fail] != 1 ||
		!strings.Contains(r.Results[2].Detail, "octets came") {
		t.Errorf("%+v", r.Results)
	}
}

// Who stops a run need not wait for an endpoint that says nothing.
func TestInterrupted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() {
		ran <- torture.Run(ctx, torture.Target{Addr: l.Addr().(*net.TCPAddr).AddrPort(),
			Timeout: time.Hour}, some(), func(r torture.Result) { t.Errorf("%+v", r) })
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil { // it waits for a Reply now
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ran:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(patience):
		t.Error("it goes on")
	}
}

// The results of a run that is stopped in its midst are those that there are, and that of each
// case that was not run.
func TestInterruptedLater(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e := torturetest.New(t, func(p *rawpeer.Peer, s rawpeer.Seg) error {
		if s.QN == 4 {
			return p.Put(rawpeer.Terminate(1, 2, 0x01, rawpeer.WithDDP, s))
		}
		cancel()
		<-t.Context().Done() // nothing comes of it
		return nil
	})
	suite := some("ddp/QN 4", "ddp/QN 256", "ddp/QN 65536")
	var r torture.Report
	err := torture.Run(ctx, torture.Target{Addr: e.Addr, Timeout: time.Hour}, suite, r.Add)
	n := len(suite.Cases)
	if !errors.Is(err, context.Canceled) || n < 3 || len(r.Results) != n ||
		r.Counts[torture.Skip] == 0 || r.Counts[torture.Skip]+r.Counts[torture.Pass] != n ||
		r.Results[n-1].Detail != "interrupted" {
		t.Errorf("%v: %+v", err, r.Results)
	}
}

// Whom nothing is sent to: nobody, and many.
func TestRefused(t *testing.T) {
	for _, s := range []string{"0.0.0.0:7174", "[::]:7174", "224.0.0.1:7174", "[ff02::1]:7174",
		"255.255.255.255:7174", "[::ffff:224.0.0.5]:7174", "127.255.255.255:7174", "127.0.0.1:0"} {
		target := torture.Target{Addr: netip.MustParseAddrPort(s), Timeout: patience}
		if err := target.Check(); err == nil {
			t.Errorf("%s is taken", s)
		}
		err := torture.Run(t.Context(), target, some(), func(r torture.Result) {
			t.Errorf("%s: %+v", s, r)
		})
		if err == nil {
			t.Errorf("%s is tortured", s)
		}
	}
	for _, s := range []string{"127.0.0.1:7174", "[::1]:1", "198.51.100.255:1"} {
		if err := (torture.Target{Addr: netip.MustParseAddrPort(s)}).Check(); err != nil {
			t.Error(err)
		}
	}
}

// Cases have names of their own, requirements and words; they are chosen by a part of a name and by
// requirement.
func TestSelect(t *testing.T) {
	all := some().Cases
	for _, s := range []torture.Suite{some(), sctp.Suite(nil), roce.Suite(nil)} {
		names := map[string]bool{}
		for _, c := range s.Cases {
			if names[c.Name] || !strings.Contains(c.Name, "/") || len(c.IDs) == 0 || c.Want == "" {
				t.Errorf("%s: %+v", s.Transport, c)
			}
			names[c.Name] = true
		}
		if len(s.Cases) < 150 || s.ComesUp == nil {
			t.Errorf("%s: %d cases", s.Transport, len(s.Cases))
		}
	}
	if len(torture.Select(all, nil)) != len(all) {
		t.Errorf("%d cases", len(all))
	}
	id := all[0].IDs[0]
	chosen := torture.Select(all, []string{strings.ToLower(id), "qn 4"})
	for _, c := range chosen {
		if !slices.Contains(c.IDs, id) && !strings.Contains(c.Name, "QN 4") {
			t.Errorf("chosen: %+v", c)
		}
	}
	if len(chosen) < 3 || chosen[0].Name != all[0].Name {
		t.Errorf("chosen: %+v", chosen)
	}
	if n := len(torture.Select(all, []string{"no such"})); n != 0 {
		t.Errorf("%d cases are chosen by no such words", n)
	}
}

// A report as JSON and as JUnit's XML has each case, and what is wrong with it.
func TestReport(t *testing.T) {
	r := torture.Report{Target: "192.0.2.1:7174", Transport: "iwarp"}
	c := some().Cases[0]
	for s, detail := range map[torture.Status]string{torture.Pass: "", torture.Differs: "a <RST>",
		torture.Skip: "why not"} {
		r.Add(torture.Result{Case: c, Status: s, Detail: detail, Transcript: "-> 1 & 2"})
	}
	var b bytes.Buffer
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	var got torture.Report
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || len(got.Results) != 3 ||
		got.Counts[torture.Differs] != 1 || got.Results[0].Name != c.Name {
		t.Errorf("%v: %s", err, &b)
	}
	b.Reset()
	if err := r.JUnit(&b); err != nil {
		t.Fatal(err)
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Class   string `xml:"classname,attr"`
			Failure *struct {
				Message string `xml:"message,attr"`
				Text    string `xml:",chardata"`
			} `xml:"failure"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(b.Bytes(), &suite); err != nil || suite.Tests != 3 ||
		suite.Failures != 1 || suite.Skipped != 1 || len(suite.Cases) != 3 ||
		suite.Cases[0].Class != "iwarp.request" {
		t.Fatalf("%v: %+v", err, suite)
	}
	failures := 0
	for _, c := range suite.Cases {
		if c.Failure != nil {
			failures++
			if c.Failure.Message != "differs: a <RST>" || c.Failure.Text != "-> 1 & 2" {
				t.Errorf("%+v", c.Failure)
			}
		}
	}
	r.Ended = "interrupted"
	b.Reset()
	if err := r.JUnit(&b); err != nil || xml.Unmarshal(b.Bytes(), new(struct{})) != nil ||
		!strings.Contains(b.String(), `errors="1"`) ||
		!strings.Contains(b.String(), `<error message="interrupted">`) || r.Good() {
		t.Errorf("ended early: %v: %s", err, &b)
	}
	r.Ended = ""
	if failures != 1 || r.Good() || r.Summary() != "3 cases, 1 pass, 1 differs, 1 skip" {
		t.Errorf("%d failures, %s", failures, r.Summary())
	}
}
