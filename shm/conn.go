package shm

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
)

// refusedByProgram says whether a REJECTED event is the word of the peer's program. It has the
// status of one that was reset before the peer answered, as with an RNIC in a kernel; a host where
// nothing listens is -ECONNREFUSED.
func refusedByProgram(ev *rpc.CMEvent) bool { return ev.Flags&rpc.EventByProgram != 0 }

// defaultBacklog is how many connection requests wait at a listener if the program does not say.
const defaultBacklog = 128

// A cmListener implements rdma.Listener.
type cmListener struct {
	id     *cmID
	addr   netip.AddrPort
	closed chan struct{}
	once   sync.Once
}

// Listen implements rdma.Device.
func (d *Device) Listen(addr netip.AddrPort, backlog int) (_ rdma.Listener, err error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if !addr.Addr().IsValid() || backlog < 0 {
		return nil, errInvalid("listen on %v with backlog %d", addr, backlog)
	}
	if backlog == 0 {
		backlog = defaultBacklog
	}
	backlog = min(backlog, abi.MaxDepth)
	id, err := d.cm.newID(context.Background(), backlog)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			id.destroy(context.Background())
		}
	}()
	op := fmt.Sprintf("listen on %v", addr)
	if !addr.Addr().IsUnspecified() {
		err = d.checkAddr(addr.Addr())
	}
	if err == nil && (addr.Addr().IsUnspecified() || d.attr.RoCE) {
		// Of this device, not of all that the daemon has, nor of one of iWARP with the same address.
		err = d.setOptions(context.Background(), d.only(id))
	}
	if err != nil {
		return nil, err
	}
	if err := d.c.call(rpc.OpCMBind, op, &rpc.CMBindRequest{ID: id.handle,
		Addr: rpc.MakeSockAddr(addr)}, &rpc.Empty{}); err != nil {
		return nil, err
	}
	if err := d.c.call(rpc.OpCMListen, op, &rpc.CMListenRequest{ID: id.handle,
		Backlog: uint32(backlog)}, &rpc.Empty{}); err != nil {
		return nil, err
	}
	var q rpc.CMQueryReply
	if err := d.c.call(rpc.OpCMQuery, op, &rpc.HandleRequest{Handle: id.handle}, &q); err != nil {
		return nil, err
	}
	return &cmListener{id: id, addr: q.Src.AddrPort(), closed: make(chan struct{})}, nil
}

// checkAddr is an error if a is not an address of the device: the daemon would take it for another
// device's.
func (d *Device) checkAddr(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	for _, p := range d.attr.Addrs {
		if p.Addr() == a {
			return nil
		}
	}
	return fmt.Errorf("shm: %v is no address of %s (it has %v): %w", a, d.attr.Name, d.attr.Addrs,
		rdma.ErrInvalid)
}

// Addr implements rdma.Listener.
func (l *cmListener) Addr() netip.AddrPort { return l.addr }

// Next implements rdma.Listener.
func (l *cmListener) Next(ctx context.Context) (rdma.ConnRequest, error) {
	d := l.id.ch.d
	select {
	case <-l.closed:
		return nil, errClosed("listener")
	default:
	}
	select {
	case r := <-l.id.requests:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, errClosed("listener")
	case <-d.closed:
		return nil, errClosed("device")
	case <-d.c.dead:
		return nil, d.c.gone()
	}
}

// Close implements rdma.Listener.
func (l *cmListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.id.destroy(context.Background()) // no request comes after it
		for {
			select {
			case r := <-l.id.requests:
				r.id.destroy(context.Background())
			default:
				return
			}
		}
	})
	return nil
}

// A connRequest implements rdma.ConnRequest.
type connRequest struct {
	id            *cmID
	local, remote netip.AddrPort
	param         rdma.ConnParam
	answered      atomic.Bool
}

func newConnRequest(id *cmID, ev *rpc.CMEvent) *connRequest {
	return &connRequest{id: id, local: ev.Src.AddrPort(), remote: ev.Dst.AddrPort(),
		param: id.ch.d.connParam(ev)}
}

// LocalAddr, RemoteAddr and Param implement rdma.ConnRequest.
func (r *connRequest) LocalAddr() netip.AddrPort  { return r.local }
func (r *connRequest) RemoteAddr() netip.AddrPort { return r.remote }
func (r *connRequest) Param() rdma.ConnParam      { return r.param }

// Accept implements rdma.ConnRequest.
func (r *connRequest) Accept(ctx context.Context, qp rdma.QP, p rdma.ConnParam) (rdma.Conn, error) {
	d := r.id.ch.d
	req, q, err := d.connectRequest(r.id, qp, &p)
	if err != nil {
		return nil, err
	}
	if !r.answered.CompareAndSwap(false, true) {
		return nil, errInvalid("connection request has been answered")
	}
	op := fmt.Sprintf("accept connection from %v", r.remote)
	return d.establish(ctx, r.id, q, op, &p, func() error {
		accept := &call{op: rpc.OpCMAccept, what: op, req: req, rep: &rpc.Empty{}, fd: -1}
		if err := d.c.within(ctx, nil, accept, d.cm.earlyEventCall()); err != nil {
			return err
		}
		return accept.err
	})
}

// Reject implements rdma.ConnRequest.
func (r *connRequest) Reject(privateData []byte) error {
	req := &rpc.CMRejectRequest{ID: r.id.handle, PrivateLen: uint32(len(privateData))}
	if len(privateData) > rpc.MaxPrivate {
		return errInvalid("%d octets of private data", len(privateData))
	}
	copy(req.Private[:], privateData)
	if !r.answered.CompareAndSwap(false, true) {
		return errInvalid("connection request has been answered")
	}
	err := r.id.ch.d.c.call(rpc.OpCMReject, fmt.Sprintf("reject connection from %v", r.remote), req,
		&rpc.Empty{})
	r.id.destroy(context.Background())
	return err
}

// Connect implements rdma.Device.
func (d *Device) Connect(ctx context.Context, qp rdma.QP, remote netip.AddrPort, p rdma.ConnParam) (
	_ rdma.Conn, err error) {
	if err := d.usable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !remote.Addr().IsValid() || remote.Addr().IsUnspecified() || remote.Port() == 0 {
		return nil, errInvalid("connect to %v", remote)
	}
	id, err := d.cm.newID(ctx, 0)
	if err != nil {
		return nil, err
	}
	req, q, err := d.connectRequest(id, qp, &p)
	if err != nil {
		id.destroy(ctx)
		return nil, err
	}
	op := fmt.Sprintf("connect to %v", remote)
	return d.establish(ctx, id, q, op, &p, func() error {
		return d.resolveAndConnect(ctx, id, remote, op, req)
	})
}

// resolveAndConnect finds the way to remote, from an address of this device, and connects. The
// daemon knows the way when it answers, so that the request to connect goes right behind; it is
// refused if there is none.
func (d *Device) resolveAndConnect(ctx context.Context, id *cmID, remote netip.AddrPort, op string,
	req *rpc.CMConnectRequest) error {
	resolving := fmt.Sprintf("find a way to %v", remote)
	resolve := &call{op: rpc.OpCMResolveAddr, what: resolving, req: &rpc.CMResolveAddrRequest{
		ID: id.handle, TimeoutMS: timeoutMS(ctx), Dst: rpc.MakeSockAddr(remote),
		Src: d.sourceFor(remote.Addr()),
	}, rep: &rpc.Empty{}, fd: -1}
	connect := &call{op: rpc.OpCMConnect, what: op, req: req, rep: &rpc.Empty{}, fd: -1}
	if err := d.c.within(ctx, nil, resolve, connect, d.cm.earlyEventCall()); err != nil {
		return err
	}
	if resolve.err != nil {
		return resolve.err
	}
	if connect.err == nil {
		return nil // there is a way
	}
	if _, err := id.want(ctx, rpc.EvAddrResolved, resolving); err != nil {
		return err // that is why
	}
	return connect.err
}

// sourceFor is the address of this device to reach remote from, so that the daemon does not choose
// another device: the one with the longest prefix that holds remote, else one of the same family.
func (d *Device) sourceFor(remote netip.Addr) rpc.SockAddr {
	remote = remote.Unmap().WithZone("")
	best := netip.Prefix{}
	for _, p := range d.attr.Addrs {
		if p.Addr().Is4() != remote.Is4() {
			continue
		}
		fits, had := p.Contains(remote), best.IsValid() && best.Contains(remote)
		if !best.IsValid() || fits && (!had || p.Bits() > best.Bits()) {
			best = p
		}
	}
	if !best.IsValid() {
		return rpc.SockAddr{}
	}
	return rpc.MakeSockAddr(netip.AddrPortFrom(best.Addr(), 0))
}

// connectRequest makes the request that connects qp, having checked both.
func (d *Device) connectRequest(id *cmID, qp rdma.QP, p *rdma.ConnParam) (*rpc.CMConnectRequest,
	*queuePair, error) {
	q, ok := qp.(*queuePair)
	if !ok || q == nil || q.d != d {
		return nil, nil, errInvalid("QP of another device")
	}
	if p.Protocol > rdma.ROI && !d.attr.RoCE {
		return nil, nil, errInvalid("connect with %v", p.Protocol)
	}
	req := &rpc.CMConnectRequest{ID: id.handle, PD: q.pd.handle, Param: rpc.ConnParam{QPN: q.num}}
	if !req.Param.Set(p) {
		return nil, nil, errInvalid("%d octets of private data", len(p.PrivateData))
	}
	if d.attr.RoCE {
		req.Param.SetRoCE(&p.RoCE)
	}
	return req, q, nil
}

// establish asks for a connection and waits for it. It destroys id if there will be none.
func (d *Device) establish(ctx context.Context, id *cmID, q *queuePair, op string,
	p *rdma.ConnParam, request func() error) (_ rdma.Conn, err error) {
	defer func() {
		if err != nil {
			id.destroy(ctx)
		}
	}()
	options := rpc.ConnOptions{MPA: p.MPA, Extensions: p.Extensions, SCTP: p.SCTP,
		Protocol: p.Protocol, ROI: p.ROI}
	if err := d.setOptions(ctx, options.Requests(id.handle)); err != nil {
		return nil, err
	}
	if err := d.setRoCE(ctx, id, &p.RoCE); err != nil {
		return nil, err
	}
	if err := request(); err != nil {
		return nil, err
	}
	if _, err := id.want(ctx, rpc.EvEstablished, op); err != nil {
		return nil, err
	}
	id.ch.mu.Lock()
	cn := id.conn
	id.ch.mu.Unlock()
	if cn == nil {
		return nil, errClosed("device")
	}
	q.connMu.Lock()
	q.conn = cn
	q.connMu.Unlock()
	q.beginDirect()
	return cn, nil
}

// setOptions sets what is not the default.
func (d *Device) setOptions(ctx context.Context, reqs []*rpc.CMSetOptionRequest) error {
	for _, req := range reqs {
		if _, err := d.c.rpcWithin(ctx, rpc.OpCMSetOption, "set an option of a connection", req,
			&rpc.Empty{}, -1); err != nil {
			return err
		}
	}
	return nil
}

// setRoCE sets what a device of RoCE has as options of an id.
func (d *Device) setRoCE(ctx context.Context, id *cmID, p *rdma.RoCEParam) error {
	if !d.attr.RoCE {
		return nil
	}
	options := rpc.IDOptions{TOS: p.TrafficClass, ACKTimeout: p.ACKTimeout}
	return d.setOptions(ctx, append(d.only(id), options.Requests(id.handle)...))
}

// only has an id mean this device, whatever else has its address.
func (d *Device) only(id *cmID) []*rpc.CMSetOptionRequest {
	o := rpc.ConnOptions{Device: d.index + 1}
	return o.Requests(id.handle)
}

// connParam is what a peer asks for, or what was agreed on.
func (d *Device) connParam(ev *rpc.CMEvent) rdma.ConnParam {
	p := ev.Conn()
	if d.attr.RoCE {
		p.RoCE = ev.Param.RoCE()
	}
	return p
}

// A conn implements rdma.Conn.
type conn struct {
	id            *cmID
	local, remote netip.AddrPort
	param         rdma.ConnParam

	closing atomic.Bool // the QP is being closed here: the end that the daemon reports is that
	once    sync.Once
	err     error // set before done is closed
	done    chan struct{}
}

func newConn(id *cmID, ev *rpc.CMEvent) *conn {
	return &conn{id: id, local: ev.Src.AddrPort(), remote: ev.Dst.AddrPort(),
		param: id.ch.d.connParam(ev),
		done:  make(chan struct{})}
}

// LocalAddr, RemoteAddr and Param implement rdma.Conn.
func (cn *conn) LocalAddr() netip.AddrPort  { return cn.local }
func (cn *conn) RemoteAddr() netip.AddrPort { return cn.remote }
func (cn *conn) Param() rdma.ConnParam      { return cn.param }

// Disconnect implements rdma.Conn.
func (cn *conn) Disconnect() error {
	select {
	case <-cn.done:
		return nil
	default:
	}
	err := cn.id.ch.d.c.callHandle(rpc.OpCMDisconnect, "disconnect", cn.id.handle)
	select {
	case <-cn.done: // it ended meanwhile
		return nil
	default:
		return err
	}
}

// Done implements rdma.Conn. Once it is closed all completions of the QP are in their CQs.
func (cn *conn) Done() <-chan struct{} { return cn.done }

// Err implements rdma.Conn.
func (cn *conn) Err() error {
	select {
	case <-cn.done:
		return cn.err
	default:
		return nil
	}
}

// end closes Done with the cause err, and gives the id back to the daemon on a goroutine of its
// own: it may be called with the channel's lock held.
func (cn *conn) end(err error) {
	cn.once.Do(func() {
		if err == nil && cn.closing.Load() {
			err = errClosed("QP")
		}
		cn.err = err
		close(cn.done)
		go cn.id.destroy(context.Background())
	})
}

// finish is end when no event will tell, and waits for the daemon.
func (cn *conn) finish(err error) {
	cn.end(err)
	cn.id.destroy(context.Background())
}
