package torture

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/torturetest"
)

// command runs it with args.
func command(args ...string) (stdout string, status int, err error) {
	var out bytes.Buffer
	app := &cli.App{Name: "vrnic", Writer: &out, DisableSliceFlagSeparator: true,
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: []*cli.Command{Command(func(format string, args ...any) error {
			return cli.Exit(fmt.Sprintf(format, args...), 2)
		})}}
	err = app.Run(append([]string{"vrnic", "torture"}, args...))
	if err != nil {
		status = 1
	}
	if code := cli.ExitCoder(nil); errors.As(err, &code) {
		status = code.ExitCode()
	}
	return out.String(), status, err
}

// The command says of each case what came of it, in each format, and its status says it all.
func TestCommand(t *testing.T) {
	e := torturetest.New(t, func(p *rawpeer.Peer, s rawpeer.Seg) error {
		return p.Put(rawpeer.Terminate(1, 2, 0x01, rawpeer.WithDDP, s))
	})
	to := []string{"--port", strconv.Itoa(int(e.Addr.Port())), "--timeout", "1m"}
	run := func(args ...string) (string, int, error) {
		t.Helper()
		return command(append(append(to, args...), "127.0.0.1")...)
	}
	if out, status, err := run("--only", "ddp/QN 4"); status != 0 ||
		!strings.Contains(out, "pass     ddp/QN 4 [") || !strings.HasSuffix(out, " pass\n") {
		t.Errorf("right answers: status %d, %v:\n%s", status, err, out)
	}
	if out, status, err := run("--only", "ddp/MSN 0", "-v"); status != 1 || err.Error() != "" ||
		!strings.Contains(out, "differs  ddp/MSN 0") || !strings.Contains(out, "MSN=00000000") {
		t.Errorf("another code: status %d, %v:\n%s", status, err, out)
	}
	out, status, err := run("--only", "ddp/MSN 0", "--format", "json")
	var r torture.Report
	if jerr := json.Unmarshal([]byte(out), &r); jerr != nil || status != 1 ||
		r.Counts[torture.Differs] != 1 {
		t.Errorf("JSON: status %d, %v, %v:\n%s", status, err, jerr, out)
	}
	if out, status, err := run("--only", "ddp/QN 4", "--format", "junit"); status != 0 ||
		!strings.HasPrefix(out, "<?xml") || !strings.Contains(out, `failures="0"`) {
		t.Errorf("JUnit: status %d, %v:\n%s", status, err, out)
	}
	e.Stop()
	if out, status, err := run(); status != 1 || out != "" ||
		!strings.Contains(err.Error(), "does not take a connection") {
		t.Errorf("nobody there: status %d, %v:\n%s", status, err, out)
	}
	out, status, err = run("--format", "json")
	if jerr := json.Unmarshal([]byte(out), &r); jerr != nil || status != 1 || err == nil ||
		!strings.Contains(r.Ended, "does not take a connection") {
		t.Errorf("JSON, nobody there: status %d, %v, %v:\n%s", status, err, jerr, out)
	}
	// What comes has the address as IPv4 has it.
	out, _, _ = command("--format", "json", "--port", "1", "::ffff:127.0.0.1")
	if jerr := json.Unmarshal([]byte(out), &r); jerr != nil || r.Target != "127.0.0.1:1" {
		t.Errorf("a mapped address: %v:\n%s", jerr, out)
	}
}

// A run that is interrupted leaves a whole report, which says so, in each format.
func TestInterrupted(t *testing.T) {
	for format, says := range map[string]string{"json": `"ended": "interrupted"`,
		"junit": `<error message="interrupted">`, "text": "ended early: interrupted"} {
		t.Run(format, func(t *testing.T) {
			e := torturetest.New(t, func(*rawpeer.Peer, rawpeer.Seg) error {
				if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
					t.Error(err)
				}
				<-t.Context().Done() // no answer
				return nil
			})
			out, status, err := command("--port", strconv.Itoa(int(e.Addr.Port())), "--timeout", "1h",
				"--format", format, "--only", "ddp/QN", "127.0.0.1")
			if status != 1 || err.Error() != "interrupted" || !strings.Contains(out, says) ||
				!strings.Contains(out, "QN 65536") {
				t.Errorf("status %d, %v:\n%s", status, err, out)
			}
			if format == "json" && !json.Valid([]byte(out)) ||
				format == "junit" && xml.Unmarshal([]byte(out), new(struct{})) != nil {
				t.Errorf("no whole document:\n%s", out)
			}
		})
	}
}

// What is wrong usage, and the list, which connects to nobody.
func TestUsage(t *testing.T) {
	for words, why := range map[string]string{
		"":                                      "whom?",
		"10.0.0.1 10.0.0.2":                     "whom?",
		"example.com":                           "no address",
		"224.0.0.1":                             "address of many",
		"255.255.255.255":                       "address of many",
		"0.0.0.0":                               "nobody's",
		"--port 70000 10.0.0.1":                 "no port",
		"--timeout 0s 10.0.0.1":                 "above 0",
		"--format yaml 10.0.0.1":                "text, json and junit",
		"--only nothing-like-that 10.0.0.1":     "no case is about nothing-like-that",
		"--list 10.0.0.1":                       "takes no address",
		"--transport udp 10.0.0.1":              "there are iwarp, roce and sctp",
		"--udp 9899 10.0.0.1":                   "--udp is for",
		"--transport sctp --udp 65536 10.0.0.1": "no port 65536",
		"--from 10.0.0.2 10.0.0.1":              "--from is for",
		"--transport roce --from x 10.0.0.1":    "no address",
		"--transport roce --from :: fd77::1":    "nobody's",
	} {
		out, status, err := command(strings.Fields(words)...)
		if status != 2 || out != "" || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: status %d, %v, %s", words, status, err, out)
		}
	}
	out, status, err := command("--transport", "roce", "--from", "::1", "127.0.0.1")
	if status != 1 || out != "" || !strings.Contains(err.Error(), "of another family") {
		t.Errorf("from another family: status %d, %v:\n%s", status, err, out)
	}
	out, status, err = command("--list", "--only", "ddp/QN 4")
	if status != 0 || !strings.Contains(out, "]: Terminate 1/2/01 with ") {
		t.Errorf("--list: status %d, %v:\n%s", status, err, out)
	}
	out, status, err = command("--list", "--transport", "roce", "--only", "Write of nothing with")
	if status != 0 || !strings.Contains(out, "]: NAK 0x61, ") ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("--list of RoCE: status %d, %v:\n%s", status, err, out)
	}
}
