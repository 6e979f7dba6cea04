package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Two daemons of an ordinary user, each at an address of the loopback interface, on a segment of
// VXLAN: data moves both ways, over IPv4 and IPv6.
func TestVXLAN(t *testing.T) {
	host := func(n int) string { // nobody else's, while this process runs
		return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()>>8%254, os.Getpid()&0xff, n)
	}
	ends := func(local, remote int) string {
		return fmt.Sprintf("vxlan:7,local=%s,remote=%s", host(local), host(remote))
	}
	a := up(t, nil, "--device", deviceA, "--port", ends(1, 2)+",remote="+host(3)) // nobody's
	b := up(t, nil, "--device", deviceB, "--port", ends(2, 1))
	pingBothWays(a, b)
	for _, d := range []*daemon{a, b} {
		text := fmt.Sprint(d.show("port"))
		if !strings.Contains(text, "vxlan:7") || !strings.Contains(text, "IP packets of 65485 octets") {
			t.Errorf("show port: %s", text)
		}
	}
	b.stop()
	a.stop()
}
