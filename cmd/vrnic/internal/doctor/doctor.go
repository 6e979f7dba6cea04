// Package doctor looks a host over for what vrnic uses of it, and says what to do about what is
// missing. Checks are pure functions of a Host, which tests make up.
package doctor

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Host is what checks ask.
type Host struct {
	Kernel, Arch string
	Root         bool
	Version      string                            // of vrnic
	Read         func(path string) (string, error) // a file of /proc
	Open         func(path string) error           // for reading and writing
	NetAdmin     bool                              // the capability
	Sealing      error                             // why memory cannot be made and sealed
	UserNS       error                             // why a user namespace cannot be made
	Descriptors  [2]uint64                         // limits of open files: soft and hard
	Cores        uint64                            // limit of core dumps, octets
	Landlock     int                               // version; 0: none
	RoCEPort     error                             // why UDP port 4791 cannot be had
	Libraries    int                               // in C, that this vrnic carries
	Compiler     bool                              // a C compiler and make are there
	Daemon       error                             // why the daemon at Socket does not answer
	NoDaemon     bool                              // because there is none
	Socket       string
}

// A Finding is what a check has found.
type Finding struct {
	Check string `json:"check"`
	// Is is ok, note (something works less well, or not) or bad (vrnic does not work).
	Is     string `json:"is"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"`
}

// Values of Finding.Is.
const (
	ok   = "ok"
	note = "note"
	bad  = "bad"
)

func fine(format string, args ...any) Finding {
	return Finding{Is: ok, Found: fmt.Sprintf(format, args...)}
}

func (f Finding) as(is, advice string) Finding {
	f.Is, f.Advice = is, advice
	return f
}

var checks = []struct {
	name string
	look func(*Host) Finding
}{
	{"vrnic", func(h *Host) Finding { return fine("%s", h.Version) }},
	{"kernel", kernel},
	{"memory", func(h *Host) Finding {
		if h.Sealing != nil {
			return fine("%v", h.Sealing).as(bad, "programs and daemon share sealed memory files: allow "+
				"memfd_create(2) in the container's seccomp profile")
		}
		return fine("memory can be shared and sealed")
	}},
	{"descriptors", descriptors},
	{"mappings", mappings},
	{"tap", tap},
	{"userns", func(h *Host) Finding {
		if h.UserNS != nil {
			return fine("%v", h.UserNS).as(note, "vrnic exec shows /sys by functions in front of the C "+
				"library's then, which is enough for most programs; kernel.unprivileged_userns_clone, "+
				"user.max_user_namespaces and AppArmor decide")
		}
		return fine("user namespaces can be made")
	}},
	{"ptrace", ptrace},
	{"landlock", func(h *Host) Finding {
		if h.Landlock == 0 {
			return fine("this kernel has none, or it is switched off").as(note,
				"a daemon of root keeps its rights over files: boot with landlock among lsm=")
		}
		return fine("version %d", h.Landlock)
	}},
	{"seccomp", func(h *Host) Finding {
		if s, err := h.Read("/proc/self/status"); err != nil || !strings.Contains(s, "\nSeccomp:") {
			return fine("this kernel has none").as(note, "a daemon keeps all its system calls")
		}
		return fine("system calls can be filtered")
	}},
	{"dumps", func(h *Host) Finding {
		if h.Cores != 0 {
			return fine("core dumps are on").as(note,
				"those of a daemon hold what it sends: ulimit -c 0, or LimitCORE=0 in its unit")
		}
		return fine("core dumps are off")
	}},
	{"roce", func(h *Host) Finding {
		if h.RoCEPort != nil {
			return fine("UDP port 4791: %v", h.RoCEPort).as(note, "devices with host=ADDR,transport=roce "+
				"need it: somebody has it, a daemon or rdma_rxe (rdma link show)")
		}
		return fine("UDP port 4791 is free")
	}},
	{"libraries", libraries},
	{"daemon", daemon},
}

// Look is what all checks find.
func Look(h *Host) (all []Finding) {
	for _, c := range checks {
		f := c.look(h)
		f.Check = c.name
		all = append(all, f)
	}
	return all
}

// Bad says that something of all does not work.
func Bad(all []Finding) bool {
	for _, f := range all {
		if f.Is == bad {
			return true
		}
	}
	return false
}

// Write prints findings, each with its advice below it.
func Write(w io.Writer, all []Finding) error {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%-5s %-12s %s\n", f.Is, f.Check, f.Found)
		for _, line := range wrap(f.Advice, 76) {
			fmt.Fprintf(&b, "%-18s %s\n", "", line)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap cuts s to lines of n octets, between words.
func wrap(s string, n int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len(line)+1+len(word) > n {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

func kernel(h *Host) Finding {
	f := fine("Linux %s on %s", h.Kernel, h.Arch)
	parts := strings.FieldsFunc(h.Kernel, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 {
		return f.as(note, "which version is that?")
	}
	major, err := strconv.Atoi(parts[0])
	minor, merr := strconv.Atoi(parts[1])
	if err != nil || merr != nil || major < 5 || major == 5 && minor < 10 {
		return f.as(note, "vrnic is tested on 5.10 and later")
	}
	return f
}

// descriptors: each channel and open device of a program takes one of the daemon's.
func descriptors(h *Host) Finding {
	const enough = 65536
	f := fine("%d, at most %d", h.Descriptors[0], h.Descriptors[1])
	if h.Descriptors[1] < enough { // Go raises the soft one
		return f.as(note, "each completion channel takes one in program and daemon: raise the hard "+
			"limit (ulimit -Hn, LimitNOFILE=262144 in the daemon's unit) for many connections")
	}
	return f
}

func mappings(h *Host) Finding {
	s, err := h.Read("/proc/sys/vm/max_map_count")
	if err != nil {
		return fine("%v", err).as(bad, "mount /proc: a daemon finds its bounds there")
	}
	n, err := strconv.Atoi(strings.TrimSpace(s))
	f := fine("%d memory mappings", n)
	if err != nil || n < 65530 {
		return f.as(note, "each queue pair takes one or two: sysctl vm.max_map_count=262144")
	}
	return f
}

func tap(h *Host) Finding {
	const without = "devices with host=ADDR, and ports over Unix sockets, need neither"
	if err := h.Open("/dev/net/tun"); err != nil {
		return fine("%v", err).as(note, "ports that are TAPs need it: modprobe tun, or give the "+
			"container --device /dev/net/tun; "+without)
	}
	if !h.NetAdmin {
		return fine("/dev/net/tun opens; no CAP_NET_ADMIN").as(note, "a TAP takes root, or one that "+
			"root made for this user (ip tuntap add); "+without)
	}
	return fine("TAPs can be made")
}

func ptrace(h *Host) Finding {
	s, err := h.Read("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return fine("nothing restricts it")
	}
	s = strings.TrimSpace(s)
	f := fine("kernel.yama.ptrace_scope is %s", s)
	if s != "0" && s != "1" { // to 1 the C library gives leave
		return f.as(note, "long copies for C programs go the slower way: sysctl "+
			"kernel.yama.ptrace_scope=1, or vrnic exec --lend-heap")
	}
	return f
}

func libraries(h *Host) Finding {
	switch {
	case h.Libraries > 0:
		return fine("libibverbs and librdmacm are in this vrnic")
	case h.Compiler:
		return fine("not in this vrnic; vrnic exec builds them when it first wants them")
	}
	return fine("this vrnic carries none, and there is no C compiler").as(note,
		"vrnic exec needs them: install gcc, libc6-dev and make, or build vrnic with make build")
}

func daemon(h *Host) Finding {
	switch {
	case h.NoDaemon:
		return fine("none runs at %s", h.Socket).as(note,
			"start one: vrnic up; or name its socket with --socket or $VRNIC_SOCKET")
	case h.Daemon != nil:
		return fine("%v", h.Daemon).as(bad, "programs of this version reach no device there")
	}
	return fine("answers at %s", h.Socket)
}
