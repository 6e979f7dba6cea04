package peer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/integration/peer/internal/ctl"
)

// A Config says how a guest is attached.
type Config struct {
	Link   string         // Unix stream socket that carries the Ethernet frames
	Listen bool           // QEMU listens on Link; else somebody must listen there
	MAC    string         // empty: one is made up
	Addrs  []netip.Prefix // of the NIC
	MTU    int            // of the NIC; 0: 1500
	RoCE   bool           // the RDMA device is of rxe, Linux's soft RoCEv2, and not of siw
	Pcap   string         // QEMU records the NIC's frames in this file
	// folder for console.log and qemu.log, which stay there; empty: one of our own
	Logs string
}

// A Guest is a running peer. Its methods may be called from several goroutines at once.
type Guest struct {
	cmd  *exec.Cmd
	port *os.File
	gone chan struct{} // closed when QEMU has ended
	log  string        // folder with console.log and qemu.log
	own  bool          // which goes with the guest

	mu       sync.Mutex
	nextID   int              // +checklocks:mu
	open     map[int]*Command // +checklocks:mu
	dead     error            // +checklocks:mu
	stopping bool             // +checklocks:mu
}

// defaultMAC is locally administered; guests on one switch need one each.
const defaultMAC = "52:54:00:77:00:01"

// Start boots a guest and configures its NIC and the RDMA device on it. It blocks until the guest
// can run commands, ctx ends, or QEMU does.
func Start(ctx context.Context, img *Image, cfg Config) (*Guest, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("peer: %w", os.NewSyscallError("socketpair", err))
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	port, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	files := []*os.File{theirs} // fd 3
	if !cfg.Listen {
		link, err := connectLink(cfg.Link)
		if err != nil {
			port.Close()
			return nil, fmt.Errorf("peer: %w", err)
		}
		defer link.Close()
		files = append(files, link) // fd 4
	}
	dir := cfg.Logs
	if dir == "" {
		dir, err = os.MkdirTemp("", "vrnic-peer-")
	} else {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		port.Close()
		return nil, fmt.Errorf("peer: %w", err)
	}
	g := &Guest{port: port, gone: make(chan struct{}), log: dir, own: cfg.Logs == "",
		open: make(map[int]*Command)}
	qlog, err := os.Create(filepath.Join(dir, "qemu.log"))
	if err != nil {
		port.Close()
		return nil, fmt.Errorf("peer: %w", err)
	}
	defer qlog.Close()
	g.cmd = exec.Command("qemu-system-x86_64",
		qemuArgs(img, cfg, filepath.Join(dir, "console.log"))...)
	g.cmd.Stdout, g.cmd.Stderr = qlog, qlog
	g.cmd.ExtraFiles = files
	// Of a group of its own: an interrupt at the terminal is for the test, which then stops us.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := g.cmd.Start(); err != nil {
		port.Close()
		g.removeLogs()
		return nil, fmt.Errorf("peer: %w", err)
	}
	go func() {
		_ = g.cmd.Wait() // how it ended is in its log
		close(g.gone)
	}()
	go g.receive()
	booted, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	err = g.call(booted, ctl.Request{Hello: true})
	if err == nil {
		err = g.call(ctx, ctl.Request{Setup: &ctl.Setup{Addrs: cfg.Addrs, MTU: cfg.MTU,
			RoCE: cfg.RoCE}})
	}
	if err != nil {
		err = fmt.Errorf("peer: start: %w\n%s", err, g.Log())
		g.Stop()
		return nil, err
	}
	return g, nil
}

// bootTime is what a guest may take to boot, which it does in seconds. One that has panicked early
// may not end.
const bootTime = 3 * time.Minute

// connectLink connects to whoever listens at path, for QEMU's netdev "socket". QEMU's "stream",
// which connects by itself and speaks the same, never looks again whether there is room in a socket
// that has been full (as of 7.2.22): from then on the guest sends nothing, and its kernel says
// "NETDEV WATCHDOG: transmit queue 0 timed out". A peer that sends in bulk to a machine that is
// busy came to that in minutes.
func connectLink(path string) (*os.File, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.File()
}

func qemuArgs(img *Image, cfg Config, console string) []string {
	mac, link := cfg.MAC, "socket,id=net,fd=4"
	if mac == "" {
		mac = defaultMAC
	}
	if cfg.Listen {
		link = "stream,id=net,server=on,addr.type=unix,addr.path=" + cfg.Link
	}
	args := []string{
		"-M", "q35", "-accel", "tcg", "-cpu", "max,la57=off", "-m", "384", "-nodefaults",
		"-no-user-config",
		"-display", "none", "-no-reboot",
		"-kernel", img.Kernel, "-initrd", img.Initrd,
		// no_timer_check: an emulated processor that gets none of the host's for a moment is not a
		// machine whose timer is broken, at which the kernel would panic.
		"-append", "console=ttyS0 loglevel=4 panic=-1 oops=panic mitigations=off random.trust_cpu=on " +
			"net.ifnames=0 no_timer_check",
		"-chardev", "file,id=console,path=" + console, "-serial", "chardev:console",
		"-device", "virtio-rng-pci",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=ctl,fd=3",
		"-device", "virtserialport,chardev=ctl,name=" + ctl.PortName,
		"-netdev", link,
		// Without offloads the peer sends what a wire would carry: real checksums, no segment
		// above the MTU.
		"-device", "virtio-net-pci,netdev=net,mac=" + mac + ",romfile=,csum=off,gso=off,guest_csum=off," +
			"guest_tso4=off,guest_tso6=off,guest_ufo=off,host_tso4=off,host_tso6=off,host_ufo=off" +
			hostMTU(cfg.MTU),
	}
	if cfg.Pcap != "" {
		args = append(args, "-object", "filter-dump,id=dump,netdev=net,maxlen=65536,file="+cfg.Pcap)
	}
	return args
}

func hostMTU(mtu int) string {
	if mtu <= 1500 {
		return ""
	}
	return fmt.Sprintf(",host_mtu=%d", mtu)
}

// Log returns the ends of the guest's console and of QEMU's own messages.
func (g *Guest) Log() string {
	var s strings.Builder
	for _, name := range []string{"qemu.log", "console.log"} {
		if b, err := os.ReadFile(filepath.Join(g.log, name)); err == nil && len(b) > 0 {
			fmt.Fprintf(&s, "--- %s\n%s\n", name, b[max(0, len(b)-4000):])
		}
	}
	return s.String()
}

// Stop turns the guest off and removes its files. Commands that run end with an error.
func (g *Guest) Stop() {
	g.mu.Lock()
	g.stopping = true
	g.mu.Unlock()
	g.port.Close() // the agent turns the machine off
	select {
	case <-g.gone:
	case <-time.After(3 * time.Second):
		_ = g.cmd.Process.Kill() // it may just have ended
		<-g.gone
	}
	g.removeLogs()
}

func (g *Guest) removeLogs() {
	if g.own {
		os.RemoveAll(g.log)
	}
}

var errGone = errors.New("peer: the guest has ended")

// ended says how a guest has gone that nobody has stopped: its console is all that is left of it.
func (g *Guest) ended() error {
	g.mu.Lock()
	stopping := g.stopping
	g.mu.Unlock()
	if stopping {
		return errGone
	}
	select {
	case <-g.gone:
		return fmt.Errorf("%w by itself (QEMU: %v)\n%s", errGone, g.cmd.ProcessState, g.Log())
	case <-time.After(3 * time.Second):
		return fmt.Errorf("%w: its agent has closed the control port, QEMU still runs\n%s",
			errGone, g.Log())
	}
}

// receive hands the guest's replies to their commands.
func (g *Guest) receive() {
	var err error
	lines := bufio.NewScanner(g.port)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r ctl.Reply
		if e := json.Unmarshal(lines.Bytes(), &r); e != nil {
			err = fmt.Errorf("peer: reply: %w", e)
			break
		}
		g.mu.Lock()
		c := g.open[r.ID]
		if r.Done {
			delete(g.open, r.ID)
		}
		g.mu.Unlock()
		if c != nil {
			c.take(r)
		}
	}
	if err == nil {
		err = g.ended()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead = err
	for id, c := range g.open {
		delete(g.open, id)
		c.end(err)
	}
}

// send gives r a number, registers c for the replies and sends it.
func (g *Guest) send(r ctl.Request, c *Command) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead != nil {
		return g.dead
	}
	if c != nil {
		g.nextID++
		r.ID, c.id = g.nextID, g.nextID
		g.open[r.ID] = c
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	if _, err := g.port.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	return nil
}

func (g *Guest) call(ctx context.Context, r ctl.Request) error {
	c := newCommand(g)
	if err := g.send(r, c); err != nil {
		return err
	}
	return c.Wait(ctx)
}

// A Command runs in the guest.
type Command struct {
	g    *Guest
	id   int
	argv []string
	done chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	out    bytes.Buffer  // standard output and error, as they came
	err    error         // valid once done is closed
	change chan struct{} // +checklocks:mu
}

func newCommand(g *Guest, argv ...string) *Command {
	return &Command{g: g, argv: argv, done: make(chan struct{}), change: make(chan struct{})}
}

// Start starts a command; there is no shell. The guest's PATH has what Build put in.
func (g *Guest) Start(argv ...string) (*Command, error) {
	c := newCommand(g, argv...)
	if err := g.send(ctl.Request{Run: &ctl.Run{Argv: argv}}, c); err != nil {
		return nil, err
	}
	return c, nil
}

// Run runs a command to its end and returns what it printed. If ctx ends first the command is
// killed.
func (g *Guest) Run(ctx context.Context, argv ...string) (string, error) {
	c, err := g.Start(argv...)
	if err != nil {
		return "", err
	}
	err = c.Wait(ctx)
	return c.Output(), err
}

// ReadFile returns the contents of a file of the guest, such as one of /proc. It may not be large.
func (g *Guest) ReadFile(ctx context.Context, name string) (string, error) {
	c := newCommand(g, "read", name)
	if err := g.send(ctl.Request{Read: name}, c); err != nil {
		return "", err
	}
	err := c.Wait(ctx)
	return c.Output(), err
}

// An ExitError is a command's status other than 0: its own, or 128 and the signal's number.
type ExitError struct {
	Argv   []string
	Status int
	Output string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("in the guest: %s: status %d\n%s", strings.Join(e.Argv, " "), e.Status,
		e.Output)
}

func (c *Command) take(r ctl.Reply) {
	c.mu.Lock()
	c.out.Write(r.Out)
	c.out.Write(r.Err)
	close(c.change)
	c.change = make(chan struct{})
	text := c.out.String()
	c.mu.Unlock()
	if !r.Done {
		return
	}
	switch {
	case r.Fault != "":
		c.end(fmt.Errorf("in the guest: %s: %s", strings.Join(c.argv, " "), r.Fault))
	case r.Status != 0:
		c.end(&ExitError{c.argv, r.Status, text})
	default:
		c.end(nil)
	}
}

func (c *Command) end(err error) {
	c.err = err
	close(c.done)
}

// Output returns what the command has printed so far.
func (c *Command) Output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// WaitOutput waits until the command has printed s, or has ended.
func (c *Command) WaitOutput(ctx context.Context, s string) error {
	for {
		c.mu.Lock()
		found, change := strings.Contains(c.out.String(), s), c.change
		c.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-change:
		case <-c.done:
			return fmt.Errorf("in the guest: %s ended without %q: %s", strings.Join(c.argv, " "), s,
				c.Output())
		case <-ctx.Done():
			return fmt.Errorf("in the guest: %s has not said %q: %w\n%s", strings.Join(c.argv, " "), s,
				ctx.Err(), c.Output())
		}
	}
}

// Signal sends a signal to the command.
func (c *Command) Signal(sig syscall.Signal) error {
	return c.g.send(ctl.Request{ID: c.id, Signal: int(sig)}, nil)
}

// Wait waits for the command's end; an exit status other than 0 is an *ExitError. If ctx ends
// first the command is killed.
func (c *Command) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		err := fmt.Errorf("in the guest: %s: %w\n%s", strings.Join(c.argv, " "), ctx.Err(), c.Output())
		return errors.Join(err, c.Signal(syscall.SIGKILL))
	}
}
