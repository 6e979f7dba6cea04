package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// maxReplyFDs is the most descriptors that a reply carries (HELLO, CREATE_CHAN).
const maxReplyFDs = 2

// rpc sends one request with the descriptor fd (-1: none) and takes its reply. The daemon answers
// without waiting for the network. A refusal is a *CallError. Exactly nfds descriptors come with a
// success and belong to the caller.
func (c *Client) rpc(op Op, what string, req, rep any, fd, nfds int) (fds []int, err error) {
	if err := c.gone(); err != nil {
		return nil, err
	}
	c.rpcMu.Lock()
	defer c.rpcMu.Unlock()
	c.seq++
	c.out = AppendMessage(c.out[:0], Header{Op: op, Seq: c.seq}, req)
	var rights []byte
	if fd >= 0 {
		rights = syscall.UnixRights(fd)
	}
	if _, _, err := c.conn.WriteMsgUnix(c.out, rights, nil); err != nil {
		return nil, c.lost(err)
	}
	n, oobn, flags, _, err := c.conn.ReadMsgUnix(c.in[:], c.oob[:])
	fds, fdErr := parseFDs(c.oob[:oobn])
	defer func() {
		if err != nil {
			closeFDs(fds)
			fds = nil
		}
	}()
	if err != nil || n == 0 {
		return fds, c.lost(err)
	}
	if fdErr != nil || flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
		return fds, c.die(errCorrupt("a reply to %v too long or with odd ancillary data", op))
	}
	h, err := decodeReply(c.in[:n], op, c.seq, rep)
	if err != nil {
		return fds, c.die(err)
	}
	if h.Status != 0 {
		if len(fds) != 0 {
			return fds, c.die(errCorrupt("a refusal of %v with descriptors", op))
		}
		return fds, &CallError{Op: what, Errno: syscall.Errno(-h.Status)}
	}
	if len(fds) != nfds {
		return fds, c.die(errCorrupt("a reply to %v with %d descriptors, want %d", op, len(fds), nfds))
	}
	return fds, nil
}

// decodeReply takes apart the reply msg to the request op and seq. rep is filled on success, and
// where a refusal has a body.
func decodeReply(msg []byte, op Op, seq uint32, rep any) (h Header, err error) {
	h, body, err := ParseMessage(msg)
	if err != nil {
		return h, errCorrupt("reply to %v: %v", op, err)
	}
	if h.Op != op || h.Seq != seq {
		return h, errCorrupt("reply to %v (seq %d) where that to %v (seq %d) was due", h.Op, h.Seq, op, seq)
	}
	if h.Status > 0 || h.Status < -4095 {
		return h, errCorrupt("reply to %v with status %d", op, h.Status)
	}
	if h.Status == 0 || len(body) != 0 {
		if err := Decode(body, rep); err != nil {
			return h, errCorrupt("reply to %v: %v", op, err)
		}
	}
	return h, nil
}

// parseFDs takes the descriptors out of ancillary data. It returns those it found also with an error.
func parseFDs(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		got, e := syscall.ParseUnixRights(&msgs[i])
		if e != nil {
			err = e
			continue
		}
		fds = append(fds, got...)
	}
	if len(fds) > maxReplyFDs {
		err = fmt.Errorf("%d descriptors", len(fds))
	}
	return fds, err
}

// lost ends the session because the socket failed, and returns why.
func (c *Client) lost(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return c.die(errGone) // EOF, or closed by ourselves
	}
	return c.die(goneBecause(fmt.Errorf("shm: control socket: %w", err)))
}

// call is rpc without descriptors.
func (c *Client) call(op Op, what string, req, rep any) error {
	_, err := c.rpc(op, what, req, rep, -1, 0)
	return err
}

// callHandle asks for something to be done to one object; the reply is a status.
func (c *Client) callHandle(op Op, what string, handle uint32) error {
	return c.call(op, what, HandleRequest{Handle: handle}, &EmptyReply{})
}

// destroy is callHandle for the end of an object: what a session that is over held has gone already.
func (c *Client) destroy(op Op, what string, handle uint32) error {
	var rep DestroyReply
	err := c.call(op, what, HandleRequest{Handle: handle}, &rep)
	if c.gone() != nil {
		return nil
	}
	return err
}
