package verbs

import (
	"fmt"
	"os"
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
		{"ird", "vrnic0 read ird"},
		{"key", "vrnic0 write invalidate after 1"},
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
