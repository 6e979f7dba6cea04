package metrics_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/metrics"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/rdma"
)

// start is a daemon with a device of RoCE beside those of iWARP.
func start(t *testing.T) *daemontest.Daemon {
	return daemontest.Start(t, func(c *daemon.Config) {
		spec, err := daemon.ParseDevice("roce0,addr=10.77.0.4/24,transport=roce")
		if err != nil {
			t.Fatal(err)
		}
		c.Devices = append(c.Devices, spec)
		c.Latency = true
	})
}

// A row of `vrnic stat` of a device has no counter that is no metric, and no metric is of a counter
// that no row has.
func TestEachCounterIsAMetric(t *testing.T) {
	rows, err := start(t).Dial().Stat()
	if err != nil {
		t.Fatal(err)
	}
	known := metrics.Counters()
	met := map[string]bool{}
	for _, raw := range rows {
		var row map[string]any
		if err := json.Unmarshal(raw, &row); err != nil {
			t.Fatal(err)
		}
		if row["kind"] != "dev" {
			continue
		}
		for name := range row {
			met[name] = true
			if !slices.Contains(known, name) && name != "kind" && name != "dev" {
				t.Errorf("%s of a device is no metric", name)
			}
		}
	}
	for _, name := range known {
		if !met[name] {
			t.Errorf("there is a metric of %s, which no device counts", name)
		}
	}
}

// What promtool check metrics would complain of, with series of all families.
func TestLint(t *testing.T) {
	problems, err := testutil.CollectAndLint(metrics.NewCollector(start(t).Metrics))
	if err != nil || len(problems) != 0 {
		t.Errorf("%v, %v", err, problems)
	}
}

// And what it says itself of what a daemon answers.
func TestPromtool(t *testing.T) {
	if err := needtest.Missing("promtool"); err != nil {
		needtest.Lacking(t, "promtool", err)
	}
	path := filepath.Join(t.TempDir(), "metrics")
	serve(t, path, start(t).Metrics)
	status, _, body := get(t, path)
	if status != http.StatusOK || !strings.Contains(body, "vrnic_request_duration_seconds_bucket") {
		t.Fatalf("status %d, and no latencies in:\n%s", status, body)
	}
	for _, c := range []struct {
		text string
		ok   bool
	}{{body, true}, {body + "# TYPE bad_counter counter\nbad_counter 1\n", false}} {
		cmd := exec.Command("promtool", "check", "metrics")
		cmd.Stdin = strings.NewReader(c.text)
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.ok || c.ok && len(out) != 0 {
			t.Errorf("promtool: %v; fine: %t\n%s", err, c.ok, out)
		}
	}
}

// What moved is counted where it should be; and there are no more series for more queue pairs.
func TestTotals(t *testing.T) {
	d := start(t)
	c := metrics.NewCollector(d.Metrics)
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 1<<16)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 1<<16)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	b.Recv(1, 0, 4096)
	a.Send(2, 0, 1000)
	a.WantOK("the Send", 2, rdma.WCSend)
	b.WantOK("the receive", 1, rdma.WCRecv)

	want := `
# HELP vrnic_payload_bytes_total Octets of payload: in Sends and Writes of either side, and in ` +
		`answers to Reads.
# TYPE vrnic_payload_bytes_total counter
`
	for _, dev := range []string{"roce0", "vrnic0", "vrnic1"} {
		for _, s := range []string{`direction="in",operation="read"`,
			`direction="in",operation="send_write"`, `direction="out",operation="read"`,
			`direction="out",operation="send_write"`} {
			n := "0"
			if dev == "vrnic0" && s == `direction="out",operation="send_write"` ||
				dev == "vrnic1" && s == `direction="in",operation="send_write"` {
				n = "1000"
			}
			want += `vrnic_payload_bytes_total{device="` + dev + `",` + s + `} ` + n + "\n"
		}
	}
	want += `
# HELP vrnic_queue_pairs Queue pairs by type and state.
# TYPE vrnic_queue_pairs gauge
vrnic_queue_pairs{device="vrnic0",state="RTS",type="rc"} 1
vrnic_queue_pairs{device="vrnic1",state="RTS",type="rc"} 1
# HELP vrnic_tcp_connections Established TCP connections.
# TYPE vrnic_tcp_connections gauge
vrnic_tcp_connections{device="vrnic0"} 1
vrnic_tcp_connections{device="vrnic1"} 1
# HELP vrnic_sessions Programs that have a session.
# TYPE vrnic_sessions gauge
vrnic_sessions 2
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "vrnic_payload_bytes_total",
		"vrnic_queue_pairs", "vrnic_tcp_connections", "vrnic_sessions"); err != nil {
		t.Error(err)
	}

	before := testutil.CollectAndCount(c)
	for range 20 {
		x := daemontest.NewEnd(t, a.Dev, 4096)
		y := daemontest.NewEnd(t, b.Dev, 4096)
		daemontest.Connect(t, x, y, daemontest.Addr(t, b.Dev, false, 0))
	}
	if after := testutil.CollectAndCount(c); after != before {
		t.Errorf("%d series with one connection, %d with 21", before, after)
	}
}

// The limits are those in force, and the shares of them those that programs have.
func TestLimits(t *testing.T) {
	d := daemontest.Start(t, func(c *daemon.Config) {
		if err := c.SetLimit("peer-requests=7"); err != nil {
			t.Fatal(err)
		}
	})
	c := d.Dial()
	dev := daemontest.Open(t, c, "vrnic0")
	for range 3 {
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pd.Close() })
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(metrics.NewCollector(d.Metrics))
	got := values(t, reg)
	for series, want := range map[string]float64{
		`vrnic_limit{limit="peer-requests"}`:     7,
		`vrnic_limit{limit="pds"}`:               16384,
		`vrnic_limit_session_max{limit="pds"}`:   3,
		`vrnic_limit_used{limit="ids"}`:          3,
		`vrnic_limit_used{limit="sessions"}`:     1,
		`vrnic_objects{device="vrnic0",pd}`:      3,
		`vrnic_device_up{device="vrnic0"}`:       1,
		`vrnic_sessions_accepted_total{}`:        1,
		`vrnic_limit_session_max{limit="cqs"}`:   0,
		`vrnic_limit_used{limit="memberships"}`:  0,
		`vrnic_limit_used{limit="queue-bytes"}`:  0,
		`vrnic_session_violations_total{}`:       0,
		`vrnic_objects{device="vrnic0",context}`: 1,
	} {
		if n, ok := got[series]; !ok || n != want {
			t.Errorf("%s is %v (%v), want %v", series, n, ok, want)
		}
	}
}

// values are the series of reg, with the value only of labels whose name is not kind.
func values(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() == "kind" {
					labels = append(labels, l.GetValue())
				} else {
					labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
				}
			}
			got[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() +
				m.GetCounter().GetValue()
		}
	}
	return got
}

// The dashboard asks for metrics that there are.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../../../contrib/grafana/vrnic.json")
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) {
		t.Fatal("it is no JSON")
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(metrics.NewCollector(start(t).Metrics))
	names := map[string]bool{"vrnic_queue_pairs": true} // no series without a queue pair
	for series := range values(t, reg) {
		name, _, _ := strings.Cut(series, "{")
		names[name] = true
	}
	asked := regexp.MustCompile(`vrnic_[a-z_]+`).FindAll(text, -1)
	if len(asked) < 20 {
		t.Errorf("it asks for %d metrics", len(asked))
	}
	for _, name := range asked {
		if !names[string(name)] {
			t.Errorf("there is no metric %s", name)
		}
	}
	if bytes.Contains(text, []byte("http://")) {
		t.Error("it names a server")
	}
}

// Messages move while somebody scrapes without a pause.
func TestScrapeUnderLoad(t *testing.T) {
	d := start(t)
	c := metrics.NewCollector(d.Metrics)
	a := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 1<<16)
	b := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic1"), 1<<16)
	daemontest.Connect(t, a, b, daemontest.Addr(t, b.Dev, false, 0))
	done, scraped := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			testutil.CollectAndCount(c)
			n++
			select {
			case <-done:
				scraped <- n
				return
			default:
			}
		}
	}()
	for i := range uint64(100) {
		b.Recv(2*i, 0, 4096)
		a.Send(2*i+1, 0, 1000)
		a.WantOK("a Send", 2*i+1, rdma.WCSend)
		b.WantOK("a receive", 2*i, rdma.WCRecv)
	}
	close(done)
	if n := <-scraped; n == 0 {
		t.Error("nothing was scraped")
	}
}

// The path of a port need not be UTF-8, which labels are.
func TestPortOfAnyPath(t *testing.T) {
	c := metrics.NewCollector(func() daemon.Metrics {
		return daemon.Metrics{Ports: []ethswitch.PortTotal{{Name: "unix-listen:/a\xffb", Kind: "unix"},
			{Name: "unix-listen:/a\xfeb", Kind: "unix"}}}
	})
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(reg, "vrnic_port_frames_total"); err != nil || n != 4 {
		t.Errorf("%d series, %v", n, err)
	}
}
