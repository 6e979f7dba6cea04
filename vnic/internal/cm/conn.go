package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// The connection calls of rdma.Device, on top of IDs.

// Listen takes connection requests for addr.
func (u *User) Listen(addr netip.AddrPort, backlog int) (rdma.Listener, error) {
	for try := 1; ; try++ {
		l := &listener{wake: make(chan struct{}, 1), done: make(chan struct{})}
		id, err := u.NewID(PortSpaceTCP, l.handle)
		if err != nil {
			return nil, err
		}
		l.id = id
		if err = id.Bind(addr); err == nil {
			err = id.Listen(backlog)
		}
		if err == nil {
			return l, nil
		}
		id.Close()
		if addr.Port() != 0 || !portTaken(err, try) {
			return nil, fmt.Errorf("listen on %v: %w", addr, err)
		}
	}
}

type listener struct {
	id   *ID
	wake chan struct{} // one slot
	done chan struct{}

	mu     sync.Mutex
	reqs   []*connRequest // +checklocks:mu
	closed bool           // +checklocks:mu
}

func (l *listener) handle(ev Event) {
	if ev.Type != ConnectRequest {
		return
	}
	r := &connRequest{id: ev.ID, param: ev.Param}
	ev.ID.SetHandler(nil)
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.reqs = append(l.reqs, r)
	}
	l.mu.Unlock()
	if closed {
		r.id.shut()
		return
	}
	signal(l.wake)
}

func (l *listener) Addr() netip.AddrPort { return l.id.Local() }

func (l *listener) Next(ctx context.Context) (rdma.ConnRequest, error) {
	for {
		l.mu.Lock()
		if len(l.reqs) > 0 {
			r := l.reqs[0]
			l.reqs = l.reqs[1:]
			more := len(l.reqs) > 0
			l.mu.Unlock()
			if more {
				signal(l.wake)
			}
			return r, nil
		}
		l.mu.Unlock()
		select {
		case <-l.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.done:
			return nil, fmt.Errorf("listener on %v: %w", l.Addr(), rdma.ErrClosed)
		case <-l.id.user.stop:
			return nil, fmt.Errorf("listener on %v: %w", l.Addr(), rdma.ErrClosed)
		}
	}
}

func (l *listener) Close() error {
	l.mu.Lock()
	reqs := l.reqs
	closed := l.closed
	l.reqs, l.closed = nil, true
	l.mu.Unlock()
	if closed {
		return nil
	}
	close(l.done)
	err := l.id.Close()
	for _, r := range reqs {
		r.id.Close()
	}
	return err
}

type connRequest struct {
	id    *ID
	param rdma.ConnParam
}

func (r *connRequest) LocalAddr() netip.AddrPort  { return r.id.Local() }
func (r *connRequest) RemoteAddr() netip.AddrPort { return r.id.Remote() }
func (r *connRequest) Param() rdma.ConnParam      { return r.param }

func (r *connRequest) Accept(ctx context.Context, qp rdma.QP, p rdma.ConnParam) (rdma.Conn, error) {
	q, ok := qp.(Connectable)
	if !ok {
		return nil, fmt.Errorf("accept with a QP of another device: %w", rdma.ErrInvalid)
	}
	c := newConn(r.id)
	r.id.SetHandler(c.handle)
	if err := r.id.Accept(q, p); err != nil {
		return nil, err
	}
	return c.wait(ctx)
}

func (r *connRequest) Reject(privateData []byte) error {
	if err := r.id.Reject(privateData); err != nil {
		return err
	}
	return r.id.Close()
}

// Connect connects qp to remote and waits for the peer's answer.
func (u *User) Connect(ctx context.Context, qp rdma.QP, remote netip.AddrPort, p rdma.ConnParam) (
	rdma.Conn, error) {
	q, ok := qp.(Connectable)
	if !ok {
		return nil, fmt.Errorf("connect a QP of another device: %w", rdma.ErrInvalid)
	}
	cn := &conn{up: make(chan error, 1), done: make(chan struct{})}
	id, err := u.NewID(PortSpaceTCP, cn.handle)
	if err != nil {
		return nil, err
	}
	cn.id = id
	dst := netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	from, err := u.m.resolve(PortSpaceTCP, netip.Addr{}, dst)
	if err != nil {
		id.Close()
		return nil, fmt.Errorf("connect to %v: %w", remote, err)
	}
	id.mu.Lock()
	if id.stepLocked(stepResolveAddr) == nil && id.stepLocked(stepAddrResolved) == nil {
		id.local, id.remote = netip.AddrPortFrom(from, 0), dst
		if u.m.cfg.RoCE != nil { // a stream chooses its port itself
			id.choosePortLocked()
		}
	}
	id.mu.Unlock()
	if err := id.Connect(q, p); err != nil {
		id.Close()
		return nil, err
	}
	conn, err := cn.wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", remote, err)
	}
	return conn, nil
}

// A conn is an rdma.Conn.
type conn struct {
	id    *ID
	up    chan error // one slot: how the attempt ended
	done  chan struct{}
	param rdma.ConnParam // set before up

	local, remote netip.AddrPort // set before up

	mu  sync.Mutex
	err error
}

func newConn(id *ID) *conn {
	return &conn{id: id, up: make(chan error, 1), done: make(chan struct{})}
}

func (c *conn) handle(ev Event) {
	switch ev.Type {
	case Established:
		c.param = ev.Param
		c.local, c.remote = c.id.Local(), c.id.Remote()
		c.up <- nil
	case Disconnected:
		c.mu.Lock()
		c.err = ev.Err
		c.mu.Unlock()
		c.id.afterFlush(func() { close(c.done) })
		c.id.shut()
	case TimewaitExit:
	default:
		err := ev.Err
		if err == nil {
			err = errors.New(ev.Type.String())
		}
		c.up <- err
	}
}

// wait waits for the end of the attempt.
func (c *conn) wait(ctx context.Context) (rdma.Conn, error) {
	var err error
	select {
	case err = <-c.up:
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.id.user.stop:
		err = rdma.ErrClosed
	}
	if err != nil {
		select {
		case err = <-c.up: // both at once
		default:
		}
	}
	if err == nil {
		return c, nil
	}
	c.id.Close()
	select {
	case e := <-c.up:
		if e != nil { // else it came about when it was closed already
			err = e
		}
	default:
	}
	return nil, err
}

func (c *conn) LocalAddr() netip.AddrPort  { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort { return c.remote }
func (c *conn) Param() rdma.ConnParam      { return c.param }
func (c *conn) Done() <-chan struct{}      { return c.done }

func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *conn) Disconnect() error {
	err := c.id.Disconnect()
	if err != nil {
		select {
		case <-c.done:
			return nil // it has ended already
		default:
		}
	}
	return err
}
