package metrics_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/metrics"
)

// serve begins to serve what read reads at addr, until the test ends.
func serve(t *testing.T, addr string, read func() daemon.Metrics) *metrics.Server {
	t.Helper()
	s, err := metrics.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	s.Serve(metrics.NewCollector(read), "v1", slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func nothing() daemon.Metrics { return daemon.Metrics{} }

// get asks for the metrics at a path or an address.
func get(t *testing.T, addr string, header ...string) (status int, kind, body string) {
	t.Helper()
	network := "tcp"
	if metrics.IsPath(addr) {
		network = "unix"
	}
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}}
	req, err := http.NewRequest(http.MethodGet, "http://daemon/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Error(err)
		return 0, "", ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(b)
}

// A socket at a path is its user's only, replaces one that nobody listens on, nothing else, and is
// gone in the end.
func TestPath(t *testing.T) {
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "m")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.Listen(path); err == nil || !strings.Contains(err.Error(), "listens there") {
		t.Errorf("where somebody listens: %v", err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	t.Run("serve", func(t *testing.T) {
		s := serve(t, path, nothing)
		if s.Strangers() {
			t.Error("strangers reach a path")
		}
		if fi, err := os.Lstat(path); err != nil || fi.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%v, %v", fi, err)
		}
		status, kind, body := get(t, path)
		if status != http.StatusOK || !strings.HasPrefix(kind, "text/plain") ||
			!strings.Contains(body, "\nvrnic_build_info{version=\"v1\"} 1\n") ||
			!strings.Contains(body, "\nvrnic_sessions 0\n") {
			t.Errorf("%d, %s, %s", status, kind, body)
		}
		status, kind, body = get(t, path, "Accept", "application/openmetrics-text; version=1.0.0")
		if status != http.StatusOK || !strings.HasPrefix(kind, "application/openmetrics-text") ||
			!strings.HasSuffix(body, "# EOF\n") {
			t.Errorf("%d, %s, %s", status, kind, body)
		}
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.Listen(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("where there is a file: %v", err)
	}
}

// One that never served is gone, too.
func TestCloseUnserved(t *testing.T) {
	s, err := metrics.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if s.Strangers() {
		t.Error("strangers reach the loopback")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", s.Addr()); err == nil {
		c.Close()
		t.Error("somebody listens still")
	}
	all, err := metrics.Listen("0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if !all.Strangers() {
		t.Error("strangers do not reach all addresses")
	}
}

// What an address must not be.
func TestCheckAddr(t *testing.T) {
	for _, good := range []string{"127.0.0.1:9", "[::1]:9", ":9", "/run/m", "./m"} {
		if err := metrics.CheckAddr(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "m", "9", "::1", "/" + strings.Repeat("m", 107)} {
		if err := metrics.CheckAddr(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Scrapes at once are bounded, and so are connections: who comes beyond waits for one that ends.
func TestBounded(t *testing.T) {
	begun, proceed := make(chan struct{}, metrics.MaxScrapes), make(chan struct{})
	s := serve(t, "127.0.0.1:0", func() daemon.Metrics {
		begun <- struct{}{}
		<-proceed
		return daemon.Metrics{}
	})
	var wg sync.WaitGroup
	for range metrics.MaxScrapes {
		wg.Go(func() {
			if status, _, _ := get(t, s.Addr()); status != http.StatusOK {
				t.Errorf("a scrape within the bound: status %d", status)
			}
		})
		<-begun
	}
	if status, _, _ := get(t, s.Addr()); status != http.StatusServiceUnavailable {
		t.Errorf("a scrape too many: status %d", status)
	}
	close(proceed)
	wg.Wait()

	var idle []net.Conn
	for range metrics.MaxConnections {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	answered := make(chan int, 1)
	go func() {
		status, _, _ := get(t, s.Addr())
		answered <- status
	}()
	idle[0].Close()
	if status := <-answered; status != http.StatusOK {
		t.Errorf("behind connections that say nothing: status %d", status)
	}
}
