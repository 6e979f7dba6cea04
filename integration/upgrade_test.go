package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/needtest"
)

// Programs of an older release, with its C library too, do with a daemon of this one what they did,
// and those of this one with an older daemon; what that does not know is refused in words, and
// costs nobody else anything. `make upgrade` builds the older one.
func TestUpgrade(t *testing.T) {
	old := os.Getenv("VRNIC_TEST_OLD")
	if old == "" {
		needtest.Lacking(t, "older", "make upgrade builds an older release")
	}
	for _, tt := range []struct{ name, daemon, client string }{
		{"old clients", daemonProgram, old},
		{"old daemon", old, program},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			d := startProgram(t, nil, nil, tt.daemon, "up", "--socket", socket, "--device", deviceA,
				"--device", "vrnic1,addr=10.77.0.3/24")
			d.WaitOutput("ready socket="+socket, 1)
			env := []string{"VRNIC_SOCKET=" + socket}
			client := func(args ...string) *process {
				return startProgram(t, nil, env, tt.client, args...)
			}
			server := client("ping", "-s")
			server.WaitOutput("listening on", 1)
			p := client("ping", "-c", "-a", "10.77.0.2", "-C", "10", "-S", "4096", "-V")
			p.succeed()
			if !strings.Contains(p.Output(), "data verified") {
				t.Errorf("ping did not verify its data: %s", p.Output())
			}
			server.succeed()
			if err := needtest.Missing("rping", "ibv_devinfo"); err != nil {
				needtest.Lacking(t, "verbs", err)
			}
			server = client("exec", "-d", "vrnic0", "--", "rping", "-s", "-a", "10.77.0.2", "-C", "10",
				"-S", "4096", "-V")
			proctest.Eventually(t, patience, "rping listens", func() bool {
				p := client("show", "cm")
				p.succeed()
				return strings.Contains(p.Output(), "10.77.0.2:7174")
			})
			client("exec", "-d", "vrnic1", "--", "rping", "-c", "-a", "10.77.0.2", "-C", "10",
				"-S", "4096", "-V").succeed()
			server.succeed()
			client("exec", "--", "ibv_devinfo").succeed()
			client("stat").succeed()
			if tt.client == program {
				for _, args := range [][]string{{"dev", "add", "vrnic2,addr=10.77.0.4/24"},
					{"limit", "qps=20"}, {"save"}, {"reload"}, {"cdi", "generate"},
					{"capture", "-w", filepath.Join(t.TempDir(), "x.pcapng")},
					{"stat", "--histogram", "vrnic0", "--for", "1s"}} {
					p := client(args...)
					if err := p.Wait(patience); err == nil ||
						!strings.Contains(p.Output(), "not supported by this daemon") {
						t.Errorf("%v: %v, %s", args, err, p.Output())
					}
				}
			}
			d.interrupt()
			if strings.Contains(d.Output(), "violation") {
				t.Errorf("the daemon says: %s", d.Output())
			}
		})
	}
}
