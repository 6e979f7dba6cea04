package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a program does is recorded for as long as it runs, into a file for its owner alone, whatever
// was there, and is played again and compared.
func TestRecordReplay(t *testing.T) {
	socket := pingDaemon(t)
	dir := t.TempDir()
	recorded := func(name, count string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("what was there"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, port := pingServer(t, socket, "-a", "10.1.0.2")
		program := vrnicCommand(t, "ping", "-c", "--socket", socket, "-d", "left", "-a", "10.1.0.2", "-p",
			port, "-C", count)
		cmd := vrnicCommand(t, append([]string{"record", "--socket", socket, "-d", "left", "-o", file,
			"--"}, program.Args...)...)
		if out, err := cmd.CombinedOutput(); err != nil ||
			!strings.Contains(string(out), "who recorded has ended it") {
			t.Fatalf("%v: %s", err, out)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("the file's mode is %v, %v", info.Mode(), err)
		}
		return file
	}
	three, four := recorded("three", "3"), recorded("four", "4")
	for _, tt := range []struct {
		args   []string
		status int
		want   []string
	}{
		{[]string{three}, 0, []string{"of left, tcp from 10.1.0.1:", "3 engines, ",
			": no difference"}},
		{[]string{"--step", three}, 0, []string{"post SEND wr", "call CREATE_QP"}},
		{[]string{"--diff", three, three}, 0, []string{"no difference"}},
		{[]string{"--diff", "--no-octets", three, four}, 1, []string{"the first difference: at "}},
	} {
		status, stdout, stderr := vrnic(append([]string{"replay"}, tt.args...)...)
		if status != tt.status || stderr != "" {
			t.Errorf("%q: status %d, %s%s", tt.args, status, stdout, stderr)
		}
		for _, w := range tt.want {
			if !strings.Contains(stdout, w) {
				t.Errorf("%q: no %q in\n%s", tt.args, w, stdout)
			}
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--qp", "3", three}, "--qp is for what --step shows"},
		{[]string{"--step", "--qp", "999", three}, "there is no queue pair 999: "},
		{[]string{"--no-octets", three}, "replay takes one recording, or two with --diff"},
	} {
		if status, stdout, stderr := vrnic(append([]string{"replay"}, tt.args...)...); status == 0 ||
			!strings.Contains(stderr, tt.want) || stdout != "" {
			t.Errorf("%q: status %d, %q, %s", tt.args, status, stderr, stdout)
		}
	}
	// The program's exit status is what the recording ends with.
	program := vrnicCommand(t, "ping", "--nonsense")
	cmd := vrnicCommand(t, append([]string{"record", "--socket", socket, "-o",
		filepath.Join(dir, "no"), "--"}, program.Args...)...)
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != 2 {
		t.Errorf("a program that is used wrongly: status %d", cmd.ProcessState.ExitCode())
	}
}
