// Package linktest says what every link does, as programs see it: Run is one list for all of iWARP,
// RunROI one for rdma.ROI, which has fewer operations, and RunRoCE one for all of RoCE, whose
// connections end in other ways.
package linktest

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Run runs the list, each item in a bubble of its own with two peers that connect has joined. Their
// connection has IRD and ORD, and atomics and immediate data.
func Run(t *testing.T, connect func(t *testing.T) (x, y *vnictest.Peer)) {
	run(t, connect, append(slices.Clone(streams), extensions))
}

// RunROI is Run for a connection of rdma.ROI with credits of both kinds.
func RunROI(t *testing.T, connect func(t *testing.T) (x, y *vnictest.Peer)) {
	run(t, connect, append(slices.Clone(streams), item{"notify", notifies}, item{"others", others}))
}

// RunRoCE is Run for two queue pairs of type RC of RoCE, both in RTS, whose RNR retry count is
// without end and whose local ACK timeout is no longer than a second.
func RunRoCE(t *testing.T, connect func(t *testing.T) (x, y *vnictest.Peer)) {
	run(t, connect, append([]item{{"drain", drains}, {"refuse", refuses}, {"vanish", vanishes},
		extensions}, always...))
}

// An item of a list.
type item struct {
	name string
	test func(t *testing.T, x, y *vnictest.Peer)
}

// always are the items that are in all lists.
var always = []item{{"operations", operations}, {"order", order}, {"fence", fence},
	{"back pressure", backPressure}}

// streams are those of iWARP and ROI, extensions what ROI has not.
var (
	streams = append([]item{{"close", closes}, {"abort", aborts}, {"terminate", terminates},
		{"flush", flushes}}, always...)
	extensions = item{"extensions", extended}
)

func run(t *testing.T, connect func(t *testing.T) (x, y *vnictest.Peer), items []item) {
	for _, item := range items {
		t.Run(item.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y := connect(t)
				item.test(t, x, y)
			})
		})
	}
}

const ok = rdma.WCSuccess

func is(id uint64, st rdma.WCStatus) vnictest.Want { return vnictest.Want{ID: id, Status: st} }

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
}

// Each operation moves its octets to their place.
func operations(t *testing.T, x, y *vnictest.Peer) {
	for _, n := range []int{1, 8, 1000, 20_000} {
		fill(x.Buf, byte(n))
		y.Recv(1, 0, n)
		x.Send(2, 3, n)
		x.WantSend("a Send", is(2, ok))
		if wc := y.WantRecv("a Send", is(1, ok))[0]; wc.ByteLen != uint32(n) {
			t.Errorf("the receive has %d octets, want %d", wc.ByteLen, n)
		}
		x.Write(3, 5, n, y, 21_000)
		x.Read(4, 40_000, n, y, 21_000)
		x.WantSend("a Write and a Read", is(3, ok), is(4, ok))
		for what, got := range map[string][]byte{
			"Send": y.Buf[:n], "Write": y.Buf[21_000:][:n], "Read": x.Buf[40_000:][:n],
		} {
			from := x.Buf[5:][:n]
			if what == "Send" {
				from = x.Buf[3:][:n]
			}
			if !bytes.Equal(got, from) {
				t.Errorf("%s of %d octets: they differ", what, n)
			}
		}
	}
}

// Atomics and immediate data.
func extended(t *testing.T, x, y *vnictest.Peer) {
	add := rdma.SendWR{ID: 5, Op: rdma.OpFetchAdd, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
	add.Atomic.CompareAdd = 1
	fill(x.Buf[:8], 1)
	x.Post(add, 0, 8)
	x.WantSend("a Fetch and Add", is(5, ok))
	if bytes.Equal(y.Buf[:8], make([]byte, 8)) || !bytes.Equal(x.Buf[:8], make([]byte, 8)) {
		t.Errorf("behind a Fetch and Add: % x, and % x came back", y.Buf[:8], x.Buf[:8])
	}
	y.Recv(6, 0, 0)
	x.Post(rdma.SendWR{ID: 7, Op: rdma.OpSendImm, Imm: 42}, 0, 0)
	x.WantSend("immediate data", is(7, ok))
	if wc := y.WantRecv("immediate data", is(6, ok))[0]; wc.Imm != 42 {
		t.Errorf("the immediate data are %d", wc.Imm)
	}
}

// A Write that notifies takes a receive and leaves it as it is, and brings its identifier.
func notifies(t *testing.T, x, y *vnictest.Peer) {
	fill(x.Buf[:5000], 3)
	write := rdma.SendWR{ID: 1, Op: rdma.OpWriteImm, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
		Imm: 0xfffff}
	x.Post(write, 0, 5000)
	time.Sleep(time.Minute)
	x.WantNone("no receive was posted")
	y.Recv(2, 6000, 10)
	x.WantSend("a Write that notifies", is(1, ok))
	wc := y.WantRecv("a Write that notifies", is(2, ok))[0]
	if wc.Op != rdma.WCRecvImm || wc.Imm != 0xfffff || wc.ByteLen != 5000 {
		t.Errorf("told %+v", wc)
	}
	if !bytes.Equal(y.Buf[:5000], x.Buf[:5000]) {
		t.Error("the octets differ")
	}
}

// What the protocol does not have is refused here, and nothing of it is sent.
func others(t *testing.T, x, y *vnictest.Peer) {
	for i, wr := range []rdma.SendWR{
		{Op: rdma.OpFetchAdd, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()},
		{Op: rdma.OpSendImm}, {Op: rdma.OpSendInv, InvKey: y.MR.RKey()},
		{Op: rdma.OpWriteImm, Imm: 1 << 20}, {Op: rdma.OpWriteImm, ImmLow: 1},
	} {
		if i > 0 { // a request that is refused ends the connection
			vnictest.Connect(t, x, y)
		}
		n := 0
		if wr.Op == rdma.OpFetchAdd {
			n = 8
		}
		wr.ID = uint64(i)
		y.Recv(9, 0, 100)
		x.Post(wr, 0, n)
		x.WantSend("refused", is(uint64(i), rdma.WCLocQPOp))
		x.WantEvent("refused", rdma.EventQPFatal)
		y.WantEvent("the peer gives up", rdma.EventQPFatal)
		y.WantRecv("the peer gives up", is(9, rdma.WCFlush))
		time.Sleep(time.Minute)
		for _, p := range []*vnictest.Peer{x, y} {
			p.WantState("a fault", rdma.QPError)
			if err := p.QP.ModifyState(rdma.QPIdle); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Requests complete in the order in which they were posted, and arrive so, in both directions.
func order(t *testing.T, x, y *vnictest.Peer) {
	const n = 24
	for _, d := range []struct{ from, to *vnictest.Peer }{{x, y}, {y, x}} {
		var sent, came []vnictest.Want
		for i := range uint64(n) {
			d.to.Recv(i, 0, 100)
		}
		for i := range uint64(n) {
			switch i % 3 {
			case 0:
				d.from.Send(i, 0, int(i))
				came = append(came, is(uint64(len(came)), ok))
			case 1:
				d.from.Read(i, 1000, 3000, d.to, 0)
			case 2:
				d.from.Write(i, 0, 5000, d.to, 10_000)
			}
			sent = append(sent, is(i, ok))
		}
		d.from.WantSend("in the order of posting", sent...)
		for i, wc := range d.to.WantRecv("in the order of sending", came...) {
			if int(wc.ByteLen) != 3*i {
				t.Errorf("receive %d has %d octets", i, wc.ByteLen)
			}
		}
	}
}

// A request with a fence goes out behind the answers to the Reads before it.
func fence(t *testing.T, x, y *vnictest.Peer) {
	fill(y.Buf[:5000], 9)
	y.Recv(1, 10_000, 5000)
	x.Read(2, 0, 5000, y, 0)
	x.Post(rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.Fence}, 0, 5000)
	x.WantSend("in order", is(2, ok), is(3, ok))
	y.WantRecv("delivered", is(1, ok))
	if !bytes.Equal(y.Buf[:5000], y.Buf[10_000:15_000]) {
		t.Error("the Send went out before the Read had completed")
	}
}

// Sends without receives wait, and hold up what is behind them; nothing is lost.
func backPressure(t *testing.T, x, y *vnictest.Peer) {
	const n = 30
	fill(x.Buf, 3)
	for i := range uint64(n) {
		x.Send(i, 0, 2000)
	}
	synctest.Wait()
	y.WantNone("no receive was posted")
	time.Sleep(100 * time.Millisecond)
	var want []vnictest.Want
	for i := range uint64(n) {
		y.Recv(i, 0, 2000)
		want = append(want, is(i, ok))
	}
	y.WantRecv("with receives", want...)
	x.WantSend("all complete", want...)
	if !bytes.Equal(x.Buf[:2000], y.Buf[:2000]) {
		t.Error("the octets differ")
	}
	for _, p := range []*vnictest.Peer{x, y} {
		p.WantState("behind a wait", rdma.QPRTS)
	}
}

// What was posted before a disconnect arrives; then both ends are Idle.
func closes(t *testing.T, x, y *vnictest.Peer) {
	y.Recv(1, 0, 1000)
	x.Send(2, 0, 1000)
	if err := x.QP.Disconnect(); err != nil {
		t.Fatal(err)
	}
	x.WantSend("before the end", is(2, ok))
	y.WantRecv("before the end", is(1, ok))
	time.Sleep(time.Minute)
	for _, p := range []*vnictest.Peer{x, y} {
		p.WantState("a graceful end", rdma.QPIdle)
	}
}

// over says that p's connection has ended, gracefully or not: it depends on what was outstanding.
func over(t *testing.T, why string, p *vnictest.Peer) {
	t.Helper()
	if s := p.QP.State(); s != rdma.QPIdle && s != rdma.QPError {
		t.Fatalf("%s: the QP is in state %v", why, s)
	}
}

// An abort ends the connection of both ends at once.
func aborts(t *testing.T, x, y *vnictest.Peer) {
	y.Recv(1, 0, 1000)
	x.Recv(2, 0, 1000)
	if err := x.QP.Abort(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	x.WantState("an abort", rdma.QPError)
	over(t, "the peer's abort", y)
	x.WantRecv("what was posted", is(2, rdma.WCFlush))
	y.WantRecv("what was posted", is(1, rdma.WCFlush))
}

// A peer that wants what it may not have is told why, and nothing is placed.
func terminates(t *testing.T, x, y *vnictest.Peer) {
	x.Post(rdma.SendWR{
		ID: 1, Op: rdma.OpRead, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey() + 1,
	}, 0, 100)
	x.WantSend("the peer refuses", is(1, rdma.WCRemAccess))
	y.WantEvent("and says so", rdma.EventQPAccessErr)
	ev := x.WantEvent("here, too", rdma.EventQPFatal)
	if ev.Cause == nil || !ev.Cause.Remote {
		t.Errorf("the cause is %+v, not the peer's", ev.Cause)
	}
	time.Sleep(time.Minute)
	for _, p := range []*vnictest.Peer{x, y} {
		p.WantState("the end", rdma.QPError)
	}
}

// What is posted when the connection ends is flushed, in order, and so is what is posted in Error;
// each Send that the peer had no receive for has one completion.
func flushes(t *testing.T, x, y *vnictest.Peer) {
	var want []vnictest.Want
	for i := range uint64(5) {
		y.Recv(i, 0, 100)
		want = append(want, is(i, rdma.WCFlush))
	}
	for i := range uint64(5) {
		y.Send(10+i, 0, 1000)
	}
	synctest.Wait()
	if err := y.QP.Abort(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute) // the end is behind the Sends, which wait for a receive for so long
	over(t, "the peer is gone", x)
	y.WantState("an abort", rdma.QPError)
	y.Recv(5, 0, 1)
	y.Send(15, 0, 1)
	y.WantRecv("in order", append(want, is(5, rdma.WCFlush))...)
	for i, wc := range y.Next(y.SendCQ, 6) {
		if wc.ID != uint64(10+i) || wc.Status != ok && wc.Status != rdma.WCFlush {
			t.Errorf("Send %d ended as %d with %v", 10+i, wc.ID, wc.Status)
		}
	}
}

// In SQD nothing begins, and what comes is taken; then all goes on.
func drains(t *testing.T, x, y *vnictest.Peer) {
	x.Write(1, 0, 5000, y, 0)
	x.WantSend("before", is(1, ok))
	if err := x.QP.ModifyState(rdma.QPSQD); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		x.Write(i, 0, 5000, y, 0)
	}
	x.Recv(1, 0, 100)
	y.Send(1, 0, 100)
	y.WantSend("to who drains", is(1, ok))
	x.WantRecv("to who drains", is(1, ok))
	time.Sleep(time.Minute)
	x.WantNone("nothing begins")
	if err := x.QP.ModifyState(rdma.QPRTS); err != nil {
		t.Fatal(err)
	}
	x.WantSend("in order", is(0, ok), is(1, ok), is(2, ok))
}

// A peer that wants what it may not have is told which rule it broke; what is before it is well,
// and both ends are in Error, where all flushes.
func refuses(t *testing.T, x, y *vnictest.Peer) {
	fill(x.Buf, 7)
	y.Recv(1, 0, 100)
	y.Recv(2, 0, 100)
	x.Send(1, 0, 100)
	wrong := rdma.SendWR{ID: 2, Op: rdma.OpWrite, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey() + 1}
	x.Post(wrong, 0, 100)
	x.Send(3, 0, 100)
	x.WantSend("refused", is(1, ok), is(2, rdma.WCRemAccess), is(3, rdma.WCFlush))
	y.WantRecv("refused", is(1, ok), is(2, rdma.WCFlush))
	y.WantEvent("refused", rdma.EventQPAccessErr)
	for _, p := range []*vnictest.Peer{x, y} {
		p.WantState("a fault", rdma.QPError)
	}
	if !bytes.Equal(y.Buf[:100], x.Buf[:100]) {
		t.Error("the octets of the Send differ")
	}
}

// A peer that is not there any more does not answer, which the oldest request says; those behind it
// flush.
func vanishes(t *testing.T, x, y *vnictest.Peer) {
	y.Recv(1, 0, 100)
	x.Send(1, 0, 100)
	x.WantSend("before", is(1, ok))
	y.WantRecv("before", is(1, ok))
	y.Recv(2, 0, 100)
	if err := y.QP.Abort(); err != nil {
		t.Fatal(err)
	}
	y.WantRecv("in Error", is(2, rdma.WCFlush))
	for i := range uint64(3) {
		x.Write(i, 0, 5000, y, 0)
	}
	x.WantSend("nobody answers", is(0, rdma.WCRetryExc), is(1, rdma.WCFlush), is(2, rdma.WCFlush))
	x.WantState("nobody answers", rdma.QPError)
}
