package ping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/rdma"
)

// RunServer listens at cfg.Addr, says so in Out, and serves one client until it disconnects, or
// any number of them if cfg.Persistent. The end of ctx ends it and is no error.
func RunServer(ctx context.Context, dev rdma.Device, cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	l, err := dev.Listen(cfg.Addr, 0)
	if err != nil {
		return fmt.Errorf("listen at %v: %w", cfg.Addr, err)
	}
	fmt.Fprintf(cfg.Out, "listening on %v\n", l.Addr())
	return Serve(ctx, dev, l, cfg)
}

// Serve is RunServer on a listener of one's own. It closes l.
func Serve(ctx context.Context, dev rdma.Device, l rdma.Listener, cfg Config) error {
	defer l.Close()
	if err := cfg.check(); err != nil {
		return err
	}
	if !cfg.Persistent {
		req, err := l.Next(ctx)
		if err != nil {
			return unlessEnded(ctx, fmt.Errorf("listen at %v: %w", l.Addr(), err))
		}
		l.Close() // later ones are refused
		return unlessEnded(ctx, serveOne(ctx, dev, req, cfg))
	}

	cfg.Out = &lockedWriter{w: cfg.Out}
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		req, err := l.Next(ctx)
		if err != nil {
			return unlessEnded(ctx, fmt.Errorf("listen at %v: %w", l.Addr(), err))
		}
		wg.Go(func() {
			if err := unlessEnded(ctx, serveOne(ctx, dev, req, cfg)); err != nil {
				fmt.Fprintf(cfg.Out, "server: %v\n", err)
			}
		})
	}
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serveOne answers one request and serves until the client has gone.
func serveOne(ctx context.Context, dev rdma.Device, req rdma.ConnRequest, cfg Config) error {
	client := req.RemoteAddr()
	s, err := newSession(dev, max(cfg.Size, serverMinSize), rdma.LocalWrite)
	if err != nil {
		_ = req.Reject(nil) // the client may have gone
		return fmt.Errorf("client %v: refused: %w", client, err)
	}
	defer s.close()
	p := rdma.ConnParam{IRD: 1, ORD: 1, MPA: cfg.MPA}
	p.Protocol, p.ROI = req.Param().Protocol, req.Param().ROI
	if s.conn, err = req.Accept(ctx, s.qp, p); err != nil {
		return fmt.Errorf("client %v: accept: %w", client, err)
	}
	if err := s.serve(ctx, client, cfg); err != nil {
		_ = s.disconnect() // err says more than how that goes
		return fmt.Errorf("client %v: %w", client, err)
	}
	return nil
}

// serve has rounds until the client disconnects, which is right between two of them.
func (s *session) serve(ctx context.Context, client netip.AddrPort, cfg Config) error {
	if ord := s.conn.Param().ORD; ord == 0 || ord == rdma.NoReads {
		return errors.New("it takes no RDMA Reads (IRD 0), so there is no way to fetch its data")
	}
	for round := 0; ; round++ {
		source, err := s.recv(ctx)
		if errors.Is(err, errEnded) {
			fmt.Fprintf(cfg.Out, "server: client %v disconnected after %d rounds\n", client, round)
			return nil
		}
		if err == nil {
			err = s.answer(ctx, source, cfg)
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
}

// answer has the rest of a round whose source the client has named.
func (s *session) answer(ctx context.Context, source info, cfg Config) error {
	if err := s.checkSize(source); err != nil {
		return err
	}
	if err := s.transfer(ctx, kindRead, rdma.OpRead, source); err != nil {
		return err
	}
	if cfg.Verbose {
		fmt.Fprintf(cfg.Out, "server ping data: %s\n", printable(s.data[0].Bytes()[:source.size]))
	}
	if err := s.send(ctx, info{}); err != nil { // go ahead
		return err
	}
	sink, err := s.recv(ctx)
	if err != nil {
		return err
	}
	if err := s.checkSize(sink); err != nil {
		return err
	}
	if err := s.transfer(ctx, kindWrite, rdma.OpWrite, sink); err != nil {
		return err
	}
	return s.send(ctx, info{}) // done
}

func (s *session) checkSize(i info) error {
	if int64(i.size) > int64(s.size) {
		return fmt.Errorf("the client has a buffer of %d octets, this server of %d: start it with -S "+
			"%d or more", i.size, s.size, i.size)
	}
	return nil
}

// A lockedWriter takes whole lines from several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer // +checklocks:mu
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
