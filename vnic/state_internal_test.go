package vnic

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/cm"
)

var qpStates = []rdma.QPState{rdma.QPIdle, rdma.QPRTS, rdma.QPClosing, rdma.QPTerminate,
	rdma.QPError}

// A documented transition of docs/qp-states.md.
type transition struct {
	name     string // Q1
	from, to rdma.QPState
}

func documented(t *testing.T) (ts []transition, drawing string) {
	t.Helper()
	b, err := os.ReadFile("../docs/qp-states.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	state := func(name string) rdma.QPState {
		i := slices.IndexFunc(qpStates, func(s rdma.QPState) bool { return s.String() == name })
		if i < 0 {
			t.Fatalf("docs/qp-states.md names the state %q", name)
		}
		return qpStates[i]
	}
	row := regexp.MustCompile(`(?m)^\| (?:<a id="Q\d+"></a>)?(Q\d+) \| (\w+) \| .* \| (\w+) \|$`)
	for _, m := range row.FindAllStringSubmatch(doc, -1) {
		ts = append(ts, transition{m[1], state(m[2]), state(m[3])})
	}
	parts := strings.Split(doc, "```")
	if len(ts) == 0 || len(parts) != 3 {
		t.Fatal("docs/qp-states.md has no table of transitions, or not one drawing")
	}
	return ts, parts[1]
}

// docs/qp-states.md is what the code has: the table names exactly the transitions that setState
// makes, and the drawing each of them.
func TestStatesAsDocumented(t *testing.T) {
	ts, drawing := documented(t)
	pairs := map[[2]rdma.QPState]bool{}
	var names []string
	for _, x := range ts {
		pairs[[2]rdma.QPState{x.from, x.to}] = true
		if x.name != "Q4" { // becomes Q3 or Q8
			names = append(names, x.name)
		}
	}
	for _, from := range qpStates {
		if !strings.Contains(drawing, from.String()) {
			t.Errorf("the drawing has no state %v", from)
		}
		for _, to := range qpStates {
			if in := qpNext[from]&(1<<to) != 0; in != pairs[[2]rdma.QPState{from, to}] {
				t.Errorf("%v to %v: the code allows it: %v; docs/qp-states.md: %v", from, to, in, !in)
			}
		}
	}
	drawn := regexp.MustCompile(`Q\d+`).FindAllString(drawing, -1)
	slices.Sort(drawn)
	slices.Sort(names)
	if !slices.Equal(drawn, names) {
		t.Errorf("the drawing has %v, the table %v", drawn, names)
	}
}

// setState makes the documented transitions, tells about them, and refuses all others without a
// trace.
func TestSetState(t *testing.T) {
	b := newBare(t)
	ts, _ := documented(t)
	for _, from := range qpStates {
		for _, to := range qpStates {
			t.Run(fmt.Sprintf("%v-%v", from, to), func(t *testing.T) {
				var told []rdma.QPState
				qp := b.qp(t, func(s rdma.QPState) { told = append(told, s) })
				defer qp.Close()
				var err error
				qp.do(func() {
					qp.state.Store(uint32(from))
					err = qp.setState(to)
				})
				want := slices.ContainsFunc(ts, func(x transition) bool { return x.from == from && x.to == to })
				is, changed := qp.State(), len(told) == 1 && told[0] == to
				switch {
				case from == to && (err != nil || is != from || told != nil):
					t.Errorf("to itself: %v, %v, told %v", err, is, told)
				case from != to && want && (err != nil || is != to || !changed):
					t.Errorf("%v; the QP is in %v, told %v", err, is, told)
				case from != to && !want && (err == nil || is != from || told != nil):
					t.Errorf("refused with %v; the QP is in %v, told %v", err, is, told)
				}
			})
		}
	}
}

// What is done in place while a handler has the QP may leave work: the owner looks once more. And
// nobody disconnects a connection of which its attempt knows nothing.
func TestLentQP(t *testing.T) {
	qp := newBare(t).qp(t, nil)
	defer qp.Close()
	before, present := new(cm.Attempt), new(cm.Attempt)
	var token uint32
	var draining [2]bool
	qp.do(func() {
		qp.lend(func() {
			qp.do(func() {})
			token = qp.token.Load()
		})
		qp.state.Store(uint32(rdma.QPRTS))
		qp.bound.Store(present)
		qp.attached = true
	})
	if token != tokenAgain {
		t.Errorf("behind a call in place the token is %d, want %d", token, tokenAgain)
	}
	for i, a := range []*cm.Attempt{before, present} {
		(*connectable)(qp).Disconnect(a, nil)
		qp.do(func() { draining[i] = qp.draining })
	}
	if draining != [2]bool{false, true} {
		t.Errorf("disconnected for another attempt, and for its own: %v", draining)
	}
	qp.do(func() {
		qp.draining, qp.attached = false, false
		qp.bound.Store(nil)
		qp.state.Store(uint32(rdma.QPIdle))
	})
}
