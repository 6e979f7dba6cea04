package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/check"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/launch"
	"github.com/vrnic/vrnic/shm"
	"github.com/vrnic/vrnic/verbs"
	"github.com/vrnic/vrnic/verbs/build"
)

func execCommand() *cli.Command {
	return &cli.Command{
		Name:  "exec",
		Usage: "run a program with vrnic's libibverbs and librdmacm",
		UsageText: "vrnic exec [-d DEVICE] [--check] [--rsockets] [--lend-heap] [--sys HOW] " +
			"-- CMD [ARG]...",
		Description: "Runs CMD in place of itself, with libraries that give the daemon's devices to " +
			"unmodified verbs\n" +
			"programs, and to what these start:\n\n" +
			"   vrnic exec -- ibv_devices\n" +
			"   vrnic exec -- rping -s -a 10.77.0.2 &\n" +
			"   vrnic exec -d vrnic1 -- rping -c -a 10.77.0.2 -C 10 -v\n\n" +
			"CMD has to be a 64-bit program for glibc, linked dynamically, and neither setuid nor setgid. The daemon has\n" +
			"to run as root or as the user of CMD: it reads and writes the program's memory.\n\n" +
			"It sets for CMD: LD_LIBRARY_PATH and LD_PRELOAD, where what you have set stays; VRNIC_SOCKET; with -d\n" +
			"VRNIC_DEVICE; VRNIC_IFADDRS, the addresses that getifaddrs(3) is to list; VRNIC_SYS and VRNIC_SYS_DIR.\n\n" +
			"With --sys CMD finds the devices in /sys/class/infiniband and so on, and in /dev/infiniband. mount takes a\n" +
			"mount namespace for it, and a user namespace if you are not root; preload stands in front of the C\n" +
			"library's functions; auto does the first for root and the second for others.\n\n" +
			"With --rsockets CMD's sockets of TCP that it binds to an address of a device, or connects to one of a device's\n" +
			"subnet, are sockets over RDMA: programs that know nothing of RDMA use it. What listens at all addresses does so\n" +
			"at the device's, too. The other end is a program under --rsockets as well, or any that uses rsocket(7).\n\n" +
			"With --lend-heap CMD's large and page-aligned allocations (64 KiB or more, posix_memalign of a page or more) lie in\n" +
			"memory that the daemon maps when CMD registers it: messages to and from there are copied once, with no system call,\n" +
			"which makes 64 KiB messages within a device some twenty times as fast. It costs a copy of these allocations in each\n" +
			"fork(2), and is not for programs with a sanitizer. docs/verbs.md says what else is different.\n\n" +
			"With --check what CMD does with verbs is followed, and mistakes are told on stderr, each once, with the places in\n" +
			"the program: leaks, memory used after its region, buffers written while the device has them, completions that\n" +
			"nobody polls, queues that run over or dry, and more. CMD is a child then. docs/laboratory.md has the list.\n\n" +
			"Exit status: CMD's own; with --check 66 if there are findings; or 1 if the daemon or the libraries are not there, 2 for wrong usage, 126 if\n" +
			"CMD cannot be run, 127 if there is no such program.",
		Flags: append([]cli.Flag{
			socketFlag(),
			&cli.StringFlag{Name: "device", Aliases: []string{"d"}, EnvVars: []string{"VRNIC_DEVICE"},
				Usage: "show the program this `DEVICE` only (default: all)"},
			// Not by itself: a fork copies what is lent (docs/decisions.md#X9).
			&cli.BoolFlag{Name: "lend-heap", EnvVars: []string{"VRNIC_LEND_HEAP"},
				Usage: "let the daemon map what the program allocates and registers"},
			&cli.BoolFlag{Name: "rsockets", Usage: "give the program's TCP sockets to RDMA"},
			sysFlag(),
			&cli.StringFlag{Name: "lib-dir", EnvVars: []string{"VRNIC_LIB_DIR"},
				Usage: "take the libraries from `DIR`, not from this program"},
		}, checkFlags()...),
		Action: runExec,
	}
}

func runExec(c *cli.Context) error {
	args := c.Args().Slice()
	if len(args) == 0 {
		return usagef("exec wants a program to run: vrnic exec -- CMD [ARG]...")
	}
	checked, err := wantsCheck(c)
	if err != nil {
		return err
	}
	prog, err := launch.Find(args[0], os.Getenv("PATH"))
	if err != nil {
		return launchError(err)
	}
	set := launch.Settings{Device: c.String("device"), LendHeap: c.Bool("lend-heap"), Program: prog}
	if set.LendHeap && prog.ASAN {
		return fmt.Errorf("%s has the address sanitizer, whose allocator it needs: run it without "+
			"--lend-heap", prog.Path)
	}
	warn, err := askDaemon(c, &set)
	if err != nil {
		return err
	}
	// Last of what can fail: where there is no other place the libraries are in descriptors, which
	// stay open.
	say := func(line string) { fmt.Fprintf(c.App.ErrWriter, "vrnic: %s\n", line) }
	if set.Libs, err = verbsLibs(c.String("lib-dir"), prog.Musl, say); err != nil {
		return err
	}
	if c.Bool("rsockets") {
		if set.Libs.Dir == "" {
			return errors.New("--rsockets takes a directory for a program of its own, and there is none: " +
				"set TMPDIR to one that can hold executables")
		}
		set.RSockets = launch.AskRSockets(os.Geteuid())
	}
	for _, line := range []string{prog.Hint, prog.Lacks, warn} {
		if line != "" {
			say(oneLine(line))
		}
	}
	if checked {
		return runChecked(c, args, set)
	}
	return replace(prog.Path, args, launch.Env(os.Environ(), set))
}

// launchError gives err the exit status that it asks for.
func launchError(err error) error {
	if e := (*launch.Error)(nil); errors.As(err, &e) {
		return cli.Exit(e.Text, e.Status)
	}
	return err
}

// replace executes a program in place of this one. It returns only if that fails.
func replace(path string, args, env []string) error {
	err := syscall.Exec(path, args, env)
	if errors.Is(err, syscall.ENOEXEC) && isText(path) {
		path, args = forShell(path, args)
		err = syscall.Exec(path, args, env)
	}
	return cannotRun(path, err)
}

// forShell is how a script without a first line that says for whom is run: as execvp(3) does it.
func forShell(path string, args []string) (string, []string) {
	return "/bin/sh", append([]string{"/bin/sh", path}, args[1:]...)
}

func cannotRun(path string, err error) error {
	status := launch.StatusCannotRun
	if errors.Is(err, fs.ErrNotExist) {
		status = launch.StatusNotFound
	}
	return cli.Exit(fmt.Sprintf("cannot run %s: %v", path, err), status)
}

// isText guesses as shells do: no zero octet near the beginning.
func isText(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, 128)
	n, _ := f.Read(b)
	return !slices.Contains(b[:n], 0)
}

// askDaemon fills in what the daemon knows, and so finds out whether programs can use it. warn is
// not empty if C programs of this user cannot.
func askDaemon(c *cli.Context, set *launch.Settings) (warn string, err error) {
	if set.Socket, err = filepath.Abs(socketPath(c)); err != nil {
		return "", err
	}
	client, err := dialPath(set.Socket)
	if err != nil {
		return "", err
	}
	defer client.Close()
	names := client.Devices()
	if set.Device != "" {
		if !slices.Contains(names, set.Device) {
			return "", fmt.Errorf("the daemon at %s has no device %q; it has %s", set.Socket, set.Device,
				strings.Join(names, ", "))
		}
		names = []string{set.Device}
	}
	for _, name := range names {
		device, err := client.Open(name)
		if err != nil {
			return "", err
		}
		set.IfAddrs = launch.AppendIfAddrs(set.IfAddrs, name, device.Attr().Addrs)
		set.RoCE = set.RoCE || device.Attr().RoCE
		if err := device.Close(); err != nil {
			return "", err
		}
	}
	daemon, err := client.Daemon()
	if err != nil {
		return "", err
	}
	if warn = distrust(set.Socket, daemon.UID); warn != "" {
		return warn, nil
	}
	return "", showSys(c, set, client, daemon.UID)
}

// distrust says why C programs would not use a daemon of this user: it gets their memory.
func distrust(socket string, uid uint32) string {
	if uid == 0 || int(uid) == os.Geteuid() {
		return ""
	}
	id := strconv.FormatUint(uint64(uid), 10)
	who := "uid " + id
	if u, err := user.LookupId(id); err == nil {
		who = u.Username
	}
	return fmt.Sprintf("the daemon at %s runs as %s, to whom your programs do not lend their memory: "+
		"they will find no device. Use a daemon of root's or of your own", socket, who)
}

// verbsLibs finds the libraries for a program of musl's or another: where the user says, in this
// program, or installed beside it; else it builds them.
func verbsLibs(dir string, musl bool, say func(string)) (launch.Libs, error) {
	if dir != "" {
		libs, err := launch.Installed(dir)
		if err != nil {
			return libs, fmt.Errorf("--lib-dir: %w", err)
		}
		return libs, nil
	}
	contents, err := build.Libraries(musl)
	if err != nil {
		return launch.Libs{}, err
	}
	bases := launch.Bases(os.Geteuid(), os.Getenv)
	if slices.ContainsFunc(launch.Names, func(name string) bool { return contents[name] == nil }) {
		if exe, err := os.Executable(); err == nil {
			if libs, err := launch.Beside(exe, musl); err == nil {
				return libs, nil
			}
		}
		return launch.Compile(verbs.Source, bases, musl, say)
	}
	return launch.Place(contents, bases)
}

// statusFound is how a program ends in which --check has found mistakes.
const statusFound = 66

func checkFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "check", Usage: "look for mistakes in how the program uses verbs"},
		&cli.BoolFlag{Name: "pedantic", Usage: "with --check: say what may be meant, too"},
		&cli.StringFlag{Name: "check-json", Usage: "with --check: write each finding to `FILE`, a line " +
			"of JSON"},
		&cli.IntFlag{Name: "check-status", Value: statusFound, Usage: "with --check: end with `STATUS` " +
			"if there are findings; 0: with the program's own"},
	}
}

// wantsCheck reports whether the program is to be looked at.
func wantsCheck(c *cli.Context) (bool, error) {
	for _, name := range []string{"pedantic", "check-json", "check-status"} {
		if c.IsSet(name) && !c.Bool("check") {
			return false, usagef("--%s goes with --check", name)
		}
	}
	if s := c.Int("check-status"); s < 0 || s > 255 {
		return false, usagef("--check-status is from 0 to 255")
	}
	if c.Bool("check") && c.Bool("rsockets") {
		return false, usagef("--check is for programs that use verbs themselves, --rsockets for others")
	}
	return c.Bool("check"), nil
}

// runChecked runs the program as a child, and says what is wrong with it.
func runChecked(c *cli.Context, args []string, set launch.Settings) error {
	opts := check.Options{Out: c.App.ErrWriter, Pedantic: c.Bool("pedantic"),
		Counts: func(device string, qpn uint32) (check.Counts, bool) {
			return countsOf(set.Socket, device, qpn)
		}}
	if name := c.String("check-json"); name != "" {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		opts.JSON = f
	}
	l, err := check.Listen(opts)
	if err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	set.Check = l.Address
	path, env := set.Program.Path, launch.Env(os.Environ(), set)
	status, err := check.Run(path, args, env)
	if errors.Is(err, syscall.ENOEXEC) && isText(path) {
		path, args = forShell(path, args)
		status, err = check.Run(path, args, env)
	}
	n, closeErr := l.Close()
	if err != nil {
		return cannotRun(path, err)
	}
	if closeErr != nil {
		return closeErr
	}
	summary(c.App.ErrWriter, n)
	if own := c.Int("check-status"); n > 0 && own != 0 {
		status = own
	}
	if status != 0 {
		return cli.Exit("", status)
	}
	return nil
}

func summary(w io.Writer, n int) {
	switch n {
	case 0:
		fmt.Fprintln(w, "vrnic check: nothing found")
	case 1:
		fmt.Fprintln(w, "vrnic check: 1 finding")
	default:
		fmt.Fprintf(w, "vrnic check: %d findings\n", n)
	}
}

// countsOf asks the daemon what it has counted of a queue pair.
func countsOf(socket, device string, qpn uint32) (c check.Counts, ok bool) {
	client, err := shm.Dial(socket)
	if err != nil {
		return c, false // it has gone, and so has the queue pair
	}
	defer client.Close()
	rows, err := client.Stat()
	if err != nil {
		return c, false
	}
	for _, raw := range rows {
		var row struct {
			Kind, Dev string
			QPN       uint32
			check.Counts
		}
		if json.Unmarshal(raw, &row) == nil && row.Kind == "qp" && row.Dev == device && row.QPN == qpn {
			row.Refused = refusedOf(client, device, qpn)
			return row.Counts, true
		}
	}
	return c, false
}

// refusedOf asks the daemon what the peer of a queue pair has not got; nil: nobody knows of such.
func refusedOf(client *shm.Client, device string, qpn uint32) *check.Refused {
	rows, err := client.List("qp")
	if err != nil {
		return nil
	}
	for _, raw := range rows {
		var row struct {
			Dev     string
			QPN     uint32
			Refused string
			RKey    string `json:"refused_rkey"`
			Addr    string `json:"refused_addr"`
			Octets  uint32 `json:"refused_octets"`
			Why     string `json:"refused_why"`
		}
		if json.Unmarshal(raw, &row) != nil || row.Dev != device || row.QPN != qpn {
			continue
		}
		key, err := strconv.ParseUint(row.RKey, 0, 32)
		addr, addrErr := strconv.ParseUint(row.Addr, 0, 64)
		if err != nil || addrErr != nil { // nothing was refused
			return nil
		}
		return &check.Refused{Use: row.Refused, RKey: uint32(key), Addr: addr, Octets: row.Octets,
			Why: row.Why}
	}
	return nil
}
