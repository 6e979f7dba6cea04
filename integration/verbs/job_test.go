package verbs

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A job is a program on either side of a connection. In their words ADDR is the server's address,
// CLIENT the client's, PORT a port that nothing else has.
type job struct {
	name           string
	server, client string
	// What their outputs must match: regular expressions, and with ! in front what they must not.
	serverOut, clientOut []string
	forever              bool // the server does not end by itself
	v4                   bool // the server, at any address, is one of IPv4
	listeners            int  // how many ids it has that listen, -1: see ready
	fixed                bool // the server listens at a port of its program's own
	ready                string
	limit                time.Duration // of each side; 0: patience
	// what a client says that is to be run once more: faults of its program's own
	again []string
	quick bool // belongs to every test run
	env   []string
}

// nextPort is shared by all tests: a port is used once.
var nextPort atomic.Int32

func init() { nextPort.Store(20000) }

// words are a command line with what it stands for filled in.
func words(s string, replace ...string) []string {
	out := strings.Fields(s)
	r := strings.NewReplacer(replace...)
	for i := range out {
		out[i] = r.Replace(out[i])
	}
	return out
}

// run runs a job; family is 0 for IPv4 and 1 for IPv6.
func (top *topology) run(t *testing.T, j *job, family int) {
	t.Helper()
	const tries = 10
	top.try(t, j, family, tries)
}

func (top *topology) try(t *testing.T, j *job, family, tries int) {
	t.Helper()
	port := int(nextPort.Add(1))
	replace := []string{"ADDR", top.server.addrs[family], "CLIENT", top.client.addrs[family], "PORT",
		fmt.Sprint(port)}
	need(t, programOf(j.server), programOf(j.client))
	limit := j.limit
	if limit == 0 {
		limit = patience
	}
	server := top.server.in(t).startWith(j.env, words(j.server, replace...)...)
	switch {
	case j.listeners >= 0:
		at := port
		if j.fixed {
			at = 0
		}
		top.server.in(t).listens(server, at, max(1, j.listeners))
	case j.ready != "":
		server.WaitOutput(j.ready, 1)
	}
	client := top.client.in(t).startWith(j.env, words(j.client, replace...)...)
	if len(j.again) > 0 && tries > 1 {
		_ = client.Wait(limit) // succeed looks at how it ended
		if out := client.Output(); slices.ContainsFunc(j.again,
			func(s string) bool { return strings.Contains(out, s) }) {
			server.Kill()
			top.try(t, j, family, tries-1)
			return
		}
	}
	client.succeed(limit, j.clientOut...)
	if j.forever {
		if top.server.checked != "" { // the program is a child
			server.Signal(syscall.SIGTERM)
			<-server.Done
		}
		server.Kill()
		server.wantOutput(j.serverOut...)
	} else {
		server.succeed(limit, j.serverOut...)
	}
}

// in is p for a subtest: what it starts ends, and fails, with that.
func (p *place) in(t *testing.T) *place {
	d, q := *p.daemon, *p
	d.T = t
	q.daemon = &d
	return &q
}

func (p *place) startWith(env []string, argv ...string) *process {
	p.T.Helper()
	exec := []string{program, "exec", "--"}
	if p.dev != "" {
		exec = []string{program, "exec", "-d", p.dev, "--"}
	}
	return p.begin(append(p.env(), env...), append(exec, argv...)...)
}

// runAll runs jobs as subtests, with nothing left in the daemons after each. Only those for every
// test run, unless all are asked for.
func (top *topology) runAll(t *testing.T, jobs []job) {
	t.Helper()
	for i := range jobs {
		j := &jobs[i]
		if !j.quick && !thorough() {
			continue
		}
		families := []int{0}
		if thorough() && j.limit == 0 && !j.v4 && top.server.addrs[1] != "" {
			families = []int{0, 1}
		}
		for _, f := range families {
			t.Run(fmt.Sprintf("%s/%s/IPv%d", top.name, j.name, 4+2*f), func(t *testing.T) {
				note(t, onIWARP, top.name, j.client)
				top.run(t, j, f)
				if !t.Failed() {
					top.server.in(t).settle()
					top.client.in(t).settle()
				}
			})
		}
	}
}

// inTopologies runs jobs in the topologies that are named, and in all if everything is asked for.
func inTopologies(t *testing.T, jobs []job, quick ...string) {
	t.Helper()
	need(t)
	for _, make := range iwarpTopologies {
		if thorough() || slices.Contains(quick, make.name) {
			t.Run(make.name, func(t *testing.T) { make.make(t).runAll(t, jobs) })
		}
	}
}
