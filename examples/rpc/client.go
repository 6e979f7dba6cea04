package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vrnic/vrnic/rdma"
)

// A client makes one call at a time. The request is in the first half of its memory, the answer
// comes into the second.
type client struct {
	cq   rdma.CQ
	mr   rdma.MR
	qp   rdma.QP
	conn rdma.Conn
}

// call calls a method of the server at addr with each of arguments, and prints the answers.
func call(ctx context.Context, dev rdma.Device, addr netip.AddrPort,
	method string, arguments []string) error {
	c, err := dial(ctx, dev, addr)
	if err != nil {
		return err
	}
	for _, argument := range arguments {
		answer, err := c.call(ctx, method, argument)
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	if err := c.conn.Disconnect(); err != nil {
		return err
	}
	<-c.conn.Done()
	return c.conn.Err()
}

func dial(ctx context.Context, dev rdma.Device, addr netip.AddrPort) (*client, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	buf, err := dev.AllocBuffer(2 * maxMessage)
	if err != nil {
		return nil, err
	}
	c := &client{}
	if c.mr, err = pd.RegisterMemory(buf.Bytes(), rdma.LocalWrite); err != nil {
		return nil, err
	}
	if c.cq, err = dev.CreateCQ(2); err != nil {
		return nil, err
	}
	c.qp, err = pd.CreateQP(rdma.QPConfig{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 1, MaxRecvWR: 1})
	if err != nil {
		return nil, err
	}
	c.conn, err = dev.Connect(ctx, c.qp, addr, rdma.ConnParam{})
	if refused, ok := errors.AsType[*rdma.RejectedError](err); ok {
		return nil, fmt.Errorf("%w: %s", err, refused.PrivateData)
	}
	return c, err
}

// call makes one call and waits for the answer.
func (c *client) call(ctx context.Context, method, argument string) (string, error) {
	request := method + " " + argument
	if len(request) > maxMessage {
		return "", fmt.Errorf("a request of %d octets, want at most %d", len(request), maxMessage)
	}
	copy(c.mr.Bytes(), request)
	// The receive comes first: an answer that finds none ends the connection.
	err := c.qp.PostRecv(&rdma.RecvWR{
		SGEs: []rdma.SGE{{Addr: c.mr.Addr() + maxMessage, Length: maxMessage, LKey: c.mr.LKey()}},
	})
	if err != nil {
		return "", err
	}
	err = c.qp.PostSend(&rdma.SendWR{
		Op:    rdma.OpSend,
		Flags: rdma.Signaled,
		SGEs:  []rdma.SGE{{Addr: c.mr.Addr(), Length: uint32(len(request)), LKey: c.mr.LKey()}},
	})
	if err != nil {
		return "", err
	}
	var answer []byte
	for range 2 { // the Send and the receive, in any order
		wc, err := next(ctx, c.cq)
		if err != nil {
			return "", err
		}
		if wc.Status != rdma.WCSuccess {
			<-c.conn.Done() // which knows more
			return "", errors.Join(fmt.Errorf("the call failed: %v", wc.Status), c.conn.Err())
		}
		if wc.Op == rdma.WCRecv {
			answer = c.mr.Bytes()[maxMessage : maxMessage+wc.ByteLen]
		}
	}
	switch {
	case len(answer) > 0 && answer[0] == answerOK:
		return string(answer[1:]), nil
	case len(answer) > 0 && answer[0] == answerError:
		return "", fmt.Errorf("%s: %s", method, answer[1:])
	}
	return "", fmt.Errorf("not an answer: %q", answer)
}
