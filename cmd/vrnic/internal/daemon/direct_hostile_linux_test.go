package daemon_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// A hostile is a program that has taken the pair that it shares with b, which has not yet.
type hostile struct {
	*rawEnd
	t    *testing.T
	pair []byte
	dir  []byte // what goes from it to its peer
	sent uint64
}

// newHostile is one that is connected to b. That has asked in vain by then, since the daemon does
// not know yet of which namespaces the other one is.
func newHostile(t *testing.T, d *daemontest.Daemon, b *daemontest.End) *hostile {
	t.Helper()
	h := &hostile{t: t, rawEnd: &rawEnd{RawClient: shmtest.NewRaw(t, d.Socket())}}
	h.Features = rpc.FeatureDirect
	h.Hello()
	ctx := h.Ctx(0)
	h.pd = h.PD(ctx)
	h.cq = h.CQ(ctx, 64, 0)
	h.qp = h.QP(h.pd, h.cq, h.cq, rpc.QPCaps{MaxSendWR: 16, MaxRecvWR: 16})
	addr, accepted := accept(t, b)
	h.connect(addr)
	accepted()
	for kind, file := range map[uint32]string{rpc.NamespaceUser: "/proc/self/ns/user",
		rpc.NamespaceProcess: "/proc/self/ns/pid"} {
		fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		h.Must(rpc.OpIdentify, &rpc.IdentifyRequest{Kind: kind}, nil, fd)
	}
	var rep rpc.DirectReply
	h.pair = h.Map(h.Must(rpc.OpDirect, &rpc.HandleRequest{Handle: h.qp.CreateQPReply.QP}, &rep)[0])
	off := shmtest.Word(h.pair, abi.PairOff+4*(rep.Second&1)).Load()
	h.dir = h.pair[off:]
	return h
}

// send has b get a message, by the daemon.
func (h *hostile) send() {
	h.t.Helper()
	h.sent++
	h.qp.PostSend(func(w *abi.SendWQE) {
		w.WRID, w.Op, w.Flags = h.sent, 2, abi.SQSignaled|abi.SQInline // IBV_WR_SEND
		w.SetInline([]byte("hello"))
	})
}

// What a peer writes into the head of the pair before its other program has that is nothing of the
// daemon's: that program has no direct path to it, and its other connections go on. So they do when
// the peer has the daemon use a receive twice then.
func TestDirectHeadSpoiled(t *testing.T) {
	for name, spoil := range map[string]struct{ off, word uint32 }{
		"magic": {abi.PairMagic, 0}, "slots": {abi.PairSlots, 3}, "slots of the other": {
			abi.PairSlots + 4, 1 << 14}, "offset": {abi.PairOff, 1 << 31}, "slab": {abi.PairSlab, 7},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.Start(t, withDirect(true))
			dev := daemontest.Open(t, d.Dial(), "vrnic0")
			b, other := daemontest.NewEnd(t, dev, 4096), daemontest.NewEnd(t, dev, 4096)
			honest := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 4096)
			daemontest.Connect(t, other, honest, daemontest.Addr(t, honest.Dev, false, 0))
			goesOn := func(why string) {
				t.Helper()
				honest.Recv(1, 0, 64)
				other.Send(2, 0, 64)
				other.WantOK(why, 2, rdma.WCSend)
				honest.WantOK(why, 1, rdma.WCRecv)
			}
			goesOn("before")
			h := newHostile(t, d, b)
			shmtest.Word(h.pair, spoil.off).Store(spoil.word)
			for i := range uint64(8) { // which ask for the pair
				h.qp.PostRecv(&abi.RecvWQE{WRID: i, Cookie: uint32(i) + 1})
				b.Send(100+i, 0, 0)
				b.WantOK("to the hostile one", 100+i, rdma.WCSend)
				h.Next(h.cq)
			}
			goesOn("when it has asked")

			for i := range uint64(3) {
				b.Recv(i, 0, 64)
			}
			for i := range uint64(2) {
				h.send()
				h.Next(h.cq)
				b.WantOK("from the hostile one", i, rdma.WCRecv)
			}
			shmtest.Word(h.dir, abi.DirMessages).Store(1 << 31) // as if the numbers had come round
			shmtest.Word(h.dir, abi.DirRecvDone).Store(shmtest.Word(h.dir, abi.DirRecvBase).Load() - 1)
			h.send()
			h.Next(h.cq)
			if n, err := b.CQ.Poll(make([]rdma.WC, 4)); err != nil {
				t.Errorf("a receive was used twice: %d, %v", n, err)
			}
			goesOn("when a receive was used twice")
		})
	}
}
