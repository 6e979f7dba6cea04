package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// methods are what can be called.
var methods = map[string]func(argument string) (answer string, err error){
	"upper": func(s string) (string, error) { return strings.ToUpper(s), nil },
	"sum": func(s string) (string, error) {
		sum := 0
		for _, f := range strings.Fields(s) {
			n, err := strconv.Atoi(f)
			if err != nil {
				return "", fmt.Errorf("%q is not a number", f)
			}
			sum += n
		}
		return strconv.Itoa(sum), nil
	},
}

// The first octet of an answer says what follows it.
const (
	answerOK    = '+' // the answer
	answerError = '-' // the text of an error
)

const (
	maxClients = 256
	// slots is how many calls of all clients can be under way. A slot is a piece of memory for a
	// request and one for its answer. Its number is the ID of the receive that waits for the
	// request, and then of the Send of the answer.
	slots = 128
	// noMore and last are the IDs of two requests that a QP has when its connection has ended.
	// Behind noMore comes no request of the client, behind last nothing at all.
	noMore = slots
	last   = slots + 1
)

// A server answers calls. One goroutine, that of answerAll, has the slots and ends the QPs.
type server struct {
	pd  rdma.PD
	cq  rdma.CQ  // all completions of all clients
	srq rdma.SRQ // the slots that wait for requests
	mr  rdma.MR  // the slots

	mu  sync.Mutex
	qps map[uint32]rdma.QP // guarded by mu; by number
}

// serve answers calls at addr until ctx ends.
func serve(ctx context.Context, dev rdma.Device, addr netip.AddrPort) error {
	s, err := newServer(dev)
	if err != nil {
		return err
	}
	listener, err := dev.Listen(addr, 0)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Printf("listening on %v\n", listener.Addr())

	failed := make(chan error, 2)
	go func() { failed <- s.answerAll(ctx) }()
	go func() { failed <- s.acceptAll(ctx, listener) }()
	return <-failed
}

func newServer(dev rdma.Device) (*server, error) {
	s := &server{qps: make(map[uint32]rdma.QP)}
	var err error
	if s.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	buf, err := dev.AllocBuffer(slots * 2 * maxMessage)
	if err != nil {
		return nil, err
	}
	if s.mr, err = s.pd.RegisterMemory(buf.Bytes(), rdma.LocalWrite); err != nil {
		return nil, err
	}
	// A slot has one completion at a time to wait for, and a QP one of its end.
	if s.cq, err = dev.CreateCQ(slots + maxClients); err != nil {
		return nil, err
	}
	if s.srq, err = s.pd.CreateSRQ(rdma.SRQConfig{MaxWR: slots, MaxSGE: 1}); err != nil {
		return nil, err
	}
	for slot := range uint64(slots) {
		if err := s.postRecv(slot); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *server) acceptAll(ctx context.Context, l rdma.Listener) error {
	for {
		req, err := l.Next(ctx)
		if err != nil {
			return err
		}
		go func() {
			if err := s.accept(ctx, req); err != nil {
				log.Printf("client %v: %v", req.RemoteAddr(), err)
			}
		}()
	}
}

// accept connects a client and waits for its end.
func (s *server) accept(ctx context.Context, req rdma.ConnRequest) error {
	qp, err := s.newQP()
	if err != nil {
		return errors.Join(err, req.Reject([]byte("the server is full")))
	}
	conn, err := req.Accept(ctx, qp, rdma.ConnParam{})
	if err == nil {
		<-conn.Done()
		err = conn.Err()
	}
	// What was under way has completed, flushed. What is posted in state Error completes so too,
	// behind all that was posted before.
	return errors.Join(err, qp.Abort(), qp.PostSend(&rdma.SendWR{ID: noMore, Op: rdma.OpSend}))
}

// newQP makes a QP whose completions answerAll understands from the first on.
func (s *server) newQP() (rdma.QP, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.qps) == maxClients {
		return nil, fmt.Errorf("there are %d clients already", maxClients)
	}
	qp, err := s.pd.CreateQP(rdma.QPConfig{
		SendCQ: s.cq, RecvCQ: s.cq, SRQ: s.srq, MaxSendWR: slots + 1,
	})
	if err == nil {
		s.qps[qp.Num()] = qp
	}
	return qp, err
}

// answerAll serves the completion queue.
func (s *server) answerAll(ctx context.Context) error {
	for {
		wc, err := next(ctx, s.cq)
		if err != nil {
			return err
		}
		s.mu.Lock()
		qp := s.qps[wc.QPN]
		s.mu.Unlock()
		switch {
		case wc.ID == noMore:
			err = qp.PostSend(&rdma.SendWR{ID: last, Op: rdma.OpSend})
		case wc.ID == last:
			err = s.end(qp)
		case wc.Status == rdma.WCSuccess && wc.Op == rdma.WCRecv:
			if s.answer(qp, wc.ID, wc.ByteLen) == nil {
				break // the slot waits for its answer to go out
			}
			fallthrough
		default:
			// That has happened, or the connection has ended: the slot is free.
			err = s.postRecv(wc.ID)
		}
		if err != nil {
			return err
		}
	}
}

func (s *server) end(qp rdma.QP) error {
	s.mu.Lock()
	delete(s.qps, qp.Num())
	s.mu.Unlock()
	return qp.Close()
}

// answer carries out the request of n octets in a slot and sends the answer.
func (s *server) answer(qp rdma.QP, slot uint64, n uint32) error {
	request, answer := s.slot(slot)
	method, argument, _ := strings.Cut(string(request[:n]), " ")
	text, err := "", fmt.Errorf("there is no method %q", method)
	if f, ok := methods[method]; ok {
		text, err = f(argument)
	}
	if err == nil && 1+len(text) > maxMessage {
		err = errors.New("the answer is too long")
	}
	kind := byte(answerOK)
	if err != nil {
		kind, text = answerError, err.Error()
	}
	answer[0] = kind
	length := 1 + copy(answer[1:], text)
	return qp.PostSend(&rdma.SendWR{
		ID:    slot,
		Op:    rdma.OpSend,
		Flags: rdma.Signaled | rdma.Solicited,
		SGEs:  []rdma.SGE{{Addr: s.addr(slot) + maxMessage, Length: uint32(length), LKey: s.mr.LKey()}},
	})
}

func (s *server) postRecv(slot uint64) error {
	return s.srq.PostRecv(&rdma.RecvWR{
		ID:   slot,
		SGEs: []rdma.SGE{{Addr: s.addr(slot), Length: maxMessage, LKey: s.mr.LKey()}},
	})
}

// slot returns the memory of a slot.
func (s *server) slot(slot uint64) (request, answer []byte) {
	b := s.mr.Bytes()[slot*2*maxMessage:]
	return b[:maxMessage], b[maxMessage : 2*maxMessage]
}

func (s *server) addr(slot uint64) uint64 { return s.mr.Addr() + slot*2*maxMessage }
