package integration

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/torture"
)

// hostAt is a raw peer's stack on a port of a daemon.
func hostAt(t *testing.T, link string) *rawhost.Host {
	t.Helper()
	h, err := rawhost.New(rawhost.Config{Path: link,
		Addrs: []netip.Prefix{netip.MustParsePrefix(rawAddrs[0] + "/24")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// A daemon passes what vrnic torture has for everybody, and nothing of it is left behind.
func TestTorture(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	d := up(t, nil, "--device", deviceA, "--port", "unix-listen:"+link)
	server := d.serve("-a", addrsA[0], "-P")
	target := torture.Target{Addr: netip.MustParseAddrPort(addrsA[0] + ":7174"), Timeout: patience,
		Dial: hostAt(t, link).Dial}
	n := 0
	err := torture.Run(t.Context(), target, torture.Cases(), func(r torture.Result) {
		n++
		if r.Status != torture.Pass {
			t.Errorf("%s, %s: %s\n%s", r.Name, r.Status, r.Detail, r.Transcript)
		}
	})
	if err != nil || n != len(torture.Cases()) {
		t.Errorf("%d of %d cases: %v", n, len(torture.Cases()), err)
	}
	server.interrupt()
	d.stop()
}
