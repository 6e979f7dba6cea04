package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// guestAddrs are the addresses of the guest with siw; the devices are those of addrsA.
var guestAddrs = []string{"10.77.0.1", "fd77::1"}

// siwImage builds what guests boot, or skips the test.
func siwImage(t *testing.T, ctx context.Context) *peer.Image {
	t.Helper()
	if os.Getenv("VRNIC_TEST_INTEROP") == "" {
		needtest.Skip(t, "boots a guest, which takes a minute: run `make interop`")
	}
	if m := peer.Missing(); len(m) > 0 {
		needtest.Lacking(t, "qemu", "packages are missing: apt-get install "+strings.Join(m, " "))
	}
	img, err := peer.Build(ctx, "", testLog{t})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// testLog is a test's log as a writer.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

// A siwNet is a daemon and a guest on one Unix-stream link.
type siwNet struct {
	d    *daemon
	g    *peer.Guest
	pcap string // what QEMU has recorded, once the guest is off; empty: nothing
	roce bool   // the guest has rxe, and the daemon's device speaks RoCEv2
}

// roceMTU is that of the network between vrnic and rxe: room for packets of a path MTU of 4096.
const roceMTU = 4200

// newSiwNet boots a guest beside a daemon, whose arguments more adds to. A failed test shows the
// guest's console, which $VRNIC_TEST_LOGS, if set, keeps in a folder of the test's name, with the
// recording.
func newSiwNet(
	t *testing.T, ctx context.Context, img *peer.Image, record, roce bool, more ...string,
) *siwNet {
	t.Helper()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	cfg := peer.Config{Link: link, RoCE: roce}
	device := deviceA
	if roce {
		cfg.MTU = roceMTU
		device += fmt.Sprintf(",transport=roce,mtu=%d", roceMTU)
	}
	args := append([]string{"--device", device, "--port", "unix-listen:" + link}, more...)
	n := &siwNet{d: up(t, nil, args...), roce: roce}
	if record {
		n.pcap = filepath.Join(dir, "siw.pcap")
	}
	if logs := os.Getenv("VRNIC_TEST_LOGS"); logs != "" {
		cfg.Logs = filepath.Join(logs, strings.ReplaceAll(t.Name(), "/", "_"))
		if err := os.MkdirAll(cfg.Logs, 0o777); err != nil {
			t.Fatal(err)
		}
		if record {
			n.pcap = filepath.Join(cfg.Logs, "siw.pcap")
		}
	}
	cfg.Pcap = n.pcap
	for i, bits := range []int{24, 64} {
		cfg.Addrs = append(cfg.Addrs, netip.PrefixFrom(netip.MustParseAddr(guestAddrs[i]), bits))
	}
	var err error
	if n.g, err = peer.Start(ctx, img, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("guest:\n%s", n.g.Log())
		}
		n.g.Stop()
	})
	return n
}

// stop ends guest and daemon in the orderly way.
func (n *siwNet) stop() {
	n.g.Stop()
	n.d.stop()
}

// A siwBench is a siwNet with a program on either end that makes connections as a test wants them.
type siwBench struct {
	*siwNet
	t      *testing.T
	client *shm.Client
	dev    rdma.Device
	probe  *peer.Probe
	port   uint16 // of the last connection's server: each has its own
}

// firstPort is where servers' ports begin, below those that either end gives to clients, so that a
// port in a recording says which connection it is of.
const firstPort = 12000

func newSiwBench(
	t *testing.T, ctx context.Context, img *peer.Image, record, roce bool, more ...string,
) *siwBench {
	t.Helper()
	return newSiwNet(t, ctx, img, record, roce, more...).bench(t, ctx, "")
}

// bench starts the programs, vrnic's on the device of that name.
func (n *siwNet) bench(t *testing.T, ctx context.Context, name string) *siwBench {
	t.Helper()
	b := &siwBench{siwNet: n, t: t, port: firstPort}
	var err error
	if b.client, err = shm.Dial(b.d.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.client.Close() })
	if b.dev, err = b.client.Open(name); err != nil {
		t.Fatal(err)
	}
	if b.probe, err = b.g.StartProbe(ctx); err != nil {
		t.Fatal(err)
	}
	return b
}

// reload gives the guest a siw with other module parameters.
func (b *siwBench) reload(ctx context.Context, params ...string) error {
	return b.newProbe(ctx, func() error { return b.g.LoadSiw(ctx, params...) })
}

// restart gives the guest a new probe, whatever the old one was at.
func (b *siwBench) restart(ctx context.Context) error {
	return b.newProbe(ctx, func() error { return nil })
}

func (b *siwBench) newProbe(ctx context.Context, between func() error) error {
	if err := b.probe.Stop(ctx); err != nil {
		return err
	}
	if err := between(); err != nil {
		return err
	}
	var err error
	b.probe, err = b.g.StartProbe(ctx)
	return err
}

// stop ends what runs in the orderly way.
func (b *siwBench) stop() {
	b.client.Close()
	b.siwNet.stop()
}

// A family is IPv4 or IPv6: index of addrsA and guestAddrs.
type family int

func (f family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// An initiator is who asks for a connection: index of a plan's halves.
type initiator int

const (
	fromSiw initiator = iota
	fromVrnic
)

func (i initiator) String() string { return [...]string{"siw", "vrnic"}[i] }

// A plan says how a connection is to be made.
type plan struct {
	from     initiator
	family   family
	mpa      rdma.MPAParam // vrnic's
	ird, ord uint16        // of both ends
	private  [2][]byte     // private data of the initiator and of the responder
	kind     rdma.QPType   // 0: RC
	// Linux 6.1's rxe forgets a fenced request that waits for a Read which is asked for again.
	noFence bool
	// The responder is to speak first: the set-up has a ready-to-receive message.
	responderFirst bool
}

// A pair is a connection and what its ends are made of.
type pair struct {
	plan
	b    *siwBench
	v    *vrnicSide
	s    *siwSide
	port uint16
	got  [2][]byte      // the private data that the initiator and the responder were given
	mem  [2]*region     // of siw and vrnic, for the first messages
	qp   map[string]any // vrnic's QP as `vrnic show qp` has it
}

func (p *pair) ends() (initiator, responder side) {
	if p.from == fromSiw {
		return p.s, p.v
	}
	return p.v, p.s
}

// sides returns siw's and vrnic's end, for operations in both directions.
func (p *pair) sides() [2]side { return [2]side{p.s, p.v} }

// helloLimit is how long the first messages may take. Siw as a responder can overlook one: then it
// is quiet until more comes, and the connection is tried again.
const (
	helloLimit = 15 * time.Second
	connTries  = 4
)

// errSilent says that siw did not answer the first message.
var errSilent = errors.New("no answer to the first message")

// connect makes a connection and exchanges a first message in each direction. It returns how
// often siw was silent before.
func (b *siwBench) connect(ctx context.Context, k plan) (p *pair, retries int) {
	for ; ; retries++ {
		b.port++
		p = &pair{plan: k, b: b, port: b.port}
		err := guarded(func() { p.open(ctx) })
		if err == nil {
			return p, retries
		}
		if err2 := guarded(p.free); err2 != nil && !errors.Is(err, errSilent) {
			err = fmt.Errorf("%w (and then: %v)", err, err2)
		}
		if !errors.Is(err, errSilent) || retries+1 == connTries || k.from != fromVrnic {
			must(err)
		}
	}
}

// explained adds to err, if there is one, why vrnic's connection has ended.
func (p *pair) explained(err error) error {
	if err == nil || p.v.conn == nil {
		return err
	}
	select {
	case <-p.v.conn.Done():
		return fmt.Errorf("%w; vrnic's connection has ended: %v", err, p.v.conn.Err())
	case <-time.After(200 * time.Millisecond):
		return fmt.Errorf("%w; vrnic's connection has not ended", err)
	}
}

// free gives back what the pair is made of, connected or not.
func (p *pair) free() {
	err := guarded(func() {
		if p.s != nil {
			p.s.close()
		}
	})
	if p.v != nil {
		p.v.close()
	}
	must(err)
}

// IDs of the first messages.
const (
	helloRecv = 1<<32 + iota
	helloSend
)

// newSides makes both ends with memory for the first messages.
func (p *pair) newSides(ctx context.Context) {
	p.v, p.s = newVrnicSide(ctx, p.b.dev, p.kind),
		&siwSide{ctx: ctx, p: p.b.probe, rxe: p.b.roce}
	p.mem = [2]*region{p.s.region(4096, rdma.LocalWrite, 0), p.v.region(4096, rdma.LocalWrite, 0)}
}

const helloLen = 100

func (p *pair) open(ctx context.Context) {
	p.newSides(ctx)
	if p.b.roce { // receives are posted before the connection is there
		p.v.modify(rdma.QPAttr{State: rdma.QPInit, Port: 1},
			rdma.AttrState|rdma.AttrPort|rdma.AttrPKeyIndex|rdma.AttrAccess)
	}
	vrnicRecv := func() { p.v.recv(helloRecv, p.mem[1], 0, helloLen) }
	siwRecv := func() { p.s.recv(helloRecv, p.mem[0], 0, helloLen) }
	cctx, done := context.WithTimeout(ctx, 20*time.Second)
	defer done()
	result := make(chan error, 1)
	var param rdma.ConnParam
	if p.from == fromSiw {
		addr := addrPort(addrsA[p.family], p.port)
		l, err := p.b.dev.Listen(addr, 1)
		must(err)
		defer l.Close()
		p.s.conn = p.s.do("prepare %s %d", addr.Addr(), p.port)[0]
		siwRecv()
		vrnicRecv()
		go func() {
			req, err := l.Next(cctx)
			if err == nil {
				param = req.Param()
				p.v.conn, err = req.Accept(cctx, p.v.qp, rdma.ConnParam{PrivateData: p.private[1], IRD: p.ird,
					ORD: p.ord, MPA: p.mpa})
			}
			result <- err
		}()
		words, err := p.b.probe.Do(ctx, "connect %s %d %d %s", p.s.conn, p.ird, p.ord,
			peer.ProbeOctets(p.private[0]))
		if err != nil {
			done()
			must(errors.Join(err, ignore(<-result, context.Canceled)))
		}
		p.got = [2][]byte{fromHex(words[3]), param.PrivateData}
		if !p.responderFirst {
			p.hello(p.s, p.v, func() { must(<-result) })
			return
		}
		must(<-result)
		p.got[1] = param.PrivateData
		p.hello(p.v, p.s, func() {})
		return
	}
	addr := addrPort(guestAddrs[p.family], p.port)
	p.s.do("listen %s %d", addr.Addr(), p.port)
	vrnicRecv()
	go func() {
		var err error
		p.v.conn, err = p.b.dev.Connect(cctx, p.v.qp, addr, rdma.ConnParam{PrivateData: p.private[0],
			IRD: p.ird, ORD: p.ord, MPA: p.mpa})
		result <- err
	}()
	err := guarded(func() {
		words := p.s.do("request")
		p.s.conn, p.got[1] = words[0], fromHex(words[3])
		siwRecv()
		p.s.do("accept %s %d %d %s", p.s.conn, p.ird, p.ord, peer.ProbeOctets(p.private[1]))
	})
	if err != nil {
		done()
		must(errors.Join(ignore(<-result, context.Canceled), err))
	}
	must(<-result)
	p.got[0] = p.v.conn.Param().PrivateData
	if p.responderFirst {
		p.hello(p.s, p.v, func() {})
	} else {
		p.hello(p.v, p.s, func() {})
	}
}

// ignore is err unless it is what.
func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// hello sends a message from one end to the other and one back. Once the first is on its way
// established is called: a responder may not know before.
func (p *pair) hello(from, to side, established func()) {
	send := func(x side) {
		r := p.memOf(x)
		x.fill(r, 1024, helloLen, uint64(p.port))
		x.post(work{id: helloSend, op: rdma.OpSend, r: r, off: 1024, n: helloLen})
	}
	wait := func(x side, n int) {
		got := x.poll(n, helloLimit)
		if len(got) < n {
			must(fmt.Errorf("%w: %v has %d of %d completions", errSilent, x, len(got), n))
		}
		for _, d := range got {
			if d.status != rdma.WCSuccess || d.id == helloRecv && d.n != helloLen {
				failf("first messages: %v: completion %+v", x, d)
			}
		}
	}
	send(from)
	established()
	if len(to.poll(1, helloLimit)) == 0 {
		must(fmt.Errorf("%w: nothing at %v", errSilent, to))
	}
	to.check(p.memOf(to), 0, helloLen, uint64(p.port))
	send(to)
	wait(from, 2)
	wait(to, 1)
	from.check(p.memOf(from), 0, helloLen, uint64(p.port))
	p.qp = p.b.liveQP(p.v.qp.Num())
}

func (p *pair) memOf(x side) *region {
	if x == side(p.s) {
		return p.mem[0]
	}
	return p.mem[1]
}

// liveQP is what the daemon shows of a connected QP.
func (b *siwBench) liveQP(num uint32) map[string]any {
	rows, err := b.client.List("qp")
	must(err)
	for _, raw := range rows {
		var row map[string]any
		must(json.Unmarshal(raw, &row))
		if row["qpn"] == float64(num) {
			return row
		}
	}
	failf("no QP %d among %s", num, bytes.Join(anyBytes(rows), []byte(" ")))
	return nil
}

func anyBytes(rows []json.RawMessage) (out [][]byte) {
	for _, r := range rows {
		out = append(out, r)
	}
	return out
}

// fromHex reads what the probe writes.
func fromHex(s string) []byte {
	var b []byte
	if s != "-" {
		if _, err := fmt.Sscanf(s, "%x", &b); err != nil {
			failf("octets %q: %v", s, err)
		}
	}
	return b
}

// finish ends a connection in the orderly way by x and wants both ends to see it so.
func (p *pair) finish(x side) {
	x.disconnect()
	if p.b.roce { // a kernel answers a disconnect when its program disconnects, too
		_, y := p.endsFrom(x)
		y.ended(30 * time.Second)
		y.disconnect()
	}
	p.v.ended(30 * time.Second)
	p.s.ended(30 * time.Second)
	if err := p.v.conn.Err(); err != nil {
		failf("after a disconnect by %v vrnic's connection has ended with: %v", x, err)
	}
}

func addrPort(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}
