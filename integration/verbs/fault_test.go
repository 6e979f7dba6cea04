package verbs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/shm"
)

// A program meets a card that fails in each way that there is, at the request, call or moment that
// was said, and sees what the hardware would tell it. What fired is told.
func TestFaults(t *testing.T) {
	d := up(t, nil, "--device", deviceA, "--device", "spare,addr=10.78.0.2/24",
		"--device", "roce,addr=10.79.0.2/24,transport=roce")
	d.failsInWords(t)
	for _, c := range []struct{ name, fault string }{
		{"status", "vrnic0 write retry_exc_err after 2"},
		{"received", "vrnic0 recv loc_prot_err after 1"},
		{"terminate", "vrnic0 send terminate 0/2/0x08 after 1"},
		{"cut", "vrnic0 send terminated 0/2/0x08 after 1"},
		{"cut", "vrnic0 recv terminate 0/2/0x08 after 1"},
		{"received_cq", "vrnic0 recv cq_err after 1"},
		{"cq", "vrnic0 write cq_err after 1"},
		{"nomem", "vrnic0 reg_mr ENOMEM after 2 count 1"},
		{"doorbell", "vrnic0 doorbell lost count 1"},
		// With a time: the program says when.
		{"keys", "vrnic0 device invalidate"},
		{"port", "vrnic0 device port_down"},
		{"gid", "vrnic0 device gid_change"},
		{"cqs", "vrnic0 device cq_err"},
		{"fatal", "vrnic0 device fatal"},
		{"quiet", "vrnic0 device quiet"},
		{"gone", "vrnic0 device gone"},
	} {
		t.Run(c.name, func(t *testing.T) { d.fails(t, c.name, c.fault) })
	}
}

// failsInWords has d fail in the ways that differ in a word: what comes of each is a number.
func (d *daemon) failsInWords(t *testing.T) {
	const (
		write, send, read, swap, add                    = 0, 2, 4, 5, 6 // enum ibv_wr_opcode
		connectError, unreachable, rejected             = 6, 7, 8       // enum rdma_cm_event_type
		reset, aborted, refused, timedOut, noWay, stale = -104, -103, -111, -110, -113, 10
	)
	for word, status := range map[string]int{"loc_len_err": 1, "loc_qp_op_err": 2, "loc_prot_err": 4,
		"wr_flush_err": 5, "mw_bind_err": 6, "bad_resp_err": 7, "loc_access_err": 8,
		"rem_inv_req_err": 9, "rem_access_err": 10, "rem_op_err": 11, "retry_exc_err": 12,
		"rnr_retry_exc_err": 13, "fatal_err": 19, "general_err": 21} {
		t.Run(word, func(t *testing.T) {
			d.fails(t, "operation", "vrnic0 request "+word+" count 1", "VT_OP", write, "VT_WANT", status)
		})
	}
	for _, c := range []struct {
		word string
		op   int
	}{{"send", send}, {"write", write}, {"read", read}, {"atomic", swap}, {"atomic", add}} {
		t.Run(fmt.Sprint(c.word, c.op), func(t *testing.T) {
			d.fails(t, "operation", "vrnic0 "+c.word+" rem_op_err count 1", "VT_OP", c.op, "VT_WANT", 11)
		})
	}
	for _, c := range []struct {
		fault        string
		op, complete int
	}{{"vrnic0 read ird", read, 5}, {"vrnic0 atomic ird", swap, 5}, {"vrnic0 atomic ird", add, 5},
		{"roce read ird", read, 9}, {"roce atomic ird", add, 9}} {
		t.Run(fmt.Sprint(c.fault, c.op), func(t *testing.T) {
			d.fails(t, "ird", c.fault, "VT_OP", c.op, "VT_WANT", c.complete)
		})
	}
	for _, c := range []struct {
		word  string
		op    int
		after int // a Write goes before it
	}{{"write", write, 1}, {"send", send, 0}, {"read", read, 0}, {"atomic", swap, 0},
		{"atomic", add, 0}, {"request", read, 1}} {
		t.Run(fmt.Sprint(c.word, c.op, " invalidate"), func(t *testing.T) {
			d.fails(t, "key", fmt.Sprintf("vrnic0 %s invalidate after %d", c.word, c.after),
				"VT_OP", c.op)
		})
	}
	for _, c := range []struct {
		call, word string
		errno      syscall.Errno
	}{{"alloc_pd", "ENOMEM", syscall.ENOMEM}, {"create_cq", "EINVAL", syscall.EINVAL},
		{"create_srq", "EAGAIN", syscall.EAGAIN}, {"reg_mr", "EFAULT", syscall.EFAULT},
		{"alloc_mw", "EPERM", syscall.EPERM}, {"create_qp", "ENOSPC", syscall.ENOSPC},
		{"create_qp", "EIO", syscall.EIO}} {
		t.Run(c.call+" "+c.word, func(t *testing.T) {
			d.fails(t, "call", "vrnic0 "+c.call+" "+c.word+" count 1", "VT_CALL", c.call, "VT_WANT",
				int(c.errno))
		})
	}
	for word, status := range map[string]int{"invalid": 9, "access": 10, "operation": 11} {
		t.Run("nak "+word, func(t *testing.T) {
			d.fails(t, "nak", "roce recv nak "+word, "VT_WANT", status)
		})
	}
	for fault, want := range map[string][2]int{"vrnic0 connect reject": {rejected, reset},
		"vrnic0 connect refused": {rejected, refused}, "vrnic0 connect timeout": {unreachable, timedOut},
		"vrnic0 connect unreachable": {unreachable, noWay},
		"vrnic0 connect error":       {connectError, aborted}, "roce connect stale": {rejected, stale}} {
		t.Run(fault, func(t *testing.T) {
			d.fails(t, "connecting", fault+" count 1", "VT_EVENT", want[0], "VT_WANT", want[1])
		})
	}
	t.Run("late", func(t *testing.T) {
		d.fails(t, "late", "vrnic0 doorbell late 300ms count 1", "VT_WANT", 300)
	})
}

func (d *daemon) fault(t *testing.T, verb shm.ChangeVerb, value string) {
	t.Helper()
	if err := d.client.Change(t.Context(), shm.Change{Verb: verb, Key: "fault",
		Value: value}); err != nil {
		t.Fatal(err)
	}
}

// fails runs a case with a fault; env are names and values, in turn.
func (d *daemon) fails(t *testing.T, name, fault string, env ...any) {
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
	case "keys", "cqs", "port", "gid", "fatal", "gone", "quiet":
		timed = true
	default:
		d.fault(t, shm.Set, "1\n"+fault)
	}
	addr := addrsA[0]
	if strings.HasPrefix(fault, "roce ") {
		addr = "10.79.0.2"
	}
	vars := []string{"VT_SERVER=" + addr, "VT_CLIENT=" + addr}
	for i := 0; i < len(env); i += 2 {
		vars = append(vars, fmt.Sprintf("%v=%v", env[i], env[i+1]))
	}
	p := q.startEnv(vars, cProgram(t, "faults"), name)
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

// The words behind WHAT and HOW hold for what a program does, as a file says them that `vrnic
// fault` reads: how many go well before, how many fail, with which probability, by the seed, when,
// and of which queue pair; and `vrnic fault show` tells what fired, and how often it was looked at.
func TestFaultWords(t *testing.T) {
	d := up(t, nil, "--device", deviceA)
	q := *d
	q.T = t
	run := func(name string, env ...string) string {
		p := q.startEnv(append(env, "VT_SERVER="+addrsA[0], "VT_CLIENT="+addrsA[0]),
			cProgram(t, "faults"), name)
		p.succeed(cLimit, "^ok "+name+"$")
		q.settle()
		return regexp.MustCompile("(?m)^[.x]{100}$").FindString(p.Output())
	}
	none := strings.Repeat(".", 100)
	q.faultFile(t, 1, "vrnic0 reg_mr ENOMEM after 3 count 2 # of a hundred")
	if got := run("registrations"); got != "...xx"+none[5:] {
		t.Errorf("after 3 count 2: %s", got)
	}
	q.fired(t, 100, 2, "reg_mr")
	if got := run("registrations"); got != none { // of all programs together
		t.Errorf("once more: %s", got)
	}
	q.fired(t, 200, 2, "reg_mr")

	patterns := make(map[string]uint64)
	for _, seed := range []uint64{7, 8, 7} {
		q.faultFile(t, seed, "vrnic0 reg_mr ENOMEM percent 30")
		got := run("registrations")
		n := strings.Count(got, "x")
		if n < 10 || n > 60 { // seeds 7 and 8 have it so, always
			t.Errorf("percent 30: %s", got)
		}
		if other, seen := patterns[got]; seen != (seed == 7 && len(patterns) == 2) {
			t.Errorf("seeds %d and %d: %s", seed, other, got)
		}
		patterns[got] = seed
		q.fired(t, 100, n, "reg_mr")
	}

	q.faultFile(t, 1, "vrnic0 key mw_bind_err after 1 count 1")
	run("window", "VT_WANT=6")
	q.fired(t, 2, 1, "LOCAL_INV 2")
	q.faultFile(t, 1, "vrnic0 reg_mr ENOMEM at 600m\nvrnic0 reg_mr ENOMEM for 600m count 1")
	if got := run("registrations"); got != "x"+none[1:] {
		t.Errorf("at 600m, for 600m count 1: %s", got)
	}
	q.fired(t, 100, 1, "reg_mr")

	stdin, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer say.Close()
	q.stdin = stdin
	p := q.startEnv([]string{"VT_AT=200", "VT_FOR=2000"}, cProgram(t, "faults"), "from_to")
	p.WaitOutput("opened", 1)
	q.faultFile(t, 1, "vrnic0 reg_mr ENOMEM at 200ms for 2s")
	p.succeed(cLimit, "^ok from_to$")

	p = q.startEnv([]string{"VT_SERVER=" + addrsA[0], "VT_CLIENT=" + addrsA[0], "VT_WANT=12"},
		cProgram(t, "faults"), "one_of_two")
	stdin.Close()
	p.WaitOutput("opened", 1)
	qpn := regexp.MustCompile(`opened (\d+)`).FindStringSubmatch(p.Output())
	if qpn == nil {
		t.Fatal(p.Output())
	}
	q.faultFile(t, 1, "vrnic0/"+qpn[1]+" read retry_exc_err")
	fmt.Fprintln(say)
	p.succeed(cLimit, "^ok one_of_two$")
	q.fired(t, 1, 1, "QP "+qpn[1]+" READ 3")
	q.fault(t, shm.Del, "")
	q.settle()
}

// faultFile has faults that a file says, and no others.
func (d *daemon) faultFile(t *testing.T, seed uint64, lines string) {
	t.Helper()
	d.fault(t, shm.Del, "")
	file := filepath.Join(t.TempDir(), "faults")
	if err := os.WriteFile(file, []byte("# what fails\n"+lines+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, "fault", "--socket", d.socket, "--seed", fmt.Sprint(seed),
		"--file", file).CombinedOutput(); err != nil || string(out) != fmt.Sprintf("seed %d\n", seed) {
		t.Fatalf("%v: %s", err, out)
	}
}

// fired wants the last fault to have looked at so many, to have fired so often, and last as said.
func (d *daemon) fired(t *testing.T, calls, fired int, last string) {
	t.Helper()
	out, err := exec.Command(program, "fault", "show", "--socket", d.socket, "--json").Output()
	var rows []struct {
		Calls, Fired int
		Last         string
	}
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	if err != nil || len(rows) == 0 {
		t.Fatalf("%s, %v", out, err)
	}
	r := rows[len(rows)-1]
	if r.Calls != calls || r.Fired != fired || !strings.Contains(r.Last, last) {
		t.Errorf("%+v, want %d and %d, last %s", r, calls, fired, last)
	}
}
