package sctppeer_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/integration/sctppeer"
	"github.com/vrnic/vrnic/integration/sctppeer/peertest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// The networks between us, number 2, and the guest, number 1.
var guestNets = []string{"10.77.0.%d/24", "10.78.0.%d/24", "fd77::%d/64", "fd78::%d/64"}

func guestAddr(i int, n string) netip.Prefix {
	return netip.MustParsePrefix(strings.Replace(guestNets[i], "%d", n, 1))
}

// A guest runs Linux's SCTP.
type guest struct {
	img   *peer.Image
	cfg   peer.Config
	g     *peer.Guest
	stack *netstack.Stack
	pcaps []string    // what QEMU has recorded, one file a boot
	cut   atomic.Bool // frames of the first network get lost
}

// newGuest boots one beside a stack of ours, or skips the test.
func newGuest(t *testing.T) *guest {
	t.Helper()
	if os.Getenv("VRNIC_TEST_INTEROP") == "" {
		needtest.Skip(t, "boots a guest, which takes a minute: run `make interop-sctp`")
	}
	if m := append(peer.Missing(), sctppeer.Linux.Missing()...); len(m) > 0 {
		needtest.Lacking(t, "qemu", "packages are missing: apt-get install "+strings.Join(m, " "))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	img, err := peer.Build(ctx, "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, err := sctppeer.Linux.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	if img, err = img.WithSCTP(dir, program); err != nil {
		t.Fatal(err)
	}
	n := &guest{img: img}
	near, far := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
	t.Cleanup(func() { near.Close(); far.Close() })
	first := guestAddr(0, "0").Masked()
	porttest.Wire(t, near, far, false, func(f porttest.Received) bool {
		return !n.cut.Load() || !peertest.Carries(f.Octets, first)
	})
	link := filepath.Join(dir, "link")
	guest, err := port.ListenUnix(far, port.UnixConfig{Path: link})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.Close() })
	n.cfg.Link = link
	mine := netstack.Config{Name: "vrnic0"}
	for i := range guestNets {
		n.cfg.Addrs, mine.Addrs = append(n.cfg.Addrs, guestAddr(i, "1")),
			append(mine.Addrs, guestAddr(i, "2"))
	}
	if n.stack, err = netstack.NewStack(near, mine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.stack.Close() })
	n.boot(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("guest:\n%s", n.g.Log())
		}
		n.g.Stop()
	})
	t.Logf("Linux %s (%s)", img.Release, img.Version)
	return n
}

// boot boots the guest, after the one that there was, if any, is off.
func (n *guest) boot(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if n.g != nil {
		n.g.Stop()
	}
	n.cfg.Pcap = filepath.Join(filepath.Dir(n.cfg.Link), fmt.Sprintf("boot%d.pcap", len(n.pcaps)))
	n.pcaps = append(n.pcaps, n.cfg.Pcap)
	var err error
	if n.g, err = peer.Start(ctx, n.img, n.cfg); err != nil {
		t.Fatal(err)
	}
}

// start starts a program in the guest.
func (n *guest) start(t *testing.T) *sctppeer.Peer {
	t.Helper()
	c, err := n.g.Pipe("sctp-peer")
	if err != nil {
		t.Fatal(err)
	}
	p := sctppeer.NewPeer(c, c, func() { c.Close() })
	t.Cleanup(p.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := p.Wait(ctx, "ready"); err != nil {
		t.Fatal(err)
	}
	return p
}

// plain is plain SCTP over these of the networks.
func (n *guest) plain(nets ...int) *peertest.Plain {
	p := &peertest.Plain{SCTP: n.stack.SCTP(), Start: n.start, NoReason: true}
	for _, i := range nets {
		p.Ours, p.Theirs = append(p.Ours, guestAddr(i, "2").Addr()),
			append(p.Theirs, guestAddr(i, "1").Addr())
	}
	return p
}

func (n *guest) netem(t *testing.T, out, in string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.g.Netem(ctx, out, in); err != nil {
		t.Fatal(err)
	}
}

const ipv4, ipv6 = 0, 2

// all impairments at once.
const all = "delay 10ms 5ms loss 2% duplicate 2% reorder 10% 50%"

// impairments are what netem does in the guest, both ways; `make interop-smoke` has time for one.
func impairments(net int) []string {
	switch {
	case !smoke():
		return []string{"delay 20ms", "loss 5%", "delay 10ms reorder 25% 50%", "duplicate 10%", all}
	case net == ipv4:
		return []string{all}
	}
	return nil
}

func smoke() bool { return os.Getenv("VRNIC_TEST_INTEROP") == "smoke" }

// Linux's SCTP in a guest. SCTP-001, SCTP-004, SCTP-026, SCTP-047, SCTP-059, SCTP-151, SCTP-154,
// SCTP-157. SDDP-001, SDDP-002, SDDP-004, SDDP-005, SDDP-013, SDDP-067, SDDP-068.
func TestLinux(t *testing.T) {
	n := newGuest(t)
	for name, net := range map[string]int{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) {
			p := n.plain(net)
			t.Run("data", p.Data)
			t.Run("abort", p.Abort)
			t.Run("refused", p.Refused)
			for _, bad := range impairments(net) {
				t.Run("netem "+bad, func(t *testing.T) {
					n.netem(t, bad, bad)
					defer n.netem(t, "", "")
					p.Impaired(t, 400)
				})
			}
		})
	}
	t.Run("multihomed", func(t *testing.T) {
		if smoke() {
			needtest.Skip(t, "takes too long for a smoke test")
		}
		n.plain(0, 1).Multihomed(t, func() { n.cut.Store(true) }, func() { n.cut.Store(false) })
	})
	net := stacknet.New(n.stack)
	d, err := vnic.New(vnic.Config{Name: "vrnic0", MAC: n.stack.MAC(), MTU: n.stack.MTU(),
		Addrs: n.stack.Addrs(), Network: net})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	c := vnictest.Open(t, d, vnic.ContextConfig{})
	rig := func(net int) *peertest.Rig {
		return &peertest.Rig{Ctx: c, Ours: guestAddr(net, "2").Addr(),
			Theirs: guestAddr(net, "1").Addr().String(), Start: n.start, MaxSeg: 600}
	}
	for name, net := range map[string]int{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run("DDP "+name, func(t *testing.T) {
			r := rig(net)
			t.Run("sessions", r.Sessions)
			if !smoke() {
				t.Run("sessions, netem", func(t *testing.T) {
					n.netem(t, all, all)
					defer n.netem(t, "", "")
					r.Sessions(t)
				})
			}
			t.Run("fragments", r.Fragments)
			t.Run("fault", r.Fault)
			t.Run("reject", r.Reject)
			t.Run("indication", r.Indication)
		})
	}
	t.Run("reboot", func(t *testing.T) { rig(ipv4).Restart(t, n.boot) })
	n.g.Stop()
	for _, pcap := range n.pcaps {
		dissect(t, pcap)
	}
}

// dissect has tshark look at a recording: each checksum is good, nothing is malformed, and there is
// DDP in it.
func dissect(t *testing.T, pcap string) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		needtest.Lacking(t, "tshark", err)
	}
	// One line a packet; fields are empty where a packet has none.
	cmd := exec.Command("tshark", append(peertest.TsharkOptions(), "-n", "-r", pcap, "-Y", "sctp",
		"-T", "fields", "-e", "sctp.checksum.status", "-e", "_ws.malformed", "-e",
		"sctp.data_payload_proto_id", "-e", "sctp.adaptation_layer_indication")...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	packets, bad := 0, 0
	seen := map[string]int{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		packets++
		if len(f) != 4 || f[0] != "1" && f[0] != "Good" || f[1] != "" {
			if bad++; bad < 5 {
				t.Errorf("%s: packet %d: %q", pcap, packets, f)
			}
			continue
		}
		for _, id := range strings.Split(f[2], ",") {
			seen["PPID "+id]++
		}
		if f[3] != "" {
			seen["indication"]++
		}
	}
	t.Logf("%d packets, %d bad, %v", packets, bad, seen)
	if bad > 0 || seen["PPID 16"] == 0 || seen["PPID 17"] == 0 || seen["indication"] == 0 {
		t.Errorf("%s: %d of %d packets are bad; %v", pcap, bad, packets, seen)
	}
}
