package docker

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/shm"
)

// A fakeDocker calls a driver as docker does.
type fakeDocker struct {
	t *testing.T
	h http.Handler
}

func newDocker(t *testing.T, socket string) *fakeDocker {
	t.Helper()
	d, err := New(Config{Socket: socket, Device: "transport=roce,mtu=1400",
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return &fakeDocker{t, d.handler()}
}

// call is the answer to a call, and its error.
func (f *fakeDocker) call(name, body string) (reply map[string]any, why string) {
	f.t.Helper()
	w := httptest.NewRecorder()
	f.h.ServeHTTP(w, httptest.NewRequest("POST", "/"+name, strings.NewReader(body)))
	if err := json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&reply); err != nil {
		f.t.Fatalf("%s: %d %q: %v", name, w.Code, w.Body, err)
	}
	why, _ = reply["Err"].(string)
	if (w.Code != http.StatusOK) != (w.Code == http.StatusBadRequest && why != "") {
		f.t.Errorf("%s: status %d with %q", name, w.Code, why)
	}
	return reply, why
}

func (f *fakeDocker) must(name, body string) map[string]any {
	f.t.Helper()
	reply, why := f.call(name, body)
	if why != "" {
		f.t.Errorf("%s %s: %s", name, body, why)
	}
	return reply
}

func (f *fakeDocker) refused(words, name, body string) {
	f.t.Helper()
	if _, why := f.call(name, body); !strings.Contains(why, words) || why == "" {
		f.t.Errorf("%s %s: %q, want %q", name, body, why, words)
	}
}

const (
	one = `"NetworkID": "n", "EndpointID": "0123456789abcdef0123456789abcdef"`
	two = `"NetworkID": "n", "EndpointID": "fedcba9876543210fedcba9876543210"`
)

func names(d *daemontest.Daemon) string {
	var all []string
	for _, s := range d.Devices() {
		all = append(all, s.String())
	}
	return strings.Join(all, " ")
}

// An endpoint is a device of the daemon, with the address and MAC that docker gives it, or a MAC
// that docker is told. What cannot be is refused in words, and nothing is left of it.
func TestEndpoints(t *testing.T) {
	d := daemontest.Start(t)
	f := newDocker(t, d.Socket())
	before := names(d)
	if got := f.must("Plugin.Activate", "")["Implements"]; len(got.([]any)) != 1 {
		t.Errorf("it is %v", got)
	}
	if got := f.must("NetworkDriver.GetCapabilities", "{}"); got["Scope"] != "local" {
		t.Errorf("it can do %v", got)
	}
	f.must("NetworkDriver.CreateNetwork", `{"NetworkID": "n", "Options": {
		"com.docker.network.enable_ipv6": false, "com.docker.network.generic": {}},
		"IPv4Data": [{"Pool": "10.60.0.0/24"}], "IPv6Data": []}`)
	f.refused("no option colour", "NetworkDriver.CreateNetwork", `{"NetworkID": "n", "Options": {
		"com.docker.network.generic": {"colour": "red"}}}`)
	for _, call := range []string{"AllocateNetwork", "FreeNetwork", "DiscoverNew", "DiscoverDelete",
		"ProgramExternalConnectivity", "RevokeExternalConnectivity", "DeleteNetwork"} {
		f.must("NetworkDriver."+call, `{"NetworkID": "n", "DiscoveryType": 1, "DiscoveryData": {}}`)
	}

	reply := f.must("NetworkDriver.CreateEndpoint", `{`+one+`, "Interface": {"Address":
		"10.60.0.2/24", "AddressIPv6": "fd60::2/64"}}`)
	mac, _ := reply["Interface"].(map[string]any)["MacAddress"].(string)
	if !strings.Contains(names(d), "rdma01234567,addr=10.60.0.2/24,addr=fd60::2/64,transport=roce,"+
		"mtu=1400,mac="+mac+",container") || mac == "" {
		t.Errorf("docker is told %v, and the daemon has %s", reply, names(d))
	}
	reply = f.must("NetworkDriver.CreateEndpoint", `{`+two+`, "Interface": {"Address":
		"10.60.0.3/24", "MacAddress": "02:42:0a:3c:00:03"}}`)
	if got := reply["Interface"].(map[string]any); len(got) != 0 || !strings.Contains(names(d),
		"mac=02:42:0a:3c:00:03") {
		t.Errorf("docker is told %v, and the daemon has %s", got, names(d))
	}
	if got := f.must("NetworkDriver.EndpointOperInfo", `{`+one+`}`)["Value"]; got.(map[string]any)["vrnic.device"] != "rdma01234567" {
		t.Errorf("an endpoint is %v", got)
	}
	f.refused("given twice", "NetworkDriver.CreateEndpoint", `{`+one+`, "Interface": {"Address":
		"10.60.0.9/24"}}`)
	for range 2 {
		f.must("NetworkDriver.Leave", `{`+one+`}`)
		f.must("NetworkDriver.DeleteEndpoint", `{`+one+`}`)
		f.must("NetworkDriver.DeleteEndpoint", `{`+two+`}`)
	}

	for body, words := range map[string]string{
		`{`: "EOF", `[]`: "cannot unmarshal", `{"EndpointID": 7}`: "cannot unmarshal",
		`{"EndpointID": "` + strings.Repeat("x", maxRequest) + `"}`: "too large",
		`{}`: "is no endpoint", `{"EndpointID": "../../etc"}`: "is no endpoint",
		`{"EndpointID": "0123456789ABCDEF"}`: "is no endpoint",
		`{` + one + `}`:                      "needs an address", `{` + one + `, "Interface": {}}`: "needs an address",
		`{` + one + `, "Interface": {"Address": "10.60.0.2"}}`:                            "address",
		`{` + one + `, "Interface": {"Address": "10.60.0.2/24,mac=02:00:00:00:00:01"}}`:   "address",
		`{` + one + `, "Interface": {"Address": "10.60.0.2/24", "MacAddress": "x"}}`:      "MAC",
		`{` + one + `, "Interface": {"Address": "10.60.0.2/24", "MacAddress": "02,a=b"}}`: "MAC",
		`{` + one + `, "Interface": {"Address": "10.77.0.2/24"}}`:                         "10.77.0.2",
	} {
		f.refused(words, "NetworkDriver.CreateEndpoint", body)
	}
	f.refused("no device rdma01234567 any more", "NetworkDriver.Join", `{`+one+`}`)
	for _, call := range []string{"Join", "Leave", "DeleteEndpoint", "EndpointOperInfo"} {
		f.refused("is no endpoint", "NetworkDriver."+call, `{"EndpointID": "x"}`)
	}
	if now := names(d); now != before {
		t.Errorf("the daemon has %s, before it were %s", now, before)
	}
}

// A container's device goes with it, also where no other one was to stay: that one cannot go.
func TestLastDevice(t *testing.T) {
	d := daemontest.Start(t, func(c *daemon.Config) { c.Devices = c.Devices[:1] })
	f := newDocker(t, d.Socket())
	before := names(d)
	create := `{` + one + `, "Interface": {"Address": "10.60.0.2/24"}}`
	for range 2 { // the address is free again
		f.must("NetworkDriver.CreateEndpoint", create)
		if err := daemontest.Dial(t, d.Socket()).Change(t.Context(), shm.Change{Verb: shm.Del,
			Key: "device", Value: "vrnic0", Force: true}); err == nil {
			t.Error("a container has the only device")
		}
		f.must("NetworkDriver.DeleteEndpoint", `{`+one+`}`)
		if now := names(d); now != before {
			t.Errorf("the daemon has %s, before it were %s", now, before)
		}
	}
}

// Without a daemon nothing is made, in words, and what is to be removed is gone.
func TestNoDaemon(t *testing.T) {
	f := newDocker(t, t.TempDir()+"/none")
	for _, call := range []string{"CreateNetwork", "CreateEndpoint", "Join"} {
		f.refused("no vrnic daemon", "NetworkDriver."+call, `{`+one+`, "Interface": {"Address":
			"10.60.0.2/24"}}`)
	}
	f.must("NetworkDriver.Leave", `{`+one+`}`)
	f.must("NetworkDriver.DeleteEndpoint", `{`+one+`}`)
	f.must("NetworkDriver.DeleteNetwork", `{"NetworkID": "n"}`)
}

// What devices are to be like is checked before docker asks.
func TestOptions(t *testing.T) {
	for _, options := range []string{"mtu=1", "colour=red", "host=127.0.0.1", "transport"} {
		if _, err := New(Config{Device: options}); err == nil {
			t.Errorf("devices can have %s", options)
		}
	}
	if _, err := New(Config{}); err != nil {
		t.Error(err)
	}
}
