package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// Both ends say in their private data which lane it is and where its end's memory is.

// A remote is where a peer's memory is.
type remote struct {
	addr uint64
	rkey uint32
}

const (
	helloMagic = 0x76726e62 // "vrnb"
	helloLen   = 20
	// AtOnce is how many connections are being made at a time: fewer than may wait at a listener.
	AtOnce  = 32
	backlog = 128
)

func (l *lane) hello() []byte {
	b := binary.BigEndian.AppendUint32(nil, helloMagic)
	b = binary.BigEndian.AppendUint32(b, uint32(l.n))
	b = binary.BigEndian.AppendUint64(b, l.e.mr.Addr())
	return binary.BigEndian.AppendUint32(b, l.e.mr.RKey())
}

// takeHello finds the lane that b is for, and where the peer's memory is. What follows is padding.
func (e *Local) takeHello(b []byte) (*lane, remote, error) {
	if len(b) < helloLen || binary.BigEndian.Uint32(b) != helloMagic {
		return nil, remote{}, fmt.Errorf("the peer is no vrnic-bench: private data %x", b)
	}
	n := binary.BigEndian.Uint32(b[4:])
	if n >= uint32(len(e.lanes)) {
		return nil, remote{}, fmt.Errorf("the peer's QP %d, where there are %d", n, len(e.lanes))
	}
	return e.lanes[n], remote{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint32(b[16:])}, nil
}

func (l *lane) param() rdma.ConnParam {
	s := l.e.spec
	p := rdma.ConnParam{PrivateData: l.hello(), SCTP: s.SCTP, Extensions: s.Op.extension()}
	if s.NoCRC {
		p.MPA.CRC = rdma.CRCOff
	}
	return p
}

// Listen implements End.
func (e *Local) Listen(addr netip.Addr) (netip.AddrPort, error) {
	var err error
	if e.listen, err = e.dev.Listen(netip.AddrPortFrom(addr, 0), backlog); err != nil {
		return netip.AddrPort{}, e.fail(fmt.Errorf("listen at %v: %w", addr, err))
	}
	return e.listen.Addr(), nil
}

// Accept implements End.
func (e *Local) Accept(ctx context.Context) error {
	defer e.listen.Close()
	g := newGroup()
	for range e.lanes {
		req, err := e.listen.Next(ctx)
		if err != nil {
			g.wait()
			return e.over(both(fmt.Errorf("listen: %w", err), g.err))
		}
		l, there, err := e.takeHello(req.Param().PrivateData)
		if err == nil && l.there != (remote{}) {
			err = fmt.Errorf("two connections for QP %d", l.n)
		}
		if err == nil && e.spec.SCTP && !req.Param().SCTP {
			err = errors.New("a connection over SCTP was asked for, and another one has come")
		}
		if err != nil {
			_ = req.Reject(nil) // the connection is of no use either way
			g.wait()
			return e.over(err)
		}
		l.there = there
		g.do(func() error {
			var err error
			if l.conn, err = req.Accept(ctx, l.qp, l.param()); err != nil {
				return fmt.Errorf("accept: %w", err)
			}
			return l.connected()
		})
	}
	g.wait()
	return e.over(g.err)
}

// Connect implements End.
func (e *Local) Connect(ctx context.Context, to netip.AddrPort) error {
	g := newGroup()
	for _, l := range e.lanes {
		g.do(func() error {
			conn, err := e.dev.Connect(ctx, l.qp, to, l.param())
			if err != nil {
				return fmt.Errorf("connect to %v: %w", to, err)
			}
			l.conn = conn
			there, where, err := e.takeHello(conn.Param().PrivateData)
			if err == nil && there != l {
				err = fmt.Errorf("QP %d is connected to QP %d", l.n, there.n)
			}
			l.there = where
			if err == nil {
				err = l.connected()
			}
			return err
		})
	}
	g.wait()
	return e.over(g.err)
}

// shortestRNR is the code of the shortest time for which one is asked to wait for a receive: 10 us.
const shortestRNR = 1

// connected has a QP of RoCE, whose receives are posted again at once, ask for no longer than it
// has to. The connection manager's choice is 655 ms.
func (l *lane) connected() error {
	if !l.e.spec.RoCE {
		return nil
	}
	err := l.qp.Modify(&rdma.QPAttr{MinRNRTimer: shortestRNR}, rdma.AttrMinRNRTimer)
	if err != nil {
		return fmt.Errorf("QP %d: RNR timer: %w", l.n, err)
	}
	return nil
}

// A group runs functions, AtOnce at a time, and keeps the first error.
type group struct {
	wg    sync.WaitGroup
	slots chan struct{}
	mu    sync.Mutex
	err   error // guarded by mu until wait returns
}

func newGroup() *group { return &group{slots: make(chan struct{}, AtOnce)} }

// do runs f on a goroutine, unless one has failed.
func (g *group) do(f func() error) {
	g.slots <- struct{}{}
	g.mu.Lock()
	failed := g.err != nil
	g.mu.Unlock()
	if failed {
		<-g.slots
		return
	}
	g.wg.Go(func() {
		defer func() { <-g.slots }()
		if err := f(); err != nil {
			g.mu.Lock()
			if g.err == nil || errors.Is(g.err, context.Canceled) {
				g.err = err
			}
			g.mu.Unlock()
		}
	})
}

func (g *group) wait() { g.wg.Wait() }
