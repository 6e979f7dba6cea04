package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/torture/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm"
)

// A rig is a daemon process with a raw peer's stack on a Unix-stream port, a client of it, which is
// this process, and two bystanders: QPs that move data all the time and must not notice anything.
// What is between the client and the peer is IPv4, or IPv6: see each.
type rig struct {
	*rigged
	addr netip.Addr // of vrnic0
	peer netip.Addr // of the raw peer
}

// rigged is what a rig has for either.
type rigged struct {
	t    *testing.T
	d    *daemon
	host *rawhost.Host
	dev  rdma.Device // vrnic0, whose QPs the raw peer talks to

	mu     sync.Mutex
	change chan struct{}                // guarded by mu: closed when events have changed
	events map[uint32][]rdma.AsyncEvent // guarded by mu: by QP

	by *bystander
}

// rawAddrs are the raw peer's, in the networks of addrsA.
var rawAddrs = []string{"10.77.0.9", "fd77::9"}

// over is r with the addresses of a family: 0 is IPv4, 1 is IPv6.
func (r *rig) over(family int) *rig {
	return &rig{rigged: r.rigged, addr: netip.MustParseAddr(addrsA[family]),
		peer: netip.MustParseAddr(rawAddrs[family])}
}

// each runs f as subtests over IPv4 and over IPv6.
func (r *rig) each(t *testing.T, name string, f func(t *testing.T, r *rig)) {
	t.Helper()
	for family, version := range []string{"", ", IPv6"} {
		t.Run(name+version, func(t *testing.T) { f(t, r.over(family)) })
	}
}

// both runs f as subtests over IPv4 and over IPv6.
func (r *rig) both(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	for family, version := range []string{"IPv4", "IPv6"} {
		t.Run(version, func(t *testing.T) { f(t, r.over(family)) })
	}
}

// newRig starts everything; options alter the raw peer's stack. When the test ends, nothing that
// was made may be left in the daemon, and it must end cleanly.
func newRig(t *testing.T, options ...func(*rawhost.Config)) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "vrnic-raw-") // t.TempDir can be longer than a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := (&rig{rigged: &rigged{
		t: t, change: make(chan struct{}), events: map[uint32][]rdma.AsyncEvent{},
	}}).over(0)
	cfg := rawhost.Config{Path: filepath.Join(dir, "link")}
	for i, bits := range []int{24, 64} {
		cfg.Addrs = append(cfg.Addrs, netip.PrefixFrom(netip.MustParseAddr(rawAddrs[i]), bits))
	}
	for _, o := range options {
		o(&cfg)
	}
	r.d = up(t, nil, "--device", deviceA, "--device", "vrnic1,addr=10.77.0.3/24", "--port",
		"unix-listen:"+cfg.Path)
	if r.host, err = rawhost.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.empty)
	r.serve("vrnic0")
	return r
}

// empty wants that nothing is left in the daemon, and ends it.
func (r *rig) empty() {
	for _, kind := range []string{"qp", "mr", "cq", "cm"} {
		proctest.Eventually(r.t, patience, "show "+kind+" is empty",
			func() bool { return len(r.d.show(kind)) == 0 })
	}
	if r.host != nil {
		r.host.Close()
	}
	r.d.stop()
}

// serve opens the device that the raw peer talks to, and has the bystanders begin.
func (r *rig) serve(device string) {
	r.t.Helper()
	r.dev = r.open(device)
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	go r.watch(ctx)
	r.by = newBystander(r.t, r)
}

// open opens a device in a session of its own, for the test's time.
func (r *rig) open(name string) rdma.Device {
	r.t.Helper()
	c, err := shm.Dial(r.d.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	dev, err := c.Open(name)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { dev.Close() })
	return dev
}

// watch sorts the asynchronous events by QP.
func (r *rig) watch(ctx context.Context) {
	for {
		ev, err := r.dev.NextAsyncEvent(ctx)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.events[ev.Object] = append(r.events[ev.Object], ev)
		close(r.change)
		r.change = make(chan struct{})
		r.mu.Unlock()
	}
}

// event waits for the first event of a QP.
func (r *rig) event(qpn uint32) (rdma.AsyncEvent, bool) {
	late := time.After(patience)
	for {
		r.mu.Lock()
		evs, change := r.events[qpn], r.change
		r.mu.Unlock()
		if len(evs) > 0 {
			return evs[0], true
		}
		select {
		case <-change:
		case <-late:
			return rdma.AsyncEvent{}, false
		}
	}
}

// noEvent says whether a QP had no event so far.
func (r *rig) noEvent(qpn uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events[qpn]) == 0
}

// An end is a QP with its queue, and the completions that have come.
type end struct {
	t   testing.TB
	dev rdma.Device
	pd  rdma.PD
	cq  rdma.CQ
	qp  rdma.QP
}

func got[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newEnd(t testing.TB, dev rdma.Device) *end {
	t.Helper()
	e := &end{t: t, dev: dev}
	e.pd = got[rdma.PD](t)(dev.AllocPD())
	e.cq = got[rdma.CQ](t)(dev.CreateCQ(512))
	e.qp = got[rdma.QP](t)(e.pd.CreateQP(rdma.QPConfig{
		SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 2, MaxRecvSGE: 2,
		MaxInline: 64,
	}))
	return e
}

// next waits for a completion.
func (e *end) next(ctx context.Context) (rdma.WC, error) {
	var wc [1]rdma.WC
	for {
		for range 2 {
			n, err := e.cq.Poll(wc[:])
			if err != nil || n == 1 {
				return wc[0], err
			}
			if err := e.cq.Arm(false); err != nil {
				return wc[0], err
			}
		}
		if err := e.cq.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}

// wc waits for a completion, which must come.
func (e *end) wc(why string) rdma.WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	wc, err := e.next(ctx)
	if err != nil {
		e.t.Fatalf("%s: no completion: %v", why, err)
	}
	return wc
}

// want waits for a completion of a request with a status.
func (e *end) want(why string, id uint64, s rdma.WCStatus) rdma.WC {
	e.t.Helper()
	wc := e.wc(why)
	if wc.ID != id || wc.Status != s {
		e.t.Errorf("%s: completion of %d with %v, want %d with %v: %+v", why, wc.ID, wc.Status, id, s, wc)
	}
	return wc
}

// none wants no completion to be there.
func (e *end) none(why string) {
	e.t.Helper()
	var wc [1]rdma.WC
	if n, err := e.cq.Poll(wc[:]); n != 0 || err != nil {
		e.t.Errorf("%s: %d completions, %+v, %v", why, n, wc[0], err)
	}
}

// Where things are in a victim's memory. Between the regions are guards that nothing may touch.
const (
	guard    = 4096
	atRW     = guard               // remote read and write
	atRO     = atRW + 4096 + guard // remote read
	atWO     = atRO + 4096 + guard // remote write
	atOther  = atWO + 4096 + guard // both, in another PD
	atLocal  = atOther + 4096 + guard
	atGone   = atLocal + 4096 + guard // both, but deregistered
	atRecv   = atGone + 4096 + guard
	recvRoom = 128 << 10
	atBig    = atRecv + recvRoom + guard // remote read and write
	bigLen   = 1 << 20
	memLen   = atBig + bigLen + guard
)

// A victim is a client's QP that a raw peer talks to, with memory of all kinds and receives posted.
type victim struct {
	*end
	r     *rig
	other rdma.PD
	buf   rdma.Buffer
	image []byte // of buf, as it should be

	rw, ro, wo, foreign, local, gone, recv, big rdma.MR

	recvs int // posted and not completed
	sent  int // send requests posted
	conn  rdma.Conn
}

// recvLen is the length of each receive.
const recvLen = 100

// newVictim makes a victim with n receives posted: 1 to n.
func newVictim(t testing.TB, r *rig, n int) *victim {
	t.Helper()
	v := &victim{end: newEnd(t, r.dev), r: r}
	v.other = got[rdma.PD](t)(r.dev.AllocPD())
	v.buf = got[rdma.Buffer](t)(r.dev.AllocBuffer(memLen))
	b := v.buf.Bytes()
	for i := range b {
		b[i] = byte(i*7 ^ i>>8)
	}
	v.image = bytes.Clone(b)
	const lw, rd, wr = rdma.LocalWrite, rdma.RemoteRead, rdma.RemoteWrite
	reg := func(pd rdma.PD, at, n int, a rdma.Access) rdma.MR {
		t.Helper()
		return got[rdma.MR](t)(pd.RegisterMemory(b[at:at+n], a))
	}
	v.rw, v.ro, v.wo = reg(v.pd, atRW, 4096, lw|rd|wr), reg(v.pd, atRO, 4096, rd),
		reg(v.pd, atWO, 4096, lw|wr)
	v.foreign, v.local = reg(v.other, atOther, 4096, lw|rd|wr), reg(v.pd, atLocal, 4096, lw)
	v.gone, v.recv = reg(v.pd, atGone, 4096, lw|rd|wr), reg(v.pd, atRecv, recvRoom, lw)
	v.big = reg(v.pd, atBig, bigLen, lw|rd|wr)
	if err := v.gone.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		v.post(uint64(i+1), i*recvLen, recvLen)
	}
	return v
}

// close takes everything apart again; whatever is left would show at the end of the rig.
func (v *victim) close() {
	v.t.Helper()
	var err error
	for _, c := range []interface{ Close() error }{v.qp, v.cq, v.rw, v.ro, v.wo, v.foreign, v.local,
		v.recv, v.big, v.other, v.pd, v.buf} {
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		v.t.Errorf("close: %v", err)
	}
}

// post posts a receive of n octets at off of the room for receives.
func (v *victim) post(id uint64, off, n int) {
	v.t.Helper()
	wr := rdma.RecvWR{ID: id}
	if n > 0 {
		wr.SGEs = []rdma.SGE{{Addr: v.recv.Addr() + uint64(off), Length: uint32(n), LKey: v.recv.LKey()}}
	}
	if err := v.qp.PostRecv(&wr); err != nil {
		v.t.Fatal(err)
	}
	v.recvs++
}

// send posts a request.
func (v *victim) send(wr rdma.SendWR) {
	v.t.Helper()
	v.sent++
	wr.Flags |= rdma.Signaled
	if err := v.qp.PostSend(&wr); err != nil {
		v.t.Fatalf("post %v: %v", wr.Op, err)
	}
}

// sge names n octets at off of the region m.
func sge(m rdma.MR, off, n int) []rdma.SGE {
	return []rdma.SGE{{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}}
}

// listen makes a listener of the victim's device.
func (v *victim) listen(backlog int) rdma.Listener {
	v.t.Helper()
	return got[rdma.Listener](v.t)(v.r.dev.Listen(netip.AddrPortFrom(v.r.addr, 0), backlog))
}

// accept takes the peer's connection as p says. The peer has sent its Request and reads the Reply.
func (v *victim) accept(p rdma.ConnParam, hello rawpeer.Start) *rawpeer.Peer {
	v.t.Helper()
	peer, err := v.tryAccept(p, hello)
	if err != nil {
		v.t.Fatal(err)
	}
	return peer
}

func (v *victim) tryAccept(p rdma.ConnParam, hello rawpeer.Start) (*rawpeer.Peer, error) {
	v.t.Helper()
	l := v.listen(4)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	peer := got[*rawpeer.Peer](v.t)(v.r.host.Dial(ctx, l.Addr()))
	v.t.Cleanup(func() { peer.Close() })
	done := make(chan error, 1)
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			v.conn, err = req.Accept(ctx, v.qp, p)
		}
		done <- err
	}()
	err := peer.Run(rawpeer.PutStart(hello), rawpeer.WantStart("a Reply", func(s rawpeer.Start) bool {
		return s.Key == rawpeer.KeyReply && s.Flags&rawpeer.FlagR == 0
	}))
	if err != nil {
		cancel()
	}
	return peer, errors.Join(err, <-done)
}

// plain is the Request of a peer with CRCs, in the peer-to-peer model with every RTR.
func plain(ird, ord uint16) rawpeer.Start { return iwarp.Plain(ird, ord) }

// rtr is the first FPDU of an initiator.
func rtr() rawpeer.Step { return rawpeer.Put(rawpeer.Write(0, 0, nil)) }

// ready accepts a plain connection and has the peer send its RTR.
func (v *victim) ready() *rawpeer.Peer {
	v.t.Helper()
	p := v.accept(rdma.ConnParam{}, plain(16, 16))
	v.run(p, rtr())
	return p
}

// connect connects the victim to a peer that answers with reply, adapted to the Request.
func (v *victim) connect(
	cp rdma.ConnParam, answer ...rawpeer.Step,
) (peer *rawpeer.Peer, err error) {
	v.t.Helper()
	l := got[*rawhost.Listener](v.t)(v.r.host.Listen(v.r.peer))
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var err error
		v.conn, err = v.r.dev.Connect(ctx, v.qp, l.Addr(), cp)
		done <- err
	}()
	peer = got[*rawpeer.Peer](v.t)(l.Accept())
	v.t.Cleanup(func() { peer.Close() })
	v.run(peer, append([]rawpeer.Step{rawpeer.WantStart("a Request", func(s rawpeer.Start) bool {
		return s.Key == rawpeer.KeyRequest
	})}, answer...)...)
	return peer, <-done
}

// accepting is the Reply of a peer that takes the RTR by Write.
func accepting(ird, ord uint16) rawpeer.Start {
	return rawpeer.Reply(rawpeer.FlagC).Enhanced(rawpeer.WordA|ird, rawpeer.WordC|ord)
}

// connected connects the victim to a peer with these IRD and ORD, which has taken the RTR.
func (v *victim) connected(ird, ord uint16) *rawpeer.Peer {
	v.t.Helper()
	p, err := v.connect(rdma.ConnParam{}, rawpeer.PutStart(accepting(ird, ord)),
		rawpeer.Want(rawpeer.Write(1, 0, nil)))
	if err != nil {
		v.t.Fatalf("connect: %v\n%s", err, p.Transcript())
	}
	v.heard(p)
	return p
}

// heard has the victim, an initiator that reminds a peer which has been silent for 100 ms by empty
// Writes, hear that peer: from then on nothing comes by itself. The peer's next Read Request has
// sequence number 2.
func (v *victim) heard(p *rawpeer.Peer) {
	v.t.Helper()
	nothing := rawpeer.ReadResponse(0, 0, nil)
	v.run(p, rawpeer.Put(rawpeer.ReadRequest(1, rawpeer.Read{})),
		wantBehindNudges(func(s seg) bool { return s.Op() == nothing.Op() && len(s.Body) == 0 }))
}

// run has the peer do steps.
func (v *victim) run(p *rawpeer.Peer, steps ...rawpeer.Step) {
	v.t.Helper()
	if err := p.Run(steps...); err != nil {
		v.t.Fatal(err)
	}
}

// expect sets what the memory is to hold at off.
func (v *victim) expect(off int, b []byte) { copy(v.image[off:], b) }

// unharmed compares all memory with what it is to hold.
func (v *victim) unharmed() {
	v.t.Helper()
	b := v.buf.Bytes()
	if bytes.Equal(b, v.image) {
		return
	}
	for i := range b {
		if b[i] != v.image[i] {
			v.t.Errorf("memory: octet %#x is %#02x, want %#02x", i, b[i], v.image[i])
			return
		}
	}
}

// over waits for the end of the connection: its cause, the event of the QP, and a completion of
// each posted receive: the first with status, the others flushed.
func (v *victim) over(status rdma.WCStatus, event rdma.AsyncEventType, remote bool, layer, etype,
	code uint8) {
	v.t.Helper()
	v.ended()
	var term *rdma.TerminateError
	if err := v.conn.Err(); !errors.As(err, &term) || term.Remote != remote || term.Layer != layer ||
		term.Type != etype || term.Code != code {
		v.t.Errorf("the connection ended with %v, want %d/%d/%02x, remote %t", err, layer, etype,
			code, remote)
	}
	ev, ok := v.r.event(v.qp.Num())
	if !ok || ev.Type != event || ev.Cause == nil || ev.Cause.Remote != remote ||
		ev.Cause.Layer != layer || ev.Cause.Type != etype || ev.Cause.Code != code {
		v.t.Errorf("the event is %v, %v; want %v with that cause", ev.Type, ev.Cause, event)
	}
	v.flushed(status)
}

// ended waits until the connection is over.
func (v *victim) ended() {
	v.t.Helper()
	select {
	case <-v.conn.Done():
	case <-time.After(patience):
		v.t.Fatal("the client does not see the end of the connection")
	}
}

// flushed takes a completion of each posted receive: the first with status, the others flushed.
func (v *victim) flushed(status rdma.WCStatus) {
	v.t.Helper()
	for v.recvs > 0 {
		wc := v.wc("a posted receive")
		v.recvs--
		if wc.Status != status {
			v.t.Errorf("the receive %d completed with %v, want %v", wc.ID, wc.Status, status)
		}
		status = rdma.WCFlush
	}
	v.none("nothing else was posted")
}

// A bystander is a pair of QPs on other devices of the daemon, with a program that moves data
// between them and checks it.
type bystander struct {
	t      testing.TB
	rounds atomic.Int64
	failed atomic.Pointer[error]
}

func newBystander(t *testing.T, r *rig) *bystander {
	t.Helper()
	const size = 32 << 10
	y := &bystander{t: t}
	devA, devB := r.open("vrnic0"), r.open("vrnic1")
	a, b := newEnd(t, devA), newEnd(t, devB)
	bufA, bufB := got[rdma.Buffer](t)(devA.AllocBuffer(size)),
		got[rdma.Buffer](t)(devB.AllocBuffer(size))
	mrA := got[rdma.MR](t)(a.pd.RegisterMemory(bufA.Bytes(), rdma.LocalWrite))
	mrB := got[rdma.MR](t)(b.pd.RegisterMemory(bufB.Bytes(),
		rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead))
	l := got[rdma.Listener](t)(devB.Listen(netip.MustParseAddrPort("10.77.0.3:0"), 1))
	ctx, cancel := context.WithCancel(context.Background())
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			_, err = req.Accept(ctx, b.qp, rdma.ConnParam{})
		}
		accepted <- err
	}()
	got[rdma.Conn](t)(devA.Connect(ctx, a.qp, l.Addr(), rdma.ConnParam{}))
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	l.Close()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			if err := y.round(ctx, a, b, mrA, mrB); err != nil {
				if ctx.Err() == nil {
					y.failed.Store(&err)
				}
				return
			}
			y.rounds.Add(1)
			time.Sleep(time.Millisecond) // leave the processors to the others
		}
	}()
	t.Cleanup(func() {
		if !t.Failed() {
			y.moves(t)
		}
		cancel()
		<-stopped
	})
	return y
}

// round writes, sends and reads back.
func (y *bystander) round(ctx context.Context, a, b *end, mrA, mrB rdma.MR) error {
	const n = 8 << 10
	from, to := mrA.Bytes(), mrB.Bytes()
	seq := y.rounds.Load()
	for i := range n {
		from[i] = byte(int64(i)*3 + seq)
	}
	if err := b.qp.PostRecv(&rdma.RecvWR{ID: 9}); err != nil {
		return err
	}
	wrs := []rdma.SendWR{
		{ID: 1, Op: rdma.OpWrite, SGEs: sge(mrA, 0, n), RemoteAddr: mrB.Addr(), RKey: mrB.RKey()},
		{ID: 2, Op: rdma.OpSend},
		{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: sge(mrA, n, n), RemoteAddr: mrB.Addr(),
			RKey: mrB.RKey()},
	}
	if _, err := a.qp.PostSends(wrs); err != nil {
		return err
	}
	for e, id := range map[*end]uint64{a: 3, b: 9} {
		if wc, err := e.next(ctx); err != nil || wc.ID != id || wc.Status != rdma.WCSuccess {
			return fmt.Errorf("completion %+v, %w, want success of %d", wc, err, id)
		}
	}
	if !bytes.Equal(from[:n], to[:n]) || !bytes.Equal(from[n:2*n], to[:n]) {
		return fmt.Errorf("round %d: the data differ", seq)
	}
	return nil
}

// moves wants the bystanders to go on.
func (y *bystander) moves(t testing.TB) {
	t.Helper()
	n := y.rounds.Load()
	for begin := time.Now(); y.rounds.Load() < n+2; time.Sleep(time.Millisecond) {
		if err := y.failed.Load(); err != nil {
			t.Fatalf("the bystander failed: %v", *err)
		}
		if time.Since(begin) > patience {
			t.Fatalf("the bystander stands still after %d rounds", n)
		}
	}
}

// octets is a pattern of n octets.
func octets(n int, seed byte) []byte { return iwarp.Octets(n, seed) }

// alive wants the connection to work both ways: a Send of the peer with sequence number msn into
// the receive id, and one of the victim's.
func (v *victim) alive(p *rawpeer.Peer, msn uint32, id uint64) {
	v.t.Helper()
	ping := octets(20, byte(msn))
	v.run(p, rawpeer.Put(rawpeer.Send(msn, 0, ping)))
	wc := v.want("the peer's Send", id, rdma.WCSuccess)
	v.recvs--
	if int(wc.ByteLen) != len(ping) || wc.Op != rdma.WCRecv {
		v.t.Errorf("the peer's Send: %+v", wc)
	}
	v.expect(atRecv+int(id-1)*recvLen, ping)
	v.unharmed()
	v.pong(p)
}

// pong has the victim send something and the peer see it.
func (v *victim) pong(p *rawpeer.Peer) {
	v.t.Helper()
	data := octets(33, 99)
	v.send(rdma.SendWR{ID: 1000, Op: rdma.OpSend, Flags: rdma.Inline, Inline: data})
	v.run(p, rawpeer.WantSeg("the victim's Send", func(s rawpeer.Seg) bool {
		return s.Op() == rawpeer.OpSend && s.Last() && bytes.Equal(s.Body, data)
	}))
	v.want("the victim's Send", 1000, rdma.WCSuccess)
}

// leave ends the connection from the peer's side and closes the victim.
func (v *victim) leave(p *rawpeer.Peer) {
	v.t.Helper()
	p.Close()
	v.ended()
	v.close()
}
