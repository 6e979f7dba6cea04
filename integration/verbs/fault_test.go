package verbs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/shm"
)

// A program meets a card that fails in each way that there is, at the request, call or moment that
// was said, and sees what the hardware would tell it. What fired is told.
func TestFaults(t *testing.T) {
	d := up(t, nil, "--device", deviceA, "--device", "spare,addr=10.78.0.2/24",
		"--device", "roce,addr=10.79.0.2/24,transport=roce")
	for _, c := range []struct{ name, fault string }{
		{"status", "vrnic0 write retry_exc_err after 2"},
		{"received", "vrnic0 recv loc_prot_err after 1"},
		{"terminate", "vrnic0 send terminate 0/2/0x08 after 1"},
		{"ird", "vrnic0 read ird"},
		{"key", "vrnic0 write invalidate after 1"},
		{"cq", "vrnic0 write cq_err after 1"},
		{"nomem", "vrnic0 reg_mr ENOMEM after 2 count 1"},
		{"nak", "roce recv nak operation"},
		{"doorbell", "vrnic0 doorbell lost count 1"},
		{"connect_reject", "vrnic0 connect reject count 1"},
		{"connect_timeout", "vrnic0 connect timeout count 1"},
		{"connect_stale", "roce connect stale count 1"},
		// With a time: the program says when.
		{"keys", "vrnic0 device invalidate"},
		{"port", "vrnic0 device port_down"},
		{"gid", "vrnic0 device gid_change"},
		{"fatal", "vrnic0 device fatal"},
		{"quiet", "vrnic0 device quiet"},
		{"gone", "vrnic0 device gone"},
	} {
		t.Run(c.name, func(t *testing.T) { d.fails(t, c.name, c.fault) })
	}
}

func (d *daemon) fault(t *testing.T, verb shm.ChangeVerb, value string) {
	t.Helper()
	if err := d.client.Change(t.Context(), shm.Change{Verb: verb, Key: "fault",
		Value: value}); err != nil {
		t.Fatal(err)
	}
}

func (d *daemon) fails(t *testing.T, name, fault string) {
	q := *d
	q.T = t
	stdin, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer say.Close()
	q.stdin = stdin
	timed := false
	switch name {
	case "keys", "port", "gid", "fatal", "gone", "quiet":
		timed = true
	default:
		d.fault(t, shm.Set, "1\n"+fault)
	}
	addr := addrsA[0]
	if strings.HasPrefix(fault, "roce ") {
		addr = "10.79.0.2"
	}
	p := q.startEnv([]string{"VT_SERVER=" + addr, "VT_CLIENT=" + addr}, cProgram(t, "faults"), name)
	stdin.Close()
	if timed {
		p.WaitOutput("opened", 1)
		d.fault(t, shm.Set, "1\n"+fault)
		fmt.Fprintln(say)
	}
	if name == "port" || name == "quiet" {
		p.WaitOutput("down", 1)
		d.fault(t, shm.Del, "")
	} else if name != "gone" {
		defer func() {
			row := q.decode(q.client.List("fault"))
			if len(row) != 1 || row[0]["fired"] != 1.0 {
				t.Errorf("%v, want it to have fired once", row)
			}
			d.fault(t, shm.Del, "")
		}()
	}
	p.succeed(cLimit, "^ok "+name+"$")
	q.settle()
}
