// Agent is the only process of the peer's guest: it is init, loads the modules that the initrd
// lists, configures the NIC and the RDMA device on it, and runs commands for the test on the other
// side of a virtio-serial port. When the port closes it turns the machine off.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/integration/peer/internal/ctl"
	"github.com/vrnic/vrnic/internal/netlab"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: this is the init of a test guest; run it nowhere else")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Println("agent:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("agent: power off:", err)
	}
}

func run() error {
	for _, m := range []struct{ dir, fs string }{
		{"/proc", "proc"}, {"/sys", "sysfs"}, {"/dev", "devtmpfs"}, {"/tmp", "tmpfs"},
	} {
		if err := unix.Mount(m.fs, m.dir, m.fs, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	// Verbs programs pin what they register.
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited); err != nil {
		return fmt.Errorf("lift RLIMIT_MEMLOCK: %w", err)
	}
	_ = os.Setenv("PATH", "/bin") // a good name and value
	if err := loadModules("/etc/modules"); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	a := agent{port: port, running: make(map[int]*child)}
	return a.serve()
}

// loadModules loads the files that list names, in that order.
func loadModules(list string) error {
	b, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(b)) {
		if err := loadModule(name, ""); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

func loadModule(file, params string) error {
	mod, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := unix.InitModule(mod, params); err != nil {
		return fmt.Errorf("load %s %s: %w", filepath.Base(file), params, err)
	}
	return nil
}

// openPort opens the control port as soon as the driver has made it.
func openPort() (*os.File, error) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(
		20 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == ctl.PortName {
				// Blocking, so that a read waits even where the port cannot be polled.
				fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(n)), unix.O_RDWR|unix.O_CLOEXEC, 0)
				if err != nil {
					return nil, err
				}
				return os.NewFile(uintptr(fd), ctl.PortName), nil
			}
		}
	}
	return nil, errors.New("no control port")
}

type agent struct {
	port *os.File

	mu      sync.Mutex     // guards writing to port, and running
	running map[int]*child // +checklocks:mu
}

// A child is a command that runs.
type child struct {
	*os.Process
	input io.WriteCloser // nil: none
}

func (a *agent) reply(r ctl.Reply) {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // the type can always be marshalled
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.port.Write(append(b, '\n')); err != nil {
		fmt.Println("agent: reply:", err)
	}
}

// done says how a request went that has nothing else to tell.
func (a *agent) done(id int, err error) {
	r := ctl.Reply{ID: id, Done: true}
	if err != nil {
		r.Fault = err.Error()
	}
	a.reply(r)
}

// serve handles requests until the other side is gone.
func (a *agent) serve() error {
	var in io.Reader = a.port
	if err := a.waitHost(&in); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r ctl.Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("request: %w", err)
		}
		switch {
		case r.Hello:
			a.reply(ctl.Reply{ID: r.ID, Done: true})
		case r.Setup != nil:
			a.done(r.ID, setup(r.Setup))
		case r.Run != nil:
			a.start(r.ID, r.Run)
		case r.Read != "":
			re := ctl.Reply{ID: r.ID, Done: true}
			var err error
			if re.Out, err = os.ReadFile(r.Read); err != nil {
				re.Fault = err.Error()
			}
			a.reply(re)
		case r.Input != nil:
			a.mu.Lock()
			c := a.running[r.ID]
			a.mu.Unlock()
			if c != nil && c.input != nil {
				_, _ = c.input.Write(r.Input) // it may have ended by itself
			}
		case r.Kmsg:
			re := ctl.Reply{ID: r.ID, Done: true, Out: make([]byte, 1<<18)}
			n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_CLEAR, re.Out)
			if err != nil {
				re.Fault = fmt.Sprintf("kernel's messages: %v", err)
			}
			re.Out = re.Out[:max(n, 0)]
			a.reply(re)
		case r.Siw != nil:
			a.done(r.ID, reload(r.Siw))
		case r.Netem != nil:
			a.done(r.ID, impair(r.Netem))
		case r.Signal != 0:
			a.mu.Lock()
			if c := a.running[r.ID]; c != nil {
				_ = c.Signal(syscall.Signal(r.Signal)) // it may have ended by itself
			}
			a.mu.Unlock()
		}
	}
	return lines.Err()
}

// waitHost waits for the first octets. Until the driver has heard of the host, a read says end
// of file.
func (a *agent) waitHost(in *io.Reader) error {
	b := make([]byte, 4096)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(
		5 * time.Millisecond) {
		n, err := a.port.Read(b)
		if n > 0 {
			*in = io.MultiReader(strings.NewReader(string(b[:n])), a.port)
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return errors.New("nobody at the control port")
}

// nic is the guest's only network interface.
const nic = "eth0"

func setup(s *ctl.Setup) error {
	ns, err := netlab.Here()
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := ns.SetUp("lo"); err != nil {
		return err
	}
	if s.MTU != 0 {
		if err := ns.SetMTU(nic, s.MTU); err != nil {
			return err
		}
	}
	// The kernel asks for a neighbour from the link-local address, and for none while that is being
	// looked for on the link: whoever wants an address handle within two seconds is not told one. It
	// begins to look after a random part of the delay, also where it then does not ask anybody.
	for _, name := range []string{"dad_transmits", "router_solicitation_delay"} {
		if err := ns.Sysctl("ipv6/conf/"+nic+"/"+name, "0"); err != nil {
			return err
		}
	}
	if err := ns.SetUp(nic); err != nil {
		return err
	}
	for _, p := range s.Addrs {
		if err := ns.AddAddr(nic, p); err != nil {
			return err
		}
	}
	if err := ns.WaitRunning(nic, 10*time.Second); err != nil {
		return err
	}
	if err := waitAddrs(10 * time.Second); err != nil {
		return err
	}
	if s.RoCE {
		return addDevice("rxe")
	}
	return addDevice("siw")
}

// waitAddrs waits until the NIC has a link-local address, and each of its addresses can be used.
func waitAddrs(within time.Duration) error {
	link, err := netlink.LinkByName(nic)
	if err != nil {
		return err
	}
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
		changing := errors.Is(err, netlink.ErrDumpInterrupted)
		if err != nil && !changing {
			return err
		}
		local, tentative := false, changing
		for _, a := range addrs {
			local = local || a.IP.IsLinkLocalUnicast()
			tentative = tentative || a.Flags&unix.IFA_F_TENTATIVE != 0
		}
		if local && !tentative {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("addresses of %s that cannot be used: %v", nic, addrs)
		}
	}
}

// addDevice makes a device of a driver on the NIC, as `rdma link add` does. Its module is loaded.
func addDevice(driver string) error {
	if err := netlink.RdmaLinkAdd(driver+"0", driver, nic); err != nil {
		return fmt.Errorf("add a device of %s on %s: %w", driver, nic, err)
	}
	return nil
}

// reload puts another build of siw, or the same with other parameters, in the place of the one
// that is loaded. Nothing may use it.
func reload(s *ctl.Siw) error {
	// The device goes with its driver. Until its last user's traces have gone the kernel says no.
	var err error
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(
		20 * time.Millisecond) {
		if err = unix.DeleteModule("siw", unix.O_NONBLOCK); err == nil || errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unload siw: %w", err)
	}
	if err := loadModule("/usr/lib/modules/"+s.Variant+".ko", s.Params); err != nil {
		return err
	}
	return addDevice("siw")
}

// impair sets netem up for what goes out of the NIC and, by way of a device that all it receives
// is sent through, for what comes in.
func impair(n *ctl.Netem) error {
	const in = "ifb0" // the module makes it
	tc := func(args ...string) error {
		if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("tc %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	// What is not there cannot be taken off; that is all that can go wrong here.
	for _, args := range []string{"root", "ingress"} {
		_ = tc("qdisc", "del", "dev", nic, args)
	}
	_ = tc("qdisc", "del", "dev", in, "root")
	if len(n.Out) > 0 {
		if err := tc(append([]string{"qdisc", "add", "dev", nic, "root", "netem"},
			n.Out...)...); err != nil {
			return err
		}
	}
	if len(n.In) == 0 {
		return nil
	}
	ns, err := netlab.Here()
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := ns.SetUp(in); err != nil {
		return err
	}
	for _, args := range [][]string{
		append([]string{"qdisc", "add", "dev", in, "root", "netem"}, n.In...),
		{"qdisc", "add", "dev", nic, "ingress"},
		{"filter", "add", "dev", nic, "parent", "ffff:", "matchall", "action", "mirred", "egress",
			"redirect", "dev", in},
	} {
		if err := tc(args...); err != nil {
			return err
		}
	}
	return nil
}

// start runs a command and reports on it from goroutines of its own.
func (a *agent) start(id int, r *ctl.Run) {
	if len(r.Argv) == 0 {
		a.reply(ctl.Reply{ID: id, Done: true, Fault: "empty command"})
		return
	}
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	cmd.Stdout = writer(func(b []byte) { a.reply(ctl.Reply{ID: id, Out: b}) })
	cmd.Stderr = writer(func(b []byte) { a.reply(ctl.Reply{ID: id, Err: b}) })
	var input io.WriteCloser
	var err error
	if r.Input {
		input, err = cmd.StdinPipe()
	}
	a.mu.Lock()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		a.running[id] = &child{cmd.Process, input}
	}
	a.mu.Unlock()
	if err != nil {
		a.reply(ctl.Reply{ID: id, Done: true, Fault: err.Error()})
		return
	}
	go func() {
		_ = cmd.Wait() // the state says it all
		a.mu.Lock()
		delete(a.running, id)
		a.mu.Unlock()
		status := cmd.ProcessState.ExitCode()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			status = 128 + int(ws.Signal())
		}
		a.reply(ctl.Reply{ID: id, Done: true, Status: status})
	}()
}

// A writer passes on what is written to it.
type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }
