package ping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// RunClient connects to cfg.Addr, has cfg.Count rounds and disconnects. The end of ctx ends it
// in an orderly way after the round before and is no error once connected.
func RunClient(ctx context.Context, dev rdma.Device, cfg Config) (Result, error) {
	if err := cfg.check(); err != nil {
		return Result{}, err
	}
	s, err := newSession(dev, cfg.Size,
		rdma.RemoteRead,                  // source
		rdma.LocalWrite|rdma.RemoteWrite) // sink
	if err != nil {
		return Result{}, err
	}
	defer s.close()
	if s.conn, err = connect(ctx, dev, s.qp, cfg); err != nil {
		return Result{}, err
	}
	res, err := s.rounds(ctx, cfg)
	if err != nil && ctx.Err() == nil {
		if errors.Is(err, errEnded) {
			err = fmt.Errorf("round %d: the server has disconnected", res.Rounds)
		}
		_ = s.disconnect() // err says more than how that goes
		return res, err
	}
	if err := s.disconnect(); ctx.Err() == nil {
		return res, err
	}
	return res, nil // the user ended it, perhaps within a round: then the server's end is not orderly
}

func connect(ctx context.Context, dev rdma.Device, qp rdma.QP, cfg Config) (rdma.Conn, error) {
	cctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()
	p := rdma.ConnParam{IRD: 1, ORD: 1, MPA: cfg.MPA, SCTP: cfg.SCTP}
	if cfg.ROI {
		p.Protocol = rdma.ROI
	}
	conn, err := dev.Connect(cctx, qp, cfg.Addr, p)
	switch {
	case err == nil:
		return conn, nil
	case cctx.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("connect to %v: no answer within %v; is the address right, and the "+
			"network of %s joined to it by a port?",
			cfg.Addr, cfg.ConnectTimeout, deviceText(dev, cfg.Addr.Addr()))
	default:
		return nil, err // it names the address
	}
}

// deviceText names dev and its address of a's family.
func deviceText(dev rdma.Device, a netip.Addr) string {
	for _, p := range dev.Attr().Addrs {
		if p.Addr().Is4() == a.Is4() {
			return fmt.Sprintf("%s (%v)", dev.Name(), p)
		}
	}
	return dev.Name()
}

// rounds has rounds until cfg.Count or an error.
func (s *session) rounds(ctx context.Context, cfg Config) (Result, error) {
	res := Result{Size: cfg.Size, Verified: cfg.Validate}
	var sum time.Duration
	for cfg.Count == 0 || res.Rounds < cfg.Count {
		if err := ctx.Err(); err != nil {
			return res, err
		}
		fillData(s.data[0].Bytes(), res.Rounds)
		start := time.Now()
		if err := s.round(ctx, cfg.RoundTimeout); err != nil {
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				err = fmt.Errorf("round %d: no answer within %v", res.Rounds, cfg.RoundTimeout)
			}
			return res, err
		}
		d := time.Since(start)
		if cfg.Validate && !bytes.Equal(s.data[0].Bytes(), s.data[1].Bytes()) {
			return res, fmt.Errorf("round %d: %w at octet %d", res.Rounds, ErrMismatch,
				firstDifference(s.data[0].Bytes(), s.data[1].Bytes()))
		}
		if cfg.Verbose {
			fmt.Fprintf(cfg.Out, "ping data: %s\n", printable(s.data[1].Bytes()))
		}
		if res.Rounds == 0 || d < res.Min {
			res.Min = d
		}
		res.Max = max(res.Max, d)
		sum += d
		res.Rounds++
		res.Avg = sum / time.Duration(res.Rounds)
	}
	return res, nil
}

// round sends the source and gets it back in the sink.
func (s *session) round(ctx context.Context, limit time.Duration) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for _, mr := range s.data {
		if err := s.send(ctx, info{addr: mr.Addr(), key: mr.RKey(), size: uint32(s.size)}); err != nil {
			return err
		}
		if _, err := s.recv(ctx); err != nil { // its content has no meaning
			return err
		}
	}
	return nil
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
