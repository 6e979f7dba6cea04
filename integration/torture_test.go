package integration

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
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

// passes runs a suite, of which every case has to be tried and to pass.
func passes(t *testing.T, target torture.Target, s torture.Suite) {
	t.Helper()
	n := 0
	err := torture.Run(t.Context(), target, s, func(r torture.Result) {
		n++
		if r.Status != torture.Pass {
			t.Errorf("%s, %s: %s\n%s", r.Name, r.Status, r.Detail, r.Transcript)
		}
	})
	if err != nil || n != len(s.Cases) {
		t.Errorf("%d of %d cases: %v", n, len(s.Cases), err)
	}
}

// A daemon passes what vrnic torture has for everybody, and nothing of it is left behind.
func TestTorture(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	d := up(t, nil, "--device", deviceA, "--port", "unix-listen:"+link)
	server := d.serve("-a", addrsA[0], "-P")
	passes(t, torture.Target{Addr: netip.MustParseAddrPort(addrsA[0] + ":7174"), Timeout: patience},
		iwarp.Suite(hostAt(t, link).Dial))
	server.interrupt()
	d.stop()
}
