package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/shm/internal/seqpacket"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// maxReplyFDs is the most descriptors that a reply carries (HELLO, CREATE_CHAN).
const maxReplyFDs = 2

// A call is one request, and what becomes of it.
type call struct {
	op       rpc.Op
	what     string // for errors
	req, rep rpc.Message
	fd       int // a descriptor that goes with it; -1: none
	// got is called when the reply has come, or none will, in the order of the calls of all, with no
	// lock of the Client's held; nil: nothing. It must not wait nor call the daemon.
	done func(*call)

	seq  uint32
	sent bool
	fds  []int
	err  error
}

// A waiter is a goroutine with calls of its own in the queue.
type waiter struct {
	pending int // of its calls, guarded by rpcMu
	// wake tells that it is its turn to talk to the daemon (true), or that its calls have been
	// answered; nil: it is its turn.
	wake chan bool
}

// A queued call is one that waits to be sent.
type queuedCall struct {
	*call
	w *waiter
}

// rpc sends one request with the descriptor fd (-1: none) and takes its reply. The daemon answers
// without waiting for the network. A refusal is a *CallError. The descriptors that come with a
// success belong to the caller: Op.Gives says how many.
func (c *Client) rpc(op rpc.Op, what string, req, rep rpc.Message, fd int) (fds []int, err error) {
	return c.rpcWithin(context.Background(), op, what, req, rep, fd)
}

// rpcWithin is rpc that returns when ctx ends, if there is no reply by then. Descriptors that come
// later are closed; it is for what gives nothing else that would have to be given back.
func (c *Client) rpcWithin(ctx context.Context, op rpc.Op, what string, req, rep rpc.Message,
	fd int) (fds []int, err error) {
	k := &call{op: op, what: what, req: req, rep: rep, fd: fd}
	if err := c.within(ctx, func() { osmem.CloseFDs(k.fds) }, k); err != nil {
		return nil, err
	}
	if errors.Is(k.err, errNoDescriptors) {
		if op, handle, ok := made(rep); ok {
			_ = c.destroy(op, what, handle) // the session's end does it too
		}
	}
	return k.fds, k.err
}

// made names the object that rep says was made, and the call that destroys it, if descriptors come
// with it.
func made(rep rpc.Message) (destroy rpc.Op, handle uint32, ok bool) {
	switch r := rep.(type) {
	case *rpc.CtxOpenReply:
		return rpc.OpCtxClose, r.Ctx, true
	case *rpc.CreateChanReply:
		return rpc.OpDestroyChan, r.Chan, true
	case *rpc.CMCreateChanReply:
		return rpc.OpCMDestroyChan, r.Chan, true
	case *rpc.CreateCQReply:
		return rpc.OpDestroyCQ, r.CQ, true
	case *rpc.CreateQPReply:
		return rpc.OpDestroyQP, r.QP, true
	case *rpc.CreateSRQReply:
		return rpc.OpDestroySRQ, r.SRQ, true
	}
	return 0, 0, false
}

// rpcs makes calls in their order. Goroutines that call at the same time take turns at talking to
// the daemon, and who does talks for all: what a call costs is waking who waits at the other end.
func (c *Client) rpcs(calls ...*call) { c.finish(c.enqueue(calls)) }

// begin makes calls in their order, ahead of those that begin later, without waiting for the
// daemon. What it returns is closed when all have been answered; until then they are not the
// caller's.
func (c *Client) begin(calls ...*call) <-chan struct{} {
	w := c.enqueue(calls)
	answered := make(chan struct{})
	go func() {
		c.finish(w)
		close(answered)
	}()
	return answered
}

// within makes calls as rpcs does, and returns ctx's error if that ends before they have been
// answered. They are made all the same then: undo is called (nil: nothing is), on a goroutine of
// its own, when they have been.
func (c *Client) within(ctx context.Context, undo func(), calls ...*call) error {
	if ctx.Done() == nil {
		c.rpcs(calls...)
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	answered := c.begin(calls...)
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
	}
	if undo != nil {
		go func() {
			<-answered
			undo()
		}()
	}
	return ctx.Err()
}

// enqueue puts calls behind those of others. Who has done so must finish them.
func (c *Client) enqueue(calls []*call) *waiter {
	w := &waiter{pending: len(calls)}
	c.rpcMu.Lock()
	defer c.rpcMu.Unlock()
	for _, k := range calls {
		c.queue = append(c.queue, queuedCall{k, w})
	}
	if c.talking {
		w.wake = make(chan bool, 1)
	}
	c.talking = true
	return w
}

// finish returns when the calls of w have been answered. It talks to the daemon if it is its turn.
func (c *Client) finish(w *waiter) {
	if w.wake != nil && !<-w.wake {
		return
	}
	c.rpcMu.Lock()
	for w.pending > 0 {
		n := min(len(c.queue), seqpacket.MaxOutstanding)
		some := append(c.batch[:0], c.queue[:n]...)
		c.queue = slices.Delete(c.queue, 0, n)
		c.rpcMu.Unlock()
		c.exchange(some)
		c.rpcMu.Lock()
		for _, k := range some {
			if k.w.pending--; k.w.pending == 0 && k.w != w {
				k.w.wake <- false
			}
		}
		clear(some)
	}
	if len(c.queue) > 0 {
		c.queue[0].w.wake <- true
	} else {
		c.talking = false
	}
	c.rpcMu.Unlock()
}

// exchange sends calls and takes their replies. Who calls it is the only one who talks to the
// daemon.
func (c *Client) exchange(calls []queuedCall) {
	for _, k := range calls {
		if k.err = c.gone(); k.err == nil {
			k.err = c.request(k.call)
			k.sent = k.err == nil
		}
	}
	for _, k := range calls {
		if k.sent {
			k.fds, k.err = c.reply(k.call)
		}
		if k.done != nil {
			k.done(k.call)
		}
	}
}

// request sends the request of k.
func (c *Client) request(k *call) error {
	c.seq++
	k.seq = c.seq
	c.out = rpc.AppendMessage(c.out[:0], rpc.Header{Op: k.op, Seq: k.seq}, k.req)
	var rights []byte
	if k.fd >= 0 {
		rights = syscall.UnixRights(k.fd)
	}
	if _, _, err := c.conn.WriteMsgUnix(c.out, rights, nil); err != nil {
		return c.lost(err)
	}
	return nil
}

// reply takes the reply to k, which is the oldest request under way.
func (c *Client) reply(k *call) (fds []int, err error) {
	if err := c.gone(); err != nil {
		return nil, err
	}
	n, oobn, flags, _, err := c.conn.ReadMsgUnix(c.in[:], c.oob[:])
	fds, fdErr := seqpacket.ReceivedFDs(c.oob[:oobn])
	defer func() {
		if err != nil {
			osmem.CloseFDs(fds)
			fds = nil
		}
	}()
	if err != nil || n == 0 {
		return fds, c.lost(err)
	}
	// The kernel drops the descriptors that this process has no room for, and says so.
	noRoom := flags&syscall.MSG_CTRUNC != 0 && len(fds) < k.op.Gives()
	if fdErr != nil || len(fds) > maxReplyFDs || flags&syscall.MSG_TRUNC != 0 ||
		flags&syscall.MSG_CTRUNC != 0 && !noRoom {
		return fds, c.die(errCorrupt("a reply to %v too long or with odd ancillary data", k.op))
	}
	h, why, err := decodeReply(c.in[:n], k.op, k.seq, k.rep)
	if err != nil {
		return fds, c.die(err)
	}
	if h.Status != 0 {
		if len(fds) != 0 || noRoom {
			return fds, c.die(errCorrupt("a refusal of %v with descriptors", k.op))
		}
		return fds, &CallError{Op: k.what, Errno: syscall.Errno(-h.Status), Why: why}
	}
	if noRoom {
		return fds, fmt.Errorf("shm: %s: %w", k.what, errNoDescriptors)
	}
	if len(fds) != k.op.Gives() {
		return fds, c.die(errCorrupt("a reply to %v with %d descriptors, want %d", k.op, len(fds),
			k.op.Gives()))
	}
	return fds, nil
}

// decodeReply takes apart the reply msg to the request op and seq. rep is filled on success, and
// where the daemon has another version; why is what else a refusal says.
func decodeReply(msg []byte, op rpc.Op, seq uint32, rep rpc.Message) (h rpc.Header, why string,
	err error) {
	h, body, err := rpc.ParseMessage(msg)
	if err != nil {
		return h, "", errCorrupt("reply to %v: %v", op, err)
	}
	if h.Op != op || h.Seq != seq {
		return h, "", errCorrupt("reply to %v (seq %d) where that to %v (seq %d) was due", h.Op,
			h.Seq, op, seq)
	}
	if h.Status > 0 || h.Status < -4095 {
		return h, "", errCorrupt("reply to %v with status %d", op, h.Status)
	}
	var refusal rpc.Refusal
	otherVersion := op == rpc.OpHello && h.Status == -int32(syscall.EPROTONOSUPPORT)
	if h.Status != 0 && !otherVersion {
		rep = &refusal
	}
	if err := rpc.Decode(body, rep); err != nil {
		return h, "", errCorrupt("reply to %v: %v", op, err)
	}
	return h, printable(rpc.CString(refusal.Why[:])), nil
}

// printable is s without what a terminal would obey.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}

// lost ends the session because the socket failed, and returns why.
func (c *Client) lost(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return c.die(errGone) // EOF, or closed by ourselves
	}
	return c.die(goneBecause(fmt.Errorf("shm: control socket: %w", err)))
}

// call is rpc without descriptors, and waits for what the daemon looks for on the network.
func (c *Client) call(op rpc.Op, what string, req, rep rpc.Message) error {
	return untilKnown(what, func() error { return c.try(op, what, req, rep) })
}

const (
	// askAgain is how long others have their turn before the daemon is asked once more whether it has
	// found what it looks for.
	askAgain = 2 * time.Millisecond
	// askFor is how long it is asked: it looks for a peer for 10 s at most, but many that are looked
	// for have to wait for their turn.
	askFor = 30 * time.Second
)

// untilKnown calls try until the daemon has found what it looks for, ETIMEDOUT: for too long.
func untilKnown(what string, try func() error) error {
	err := try()
	if !errors.Is(err, syscall.EINPROGRESS) {
		return err
	}
	for end := time.Now().Add(askFor); time.Now().Before(end); {
		time.Sleep(askAgain)
		if err = try(); !errors.Is(err, syscall.EINPROGRESS) {
			return err
		}
	}
	return &CallError{Op: what, Errno: syscall.ETIMEDOUT}
}

// try is rpc without descriptors. EINPROGRESS: the daemon looks for something on the network.
func (c *Client) try(op rpc.Op, what string, req, rep rpc.Message) error {
	_, err := c.rpc(op, what, req, rep, -1)
	return err
}

// callHandle asks for something to be done to one object; the reply is a status.
func (c *Client) callHandle(op rpc.Op, what string, handle uint32) error {
	return c.call(op, what, &rpc.HandleRequest{Handle: handle}, &rpc.Empty{})
}

// callReply asks one object for something.
func (c *Client) callReply(op rpc.Op, what string, handle uint32, rep rpc.Message) error {
	return c.call(op, what, &rpc.HandleRequest{Handle: handle}, rep)
}

// destroy is callHandle for the end of an object: what a session that is over held has gone
// already.
func (c *Client) destroy(op rpc.Op, what string, handle uint32) error {
	var rep rpc.DestroyReply
	err := c.call(op, what, &rpc.HandleRequest{Handle: handle}, &rep)
	if c.gone() != nil {
		return nil
	}
	return err
}
