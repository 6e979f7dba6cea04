package verbs

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// patience bounds every wait for something that must come; it is long because machines that run
// tests are slow at times, and costs nothing when all is well.
var patience = 30 * time.Second

// A process is one that a test started.
type process struct{ *proctest.Process }

// start runs argv, in ns if that is not nil, as a user if uid is not 0, with env added to the
// environment.
func start(t *testing.T, ns *netlab.NS, uid int, env []string, argv ...string) *process {
	t.Helper()
	return startWith(t, ns, uid, nil, env, argv...)
}

// startWith is start with a standard input.
func startWith(t *testing.T, ns *netlab.NS, uid int, stdin *os.File, env []string,
	argv ...string) *process {
	t.Helper()
	return &process{proctest.Start(t, proctest.Config{
		NS: ns, UID: uid, Stdin: stdin, Env: env, Dir: workDir, Patience: patience,
		Late: func(*proctest.Process) string { return daemonsSay() }, Over: sanitizerSays,
	}, argv...)}
}

// succeed waits for exit status 0 and for what the output must match.
func (p *process) succeed(limit time.Duration, want ...string) {
	p.T.Helper()
	if err := p.Wait(limit); err != nil {
		p.T.Fatalf("%s: %v", p, err)
	}
	p.wantOutput(want...)
}

// fail waits for another exit status than 0, not for a signal, and for what the output must match.
func (p *process) fail(limit time.Duration, want ...string) {
	p.T.Helper()
	err := p.Wait(limit)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		p.T.Fatalf("%s ended with %v, want an exit status that says failure", p, err)
	}
	p.wantOutput(want...)
}

// wantOutput wants the output to match each of some regular expressions; one that begins with !
// must not match.
func (p *process) wantOutput(want ...string) {
	p.T.Helper()
	out := p.Output()
	for _, w := range want {
		expr, not := strings.CutPrefix(w, "!")
		if regexp.MustCompile("(?m)"+expr).MatchString(out) == not {
			p.T.Errorf("%s: its output and %q", p, w)
		}
	}
}
