package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A reply is taken only if it answers the request, and then it says what its octets say: encoded
// again it is the same message.
func FuzzClientReply(f *testing.F) {
	ok := rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpRegMR, Seq: 9}, &rpc.RegMRReply{MR: 1, LKey: 2,
		RKey: 3})
	f.Add(ok, uint16(rpc.OpRegMR), uint32(9))
	f.Add(ok[:20], uint16(rpc.OpRegMR), uint32(9))
	f.Add(append(bytes.Clone(ok), 0, 0), uint16(rpc.OpRegMR), uint32(9))
	f.Add(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpRegMR, Seq: 9, Status: -12}, &rpc.Empty{}),
		uint16(rpc.OpRegMR), uint32(9))
	f.Fuzz(func(t *testing.T, msg []byte, op uint16, seq uint32) {
		var rep rpc.RegMRReply
		h, _, err := decodeReply(msg, rpc.Op(op), seq, &rep)
		if err != nil {
			if !errors.Is(err, rdma.ErrDeviceGone) {
				t.Errorf("nonsense that does not end the session: %v", err)
			}
			return
		}
		if h.Op != rpc.Op(op) || h.Seq != seq || h.Status > 0 {
			t.Fatalf("took %+v for the reply to %v, %d", h, rpc.Op(op), seq)
		}
		if h.Status == 0 {
			again := rpc.AppendMessage(nil, h, &rep)[rpc.HeaderLen:]
			if body := msg[rpc.HeaderLen:]; !bytes.HasPrefix(again, body[:min(len(body), len(again))]) {
				t.Errorf("%x decodes to %+v", body, rep)
			}
		}
	})
}

// Rows are those that the reply holds, one after the other.
func FuzzClientRows(f *testing.F) {
	f.Add([]byte("{\"a\":1}\n{}\n"), uint32(11))
	f.Add([]byte("{}"), uint32(2))
	f.Add([]byte("{}\n"), uint32(1<<31))
	f.Fuzz(func(t *testing.T, data []byte, n uint32) {
		rep := rpc.ListReply{Len: n}
		copy(rep.Data[:], data)
		rows, err := parseRows(&rep)
		if err != nil {
			return
		}
		strip := func(b []byte) []byte { return bytes.Join(bytes.Fields(b), nil) }
		var all []byte
		for _, r := range rows {
			all = append(append(all, r...), '\n')
		}
		if !bytes.Equal(strip(all), strip(rep.Data[:n])) {
			t.Errorf("%q gave %q", rep.Data[:n], rows)
		}
	})
}

// fuzzClient is a client without a daemon: a socket pair stands for it.
func fuzzClient(t testing.TB) *Client {
	c, _ := pairedClient(t)
	return c
}

// pairedClient is a client, and the socket of its daemon, which somebody else plays.
func pairedClient(t testing.TB) (*Client, *net.UnixConn) {
	a, b, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	c := &Client{conn: a, peek: func(uintptr) {}, dead: make(chan struct{}), yield: abi.PollYield,
		pipes: map[*osmem.EventReader]struct{}{}, devices: map[*Device]struct{}{}}
	if c.raw, err = a.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	return c, b
}

// socketPair makes two ends of a SOCK_SEQPACKET connection.
func socketPair() (a, b *net.UnixConn, err error) {
	dir, err := os.MkdirTemp("", "vrnic")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	addr := &net.UnixAddr{Name: dir + "/s", Net: "unixpacket"}
	ln, err := net.ListenUnix("unixpacket", addr)
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	if a, err = net.DialUnix("unixpacket", nil, addr); err != nil {
		return nil, nil, err
	}
	if b, err = ln.AcceptUnix(); err != nil {
		a.Close()
	}
	return a, b, err
}

// heapQP makes a QP with a CQ on the Go heap, with so much posted.
func heapQP(t testing.TB, c *Client, sends, recvs int) (*compQueue, *queuePair) {
	cqMem := make([]byte, ring.CQMemSize(64))
	ring.NewCQProducer(cqMem, 64, 1, nil, nil)
	consumer, err := ring.OpenCQConsumer(cqMem)
	if err != nil {
		t.Fatal(err)
	}
	d := &Device{c: c}
	cq := &compQueue{d: d, mem: &osmem.Region{Mem: cqMem}, ring: consumer,
		qps: map[uint32]*queuePair{}}
	caps, _ := rpc.QPCaps{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}.Round(64, false)
	l := caps.Layout()
	mem := make([]byte, l.Size())
	ring.NewDaemonQP(mem, l, 1, nil).SetState(abi.StateRTS)
	m, err := ring.OpenClientQP(mem)
	if err != nil {
		t.Fatal(err)
	}
	qp := &queuePair{d: d, sendCQ: cq, recvCQ: cq, num: 7, mem: &osmem.Region{Mem: mem}, m: m,
		ops: &iwarpOps, cfg: rdma.QPConfig{MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64}}
	qp.sq.init(16)
	qp.rq.init(d, 0, &m.RQ, errQPClosed)
	cq.qps[7] = qp
	for i := range sends {
		if err := qp.putSend(&rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled}); err !=
			nil {
			t.Fatal(err)
		}
	}
	for i := range recvs {
		if err := qp.rq.put(&rdma.RecvWR{ID: uint64(100 + i)}); err != nil {
			t.Fatal(err)
		}
	}
	return cq, qp
}

// Whatever the daemon writes into a CQ: every receive that was posted completes once, by the
// daemon or by the flush at the end, no send twice, and the client's accounts add up.
func FuzzClientCompletions(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 1, 0, 0, 2}, uint32(3))
	f.Add([]byte{0xff, 0x80, 3, 1}, uint32(70))
	f.Fuzz(func(t *testing.T, script []byte, jump uint32) {
		const sends, recvs = 10, 12
		c := fuzzClient(t)
		cq, qp := heapQP(t, c, sends, recvs)
		mem := cq.mem.Mem
		// Each four octets make a completion: kind and status, cookie's place, sq_done, and its
		// generation.
		i := uint32(0)
		for ; len(script) >= 4 && i < 60; i++ {
			k := script[:4]
			script = script[4:]
			e := abi.CQE{WRID: uint64(i), QPN: 7, SQDone: uint32(int8(k[2])),
				Cookie: uint32(k[3]&3)<<cookieBits | uint32(k[1])}
			e.Status = uint32(k[0] >> 1 & 7)
			if k[0]&1 != 0 {
				e.Opcode = uint32(rdma.WCRecv)
			}
			if k[0] == 0xff {
				binary.LittleEndian.PutUint32(mem[abi.CQHeaderLen:], jump) // tear an earlier one
				e.QPN = jump
			}
			e.Encode(mem[abi.CQHeaderLen+i*abi.CQELen:])
		}
		abi.Word(mem, abi.CQProd).Store(i + jump&^0xff)
		wc := make([]rdma.WC, 7)
		poll := func() []rdma.WC {
			n, err := cq.Poll(wc)
			if err != nil && !errors.Is(err, rdma.ErrDeviceGone) {
				t.Fatal(err)
			}
			return wc[:n]
		}
		for cq.take(wc) != 0 { // not Poll: when take finds nonsense, that flushes at once
		}
		recvsOut, sendsOut := len(qp.rq.wrs)-len(qp.rq.free), int(qp.m.SQ.Posted()-qp.sq.done)
		if recvsOut < 0 || recvsOut > recvs || sendsOut < 0 || sendsOut > sends {
			t.Fatalf("%d of %d receives and %d of %d sends are outstanding", recvsOut, recvs,
				sendsOut, sends)
		}
		c.die(errGone)
		cq.bad = true // what the ring may still hold has been looked at
		seen := map[uint64]bool{}
		for got := poll(); len(got) != 0; got = poll() {
			for _, w := range got {
				if seen[w.ID] || w.Status != rdma.WCFlush {
					t.Errorf("flushed twice, or not: %+v", w)
				}
				seen[w.ID] = true
				if w.Op == rdma.WCRecv {
					recvsOut--
				} else {
					sendsOut--
				}
			}
		}
		if recvsOut != 0 || sendsOut != 0 {
			t.Errorf("%d receives and %d sends never completed", recvsOut, sendsOut)
		}
	})
}

// Whatever the daemon writes into a CQ for two QPs with one SRQ: no receive completes more often
// than it was posted, and when a QP goes, what its completions held is free again and nothing more
// comes of it.
func FuzzClientSharedCompletions(f *testing.F) {
	f.Add([]byte{1, 0, 7, 1, 2, 0, 8, 1}, uint8(1))
	f.Add([]byte{3, 0, 7, 1, 3, 0, 7, 1}, uint8(0))
	f.Fuzz(func(t *testing.T, script []byte, polls uint8) {
		c := fuzzClient(t)
		cq, one := heapQP(t, c, 0, 0)
		two := &queuePair{d: one.d, sendCQ: cq, recvCQ: cq, num: 8, mem: one.mem, m: one.m, cfg: one.cfg}
		two.sq.init(16)
		cq.qps[8] = two
		l := abi.NewSRQLayout(8, 1)
		smem := make([]byte, l.Size())
		ring.NewDaemonSRQ(smem, l, 1, nil)
		m, err := ring.OpenClientSRQ(smem)
		if err != nil {
			t.Fatal(err)
		}
		srq := &sharedQueue{d: one.d}
		srq.rq.init(one.d, 0, &m.RQ, errSRQClosed)
		one.srq, two.srq = srq, srq
		for i := range 6 {
			if err := srq.rq.put(&rdma.RecvWR{ID: uint64(i)}); err != nil {
				t.Fatal(err)
			}
		}
		i := uint32(0)
		for ; len(script) >= 4 && i < 60; i++ { // cookie's place and generation, QP, opcode
			e := abi.CQE{Cookie: uint32(script[0]) | uint32(script[3])<<cookieBits, QPN: uint32(script[2]),
				Status: uint32(script[1] & 1)}
			if script[1]&2 == 0 {
				e.Opcode = uint32(rdma.WCRecv)
			}
			e.WRID = uint64(e.Cookie&cookieMask - 1)
			e.Encode(cq.mem.Mem[abi.CQHeaderLen+i*abi.CQELen:])
			script = script[4:]
		}
		abi.Word(cq.mem.Mem, abi.CQProd).Store(i)
		seen := map[uint64]bool{}
		poll := func(n int) {
			wc := make([]rdma.WC, 1)
			for ; n > 0; n-- {
				k, err := cq.Poll(wc)
				if k == 0 || err != nil {
					return
				}
				if wc[0].Op&rdma.WCRecv != 0 {
					if seen[wc[0].ID] {
						t.Fatalf("receive %d completed twice", wc[0].ID)
					}
					seen[wc[0].ID] = true
				}
			}
		}
		poll(int(polls))
		cq.detach(two)
		delete(cq.qps, 8)
		poll(100)
		if free := len(srq.rq.free); free > 8 || free < 2+len(seen) {
			t.Errorf("%d places are free, %d receives were polled of 6 posted", free, len(seen))
		}
		for k, p := range srq.rq.free {
			for _, q := range srq.rq.free[:k] {
				if p == q {
					t.Fatalf("place %d is free twice", p)
				}
			}
		}
	})
}

// Whatever the daemon says of connections: nothing panics or blocks, a connection that was
// established ends at most once, and each request is offered once.
func FuzzClientConnEvents(f *testing.F) {
	f.Add([]byte{rpc.EvConnectRequest, 1, 9, rpc.EvEstablished, 2, 0, rpc.EvDisconnected, 2, 0,
		rpc.EvDisconnected, 2, 0})
	f.Add(bytes.Repeat([]byte{rpc.EvAddrResolved, 2, 0}, 20))
	f.Fuzz(func(t *testing.T, script []byte) {
		c := fuzzClient(t)
		c.die(errGone) // destroying an id asks nobody
		ch := &cmEvents{d: &Device{c: c, closed: make(chan struct{})}, ids: map[uint32]*cmID{}}
		lis := &cmID{ch: ch, handle: 1, events: make(chan *rpc.CMEvent, idEvents),
			requests: make(chan *connRequest, 4)}
		one := &cmID{ch: ch, handle: 2, events: make(chan *rpc.CMEvent, idEvents)}
		ch.ids[1], ch.ids[2] = lis, one
		for ; len(script) >= 3; script = script[3:] {
			ev := rpc.CMEvent{Type: uint32(script[0]), ID: uint32(script[1]), Child: uint32(script[2])}
			if script[0]&0x80 != 0 {
				ev.Type &= 0x7f
				ev.Param.PrivateLen = 1 << 20
				ev.Status, ev.Cause = -1<<31, 0xffffffff
			}
			if e := eventError("connect", &ev); e == nil || e.Error() == "" {
				t.Error("an event without an error")
			}
			ch.dispatch(&ev)
		}
		if one.conn != nil {
			one.conn.end(nil)
			if _, open := <-one.conn.Done(); open {
				t.Error("Done is not closed")
			}
		}
		if len(lis.requests) > 4 {
			t.Error("more requests than the backlog")
		}
	})
}
