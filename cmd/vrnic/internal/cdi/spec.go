package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Devices are named Vendor/Class=NAME.
const (
	Vendor = "vrnic.io"
	Class  = "rnic"
)

// A Device is one of the specification: a device of the daemon, or all.
type Device struct {
	Name   string
	Folder string // of the daemon's socket
	Files  string // directory with those of a View
	Socket string // its name in Folder
	Nodes  bool   // Files has device files; else /dev is by functions
	RoCE   bool   // one of its devices speaks that
	Musl   bool   // Files has libraries for programs whose C library is musl
}

// NewSpec is the specification of devices, in the oldest version that has all of it: runtimes
// refuse one that they do not know.
func NewSpec(devices []Device) (*specs.Spec, error) {
	s := &specs.Spec{Kind: Vendor + "/" + Class}
	for _, d := range devices {
		s.Devices = append(s.Devices, specs.Device{Name: d.Name, ContainerEdits: d.edits()})
	}
	version, err := specs.MinimumRequiredVersion(s)
	s.Version = version
	return s, err
}

func (d *Device) edits() specs.ContainerEdits {
	mount := func(from, to string, options ...string) *specs.Mount {
		return &specs.Mount{HostPath: from, ContainerPath: to,
			Options: append([]string{"bind", "ro", "nosuid", "nodev"}, options...)}
	}
	e := specs.ContainerEdits{
		Env: []string{"VRNIC_SOCKET=" + path.Join(Home, sockDir, d.Socket)},
		Mounts: []*specs.Mount{
			mount(d.Files, Home),
			mount(d.Folder, path.Join(Home, sockDir), "noexec"),
			mount(filepath.Join(d.Files, preload), preloadAt, "noexec"),
		},
	}
	if d.Musl {
		e.Mounts = append(e.Mounts, mount(filepath.Join(d.Files, muslPath), muslPathAt(), "noexec"))
	}
	if d.Nodes { // nobody opens them: nodev
		e.Mounts = append(e.Mounts, mount(filepath.Join(d.Files, devDir), "/"+devDir, "noexec"))
	}
	if d.RoCE {
		// UCX before 1.19 drops datagrams that came by IPv4 without it: docs/decisions.md#V27.
		e.Env = append(e.Env, "UCX_UD_VERBS_ETH_DGID_CHECK=n")
	}
	return e
}

// File is where a specification is written for an output of the command line: a file, or a
// directory that is there.
func File(output string) (string, error) {
	if st, err := os.Stat(output); err == nil && st.IsDir() || output == cdi.DefaultDynamicDir {
		output = filepath.Join(output, cdi.GenerateSpecName(Vendor, Class)+".json")
	}
	if ext := filepath.Ext(output); ext != ".json" && ext != ".yaml" {
		return "", fmt.Errorf("%s: runtimes read files that end with .json or .yaml", output)
	}
	return filepath.Abs(output)
}

// Write puts s into file, whole or not at all. Another file with a device of s, where runtimes look
// or beside it, is an error: they would take neither, or the wrong one.
func Write(s *specs.Spec, file string) error {
	dirs := []string{cdi.DefaultStaticDir, cdi.DefaultDynamicDir}
	if err := checkOthers(s, file, append(dirs, filepath.Dir(file))); err != nil {
		return err
	}
	cache, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(filepath.Dir(file)))
	if err != nil {
		return err
	}
	if err := cache.WriteSpec(s, filepath.Base(file)); err != nil {
		return err
	}
	return os.Chmod(file, 0o644) // users' runtimes read it, too
}

// checkOthers looks for the devices of s in other files than the one that it is for.
func checkOthers(s *specs.Spec, file string, dirs []string) error {
	for i, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) || slices.Contains(dirs[:i], dir) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			at := filepath.Join(dir, e.Name())
			if ext := filepath.Ext(at); at == file || ext != ".json" && ext != ".yaml" || same(at, file) {
				continue
			}
			other, err := cdi.ReadSpec(at, 0)
			if err != nil || other.GetVendor() != Vendor || other.GetClass() != Class {
				continue // no concern of ours
			}
			for _, d := range s.Devices {
				if other.GetDevice(d.Name) != nil {
					return fmt.Errorf("%s has the device %s already: remove it, or write this one there", at,
						parser.QualifiedName(Vendor, Class, d.Name))
				}
			}
		}
	}
	return nil
}

// same says whether two names are of one file: /var/run is a link to /run.
func same(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	return xerr == nil && yerr == nil && os.SameFile(x, y)
}
