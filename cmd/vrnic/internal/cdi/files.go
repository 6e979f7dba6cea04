package cdi

import (
	"path"
	"runtime"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/sysfs"
)

// Home is where a container has what it needs. The C libraries and package shm know it.
const Home = "/run/vrnic"

// Names below Home.
const (
	settings = "settings" // lines NAME=VALUE: what programs have in the environment elsewhere
	preload  = "preload"  // what is mounted at preloadAt
	libDir   = "lib"      // the C libraries
	muslDir  = "musl"     // those for programs whose C library is musl
	muslPath = "musl.path"
	sockDir  = "socket" // where the folder of the daemon's socket is mounted
	devDir   = "dev/infiniband"
	classDir = "sys/class"
)

// preloadAt is where glibc's loader finds what every program is to load, also one that comes into
// the container later, with an environment of its own. musl's loader, and what is linked with it,
// does not know the file, so that it harms no image of Alpine: there libraries are found by
// muslPathAt, of which glibc's knows nothing.
const preloadAt = "/etc/ld.so.preload"

// muslPathAt is where musl's loader finds the directories in which it looks for libraries.
func muslPathAt() string {
	machine := runtime.GOARCH
	if m := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[machine]; m != "" {
		machine = m
	}
	return "/etc/ld-musl-" + machine + ".path"
}

// A View is what a container is to see.
type View struct {
	// Libraries are the contents of those to load, in the order in which they are to be; Musl those
	// for programs of musl's, if there are some.
	Names     []string
	Libraries map[string][]byte
	Musl      map[string][]byte
	Socket    string     // name of the socket in its folder
	IfAddrs   string     // what getifaddrs(3) is to list, in the form of VRNIC_IFADDRS
	Sys       sysfs.Tree // the devices in /sys and /dev
}

// Files are those below Home.
func (v *View) Files() sysfs.Tree {
	t := sysfs.Tree{sockDir: {}}
	for name, node := range v.Sys {
		t[name] = node
	}
	// A container has interfaces of its own: a link that leads nowhere leaves the kernel's be seen.
	for _, class := range []string{"net", "misc"} {
		dir := path.Join(classDir, class)
		for name := range t {
			if strings.HasPrefix(name, dir+"/") || strings.Contains(name, "/device/net/") {
				delete(t, name)
			}
		}
		t[dir] = sysfs.Node{Link: class}
	}
	var list strings.Builder
	for _, name := range v.Names {
		at := path.Join(libDir, name)
		t[at] = sysfs.Node{Text: string(v.Libraries[name])}
		list.WriteString(path.Join(Home, at) + "\n")
	}
	for name, content := range v.Musl {
		t[path.Join(muslDir, name)] = sysfs.Node{Text: string(content)}
	}
	if len(v.Musl) > 0 { // ours, and then those where musl looks by itself
		t[muslPath] = sysfs.Node{Text: path.Join(Home, muslDir) + ":/lib:/usr/local/lib:/usr/lib\n"}
	}
	t[preload] = sysfs.Node{Text: list.String()}
	t[settings] = sysfs.Node{Text: "VRNIC_SOCKET=" + v.socket() + "\n" +
		"VRNIC_IFADDRS=" + v.IfAddrs + "\nVRNIC_SYS=preload\nVRNIC_SYS_DIR=" + Home + "\n"}
	return t
}

func (v *View) socket() string { return path.Join(Home, sockDir, v.Socket) }
