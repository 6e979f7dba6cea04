package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/sysfs"
)

func twoDevices() []Device {
	return []Device{
		{Name: "vrnic0", Folder: "/run/g/vrnic0", Files: "/run/f/vrnic0", Socket: "vrnic.sock",
			Nodes: true},
		{Name: "roce-0.1_x", Folder: "/run/g/roce", Files: "/run/f/roce", Socket: "vrnic.sock",
			RoCE: true},
	}
}

// The library that runtimes read specifications with takes ours, in a version that those of Debian
// 12 know.
func TestSpec(t *testing.T) {
	s, err := NewSpec(twoDevices())
	if err != nil {
		t.Fatal(err)
	}
	if s.Version > "0.5.0" {
		t.Errorf("the version is %s", s.Version)
	}
	file := filepath.Join(t.TempDir(), "vrnic.json")
	for range 2 { // again is no harm
		if err := Write(s, file); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("the file: %v, %v", st.Mode(), err)
	}
	read, err := cdi.ReadSpec(file, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"/run/f/vrnic0 /run/vrnic", "/run/g/vrnic0 /run/vrnic/socket",
			"/run/f/vrnic0/preload /etc/ld.so.preload", "/run/f/vrnic0/dev/infiniband /dev/infiniband"},
		{"/run/f/roce /run/vrnic", "/run/g/roce /run/vrnic/socket",
			"/run/f/roce/preload /etc/ld.so.preload"},
	} {
		d := read.GetDevice(twoDevices()[i].Name)
		if d == nil {
			t.Fatalf("there is no device %d", i)
		}
		var got []string
		for _, m := range d.ContainerEdits.Mounts {
			got = append(got, m.HostPath+" "+m.ContainerPath)
			for _, o := range []string{"bind", "ro", "nosuid", "nodev"} {
				if !slices.Contains(m.Options, o) {
					t.Errorf("%s is not mounted %s", m.ContainerPath, o)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("mounts are %q, want %q", got, want)
		}
		ucx := slices.Contains(d.ContainerEdits.Env, "UCX_UD_VERBS_ETH_DGID_CHECK=n")
		if env := d.ContainerEdits.Env; env[0] != "VRNIC_SOCKET=/run/vrnic/socket/vrnic.sock" ||
			ucx != twoDevices()[i].RoCE {
			t.Errorf("the environment is %q", env)
		}
	}
}

// A docker that reads no specification is given the same by options.
func TestOptions(t *testing.T) {
	devices := append(twoDevices(), Device{Name: "odd", Folder: "/run/a b", Files: "/run/f/odd"},
		Device{Name: "blank", Socket: "a b.sock", Folder: "/run/b", Files: "/run/f/blank"})
	s, err := NewSpec(devices)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "vrnic.json")
	if _, err := Options(file, "vrnic0"); err == nil || !strings.Contains(err.Error(),
		"vrnic cdi generate writes it") {
		t.Errorf("without a specification: %v", err)
	}
	if err := Write(s, file); err != nil {
		t.Fatal(err)
	}
	words, err := Options(file, "roce-0.1_x")
	const want = "-v /run/f/roce:/run/vrnic:ro -v /run/g/roce:/run/vrnic/socket:ro " +
		"-v /run/f/roce/preload:/etc/ld.so.preload:ro -e VRNIC_SOCKET=/run/vrnic/socket/vrnic.sock " +
		"-e UCX_UD_VERBS_ETH_DGID_CHECK=n"
	if got := strings.Join(words, " "); err != nil || got != want {
		t.Errorf("the options are %s, %v; want %s", got, err, want)
	}
	for name, want := range map[string]string{"none": "but vrnic0, roce-0.1_x, odd",
		"odd": "a space or a colon", "blank": "has a space"} {
		if _, err := Options(file, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Another file with one of the devices would have runtimes take the wrong one, or none.
func TestWriteRefused(t *testing.T) {
	dir := t.TempDir()
	s, err := NewSpec(twoDevices())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"broken.json": "{", "README": "",
		"of.another.yaml": "cdiVersion: 0.3.0\nkind: vrnic.io/other\n" +
			"devices: [{name: vrnic0, containerEdits: {env: [A=B]}}]\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first := filepath.Join(dir, "first.yaml")
	if err := Write(s, first); err != nil {
		t.Fatal(err)
	}
	err = Write(s, filepath.Join(dir, "second.json"))
	if err == nil || !strings.Contains(err.Error(), first+" has the device vrnic.io/rnic=vrnic0") {
		t.Errorf("a second file: %v", err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 4 {
		t.Errorf("there are %v", left)
	}
	link := filepath.Join(dir, "link.yaml")
	if err := os.Symlink(first, link); err != nil {
		t.Fatal(err)
	}
	if err := Write(s, link); err != nil {
		t.Errorf("by another name of the same file: %v", err)
	}
	if err := Write(s, filepath.Join(dir, "README", "x.json")); err == nil {
		t.Error("below a file")
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	for output, want := range map[string]string{
		dir: filepath.Join(dir, "vrnic.io-rnic.json"), "/var/run/cdi": "/var/run/cdi/vrnic.io-rnic.json",
		dir + "/x.yaml": dir + "/x.yaml", dir + "/x": "", dir + "/x.txt": "",
	} {
		if got, err := File(output); got != want || (err == nil) != (want != "") {
			t.Errorf("%s is %q, %v; want %q", output, got, err, want)
		}
	}
}

// What a container sees: its device, libraries in order, settings; its own interfaces.
func TestFiles(t *testing.T) {
	v := View{Names: []string{"b.so", "a.so"},
		Libraries: map[string][]byte{"a.so": []byte("A"), "b.so": []byte("B")}, Socket: "s",
		IfAddrs: "x=10.0.0.1/24", Sys: sysfs.Tree{
			"sys/class/infiniband/x/node_type":     {Text: "1: CA\n"},
			"sys/class/infiniband/x/device/net/x":  {Link: "../../../../net/x"},
			"sys/class/net/x/mtu":                  {Text: "1500\n"},
			"sys/class/misc/rdma_cm/abi_version":   {Text: "4\n"},
			"dev/infiniband/uverbs0":               {Dev: [2]uint32{231, 192}},
			"sys/class/infiniband/x/device/vendor": {Text: "0xffff\n"},
		}}
	got := v.Files()
	want := sysfs.Tree{
		"lib/a.so": {Text: "A"}, "lib/b.so": {Text: "B"}, "socket": {},
		"preload": {Text: "/run/vrnic/lib/b.so\n/run/vrnic/lib/a.so\n"},
		"settings": {Text: "VRNIC_SOCKET=/run/vrnic/socket/s\nVRNIC_IFADDRS=x=10.0.0.1/24\n" +
			"VRNIC_SYS=preload\nVRNIC_SYS_DIR=/run/vrnic\n"},
		"sys/class/infiniband/x/node_type":     {Text: "1: CA\n"},
		"sys/class/infiniband/x/device/vendor": {Text: "0xffff\n"},
		"dev/infiniband/uverbs0":               {Dev: [2]uint32{231, 192}},
		"sys/class/net":                        {Link: "net"}, "sys/class/misc": {Link: "misc"},
	}
	for name, node := range want {
		if got[name] != node {
			t.Errorf("%s is %+v, want %+v", name, got[name], node)
		}
	}
	if len(got) != len(want) {
		t.Errorf("there are %d files, want %d: %v", len(got), len(want), got)
	}
}
