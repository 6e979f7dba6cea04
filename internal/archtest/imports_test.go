package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/vrnic/vrnic/"

// Groups of imports that a layer may have.
const (
	std    = "std"                            // the standard library
	sys    = "golang.org/x/sys"               // system calls
	gvisor = "gvisor.dev/gvisor"              // the TCP/IP stack
	water  = "github.com/songgao"             // TAP devices
	links  = "github.com/vishvananda/netlink" // the kernel's network interfaces
	cli    = "github.com/urfave"              // the command line
	caps   = "kernel.org/pub/linux/libs"      // libcap: capabilities of all threads
	rules  = "github.com/landlock-lsm"        // Landlock
	yaml   = "go.yaml.in/yaml"                // the daemon's file
	prom   = "github.com/prometheus"          // metrics
	netlib = "golang.org/x/net"               // what net/http's listener lacks: a bound
	cdi    = "tags.cncf.io"                   // the Container Device Interface
	gopack = "github.com/gopacket"            // packets, and files of them
	screen = "github.com/gdamore/tcell"       // terminals
	cni    = "github.com/containernetworking" // the Container Network Interface
	netns  = "github.com/vishvananda/netns"   // other network namespaces
	hdr    = "github.com/HdrHistogram"        // histograms
	grpc   = "google.golang.org/grpc"         // how the kubelet speaks
	kube   = "k8s.io/kubelet"                 // the kubelet's interfaces
	whole  = ""                               // whatever go.mod has
)

// layers says what the packages below a folder may import beside the folder itself. The most
// particular line counts; a folder without a line has no place yet.
//
//	cmd/vrnic -> daemon -> netstack, vnic, shm        the only place where all meet
//	vnic -> iwarp, rdma, internal/{bulk,prefetch}      shm -> rdma
//	netstack -> gVisor, internal/prefetch
//	iwarp -> internal/crc32c, roce -> internal/crcfold      rdma -> standard library
var layers = map[string][]string{
	"rdma":                     {std},
	"iwarp":                    {std, module + "internal/crc32c"},
	"sctpddp":                  {std, module + "iwarp"},
	"roi":                      {std, module + "iwarp"},
	"roce":                     {std, module + "roce/packet"},
	"roce/packet":              {std, module + "internal/crcfold"},
	"roce/dcqcn":               {std},
	"roce/mad":                 {std},
	"roce/udp":                 {std, module + "roce/packet"},
	"roce/cm":                  {std, module + "roce/mad"},
	"roce/rocetest":            {std, module + "roce/packet"},
	"ipoib":                    {std},
	"ipoib/overroce":           {std, module + "ipoib", module + "rdma", module + "vnic"},
	"netstack":                 {std, gvisor},
	"netstack/frame":           {std, gvisor},
	"netstack/internal/gate":   {std},
	"netstack/internal/gvconv": {std, gvisor},
	"netstack/internal/ports":  {std, gvisor},
	"netstack/internal/gvisor": {std, gvisor, module + "internal/prefetch",
		module + "netstack/frame", module + "netstack/internal/gvconv"},
	"netstack/ethswitch": {std, module + "netstack/frame", module + "netstack/internal/gate"},
	"netstack/tcp": {std, gvisor, module + "internal/prefetch", module + "netstack/frame",
		module + "netstack/ethswitch", module + "netstack/internal"},
	"netstack/udp": {std, gvisor, module + "netstack/frame", module + "netstack/ethswitch",
		module + "netstack/internal/gate", module + "netstack/internal/gvconv",
		module + "netstack/internal/ports"},
	"netstack/sctp": {std, module + "internal/crc32c", module + "netstack/sctp/internal/rack",
		module + "netstack/sctp/internal/congestion"},
	"netstack/sctp/internal/rack":       {std},
	"netstack/sctp/internal/congestion": {std},
	"netstack/tcp/recovery":             {std},
	"netstack/sctphost": {std, sys, gvisor, module + "netstack/sctp", module + "netstack/frame",
		module + "netstack/ethswitch", module + "netstack/internal/gate",
		module + "netstack/internal/gvconv"},
	"netstack/hosttcp": {std, sys, module + "netstack/internal/slice"},
	"netstack/hostudp": {std, sys, module + "netstack/internal/doze",
		module + "netstack/internal/slice"},
	"netstack/internal/doze":  {std, sys},
	"netstack/internal/slice": {std, sys},
	"netstack/port": {std, sys, gvisor, water, links,
		module + "netstack/frame", module + "netstack/ethswitch", module + "netstack/internal/doze",
		module + "netstack/internal/slice"},
	"netstack/port/impair": {std},
	"netstack/detour": {std, sys, module + "netstack/frame", module + "netstack/ethswitch",
		module + "netstack/port/impair"},
	"netstack/port/impair/ideal": {std, module + "netstack/port/impair"},
	"vnic": {std, module + "iwarp", module + "sctpddp", module + "roi", module + "roce", module + "rdma",
		module + "internal/bulk", module + "internal/prefetch"},

	"vnic/fault": {std, module + "iwarp", module + "rdma", module + "roce/mad", module +
		"roce/packet", module + "vnic"},

	"vnic/record": {std, module + "iwarp", module + "rdma", module + "roce", module +
		"netstack/sctp", module + "sctpddp"},

	// Inside vnic, from the bottom up.
	"vnic/internal/handle": {std, module + "rdma"},
	"vnic/internal/mem": {std, module + "iwarp", module + "rdma", module + "internal/bulk",
		module + "internal/prefetch", module + "vnic/internal/handle"},
	"vnic/internal/queue": {std, module + "rdma", module + "vnic/internal/handle",
		module + "vnic/internal/mem"},
	"vnic/internal/attr":  {std, module + "rdma"},
	"vnic/internal/stats": {std, module + "rdma"},
	"vnic/internal/wqe": {std, module + "iwarp", module + "rdma", module + "vnic/internal/mem",
		module + "vnic/internal/queue", module + "vnic/internal/stats"},
	"vnic/internal/llp": {std, module + "iwarp"},
	"vnic/internal/ah": {std, module + "rdma", module + "roce/packet", module + "roce/udp",
		module + "vnic/internal/datagram", module + "vnic/internal/mem"},
	"vnic/internal/mcast":    {std, module + "rdma"},
	"vnic/internal/datagram": {std, module + "roce/packet", module + "roce/udp"},
	"vnic/internal/link": {std, module + "iwarp", module + "rdma", module +
		"vnic/internal/wqe", module + "vnic/record"},
	"vnic/internal/link/linktest": {std, module + "rdma", module + "vnic/vnictest"},
	"vnic/internal/link/stream": {std, module + "iwarp", module + "rdma", module + "internal/prefetch",
		module + "vnic/internal/link", module + "vnic/internal/llp", module + "vnic/internal/mem",
		module + "vnic/internal/wqe", module + "vnic/record"},
	"vnic/internal/link/loop": {std, module + "iwarp", module + "rdma", module + "internal/prefetch",
		module + "vnic/internal/link", module + "vnic/internal/llp", module + "vnic/internal/mem",
		module + "vnic/internal/wqe"},
	"vnic/internal/link/credit": {std, module + "iwarp", module + "rdma", module + "roi",
		module + "vnic/internal/link", module + "vnic/internal/llp", module + "vnic/internal/mem",
		module + "vnic/internal/wqe"},
	"vnic/internal/link/inbox": {std, module + "roce", module + "vnic/internal/datagram"},
	"vnic/internal/link/datagrams": {std, module + "iwarp", module + "rdma", module + "roce",
		module + "vnic/internal/ah", module + "vnic/internal/datagram", module + "vnic/internal/link",
		module + "vnic/internal/mem", module + "vnic/internal/stats", module + "vnic/internal/wqe",
		module + "vnic/record"},
	"vnic/internal/link/packets": {std, module + "iwarp", module + "rdma", module + "roce",
		module + "vnic/internal/datagram", module + "vnic/internal/link", module + "vnic/internal/mem",
		module + "vnic/internal/stats", module + "vnic/internal/wqe", module + "vnic/record"},
	"vnic/internal/session": {std, module + "iwarp", module + "roi", module + "sctpddp",
		module + "vnic/internal/llp", module + "vnic/record"},
	"vnic/internal/gsi": {std, module + "roce", module + "vnic/internal/datagram", module +
		"vnic/record"},
	"vnic/internal/cm": {std, module + "iwarp", module + "rdma", module + "roi", module + "roce",
		module + "vnic/internal/datagram", module + "vnic/internal/gsi", module + "vnic/internal/handle",
		module + "vnic/internal/llp", module + "vnic/internal/session", module + "vnic/record"},

	// Inside shm, from top to bottom: the client and the server, what both find, and the numbers.
	"shm": {std, module + "rdma"},
	"shm/server": {std, module + "internal/limitlog", module + "shm/abi", module + "shm/rpc",
		module + "shm/ring", module + "shm/osmem", module + "shm/internal/seqpacket"},
	"shm/internal/proctest": {std, sys},
	"shm/internal/seqpacket": {std, sys, module + "shm/abi", module + "shm/rpc",
		module + "shm/osmem"},
	"shm/osmem":            {std, sys, module + "shm/abi"},
	"shm/ring":             {std, module + "rdma", module + "shm/abi", module + "internal/bulk"},
	"shm/ring/search":      {std, module + "shm/abi"},
	"shm/rpc":              {std, module + "rdma", module + "shm/abi"},
	"shm/rpc/internal/gen": {std},
	"shm/abi":              {std, module + "rdma"},
	"shm/shmtest": {std, sys, module + "rdma", module + "shm/server", module + "shm/abi",
		module + "shm/rpc", module + "shm/ring", module + "shm/osmem"},

	"cmd/vrnic": {std, sys, cli, yaml, prom, netlib, cdi, cni, links, netns, gopack, screen, hdr, grpc,
		kube,
		module + "ipoib",
		module + "rdma", module + "iwarp", module + "vnic", module + "shm", module + "netstack", module +
			"sctpddp",
		module + "internal/stacknet", module + "internal/hostnet", module +
			"internal/limitlog", module + "internal/cpuprofile", module + "internal/completion", module +
			"internal/manual", module + "internal/terminal", module +
			"internal/version", module + "lab/torture",
		module + "verbs", module + "verbs/build", module + "roce/packet"},
	// The commands reach devices as any client does; only the daemon knows the layers below.
	"cmd/vrnic/internal/direct": {std, module + "rdma", module + "vnic", module + "shm/osmem",
		module + "shm/ring", module + "shm/server"},
	"cmd/vrnic/internal/ping":      {std, module + "rdma"},
	"cmd/vrnic/internal/lab":       {std, module + "netstack", module + "roce/packet"},
	"cmd/vrnic/internal/torture":   {std, cli, module + "lab/rawsctp", module + "lab/torture"},
	"cmd/vrnic/internal/launch":    {std, sys},
	"cmd/vrnic/internal/check":     {std, sys},
	"cmd/vrnic/internal/adversary": {std},
	"cmd/vrnic/internal/profile": {std, module + "rdma", module + "vnic", module + "shm/abi",
		module + "shm/rpc", module + "shm/server"},
	"cmd/vrnic/internal/usage": {std, cli},
	"cmd/vrnic/internal/sysfs": {std, sys},
	// gVisor's compiler of rules to seccomp filters.
	"cmd/vrnic/internal/sandbox": {std, sys, gvisor, caps, rules},
	"cmd/vrnic-bench":            {whole},

	// C, but for the package that embeds what is built of it.
	"verbs":             {std},
	"verbs/sessiontest": {std, module + "verbs/internal/ctest"},
	"verbs/guardtest":   {std, module + "verbs/internal/ctest"},
	"verbs/heaptest":    {std, module + "verbs/internal/ctest"},

	// What programs outside of this repository can import.
	"examples": {std, module + "rdma", module + "shm"},

	// A module of its own, of which go.mod knows nothing.
	".ci/linters": {whole},

	// Peers made by hand, which share no code with what they are held against.
	"lab/rawpeer": {std},
	"lab/rawroce": {std},
	"lab/rawsctp": {std},
	"lab/torture": {std, module + "lab/rawpeer", module + "lab/rawroce", module + "lab/rawsctp"},

	"contrib":         {std, module + "iwarp", module + "sctpddp"},
	"integration":     {whole},
	"internal/netlab": {std, sys, links},
	"internal/stacknet": {std, gvisor, module + "iwarp", module + "vnic", module + "netstack", module +
		"sctpddp", module + "roce/packet", module + "roce/udp", module + "internal/sctpnet"},
	"internal/sctpnet": {std, module + "iwarp", module + "vnic", module + "netstack/sctp", module +
		"netstack/sctphost", module + "sctpddp"},
	"internal/hostnet": {std, module + "iwarp", module + "vnic", module + "netstack", module +
		"internal/sctpnet", module + "roce/packet", module + "roce/udp"},
	"internal/archtest":   {std},
	"internal/needtest":   {std},
	"internal/doctest":    {std, cli},
	"internal/golden":     {std},
	"internal/cpuprofile": {std, cli},
	"internal/completion": {std, cli},
	"internal/manual":     {std, cli},
	"internal/terminal":   {std, sys},
	"internal/version":    {std},
	"internal/limitlog":   {std, "golang.org/x/time"},
	"internal/crc32c":     {std, sys, module + "internal/crcfold"},
	"internal/crcfold":    {std, sys},
	"internal/bulk":       {std},
	"internal/prefetch":   {std},
}

// testsToo says what tests of a folder may import beside that: a device to run against.
var testsToo = map[string][]string{
	"cmd/vrnic/internal/ping":    {module + "vnic"},
	"cmd/vrnic":                  {module + "internal/netlab"},
	"cmd/vrnic/internal/torture": {module + "lab/rawpeer"},
	"netstack/tcp":               {module + "netstack"},
	"netstack/udp":               {module + "netstack", module + "roce/packet", module + "roce/udp"},
	"netstack/sctphost":          {module + "netstack"},
	"netstack/sctp":              {module + "netstack/port/impair"},
	"netstack/ethswitch":         {module + "netstack"},
	"netstack/detour":            {module + "netstack"},
	"netstack/port":              {module + "netstack", module + "internal/netlab"},
	"internal/stacknet":          {module + "rdma"},
	"roce/packet":                {module + "roce/rocetest"},
	"roce/udp":                   {module + "roce/rocetest"},
	"roce/mad":                   {module + "roce/rocetest", module + "roce/packet"},
	"roce/cm":                    {module + "roce/rocetest", module + "roce/packet"},
	// Examples have a device in process.
	"rdma":              {module + "vnic"},
	"verbs":             {sys, module + "shm"},
	"verbs/sessiontest": {module + "shm", sys},
	"shm":               {sys},
	"shm/server":        {sys},
	"shm/ring":          {module + "shm/rpc"}, // how deep the queues are
}

// everyTest is what any test, and any double, may import.
var everyTest = []string{module + "internal/needtest", module + "internal/doctest",
	module + "internal/golden", module + "shm/internal/proctest"}

// nowhere lists what no other folder may import.
var nowhere = []string{"integration", "internal/archtest", "cmd", "examples"}

// TestImports holds every file, test or not and of any operating system, to the layers.
func TestImports(t *testing.T) {
	for _, f := range goFiles(t) {
		folder, allowed := layerOf(path.Dir(f.name))
		if folder == "" {
			t.Errorf("%s: no layer; give its folder a line in layers", f.name)
			continue
		}
		if f.isTest() {
			allowed = slices.Concat(allowed, testsToo[folder])
		}
		if f.isTest() || isDouble(module+path.Dir(f.name)) {
			allowed = slices.Concat(allowed, everyTest)
		}
		for _, imp := range f.imports(t) {
			if !mayImport(folder, allowed, imp) {
				t.Errorf("%s: %s must not import %s", f.name, folder, imp)
			}
			// Doubles are for tests and for other doubles.
			if isDouble(imp) && !f.isTest() && !isDouble(module+path.Dir(f.name)) && !strings.HasPrefix(
				f.name, "integration/") {
				t.Errorf("%s: the test double %s in a file that is no test", f.name, imp)
			}
		}
	}
}

// divided are the folders whose rooms have a line of layers each: what is inside one is no free for
// all.
var divided = []string{"vnic", "shm", "netstack"}

// shut says which rooms below a folder the folder itself must not enter, though they are its own.
var shut = map[string][]string{
	"shm": {module + "shm/server"}, // a client carries no server
}

// TestRooms wants a line for each package inside a divided folder, and keeps to shut.
func TestRooms(t *testing.T) {
	for _, f := range goFiles(t) {
		dir := path.Dir(f.name)
		if f.isTest() || isDouble(module+dir) {
			continue
		}
		in := func(top string) bool { return within(dir, top) }
		if folder, _ := layerOf(dir); slices.ContainsFunc(divided, in) && folder != dir {
			t.Errorf("%s: a room without a line of its own in layers", f.name)
		}
		for _, imp := range f.imports(t) {
			if slices.Contains(shut[dir], imp) {
				t.Errorf("%s: %s must not import %s", f.name, dir, imp)
			}
		}
	}
}

// layerOf returns the most particular line of layers for a folder.
func layerOf(dir string) (folder string, allowed []string) {
	for d := dir; d != "."; d = path.Dir(d) {
		if a, ok := layers[d]; ok {
			return d, a
		}
	}
	return "", nil
}

func mayImport(folder string, allowed []string, imp string) bool {
	if imp == "C" {
		return false
	}
	if own, ok := strings.CutPrefix(imp, module); ok {
		if within(own, folder) {
			return true
		}
		if slices.ContainsFunc(nowhere, func(n string) bool { return within(own, n) }) {
			return false
		}
	}
	for _, a := range allowed {
		switch {
		case a == whole:
			return true
		case a == std:
			if !strings.Contains(strings.Split(imp, "/")[0], ".") {
				return true
			}
		case within(imp, a):
			return true
		}
	}
	return false
}

// within reports whether the path p is dir or below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// isDouble reports whether a package is made for tests: iwarptest, shmtest and so on.
func isDouble(imp string) bool {
	base := path.Base(imp)
	return strings.HasPrefix(imp, module) && strings.HasSuffix(base, "test") && !strings.HasSuffix(
		base, "archtest")
}

// withAddresses lists the folders that need the address of a registered buffer: tagged offsets
// are virtual addresses. Elsewhere unsafe is for files that are named after it.
var withAddresses = []string{"vnic", "shm", "cmd/vrnic-bench"}

// TestSystemCalls keeps x/sys/unix and unsafe in files whose names say so.
func TestSystemCalls(t *testing.T) {
	for _, f := range goFiles(t) {
		base := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.name), ".go"), "_test")
		linux := strings.HasSuffix(base, "_linux") || base == "tap_water"
		for _, imp := range f.imports(t) {
			switch {
			case imp == sys+"/unix" && !linux:
				t.Errorf("%s: x/sys/unix belongs in *_linux.go and tap_water.go", f.name)
			case imp == "unsafe" && !linux && !strings.HasSuffix(base, "_unsafe") &&
				!slices.ContainsFunc(withAddresses, func(d string) bool { return within(f.name, d) }):
				t.Errorf("%s: unsafe belongs in *_unsafe.go and *_linux.go", f.name)
			}
		}
	}
}

// The rules themselves: each line names an import that must be refused or allowed.
func TestMayImport(t *testing.T) {
	for _, tt := range []struct {
		folder, imp string
		want        bool
	}{
		{"iwarp", "encoding/binary", true},
		{"iwarp", "golang.org/x/sys/unix", false},
		{"iwarp", "gvisor.dev/gvisor/pkg/tcpip", false},
		{"iwarp", module + "rdma", false},
		{"iwarp", module + "iwarp/iwarptest", true},
		{"netstack", "gvisor.dev/gvisor/pkg/tcpip/stack", true},
		{"netstack", module + "iwarp", false},
		{"netstack/frame", module + "netstack/ethswitch", false},
		{"netstack/ethswitch", module + "netstack/port", false},
		{"netstack/port", module + "netstack/tcp", false},
		{"netstack/tcp", module + "netstack/port", false},
		{"netstack/tcp", module + "netstack", false},
		{"netstack/sctphost", module + "netstack/tcp", false},
		{"netstack/sctp", "gvisor.dev/gvisor/pkg/tcpip", false},
		{"vnic", module + "iwarp", true},
		{"vnic", module + "shm", false},
		{"vnic", "gvisor.dev/gvisor/pkg/tcpip", false},
		{"shm", module + "rdma", true},
		{"shm", module + "vnic", false},
		{"shm", "golang.org/x/sys/unix", false},
		{"shm/abi", module + "shm/ring", false},
		{"shm/abi", module + "shm/rpc", false},
		{"shm/ring", module + "shm/rpc", false},
		{"shm/server", module + "shm", false},
		{"shm/osmem", "golang.org/x/sys/unix", true},
		{"cmd/vrnic", module + "netstack", true},
		{"cmd/vrnic", module + "integration", false},
		{"cmd/vrnic-bench", module + "cmd/vrnic/internal/ping", false},
		{"cmd/vrnic-bench", module + "internal/netlab", true},
		{"integration", module + "cmd/vrnic", false},
		{"rdma", "C", false},
	} {
		if got := mayImport(tt.folder, layers[tt.folder], tt.imp); got != tt.want {
			t.Errorf("%s imports %s: %v, want %v", tt.folder, tt.imp, got, tt.want)
		}
	}
}

func (f file) imports(t *testing.T) []string {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), f.name, f.text, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(tree, func(n ast.Node) bool {
		if s, ok := n.(*ast.ImportSpec); ok {
			p, err := strconv.Unquote(s.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, p)
		}
		return true
	})
	return out
}
