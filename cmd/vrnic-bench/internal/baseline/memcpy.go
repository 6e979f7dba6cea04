package baseline

import (
	"context"
	"errors"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/rdma"
)

// A Memcpy copies messages between memory of the kind that a device gives.
type Memcpy struct{ dev rdma.Device }

// NewMemcpy copies in memory of dev.
func NewMemcpy(dev rdma.Device) *Memcpy { return &Memcpy{dev} }

func (*Memcpy) Name() string     { return "memcpy" }
func (*Memcpy) Does(k Kind) bool { return k == Bandwidth }
func (*Memcpy) Traits() Traits   { return Traits{} }

// Measure implements Baseline.
func (m *Memcpy) Measure(ctx context.Context, req Request) (r rawtcp.Result, err error) {
	if req.Kind != Bandwidth {
		return r, errors.New("a copy has no round trip")
	}
	n := req.Size * req.Slots
	src, err := m.dev.AllocBuffer(n)
	if err != nil {
		return r, err
	}
	defer src.Close()
	dst, err := m.dev.AllocBuffer(n)
	if err != nil {
		return r, err
	}
	defer dst.Close()
	from, to := src.Bytes(), dst.Bytes()
	for i := 0; i < n; i += 8 { // pages of its own for each
		from[i] = byte(i)
	}
	copy(to, from)
	start := time.Now()
	for i := 0; r.Elapsed < req.Time && ctx.Err() == nil; i = (i + req.Size) % n {
		r.Octets += uint64(copy(to[i:i+req.Size], from[i:i+req.Size]))
		r.Messages++
		r.Elapsed = time.Since(start)
	}
	return r, ctx.Err()
}
