package doctor

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
)

// healthy is a host on which all is well.
func healthy() *Host {
	return &Host{Kernel: "6.1.0-18-amd64", Arch: "amd64", Version: "v1", NetAdmin: true,
		Open: func(string) error { return nil }, Descriptors: [2]uint64{1024, 1 << 20},
		Landlock: 3, Libraries: 3, Socket: "/run/vrnic.sock",
		Read: func(path string) (string, error) {
			return map[string]string{"/proc/sys/vm/max_map_count": "65530\n",
				"/proc/sys/kernel/yama/ptrace_scope": "1\n",
				"/proc/self/status":                  "Name:\tx\nSeccomp:\t0\n"}[path], nil
		}}
}

// Each check finds what is wrong with a host on which all else is well, and says what to do.
func TestChecks(t *testing.T) {
	for _, f := range Look(healthy()) {
		if f.Is != ok || f.Advice != "" || f.Found == "" {
			t.Errorf("on a healthy host: %+v", f)
		}
	}
	fault := errors.New("no such thing")
	file := func(path, text string, err error) func(*Host) {
		return func(h *Host) {
			was := h.Read
			h.Read = func(p string) (string, error) {
				if p == path {
					return text, err
				}
				return was(p)
			}
		}
	}
	for _, tt := range []struct {
		check, is, found, advice string
		change                   func(*Host)
	}{
		{"kernel", note, "Linux 4.19.0", "5.10", func(h *Host) { h.Kernel = "4.19.0" }},
		{"kernel", note, "Linux 5.9", "5.10", func(h *Host) { h.Kernel = "5.9.1-x" }},
		{"kernel", note, "Linux ", "which version", func(h *Host) { h.Kernel = "" }},
		{"memory", bad, "no such thing", "memfd_create", func(h *Host) { h.Sealing = fault }},
		{"descriptors", note, "1024, at most 4096", "LimitNOFILE",
			func(h *Host) { h.Descriptors[1] = 4096 }},
		{"mappings", bad, "no such thing", "mount /proc",
			file("/proc/sys/vm/max_map_count", "", fault)},
		{"mappings", note, "1000 memory", "vm.max_map_count",
			file("/proc/sys/vm/max_map_count", "1000\n", nil)},
		{"tap", note, "no such thing", "modprobe tun",
			func(h *Host) { h.Open = func(string) error { return fault } }},
		{"tap", note, "no CAP_NET_ADMIN", "ip tuntap", func(h *Host) { h.NetAdmin = false }},
		{"userns", note, "no such thing", "vrnic exec", func(h *Host) { h.UserNS = fault }},
		{"ptrace", note, "is 2", "--lend-heap",
			file("/proc/sys/kernel/yama/ptrace_scope", "2\n", nil)},
		{"ptrace", ok, "nothing restricts", "",
			file("/proc/sys/kernel/yama/ptrace_scope", "", fs.ErrNotExist)},
		{"landlock", note, "has none", "lsm=", func(h *Host) { h.Landlock = 0 }},
		{"seccomp", note, "has none", "system calls", file("/proc/self/status", "Name:\tx\n", nil)},
		{"dumps", note, "are on", "ulimit -c 0", func(h *Host) { h.Cores = 1 }},
		{"roce", note, "4791: no such thing", "rdma link", func(h *Host) { h.RoCEPort = fault }},
		{"libraries", ok, "builds them", "",
			func(h *Host) { h.Libraries, h.Compiler = 0, true }},
		{"libraries", note, "no C compiler", "gcc", func(h *Host) { h.Libraries = 0 }},
		{"daemon", note, "none runs at /run/vrnic.sock", "vrnic up",
			func(h *Host) { h.NoDaemon, h.Daemon = true, fault }},
		{"daemon", bad, "no such thing", "version", func(h *Host) { h.Daemon = fault }},
	} {
		h := healthy()
		tt.change(h)
		all := Look(h)
		for _, f := range all {
			switch {
			case f.Check != tt.check:
				if f.Is != ok {
					t.Errorf("%s: %s is %+v, too", tt.check, f.Check, f)
				}
			case f.Is != tt.is || !strings.Contains(f.Found, tt.found) ||
				!strings.Contains(f.Advice, tt.advice) || (f.Advice == "") != (tt.is == ok):
				t.Errorf("%s: %+v; want %s, %q, %q", tt.check, f, tt.is, tt.found, tt.advice)
			}
		}
		if Bad(all) != (tt.is == bad) {
			t.Errorf("%s: as a whole %v", tt.check, Bad(all))
		}
	}
}

// Advice stands below what it is about, in lines that a terminal has room for.
func TestWrite(t *testing.T) {
	h := healthy()
	h.NetAdmin = false
	var b bytes.Buffer
	if err := Write(&b, Look(h)); err != nil {
		t.Fatal(err)
	}
	want := "note  tap          /dev/net/tun opens; no CAP_NET_ADMIN\n" +
		"                   a TAP takes root, or one that root made for this user"
	if !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, &b)
	}
	for line := range strings.Lines(b.String()) {
		if len(line) > 100 {
			t.Errorf("a line of %d octets: %s", len(line), line)
		}
	}
}

// This host can be asked, whatever it is.
func TestThisHost(t *testing.T) {
	h := ThisHost()
	if h.Kernel == "" || h.Descriptors[0] == 0 || h.Sealing != nil {
		t.Errorf("%+v", h)
	}
}
