package vnic_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/internal/link/stream"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// lastCall is how long a Send waits for a receive when the peer has closed behind it.
const lastCall = 250 * time.Millisecond

// While a Send waits for a receive the end of the connection does not wait, whoever brings it
// about, and it has the cause that it has. RDMAP-075, RDMAP-126, MPA-089.
func TestEndWhileSendWaits(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(x, y *vnictest.Peer) error
		in   time.Duration
		want rdma.QPState // of the end where the Send waits
		err  string       // there
		lost bool         // the Send is flushed where it comes from, if its octets have not left that
	}{
		{"disconnect here", func(_, y *vnictest.Peer) error { return y.Conn.Disconnect() }, 0,
			rdma.QPIdle, "", true},
		{"disconnect by the peer", func(x, _ *vnictest.Peer) error { return x.Conn.Disconnect() },
			lastCall,
			rdma.QPIdle, "the peer closed the connection behind a Send that found no receive", true},
		{"Terminate of the peer", func(x, _ *vnictest.Peer) error {
			return x.QP.ModifyState(rdma.QPTerminate)
		}, 0, rdma.QPError,
			"terminated by the peer: local catastrophic error (layer 0, type 0, code 0xff)", true},
		{"abort here", func(_, y *vnictest.Peer) error { return y.QP.ModifyState(rdma.QPError) }, 0,
			rdma.QPError, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.plain()
				x.Send(1, 0, 10)
				x.Send(2, 0, 5000)
				e.settle()
				begun := time.Now()
				if err := tt.do(x, y); err != nil {
					t.Fatal(err)
				}
				err := y.WantDone(tt.name)
				if d := time.Since(begun); d < tt.in || d > tt.in+stream.LookEvery {
					t.Errorf("over after %v, want %v", d, tt.in)
				}
				if err != nil && err.Error() != tt.err || err == nil && tt.err != "" {
					t.Errorf("it ended with %v, want %q", err, tt.err)
				}
				y.WantState(tt.name, tt.want)
				x.WantDone(tt.name)
				if d := time.Since(begun); d < tt.in || d > tt.in+stream.LookEvery {
					t.Errorf("at the other end after %v, want %v", d, tt.in)
				}
				st := rdma.WCSuccess
				if e.local() && !e.pipe {
					st = flush
				}
				x.WantSend("sent, if there was anything to take it", is(1, st), is(2, st))
			})
		})
	}
}

// Where Sends of both ends wait for receives neither gets rid of its own first: who disconnects is
// waited for no longer than where only its own wait, and if both do nobody waits. RDMAP-104,
// DDP-065.
func TestEndWhileBothWait(t *testing.T) {
	for name, tt := range map[string]struct {
		both bool
		in   time.Duration
	}{
		"one disconnects": {false, lastCall},
		"both disconnect": {true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.plain()
				for id := range uint64(2) {
					x.Send(id, 0, 5000)
					y.Send(id, 0, 5000)
				}
				e.settle()
				begun := time.Now()
				err := x.Conn.Disconnect()
				if tt.both {
					err = errors.Join(err, y.Conn.Disconnect())
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range []*vnictest.Peer{y, x} {
					p.WantDone("over")
					if d := time.Since(begun); d < tt.in || d > tt.in+stream.LookEvery {
						t.Errorf("over after %v, want %v", d, tt.in)
					}
				}
				st := rdma.WCSuccess
				if e.local() && !e.pipe {
					st = flush
				}
				x.WantSend("sent, if there was anything to take it", is(0, st), is(1, st))
				y.WantSend("sent, if there was anything to take it", is(0, st), is(1, st))
			})
		})
	}
}

// Of what a peer asks for behind Sends that a disconnect drops nothing is answered: an answer says
// that the Sends were delivered. RDMAP-091.
func TestNoAnswerBehindDroppedSend(t *testing.T) {
	for _, op := range []rdma.Opcode{rdma.OpRead, rdma.OpFetchAdd} {
		t.Run(op.String(), func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := e.ext()
				x.Send(1, 0, 100)
				x.Post(at(op, 2, y, 64, rdma.AtomicArgs{CompareAdd: 1}), 128, 8)
				e.settle()
				if err := y.Conn.Disconnect(); err != nil {
					t.Fatal(err)
				}
				y.WantDone("in order here")
				x.WantDone("there too")
				st := rdma.WCSuccess
				if e.local() && !e.pipe {
					st = flush
				}
				x.WantSend("no answer", is(1, st), is(2, flush))
				if word(y, 64) != 0 {
					t.Error("the word has changed")
				}
			})
		})
	}
}

// Receives that are posted in time get what the peer has sent before it closed, one after the
// other.
func TestLateReceivesBehindClose(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := e.plain()
		fill(x.Buf[:3000], 7)
		for i := range uint64(3) {
			x.Send(i, int(i)*1000, 1000)
		}
		e.settle()
		if err := x.Conn.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(3) {
			time.Sleep(lastCall - 1)
			y.Recv(i, int(i)*1000, 1000)
			y.WantRecv("it was waiting", is(i, ok))
		}
		if err := y.WantDone("all was received"); err != nil {
			t.Error(err)
		}
		if string(x.Buf[:3000]) != string(y.Buf[:3000]) {
			t.Error("the octets differ")
		}
		if err := x.WantDone("all was received"); err != nil {
			t.Error(err)
		}
	})
}

// sendOf is the DDP segment of a whole Send.
func sendOf(msn iwarp.MSN, n int) []byte {
	return append(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, msn, 0), make([]byte, n)...)
}

// terminateOf is the DDP segment of a Terminate.
func terminateOf(c iwarp.TermCode) []byte {
	return (&iwarp.Terminate{Cause: c}).Append(
		iwarp.AppendUntagged(nil, true, iwarp.OpTerminate, 2, 1, 0))
}

// What a peer does behind a Send that waits, and behind others and Writes that wait with it, is
// noticed at once, wherever TCP has cut the octets and whether or not the memory of the program can
// block. RDMAP-075, RDMAP-126, MPA-089.
func TestPeerEndsBehindSend(t *testing.T) {
	remote := iwarp.TermCode{Layer: iwarp.LayerDDP, Type: 2, Code: 5}
	for _, tt := range []struct {
		name   string
		do     func(p *rawPeer)
		in     time.Duration
		vendor uint32
	}{
		{"RST", func(p *rawPeer) { p.s.Abort() }, 0, 0},
		{"FIN", func(p *rawPeer) { p.s.CloseWrite() }, lastCall, 0},
		{"Terminate", func(p *rawPeer) { p.send(terminateOf(remote)) }, 0, 0x1205},
		{"Terminate, RST", func(p *rawPeer) {
			p.send(terminateOf(remote))
			p.s.Abort()
		}, 0, 0},
		{"Terminate, FIN", func(p *rawPeer) {
			p.send(terminateOf(remote))
			p.s.CloseWrite()
		}, 0, 0x1205},
	} {
		for _, cut := range []int{0, 1, 7} {
			for _, staged := range []bool{false, true} {
				t.Run(tt.name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := vnictest.NewNet()
						n.Link.CutEvery = cut
						c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
						if staged {
							if err := c.AllowBlocking(); err != nil {
								t.Fatal(err)
							}
						}
						p := rawDial(t, n, c, vnictest.PeerConfig{})
						p.y.Recv(1, 0, 100)
						p.y.Post(rdma.SendWR{ID: 9, Op: rdma.OpRead, RemoteAddr: 1, RKey: 1}, 0, 10)
						for msn := range iwarp.MSN(5) {
							p.send(sendOf(msn+1, 100))
							p.send(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 0, 0))
						}
						synctest.Wait()
						p.y.WantRecv("the first one found a receive", is(1, ok))
						tt.do(p)
						time.Sleep(stream.LookEvery)
						synctest.Wait()
						if tt.vendor == 0 && tt.in > 0 {
							p.y.WantState("it waits for a receive still", rdma.QPRTS)
							time.Sleep(tt.in)
							synctest.Wait()
						}
						if tt.vendor != 0 {
							p.s.Close()
							synctest.Wait()
						}
						p.y.WantState("over", rdma.QPError)
						wc := p.y.WantSend("flushed", is(9, flush))
						if tt.vendor != 0 && wc[0].VendorErr != tt.vendor {
							t.Errorf("vendor_err %#x, want %#x", wc[0].VendorErr, tt.vendor)
						}
						if tt.vendor != 0 {
							p.y.WantEvent("a Send was too long, it says", rdma.EventQPReqErr)
						}
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						defer cancel()
						if ev, err := c.NextAsyncEvent(ctx); err == nil {
							t.Errorf("there is an event: %+v", ev)
						}
					})
				})
			}
		}
	}
}

// A Terminate may name the request that it is about by its DDP header: that one is blamed, and what
// else was under way flushes. If it names one that is not under way, the oldest is.
func TestPeerBlames(t *testing.T) {
	header := func(op iwarp.Opcode, msn iwarp.MSN) []byte {
		return iwarp.AppendUntagged(nil, true, op, 0, msn, 0)
	}
	for name, tt := range map[string]struct {
		about []byte
		want  int // the index of the request; -1: none
	}{
		"the Read":   {header(iwarp.OpReadRequest, 1), 0},
		"an atomic":  {header(iwarp.OpAtomicRequest, 2), 1},
		"the last":   {header(iwarp.OpAtomicRequest, 3), 2},
		"not posted": {header(iwarp.OpAtomicRequest, 4), 0},
		"MSN 0":      {header(iwarp.OpAtomicRequest, 0), 0},
		"a Send":     {header(iwarp.OpSend, 2), -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := vnictest.NewNet()
				c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
				p := rawDial(t, n, c, ext)
				for i, op := range []rdma.Opcode{rdma.OpRead, rdma.OpFetchAdd, rdma.OpCompareSwap} {
					p.y.Post(rdma.SendWR{ID: uint64(i), Op: op, RKey: 7, RemoteAddr: 8}, 8*i, 8)
				}
				synctest.Wait()
				term := iwarp.Terminate{Cause: iwarp.TermMisaligned, HasLength: true, Length: 18,
					Header: tt.about}
				p.send(term.Append(iwarp.AppendUntagged(nil, true, iwarp.OpTerminate, 2, 1, 0)))
				want := make([]vnictest.Want, 3)
				for i := range want {
					want[i] = vnictest.Want{ID: uint64(i), Status: rdma.WCFlush}
					if i == tt.want {
						want[i].Status = rdma.WCRemOp
					}
				}
				p.y.WantSend("the peer has ended it", want...)
			})
		})
	}
}
