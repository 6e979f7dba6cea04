package vnic_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A collecting is two queue pairs of RoCE, of which y has its memory, m, by the calls of h.
type collecting struct {
	x, y *vnictest.Peer
	h    *failing
	m    *vnic.MR
}

// A failing fails the next call that writes, if it is told to.
type failing struct {
	hanging
	fails atomic.Bool
}

func (m *failing) WriteAt(p []byte, off int64) (int, error) {
	if m.fails.Swap(false) {
		return 0, errors.New("no memory")
	}
	return m.hanging.WriteAt(p, off)
}

// collectN is the length of the messages of a collecting: many packets, and less than is collected.
const collectN = 60_000

func newCollecting(t *testing.T, typ rdma.QPType, l vnictest.RoCELink) *collecting {
	f := newFabric(t, l)
	if err := f.b.AllowBlocking(); err != nil {
		t.Fatal(err)
	}
	c := &collecting{h: &failing{hanging: hanging{b: make([]byte, collectN),
		release: make(chan struct{})}}}
	qp := rdma.QPConfig{Type: typ}
	c.x = vnictest.NewPeer(t, f.a, vnictest.PeerConfig{Buffer: collectN, QP: qp})
	c.y = vnictest.NewPeer(t, f.b, vnictest.PeerConfig{QP: qp})
	var err error
	if c.m, err = c.y.PD.RegisterRegion(vnic.Region{Mem: c.h}, 0x7000_0000, collectN,
		vnictest.Full); err != nil {
		t.Fatal(err)
	}
	vnictest.ConnectByNumber(t, c.x, c.y, func(a *rdma.QPAttr) { a.PathMTU = rdma.MTU1024 })
	fill(c.x.Buf, 1)
	return c
}

// post posts the message that puts x's octets into y's memory: a Write or a Send of x, or a Read of
// y.
func (c *collecting) post(t *testing.T, op rdma.Opcode) {
	t.Helper()
	all := []rdma.SGE{{Addr: c.m.Addr(), Length: collectN, LKey: c.m.LKey()}}
	if op == rdma.OpRead {
		c.y.Post(rdma.SendWR{ID: 1, Op: op, SGEs: all, RemoteAddr: c.x.MR.Addr(),
			RKey: c.x.MR.RKey()}, 0, 0)
		return
	}
	if err := c.y.QP.PostRecv(&rdma.RecvWR{ID: 2, SGEs: all}); err != nil {
		t.Fatal(err)
	}
	c.x.Post(rdma.SendWR{ID: 1, Op: op, RemoteAddr: c.m.Addr(), RKey: c.m.RKey()}, 0, collectN)
}

// hang has y be in the midst of a Write, 9, until goOn: all that comes meanwhile is there then.
func (c *collecting) hang() {
	c.h.hang.Store(true)
	first := rdma.SendWR{ID: 9, Op: rdma.OpWrite, RemoteAddr: c.m.Addr(), RKey: c.m.RKey()}
	c.x.Post(first, 0, 8)
	synctest.Wait()
}

func (c *collecting) goOn() {
	c.h.hang.Store(false)
	close(c.h.release)
}

var collected = []rdma.Opcode{rdma.OpWrite, rdma.OpSend, rdma.OpRead}

// Packets that have come one behind the other go into memory that is reached by calls by one call,
// and not by one each. ROCE-128.
func TestRCCollects(t *testing.T) {
	for _, op := range collected {
		t.Run(op.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCollecting(t, rdma.RC, vnictest.RoCELink{})
				c.hang()
				c.post(t, op)
				synctest.Wait()
				before := c.h.calls.Load()
				c.goOn()
				if op == rdma.OpRead {
					c.x.WantSend("written", is(9, ok))
					c.y.WantSend("read", is(1, ok))
				} else {
					c.x.WantSend("written", is(9, ok), is(1, ok))
				}
				if n := c.h.calls.Load() - before; n != 1 {
					t.Errorf("%d calls for a message", n)
				}
				if !bytes.Equal(c.h.b, c.x.Buf) {
					t.Error("other octets")
				}
			})
		})
	}
}

// What cannot be placed fails as it does packet for packet, also where the packets before have been
// taken already: nothing is complete that lacks octets.
func TestRCCollectFails(t *testing.T) {
	for name, lost := range map[string]int{"together": 0, "in two parts": 30} {
		for _, op := range collected {
			t.Run(op.String()+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					full := 0
					l := vnictest.RoCELink{Lost: func(ip []byte) bool {
						if len(ip) > 1024 {
							full++
						}
						return len(ip) > 1024 && full == lost
					}}
					c := newCollecting(t, rdma.RC, l)
					c.h.fails.Store(true)
					c.post(t, op)
					switch op {
					case rdma.OpWrite:
						c.x.WantSend("refused", is(1, rdma.WCRemAccess))
						c.y.WantRecv("flushed", is(2, rdma.WCFlush))
					case rdma.OpSend:
						c.x.WantSend("refused", is(1, rdma.WCRemOp))
						c.y.WantRecv("failed", is(2, rdma.WCLocProt))
					default:
						c.y.WantSend("failed", is(1, rdma.WCLocProt))
					}
				})
			})
		}
	}
}

// Of an unreliable connection a message that has lost its end, and whose octets cannot be placed
// either, takes nothing with it: the next one comes whole. ROCE-171, ROCE-173.
func TestUCCollectFails(t *testing.T) {
	for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpSend} {
		t.Run(op.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				c := newCollecting(t, rdma.UC, vnictest.RoCELink{Lost: func(ip []byte) bool {
					n++
					return n == 1+(collectN+1023)/1024 // the end of the first message behind 9
				}})
				c.hang()
				c.post(t, op)
				c.post(t, op)
				c.x.WantSend("gone out", is(9, ok), is(1, ok), is(1, ok))
				synctest.Wait()
				c.h.fails.Store(true)
				c.goOn()
				synctest.Wait()
				if c.h.fails.Load() {
					t.Fatal("nothing of the first message was placed")
				}
				if op == rdma.OpSend {
					c.y.WantRecv("the second", is(2, ok))
				} else if got := c.y.QP.Counted().InWrites; got != 2 {
					t.Errorf("%d Writes have come, not the small one and the second", got)
				}
				if !bytes.Equal(c.h.b, c.x.Buf) {
					t.Error("other octets")
				}
			})
		})
	}
}
