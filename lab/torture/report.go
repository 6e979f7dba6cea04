package torture

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// A Report is all that a run has come to.
type Report struct {
	Target    string         `json:"target"`
	Transport string         `json:"transport"`
	Ended     string         `json:"ended,omitempty"` // before the end: why
	Counts    map[Status]int `json:"counts"`
	Results   []Result       `json:"results"`
}

// Add takes a result.
func (r *Report) Add(x Result) {
	if r.Counts == nil {
		r.Counts = make(map[Status]int)
	}
	r.Counts[x.Status]++
	if x.Status == Down {
		r.Ended = "the endpoint is down since " + x.Name
	}
	r.Results = append(r.Results, x)
}

// Good says whether all was tried that makes sense, and came out as it is to.
func (r *Report) Good() bool {
	return r.Ended == "" && r.Counts[Pass]+r.Counts[Skip] == len(r.Results)
}

// Line writes a result in a line, and what went over the connection if verbose is set.
func (x Result) Line(w io.Writer, verbose bool) error {
	line := fmt.Sprintf("%-7s  %s [%s]", x.Status, x.Name, strings.Join(x.IDs, ", "))
	if x.Detail != "" {
		line += ": " + x.Detail
	}
	if verbose && x.Transcript != "" {
		line += "\n  " + strings.ReplaceAll(strings.TrimSpace(x.Transcript), "\n", "\n  ")
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

// Summary is r in a line.
func (r *Report) Summary() string {
	s := fmt.Sprintf("%d cases", len(r.Results))
	for _, st := range []Status{Pass, Differs, Fail, Down, Skip} {
		if n := r.Counts[st]; n > 0 {
			s += fmt.Sprintf(", %d %s", n, st)
		}
	}
	if r.Ended != "" {
		s += "; ended early: " + r.Ended
	}
	return s
}

// JSON writes r.
func (r *Report) JSON(w io.Writer) error {
	if r.Results == nil {
		r.Results = []Result{} // a list, if there is nothing in it, too
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string    `xml:"classname,attr"`
	Name    string    `xml:"name,attr"`
	Time    string    `xml:"time,attr"`
	Failure *junitWhy `xml:"failure,omitempty"`
	Error   *junitWhy `xml:"error,omitempty"`
	Skipped *junitWhy `xml:"skipped,omitempty"`
}

type junitWhy struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit writes r as JUnit's XML: a class is a transport and the group of a case. That the run ended
// early is an error of a case more, which whoever reads such files shows.
func (r *Report) JUnit(w io.Writer) error {
	s := junitSuite{Name: "vrnic torture " + r.Target, Tests: len(r.Results),
		Skipped: r.Counts[Skip], Failures: len(r.Results) - r.Counts[Pass] - r.Counts[Skip]}
	for _, x := range r.Results {
		group, name, _ := strings.Cut(x.Name, "/")
		c := junitCase{Class: r.Transport + "." + group, Name: name, Time: fmt.Sprintf("%.3f", x.Seconds)}
		switch x.Status {
		case Pass:
		case Skip:
			c.Skipped = &junitWhy{Message: x.Detail}
		default:
			c.Failure = &junitWhy{Message: string(x.Status) + ": " + x.Detail, Text: x.Transcript}
		}
		s.Cases = append(s.Cases, c)
	}
	if r.Ended != "" {
		s.Tests, s.Errors = s.Tests+1, 1
		s.Cases = append(s.Cases, junitCase{Class: r.Transport, Name: "the run comes to its end",
			Time: "0.000", Error: &junitWhy{Message: r.Ended}})
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}
