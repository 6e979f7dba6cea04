package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// child is the environment variable that makes this program one; its value says which.
const child = "VRNIC_BENCH_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	in := bufio.NewScanner(os.Stdin)
	switch os.Getenv(child) {
	case "echo":
		fmt.Println("ready steady")
		for in.Scan() {
			fmt.Println(in.Text())
		}
	case "deaf":
		fmt.Println("ready")
		for {
			time.Sleep(time.Hour) // until it is killed
		}
	case "mute":
		fmt.Println("ready")
		in.Scan()
		fmt.Fprintln(os.Stderr, "it went wrong")
		os.Exit(3)
	case "odd":
		fmt.Println("hello")
		in.Scan()
	case "broken":
		fmt.Fprintln(os.Stderr, "cannot do it")
		os.Exit(1)
	case "babble":
		fmt.Println("ready")
		in.Scan()
		fmt.Println("no JSON")
		in.Scan()
	}
	os.Exit(0)
}

func start(t *testing.T, kind string) (*Process, error) {
	t.Helper()
	t.Setenv(child, kind)
	p, err := Start("ready", os.Args[0])
	if err == nil {
		t.Cleanup(p.Close)
	}
	return p, err
}

func mustStart(t *testing.T, kind string) *Process {
	t.Helper()
	p, err := start(t, kind)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAsk(t *testing.T) {
	p := mustStart(t, "echo")
	if p.Ready() != "steady" || p.PID() == 0 {
		t.Errorf("ready %q, pid %d", p.Ready(), p.PID())
	}
	for i := range 3 {
		var got int
		if err := p.Ask(t.Context(), i, &got); err != nil || got != i {
			t.Errorf("%d: %v, %v", i, got, err)
		}
	}
	p.Close()
	p.Close() // does no harm
	if err := p.Ask(t.Context(), 1, new(int)); err == nil {
		t.Error("a process that has ended answers")
	}
}

func TestStartFails(t *testing.T) {
	for kind, want := range map[string]string{"broken": "cannot do it", "odd": "hello"} {
		if _, err := start(t, kind); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", kind, err, want)
		}
	}
	if _, err := Start("ready", "/nonexistent"); err == nil {
		t.Error("what is not there starts")
	}
}

// One that dies says why; one that answers nonsense is told apart.
func TestAnswerFails(t *testing.T) {
	for kind, want := range map[string]string{"mute": "it went wrong", "babble": "no JSON"} {
		if err := mustStart(t, kind).Ask(t.Context(), 1, new(int)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", kind, err, want)
		}
	}
	if err := mustStart(t, "echo").Ask(t.Context(), func() {}, nil); err == nil {
		t.Error("a question that is no JSON")
	}
}

// One that does not answer is ended when the time is over.
func TestNoAnswer(t *testing.T) {
	p := mustStart(t, "deaf")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := p.Ask(ctx, 1, new(int)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-p.done
}

func TestFindVrnic(t *testing.T) {
	dir := t.TempDir()
	vrnic := dir + "/vrnic"
	if err := os.WriteFile(vrnic, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	got, remove, err := FindVrnic()
	if err != nil || got != vrnic {
		t.Errorf("%q, %v", got, err)
	}
	remove()
	if _, err := os.Stat(vrnic); err != nil {
		t.Error("what was there already has been removed")
	}
	t.Setenv("PATH", t.TempDir()) // nor is there a Go to build it with
	if _, _, err := FindVrnic(); err == nil || !strings.Contains(err.Error(), "--vrnic") {
		t.Errorf("%v", err)
	}
}
