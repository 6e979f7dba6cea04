package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// scrape asks the metrics at the Unix socket path.
func scrape(t *testing.T, path string) string {
	t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}}
	resp, err := client.Get("http://daemon/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	return string(b)
}

// A daemon that has confined itself, and become another user where it can, answers Prometheus at
// the path that its file names, which is that user's only, and gone in the end.
func TestUpMetrics(t *testing.T) {
	dir := socketDir(t)
	file, socket := filepath.Join(dir, "vrnic.yaml"), filepath.Join(dir, "s")
	path := filepath.Join(dir, "metrics")
	args := []string{"up", "--config", file}
	uid := os.Geteuid()
	if nobody, err := user.Lookup("nobody"); uid == 0 && err == nil {
		if _, err := fmt.Sscan(nobody.Uid, &uid); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--user", "nobody")
		if err := os.Chown(dir, uid, -1); err != nil { // so that the sockets can be removed
			t.Fatal(err)
		}
	}
	text := "socket: " + socket + "\nmetrics: " + path + "\nlimit: [qps=77]\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := startUp(t, nil, args...)
	p.ready()
	for range 3 {
		if got := scrape(t, path); !strings.Contains(got, "\nvrnic_limit{limit=\"qps\"} 77\n") {
			t.Fatalf("no limit of 77 in:\n%s", got)
		}
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != os.ModeSocket|0o600 ||
		int(st.Sys().(*syscall.Stat_t).Uid) != uid {
		t.Errorf("the socket: %+v, %v; want it to be %d's", st, err, uid)
	}
	status, saved, stderr := vrnic("save", "--socket", socket)
	if status != 0 || !strings.Contains(saved, "\nmetrics: "+path+"\n") {
		t.Errorf("save: %d, %s, %s", status, saved, stderr)
	}
	p.stop()
	if strings.Contains(p.stderr.String(), "level=WARN") {
		t.Errorf("it warns of:\n%s", p.stderr)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
}

// An address that others than this machine's users reach is warned of; one that cannot be is wrong
// usage; and one that somebody has is a failure that leaves nothing behind.
func TestUpMetricsAddress(t *testing.T) {
	dir := socketDir(t)
	socket := filepath.Join(dir, "s")
	p := startUp(t, nil, "up", "--socket", socket, "--metrics", "0.0.0.0:0")
	p.ready()
	p.stop()
	if !strings.Contains(p.stderr.String(), "can read the metrics") {
		t.Errorf("no warning of all addresses:\n%s", p.stderr)
	}
	status, _, stderr := vrnic("up", "--socket", socket, "--metrics", "9100")
	if status != exitUsage || !strings.Contains(stderr, "missing port") {
		t.Errorf("exit %d, stderr %q", status, stderr)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	status, _, stderr = vrnic("up", "--socket", socket, "--metrics", l.Addr().String())
	if status != exitFailed || !strings.Contains(stderr, "address already in use") {
		t.Errorf("exit %d, stderr %q", status, stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
