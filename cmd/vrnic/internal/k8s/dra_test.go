package k8s

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/shm"
)

// An apiServer is one as far as the driver sees it: a node, its slices, and claims.
type apiServer struct {
	t *testing.T
	*httptest.Server
	api *API
	dir string

	mu     sync.Mutex
	away   bool                     // guarded by mu
	broken bool                     // slices are not to be had; guarded by mu
	uid    string                   // of the node; guarded by mu
	slices map[string]resourceSlice // by path; guarded by mu
	claims map[string]string        // guarded by mu
	calls  int                      // guarded by mu
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{t: t, dir: t.TempDir(), uid: "u-1", slices: make(map[string]resourceSlice),
		claims: make(map[string]string)}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for name, text := range map[string]string{"ca.crt": string(ca), "token": "secret\n"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"KUBERNETES_SERVICE_HOST": u.Hostname(),
		"KUBERNETES_SERVICE_PORT": u.Port()}
	if s.api, err = NewAPI(func(name string) string { return env[name] }, s.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.api.client.CloseIdleConnections)
	return s
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	var reply any
	old, there := s.slices[r.URL.Path]
	const group = "/apis/resource.k8s.io/v1/"
	switch name, slice := strings.CutPrefix(r.URL.Path, group+"resourceslices/"); {
	case s.away, s.broken && slice, r.Header.Get("Authorization") != "Bearer secret":
		w.WriteHeader(http.StatusForbidden)
		reply = map[string]string{"kind": "Status", "message": "not you, or not now"}
	case r.Method == "GET" && r.URL.Path == "/api/v1/nodes/worker":
		reply = json.RawMessage(`{"metadata": {"name": "worker", "uid": "` + s.uid + `"}}`)
	case r.Method == "GET" && s.claims[r.URL.Path] != "":
		reply = json.RawMessage(s.claims[r.URL.Path])
	case r.Method == "GET" && there:
		reply = old
	case r.Method == "DELETE" && there:
		delete(s.slices, r.URL.Path)
	case r.Method == "PATCH" && slice &&
		r.Header.Get("Content-Type") == "application/apply-patch+yaml" &&
		r.URL.RawQuery == "fieldManager=vrnic&force=true":
		var got resourceSlice
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil || got.Metadata.Name != name {
			s.t.Errorf("PATCH %s of %+v: %v", r.URL, got, err)
		}
		s.slices[r.URL.Path] = got
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if err := json.NewEncoder(w).Encode(reply); err != nil {
		s.t.Error(err)
	}
}

func (s *apiServer) set(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
}

// claim makes one with devices, "REQUEST DRIVER POOL DEVICE" each; nil: with none yet.
func (s *apiServer) claim(name, uid string, devices ...string) *v1.Claim {
	text := fmt.Sprintf(`{"metadata": {"uid": %q}}`, uid)
	if devices != nil {
		var results []string
		for _, d := range devices {
			f := strings.Fields(d)
			results = append(results, fmt.Sprintf(
				`{"request": %q, "driver": %q, "pool": %q, "device": %q}`, f[0], f[1], f[2], f[3]))
		}
		text = fmt.Sprintf(`{"metadata": {"uid": %q}, "status": {"allocation": {"devices": {
			"results": [%s]}}}}`, uid, strings.Join(results, ","))
	}
	s.set(func() { s.claims["/apis/resource.k8s.io/v1/namespaces/space/resourceclaims/"+name] = text })
	return &v1.Claim{Namespace: "space", Uid: uid, Name: name}
}

// pool are the devices that the scheduler sees, of the newest generation, and that.
func (s *apiServer) pool() (names []string, generation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, slice := range s.slices {
		generation = max(generation, slice.Spec.Pool.Generation)
	}
	for _, slice := range s.slices {
		sp := slice.Spec
		if sp.Driver != "vrnic.io" || sp.Node != "worker" || sp.Pool.Name != "worker" ||
			slice.APIVersion != "resource.k8s.io/v1" || slice.Kind != "ResourceSlice" ||
			len(slice.Metadata.Owners) != 1 || slice.Metadata.Owners[0] !=
			(objectRef{"v1", "Node", "worker", s.uid}) || len(sp.Devices) > 128 {
			s.t.Errorf("a slice is %+v", slice)
		}
		if sp.Pool.Generation != generation {
			continue
		}
		n++
		if sp.Pool.Slices != len(s.slices) {
			s.t.Errorf("a slice is one of %d, there are %d", sp.Pool.Slices, len(s.slices))
		}
		for _, d := range sp.Devices {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names, generation
}

// wantPool wants the node's plugin to tell of these devices.
func (s *apiServer) wantPool(n *node, when string, want ...string) (generation int64) {
	s.t.Helper()
	var got []string
	if !needtest.Becomes(func() bool {
		n.tick <- time.Time{}
		got, generation = s.pool()
		return generation > 0 && slices.Equal(got, want)
	}) {
		s.t.Fatalf("%s: %v, want %v", when, got, want)
	}
	return generation
}

// A draClient is the kubelet's of the driver, which it has found by its socket.
type draClient struct {
	v1.DRAPluginClient
	t     *testing.T
	close func() error
}

func (n *node) findDriver() *draClient {
	n.t.Helper()
	found, err := filepath.Glob(n.dir + "/*.sock")
	if err != nil || len(found) != 1 {
		n.t.Fatalf("the kubelet finds %v, %v", found, err)
	}
	conn, err := grpc.NewClient("unix:"+found[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	r := registration.NewRegistrationClient(conn)
	info, err := r.GetInfo(context.Background(), &registration.InfoRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	if info.Type != "DRAPlugin" || info.Name != "vrnic.io" || info.Endpoint != found[0] ||
		!slices.Equal(info.SupportedVersions, []string{"v1.DRAPlugin"}) {
		n.t.Errorf("it registers %v", info)
	}
	if _, err := r.NotifyRegistrationStatus(context.Background(),
		&registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		n.t.Error(err)
	}
	return &draClient{v1.NewDRAPluginClient(conn), n.t, conn.Close}
}

// prepare has claims prepared: "REQUEST POOL DEVICE CDI" each of their devices, or an error.
func (c *draClient) prepare(claims ...*v1.Claim) (all []string) {
	c.t.Helper()
	reply, err := c.NodePrepareResources(context.Background(),
		&v1.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		c.t.Fatal(err)
	}
	if len(reply.Claims) != len(claims) {
		c.t.Errorf("of %v it answers %v", claims, reply)
	}
	for _, claim := range claims {
		one := reply.Claims[claim.Uid]
		if one.Error != "" {
			all = append(all, "error: "+one.Error)
			continue
		}
		for _, d := range one.Devices {
			all = append(all, strings.Join(slices.Concat(d.RequestNames, []string{d.PoolName,
				d.DeviceName}, d.CdiDeviceIds), " "))
		}
	}
	return all
}

func (c *draClient) want(when string, got []string, want ...string) {
	c.t.Helper()
	if !slices.EqualFunc(got, want, strings.Contains) {
		c.t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func (c *draClient) unprepare(claims ...*v1.Claim) {
	c.t.Helper()
	reply, err := c.NodeUnprepareResources(context.Background(),
		&v1.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, claim := range claims {
		if one, ok := reply.Claims[claim.Uid]; !ok || one.GetError() != "" {
			c.t.Errorf("unprepare %v: %v", claim, reply)
		}
	}
}

// The scheduler is told of devices, and the kubelet what a claim's are to a runtime. What is
// prepared stays so without API server and daemon, and for a plugin that starts anew.
func TestDRA(t *testing.T) {
	s := newAPIServer(t)
	before := daemontest.Usage()
	n := newNode(t, Config{Share: 2, Pods: 1, Node: "worker", API: s.api})
	n.tick <- time.Time{} // no daemon is there
	devices := []string{"vrnic0,addr=10.77.0.2/24", "Vrnic_1,addr=10.77.0.3/24,transport=roce"}
	d := n.daemon(devices...)
	other := poolName("Vrnic_1", 0)
	if !strings.HasPrefix(other, "rnic-") || other != strings.ToLower(other) {
		t.Errorf("Vrnic_1 has the name %s in the pool", other)
	}
	well := []string{"net-0", other, poolName("Vrnic_1", 1), "vrnic0-0", "vrnic0-1"}
	first := s.wantPool(n, "in the beginning", well...)
	n.tick <- time.Time{}
	n.tick <- time.Time{}
	if _, g := s.pool(); g != first {
		t.Errorf("nothing has changed, and generation %d is %d", first, g)
	}
	s.set(func() {
		for _, slice := range s.slices {
			for _, dev := range slice.Spec.Devices {
				if dev.Name == other && (dev.Attributes["name"].String != "Vrnic_1" ||
					dev.Attributes["transport"].String != "roce" ||
					dev.Attributes["kind"].String != "rnic") {
					t.Errorf("%s is %v", dev.Name, dev.Attributes)
				}
			}
		}
	})

	k := n.findDriver()
	one := s.claim("one", "uid-1", "r vrnic.io worker "+other, "gpu example.com worker gpu0")
	two := s.claim("two", "uid-2", "a/x vrnic.io worker vrnic0-1", "b vrnic.io worker net-0")
	wantOne := "r worker " + other + " vrnic.io/rnic=Vrnic_1"
	wantTwo := []string{"a worker vrnic0-1 vrnic.io/rnic=vrnic0", "b worker net-0 vrnic.io/rnic=net"}
	k.want("two claims", k.prepare(one, two), append([]string{wantOne}, wantTwo...)...)
	k.want("a claim of another driver", k.prepare(s.claim("x", "uid-3", "r example.com worker g")))
	for words, claim := range map[string]*v1.Claim{
		"no such object":          {Namespace: "space", Name: "none", Uid: "uid-9"},
		"is another one by now":   {Namespace: "space", Name: "one", Uid: "uid-9"},
		"has no devices yet":      s.claim("late", "uid-4"),
		`no device "vrnic0-2"`:    s.claim("gone", "uid-5", "r vrnic.io worker vrnic0-2"),
		`of the pool "elsewhere"`: s.claim("far", "uid-6", "r vrnic.io elsewhere vrnic0-0"),
		"the request r has several": s.claim("n", "uid-7", "r vrnic.io worker net-0",
			"r vrnic.io worker vrnic0-0"),
		"/namespaces/..%2F..%2Fx/resource": {Namespace: "../../x", Name: "one", Uid: "uid-9"},
	} {
		k.want(words, k.prepare(claim), words)
	}

	n.close(d)
	s.wantPool(n, "without a daemon")
	s.set(func() { s.away = true })
	k.want("again", k.prepare(two, one), append(wantTwo, wantOne)...)
	s.claim("new", "uid-8", "r vrnic.io worker vrnic0-0")
	k.close()
	n.end()
	n.begin()
	n.tick <- time.Time{}
	k = n.findDriver()
	k.want("after a new start", k.prepare(one, two), append([]string{wantOne}, wantTwo...)...)
	k.unprepare(one)
	k.unprepare(one, &v1.Claim{Namespace: "space", Name: "never", Uid: "uid-never"})
	k.want("what was unprepared, without API server", k.prepare(one), "error: the API server")
	k.want("the other one", k.prepare(two), wantTwo...)
	k.unprepare(two)

	s.set(func() { s.away = false })
	d = n.daemon(devices...)
	if g := s.wantPool(n, "in the end", well...); g <= first {
		t.Errorf("generation %d comes after %d", g, first)
	}
	change := daemontest.Dial(t, n.socket)
	if err := change.Change(context.Background(), shm.Change{Verb: shm.Del, Key: "device",
		Value: "Vrnic_1", Force: true}); err != nil {
		t.Fatal(err)
	}
	change.Close()
	s.wantPool(n, "with one device less", "net-0", "vrnic0-0", "vrnic0-1")
	if !needtest.Becomes(func() bool { // the daemon lists it until its sessions have ended
		n.tick <- time.Time{}
		k.unprepare(one)
		return strings.Contains(k.prepare(one)[0], "no device")
	}) {
		t.Errorf("a claim has the device that has gone: %v", k.prepare(one))
	}
	k.close()
	if err := os.Remove(filepath.Join(n.dir, "vrnic.io.sock")); err != nil {
		t.Fatal(err)
	}
	n.tick <- time.Time{}
	n.tick <- time.Time{}
	// A kubelet that starts finds the driver by its socket, and removes the slices behind that.
	n.findDriver().close()
	s.set(func() { clear(s.slices) })
	s.wantPool(n, "with a kubelet that has started", "net-0", "vrnic0-0", "vrnic0-1")
	n.end()
	n.close(d)
	s.api.client.CloseIdleConnections()
	before.WantBack(t, "in the end")
}

// Devices that are too many for one slice are in several, of one generation, and what is too much
// goes; what failed is told again.
func TestSlices(t *testing.T) {
	s := newAPIServer(t)
	p := &publisher{api: s.api, node: "worker"}
	devices := func(n int) (all []sliceDevice) {
		for i := range n {
			all = append(all, sliceDevice{Name: poolName("v", i)})
		}
		return all
	}
	for _, n := range []int{0, 1, 128, 129, 300, 256, 1, 0} {
		s.set(func() { s.away = n == 300 })
		err := p.publish(context.Background(), devices(n))
		if (err != nil) != (n == 300) {
			t.Errorf("%d devices: %v", n, err)
		}
		s.set(func() { s.away = false })
		if err := p.publish(context.Background(), devices(n)); err != nil {
			t.Errorf("%d devices: %v", n, err)
		}
		got, _ := s.pool()
		if want := max(1, (n+127)/128); len(got) != n || len(s.slices) != want {
			t.Errorf("%d devices are %d in %d slices, want %d", n, len(got), len(s.slices), want)
		}
		calls := s.calls
		if err := p.publish(context.Background(), devices(n)); err != nil || s.calls != calls {
			t.Errorf("%d devices are told twice, %v", n, err)
		}
	}
	_, was := s.pool()
	again := &publisher{api: s.api, node: "worker"}
	if err := again.publish(context.Background(), devices(3)); err != nil {
		t.Fatal(err)
	}
	if got, g := s.pool(); len(got) != 3 || g <= was {
		t.Errorf("after a new start there are %v of generation %d, before it was %d", got, g, was)
	}
}

// What others do to the slices is seen in time, and what is there as it was told is not told again.
func TestSlicesLost(t *testing.T) {
	s := newAPIServer(t)
	p := &publisher{api: s.api, node: "worker"}
	var devices []sliceDevice
	for i := range 2 * maxSlice {
		devices = append(devices, sliceDevice{Name: poolName("v", i)})
	}
	publish := func(times int) (err error) {
		for range times {
			err = p.publish(context.Background(), devices)
		}
		return err
	}
	edit := func(i int, how func(*resourceSlice)) {
		slice := s.slices[slicePath(p.name(i))]
		how(&slice)
		s.slices[slicePath(p.name(i))] = slice
	}
	for what, how := range map[string]func(){
		"nothing":       func() {},
		"all removed":   func() { clear(s.slices) },
		"the first one": func() { delete(s.slices, slicePath(p.name(0))) },
		"the last one":  func() { delete(s.slices, slicePath(p.name(1))) },
		"an older one": func() {
			edit(1, func(r *resourceSlice) { r.Spec.Pool.Generation-- })
		},
		"newer ones": func() {
			for i := range 2 {
				edit(i, func(r *resourceSlice) { r.Spec.Pool.Generation += 5; r.Spec.Devices = nil })
			}
		},
		"another node of the name": func() { s.uid += "x" },
		"that one's, gone with it": func() { s.uid += "y"; clear(s.slices) },
	} {
		if err := publish(1); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		_, was := s.pool()
		s.set(how)
		if err := publish(lookAgain); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		got, g := s.pool()
		if len(got) != len(devices) {
			t.Errorf("%s: there are %d devices, want %d", what, len(got), len(devices))
		}
		if (g != was) != (what != "nothing") {
			t.Errorf("%s: generation %d is %d", what, was, g)
		}
	}

	// It is asked until it answers, to the end, also one that has told nothing yet.
	for _, now := range []*publisher{p, {api: s.api, node: "worker"}} {
		p = now
		for what, set := range map[string]*bool{"nothing": &s.away, "no slice": &s.broken} {
			s.set(func() { s.uid += "z"; *set = true })
			if err := publish(lookAgain); err == nil {
				t.Errorf("where %s is to be had it says nothing of it", what)
			}
			s.set(func() { *set = false })
			if err := publish(1); err != nil {
				t.Error(err)
			}
			if got, _ := s.pool(); len(got) != len(devices) {
				t.Errorf("there are %d devices, want %d", len(got), len(devices))
			}
		}
	}
}

// Outside of a pod, and with a file of claims that is none, it says so.
func TestDRARefused(t *testing.T) {
	dir := t.TempDir()
	inPod := func(string) string { return "1" }
	for words, getenv := range map[string]func(string) string{
		"this is no pod": func(string) string { return "" }, "ca.crt": inPod} {
		if _, err := NewAPI(getenv, dir); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("NewAPI: %v, want %q", err, words)
		}
	}
	for name, text := range map[string]string{"ca.crt": "rubbish", "claims.json": "{"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := NewAPI(inPod, dir); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("NewAPI: %v", err)
	}
	if _, err := NewDRA(Config{}, dir); err == nil || !strings.Contains(err.Error(), "claims.json") {
		t.Errorf("NewDRA: %v", err)
	}
}
