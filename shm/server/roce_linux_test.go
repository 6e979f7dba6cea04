package server

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A CQ of a client changes its memory in two calls; completions, indices and what is armed come
// along, and nothing is lost if the second call never comes.
func TestResizeCQ(t *testing.T) {
	ts := newServer(t, "cq-depth=1024")
	c := ts.client()
	q := c.newQP()
	q.roundTrip(t, 1)
	c.refuse(t, rpc.OpSwitchCQ, syscall.EINVAL, &rpc.HandleRequest{Handle: q.cq})
	c.refuse(t, rpc.OpSwitchCQ, syscall.ENOENT, &rpc.HandleRequest{Handle: q.cq + 1})
	for _, n := range []uint32{0, 1025, 1 << 31, ^uint32(0)} {
		c.refuse(t, rpc.OpResizeCQ, syscall.EINVAL, &rpc.ResizeCQRequest{CQ: q.cq, CQE: n})
	}
	// What lies above has the first word: a card that cannot do it has its own errno for any number.
	c.refuse(t, rpc.OpResizeCQ, syscall.EOPNOTSUPP, &rpc.ResizeCQRequest{CQ: q.cq, CQE: keptSize})
	c.refuse(t, rpc.OpSwitchCQ, syscall.EINVAL, &rpc.HandleRequest{Handle: q.cq})
	c.refuse(t, rpc.OpResizeCQ, syscall.ENOENT, &rpc.ResizeCQRequest{CQ: q.cq + 1, CQE: 1})
	resize := func(n uint32) ([]byte, uint32) {
		t.Helper()
		var rep rpc.ResizeCQReply
		return c.mmap(c.do(rpc.OpResizeCQ, &rpc.ResizeCQRequest{CQ: q.cq, CQE: n}, &rep)[0]), rep.CQE
	}
	resize(5) // another takes its place
	for _, n := range []uint32{1, 100, 1024, 3} {
		mem, got := resize(n)
		if got != abi.CeilPow2(n) {
			t.Errorf("%d entries for %d", got, n)
		}
		q.roundTrip(t, uint64(n)) // in the old memory
		c.do(rpc.OpSwitchCQ, &rpc.HandleRequest{Handle: q.cq}, nil)
		next, err := ring.OpenCQConsumer(mem)
		if err != nil || next.Size() != int(got) || next.Handle() != q.cq {
			t.Fatalf("%v: CQ %d of %d entries", err, next.Handle(), next.Size())
		}
		next.Follow(q.c)
		q.c = next
		q.roundTrip(t, uint64(n)+1)
		c.refuse(t, rpc.OpSwitchCQ, syscall.EINVAL, &rpc.HandleRequest{Handle: q.cq})
	}
	resize(8) // never used, and freed with the CQ
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q.qp}, nil)
	c.do(rpc.OpDestroyCQ, &rpc.HandleRequest{Handle: q.cq}, nil)
	q = c.newQP()
	resize(8) // never used, and freed with the session
	abi.Word(q.cqMem, abi.CQCons).Store(77)
	c.try(rpc.OpSwitchCQ, &rpc.HandleRequest{Handle: q.cq}, nil)
	ts.want("an index that cannot be ends the session", func() bool {
		return slices.ContainsFunc(ts.f.causes(), abi.IsViolation)
	})
}

// Address handles: their numbers, their quota, whose they are.
func TestAddressHandles(t *testing.T) {
	ts := newServer(t, "ahs=2")
	c := ts.client()
	q := c.newQP()
	good := rpc.CreateAHRequest{PD: q.pd, Attr: rpc.AHAttr{Flags: rpc.AHGlobal, GIDIndex: 3, Port: 1}}
	var a, b rpc.CreateAHReply
	c.do(rpc.OpCreateAH, &good, &a)
	c.do(rpc.OpCreateAH, &good, &b)
	if a.Key != 0x903 || a.AH == 0 || a.AH == b.AH {
		t.Errorf("%+v, %+v", a, b)
	}
	c.refuse(t, rpc.OpCreateAH, syscall.ENOMEM, &good)
	c.do(rpc.OpDestroyAH, &rpc.HandleRequest{Handle: a.AH}, nil)
	c.refuse(t, rpc.OpDestroyAH, syscall.ENOENT, &rpc.HandleRequest{Handle: a.AH})
	bad := good
	bad.Attr.Flags = 0
	c.refuse(t, rpc.OpCreateAH, syscall.EINVAL, &bad)
	bad = good
	bad.PD++
	c.refuse(t, rpc.OpCreateAH, syscall.ENOENT, &bad)
	bad = good
	bad.Pad = 1
	c.refuse(t, rpc.OpCreateAH, syscall.EINVAL, &bad)
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q.qp}, nil)
	c.refuse(t, rpc.OpDeallocPD, syscall.EBUSY, &rpc.HandleRequest{Handle: q.pd})
	c.do(rpc.OpDestroyAH, &rpc.HandleRequest{Handle: b.AH}, nil)
	c.do(rpc.OpDeallocPD, &rpc.HandleRequest{Handle: q.pd}, nil)
	stranger := ts.client()
	stranger.refuse(t, rpc.OpDestroyAH, syscall.ENOENT, &rpc.HandleRequest{Handle: b.AH})
}

// A client that goes while the daemon looks for the way to a peer of its is gone at once, also if
// it has sent more, and so is a daemon that ends.
func TestEndWhileWaiting(t *testing.T) {
	attr := rpc.AHAttr{Flags: rpc.AHGlobal, GIDIndex: lostGID, Port: 1}
	for name, request := range map[string]func(q *rawQP) (rpc.Op, rpc.Message){
		"CREATE_AH": func(q *rawQP) (rpc.Op, rpc.Message) {
			return rpc.OpCreateAH, &rpc.CreateAHRequest{PD: q.pd, Attr: attr}
		},
		"MODIFY_QP": func(q *rawQP) (rpc.Op, rpc.Message) {
			return rpc.OpModifyQP, &rpc.ModifyQPRequest{QP: q.qp, State: abi.StateRTR,
				Mask: rpc.ModifyQPState, Attr: rpc.QPAttr{Path: attr}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ts := newServer(t)
			ts.f.lost = make(chan struct{})
			begin := func() *rawClient {
				c := ts.client()
				q := c.newQP()
				op, req := request(q)
				for seq, m := range [][]byte{
					rpc.AppendMessage(nil, rpc.Header{Op: op, Seq: c.seq + 1}, req),
					rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpQueryQP, Seq: c.seq + 2},
						&rpc.HandleRequest{Handle: q.qp}),
				} {
					if err := c.sendRaw(m); err != nil {
						t.Fatal(seq, err)
					}
				}
				<-ts.f.lost
				return c
			}
			begin().close()
			ts.want("the client is gone", func() bool { return len(ts.srv.Clients()) == 0 })
			if !slices.Equal(ts.f.causes(), []error{nil}) {
				t.Errorf("causes %v", ts.f.causes())
			}
			begin()
			if err := ts.srv.Close(); err != nil { // waits for the session
				t.Error(err)
			}
		})
	}
}

// Groups of QPs: once more changes nothing, each counts, and they end with the QP.
func TestAttach(t *testing.T) {
	ts := newServer(t, "groups=2")
	c := ts.client()
	q := c.newQP()
	group := func(n byte) *rpc.AttachMcastRequest {
		return &rpc.AttachMcastRequest{QP: q.qp, GID: [16]byte{0xff, n}}
	}
	for range 3 {
		c.do(rpc.OpAttachMcast, group(1), nil)
	}
	c.do(rpc.OpAttachMcast, group(2), nil)
	c.refuse(t, rpc.OpAttachMcast, syscall.ENOMEM, group(3))
	c.do(rpc.OpDetachMcast, group(2), nil)
	c.refuse(t, rpc.OpDetachMcast, syscall.EINVAL, group(2))
	c.refuse(t, rpc.OpAttachMcast, syscall.EINVAL, &rpc.AttachMcastRequest{QP: q.qp})
	c.refuse(t, rpc.OpAttachMcast, syscall.ENOENT, &rpc.AttachMcastRequest{QP: q.qp + 1})
	c.refuse(t, rpc.OpDetachMcast, syscall.ENOENT, &rpc.AttachMcastRequest{QP: q.qp + 1})
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q.qp}, nil)
	q = c.newQP()
	c.do(rpc.OpAttachMcast, group(1), nil)
	c.do(rpc.OpAttachMcast, group(2), nil)
}

// One user, with however many sessions, is in half of the groups that all may be in, by QPs and by
// ids, and the refusal says which limit that is. What a session was in is free when it is gone.
func TestMemberships(t *testing.T) {
	ts := newServer(t, "memberships=8", "groups=3")
	ts.strangers.Store(true)
	c, d := ts.client(), ts.client()
	group := func(q *rawQP, n byte) *rpc.AttachMcastRequest {
		return &rpc.AttachMcastRequest{QP: q.qp, GID: [16]byte{0xff, n}}
	}
	q, r := c.newQP(), d.newQP()
	for n := range byte(3) {
		c.do(rpc.OpAttachMcast, group(q, n+1), nil)
	}
	c.refuse(t, rpc.OpAttachMcast, syscall.ENOMEM, group(q, 9)) // of the session
	d.do(rpc.OpAttachMcast, group(r, 1), nil)
	var ch rpc.CMCreateChanReply
	d.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)
	var id rpc.CMCreateIDReply
	d.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSUDP, Type: rpc.TypeUD}, &id)
	join := &rpc.CMJoinMulticastRequest{ID: id.ID, UID: 7,
		Addr: rpc.MakeSockAddr(netip.MustParseAddrPort("224.0.0.9:0"))}
	for _, full := range []struct {
		op  rpc.Op
		req rpc.Message
	}{{rpc.OpAttachMcast, group(r, 2)}, {rpc.OpCMJoinMulticast, join}} {
		d.refuse(t, full.op, syscall.ENOMEM, full.req)
	}
	err := ts.srv.memberships.take(account{uid: uint32(os.Getuid())}, false)
	if why := fmt.Sprint(err); !strings.Contains(why, "4 of the daemon's 8 memberships") ||
		!strings.Contains(why, "--limit memberships=N") {
		t.Errorf("refused for %s", why)
	}
	c.do(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: q.qp}, nil)
	d.do(rpc.OpCMJoinMulticast, join, nil)
	d.do(rpc.OpAttachMcast, group(r, 2), nil)
	d.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: id.ID}, nil)
	if n := ts.srv.memberships.count(); n != 2 {
		t.Errorf("%d memberships are counted, want those of a QP in 2 groups", n)
	}
	c.close()
	d.close()
	ts.want("sessions take their memberships along", func() bool {
		return ts.srv.memberships.count() == 0
	})
}

// Groups of an id: events of each are counted apart, and a group that is left takes its events
// along.
func TestJoinMulticast(t *testing.T) {
	ts := newServer(t, "groups=2")
	c := ts.client()
	var ch rpc.CMCreateChanReply
	pipe := c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)[0]
	var id rpc.CMCreateIDReply
	c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSUDP, Type: rpc.TypeUD,
		UID: 5}, &id)
	addr := func(s string) rpc.SockAddr { return rpc.MakeSockAddr(netip.MustParseAddrPort(s)) }
	join := func(s string, uid uint64) *rpc.CMJoinMulticastRequest {
		return &rpc.CMJoinMulticastRequest{ID: id.ID, UID: uid, Addr: addr(s)}
	}
	leave := func(s string) *rpc.CMLeaveMulticastRequest {
		return &rpc.CMLeaveMulticastRequest{ID: id.ID, Addr: addr(s)}
	}
	c.do(rpc.OpCMJoinMulticast, join("224.0.0.9:0", 71), nil)
	c.do(rpc.OpCMJoinMulticast, join("[ff02::9]:0", 72), nil)
	c.refuse(t, rpc.OpCMJoinMulticast, syscall.EADDRINUSE, join("224.0.0.9:0", 73))
	c.refuse(t, rpc.OpCMJoinMulticast, syscall.EADDRINUSE, join("224.0.0.8:0", 71))
	c.refuse(t, rpc.OpCMJoinMulticast, syscall.ENOMEM, join("224.0.0.8:0", 73))
	readToken(t, pipe)
	var e rpc.CMEvent
	c.do(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: ch.Chan}, &e)
	if e.Type != rpc.EvMulticastJoin || e.Group != 71 || e.UID != 5 || e.ID != id.ID ||
		e.Path.Flags != rpc.AHGlobal || e.Path.GID[15] != 9 {
		t.Errorf("%+v", e)
	}
	var left rpc.CMLeaveMulticastReply
	c.do(rpc.OpCMLeaveMulticast, leave("224.0.0.9:0"), &left)
	if left != (rpc.CMLeaveMulticastReply{Reported: 1}) {
		t.Errorf("%+v of a group whose event was taken", left)
	}
	c.do(rpc.OpCMLeaveMulticast, leave("[ff02::9]:0"), &left)
	if left != (rpc.CMLeaveMulticastReply{Tokens: 1}) {
		t.Errorf("%+v of a group whose event was not taken", left)
	}
	c.refuse(t, rpc.OpCMLeaveMulticast, syscall.EADDRNOTAVAIL, leave("[ff02::9]:0"))
	c.refuse(t, rpc.OpCMGetEvent, syscall.EAGAIN, &rpc.HandleRequest{Handle: ch.Chan})
	for _, bad := range []*rpc.CMJoinMulticastRequest{
		join("10.0.0.1:0", 1), join("224.0.0.1:7", 1), join("[::]:0", 1), {ID: id.ID, UID: 1},
		{ID: id.ID, UID: 1, Addr: rpc.SockAddr{Family: 77}},
		{ID: id.ID, UID: 1, Addr: addr("224.0.0.1:0"), Flags: 1},
	} {
		c.refuse(t, rpc.OpCMJoinMulticast, syscall.EINVAL, bad)
	}
	c.refuse(t, rpc.OpCMJoinMulticast, syscall.ENODEV, join("224.0.0.66:0", 1)) // says the handler
	c.refuse(t, rpc.OpCMJoinMulticast, syscall.ENOENT, &rpc.CMJoinMulticastRequest{ID: 99})
	c.refuse(t, rpc.OpCMLeaveMulticast, syscall.ENOENT, &rpc.CMLeaveMulticastRequest{ID: 99,
		Addr: addr("224.0.0.9:0")})
	for range 3 { // what could not be joined can be left, and takes no place then
		c.do(rpc.OpCMJoinMulticast, join("224.0.0.77:0", 77), nil)
		c.do(rpc.OpCMGetEvent, &rpc.HandleRequest{Handle: ch.Chan}, &e)
		if e.Type != rpc.EvMulticastError || e.Group != 77 {
			t.Errorf("%+v", e)
		}
		c.do(rpc.OpCMLeaveMulticast, leave("224.0.0.77:0"), &left)
		if left != (rpc.CMLeaveMulticastReply{Reported: 1}) {
			t.Errorf("%+v of a group that could not be joined", left)
		}
	}
	c.do(rpc.OpCMJoinMulticast, join("224.0.0.9:0", 71), nil)
	c.do(rpc.OpCMJoinMulticast, join("224.0.0.10:0", 72), nil)
	var gone rpc.CMDestroyIDReply
	c.do(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: id.ID}, &gone)
	if gone != (rpc.CMDestroyIDReply{Tokens: 2}) {
		t.Errorf("%+v of an id with two events", gone)
	}
	c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: rpc.PSUDP, UID: 5}, &id)
	c.do(rpc.OpCMJoinMulticast, join("224.0.0.9:0", 71), nil) // the quota is free again
}

// An id of datagrams connects without a QP; of another, it is one that the client moves itself, and
// the handler looks whether it is there.
func TestConnectWithoutQP(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	var ch rpc.CMCreateChanReply
	c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)
	for i, ps := range []uint32{rpc.PSUDP, rpc.PSTCP} {
		var id rpc.CMCreateIDReply
		c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: ps}, &id)
		for _, op := range []rpc.Op{rpc.OpCMConnect, rpc.OpCMAccept} {
			c.do(op, &rpc.CMConnectRequest{ID: id.ID}, nil)
		}
		c.refuse(t, rpc.OpCMConnect, syscall.ENOENT, &rpc.CMConnectRequest{ID: id.ID, PD: q.pd})
		numbered := &rpc.CMConnectRequest{ID: id.ID, Param: rpc.ConnParam{QPN: q.qpn}}
		if ps == rpc.PSUDP {
			c.refuse(t, rpc.OpCMConnect, syscall.ENOENT, numbered)
		} else {
			c.do(rpc.OpCMConnect, numbered, nil)
		}
		c.do(rpc.OpCMAccept, &rpc.CMConnectRequest{ID: id.ID, PD: q.pd,
			Param: rpc.ConnParam{QPN: q.qpn}}, nil)
		if got := ts.id(i).last.Load(); got != "accept 1" {
			t.Errorf("port space %#x: %v", ps, got)
		}
	}
	c.refuse(t, rpc.OpCMCreateID, syscall.ENODEV, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: 0x13f})
}

// The UDP port of an id of datagrams: one socket of packets, within the quota of pipes, and none
// for others. It ends with the id.
func TestOpenUDP(t *testing.T) {
	ts := newServer(t, "pipes=4")
	c := ts.client()
	var ch rpc.CMCreateChanReply
	c.do(rpc.OpCMCreateChan, &rpc.Empty{}, &ch)
	var ids [2]rpc.CMCreateIDReply
	for i, ps := range []uint32{rpc.PSUDP, rpc.PSTCP} {
		c.do(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: ch.Chan, PS: ps}, &ids[i])
	}
	of := func(i int) *rpc.HandleRequest { return &rpc.HandleRequest{Handle: ids[i].ID} }
	before := ts.srv.pipes.count()
	fd := c.do(rpc.OpCMOpenUDP, of(0), nil)[0]
	c.refuse(t, rpc.OpCMOpenUDP, syscall.EBUSY, of(0))
	c.refuse(t, rpc.OpCMOpenUDP, syscall.EOPNOTSUPP, of(1))
	c.refuse(t, rpc.OpCMOpenUDP, syscall.ENOENT, &rpc.HandleRequest{Handle: 99})
	if n := ts.srv.pipes.count() - before; n != 1 {
		t.Errorf("%d pipes are counted, want 1", n)
	}
	packets := ts.id(0).udp.Load()
	if _, err := unix.Write(fd, []byte("to it")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, err := packets.Receive(b); err != nil || string(b[:n]) != "to it" {
		t.Errorf("%q, %v", b[:n], err)
	}
	if !packets.Send([]byte("from")) || !packets.Send([]byte("it")) {
		t.Error("no room for two packets")
	}
	if n, err := unix.Read(fd, b); err != nil || string(b[:n]) != "from" {
		t.Errorf("%q, %v", b[:n], err)
	}
	for packets.Send(make([]byte, 1000)) { // who does not read loses what comes
	}
	c.do(rpc.OpCMDestroyID, of(0), &rpc.CMDestroyIDReply{})
	if n := ts.srv.pipes.count() - before; n != 0 {
		t.Errorf("%d pipes are left", n)
	}
	for n := 1; n > 0; {
		var err error
		if n, err = unix.Read(fd, b); err != nil {
			t.Fatal(err)
		}
	}
	if packets.Send([]byte("late")) {
		t.Error("a packet is sent after the end")
	}
}

// A client of minor version 0 gets the replies that it knows.
func TestOldClient(t *testing.T) {
	ts := newServer(t)
	for minor, want := range map[uint16]int{0: 56, 1: 136, 900: 136} {
		c := rawConnect(t, ts.path)
		hello := goodHello()
		hello.Minor = minor
		c.do(rpc.OpHello, hello, &rpc.HelloReply{})
		var ctx rpc.CtxOpenReply
		c.do(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}, &ctx)
		var pd rpc.AllocPDReply
		c.do(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: ctx.Ctx}, &pd)
		var cq rpc.CreateCQReply
		c.do(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: ctx.Ctx, CQE: 1}, &cq)
		var qp rpc.CreateQPReply
		c.do(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: pd.PD, SendCQ: cq.CQ, RecvCQ: cq.CQ}, &qp)
		if err := c.sendRaw(rpc.AppendMessage(nil, rpc.Header{Op: rpc.OpQueryQP, Seq: 99},
			&rpc.HandleRequest{Handle: qp.QP})); err != nil {
			t.Fatal(err)
		}
		h, body, _, _ := c.recv()
		var r rpc.QueryQPReply
		if err := rpc.Decode(body, &r); err != nil {
			t.Fatal(err)
		}
		known := minor > 0
		if h.Status != 0 || len(body) != want || r.State != abi.StateRTS ||
			known != (r.Attr.DestQPN == 0x123456) {
			t.Errorf("minor %d: status %d, %d octets, %+v", minor, h.Status, len(body), r)
		}
		c.close()
	}
}
