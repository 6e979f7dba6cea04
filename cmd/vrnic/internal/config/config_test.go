package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/config"
)

// A file and a command line that say the same ask for the same.
func TestFileAsFlags(t *testing.T) {
	const file = `
# what stands behind a # is for people
socket: /tmp/s
socket-mode: 0660
sandbox: "off"
verbose: true
device:
  - vrnic0,addr=10.77.0.2/24,addr=fd77::2/64
  - name: vrnic1
    addr: [10.77.0.3/24, fd77::3/64]
    mtu: 9000
    mac: 02:00:00:00:00:03
    loopback: wire
    keepalive: off
  - {transport: roce, name: vrnic2, addr: 10.77.0.4/24}
port:
  - tap: va
    addr: 10.77.0.1/24
    netns: /run/netns/blue
  - unix-listen: /tmp/a,b
  - unix-connect:/tmp/c
ipoib:
  - {name: ib0, dev: vrnic2, addr: 10.78.0.2/24, tun: ib0}
limit:
  qps: 0x10
  peer-requests: 5
`
	settings, err := config.Parse("f", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Build(settings)
	if err != nil {
		t.Fatal(err)
	}
	flags := []config.Setting{
		config.Flag("port", "tap:va,addr=10.77.0.1/24,netns=/run/netns/blue"),
		config.Flag("device", "vrnic0,addr=10.77.0.2/24,addr=fd77::2/64"),
		config.Flag("device", "vrnic1,addr=10.77.0.3/24,addr=fd77::3/64,mtu=9000,mac=02:00:00:00:00:03,"+
			"loopback=wire,keepalive=off"),
		config.Flag("device", "vrnic2,addr=10.77.0.4/24,transport=roce"),
		config.Flag("port", "unix-listen:/tmp/a,b"), config.Flag("port", "unix-connect:/tmp/c"),
		config.Flag("ipoib", "ib0,dev=vrnic2,addr=10.78.0.2/24,tun=ib0"),
		config.Flag("limit", "qps=16"), config.Flag("limit", "peer-requests=5"),
		config.Flag("socket", "/tmp/s"), config.Flag("socket-mode", "660"),
		config.Flag("sandbox", "off"), config.Flag("verbose", "true"),
	}
	want, err := config.Build(flags)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the file asks for\n%+v\nthe flags for\n%+v", got, want)
	}

	again, err := config.Parse("f", config.Format(flags))
	if err != nil {
		t.Fatal(err)
	}
	if got, err = config.Build(again); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("what Format writes asks for %+v, %v", got, err)
	}
}

// A key of the command line is in place of the file's, whole.
func TestFlagsBeforeFile(t *testing.T) {
	settings, err := config.Parse("f", []byte("socket: /tmp/file\nuser: nobody\n"+
		"device: [\"a,addr=10.0.0.1/24\", {name: b, addr: 10.0.0.2/24}]"))
	if err != nil {
		t.Fatal(err)
	}
	u, err := config.Build(append(settings, config.Flag("device", "c,addr=10.0.0.3/24"),
		config.Flag("socket", "/tmp/flag")))
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Daemon.Devices) != 1 || u.Daemon.Devices[0].Name != "c" ||
		u.Daemon.Socket != "/tmp/flag" || u.User != "nobody" {
		t.Errorf("%+v", u)
	}
}

// Whatever is wrong is told with line and key.
func TestWrongFile(t *testing.T) {
	const device = "device:\n  - a,addr=10.0.0.1/24\n"
	for _, tt := range []struct{ file, want string }{
		{"dvice: x", "f:1: dvice: unknown key; there are socket, "},
		{"\n\nDevice: x", "f:3: Device: unknown key"},
		{"- device", "f:1: want lines of the form"},
		{"word", "f:1: want lines of the form"},
		{"device", "f:1: want lines of the form"},
		{"device:", "f:1: device: no value"},
		{"user: ~", "f:1: user: no value"},
		{"user: [a, b]", "f:1: user: want one value"},
		{"user: {name: a}", "f:1: user: want one value"},
		{"user: a\nverbose: true\nuser: b", "f:3: user: it is given twice"},
		{"verbose: on", `f:1: verbose: "on" is neither true nor false`},
		{"socket-mode: 9", `f:1: socket-mode: socket-mode "9" is not an octal`},
		{"socket-mode: 0o660", `f:1: socket-mode: `},
		{"device: a", "f:1: device: device \"a\": no address"},
		{"device: {name: a}", "f:1: device: want a list"},
		{"device: [a,addr=10.0.0.1/24]", "f:1: device: device \"a\": no address"}, // two elements
		{"device:\n  - name: a\n    addr: 10.0.0.1/24\n    colour: red",
			"f:4: device.colour: device \"a,addr=10.0.0.1/24,colour=red\": unknown option \"colour\""},
		{"device:\n  - name: a\n    mtu: 99999\n    addr:\n      - 10.0.0.1/24\n      - 10.0.0.0/24",
			"f:3: device.mtu: "},
		{"device:\n  - name: a\n    addr:\n      - 10.0.0.1/24\n      - 10.0.0.0/24",
			"f:5: device.addr: "},
		{"device:\n  - addr: 10.0.0.1/24", "f:2: device: no name"},
		{"device:\n  - name: a\n    name: b\n    addr: 10.0.0.1/24",
			"f:3: device.name: it is given twice"},
		{"device:\n  - name: [a, b]\n    addr: 10.0.0.1/24", `f:2: device.name: there is "a" already`},
		{"device:\n  - name: a\n    addr: \"10.0.0.1/24,mtu=9000\"", "f:3: device.addr: a comma"},
		{"device:\n  - name: a\n    \"mtu=9000,addr\": 10.0.0.1/24",
			"f:3: device.mtu=9000,addr: a comma"},
		{"device:\n  - name: a\n    addr: {v4: 10.0.0.1/24}", "f:3: device.addr: want one value"},
		{"device:\n  - [a, b]", "f:2: device: want a value as on the command line"},
		{"device:\n  -", "f:2: device: want a value as on the command line"},
		{device + "  - a,addr=10.0.0.2/24", `f:3: device: device name "a" is given twice`},
		{device + "port:\n  - tap: b\n    addr: 10.0.0.1/24", "f:4: port: address 10.0.0.1 is given to"},
		{device + "port:\n  - addr: 10.0.0.2/24", "f:4: port: no tap, unix-listen, unix-connect"},
		{device + "port:\n  - tap: b\n    unix-listen: /tmp/s",
			`f:5: port.unix-listen: there is "tap:b"`},
		{device + "ipoib:\n  - {name: i, dev: b, addr: 10.1.0.1/24, tun: i}",
			"f:4: ipoib: ipoib i: there is no device b"},
		{"limit:\n  qps: 5\n  wings: 2", `f:3: limit: limit "wings" is not known`},
		{"limit:\n  qps: many", "f:2: limit: limit qps: want a number"},
		{"limit:\n  - qps=5\n  - qps: 5", "f:3: limit: want a value as on the command line"},
		{"limit:\n  qps: [1, 2]", "f:2: limit.qps: want one value"},
		{"user: &a root\nsocket: *a", "f:2: socket: want one value"},
		{"<<: {user: root}", "f:1: <<: unknown key"},
		{"[a]: b", "f:1: a key has to be a word"},
		{"user: a\n---\nuser: b", "f:2: a second document"},
		{"user: a\n  socket: b", "f:2: mapping values are not allowed"},
		{"user: \"a", "f:"},
		{"\x00", "f: "},
		{strings.Repeat("#", 1<<20+1), "f: longer than"},
		{strings.Repeat("[", 20000), "f:"},
	} {
		settings, err := config.Parse("f", []byte(tt.file))
		if err == nil {
			_, err = config.Build(settings)
		}
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) || !errors.Is(err, config.ErrWrong) {
			t.Errorf("%.80q: %v; want wrong usage, %q", tt.file, err, tt.want)
		}
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "~"} {
		if settings, err := config.Parse("f", []byte(empty)); err != nil || len(settings) != 0 {
			t.Errorf("%q: %v, %v", empty, settings, err)
		}
	}
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrnic.yaml")
	if _, err := config.ReadFile(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("user: nobody\nusr: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.ReadFile(path); err == nil ||
		!strings.HasPrefix(err.Error(), path+":2: usr: unknown key") {
		t.Errorf("%v", err)
	}
}

// Whatever a file holds, reading it ends, with settings or with an error about the file.
func FuzzParse(f *testing.F) {
	f.Add([]byte("device:\n  - {name: a, addr: [10.0.0.1/24]}\nlimit: {qps: 5}\n"))
	f.Add([]byte("port: [tap:a]\nuser: &x root\nsocket: *x\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, err := config.Parse("f", data)
		if err != nil && !errors.Is(err, config.ErrWrong) {
			t.Error(err)
		}
		for _, s := range settings {
			if s.Key == "" {
				t.Errorf("a setting without a key: %+v", s)
			}
		}
	})
}
