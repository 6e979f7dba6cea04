package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/launch"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/sysfs"
	"github.com/vrnic/vrnic/shm"
)

// Values of --sys: how programs see the devices in /sys and /dev.
const (
	sysAuto    = "auto"    // by mounts if that takes no user namespace, else by functions
	sysMount   = "mount"   // by mounts, in a user namespace if need be
	sysPreload = "preload" // by functions in front of the C library's
	sysOff     = "off"
)

func sysFlag() cli.Flag {
	return &cli.StringFlag{Name: "sys", Value: sysAuto, EnvVars: []string{"VRNIC_SYS"},
		Usage: "show the devices in /sys and /dev, `HOW`: auto, mount, preload or off"}
}

// keeperCommand is the name of the command that keeps a directory up to date; exec starts it.
const keeperCommand = "sys-keeper"

// showSys makes what programs see in /sys and /dev, which holds is the process that uid is of has
// the daemon. Where it cannot be made a program does without, unless the user wants it.
func showSys(c *cli.Context, set *launch.Settings, client *shm.Client, uid uint32) error {
	set.SysMode = c.String("sys")
	switch set.SysMode {
	case sysOff:
		return nil
	case sysAuto, sysPreload:
	case sysMount:
		if e := os.Geteuid(); e != 0 && uint32(e) != uid {
			return fmt.Errorf("--sys=mount takes a user namespace, in which the daemon at %s would be "+
				"nobody's: use --sys=preload, or a daemon of your own", set.Socket)
		}
	default:
		return usagef("--sys %q is neither %s, %s, %s nor %s", set.SysMode, sysAuto, sysMount, sysPreload,
			sysOff)
	}
	use, err := holdSys(set, client)
	if err != nil && set.SysMode != sysAuto {
		return fmt.Errorf("--sys=%s: %w", set.SysMode, err)
	}
	if err != nil {
		set.SysMode = ""
		return nil //nolint:nilerr // as before there was anything to see
	}
	set.SysDir = use.Dir
	return inherit(use.File)
}

func holdSys(set *launch.Settings, client *shm.Client) (*sysfs.Use, error) {
	own, err := launch.Own(launch.Bases(os.Geteuid(), os.Getenv))
	if err != nil {
		return nil, err
	}
	return sysfs.Hold(own, set.Socket, set.Device,
		func() (sysfs.Tree, error) {
			return sysfs.Ask(client, set.Device, sysfs.HostInterfaces())
		},
		func(dir string, lock *os.File) error { return startKeeper(set, dir, lock) })
}

// firstFD is where descriptors for programs begin, above those that shells redirect.
const firstFD = 100

// inherit leaves f open in what this process executes, and for good.
func inherit(f *os.File) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD, firstFD)
	if errors.Is(err, unix.EINVAL) { // as many are not allowed
		fd, err = unix.Dup(int(f.Fd()))
	}
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	_ = fd
	return f.Close()
}

// startKeeper starts the process that keeps dir, with the lock as descriptor 3. It is nobody's
// child when this process becomes another program, which may wait for any child.
func startKeeper(set *launch.Settings, dir string, lock *os.File) error {
	cmd := exec.Command("/proc/self/exe", keeperCommand, "--detach", "--socket", set.Socket,
		"--device", set.Device, dir)
	cmd.Args[0], cmd.Dir = "vrnic", "/"
	cmd.ExtraFiles = []*os.File{lock}
	cmd.Env = append(os.Environ(), "LD_PRELOAD=") // which may be an outer exec's
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("start the keeper of %s: %w: %s", dir, err, out)
	}
	return nil
}

func sysKeeperCommand() *cli.Command {
	return &cli.Command{
		Name:   keeperCommand,
		Usage:  "keep what programs see in /sys up to date",
		Hidden: true,
		Flags: []cli.Flag{socketFlag(), &cli.StringFlag{Name: "device"},
			&cli.BoolFlag{Name: "detach"}},
		Action: runSysKeeper,
	}
}

func runSysKeeper(c *cli.Context) error {
	if c.NArg() != 1 {
		return usagef("%s is started by vrnic exec", keeperCommand)
	}
	lock := os.NewFile(3, "lock")
	if c.Bool("detach") {
		return detach(lock)
	}
	tick := time.NewTicker(sysfs.Interval)
	defer tick.Stop()
	k := &sysfs.Keeper{Dir: c.Args().First(), Device: c.String("device"), Lock: lock, Tick: tick.C,
		Dial: func() (sysfs.Daemon, error) { return shm.Dial(socketPath(c)) }}
	return k.Run()
}

// detach starts the same process again with no parent, no terminal and no descriptor but the lock.
func detach(lock *os.File) error {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		closeOnExec()
	}
	args := make([]string, 0, len(os.Args)-1)
	for _, a := range os.Args[1:] {
		if a != "--detach" {
			args = append(args, a)
		}
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0], cmd.ExtraFiles = "vrnic", []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// closeOnExec is for kernels before 5.11.
func closeOnExec() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
