package verbs

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// libfabric finds devices by the addresses of network interfaces: `vrnic exec` adds the devices'
// addresses to what getifaddrs(3) says.
func TestTrap05Getifaddrs(t *testing.T) {
	need(t, "fi_info")
	note(t, onIWARP, "one device", "fi_info -p verbs")
	d := upOrdinary(t, "--device", deviceA)
	d.start("fi_info", "-p", "verbs").succeed(patience, "provider: verbs", `domain: vrnic0`,
		"type: FI_EP_MSG", "protocol: FI_PROTO_IWARP", `provider: verbs;ofi_rxm`)
	d.start("fi_info", "-p", "verbs", "-v", "-t", "FI_EP_MSG").succeed(patience,
		`fi_sockaddr_in://10\.77\.0\.2:`, `fi_sockaddr_in6://\[fd77::2\]`)
}

// fabricJob is fi_pingpong, which compares what comes back with what it sent. Its two sides meet
// over the kernel's TCP first.
func fabricJob(t *testing.T, top *topology, options string, limit time.Duration) {
	t.Helper()
	need(t, "fi_pingpong")
	port := fmt.Sprint(nextPort.Add(1))
	if !strings.Contains(options, "-d ") {
		options += " -d DEV"
	}
	server := top.server.in(t).start(words("fi_pingpong -c -B PORT "+options, "PORT", port, "DEV",
		top.server.device())...)
	listensTCP(t, server)
	here := " 127.0.0.1"
	if strings.Contains(options, "-6") {
		here = " ::1"
	}
	client := top.client.in(t).start(words("fi_pingpong -c -P PORT "+options+here, "PORT", port, "DEV",
		top.client.device())...)
	client.succeed(limit, `^bytes +#sent`, `^[\d.kmg]+ +[\d.k]+ +=[\d.k]+`)
	server.succeed(limit, `^bytes +#sent`)
	top.server.in(t).settle()
	top.client.in(t).settle()
}

// fabricQuick are fi_pingpong's options in every test run, and fabricAll in a thorough one.
var (
	fabricQuick = []string{"-p verbs -e msg -I 20 -S 4096", "-p verbs;ofi_rxm -e rdm -I 20 -S 4096"}
	fabricAll   = []string{"-p verbs -e msg -S all", "-p verbs -e msg -6 -S all",
		"-p verbs;ofi_rxm -e rdm -S all",
		"-p verbs;ofi_rxm -e rdm -m tagged -S all", "-p verbs -e msg -I 2000 -S 64"}
)

func TestFabric(t *testing.T) {
	need(t, "fi_pingpong")
	tops, options := iwarpTopologies[:1], fabricQuick
	if thorough() {
		tops, options = iwarpTopologies[:3], fabricAll // over TAP they cannot meet by the kernel's TCP
	}
	for _, make := range tops {
		t.Run(make.name, func(t *testing.T) {
			top := make.make(t)
			for _, o := range options {
				t.Run(o, func(t *testing.T) {
					note(t, onIWARP, make.name, "fi_pingpong "+o)
					fabricJob(t, top, o, 2*time.Minute)
				})
			}
		})
	}
}
