package vnictest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// An Option changes the Config of the devices that Pair and Single make.
type Option func(*vnic.Config)

// Device makes a device with addresses addrs on n; it is closed at the end of the test.
func (n *Net) Device(t testing.TB, name string, addrs []string, opts ...Option) *vnic.Device {
	t.Helper()
	cfg := vnic.Config{Name: name, Beside: n.Beside}
	var as []netip.Addr
	for _, a := range addrs {
		p := netip.MustParsePrefix(a)
		cfg.Addrs = append(cfg.Addrs, p)
		as = append(as, p.Addr())
	}
	cfg.Network = n.Host(as...)
	for _, o := range opts {
		o(&cfg)
	}
	d, err := vnic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// Pair makes two devices, 10.0.0.1 and 10.0.0.2 (fd00::1 and fd00::2), on a network of their own.
func Pair(t testing.TB, opts ...Option) (a, b *vnic.Device) {
	t.Helper()
	return NewNet().Pair(t, opts...)
}

// Pair makes the devices of Pair on n.
func (n *Net) Pair(t testing.TB, opts ...Option) (a, b *vnic.Device) {
	t.Helper()
	return n.Device(t, "vnic0", []string{"10.0.0.1/24", "fd00::1/64"}, opts...),
		n.Device(t, "vnic1", []string{"10.0.0.2/24", "fd00::2/64"}, opts...)
}

// Open opens d for one user; it is closed at the end of the test.
func Open(t testing.TB, d *vnic.Device, cfg vnic.ContextConfig) *vnic.Context {
	t.Helper()
	c, err := d.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Full are all rights.
const Full = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic

// PeerConfig says what a Peer is made of. Zero fields ask for something useful.
type PeerConfig struct {
	PD      *vnic.PD // one of the same context; nil: a new one
	QP      rdma.QPConfig
	CQDepth int
	Buffer  int         // octets; 0: 64 KiB
	Access  rdma.Access // of the buffer; 0: Full
	Param   rdma.ConnParam
	Linger  vnic.Lingerer // of the QP
}

// A Peer is one end of a connection with what goes with it.
type Peer struct {
	t      testing.TB
	Ctx    *vnic.Context
	PD     *vnic.PD
	SendCQ *vnic.CQ
	RecvCQ *vnic.CQ
	QP     *vnic.QP
	MR     *vnic.MR
	Buf    []byte // the memory of MR
	Conn   rdma.Conn
	Config PeerConfig
}

// NewPeer makes all of a Peer but the connection.
func NewPeer(t testing.TB, c *vnic.Context, cfg PeerConfig) *Peer {
	t.Helper()
	p := &Peer{t: t, Ctx: c, Config: cfg}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&cfg.CQDepth, 256)
	def(&cfg.Buffer, 64<<10)
	def(&cfg.QP.MaxSendWR, 32)
	def(&cfg.QP.MaxRecvWR, 32)
	def(&cfg.QP.MaxSendSGE, 4)
	def(&cfg.QP.MaxRecvSGE, 4)
	def(&cfg.QP.MaxInline, 64)
	if cfg.Access == 0 {
		cfg.Access = Full
	}
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if p.PD = cfg.PD; p.PD == nil {
		p.PD, err = c.NewPD()
		check()
	}
	p.SendCQ, err = c.NewCQ(vnic.CQOptions{Depth: cfg.CQDepth})
	check()
	p.RecvCQ, err = c.NewCQ(vnic.CQOptions{Depth: cfg.CQDepth})
	check()
	cfg.QP.SendCQ, cfg.QP.RecvCQ = p.SendCQ, p.RecvCQ
	p.QP, err = p.PD.NewQP(vnic.QPOptions{QPConfig: cfg.QP, Linger: cfg.Linger})
	check()
	p.Buf = make([]byte, cfg.Buffer)
	p.MR = p.Register(p.Buf, cfg.Access)
	return p
}

// Connect joins x and y: x connects, y accepts.
func Connect(t testing.TB, x, y *Peer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l, err := y.Ctx.Listen(netip.AddrPortFrom(y.Ctx.Attr().Addrs[0].Addr(), 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Next(ctx)
		if err == nil {
			y.Conn, err = r.Accept(ctx, y.QP, y.Config.Param)
		}
		done <- err
	}()
	x.Conn, err = x.Ctx.Connect(ctx, x.QP, l.Addr(), x.Config.Param)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("accept: %v", err)
	}
}

// NewQPs makes two connected Peers.
func NewQPs(t testing.TB, a, b *vnic.Context, x, y PeerConfig) (*Peer, *Peer) {
	t.Helper()
	p, q := NewPeer(t, a, x), NewPeer(t, b, y)
	Connect(t, p, q)
	return p, q
}

// Register registers b.
func (p *Peer) Register(b []byte, access rdma.Access) *vnic.MR {
	p.t.Helper()
	m, err := p.PD.RegisterMemory(b, access)
	if err != nil {
		p.t.Fatal(err)
	}
	return m.(*vnic.MR)
}

// SGE names n octets of p's buffer from offset off on.
func (p *Peer) SGE(off, n int) rdma.SGE {
	return rdma.SGE{Addr: p.MR.Addr() + uint64(off), Length: uint32(n), LKey: p.MR.LKey()}
}

// Recv posts a receive into n octets of p's buffer at off.
func (p *Peer) Recv(id uint64, off, n int) {
	p.t.Helper()
	wr := rdma.RecvWR{ID: id}
	if n > 0 {
		wr.SGEs = []rdma.SGE{p.SGE(off, n)}
	}
	if err := p.QP.PostRecv(&wr); err != nil {
		p.t.Fatalf("post receive %d: %v", id, err)
	}
}

// Post posts wr, with n octets of p's buffer at off (none if n is 0), signaled.
func (p *Peer) Post(wr rdma.SendWR, off, n int) {
	p.t.Helper()
	if n > 0 {
		wr.SGEs = []rdma.SGE{p.SGE(off, n)}
	}
	wr.Flags |= rdma.Signaled
	if err := p.QP.PostSend(&wr); err != nil {
		p.t.Fatalf("post %v %d: %v", wr.Op, wr.ID, err)
	}
}

// Send posts a Send of n octets of p's buffer at off.
func (p *Peer) Send(id uint64, off, n int) {
	p.t.Helper()
	p.Post(rdma.SendWR{ID: id, Op: rdma.OpSend}, off, n)
}

// Write posts a Write of n octets of p's buffer at off to offset to of q's.
func (p *Peer) Write(id uint64, off, n int, q *Peer, to int) {
	p.t.Helper()
	p.Post(rdma.SendWR{ID: id, Op: rdma.OpWrite, RemoteAddr: q.MR.Addr() + uint64(to),
		RKey: q.MR.RKey()}, off, n)
}

// Read posts a Read of n octets into p's buffer at off, from offset from of q's.
func (p *Peer) Read(id uint64, off, n int, q *Peer, from int) {
	p.t.Helper()
	p.Post(rdma.SendWR{ID: id, Op: rdma.OpRead, RemoteAddr: q.MR.Addr() + uint64(from),
		RKey: q.MR.RKey()}, off, n)
}

// Next waits for the next n completions of cq; fewer fail the test after a minute.
func (p *Peer) Next(cq *vnic.CQ, n int) []rdma.WC {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all []rdma.WC
	for len(all) < n {
		buf := make([]rdma.WC, n-len(all))
		k, err := cq.Poll(buf)
		if err != nil {
			p.t.Fatalf("poll: %v", err)
		}
		if all = append(all, buf[:k]...); len(all) == n {
			return all
		}
		_ = cq.Arm(false)
		buf = buf[k:]
		if k, _ = cq.Poll(buf); k > 0 { // they came before the Arm
			all = append(all, buf[:k]...)
			continue
		}
		if err := cq.Wait(ctx); err != nil {
			p.t.Fatalf("%d completions, want %d: %v; have %+v", len(all), n, err, all)
		}
	}
	return all
}

// A Want is what a completion should be.
type Want struct {
	ID     uint64
	Status rdma.WCStatus
}

// WantSend waits for completions of p's send queue: exactly these, in this order.
func (p *Peer) WantSend(why string, want ...Want) []rdma.WC {
	p.t.Helper()
	return p.want(p.SendCQ, "send", why, want)
}

// WantRecv is WantSend for the receive queue.
func (p *Peer) WantRecv(why string, want ...Want) []rdma.WC {
	p.t.Helper()
	return p.want(p.RecvCQ, "receive", why, want)
}

func (p *Peer) want(cq *vnic.CQ, kind, why string, want []Want) []rdma.WC {
	p.t.Helper()
	got := p.Next(cq, len(want))
	for i, w := range want {
		if got[i].ID != w.ID || got[i].Status != w.Status || got[i].QPN != p.QP.Num() {
			p.t.Fatalf("%s: %s completion %d is %+v (%v), want id %d: %v", why, kind, i, got[i],
				got[i].Status, w.ID, w.Status)
		}
	}
	return got
}

// WantNone says that no completion is there now.
func (p *Peer) WantNone(why string) {
	p.t.Helper()
	var wc [1]rdma.WC
	for _, cq := range []*vnic.CQ{p.SendCQ, p.RecvCQ} {
		if n, _ := cq.Poll(wc[:]); n > 0 {
			p.t.Fatalf("%s: there is a completion: %+v", why, wc[0])
		}
	}
}

// WantState says in which state p's QP is now.
func (p *Peer) WantState(why string, s rdma.QPState) {
	p.t.Helper()
	if got := p.QP.State(); got != s {
		p.t.Fatalf("%s: the QP is in state %v, want %v", why, got, s)
	}
}

// WantDone waits for the end of the connection and returns its cause.
func (p *Peer) WantDone(why string) error {
	p.t.Helper()
	select {
	case <-p.Conn.Done():
	case <-time.After(time.Minute):
		p.t.Fatalf("%s: the connection has not ended; the QP is in state %v", why, p.QP.State())
	}
	return p.Conn.Err()
}

// WantEvent waits for the next asynchronous event.
func (p *Peer) WantEvent(why string, typ rdma.AsyncEventType) rdma.AsyncEvent {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ev, err := p.Ctx.NextAsyncEvent(ctx)
	if err != nil {
		p.t.Fatalf("%s: %v", why, err)
	}
	if ev.Type != typ || ev.Object != p.QP.Num() {
		p.t.Fatalf("%s: event %+v, want %v of QP %d", why, ev, typ, p.QP.Num())
	}
	return ev
}
