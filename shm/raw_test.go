package shm_test

import (
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// A rawPeer is a raw client that is connected to a node.
type rawPeer struct {
	*shmtest.RawClient
	pd, channel, id uint32
	cq              *shmtest.RawCQ
	qp              *shmtest.RawQP
}

// connectRaw connects a new raw client to n.
func connectRaw(t *testing.T, h *host, n *node) *rawPeer {
	t.Helper()
	r := &rawPeer{RawClient: shmtest.NewRaw(t, h.path).Hello()}
	ctx := r.Ctx(0)
	r.pd = r.PD(ctx)
	r.cq = r.CQ(ctx, 64, 0)
	r.qp = r.QP(r.pd, r.cq, r.cq, rpc.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2})
	r.channel, _ = r.CM()
	r.id = r.ID(r.channel)

	tc := testContext(t)
	l := must(n.dev.Listen(addrPort(n, 0), 1))(t)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		req, err := l.Next(tc)
		if err == nil {
			n.conn, err = req.Accept(tc, n.qp, rdma.ConnParam{})
		}
		done <- err
	}()
	src := rpc.MakeSockAddr(netip.MustParseAddrPort("10.9.0.1:0"))
	r.Must(rpc.OpCMResolveAddr, &rpc.CMResolveAddrRequest{ID: r.id, Src: src,
		Dst: rpc.MakeSockAddr(l.Addr())}, nil)
	r.WantEvent(r.channel, rpc.EvAddrResolved)
	r.Must(rpc.OpCMResolveRoute, &rpc.CMResolveRouteRequest{ID: r.id}, nil)
	r.WantEvent(r.channel, rpc.EvRouteResolved)
	r.Must(rpc.OpCMConnect, &rpc.CMConnectRequest{ID: r.id, PD: r.pd, Param: rpc.ConnParam{
		QPN: r.qp.QPN}}, nil)
	r.WantEvent(r.channel, rpc.EvEstablished)
	check(t, <-done)
	return r
}

// A program whose memory the daemon reaches through /proc/self/mem (mode 0), as the C library's
// programs do, and one that lends buffers (mode 1) exchange data.
func TestClientMeetsMode0(t *testing.T) {
	h := newHost(t)
	n := newNode(t, h.open("loop1"), 8)
	r := connectRaw(t, h, n)
	r.SetMem()
	own := r.Pages(1 << 16)
	mr := r.RegMR(r.pd, own, 0x1000, uint32(allRights))
	copy(own, "from the program's own memory")

	check(t, n.qp.PostRecv(&rdma.RecvWR{ID: 1, SGEs: []rdma.SGE{n.sge(0, 100)}}))
	r.qp.PostSend(func(w *abi.SendWQE) {
		w.WRID, w.Op, w.Flags, w.NumSGE = 2, uint8(rdma.OpSend), abi.SQSignaled, 1
		w.SGE[0] = abi.SGE{Addr: 0x1000, Length: 29, LKey: mr.LKey}
	})
	if e := r.Next(r.cq); e.WRID != 2 || e.Status != 0 {
		t.Fatalf("%+v", e)
	}
	if wc := next(t, n.rcq); wc.ByteLen != 29 ||
		string(n.buf.Bytes()[:29]) != "from the program's own memory" {
		t.Errorf("%+v: %q", wc, n.buf.Bytes()[:29])
	}
	copy(n.buf.Bytes()[200:], "and back")
	check(t, n.qp.PostSend(&rdma.SendWR{ID: 3, Op: rdma.OpWrite, Flags: rdma.Signaled,
		SGEs: []rdma.SGE{n.sge(200, 8)}, RemoteAddr: 0x1000 + 500, RKey: mr.RKey}))
	if wc := next(t, n.scq); wc.Status != rdma.WCSuccess || string(own[500:509]) != "and back\x00" {
		t.Errorf("%+v: %q", wc, own[500:509])
	}
}

// A client that breaks the rules of the rings loses its session; its peer, a client of the same
// server, sees the end of the connection and goes on.
func TestClientPeerViolates(t *testing.T) {
	for name, attack := range map[string]func(r *rawPeer){
		"sq_prod far ahead": func(r *rawPeer) { r.qp.PostRaw(nil, 1000) },
		"inline past the end": func(r *rawPeer) {
			r.qp.PostRaw([]byte{abi.SQFlags: abi.SQInline, abi.SQLength: 0xff, abi.SQLength + 3: 0xff}, 1)
		},
		"SGEs past the end": func(r *rawPeer) {
			r.qp.PostRaw([]byte{abi.SQNumSGE: 0xff, abi.SQNumSGE + 1: 0xff}, 1)
		},
		"garbage for a message": func(r *rawPeer) {
			check(r.T, r.Send([]byte("garbage")))
		},
		"a descriptor where none belongs": func(r *rawPeer) {
			check(r.T, r.Send(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpAllocPD, Seq: 99},
				&rpc.AllocPDRequest{Ctx: 1}), r.Bell))
		},
		"death": func(r *rawPeer) { check(r.T, r.Conn.CloseWrite()) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			n := newNode(t, h.open("loop1"), 8)
			check(t, n.qp.PostRecv(&rdma.RecvWR{ID: 7}))
			r := connectRaw(t, h, n)
			attack(r)
			r.WantEnd(name)
			select {
			case <-n.conn.Done():
			case <-testContext(t).Done():
				t.Fatal("the peer never heard of it")
			}
			if wc := next(t, n.rcq); wc.ID != 7 || wc.Status != rdma.WCFlush {
				t.Errorf("%+v", wc)
			}
			a, b := newNode(t, n.dev, 4), newNode(t, h.open("loop0"), 4)
			connect(t, a, b)
			send(t, a, b, 0)
			next(t, b.rcq)
		})
	}
}
