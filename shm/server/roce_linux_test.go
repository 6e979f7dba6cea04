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
)

// A CQ of a client changes its memory in two calls; completions, indices and what is armed come
// along, and nothing is lost if the second call never comes.
func TestResizeCQ(t *testing.T) {
	ts := newServer(t, "cq-depth=1024")
	c := ts.client()
	q := c.newQP()
	q.roundTrip(t, 1)
	c.refuse(t, abi.OpSwitchCQ, syscall.EINVAL, &abi.HandleRequest{Handle: q.cq})
	c.refuse(t, abi.OpSwitchCQ, syscall.ENOENT, &abi.HandleRequest{Handle: q.cq + 1})
	for _, n := range []uint32{0, 1025, 1 << 31, ^uint32(0)} {
		c.refuse(t, abi.OpResizeCQ, syscall.EINVAL, &abi.ResizeCQRequest{CQ: q.cq, CQE: n})
	}
	c.refuse(t, abi.OpResizeCQ, syscall.ENOENT, &abi.ResizeCQRequest{CQ: q.cq + 1, CQE: 1})
	resize := func(n uint32) ([]byte, uint32) {
		t.Helper()
		var rep abi.ResizeCQReply
		return c.mmap(c.do(abi.OpResizeCQ, &abi.ResizeCQRequest{CQ: q.cq, CQE: n}, &rep)[0]), rep.CQE
	}
	resize(5) // another takes its place
	for _, n := range []uint32{1, 100, 1024, 3} {
		mem, got := resize(n)
		if got != abi.CeilPow2(n) {
			t.Errorf("%d entries for %d", got, n)
		}
		q.roundTrip(t, uint64(n)) // in the old memory
		c.do(abi.OpSwitchCQ, &abi.HandleRequest{Handle: q.cq}, nil)
		next, err := ring.OpenCQConsumer(mem)
		if err != nil || next.Size() != int(got) || next.Handle() != q.cq {
			t.Fatalf("%v: CQ %d of %d entries", err, next.Handle(), next.Size())
		}
		next.Follow(q.c)
		q.c = next
		q.roundTrip(t, uint64(n)+1)
		c.refuse(t, abi.OpSwitchCQ, syscall.EINVAL, &abi.HandleRequest{Handle: q.cq})
	}
	resize(8) // never used, and freed with the CQ
	c.do(abi.OpDestroyQP, &abi.HandleRequest{Handle: q.qp}, nil)
	c.do(abi.OpDestroyCQ, &abi.HandleRequest{Handle: q.cq}, nil)
	q = c.newQP()
	resize(8) // never used, and freed with the session
	abi.Word(q.cqMem, abi.CQCons).Store(77)
	c.try(abi.OpSwitchCQ, &abi.HandleRequest{Handle: q.cq}, nil)
	ts.want("an index that cannot be ends the session", func() bool {
		return slices.ContainsFunc(ts.f.causes(), abi.IsViolation)
	})
}

// Address handles: their numbers, their quota, whose they are.
func TestAddressHandles(t *testing.T) {
	ts := newServer(t, "ahs=2")
	c := ts.client()
	q := c.newQP()
	good := abi.CreateAHRequest{PD: q.pd, Attr: abi.AHAttr{Flags: abi.AHGlobal, GIDIndex: 3, Port: 1}}
	var a, b abi.CreateAHReply
	c.do(abi.OpCreateAH, &good, &a)
	c.do(abi.OpCreateAH, &good, &b)
	if a.Key != 0x903 || a.AH == 0 || a.AH == b.AH {
		t.Errorf("%+v, %+v", a, b)
	}
	c.refuse(t, abi.OpCreateAH, syscall.ENOMEM, &good)
	c.do(abi.OpDestroyAH, &abi.HandleRequest{Handle: a.AH}, nil)
	c.refuse(t, abi.OpDestroyAH, syscall.ENOENT, &abi.HandleRequest{Handle: a.AH})
	bad := good
	bad.Attr.Flags = 0
	c.refuse(t, abi.OpCreateAH, syscall.EINVAL, &bad)
	bad = good
	bad.PD++
	c.refuse(t, abi.OpCreateAH, syscall.ENOENT, &bad)
	bad = good
	bad.Pad = 1
	c.refuse(t, abi.OpCreateAH, syscall.EINVAL, &bad)
	c.do(abi.OpDestroyQP, &abi.HandleRequest{Handle: q.qp}, nil)
	c.refuse(t, abi.OpDeallocPD, syscall.EBUSY, &abi.HandleRequest{Handle: q.pd})
	c.do(abi.OpDestroyAH, &abi.HandleRequest{Handle: b.AH}, nil)
	c.do(abi.OpDeallocPD, &abi.HandleRequest{Handle: q.pd}, nil)
	stranger := ts.client()
	stranger.refuse(t, abi.OpDestroyAH, syscall.ENOENT, &abi.HandleRequest{Handle: b.AH})
}

// A client that goes while the daemon looks for the way to a peer of its is gone at once, also if
// it has sent more, and so is a daemon that ends.
func TestEndWhileWaiting(t *testing.T) {
	attr := abi.AHAttr{Flags: abi.AHGlobal, GIDIndex: lostGID, Port: 1}
	for name, request := range map[string]func(q *rawQP) (abi.Op, abi.Message){
		"CREATE_AH": func(q *rawQP) (abi.Op, abi.Message) {
			return abi.OpCreateAH, &abi.CreateAHRequest{PD: q.pd, Attr: attr}
		},
		"MODIFY_QP": func(q *rawQP) (abi.Op, abi.Message) {
			return abi.OpModifyQP, &abi.ModifyQPRequest{QP: q.qp, State: abi.StateRTR,
				Mask: abi.ModifyQPState, Attr: abi.QPAttr{Path: attr}}
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
					abi.AppendMessage(nil, abi.Header{Op: op, Seq: c.seq + 1}, req),
					abi.AppendMessage(nil, abi.Header{Op: abi.OpQueryQP, Seq: c.seq + 2},
						&abi.HandleRequest{Handle: q.qp}),
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
	group := func(n byte) *abi.AttachMcastRequest {
		return &abi.AttachMcastRequest{QP: q.qp, GID: [16]byte{0xff, n}}
	}
	for range 3 {
		c.do(abi.OpAttachMcast, group(1), nil)
	}
	c.do(abi.OpAttachMcast, group(2), nil)
	c.refuse(t, abi.OpAttachMcast, syscall.ENOMEM, group(3))
	c.do(abi.OpDetachMcast, group(2), nil)
	c.refuse(t, abi.OpDetachMcast, syscall.EINVAL, group(2))
	c.refuse(t, abi.OpAttachMcast, syscall.EINVAL, &abi.AttachMcastRequest{QP: q.qp})
	c.refuse(t, abi.OpAttachMcast, syscall.ENOENT, &abi.AttachMcastRequest{QP: q.qp + 1})
	c.refuse(t, abi.OpDetachMcast, syscall.ENOENT, &abi.AttachMcastRequest{QP: q.qp + 1})
	c.do(abi.OpDestroyQP, &abi.HandleRequest{Handle: q.qp}, nil)
	q = c.newQP()
	c.do(abi.OpAttachMcast, group(1), nil)
	c.do(abi.OpAttachMcast, group(2), nil)
}

// One user, with however many sessions, is in half of the groups that all may be in, by QPs and by
// ids, and the refusal says which limit that is. What a session was in is free when it is gone.
func TestMemberships(t *testing.T) {
	ts := newServer(t, "memberships=8", "groups=3")
	ts.strangers.Store(true)
	c, d := ts.client(), ts.client()
	group := func(q *rawQP, n byte) *abi.AttachMcastRequest {
		return &abi.AttachMcastRequest{QP: q.qp, GID: [16]byte{0xff, n}}
	}
	q, r := c.newQP(), d.newQP()
	for n := range byte(3) {
		c.do(abi.OpAttachMcast, group(q, n+1), nil)
	}
	c.refuse(t, abi.OpAttachMcast, syscall.ENOMEM, group(q, 9)) // of the session
	d.do(abi.OpAttachMcast, group(r, 1), nil)
	var ch abi.CMCreateChanReply
	d.do(abi.OpCMCreateChan, &abi.Empty{}, &ch)
	var id abi.CMCreateIDReply
	d.do(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: abi.PSUDP, Type: abi.TypeUD}, &id)
	join := &abi.CMJoinMulticastRequest{ID: id.ID, UID: 7,
		Addr: abi.MakeSockAddr(netip.MustParseAddrPort("224.0.0.9:0"))}
	for _, full := range []struct {
		op  abi.Op
		req abi.Message
	}{{abi.OpAttachMcast, group(r, 2)}, {abi.OpCMJoinMulticast, join}} {
		d.refuse(t, full.op, syscall.ENOMEM, full.req)
	}
	err := ts.srv.memberships.take(account{uid: uint32(os.Getuid())}, false)
	if why := fmt.Sprint(err); !strings.Contains(why, "4 of the daemon's 8 memberships") ||
		!strings.Contains(why, "--limit memberships=N") {
		t.Errorf("refused for %s", why)
	}
	c.do(abi.OpDestroyQP, &abi.HandleRequest{Handle: q.qp}, nil)
	d.do(abi.OpCMJoinMulticast, join, nil)
	d.do(abi.OpAttachMcast, group(r, 2), nil)
	d.do(abi.OpCMDestroyID, &abi.HandleRequest{Handle: id.ID}, nil)
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
	var ch abi.CMCreateChanReply
	pipe := c.do(abi.OpCMCreateChan, &abi.Empty{}, &ch)[0]
	var id abi.CMCreateIDReply
	c.do(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: abi.PSUDP, Type: abi.TypeUD,
		UID: 5}, &id)
	addr := func(s string) abi.SockAddr { return abi.MakeSockAddr(netip.MustParseAddrPort(s)) }
	join := func(s string, uid uint64) *abi.CMJoinMulticastRequest {
		return &abi.CMJoinMulticastRequest{ID: id.ID, UID: uid, Addr: addr(s)}
	}
	leave := func(s string) *abi.CMLeaveMulticastRequest {
		return &abi.CMLeaveMulticastRequest{ID: id.ID, Addr: addr(s)}
	}
	c.do(abi.OpCMJoinMulticast, join("224.0.0.9:0", 71), nil)
	c.do(abi.OpCMJoinMulticast, join("[ff02::9]:0", 72), nil)
	c.refuse(t, abi.OpCMJoinMulticast, syscall.EADDRINUSE, join("224.0.0.9:0", 73))
	c.refuse(t, abi.OpCMJoinMulticast, syscall.EADDRINUSE, join("224.0.0.8:0", 71))
	c.refuse(t, abi.OpCMJoinMulticast, syscall.ENOMEM, join("224.0.0.8:0", 73))
	readToken(t, pipe)
	var e abi.CMEvent
	c.do(abi.OpCMGetEvent, &abi.HandleRequest{Handle: ch.Chan}, &e)
	if e.Type != abi.EvMulticastJoin || e.Group != 71 || e.UID != 5 || e.ID != id.ID ||
		e.Path.Flags != abi.AHGlobal || e.Path.GID[15] != 9 {
		t.Errorf("%+v", e)
	}
	var left abi.CMLeaveMulticastReply
	c.do(abi.OpCMLeaveMulticast, leave("224.0.0.9:0"), &left)
	if left != (abi.CMLeaveMulticastReply{Reported: 1}) {
		t.Errorf("%+v of a group whose event was taken", left)
	}
	c.do(abi.OpCMLeaveMulticast, leave("[ff02::9]:0"), &left)
	if left != (abi.CMLeaveMulticastReply{Tokens: 1}) {
		t.Errorf("%+v of a group whose event was not taken", left)
	}
	c.refuse(t, abi.OpCMLeaveMulticast, syscall.EADDRNOTAVAIL, leave("[ff02::9]:0"))
	c.refuse(t, abi.OpCMGetEvent, syscall.EAGAIN, &abi.HandleRequest{Handle: ch.Chan})
	for _, bad := range []*abi.CMJoinMulticastRequest{
		join("10.0.0.1:0", 1), join("224.0.0.1:7", 1), join("[::]:0", 1), {ID: id.ID, UID: 1},
		{ID: id.ID, UID: 1, Addr: abi.SockAddr{Family: 77}},
		{ID: id.ID, UID: 1, Addr: addr("224.0.0.1:0"), Flags: 1},
	} {
		c.refuse(t, abi.OpCMJoinMulticast, syscall.EINVAL, bad)
	}
	c.refuse(t, abi.OpCMJoinMulticast, syscall.ENODEV, join("224.0.0.66:0", 1)) // says the handler
	c.refuse(t, abi.OpCMJoinMulticast, syscall.ENOENT, &abi.CMJoinMulticastRequest{ID: 99})
	c.refuse(t, abi.OpCMLeaveMulticast, syscall.ENOENT, &abi.CMLeaveMulticastRequest{ID: 99,
		Addr: addr("224.0.0.9:0")})
	for range 3 { // what could not be joined can be left, and takes no place then
		c.do(abi.OpCMJoinMulticast, join("224.0.0.77:0", 77), nil)
		c.do(abi.OpCMGetEvent, &abi.HandleRequest{Handle: ch.Chan}, &e)
		if e.Type != abi.EvMulticastError || e.Group != 77 {
			t.Errorf("%+v", e)
		}
		c.do(abi.OpCMLeaveMulticast, leave("224.0.0.77:0"), &left)
		if left != (abi.CMLeaveMulticastReply{Reported: 1}) {
			t.Errorf("%+v of a group that could not be joined", left)
		}
	}
	c.do(abi.OpCMJoinMulticast, join("224.0.0.9:0", 71), nil)
	c.do(abi.OpCMJoinMulticast, join("224.0.0.10:0", 72), nil)
	var gone abi.CMDestroyIDReply
	c.do(abi.OpCMDestroyID, &abi.HandleRequest{Handle: id.ID}, &gone)
	if gone != (abi.CMDestroyIDReply{Tokens: 2}) {
		t.Errorf("%+v of an id with two events", gone)
	}
	c.do(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: abi.PSUDP, UID: 5}, &id)
	c.do(abi.OpCMJoinMulticast, join("224.0.0.9:0", 71), nil) // the quota is free again
}

// An id of datagrams connects without a QP; of another, it is one that the client moves itself, and
// the handler looks whether it is there.
func TestConnectWithoutQP(t *testing.T) {
	ts := newServer(t)
	c := ts.client()
	q := c.newQP()
	var ch abi.CMCreateChanReply
	c.do(abi.OpCMCreateChan, &abi.Empty{}, &ch)
	for i, ps := range []uint32{abi.PSUDP, abi.PSTCP} {
		var id abi.CMCreateIDReply
		c.do(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: ps}, &id)
		for _, op := range []abi.Op{abi.OpCMConnect, abi.OpCMAccept} {
			c.do(op, &abi.CMConnectRequest{ID: id.ID}, nil)
		}
		c.refuse(t, abi.OpCMConnect, syscall.ENOENT, &abi.CMConnectRequest{ID: id.ID, PD: q.pd})
		numbered := &abi.CMConnectRequest{ID: id.ID, Param: abi.ConnParam{QPN: q.qpn}}
		if ps == abi.PSUDP {
			c.refuse(t, abi.OpCMConnect, syscall.ENOENT, numbered)
		} else {
			c.do(abi.OpCMConnect, numbered, nil)
		}
		c.do(abi.OpCMAccept, &abi.CMConnectRequest{ID: id.ID, PD: q.pd,
			Param: abi.ConnParam{QPN: q.qpn}}, nil)
		if got := ts.id(i).last.Load(); got != "accept 1" {
			t.Errorf("port space %#x: %v", ps, got)
		}
	}
	c.refuse(t, abi.OpCMCreateID, syscall.ENODEV, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: 0x13f})
}

// The UDP port of an id of datagrams: one socket of packets, within the quota of pipes, and none
// for others. It ends with the id.
func TestOpenUDP(t *testing.T) {
	ts := newServer(t, "pipes=4")
	c := ts.client()
	var ch abi.CMCreateChanReply
	c.do(abi.OpCMCreateChan, &abi.Empty{}, &ch)
	var ids [2]abi.CMCreateIDReply
	for i, ps := range []uint32{abi.PSUDP, abi.PSTCP} {
		c.do(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: ch.Chan, PS: ps}, &ids[i])
	}
	of := func(i int) *abi.HandleRequest { return &abi.HandleRequest{Handle: ids[i].ID} }
	before := ts.srv.pipes.count()
	fd := c.do(abi.OpCMOpenUDP, of(0), nil)[0]
	c.refuse(t, abi.OpCMOpenUDP, syscall.EBUSY, of(0))
	c.refuse(t, abi.OpCMOpenUDP, syscall.EOPNOTSUPP, of(1))
	c.refuse(t, abi.OpCMOpenUDP, syscall.ENOENT, &abi.HandleRequest{Handle: 99})
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
	c.do(abi.OpCMDestroyID, of(0), &abi.CMDestroyIDReply{})
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
		c.do(abi.OpHello, hello, &abi.HelloReply{})
		var ctx abi.CtxOpenReply
		c.do(abi.OpCtxOpen, &abi.CtxOpenRequest{}, &ctx)
		var pd abi.AllocPDReply
		c.do(abi.OpAllocPD, &abi.AllocPDRequest{Ctx: ctx.Ctx}, &pd)
		var cq abi.CreateCQReply
		c.do(abi.OpCreateCQ, &abi.CreateCQRequest{Ctx: ctx.Ctx, CQE: 1}, &cq)
		var qp abi.CreateQPReply
		c.do(abi.OpCreateQP, &abi.CreateQPRequest{PD: pd.PD, SendCQ: cq.CQ, RecvCQ: cq.CQ}, &qp)
		if err := c.sendRaw(abi.AppendMessage(nil, abi.Header{Op: abi.OpQueryQP, Seq: 99},
			&abi.HandleRequest{Handle: qp.QP})); err != nil {
			t.Fatal(err)
		}
		h, body, _, _ := c.recv()
		var r abi.QueryQPReply
		if err := abi.Decode(body, &r); err != nil {
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
