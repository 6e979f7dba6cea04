package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// The kernel of a namespace, on one side of a TAP, pings a device on the other. When the daemon
// has gone, by itself or killed, so has the TAP.
func TestKernelPing(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*daemon)
	}{
		{"terminated", (*daemon).stop},
		{"killed", func(d *daemon) {
			d.Signal(syscall.SIGKILL)
			_ = d.Wait(patience) // by a signal, as asked
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := proctest.NewNS(t)
			d := up(t, ns, "--device", deviceA, "--port", "tap:vtap0,addr=10.77.0.1/24,addr=fd77::1/64")
			if links := links(t, ns); !slices.Contains(links, "vtap0") {
				t.Fatalf("no vtap0 among %v", links)
			}
			for _, addr := range addrsA {
				for _, size := range []int{8, 1400, 9000} {
					echo(t, ns, netip.MustParseAddr(addr), size)
				}
			}
			if rows := d.show("port"); len(rows) == 0 {
				t.Error("show port is empty")
			}
			tt.end(d)
			proctest.Eventually(t, patience, "the TAP is removed", func() bool {
				return !slices.Contains(links(t, ns), "vtap0")
			})
		})
	}
}

// As TestKernelPing, with the TAP in another namespace than the daemon's own.
func TestTAPInNamespace(t *testing.T) {
	ns := proctest.NewNS(t)
	d := up(t, nil, "--device", deviceA, "--port", "tap:vtap0,netns="+ns.Path()+",addr=10.77.0.1/24")
	echo(t, ns, netip.MustParseAddr(addrsA[0]), 64)
	d.stop()
	if links := links(t, ns); slices.Contains(links, "vtap0") {
		t.Errorf("vtap0 is left among %v", links)
	}
}

// A daemon that cannot have its second port removes its first one.
func TestTAPFailsHalfWay(t *testing.T) {
	ns := proctest.NewNS(t)
	p := start(t, ns, nil, "up", "--socket", t.TempDir()+"/s", "--device", deviceA,
		"--port", "tap:vtap0", "--port", "tap:vtap1,netns=/nowhere/at/all")
	var exit interface{ ExitCode() int }
	if err := p.Wait(patience); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit status 1:\n%s", err, p.Output())
	}
	if links := links(t, ns); slices.Contains(links, "vtap0") {
		t.Errorf("vtap0 is left among %v", links)
	}
}

// Two daemons on TAPs in two namespaces, the namespaces joined by bridges: the whole path.
func TestBridge(t *testing.T) {
	lab := newLab(t)
	a := up(t, lab.A, "--device", deviceA, "--port", "tap:ta")
	b := up(t, lab.B, "--device", deviceB, "--port", "tap:tb")
	for _, plug := range []struct {
		ns  *netlab.NS
		tap string
	}{{lab.A, "ta"}, {lab.B, "tb"}} {
		if err := lab.Plug(plug.ns, plug.tap); err != nil {
			t.Fatal(err)
		}
	}
	wire := sniff(t, lab.A, "ta")
	for i := range addrsA {
		for _, dir := range []struct {
			server, client *daemon
			addr           string
		}{{a, b, addrsA[i]}, {b, a, addrsB[i]}} {
			server := dir.server.serve("-a", dir.addr)
			for _, size := range sizes {
				dir.client.ping(dir.addr, 3, size)
			}
			server.interrupt()
		}
	}
	pcap := wire.stop()
	a.stop()
	b.stop()
	checkIWARP(t, pcap, false)
}

func links(t *testing.T, ns *netlab.NS) []string {
	t.Helper()
	l, err := ns.Links()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// echo sends pings with size octets of data from the kernel of ns until one is answered.
func echo(t *testing.T, ns *netlab.NS, to netip.Addr, size int) {
	t.Helper()
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	var c net.Conn
	if err := ns.Do(func() (err error) {
		c, err = net.Dial(network, to.String())
		return
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	msg := make([]byte, 8+size)
	for i := range msg[8:] {
		msg[8+i] = byte(i)
	}
	answer := make([]byte, 1<<16)
	for try := range 20 {
		msg[0] = request
		binary.BigEndian.PutUint16(msg[2:], 0)
		binary.BigEndian.PutUint16(msg[4:], uint16(os.Getpid()))
		binary.BigEndian.PutUint16(msg[6:], uint16(try))
		// The kernel fills in the checksum of ICMPv6 (RFC 3542, section 3.1), not that of ICMP.
		if to.Is4() {
			binary.BigEndian.PutUint16(msg[2:], checksum(msg))
		}
		if _, err := c.Write(msg); err != nil {
			t.Fatalf("ping %v with %d octets: %v", to, size, err)
		}
		c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		for {
			n, err := c.Read(answer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatalf("ping %v with %d octets: %v", to, size, err)
			}
			got := answer[:n]
			if to.Is4() { // Read leaves the IP header there
				got = got[min(n, int(got[0]&15)*4):]
			}
			if len(got) == len(msg) && got[0] == reply && bytes.Equal(got[4:], msg[4:]) {
				return
			}
		}
	}
	t.Errorf("ping %v with %d octets: no answer", to, size)
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
