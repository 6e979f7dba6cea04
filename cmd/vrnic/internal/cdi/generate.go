package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/guest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/launch"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/sysfs"
	"github.com/vrnic/vrnic/shm"
)

// A Generator makes the specification of a daemon's devices with the files that it has containers
// mount, and keeps both as the daemon is. One goroutine has it.
type Generator struct {
	Output    string // where the specification is written, as File says; "": it is not
	Own       string // a directory of this user's, for the files
	Libraries map[string][]byte
	Musl      map[string][]byte // those for programs whose C library is musl, if there are some
	Say       func(line string) // to the user; nil: nobody wants to know

	client *shm.Client // of Follow; nil: there is none
	names  []string    // of the daemon's devices, when made was
	made   []made
	spec   *specs.Spec
}

// Loaded are the libraries that programs of containers load, in this order.
var Loaded = []string{launch.Verbs, launch.RDMACM, launch.IfAddrs, launch.Sys}

// made is a device of the specification.
type made struct {
	device Device
	view   View
	files  *sysfs.Writer
}

// Spec is the specification as it was made last, or nil.
func (g *Generator) Spec() *specs.Spec { return g.spec }

// Generate makes all for a daemon that there is. client is of its own user.
func (g *Generator) Generate(client *shm.Client) error {
	containers, err := containersOf(client)
	if err != nil {
		return err
	}
	names, err := deviceNames(client)
	if err != nil {
		return err
	}
	var all []made
	for _, name := range slices.Concat(names, []string{guest.All, guest.Net}) {
		m, err := g.make(name, containers)
		if errors.Is(err, fs.ErrNotExist) && name != guest.All && name != guest.Net {
			if g.Say != nil {
				g.Say(name + " was added while the daemon ran: it has a socket for containers when the " +
					"daemon starts anew; " + guest.All + " has it now")
			}
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	devices := make([]Device, len(all))
	for i := range all {
		devices[i] = all[i].device
	}
	spec, err := NewSpec(devices)
	if err != nil {
		return err
	}
	if g.Output != "" {
		err = Write(spec, g.Output)
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w; have root put the output of vrnic cdi generate --output - there", err)
		}
		if err != nil {
			return err
		}
	}
	g.names, g.made, g.spec = names, all, spec
	return nil
}

// Follow makes what has changed: all, when devices have come or gone or the daemon has started
// anew, and else what is in /sys, with counters. It returns a client of the daemon at socket, which
// it keeps; an error says that there is none now, and leaves everything as it is.
func (g *Generator) Follow(socket string) (*shm.Client, error) {
	anew := g.client == nil
	if anew {
		var err error
		if g.client, err = shm.Dial(socket); err != nil {
			return nil, err
		}
	}
	if err := g.refresh(anew); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g.client, nil
}

// Close ends the session of Follow.
func (g *Generator) Close() error {
	if g.client == nil {
		return nil
	}
	err := g.client.Close()
	g.client = nil
	return err
}

func (g *Generator) refresh(anew bool) error {
	names, err := deviceNames(g.client)
	if err != nil {
		return err
	}
	if anew || !slices.Equal(names, g.names) {
		return g.Generate(g.client)
	}
	for i := range g.made {
		m := &g.made[i]
		only := m.device.Name
		if only == guest.All {
			only = ""
		}
		if err := m.look(g.client, only); err != nil {
			return err
		}
		if _, err := m.files.Write(m.view.Files()); err != nil {
			return err
		}
	}
	return nil
}

// deviceNames are those of the daemon's devices now.
func deviceNames(client *shm.Client) (names []string, err error) {
	rows, err := client.List("dev")
	for _, row := range rows {
		var d struct{ Dev string }
		if err := json.Unmarshal(row, &d); err != nil {
			return nil, err
		}
		names = append(names, d.Dev)
	}
	return names, err
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

// make asks by the socket for name what a container will find there, and writes the files for it.
func (g *Generator) make(name, containers string) (m made, err error) {
	socket := guest.Socket(containers, name)
	there, err := shm.Dial(socket)
	if errors.Is(err, syscall.ECONNREFUSED) { // of a daemon before this one, which was killed
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w", socket, err)
	}
	defer there.Close()
	m.device = Device{Name: name, Folder: filepath.Dir(socket), Socket: filepath.Base(socket),
		Files: filepath.Join(g.Own, "cdi"+strings.ReplaceAll(containers, "/", "-"), name)}
	m.device.Musl = len(g.Musl) > 0
	m.view = View{Socket: m.device.Socket, Names: Loaded, Libraries: g.Libraries, Musl: g.Musl}
	if name == guest.Net { // another one in each container, with the kernel's interface and addresses
		m.device.RoCE = true
	} else if err := m.open(there); err != nil {
		return m, err
	}
	if err := m.look(there, ""); err != nil { // without counters, which nobody may look after
		return m, err
	}
	if m.files, err = sysfs.NewWriter(m.device.Files); err != nil {
		return m, err
	}
	m.device.Nodes, err = m.files.Write(m.view.Files())
	return m, err
}

// open adds the devices that client sees to what a container does.
func (m *made) open(client *shm.Client) error {
	for _, dev := range client.Devices() {
		opened, err := client.Open(dev)
		if err != nil {
			return err
		}
		m.view.IfAddrs = launch.AppendIfAddrs(m.view.IfAddrs, dev, opened.Attr().Addrs)
		m.device.RoCE = m.device.RoCE || opened.Attr().RoCE
		if err := opened.Close(); err != nil {
			return err
		}
	}
	return nil
}

// look has the container's /sys as client sees a device now, or all for "": with counters, if
// client is of the daemon's own user.
func (m *made) look(client *shm.Client, only string) (err error) {
	if m.view.Sys = sysfs.None(); m.device.Name != guest.Net {
		if m.view.Sys, err = sysfs.Ask(client, only, nil); err != nil {
			return err
		}
	}
	return m.view.Sys.AddClasses("/")
}
