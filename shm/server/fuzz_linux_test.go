package server

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// FuzzControl: whatever a client sends after its HELLO, it gets one reply to each request or its
// session ends, and another client's rings work on.
func FuzzControl(f *testing.F) {
	add := func(msgs ...[]byte) {
		var b []byte
		for _, m := range msgs {
			b = append(append(b, byte(len(m)), byte(len(m)>>8)), m...)
		}
		f.Add(b, false)
		f.Add(b, true)
	}
	msg := func(op rpc.Op, body rpc.Message) []byte {
		return rpc.AppendMessage(nil, rpc.Header{Op: op, Seq: 1}, body)
	}
	setup := [][]byte{
		msg(rpc.OpCtxOpen, &rpc.CtxOpenRequest{}), msg(rpc.OpAllocPD, &rpc.AllocPDRequest{Ctx: 1}),
		msg(rpc.OpCreateChan, &rpc.CreateChanRequest{Ctx: 1}),
		msg(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: 1, CQE: 5, Chan: 1}),
		msg(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: 1, SendCQ: 1, RecvCQ: 1}),
		msg(rpc.OpAddMem, &rpc.AddMemRequest{}),
		msg(rpc.OpRegMR, &rpc.RegMRRequest{PD: 1, Mode: rpc.ModeShared, Mem: 1, Length: 4096}),
		msg(rpc.OpCMCreateChan, &rpc.Empty{}), msg(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{
			Chan: 1, PS: rpc.PSTCP}),
		msg(rpc.OpCMConnect, &rpc.CMConnectRequest{ID: 1, PD: 1, Param: rpc.ConnParam{QPN: 1}}),
		msg(rpc.OpCMDestroyID, &rpc.HandleRequest{Handle: 1}),
		msg(rpc.OpCMMigrate, &rpc.CMMigrateRequest{ID: 1, Chan: 1}),
		msg(rpc.OpCMInitQPAttr, &rpc.CMInitQPAttrRequest{ID: 1, State: abi.StateInit}),
		msg(rpc.OpReregMR, &rpc.ReregMRRequest{MR: 1, Flags: rpc.ReregTranslation, New: rpc.RegMRRequest{
			Mode: rpc.ModeShared, Mem: 1, Length: 1}}),
		msg(rpc.OpAllocMR, &rpc.AllocMRRequest{PD: 1, MaxLen: 1}), msg(rpc.OpAllocMW, &rpc.AllocMWRequest{
			PD: 1, Type: 2}),
		msg(rpc.OpDeallocMW, &rpc.HandleRequest{Handle: 1}), msg(rpc.OpCreateSRQ, &rpc.CreateSRQRequest{
			PD: 1, MaxWR: 4, MaxSGE: 1}),
		msg(rpc.OpCreateQP, &rpc.CreateQPRequest{PD: 1, SendCQ: 1, RecvCQ: 1, SRQ: 1, Caps: rpc.QPCaps{
			TxSlab: 100}}),
		msg(rpc.OpModifySRQ, &rpc.ModifySRQRequest{SRQ: 1, Mask: rpc.ModifySRQLimit, Limit: 1}),
		msg(rpc.OpQuerySRQ, &rpc.HandleRequest{Handle: 1}),
		msg(rpc.OpDestroySRQ, &rpc.HandleRequest{Handle: 1}),
		msg(rpc.OpDestroyQP, &rpc.HandleRequest{Handle: 1}), msg(rpc.OpDestroyCQ, &rpc.HandleRequest{
			Handle: 1}),
		msg(rpc.OpCreateCQ, &rpc.CreateCQRequest{Ctx: 1, CQE: 5}),
		msg(rpc.OpResizeCQ, &rpc.ResizeCQRequest{CQ: 2, CQE: 9}),
		msg(rpc.OpSwitchCQ, &rpc.HandleRequest{Handle: 2}),
		msg(rpc.OpCreateAH, &rpc.CreateAHRequest{PD: 1, Attr: rpc.AHAttr{Flags: rpc.AHGlobal}}),
		msg(rpc.OpDestroyAH, &rpc.HandleRequest{Handle: 1}),
		msg(rpc.OpAttachMcast, &rpc.AttachMcastRequest{QP: 2, GID: [16]byte{0xff}}),
		msg(rpc.OpDetachMcast, &rpc.AttachMcastRequest{QP: 2, GID: [16]byte{0xff}}),
		msg(rpc.OpModifyQP, &rpc.ModifyQPRequest{QP: 2, Mask: 1 | 1<<7, State: 2, Attr: rpc.QPAttr{
			PathMTU: 3}}),
		msg(rpc.OpCMCreateID, &rpc.CMCreateIDRequest{Chan: 1, PS: rpc.PSUDP}),
		msg(rpc.OpCMJoinMulticast, &rpc.CMJoinMulticastRequest{ID: 2, UID: 1, Addr: rpc.SockAddr{
			Family: rpc.AFInet, Addr: [16]byte{224, 0, 0, 1}}}),
		msg(rpc.OpCMLeaveMulticast, &rpc.CMLeaveMulticastRequest{ID: 2, Addr: rpc.SockAddr{
			Family: rpc.AFInet, Addr: [16]byte{224, 0, 0, 1}}}),
	}
	add(setup...)
	for i := range setup {
		add(setup[i])
	}
	add(msg(rpc.OpList, &rpc.ListRequest{Kind: 6}), msg(rpc.OpStat, &rpc.ListRequest{Cursor: 1}),
		[]byte{1, 2, 3}, nil)
	ts := newServer(f)
	other := ts.client().newQP()
	f.Fuzz(func(t *testing.T, script []byte, withFD bool) {
		c := rawConnect(t, ts.path).hello()
		defer c.close()
		mem := c.memfd(4096, unix.F_SEAL_SHRINK)
		for n := 0; len(script) >= 2 && n < 40; n++ {
			l := min(int(script[0])|int(script[1])<<8, len(script)-2, rpc.MaxMessage+1)
			m := script[2 : 2+l]
			script = script[2+l:]
			var fds []int
			if withFD && len(m) > 1 && (m[0] == byte(rpc.OpAddMem) || m[0] == byte(rpc.OpSetMem)) {
				fds = append(fds, mem)
			}
			if len(m) == 0 || c.sendRaw(m, fds...) != nil {
				break
			}
			h, _, got, ended := c.recv()
			if ended {
				break
			}
			for _, fd := range got { // many objects would need many descriptors
				unix.Close(fd)
			}
			c.own = c.own[:len(c.own)-len(got)]
			if int(h.Op) != int(m[0])|int(m[1])<<8 || h.Status > 0 {
				t.Fatalf("reply %+v to % x", h, m[:min(len(m), 16)])
			}
		}
		other.roundTrip(t, 1)
	})
}

// FuzzDoorbell: forged bells and a forged sleeping word cost looks and no more; a real bell is
// always answered, and the forger's own session lives.
func FuzzDoorbell(f *testing.F) {
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 1, 2, 3})
	f.Add([]byte{1, 0, 0, 0, 1})
	ts := newServer(f)
	c := ts.client()
	q := c.newQP()
	id := uint64(0)
	f.Fuzz(func(t *testing.T, b []byte) {
		words := abi.Words(c.page, abi.Word(c.page, abi.SessBellOff).Load(),
			abi.Word(c.page, abi.SessBellWords).Load())
		for i := 0; i+4 <= len(b); i += 4 {
			words[i/4%len(words)].Or(abi.Order.Uint32(b[i:]))
			if b[i]&1 != 0 {
				c.Ring()
			}
			if b[i]&2 != 0 {
				abi.Word(c.page, abi.SessSleeping).Store(uint32(b[i]))
			}
		}
		if len(b) > 4 && b[4]&1 != 0 {
			c.Ring()
		}
		// A forged "awake" can lose a ring of its own forger: ring the bell until it is heard.
		q.c.Arm(false)
		id++
		if err := q.m.SQ.Put(&abi.SendWQE{WRID: id}); err != nil {
			t.Fatal(err)
		}
		q.m.SQ.Commit()
		q.ringer.Ring(q.bell)
		c.Ring()
		q.wantEvent(t)
		var e abi.CQE
		if ok, err := q.c.Poll(&e); !ok || err != nil || e.WRID != id {
			t.Fatalf("%v, %v, %+v; want %d", ok, err, e, id)
		}
	})
}
