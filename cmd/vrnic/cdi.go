package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/cdi"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/launch"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/sysfs"
	"github.com/vrnic/vrnic/shm"
)

// cdiOutput is where runtimes look for what does not outlive the machine's next start.
const cdiOutput = "/var/run/cdi"

func cdiCommand() *cli.Command {
	return &cli.Command{
		Name:  "cdi",
		Usage: "give the devices to containers",
		Subcommands: []*cli.Command{{
			Name:      "generate",
			Usage:     "write the specification by which podman and docker give a device to a container",
			UsageText: "vrnic cdi generate [--output FILE|DIR|-]",
			Description: "For a daemon of vrnic up --containers DIR. Each of its devices, and all of them " +
				"together, become\ndevices of the Container Device Interface:\n\n" +
				"   vrnic cdi generate\n" +
				"   podman run --device vrnic.io/rnic=vrnic0 IMAGE ibv_devices\n" +
				"   podman run --device vrnic.io/rnic=all IMAGE ibv_devices\n\n" +
				"An image needs nothing of vrnic's, only verbs programs for glibc 2.28 or later. What it " +
				"needs is\nmounted: libraries, which are in a directory of this user's, and the daemon's\n" +
				"socket. Do it again when devices have come or gone; a daemon that starts anew " +
				"needs nothing.",
			Flags: []cli.Flag{socketFlag(), &cli.StringFlag{Name: "output", Value: cdiOutput,
				Usage: "write to `FILE`, whose name ends with .json or .yaml, or into a directory; - is " +
					"standard output"}},
			Action: asking(generateCDI),
		}},
	}
}

func generateCDI(c *cli.Context, client *shm.Client) error {
	output := c.String("output")
	var err error
	if output != "-" {
		if output, err = cdi.File(output); err != nil {
			return usagef("--output %v", err)
		}
	}
	containers, err := containersOf(client)
	if err != nil {
		return err
	}
	say := func(line string) { fmt.Fprintf(c.App.ErrWriter, "vrnic: %s\n", line) }
	libs, err := verbsLibs("", false, say)
	if err != nil {
		return err
	}
	own, err := launch.Own(launch.Bases(os.Geteuid(), os.Getenv))
	if err != nil {
		return fmt.Errorf("nowhere to put what containers need: %w", err)
	}
	var devices []cdi.Device
	for _, name := range append(client.Devices(), guest.All, guest.Net) {
		d, err := cdiDevice(name, containers, own, libs)
		if errors.Is(err, fs.ErrNotExist) && name != guest.All && name != guest.Net {
			fmt.Fprintf(c.App.ErrWriter, "vrnic: %s was added while the daemon ran: it has a socket for "+
				"containers when the daemon starts anew; %s has it now\n", name, guest.All)
			continue
		}
		if err != nil {
			return err
		}
		devices = append(devices, d)
	}
	spec, err := cdi.NewSpec(devices)
	if err != nil {
		return err
	}
	if output == "-" {
		e := json.NewEncoder(c.App.Writer)
		e.SetIndent("", "  ")
		return e.Encode(spec)
	}
	err = cdi.Write(spec, output)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; have root put the output of vrnic cdi generate --output - there", err)
	}
	return err
}

// containersOf is the directory of a daemon's sockets for containers.
func containersOf(client *shm.Client) (string, error) {
	settings, err := client.Settings()
	if err != nil {
		return "", err
	}
	if len(settings) == 0 {
		return "", errors.New("only root and the daemon's own user are told where its sockets for " +
			"containers are")
	}
	for _, s := range settings {
		if s[0] == "containers" {
			return s[1], nil
		}
	}
	return "", errors.New("this daemon has no sockets for containers: start it with vrnic up " +
		"--containers DIR")
}

// cdiDevice asks by the socket for name what a container will see there, and writes the files for
// it below own.
func cdiDevice(name, containers, own string, libs launch.Libs) (d cdi.Device, err error) {
	socket := guest.Socket(containers, name)
	client, err := shm.Dial(socket)
	if errors.Is(err, syscall.ECONNREFUSED) { // of a daemon before this one, which was killed
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	if err != nil {
		return d, fmt.Errorf("%s: %w", socket, err)
	}
	defer client.Close()
	d = cdi.Device{Name: name, Folder: filepath.Dir(socket), Socket: filepath.Base(socket),
		Files: filepath.Join(own, "cdi"+strings.ReplaceAll(containers, "/", "-"), name)}
	v := cdi.View{Socket: d.Socket,
		Names: []string{launch.Verbs, launch.RDMACM, launch.IfAddrs, launch.Sys}}
	if v.Libraries, err = libs.Contents(v.Names); err != nil {
		return d, err
	}
	if name == guest.Net { // another one in each container, with the kernel's interface and addresses
		v.Sys, d.RoCE = sysfs.None(), true
	} else if err := look(client, &d, &v); err != nil {
		return d, err
	}
	if err := v.Sys.AddClasses("/"); err != nil {
		return d, err
	}
	d.Nodes, err = sysfs.Write(d.Files, v.Files())
	return d, err
}

// look adds the devices that client sees to what a container does.
func look(client *shm.Client, d *cdi.Device, v *cdi.View) (err error) {
	for _, dev := range client.Devices() {
		opened, err := client.Open(dev)
		if err != nil {
			return err
		}
		v.IfAddrs = launch.AppendIfAddrs(v.IfAddrs, dev, opened.Attr().Addrs)
		d.RoCE = d.RoCE || opened.Attr().RoCE
		if err := opened.Close(); err != nil {
			return err
		}
	}
	v.Sys, err = sysfs.Ask(client, "", nil)
	return err
}
