package daemon_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/shm"
)

// A device whose packets are longer than what a segment carries is named in the log, when the
// daemon begins and when the port is added; a port goes by its name.
func TestVXLANTooShort(t *testing.T) {
	log := &eventLog{}
	port := func(vni int) string { // at addresses that are nobody else's, while this process runs
		return fmt.Sprintf("vxlan:%d,local=127.%d.%d.%d,remote=127.0.0.1", vni, 1+os.Getpid()>>8%254,
			os.Getpid()&0xff, 100+vni)
	}
	d := daemontest.Start(t, func(c *daemon.Config) {
		c.Log = slog.New(slog.NewTextHandler(log, nil))
		c.Devices[0].MTU = 65535
		p, err := daemon.ParsePort(port(7))
		if err != nil {
			t.Fatal(err)
		}
		c.Ports = append(c.Ports, p)
	})
	told := func(vni, want int) {
		t.Helper()
		text := fmt.Sprintf("port=vxlan:%d device=vrnic0 mtu=65535 carries=65485", vni)
		if n := log.count(text); n != want {
			t.Errorf("%s is %d times in the log, want %d:\n%s", text, n, want, log.String())
		}
	}
	told(7, 1)
	mustChange(t, d, shm.Add, "port", port(8))
	told(8, 1)
	mustChange(t, d, shm.Del, "port", "vxlan:8")
	if n := log.count("device=vrnic1"); n != 0 {
		t.Errorf("a device of 1500 octets is told of:\n%s", log.String())
	}
}
