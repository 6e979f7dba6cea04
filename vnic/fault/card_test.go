package fault_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// onCards runs f on two connected queue pairs: of one device of iWARP, of two, and of two of RoCE.
func onCards(t *testing.T, f func(t *testing.T, kind string, x, y *vnictest.Peer)) {
	for _, kind := range []string{"loop", "tcp", "roce"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if kind == "roce" {
					a, b := vnictest.Pair(t, vnictest.RoCE)
					cfg := vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.RC}}
					x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), cfg)
					y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), cfg)
					vnictest.ConnectByNumber(t, x, y, nil)
					f(t, kind, x, y)
					return
				}
				a, b := vnictest.Pair(t)
				if kind == "loop" {
					b = a
				}
				x, y := vnictest.NewQPs(t, vnictest.Open(t, a, vnic.ContextConfig{}),
					vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{}, vnictest.PeerConfig{})
				f(t, kind, x, y)
			})
		})
	}
}

func is(id uint64, st rdma.WCStatus) vnictest.Want { return vnictest.Want{ID: id, Status: st} }

const ok = rdma.WCSuccess

// begin has a fault at one queue pair.
func begin(t *testing.T, p *vnictest.Peer, words string) {
	t.Helper()
	vnictest.Fault(t, p.Ctx.Device(), 1, fmt.Sprintf("/%d %s", p.QP.Num(), words))
}

// TestRequestStatus: the request that it is for completes with each status, those before it well
// and those behind it flushed, and the connection is over.
func TestRequestStatus(t *testing.T) {
	for word, st := range map[string]rdma.WCStatus{
		"loc_len_err": rdma.WCLocLen, "rem_access_err": rdma.WCRemAccess, "rem_op_err": rdma.WCRemOp,
		"retry_exc_err": rdma.WCRetryExc, "rnr_retry_exc_err": rdma.WCRNRRetry,
		"general_err": rdma.WCGeneral, "fatal_err": rdma.WCFatal, "wr_flush_err": rdma.WCFlush,
	} {
		t.Run(word, func(t *testing.T) {
			onCards(t, func(t *testing.T, _ string, x, y *vnictest.Peer) {
				begin(t, x, "write "+word+" after 2")
				x.Write(1, 0, 8, y, 0)
				y.Recv(9, 0, 64)
				x.Send(2, 0, 64)
				x.Write(3, 0, 8, y, 0)
				x.WantSend("before", is(1, ok), is(2, ok), is(3, ok))
				x.Write(4, 0, 8, y, 0)
				x.Write(5, 0, 8, y, 0)
				x.WantSend("spoiled", is(4, st), is(5, rdma.WCFlush))
				if s := x.QP.State(); s == rdma.QPRTS {
					t.Errorf("the QP is %v", s)
				}
			})
		})
	}
}

// TestTerminates: what is sent is what the peer hears, with any code, and what the peer is said to
// have sent looks so here.
func TestTerminates(t *testing.T) {
	for _, kind := range []bool{false, true} {
		for words, want := range map[string]rdma.TerminateError{
			"send terminate 0/2/0x08":         {Layer: 0, Type: 2, Code: 8},
			"send terminate 7/3/0xee":         {Layer: 7, Type: 3, Code: 0xee},
			"recv terminate 1/1/0x01 count 1": {Layer: 1, Type: 1, Code: 1},
			"send terminated 2/0/0x02":        {Layer: 2, Type: 0, Code: 2},
			"read ird":                        {Layer: 1, Type: 2, Code: 2},
		} {
			t.Run(fmt.Sprint(words, " ", kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := vnictest.Pair(t)
					if kind {
						b = a
					}
					x, y := vnictest.NewQPs(t, vnictest.Open(t, a, vnic.ContextConfig{}),
						vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{}, vnictest.PeerConfig{})
					begin(t, x, words)
					told, hears := y, true // who hears of it by a Terminate
					switch words[:6] {
					case "recv t":
						x.Recv(1, 0, 64)
						y.Send(1, 0, 64)
						x.WantRecv("it has come", is(1, ok))
					case "read i":
						told = x
						x.Read(1, 0, 64, y, 0)
					default:
						x.Send(1, 0, 64)
						x.WantSend("it has not gone", is(1, rdma.WCFlush))
						if words == "send terminated 2/0/0x02" {
							told = x
						}
					}
					var got *rdma.TerminateError
					if err := told.WantDone("a Terminate"); !errors.As(err, &got) || got.Layer != want.Layer ||
						got.Type != want.Type || got.Code != want.Code || got.Remote != hears {
						t.Errorf("ended by %v, want %+v", err, want)
					}
				})
			})
		}
	}
}

// TestReceiveStatus: a receive completes with the status, and the connection is over.
func TestReceiveStatus(t *testing.T) {
	onCards(t, func(t *testing.T, _ string, x, y *vnictest.Peer) {
		begin(t, y, "recv loc_prot_err after 1")
		for id := range uint64(4) {
			y.Recv(id, 0, 64)
		}
		x.Send(1, 0, 64)
		y.WantRecv("before", is(0, ok))
		x.Send(2, 0, 64)
		x.Send(3, 0, 64)
		y.WantRecv("spoiled", is(1, rdma.WCLocProt), is(2, rdma.WCFlush), is(3, rdma.WCFlush))
		if s := y.QP.State(); s == rdma.QPRTS {
			t.Errorf("the QP is %v", s)
		}
	})
}

// TestNAK: the peer's next request is refused with that NAK, whichever it is.
func TestNAK(t *testing.T) {
	for word, st := range map[string]rdma.WCStatus{
		"invalid": rdma.WCRemInvReq, "access": rdma.WCRemAccess, "operation": rdma.WCRemOp,
	} {
		for what, post := range map[string]func(x, y *vnictest.Peer){
			"send":  func(x, _ *vnictest.Peer) { x.Send(2, 0, 64) },
			"empty": func(x, _ *vnictest.Peer) { x.Send(2, 0, 0) },
			"write": func(x, y *vnictest.Peer) { x.Write(2, 0, 64, y, 0) },
			"read":  func(x, y *vnictest.Peer) { x.Read(2, 0, 64, y, 0) },
			"atomic": func(x, y *vnictest.Peer) {
				x.Post(rdma.SendWR{ID: 2, Op: rdma.OpFetchAdd, RemoteAddr: y.MR.Addr(),
					RKey: y.MR.RKey()}, 0, 8)
			},
		} {
			t.Run(word+" "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := vnictest.Pair(t, vnictest.RoCE)
					cfg := vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.RC}}
					x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), cfg)
					y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), cfg)
					vnictest.ConnectByNumber(t, x, y, nil)
					begin(t, y, "recv nak "+word)
					y.Recv(0, 0, 64)
					y.Recv(1, 0, 64)
					x.Send(1, 0, 64)
					x.WantSend("before", is(1, ok))
					y.WantRecv("before", is(0, ok))
					synctest.Wait()
					post(x, y)
					x.WantSend("refused", is(2, st))
				})
			})
		}
	}
}

// TestKeys: a key that has ended under use fails what uses it, here and at the peer, and what is
// left of its region is deregistered as ever.
func TestKeys(t *testing.T) {
	onCards(t, func(t *testing.T, _ string, x, y *vnictest.Peer) {
		begin(t, x, "send invalidate after 1 count 1")
		y.Recv(1, 0, 64)
		y.Recv(2, 0, 64)
		x.Send(1, 0, 64)
		x.WantSend("before", is(1, ok))
		x.Send(2, 0, 64)
		x.WantSend("without its key", is(2, rdma.WCLocProt))
		if err := x.MR.Close(); err != nil {
			t.Error(err)
		}
	})
	onCards(t, func(t *testing.T, kind string, x, y *vnictest.Peer) {
		if kind == "loop" {
			return // both sides' keys are of one device
		}
		x.Read(1, 0, 64, y, 0)
		x.WantSend("before", is(1, ok))
		vnictest.Fault(t, y.Ctx.Device(), 1, "device invalidate")
		x.Read(2, 0, 64, y, 0)
		x.WantSend("without the peer's key", is(2, rdma.WCRemAccess))
	})
}

// TestCQError: the completion queue is over, as if it had overrun, and its queue pairs with it.
func TestCQError(t *testing.T) {
	for _, words := range []string{"send cq_err", "device cq_err"} {
		onCards(t, func(t *testing.T, _ string, x, y *vnictest.Peer) {
			if words == "device cq_err" {
				vnictest.Fault(t, x.Ctx.Device(), 1, words)
			} else {
				begin(t, x, words)
				y.Recv(1, 0, 64)
				x.Send(1, 0, 64)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if ev, err := x.Ctx.NextAsyncEvent(ctx); err != nil || ev.Type != rdma.EventCQErr {
				t.Fatalf("%+v, %v", ev, err)
			}
			synctest.Wait()
			if s := x.QP.State(); s != rdma.QPError {
				t.Errorf("the QP is %v", s)
			}
		})
	}
}

// TestDevice: a port that is down says so for its time, a GID changes, and a device that fails has
// its queue pairs in error.
func TestDevice(t *testing.T) {
	onCards(t, func(t *testing.T, _ string, x, y *vnictest.Peer) {
		d := x.Ctx.Device()
		event := func(want rdma.AsyncEventType, after time.Duration) {
			t.Helper()
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for {
				ev, err := x.Ctx.NextAsyncEvent(ctx)
				if err != nil {
					t.Fatalf("%v: %v", want, err)
				}
				if ev.Type == want {
					break
				}
			}
			if took := time.Since(began); took != after {
				t.Errorf("%v after %v, want %v", want, took, after)
			}
		}
		s := vnictest.Fault(t, d, 1, "device port_down at 2s for 3s", "device gid_change at 10s",
			"device fatal at 20s")
		event(rdma.EventPortErr, 2*time.Second)
		if d.PortActive() {
			t.Error("the port is active")
		}
		d.SetPort(true)
		event(rdma.EventPortActive, 3*time.Second)
		event(rdma.EventGIDChange, 5*time.Second)
		y.Recv(1, 0, 64)
		x.Recv(2, 0, 64)
		x.Send(1, 0, 64)
		x.WantSend("before", is(1, ok))
		event(rdma.EventDeviceFatal, 10*time.Second)
		x.WantRecv("flushed", is(2, rdma.WCFlush))
		n := 0
		for range s.Rows() {
			n++
		}
		if n != 3 {
			t.Errorf("%d faults", n)
		}
		held := vnictest.Fault(t, d, 1, "device port_down")
		if d.PortActive() {
			t.Error("the port is active")
		}
		if err := held.End(""); err != nil || !d.PortActive() {
			t.Error("the port is down when the fault is over", err)
		}
	})
}

// TestTwoPortsDown: of two faults that have the port down each lasts as long as it was asked to, in
// whatever order they end.
func TestTwoPortsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := vnictest.Pair(t)
		ctx := vnictest.Open(t, d, vnic.ContextConfig{})
		vnictest.Fault(t, d, 1, "device port_down for 3s", "device port_down for 10s")
		other := vnictest.Fault(t, d, 1, "device port_down at 5s for 7s")
		began := time.Now()
		event := func(want rdma.AsyncEventType, at time.Duration) {
			t.Helper()
			in, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ev, err := ctx.NextAsyncEvent(in)
			if is := ev.Time.Sub(began); err != nil || ev.Type != want || is != at {
				t.Errorf("%v, %v after %v, want %v after %v", ev.Type, err, is, want, at)
			}
		}
		event(rdma.EventPortErr, 0)
		time.Sleep(5 * time.Second)
		if d.PortActive() {
			t.Error("the port is active, and is to be down for 5 s more")
		}
		time.Sleep(6 * time.Second)
		if d.PortActive() {
			t.Error("the port is active, and is to be down for 1 s more")
		}
		if err := other.End(""); err != nil {
			t.Fatal(err)
		}
		event(rdma.EventPortActive, 11*time.Second)
		if time.Sleep(time.Hour); !d.PortActive() {
			t.Error("the port is down when all is over")
		}
	})
}

// errRejected stands for an error of the peer's program.
var errRejected = errors.New("rejected")

// TestConnect: a connection comes to what was said, and the next one to what it should.
func TestConnect(t *testing.T) {
	for words, want := range map[string]struct {
		is   error
		roce int32
	}{
		"reject": {errRejected, 28}, "refused": {syscall.ECONNREFUSED, 8},
		"stale": {syscall.ECONNRESET, 10}, "timeout": {syscall.ETIMEDOUT, 0},
		"unreachable": {syscall.EHOSTUNREACH, 0}, "error": {syscall.ECONNABORTED, 0},
	} {
		t.Run(words, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := vnictest.Pair(t)
				x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{})
				y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{})
				vnictest.Fault(t, a, 1, "connect "+words+" count 1")
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				l, err := y.Ctx.Listen(netip.MustParseAddrPort("10.0.0.2:7"), 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := x.Ctx.Connect(ctx, x.QP, l.Addr(), rdma.ConnParam{}); !errors.Is(err, want.is) &&
					!(want.is == errRejected && errors.As(err, new(*rdma.RejectedError))) {
					t.Errorf("%v, want %v", err, want.is)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				if err := x.QP.ModifyState(rdma.QPIdle); err != nil {
					t.Fatal(err)
				}
				vnictest.Connect(t, x, y)
				y.Recv(1, 0, 8)
				x.Send(1, 0, 8)
				x.WantSend("the next one", is(1, ok))
			})
			synctest.Test(t, func(t *testing.T) {
				if want.roce == 0 {
					return // as on iWARP
				}
				a, _ := vnictest.Pair(t, vnictest.RoCE)
				c := vnictest.Open(t, a, vnic.ContextConfig{})
				vnictest.Fault(t, a, 1, "connect "+words)
				events := make(chan vnic.CMEvent, 8)
				id, err := c.NewCMID(func(ev vnic.CMEvent) { events <- ev })
				if err != nil {
					t.Fatal(err)
				}
				defer id.Close()
				to := netip.MustParseAddrPort("10.0.0.2:7")
				if err := id.ResolveAddr(netip.Addr{}, to, time.Second); err != nil {
					t.Fatal(err)
				}
				<-events
				if err := id.ResolveRoute(time.Second); err != nil {
					t.Fatal(err)
				}
				<-events
				p := vnictest.NewPeer(t, c, vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.RC}})
				if err := id.Connect(p.QP, rdma.ConnParam{}); err != nil {
					t.Fatal(err)
				}
				if ev := <-events; ev.Type != vnic.CMRejected || ev.Status != want.roce {
					t.Errorf("%v, status %d", ev.Type, ev.Status)
				}
			})
		})
	}
}

// TestDoorbells: a request whose doorbell is late is seen then, one whose doorbell is lost with the
// next one, in their order; and when the fault or the connection is over.
func TestDoorbells(t *testing.T) {
	onCards(t, func(t *testing.T, _ string, x, y *vnictest.Peer) {
		s := vnictest.Fault(t, x.Ctx.Device(), 1, fmt.Sprintf("/%d doorbell late 5s after 1 count 1",
			x.QP.Num()))
		synctest.Wait()
		x.Write(1, 0, 8, y, 0)
		x.WantSend("in time", is(1, ok))
		began := time.Now()
		x.Write(2, 0, 8, y, 0)
		x.Write(3, 0, 8, y, 0)
		synctest.Wait()
		x.WantNone("before its time")
		x.WantSend("late", is(2, ok), is(3, ok))
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("late by %v", d)
		}
		if err := s.End(""); err != nil {
			t.Fatal(err)
		}

		s = vnictest.Fault(t, x.Ctx.Device(), 1, fmt.Sprintf("/%d doorbell lost", x.QP.Num()))
		synctest.Wait()
		x.Post(rdma.SendWR{ID: 4, Op: rdma.OpWrite, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
			Flags: rdma.Inline, Inline: []byte("lost")}, 0, 0)
		time.Sleep(time.Hour)
		x.WantNone("of what was lost")
		x.Write(5, 8, 8, y, 8)
		x.WantSend("with the next one", is(4, ok), is(5, ok))
		synctest.Wait()
		if got := string(y.Buf[:4]); got != "lost" {
			t.Errorf("written %q", got)
		}
		x.Write(6, 0, 8, y, 0)
		synctest.Wait()
		if err := s.End(""); err != nil {
			t.Fatal(err)
		}
		x.WantSend("when the fault is over", is(6, ok))

		vnictest.Fault(t, x.Ctx.Device(), 1, fmt.Sprintf("/%d doorbell lost", x.QP.Num()))
		synctest.Wait()
		x.Write(7, 0, 8, y, 0)
		synctest.Wait()
		if err := x.QP.ModifyState(rdma.QPError); err != nil {
			t.Fatal(err)
		}
		x.WantSend("when the connection is over", is(7, rdma.WCFlush))
	})
}
