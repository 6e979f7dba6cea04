package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/meter"
	"github.com/vrnic/vrnic/rdma"
)

// A call asks the worker for one of load.End's methods, or to make an End.
type call struct {
	Do     string
	Spec   load.Spec      `json:",omitzero"`
	Role   load.Role      `json:",omitempty"`
	Addr   netip.Addr     `json:",omitzero"`
	Remote netip.AddrPort `json:",omitzero"`
	Seed   uint64         `json:",omitempty"`
	Amount load.Amount    `json:",omitzero"`
}

// A reply is what came of it.
type reply struct {
	Error  string         `json:",omitempty"`
	Addr   netip.AddrPort `json:",omitzero"`
	Result *load.Result   `json:",omitempty"`
}

// maxLine bounds a call.
const maxLine = 1 << 20

// Serve says that it is ready and answers the calls that come from in, until its end or that of
// ctx.
func Serve(ctx context.Context, dev rdma.Device, in io.Reader, out io.Writer) error {
	w := &serving{dev: dev}
	defer w.close()
	if _, err := fmt.Fprintln(out, readyLine); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("worker: a call that makes no sense: %w", err)
		}
		var r reply
		if err := w.do(ctx, c, &r); err != nil {
			r = reply{Error: err.Error()}
		}
		if err := json.NewEncoder(out).Encode(r); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return lines.Err()
}

// A serving has one End at a time.
type serving struct {
	dev rdma.Device
	end *load.Local
}

func (w *serving) close() {
	if w.end != nil {
		w.end.Close()
		w.end = nil
	}
}

func (w *serving) do(ctx context.Context, c call, r *reply) (err error) {
	if c.Do == "open" {
		w.close()
		w.end, err = load.NewLocal(w.dev, c.Spec, c.Role)
		return err
	}
	if w.end == nil {
		return errors.New("nothing is open")
	}
	switch c.Do {
	case "listen":
		r.Addr, err = w.end.Listen(c.Addr)
	case "accept":
		err = w.end.Accept(ctx)
	case "connect":
		err = w.end.Connect(ctx, c.Remote)
	case "prepare":
		err = w.end.Prepare(c.Seed)
	case "move":
		err = w.end.Move(ctx)
	case "check":
		err = w.end.Check()
	case "run":
		var res load.Result
		if c.Amount.KeepPools {
			defer meter.KeepPools()()
		}
		allocs := meter.Allocs()
		res, err = w.end.Run(ctx, c.Amount)
		res.Allocs = meter.Allocs() - allocs
		r.Result = &res
	case "close":
		w.close()
	default:
		err = fmt.Errorf("no call %q", c.Do)
	}
	return err
}
