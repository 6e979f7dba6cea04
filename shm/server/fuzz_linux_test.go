package server

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/shm/abi"
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
	msg := func(op abi.Op, body abi.Message) []byte {
		return abi.AppendMessage(nil, abi.Header{Op: op, Seq: 1}, body)
	}
	setup := [][]byte{
		msg(abi.OpCtxOpen, &abi.CtxOpenRequest{}), msg(abi.OpAllocPD, &abi.AllocPDRequest{Ctx: 1}),
		msg(abi.OpCreateChan, &abi.CreateChanRequest{Ctx: 1}),
		msg(abi.OpCreateCQ, &abi.CreateCQRequest{Ctx: 1, CQE: 5, Chan: 1}),
		msg(abi.OpCreateQP, &abi.CreateQPRequest{PD: 1, SendCQ: 1, RecvCQ: 1}),
		msg(abi.OpAddMem, &abi.AddMemRequest{}),
		msg(abi.OpRegMR, &abi.RegMRRequest{PD: 1, Mode: abi.ModeShared, Mem: 1, Length: 4096}),
		msg(abi.OpCMCreateChan, &abi.Empty{}), msg(abi.OpCMCreateID, &abi.CMCreateIDRequest{
			Chan: 1, PS: abi.PSTCP}),
		msg(abi.OpCMConnect, &abi.CMConnectRequest{ID: 1, PD: 1, Param: abi.ConnParam{QPN: 1}}),
		msg(abi.OpCMDestroyID, &abi.HandleRequest{Handle: 1}),
		msg(abi.OpCMMigrate, &abi.CMMigrateRequest{ID: 1, Chan: 1}),
		msg(abi.OpCMInitQPAttr, &abi.CMInitQPAttrRequest{ID: 1, State: abi.StateInit}),
		msg(abi.OpReregMR, &abi.ReregMRRequest{MR: 1, Flags: abi.ReregTranslation, New: abi.RegMRRequest{
			Mode: abi.ModeShared, Mem: 1, Length: 1}}),
		msg(abi.OpAllocMR, &abi.AllocMRRequest{PD: 1, MaxLen: 1}), msg(abi.OpAllocMW, &abi.AllocMWRequest{
			PD: 1, Type: 2}),
		msg(abi.OpDeallocMW, &abi.HandleRequest{Handle: 1}), msg(abi.OpCreateSRQ, &abi.CreateSRQRequest{
			PD: 1, MaxWR: 4, MaxSGE: 1}),
		msg(abi.OpCreateQP, &abi.CreateQPRequest{PD: 1, SendCQ: 1, RecvCQ: 1, SRQ: 1, Caps: abi.QPCaps{
			TxSlab: 100}}),
		msg(abi.OpModifySRQ, &abi.ModifySRQRequest{SRQ: 1, Mask: abi.ModifySRQLimit, Limit: 1}),
		msg(abi.OpQuerySRQ, &abi.HandleRequest{Handle: 1}),
		msg(abi.OpDestroySRQ, &abi.HandleRequest{Handle: 1}),
		msg(abi.OpDestroyQP, &abi.HandleRequest{Handle: 1}), msg(abi.OpDestroyCQ, &abi.HandleRequest{
			Handle: 1}),
		msg(abi.OpCreateCQ, &abi.CreateCQRequest{Ctx: 1, CQE: 5}),
		msg(abi.OpResizeCQ, &abi.ResizeCQRequest{CQ: 2, CQE: 9}),
		msg(abi.OpSwitchCQ, &abi.HandleRequest{Handle: 2}),
		msg(abi.OpCreateAH, &abi.CreateAHRequest{PD: 1, Attr: abi.AHAttr{Flags: abi.AHGlobal}}),
		msg(abi.OpDestroyAH, &abi.HandleRequest{Handle: 1}),
		msg(abi.OpAttachMcast, &abi.AttachMcastRequest{QP: 2, GID: [16]byte{0xff}}),
		msg(abi.OpDetachMcast, &abi.AttachMcastRequest{QP: 2, GID: [16]byte{0xff}}),
		msg(abi.OpModifyQP, &abi.ModifyQPRequest{QP: 2, Mask: 1 | 1<<7, State: 2, Attr: abi.QPAttr{
			PathMTU: 3}}),
		msg(abi.OpCMCreateID, &abi.CMCreateIDRequest{Chan: 1, PS: abi.PSUDP}),
		msg(abi.OpCMJoinMulticast, &abi.CMJoinMulticastRequest{ID: 2, UID: 1, Addr: abi.SockAddr{
			Family: abi.AFInet, Addr: [16]byte{224, 0, 0, 1}}}),
		msg(abi.OpCMLeaveMulticast, &abi.CMLeaveMulticastRequest{ID: 2, Addr: abi.SockAddr{
			Family: abi.AFInet, Addr: [16]byte{224, 0, 0, 1}}}),
	}
	add(setup...)
	for i := range setup {
		add(setup[i])
	}
	add(msg(abi.OpList, &abi.ListRequest{Kind: 6}), msg(abi.OpStat, &abi.ListRequest{Cursor: 1}),
		[]byte{1, 2, 3}, nil)
	ts := newServer(f)
	other := ts.client().newQP()
	f.Fuzz(func(t *testing.T, script []byte, withFD bool) {
		c := rawConnect(t, ts.path).hello()
		defer c.close()
		mem := c.memfd(4096, unix.F_SEAL_SHRINK)
		for n := 0; len(script) >= 2 && n < 40; n++ {
			l := min(int(script[0])|int(script[1])<<8, len(script)-2, abi.MaxMessage+1)
			m := script[2 : 2+l]
			script = script[2+l:]
			var fds []int
			if withFD && len(m) > 1 && (m[0] == byte(abi.OpAddMem) || m[0] == byte(abi.OpSetMem)) {
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
