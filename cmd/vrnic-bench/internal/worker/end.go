package worker

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/proc"
)

const readyLine = "ready"

// A Process is a worker. It has one End at a time.
type Process struct{ p *proc.Process }

// Start starts a worker: the program name with args, which calls Serve.
func Start(name string, args ...string) (*Process, error) {
	p, err := proc.Start(readyLine, name, args...)
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

func (w *Process) PID() int { return w.p.PID() }

// Close ends the process.
func (w *Process) Close() { w.p.Close() }

// Open makes an End there.
func (w *Process) Open(ctx context.Context, spec load.Spec, role load.Role) (load.End, error) {
	e := &end{w: w}
	_, err := e.ask(ctx, call{Do: "open", Spec: spec, Role: role})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// An end is a load.End in a worker.
type end struct{ w *Process }

// ask calls the worker. One that does not answer in time is ended, so that the daemon ends its
// connections.
func (e *end) ask(ctx context.Context, c call) (reply, error) {
	var r reply
	if err := e.w.p.Ask(ctx, c, &r); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

func (e *end) Listen(addr netip.Addr) (netip.AddrPort, error) {
	r, err := e.ask(context.Background(), call{Do: "listen", Addr: addr})
	return r.Addr, err
}

func (e *end) Accept(ctx context.Context) error {
	_, err := e.ask(ctx, call{Do: "accept"})
	return err
}

func (e *end) Connect(ctx context.Context, remote netip.AddrPort) error {
	_, err := e.ask(ctx, call{Do: "connect", Remote: remote})
	return err
}

func (e *end) Prepare(seed uint64) error {
	_, err := e.ask(context.Background(), call{Do: "prepare", Seed: seed})
	return err
}

func (e *end) Move(ctx context.Context) error {
	_, err := e.ask(ctx, call{Do: "move"})
	return err
}

func (e *end) Check() error {
	_, err := e.ask(context.Background(), call{Do: "check"})
	return err
}

func (e *end) Run(ctx context.Context, a load.Amount) (load.Result, error) {
	r, err := e.ask(ctx, call{Do: "run", Amount: a})
	if err != nil {
		return load.Result{}, err
	}
	if r.Result == nil || r.Result.Times == nil {
		return load.Result{}, errors.New("worker: a run without a result")
	}
	return *r.Result, nil
}

// Close gives all back. If the worker has gone, the daemon has seen to that.
func (e *end) Close() { _, _ = e.ask(context.Background(), call{Do: "close"}) }
