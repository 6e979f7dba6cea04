package daemon_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/daemon/daemontest"
	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/shmtest"
)

// A client can keep the kernel's lock of what tells it of events, and have more of them come. Its
// peer's other connections go on, and the peer can end the one to it.
func TestEventsThatAreHeld(t *testing.T) {
	for _, features := range []uint64{0, rpc.FeatureSockets} {
		t.Run(fmt.Sprintf("features=%d", features), func(t *testing.T) {
			eventsThatAreHeld(t, features)
		})
	}
}

func eventsThatAreHeld(t *testing.T, features uint64) {
	d := daemontest.Start(t)
	victim := daemontest.Open(t, d.Dial(), "vrnic0")
	near, beside := daemontest.NewEnd(t, victim, 4096), daemontest.NewEnd(t, victim, 4096)
	honest := daemontest.NewEnd(t, daemontest.Open(t, d.Dial(), "vrnic0"), 4096)
	daemontest.Connect(t, beside, honest, daemontest.Addr(t, honest.Dev, false, 0))

	r := shmtest.NewRaw(t, d.Socket())
	r.Features = features
	e := &rawEnd{RawClient: r.Hello()}
	ctx := r.Ctx(0)
	e.pd = r.PD(ctx)
	var ch rpc.CreateChanReply
	pipe := r.Must(rpc.OpCreateChan, &rpc.CreateChanRequest{Ctx: ctx}, &ch)[0]
	e.cq = r.CQ(ctx, 64, ch.Chan)
	e.qp = r.QP(e.pd, e.cq, e.cq, rpc.QPCaps{MaxSendWR: 16, MaxRecvWR: 16})
	addr, accepted := accept(t, near)
	e.connect(addr)
	accepted()
	for range 4 {
		e.qp.PostRecv(&abi.RecvWQE{WRID: 1, Cookie: 1})
	}
	arm := shmtest.Word(e.cq.Mem, abi.CQArm)
	send := func(id uint64) {
		arm.Store(abi.ArmNext)
		near.Post(&rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled})
	}
	send(1)
	near.WantOK("the first", 1, rdma.WCSend)
	needtest.Eventually(t, "an octet for it", func() bool {
		n, err := unix.IoctlGetInt(pipe, unix.TIOCINQ)
		return n > 0 && err == nil
	})
	if features == 0 {
		defer shmtest.HoldPipe(t, pipe)()
	}
	send(2)
	honest.Recv(3, 0, 100)
	beside.Send(3, 0, 100)
	beside.WantOK("beside it", 3, rdma.WCSend)
	honest.WantOK("beside it", 3, rdma.WCRecv)
	near.WantOK("the second", 2, rdma.WCSend)
	if err := near.QP.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.Dial().List("qp"); err != nil {
		t.Error(err)
	}
}
