package ping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A kind is what a work request is for, and its ID.
type kind uint64

const (
	kindSend kind = iota
	kindRecv
	kindRead
	kindWrite
	numKinds
)

var kindNames = [numKinds]string{kindSend: "Send", kindRecv: "Receive", kindRead: "RDMA Read",
	kindWrite: "RDMA Write"}

func (k kind) String() string { return kindNames[k] }

// Where things are in the buffer of a session: the two messages, then the data.
const (
	sendOff = 0
	recvOff = 64
	dataOff = 4096
)

// A session is one end of one connection with all that it is made of. One goroutine uses it.
type session struct {
	size int  // of a data buffer
	roce bool // a request that fails does not end the connection by itself

	buf  rdma.Buffer
	pd   rdma.PD
	cq   rdma.CQ
	qp   rdma.QP
	msg  rdma.MR   // both messages
	data []rdma.MR // server: one; client: source, sink
	conn rdma.Conn

	done    [numKinds]int // completions seen and not yet waited for
	recvLen uint32        // of the last Receive
	sending bool          // a Send has not completed
}

// newSession makes everything up to a QP with a receive posted. access has one entry for each data
// buffer.
func newSession(dev rdma.Device, size int, access ...rdma.Access) (_ *session, err error) {
	s := &session{size: size, roce: dev.Attr().RoCE}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.buf, err = dev.AllocBuffer(dataOff + size*len(access)); err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	if s.pd, err = dev.AllocPD(); err != nil {
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	if s.cq, err = dev.CreateCQ(8); err != nil {
		return nil, fmt.Errorf("completion queue: %w", err)
	}
	if s.msg, err = s.pd.RegisterMemory(s.buf.Bytes()[:recvOff+infoLen], rdma.LocalWrite); err != nil {
		return nil, fmt.Errorf("register messages: %w", err)
	}
	for i, a := range access {
		off := dataOff + i*size
		mr, err := s.pd.RegisterMemory(s.buf.Bytes()[off:off+size], a)
		if err != nil {
			return nil, fmt.Errorf("register %d octets: %w", size, err)
		}
		s.data = append(s.data, mr)
	}
	s.qp, err = s.pd.CreateQP(rdma.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, MaxRecvWR: 2,
		SignalAll: true})
	if err != nil {
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	if dev.Attr().RoCE { // whose queue pairs take receives from INIT on
		err = s.qp.Modify(&rdma.QPAttr{State: rdma.QPInit, Port: 1,
			Access: rdma.RemoteRead | rdma.RemoteWrite},
			rdma.AttrState|rdma.AttrPKeyIndex|rdma.AttrPort|rdma.AttrAccess)
		if err != nil {
			return nil, fmt.Errorf("queue pair: %w", err)
		}
	}
	return s, s.postRecv()
}

// close gives everything back; a connection still there ends.
func (s *session) close() {
	if s.qp != nil {
		s.qp.Close()
	}
	for _, mr := range s.data {
		mr.Close()
	}
	if s.msg != nil {
		s.msg.Close()
	}
	if s.cq != nil {
		s.cq.Close()
	}
	if s.pd != nil {
		s.pd.Close()
	}
	if s.buf != nil {
		s.buf.Close()
	}
}

func (s *session) postRecv() error {
	err := s.qp.PostRecv(&rdma.RecvWR{ID: uint64(kindRecv), SGEs: []rdma.SGE{
		{Addr: s.msg.Addr() + recvOff, Length: infoLen, LKey: s.msg.LKey()},
	}})
	if err != nil {
		return fmt.Errorf("post Receive: %w", err)
	}
	return nil
}

// send sends a message once the one before has left the buffer.
func (s *session) send(ctx context.Context, i info) error {
	if s.sending {
		if err := s.await(ctx, kindSend); err != nil {
			return err
		}
	}
	i.put(s.msg.Bytes()[sendOff:])
	err := s.qp.PostSend(&rdma.SendWR{ID: uint64(kindSend), Op: rdma.OpSend, Flags: rdma.Signaled,
		SGEs: []rdma.SGE{
			{Addr: s.msg.Addr() + sendOff, Length: infoLen, LKey: s.msg.LKey()},
		}})
	if err != nil {
		return s.failed(ctx, kindSend, err)
	}
	s.sending = true
	return nil
}

// recv waits for the peer's message and posts the next receive.
func (s *session) recv(ctx context.Context) (info, error) {
	if err := s.await(ctx, kindRecv); err != nil {
		return info{}, err
	}
	n := min(int(s.recvLen), infoLen)
	i, err := parseInfo(s.msg.Bytes()[recvOff : recvOff+n])
	if err != nil {
		return info{}, err
	}
	return i, s.postRecv()
}

// transfer moves i.size octets between the first data buffer and the peer's i, and waits for it.
func (s *session) transfer(ctx context.Context, k kind, op rdma.Opcode, i info) error {
	err := s.qp.PostSend(&rdma.SendWR{ID: uint64(k), Op: op, Flags: rdma.Signaled, RemoteAddr: i.addr,
		RKey: i.key,
		SGEs: []rdma.SGE{{Addr: s.data[0].Addr(), Length: i.size, LKey: s.data[0].LKey()}}})
	if err != nil {
		return s.failed(ctx, k, err)
	}
	return s.await(ctx, k)
}

// await blocks until one more request of kind k has completed.
func (s *session) await(ctx context.Context, k kind) error {
	armed := false
	var wc [4]rdma.WC
	for s.done[k] == 0 {
		n, err := s.cq.Poll(wc[:])
		if err != nil {
			return fmt.Errorf("completion queue: %w", err)
		}
		for i := range wc[:n] {
			if err := s.completed(ctx, &wc[i]); err != nil {
				return err
			}
		}
		switch {
		case n > 0:
			armed = false
		case !armed:
			// A completion that came before this causes no event: look once more.
			if err := s.cq.Arm(false); err != nil {
				return fmt.Errorf("arm the completion queue: %w", err)
			}
			armed = true
		default:
			if err := s.cq.Wait(ctx); err != nil {
				return err
			}
			armed = false
		}
	}
	s.done[k]--
	if k == kindSend {
		s.sending = false
	}
	return nil
}

func (s *session) completed(ctx context.Context, wc *rdma.WC) error {
	k := kind(wc.ID)
	if k >= numKinds {
		return fmt.Errorf("a completion of nothing that was posted (id %d)", wc.ID)
	}
	if wc.Status != rdma.WCSuccess {
		err := errors.New(wc.Status.String())
		if s.roce && wc.Status != rdma.WCFlush { // it is the cause, and the connection is ended by us
			return fmt.Errorf("%v: %w", k, err)
		}
		return s.failed(ctx, k, err)
	}
	if k == kindRecv {
		s.recvLen = wc.ByteLen
	}
	s.done[k]++
	return nil
}

// failed finds out why a request failed: errEnded if the connection was ended by the peer in an
// orderly way, else the connection's own error where there is one.
func (s *session) failed(ctx context.Context, k kind, err error) error {
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-s.conn.Done():
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("%v: %w", k, err)
	}
	if cause := s.conn.Err(); cause != nil {
		return fmt.Errorf("%v: %w: %w", k, err, cause)
	}
	return errEnded
}

// disconnect ends the connection and waits a little for the peer to do so too.
func (s *session) disconnect() error {
	if err := s.conn.Disconnect(); err != nil {
		select {
		case <-s.conn.Done(): // the peer was first
		default:
			return fmt.Errorf("disconnect: %w", err)
		}
	}
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-s.conn.Done():
		return s.conn.Err()
	case <-timer.C:
		return fmt.Errorf("the peer did not close within %v", endTimeout)
	}
}
