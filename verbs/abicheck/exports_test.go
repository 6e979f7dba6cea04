package abicheck

import (
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// libraries are the two, in order of dependence, and where Debian has its own.
var (
	libraries = []string{"libibverbs.so.1", "librdmacm.so.1"}
	systemDir = "/usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch] +
		"-linux-gnu/"
)

// preloads are the libraries that nobody is linked with.
var preloads = []string{"libvrnic-ifaddrs.so", "libvrnic-heap.so", "libvrnic-sys.so",
	"libvrnic-rsockets.so", "libvrnic-rsocketd.so", "libvrnic-check.so"}

// A symbol is what a library exports under a name and a version.
type symbol struct {
	typ       elf.SymType
	size      uint64
	isDefault bool // what programs that are linked now get
}

// exports returns the dynamic symbols that a library defines, by NAME@VERSION.
func exports(t *testing.T, path string) map[string]symbol {
	t.Helper()
	m := make(map[string]symbol)
	for _, s := range dynamicSymbols(t, path) {
		if s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS || !s.HasVersion {
			continue
		}
		m[s.Name+"@"+s.Version] = symbol{elf.ST_TYPE(s.Info), s.Size, !s.VersionIndex.IsHidden()}
	}
	if len(m) == 0 {
		t.Fatalf("%s exports nothing", path)
	}
	return m
}

func dynamicSymbols(t *testing.T, path string) []elf.Symbol {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return syms
}

// V1: what Debian's libraries export, ours export with the same version, as the default where that
// is the default.
func TestExports(t *testing.T) {
	for _, lib := range libraries {
		ctest.Need(t, systemDir+lib)
		ours, system := exports(t, filepath.Join(libs(t), lib)), exports(t, systemDir+lib)
		for _, name := range sortedKeys(system) {
			want := system[name]
			got, ok := ours[name]
			switch {
			case !ok:
				t.Errorf("%s does not export %s", lib, name)
			case got.typ != want.typ || got.typ == elf.STT_OBJECT && got.size != want.size:
				t.Errorf("%s: %s is a %v of %d octets, and a %v of %d octets in the system's", lib, name,
					got.typ, got.size, want.typ, want.size)
			case got.isDefault != want.isDefault:
				t.Errorf("%s: %s is the default for new programs: %v, and %v in the system's", lib, name,
					got.isDefault, want.isDefault)
			}
		}
	}
}

// Releases have known the interface of providers under several numbers.
func TestPrivateNodes(t *testing.T) {
	ours := exports(t, filepath.Join(libs(t), libraries[0]))
	for name := range ours {
		base, version, _ := strings.Cut(name, "@")
		if version != "IBVERBS_PRIVATE_34" || strings.HasPrefix(base, "verbs_register_driver_") {
			continue
		}
		for _, node := range []string{"57", "59", "64", "65"} {
			if _, ok := ours[base+"@IBVERBS_PRIVATE_"+node]; !ok {
				t.Errorf("%s is not in IBVERBS_PRIVATE_%s", base, node)
			}
		}
	}
	for _, node := range []string{"34", "57", "59", "64", "65"} {
		if _, ok := ours["verbs_register_driver_"+node+"@IBVERBS_PRIVATE_"+node]; !ok {
			t.Errorf("no verbs_register_driver_%s", node)
		}
	}
}

// programs are Debian's, and libraries of its that programs bring along.
var programs = []string{
	"ibv_devices", "ibv_devinfo", "ibv_asyncwatch", "ibv_rc_pingpong", // ibverbs-utils
	// rdmacm-utils
	"rping", "ucmatose", "rdma_server", "rdma_client", "rdma_xserver", "rdma_xclient", "cmtime",
	"rstream", "riostream", "rcopy",
	// perftest
	"ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat",
	"ib_atomic_bw", "ib_atomic_lat",
	"fio", "fi_info", "fi_pingpong",
	systemDir + "libmlx5.so.1", systemDir + "libmlx4.so.1", systemDir + "libefa.so.1", systemDir +
		"libfabric.so.1",
	systemDir + "rsocket/librspreload.so.1",
}

// locate returns the path of a program that is searched, or of a file.
func locate(t *testing.T, name string) string {
	t.Helper()
	ctest.Need(t, name)
	if filepath.IsAbs(name) {
		return name
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// V1: what Debian's programs and the libraries that they bring along import, ours have. All of them
// are bound when a program starts.
func TestImports(t *testing.T) {
	have := make(map[string]bool)
	for _, lib := range libraries {
		for name := range exports(t, filepath.Join(libs(t), lib)) {
			have[name] = true
		}
	}
	total := 0
	for _, name := range programs {
		path := locate(t, name)
		for _, s := range dynamicSymbols(t, path) {
			if s.Section != elf.SHN_UNDEF || s.Library != libraries[0] && s.Library != libraries[1] {
				continue
			}
			total++
			if !have[s.Name+"@"+s.Version] {
				t.Errorf("%s imports %s@%s of %s", name, s.Name, s.Version, s.Library)
			}
		}
	}
	if total < 500 {
		t.Errorf("only %d imports were found", total)
	}
}

// V1: the dynamic linker itself binds every program to our libraries.
func TestStarts(t *testing.T) {
	dir := libs(t)
	for _, name := range programs {
		path := locate(t, name)
		cmd := exec.Command("ldd", "-r", path)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir)
		out, err := cmd.CombinedOutput()
		text := string(out)
		if err != nil || strings.Contains(text, "undefined symbol") ||
			strings.Contains(text, "not found") {
			t.Errorf("ldd -r %s: %v\n%s", name, err, text)
		}
		for _, lib := range libraries {
			if strings.Contains(text, lib) && !strings.Contains(text, lib+" => "+dir) {
				t.Errorf("%s takes another %s:\n%s", name, lib, text)
			}
		}
	}
}

// The libraries need nothing but libc, and have nothing writable that is executable.
func TestDependencies(t *testing.T) {
	for _, lib := range append([]string{"libvrnic-ifaddrs.so", "libvrnic-heap.so"}, libraries...) {
		f, err := elf.Open(filepath.Join(libs(t), lib))
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was not built", lib)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		needed, err := f.ImportedLibraries()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range needed {
			if n != "libc.so.6" && n != "libpthread.so.0" && n != "libdl.so.2" &&
				n != "ld-linux-x86-64.so.2" && n != "ld-linux-aarch64.so.1" &&
				(n != libraries[0] || lib != libraries[1]) && !ctest.Sanitized("") {
				t.Errorf("%s needs %s", lib, n)
			}
		}
		if so, err := f.DynString(elf.DT_SONAME); err != nil || len(so) != 1 || so[0] != lib {
			t.Errorf("%s calls itself %q (%v)", lib, so, err)
		}
		for _, p := range f.Progs {
			if p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0 {
				t.Errorf("%s: segment %v is writable and executable", lib, p.Type)
			}
		}
	}
}

// What the libraries import is in glibc 2.28, whichever they were built with.
func TestGlibcFloor(t *testing.T) {
	if ctest.Sanitized("") {
		needtest.Lacking(t, "plain libraries", "a sanitizer needs what glibc it needs")
	}
	const floor = 28
	for _, lib := range append(slices.Clone(preloads), libraries...) {
		found := 0
		for _, s := range dynamicSymbols(t, filepath.Join(libs(t), lib)) {
			version, ok := strings.CutPrefix(s.Version, "GLIBC_2.")
			if s.Section != elf.SHN_UNDEF || !ok {
				continue
			}
			found++
			minor, _, _ := strings.Cut(version, ".")
			if n, err := strconv.Atoi(minor); err != nil || n > floor {
				t.Errorf("%s imports %s@%s", lib, s.Name, s.Version)
			}
		}
		if found < 5 {
			t.Errorf("%s imports %d symbols of glibc only", lib, found)
		}
	}
}
