package abicheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

// A mapped symbol is one of rdma-core's version maps.
type mapped struct{ lib, node, name string }

// maps reads testdata/rdma-core.txt: a line with a library and a node, and behind it lines with the
// names of the node.
func maps(t *testing.T) (all []mapped) {
	t.Helper()
	text, err := os.ReadFile("testdata/rdma-core.txt")
	if err != nil {
		t.Fatal(err)
	}
	var lib, node string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, " "):
			for _, name := range words {
				all = append(all, mapped{lib, node, name})
			}
		case len(words) == 2:
			lib, node = words[0], words[1]
		default:
			t.Fatalf("testdata/rdma-core.txt has a line %q", line)
		}
	}
	if len(all) < 250 {
		t.Fatalf("testdata/rdma-core.txt has %d symbols only", len(all))
	}
	return all
}

// ofProviders says whether a node is of the interface of providers, whose number changes.
func ofProviders(node string) bool { return strings.HasPrefix(node, "IBVERBS_PRIVATE_") }

// V1: all that the current rdma-core exports, ours export with the same version, the newest one as
// the default, and nothing else but what is ours, and the interface of providers by its other
// numbers.
func TestMaps(t *testing.T) {
	table := maps(t)
	newest := make(map[string]string) // node of a name
	for _, m := range table {
		newest[m.name] = m.node
	}
	known := make(map[string]bool)
	for _, m := range table {
		known[m.name+"@"+m.node] = true
	}
	for _, lib := range libraries {
		ours := exports(t, filepath.Join(libs(t), lib))
		for _, m := range table {
			if m.lib != lib {
				continue
			}
			got, ok := ours[m.name+"@"+m.node]
			// Nobody is to be linked with the first any more, in rdma-core neither.
			isDefault := newest[m.name] == m.node && m.name != "ibv_register_driver"
			switch {
			case !ok:
				t.Errorf("%s does not export %s@%s", lib, m.name, m.node)
			case got.isDefault != isDefault && !ofProviders(m.node):
				t.Errorf("%s: %s@%s is the default for new programs: %v", lib, m.name, m.node,
					got.isDefault)
			}
		}
		for _, name := range sortedKeys(ours) {
			_, node, _ := strings.Cut(name, "@")
			if !known[name] && node != "VRNIC_1" && !ofProviders(node) {
				t.Errorf("%s exports %s, and rdma-core does not", lib, name)
			}
		}
	}
}

// V1, V25: dlvsym(3), which NCCL looks functions up with, finds each by its version; a program that
// was linked without versions gets the newest forms, not those of IBVERBS_1.0; and what is not
// served fails with the errno that the manual pages say.
func TestVersions(t *testing.T) {
	ctest.Need(t)
	dir := libs(t)
	source, err := os.ReadFile("testdata/versions.c")
	if err != nil {
		t.Fatal(err)
	}
	bin := compile(t, "versions", string(source), "-ldl")
	env := "LD_LIBRARY_PATH=" + dir
	var b strings.Builder
	for _, m := range maps(t) {
		b.WriteString(m.lib + " " + m.name + " " + m.node + "\n")
	}
	words := filepath.Join(ctest.Dir, "versions.txt")
	if err := os.WriteFile(words, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, bin+" look-up "+words, env)
	run(t, bin+" refusals", env)

	// A library of the same name without versions, to link with.
	if err := os.MkdirAll(filepath.Join(ctest.Dir, "bare"), 0o755); err != nil {
		t.Fatal(err)
	}
	bare := compile(t, "bare/libibverbs.so.1", "const char *ibv_get_device_name(void *d)\n"+
		"{ return d; }\nint ibv_rate_to_mult(int r) { return r; }\n", "-shared", "-fPIC",
		"-Wl,-soname,libibverbs.so.1")
	unversioned := compile(t, "unversioned", "const char *ibv_get_device_name(void *);\n"+
		"int ibv_rate_to_mult(int rate);\nstatic char device[4096];\nint main(void)\n{\n"+
		"\treturn ibv_rate_to_mult(3) == 4 && ibv_get_device_name(device) ? 0 : 1;\n}\n", bare)
	run(t, unversioned, env)
}
