package vnic_test

import (
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/link/linktest"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/queue"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// Every link passes the same list.
func TestLinks(t *testing.T) {
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			linktest.Run(t, func(t *testing.T) (x, y *vnictest.Peer) {
				e := newEnv(t, p)
				with := vnictest.PeerConfig{Param: rdma.ConnParam{Extensions: true}}
				return e.pair(with, with)
			})
		})
	}
	// A transport that package vnic does not know.
	t.Run("courier", func(t *testing.T) {
		linktest.Run(t, func(t *testing.T) (x, y *vnictest.Peer) {
			a, b := vnictest.Pair(t)
			x = vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{})
			y = vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{})
			vnic.Join(x.QP, y.QP, newCouriers)
			return x, y
		})
	})
}

// Those of RoCE pass a list of their own: packets in memory, and copies on one device and on two.
func TestRoCELinks(t *testing.T) {
	for _, p := range []struct {
		name    string
		devices int
		beside  *vnic.Beside
	}{{"packets", 2, nil}, {"one device", 1, nil}, {"beside", 2, new(vnic.Beside)}} {
		t.Run(p.name, func(t *testing.T) {
			linktest.RunRoCE(t, func(t *testing.T) (x, y *vnictest.Peer) {
				n := vnictest.NewNet()
				n.Beside = p.beside
				c, d := n.Pair(t, vnictest.RoCE)
				if p.devices == 1 {
					d = c
				}
				x = vnictest.NewPeer(t, vnictest.Open(t, c, vnic.ContextConfig{}), vnictest.PeerConfig{})
				y = vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}), vnictest.PeerConfig{})
				vnictest.ConnectByNumber(t, x, y, nil)
				return x, y
			})
		})
	}
}

// A courier is a link that carries whole messages, as parcels, from one QP to another.
type courier struct {
	link.Basic
	qp   link.QP
	work *wqe.Requests
	peer *courier
	src  wqe.Source
	hold mem.Hold

	mu sync.Mutex
	in []parcel // guarded by mu

	reads            int // under way
	terminated, over bool
	ended            bool // the peer has been told
}

// inboxLen is how many parcels wait for a QP at most: then its peer waits.
const inboxLen = 4

type parcelKind int

const (
	carriesRequest parcelKind = iota
	carriesAnswer
	carriesTerminate
	carriesEnd
	carriesReset
)

type parcel struct {
	kind  parcelKind
	token uint32 // of a request that is answered, and of a Terminate
	wr    rdma.SendWR
	word  iwarp.Atomic
	data  []byte
	n     uint32 // that a Read wants
	old   uint64
	code  iwarp.TermCode
}

func newCouriers(a, b link.QP) (x, y link.Link) {
	c, d := &courier{qp: a, work: a.Work()}, &courier{qp: b, work: b.Work()}
	c.peer, d.peer = d, c
	return c, d
}

func (c *courier) send(p parcel) {
	c.peer.mu.Lock()
	c.peer.in = append(c.peer.in, p)
	c.peer.mu.Unlock()
	c.peer.qp.Wake()
}

// first is the parcel that has waited longest.
func (c *courier) first() (p parcel, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.in) == 0 {
		return p, false
	}
	return c.in[0], true
}

func (c *courier) drop() {
	c.mu.Lock()
	c.in = c.in[1:]
	c.mu.Unlock()
	c.peer.qp.Wake()
}

func (c *courier) room() bool {
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	return len(c.peer.in) < inboxLen
}

func (c *courier) Open() { c.qp.Wake() }

func (c *courier) Step() (moved int, more bool) {
	c.step()
	return 0, false
}

func (c *courier) step() (more bool) {
	for !c.over {
		p, ok := c.first()
		if !ok || !c.receive(&p) {
			break
		}
		if !c.over {
			c.drop()
		}
	}
	for !c.over && c.qp.State() == rdma.QPRTS && c.room() {
		e := c.work.Next()
		if e == nil || wqe.IsAnswered(e.WR.Op) && c.reads >= int(c.qp.Param().ORD) {
			return false
		}
		ok, err := c.work.Ready(e)
		switch {
		case err != nil:
			c.qp.Fail(err, link.ByQP)
			return false
		case !ok && !e.Done():
			return false
		case ok:
			c.request(e)
		}
	}
	return false
}

func (c *courier) request(e *wqe.Request) {
	p := parcel{token: c.work.NextToken(), wr: e.WR, n: e.Total}
	switch {
	case queue.IsAtomic(e.WR.Op):
		p.word = e.Atomic()
	case e.WR.Op != rdma.OpRead:
		p.data = make([]byte, e.Total)
		e.ReadBy(&c.src)
		err := e.CopyOut(p.data, 0)
		c.src.Hold.Drop()
		if err != nil {
			c.qp.Fail(err.(*iwarp.LocalError), link.ByQP)
			return
		}
	}
	c.work.Posted(e)
	c.send(p)
	if wqe.IsAnswered(e.WR.Op) {
		c.reads++
		return
	}
	c.work.Finish(e)
	c.work.Retire()
}

// receive deals with p; false: it has to wait.
func (c *courier) receive(p *parcel) bool {
	defer c.hold.Drop()
	rts := c.qp.State() == rdma.QPRTS
	switch p.kind {
	case carriesEnd:
		c.qp.EOF()
	case carriesReset:
		c.qp.Lost(link.ErrPeerClosed)
	case carriesTerminate:
		var culprit *wqe.Request
		for e := range c.work.Answered() {
			if e == c.work.ByToken(p.token) {
				culprit = e
			}
		}
		c.qp.PeerTerminated(p.code, culprit)
	case carriesAnswer:
		if rts {
			e := c.work.ByToken(p.token)
			err := e.List.CopyIn(&c.hold, p.data, 0)
			if queue.IsAtomic(e.WR.Op) {
				err = e.PutOld(&c.hold, p.old)
			}
			if err != nil {
				c.fail(p, &iwarp.LocalError{Cause: iwarp.TermDDPCatastrophic, Err: err})
				return true
			}
			c.reads--
			c.work.Finish(e)
			c.work.Retire()
		}
	case carriesRequest:
		if rts {
			done, err := c.serve(p)
			if err != nil {
				c.fail(p, err.(*iwarp.LocalError))
			}
			return done
		}
	}
	return true
}

// serve does what the peer asks for; false: it has to wait for a receive.
func (c *courier) serve(p *parcel) (done bool, err error) {
	wr, memory := &p.wr, &c.work.Memory
	n := uint32(len(p.data))
	switch {
	case wr.Op == rdma.OpRead:
		data := make([]byte, p.n)
		if p.n > 0 {
			m, err := memory.Find(mem.PeerRead, wr.RKey, wr.RemoteAddr, p.n)
			if err != nil {
				return true, err
			}
			if err := c.hold.Read(m, data, wr.RemoteAddr, 0); err != nil {
				return true, mem.PeerRead.Gone(m, err)
			}
		}
		c.send(parcel{kind: carriesAnswer, token: p.token, data: data})
	case queue.IsAtomic(wr.Op):
		old, err := memory.Atomic(&p.word)
		if err != nil {
			return true, err
		}
		c.send(parcel{kind: carriesAnswer, token: p.token, old: old})
	case wr.Op == rdma.OpWrite && n > 0:
		m, err := memory.Find(mem.PeerWrite, wr.RKey, wr.RemoteAddr, n)
		if err != nil {
			return true, err
		}
		if err := c.hold.Write(m, p.data, wr.RemoteAddr, true); err != nil {
			return true, mem.PeerWrite.Gone(m, err)
		}
	case wqe.IsSend(wr.Op):
		size, ok := c.work.Recv.Begin()
		if !ok {
			c.qp.AwaitReceive()
			return false, nil
		}
		c.qp.GotReceive()
		if n > size {
			return true, &iwarp.LocalError{Cause: iwarp.TermMessageTooLong, Err: link.ErrTooLong}
		}
		if err := c.work.Recv.Place(&c.hold, 0, p.data); err != nil {
			return true, err
		}
		return true, c.work.Recv.End(iwarp.Received{
			Length: n, Solicited: wr.Flags&rdma.Solicited != 0, Invalidate: wr.Op == rdma.OpSendInv,
			STag: iwarp.STag(wr.InvKey), Immediate: wqe.IsImmediate(wr.Op), Data: uint64(wr.Imm) << 32,
		})
	}
	return true, nil
}

func (c *courier) fail(p *parcel, err *iwarp.LocalError) {
	c.qp.Fail(err, link.Refused)
	c.terminated = true
	c.send(parcel{kind: carriesTerminate, token: p.token, code: err.Cause})
}

func (c *courier) Idle() bool {
	_, waits := c.first()
	return !waits
}

func (c *courier) Expire() {}

func (c *courier) Terminate(code iwarp.TermCode, err error) {
	c.terminated = true
	c.send(parcel{kind: carriesTerminate, code: code})
}

func (c *courier) Terminated() bool { return c.terminated }

func (c *courier) CloseWrite() {
	if !c.ended {
		c.ended = true
		c.send(parcel{kind: carriesEnd})
	}
}

func (c *courier) Close() {
	c.over = true
	c.CloseWrite()
}

func (c *courier) CloseWithin(time.Duration) { c.Close() }

func (c *courier) Abort() {
	c.over = true
	c.send(parcel{kind: carriesReset})
}
