package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/config"
)

// Each flag of vrnic up is a key of its file, and the other way around.
func TestFlagsAreKeys(t *testing.T) {
	keys := config.Keys()
	for _, f := range upCommand().Flags {
		name := f.Names()[0]
		at := slices.Index(keys, name)
		if at < 0 && name != "config" {
			t.Errorf("--%s is no key of a file", name)
		}
		if at >= 0 {
			keys = slices.Delete(keys, at, at+1)
		}
	}
	if len(keys) != 0 {
		t.Errorf("keys that are no flags: %v", keys)
	}
}

// The file in the documents is one.
func TestDocumentedFile(t *testing.T) {
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, yaml, found := strings.Cut(string(text), "```yaml\n")
	yaml, _, closed := strings.Cut(yaml, "```")
	settings, err := config.Parse("docs/operating.md", []byte(yaml))
	if err == nil {
		// This machine need not have the group.
		_, err = config.Build(append(settings, config.Flag("socket-group", "0")))
	}
	if !found || !closed || err != nil || len(settings) == 0 {
		t.Errorf("%v, %v, %v, %v", found, closed, settings, err)
	}
}

// The file that a package has is one that a daemon could be made of.
func TestPackagedFile(t *testing.T) {
	status, out, errs := vrnic("config", "check", "../../packaging/debian/vrnic.yaml")
	if status != 0 || errs != "" || !strings.Contains(out, ": good: 2 devices") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
}

// A daemon is as its file has it, and as the flags beside it have it before that. What the file has
// that cannot be is told before anything is made, as vrnic config check tells it.
func TestUpConfig(t *testing.T) {
	dir := socketDir(t)
	file, socket := filepath.Join(dir, "vrnic.yaml"), filepath.Join(dir, "s")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("socket: " + socket + "\nsandbox: on\ndevice:\n  - {name: one, addr: 10.77.0.2/24}\n" +
		"  - two,addr=10.77.0.3/24\n")
	if status, out, errs := vrnic("config", "check", file); status != 0 || errs != "" ||
		out != file+": good: 2 devices, 0 ports\n" {
		t.Errorf("config check: %d, %q, %q", status, out, errs)
	}
	p := startUp(t, nil, "up", "--config", file)
	if got, want := p.ready(), "ready socket="+socket+" devices=one,two"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	p.stop()
	p = startUp(t, nil, "up", "--config", file, "--device", "three,addr=10.77.0.4/24")
	if got, want := p.ready(), "ready socket="+socket+" devices=three"; got != want {
		t.Errorf("with a flag: %q, want %q", got, want)
	}
	p.stop()

	for _, tt := range []struct{ text, want string }{
		{"socket: " + socket + "\n\ndevcie: x\n", file + ":3: devcie: unknown key"},
		{"socket: " + socket + "\ndevice:\n  - name: a\n    adr: 10.0.0.1/24\n",
			file + ":4: device.adr: "},
		{"socket: " + socket + "\nsandbox: maybe\n", `sandbox "maybe"`},
	} {
		write(tt.text)
		for _, args := range [][]string{{"config", "check", file}, {"up", "--config", file}} {
			status, out, errs := vrnic(args...)
			if status != exitUsage || out != "" || strings.Count(errs, "\n") != 1 ||
				!strings.Contains(errs, tt.want) {
				t.Errorf("%v of %q: %d, %q, %q; want %q", args, tt.text, status, out, errs, tt.want)
			}
		}
		if _, err := os.Stat(socket); err == nil {
			t.Errorf("%q: a socket was made", tt.text)
		}
	}
}
