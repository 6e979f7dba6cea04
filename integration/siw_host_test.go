package integration

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/internal/netlab"
)

// byTAP is what a guest boots, and the daemon by whose link it is reached: on a TAP, of which the
// kernel has addrsA[0], and what more says, in a namespace.
func byTAP(t *testing.T, ctx context.Context, more string) (img *peer.Image, ns *netlab.NS,
	link string, way *daemon) {
	t.Helper()
	ns = proctest.NewNS(t)
	img = siwImage(t, ctx)
	link = filepath.Join(t.TempDir(), "link")
	way = up(t, nil, "--device", "way0,addr=10.77.0.9/24", "--port", "unix-listen:"+link,
		"--port", "tap:ta,netns="+ns.Path()+",addr="+addrsA[0]+"/24"+more)
	return img, ns, link, way
}

// TestSiwHost is TestSiw's rping both ways with a device on an address of the host: that of the
// kernel's side of a TAP, by which another daemon has the guest reached.
func TestSiwHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	img, ns, link, way := byTAP(t, ctx, "")
	d := up(t, ns, "--device", "vrnic0,host="+addrsA[0])
	pcap := filepath.Join(t.TempDir(), "siw.pcap")
	g, err := peer.Start(ctx, img, peer.Config{Link: link, Pcap: pcap,
		Addrs: []netip.Prefix{netip.MustParsePrefix(guestAddrs[0] + "/24")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Stop() })
	l := &siwLab{siwNet: &siwNet{d: d, g: g, pcap: pcap}, t: t, img: img}

	server := d.serve("-a", addrsA[0])
	for n, size := range sizes {
		try(t, ctx, func(ctx context.Context) error {
			_, err := g.Run(ctx, rping("-c", addrsA[0], size, "-C", fmt.Sprint(siwRounds), "-V")...)
			return err
		})
		server.WaitOutput(fmt.Sprintf(" disconnected after %d rounds", siwRounds), n+1)
	}
	server.interrupt()
	theirs := l.rpingServer(t, ctx, guestAddrs[0], "-P")
	for _, size := range sizes {
		try(t, ctx, func(ctx context.Context) error {
			return l.vrnicClient(ctx, guestAddrs[0], size, siwRounds)
		})
	}
	l.kill(t, ctx, theirs)
	l.stop()
	way.stop()
	checkIWARP(t, pcap, true)
}
