package k8s

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/cdi"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// A kubelet is one as far as device plugins see it: it hears of them, and calls them.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer
	t      *testing.T
	dir    string
	server *grpc.Server
	served chan error
	heard  chan *v1beta1.RegisterRequest
	refuse bool
}

func startKubelet(t *testing.T, dir string, refuse bool) *kubelet {
	t.Helper()
	// A kubelet that starts removes what others have left.
	left, err := filepath.Glob(dir + "/*.sock")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range left {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	k := &kubelet{t: t, dir: dir, server: grpc.NewServer(), served: make(chan error, 1),
		heard: make(chan *v1beta1.RegisterRequest, 100), refuse: refuse}
	l, err := net.Listen("unix", filepath.Join(dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	v1beta1.RegisterRegistrationServer(k.server, k)
	go func() { k.served <- k.server.Serve(l) }()
	return k
}

func (k *kubelet) stop() {
	k.server.Stop()
	<-k.served
}

func (k *kubelet) Register(_ context.Context, r *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k.heard <- r
	if k.refuse {
		return nil, fmt.Errorf("not today")
	}
	return &v1beta1.Empty{}, nil
}

// plugins are the next n that are registered, by the names of their resources.
func (k *kubelet) plugins(n int) map[string]*client {
	k.t.Helper()
	all := make(map[string]*client)
	for range n {
		var r *v1beta1.RegisterRequest
		select {
		case r = <-k.heard:
		case <-time.After(time.Minute):
			k.t.Fatal("no plugin registers")
		}
		if r.Version != "v1beta1" || !r.Options.GetPreferredAllocationAvailable ||
			r.Options.PreStartRequired || filepath.Base(r.Endpoint) != r.Endpoint {
			k.t.Errorf("it registers %v", r)
		}
		conn, err := grpc.NewClient("unix:"+filepath.Join(k.dir, r.Endpoint),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			k.t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		c := &client{DevicePluginClient: v1beta1.NewDevicePluginClient(conn), t: k.t, ctx: ctx}
		watch, err := c.ListAndWatch(ctx, &v1beta1.Empty{})
		if err != nil {
			k.t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); c.hear(watch) }()
		c.close = func() { cancel(); conn.Close(); <-ended }
		all[r.ResourceName] = c
	}
	return all
}

// A client is the kubelet's of one plugin.
type client struct {
	v1beta1.DevicePluginClient
	t     *testing.T
	ctx   context.Context
	close func()

	mu  sync.Mutex
	now []string // as last heard, "ID Health" each; guarded by mu
}

func (c *client) hear(watch grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]) {
	for {
		reply, err := watch.Recv()
		if err != nil {
			return
		}
		var now []string
		for _, d := range reply.Devices {
			now = append(now, d.ID+" "+d.Health)
		}
		c.mu.Lock()
		c.now = now
		c.mu.Unlock()
	}
}

// want wants the plugin of a node to tell that, as soon as it has looked: what has been deleted may
// be listed as long as sessions that had it are on their end.
func (c *client) want(n *node, when string, want ...string) {
	c.t.Helper()
	var got []string
	if !needtest.Becomes(func() bool {
		n.tick <- time.Time{}
		c.mu.Lock()
		defer c.mu.Unlock()
		got = c.now
		return slices.Equal(got, want)
	}) {
		c.t.Fatalf("%s: %v, want %v", when, got, want)
	}
}

func (c *client) allocate(ids ...string) (*v1beta1.ContainerAllocateResponse, error) {
	reply, err := c.Allocate(c.ctx, &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.
		ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	return reply.ContainerResponses[0], nil
}

func (c *client) refused(words string, ids ...string) {
	c.t.Helper()
	if got, err := c.allocate(ids...); err == nil || !strings.Contains(err.Error(), words) {
		c.t.Errorf("Allocate %v: %v, %v; want %q", ids, got, err, words)
	}
}

// A node is a kubelet's directory, a daemon, and a plugin for both.
type node struct {
	t            *testing.T
	dir          string
	tick         chan time.Time
	ran          chan error
	stop         func()
	socket, spec string
	config       Config
}

// short is a directory whose name is short enough for sockets.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k8s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func newNode(t *testing.T, c Config) *node {
	t.Helper()
	dir := short(t)
	for _, d := range []string{"kubelet", "guests", "own", "cdi"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	n := &node{t: t, dir: filepath.Join(dir, "kubelet"), tick: make(chan time.Time),
		ran: make(chan error, 1), socket: filepath.Join(dir, "sock"),
		spec: filepath.Join(dir, "cdi", "vrnic.json")}
	c.Socket, c.Dir, c.Tick, c.Log = n.socket, n.dir, n.tick, slog.New(slog.DiscardHandler)
	c.Generator = &cdi.Generator{Output: n.spec, Own: filepath.Join(dir, "own"),
		Libraries: make(map[string][]byte)}
	for _, name := range cdi.Loaded {
		c.Generator.Libraries[name] = []byte("a library")
	}
	n.config = c
	n.begin()
	return n
}

// begin starts the plugin: that for an API server, if there is one.
func (n *node) begin() {
	n.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	run := New(n.config).Run
	if n.config.API != nil {
		d, err := NewDRA(n.config, n.config.Generator.Own)
		if err != nil {
			n.t.Fatal(err)
		}
		run = d.Run
	}
	go func() { n.ran <- run(ctx) }()
}

// end ends the plugin, which leaves no socket.
func (n *node) end() {
	n.t.Helper()
	n.stop()
	if err := <-n.ran; err != nil {
		n.t.Errorf("the plugin: %v", err)
	}
	if left, _ := filepath.Glob(n.dir + "/vrnic*"); len(left) > 0 {
		n.t.Errorf("the plugin has left %v", left)
	}
}

// daemon starts one.
func (n *node) daemon(devices ...string) *daemon.Daemon {
	n.t.Helper()
	cfg := daemon.Config{Socket: n.socket, Log: slog.New(slog.DiscardHandler),
		Containers: filepath.Join(filepath.Dir(n.socket), "guests")}
	for _, s := range devices {
		spec, err := daemon.ParseDevice(s)
		if err != nil {
			n.t.Fatal(err)
		}
		cfg.Devices = append(cfg.Devices, spec)
	}
	d, err := daemon.New(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

func (n *node) close(d *daemon.Daemon) {
	n.t.Helper()
	if err := d.Close(); err != nil {
		n.t.Errorf("close the daemon: %v", err)
	}
}

// The kubelet hears of two resources, is told of devices and how they are, and gives them to
// containers by name. Daemon and kubelet may end and begin again.
func TestPlugin(t *testing.T) {
	before := daemontest.Usage()
	n := newNode(t, Config{Share: 2, Pods: 1})
	devices := []string{"vrnic0,addr=10.77.0.2/24", "vrnic1,addr=10.77.0.3/24,transport=roce"}
	d := n.daemon(devices...)
	n.tick <- time.Time{} // no kubelet is there
	k := startKubelet(t, n.dir, false)
	n.tick <- time.Time{}
	all := k.plugins(2)
	rnic, pods := all["vrnic.io/rnic"], all["vrnic.io/net"]
	if rnic == nil || pods == nil {
		t.Fatalf("it registers %v", all)
	}
	well := []string{"vrnic0::0 Healthy", "vrnic0::1 Healthy", "vrnic1::0 Healthy",
		"vrnic1::1 Healthy"}
	rnic.want(n, "in the beginning", well...)
	pods.want(n, "in the beginning", "net::0 Healthy")
	for id, want := range map[string]string{"vrnic0::0": "vrnic.io/rnic=vrnic0",
		"vrnic1::1": "vrnic.io/rnic=vrnic1"} {
		got, err := rnic.allocate(id)
		if err != nil || len(got.CdiDevices) != 1 || got.CdiDevices[0].Name != want ||
			len(got.Mounts)+len(got.Envs)+len(got.Devices) != 0 {
			t.Errorf("Allocate %s: %v, %v; want %s", id, got, err, want)
		}
	}
	if got, err := rnic.allocate("vrnic1::0", "vrnic1::1"); err != nil || len(got.CdiDevices) != 1 {
		t.Errorf("Allocate of two shares of one device: %v, %v", got, err)
	}
	rnic.refused("not 2 (vrnic0, vrnic1): ask for 1 vrnic.io/rnic", "vrnic0::0", "vrnic1::0")
	rnic.refused("ask for 1", []string{}...)
	rnic.refused("no device", "vrnic0::2")
	rnic.refused("no device", "vrnic0")
	rnic.refused("no device", "net::0")

	n.close(d)
	rnic.want(n, "without a daemon", "vrnic0::0 Unhealthy", "vrnic0::1 Unhealthy",
		"vrnic1::0 Unhealthy", "vrnic1::1 Unhealthy")
	pods.want(n, "without a daemon", "net::0 Unhealthy")
	d = n.daemon(devices...)
	rnic.want(n, "with another daemon", well...)
	pods.want(n, "with another daemon", "net::0 Healthy")

	change := daemontest.Dial(t, n.socket)
	for _, ch := range []shm.Change{{Verb: shm.Del, Key: "device", Value: "vrnic1", Force: true},
		// This one has no socket for containers, and is nothing to the kubelet.
		{Verb: shm.Add, Key: "device", Value: "late0,addr=10.77.0.9/24"}} {
		if err := change.Change(context.Background(), ch); err != nil {
			t.Fatal(err)
		}
	}
	change.Close()
	rnic.want(n, "with one device less", well[:2]...)
	rnic.refused("no device", "vrnic1::0")

	rnic.close()
	pods.close()
	k.stop()
	n.tick <- time.Time{}
	k = startKubelet(t, n.dir, false)
	n.tick <- time.Time{}
	all = k.plugins(2)
	all["vrnic.io/rnic"].want(n, "with another kubelet", well[:2]...)
	for _, c := range all {
		c.close()
	}
	n.tick <- time.Time{}
	if len(k.heard) != 0 {
		t.Error("it registers where it is known")
	}
	n.end()
	k.stop()
	n.close(d)
	before.WantBack(t, "in the end")
}

// To a runtime without the Container Device Interface go the mounts and the environment of the
// specification, all to be read only.
func TestMounts(t *testing.T) {
	n := newNode(t, Config{Share: 1, Mounts: true})
	d := n.daemon("vrnic0,addr=10.77.0.2/24,transport=roce")
	k := startKubelet(t, n.dir, false)
	n.tick <- time.Time{}
	c := k.plugins(1)["vrnic.io/rnic"]
	c.want(n, "in the beginning", "vrnic0::0 Healthy")
	got, err := c.allocate("vrnic0::0")
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, m := range got.Mounts {
		at = append(at, m.ContainerPath)
		if _, err := os.Stat(m.HostPath); err != nil || !m.ReadOnly {
			t.Errorf("mount %v: %v", m, err)
		}
	}
	for _, want := range []string{"/run/vrnic", "/run/vrnic/socket", "/etc/ld.so.preload"} {
		if !slices.Contains(at, want) {
			t.Errorf("nothing is mounted at %s, only at %v", want, at)
		}
	}
	if got.Envs["VRNIC_SOCKET"] != "/run/vrnic/socket/vrnic.sock" || len(got.CdiDevices) != 0 {
		t.Errorf("environment %v, names %v", got.Envs, got.CdiDevices)
	}
	c.close()
	n.end()
	k.stop()
	n.close(d)
}

// A kubelet that refuses is asked again, and nothing is served meanwhile.
func TestRefused(t *testing.T) {
	n := newNode(t, Config{Share: 1})
	k := startKubelet(t, n.dir, true)
	for range 3 {
		n.tick <- time.Time{}
		<-k.heard
	}
	n.end()
	k.stop()
}

// What the kubelet is advised: shares of one device, of which most are free, or which it has to
// take.
func TestPreferred(t *testing.T) {
	for _, tt := range []struct {
		available, must string
		size            int
		want            string
	}{
		{"a::0 b::0 b::1", "", 1, "b::0"},
		{"a::0 b::0", "", 1, "a::0"},
		{"a::0 b::0 b::1", "", 2, "b::0 b::1"},
		{"a::0 a::1 b::0 b::1 b::2", "a::1", 2, "a::1 a::0"},
		{"a::0 b::0", "", 5, "a::0 b::0"},
		{"a::0", "a::0", 0, "a::0"},
		{"", "", 3, ""},
		{"a::0", "", -1, ""},
	} {
		got := strings.Join(preferred(strings.Fields(tt.available), strings.Fields(tt.must), tt.size),
			" ")
		if got != tt.want {
			t.Errorf("of %q with %q, %d: %q, want %q", tt.available, tt.must, tt.size, got, tt.want)
		}
	}
}

// Counters of a device are in the files that containers have mounted, and go on.
func TestCountersLive(t *testing.T) {
	n := newNode(t, Config{Share: 1})
	d := n.daemon("vrnic0,addr=10.77.0.2/24,transport=roce")
	n.tick <- time.Time{} // all is made
	n.tick <- time.Time{} // and then kept
	n.tick <- time.Time{}
	spec, err := os.ReadFile(n.spec)
	if err != nil || !strings.Contains(string(spec), "vrnic.io/rnic") {
		t.Errorf("the specification: %s, %v", spec, err)
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(n.socket),
		"own/*/vrnic0/sys/class/infiniband/vrnic0/ports/1"))
	if err != nil || len(files) != 1 {
		t.Fatalf("/sys is %v, %v", files, err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(files[0], name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	was := read("counters/port_xmit_data")
	c := daemontest.Dial(t, n.socket)
	dev := daemontest.Open(t, c, "vrnic0")
	a, b := daemontest.NewEnd(t, dev, 1<<16), daemontest.NewEnd(t, dev, 1<<16)
	daemontest.Connect(t, a, b, netip.MustParseAddrPort("10.77.0.2:7174"))
	a.Write(1, 0, 1<<16, b, 0)
	a.WantOK("the Write", 1, rdma.WCWrite)
	n.tick <- time.Time{}
	n.tick <- time.Time{} // what the one before has written is there
	if now := read("counters/port_xmit_data"); now == was {
		t.Errorf("after a Write of 64 KiB port_xmit_data is %s as before", now)
	}
	if got := read("state"); got != "4: ACTIVE" {
		t.Errorf("the state is %s", got)
	}
	c.Close()
	n.end()
	n.close(d)
}
