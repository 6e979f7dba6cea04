package peer

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/integration/peer/internal/ctl"
)

// An Image is what a guest boots.
type Image struct {
	Kernel  string // path of an ELF kernel
	Initrd  string // path
	Release string // kernel release, such as 6.1.0-56-amd64
	Version string // package version of kernel and siw
}

// provider is the library of libibverbs for a driver.
func provider(driver string) string {
	return multiarch + "/libibverbs/lib" + driver + "-rdmav34.so"
}

// A need is a Debian package and a file that shows it is there.
type need struct{ pkg, file string }

const multiarch = "/usr/lib/x86_64-linux-gnu"

var needs = []need{
	{"gcc", "/usr/bin/gcc"},
	{"make", "/usr/bin/make"},
	{"xz-utils", "/usr/bin/xz"},
	{"dpkg-dev", "/usr/bin/dpkg-deb"},
	{"qemu-system-x86", "/usr/bin/qemu-system-x86_64"},
	{"rdmacm-utils", "/usr/bin/rping"},
	{"ibverbs-providers", provider("siw")},
	{"ibverbs-utils", "/usr/bin/ibv_rc_pingpong"},
	{"libibverbs-dev", "/usr/include/infiniband/verbs.h"},
	{"librdmacm-dev", "/usr/include/rdma/rdma_cma.h"},
	{"iproute2", "/usr/sbin/tc"},
}

// Missing returns the Debian packages that Build and Start need and that are not installed.
func Missing() []string {
	var out []string
	for _, n := range needs {
		if _, err := os.Stat(n.file); err != nil {
			out = append(out, n.pkg)
		}
	}
	if headers() == "" {
		out = append(out, "linux-headers-amd64")
	}
	return out
}

// headers returns the newest kernel release whose headers are installed.
func headers() string {
	dirs, _ := filepath.Glob("/usr/src/linux-headers-*-amd64")
	if len(dirs) == 0 {
		return ""
	}
	slices.SortFunc(dirs, compareRelease)
	return strings.TrimPrefix(filepath.Base(dirs[len(dirs)-1]), "linux-headers-")
}

// compareRelease orders names by the numbers in them: -9 comes before -10.
func compareRelease(a, b string) int {
	number := func(r rune) bool { return r < '0' || r > '9' }
	x, y := strings.FieldsFunc(a, number), strings.FieldsFunc(b, number)
	for i := range min(len(x), len(y)) {
		if len(x[i]) != len(y[i]) {
			return len(x[i]) - len(y[i])
		}
		if c := strings.Compare(x[i], y[i]); c != 0 {
			return c
		}
	}
	return len(x) - len(y)
}

// CacheDir returns the folder Build uses by default: vrnic-peer in $XDG_CACHE_HOME or ~/.cache.
func CacheDir() (string, error) {
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("peer: %w", err)
	}
	return filepath.Join(d, "vrnic-peer"), nil
}

// Build makes an image in cache, CacheDir if that is empty, and says on log what it does. What
// is there from an earlier call is used again, so that a second call takes a second or two. It
// must run inside the module: the agent is compiled from it.
func Build(ctx context.Context, cache string, log io.Writer) (*Image, error) {
	if cache == "" {
		var err error
		if cache, err = CacheDir(); err != nil {
			return nil, err
		}
	}
	if m := Missing(); len(m) > 0 {
		return nil, fmt.Errorf("peer: missing packages; as root: apt-get install %s",
			strings.Join(m, " "))
	}
	b := &builder{ctx: ctx, log: log, release: headers()}
	out, err := b.output("dpkg-query", "-W", "-f", "${Version}", "linux-headers-"+b.release)
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	b.version = string(out)
	// One folder for each kernel, so that an update of the headers starts afresh.
	if b.dir, err = filepath.Abs(filepath.Join(cache, b.release+"_"+b.version)); err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	unlock, err := b.lock()
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	defer unlock()
	for _, step := range []struct {
		what, makes string
		do          func() error
	}{
		{"kernel image", "vmlinux", b.kernel},
		{"siw", "siw.ko", b.siw},
		{"siw with parameters", siwParamFile(), b.siwParam},
		{"initrd", "", b.initrd},
	} {
		if step.makes != "" && exists(b.path(step.makes)) {
			continue
		}
		fmt.Fprintf(log, "peer: making %s\n", step.what)
		if err := step.do(); err != nil {
			return nil, fmt.Errorf("peer: %s: %w", step.what, err)
		}
	}
	return &Image{Kernel: b.path("vmlinux"), Initrd: b.path("initrd"), Release: b.release,
		Version: b.version}, nil
}

type builder struct {
	ctx              context.Context
	log              io.Writer
	dir              string
	release, version string
}

// lock keeps two builds from writing the same files.
func (b *builder) lock() (unlock func(), err error) {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(b.path("lock"))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

func (b *builder) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// output runs a program and returns what it prints; an error has the end of its complaints.
func (b *builder) output(name string, args ...string) ([]byte, error) {
	return b.outputIn("", name, args...)
}

func (b *builder) outputIn(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(b.ctx, name, args...)
	cmd.Dir = dir
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		all := append(out, complaints.Bytes()...)
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, all[max(0, len(all)-2000):])
	}
	return out, nil
}

// unpack fetches a package of the kernel's version and takes the named files out of it.
func (b *builder) unpack(pkg, into string, files ...string) error {
	deb := b.path("deb")
	if err := os.MkdirAll(deb, 0o755); err != nil {
		return err
	}
	found, _ := filepath.Glob(filepath.Join(deb, pkg+"_*.deb"))
	if len(found) == 0 {
		fmt.Fprintf(b.log, "peer: fetching %s\n", pkg)
		if _, err := b.outputIn(deb, "apt-get", "download", "-q", pkg+"="+b.version); err != nil {
			return err
		}
		if found, _ = filepath.Glob(filepath.Join(deb, pkg+"_*.deb")); len(found) == 0 {
			return fmt.Errorf("apt-get download %s made no package", pkg)
		}
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	args := append([]string{"-c", `dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" "${@:3}"`, "unpack",
		found[0], into}, files...)
	_, err := b.output("bash", append([]string{"-o", "pipefail"}, args...)...)
	return err
}

func (b *builder) kernel() error {
	tree := b.path("image")
	if err := b.unpack("linux-image-"+b.release, tree, "./boot/vmlinuz-"+b.release,
		"./lib/modules"); err != nil {
		return err
	}
	image, err := os.ReadFile(filepath.Join(tree, "boot", "vmlinuz-"+b.release))
	if err != nil {
		return err
	}
	elfImage, err := vmlinux(image)
	if err != nil {
		return err
	}
	return replace(b.path("vmlinux"), elfImage)
}

// replace writes a file that is either whole or not there.
func replace(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// modules are loaded in this order, each after what it depends on. The kernel would ask a
// modprobe for crc32c when libcrc32c comes, and for crc32 when rxe makes a device; the guest has
// none.
var modules = []string{
	"virtio_pci", "virtio_console", "virtio_net", "virtio_rng",
	"crc32c_generic", "crc32_generic", "ib_uverbs", "rdma_ucm", "iw_cm", "siw", "rdma_rxe",
	"sch_netem", "sch_ingress", "cls_matchall", "act_mirred", "ifb",
}

// programs are what tests run in the guest; the optional ones go in where they are installed.
var programs = []struct {
	name     string
	optional bool
}{
	{"rping", false}, {"/usr/sbin/tc", false}, {"ucmatose", true}, {"ibv_devinfo", true},
	{"ib_send_bw", true}, {"ib_write_bw", true}, {"ib_read_bw", true}, {"ib_send_lat", true},
	{"ib_atomic_bw", true},
	{"ibv_rc_pingpong", false}, {"ibv_uc_pingpong", false}, {"ibv_ud_pingpong", false},
	{"ibv_srq_pingpong", false}, {"udaddy", false}, {"mckey", false},
	{"rstream", false}, {"riostream", false}, {"rcopy", false}, {"udpong", false},
}

func (b *builder) initrd() error {
	agent := b.path("agent")
	build := exec.CommandContext(b.ctx, "go", "build", "-trimpath", "-o", agent,
		"github.com/vrnic/vrnic/integration/peer/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	probe, err := b.probe()
	if err != nil {
		return err
	}
	tree, err := findModules(b.path("image", "lib", "modules"))
	if err != nil {
		return err
	}
	tree["siw"] = b.path("siw.ko")
	mods, err := tree.resolve(modules...)
	if err != nil {
		return err
	}

	f, err := os.Create(b.path("initrd.new"))
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	c := newCPIO(w)
	for _, d := range []string{"dev", "proc", "sys", "tmp"} {
		c.dir(d)
	}
	// One folder for each kind of file, whatever name it is looked for by.
	for _, l := range []struct{ name, target string }{
		{"lib", "usr/lib"}, {"lib64", "usr/lib64"}, {"bin", "usr/bin"}, {"sbin", "usr/bin"},
	} {
		c.symlink(l.name, l.target)
	}
	c.modules(mods)
	// Beside the list: the agent loads it when asked to.
	if err := addFile(c, "usr/lib/modules/"+ctl.SiwParam+".ko", b.path(siwParamFile())); err != nil {
		return err
	}
	c.file("etc/passwd", []byte("root:x:0:0:root:/:/bin/false\n"))
	c.file("etc/hosts", []byte("127.0.0.1 localhost\n"))
	// glibc loads it by name when a thread is cancelled.
	files := []string{multiarch + "/libgcc_s.so.1"}
	for _, driver := range []string{"siw", "rxe"} {
		c.file("etc/libibverbs.d/"+driver+".driver", []byte("driver "+driver+"\n"))
		files = append(files, provider(driver))
	}
	for _, p := range programs {
		path, err := exec.LookPath(p.name)
		switch {
		case err == nil:
			files = append(files, path)
			if name := filepath.Base(path); path != "/usr/bin/"+name {
				c.symlink("usr/bin/"+name, path) // the guest's PATH has one folder
			}
		case !p.optional:
			return err
		}
	}
	for _, p := range files {
		if err := addELF(c, p); err != nil {
			return err
		}
	}
	if err := addELFAs(c, "usr/bin/probe", probe); err != nil {
		return err
	}
	if err := addFile(c, "init", agent); err != nil {
		return err
	}
	if err := errors.Join(c.close(), w.Flush(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), b.path("initrd"))
}

func addFile(c *cpioWriter, name, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	c.file(name, data)
	return nil
}

// addELF adds a program or library under its own name, with all that it loads.
func addELF(c *cpioWriter, path string) error { return addELFAs(c, path, path) }

// addELFAs is addELF under another name.
func addELFAs(c *cpioWriter, name, path string) error {
	if c.seen[strings.Trim(name, "/")] {
		return nil
	}
	if err := addFile(c, name, path); err != nil {
		return err
	}
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, lib := range needed {
		if err := addELF(c, filepath.Join(multiarch, lib)); err != nil {
			return err
		}
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		interp, err := io.ReadAll(p.Open())
		if err != nil {
			return err
		}
		// Below /lib64, which is a link in the guest.
		name := strings.TrimRight(string(interp), "\x00")
		if err := addFile(c, "usr"+name, name); err != nil {
			return err
		}
	}
	return nil
}
