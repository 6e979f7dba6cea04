package main

import (
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/load"
	"github.com/vrnic/vrnic/rdma"
)

// memcpy copies messages of spec between as many slots of memory of the same kind for d, and
// returns the bits per second.
func memcpy(dev rdma.Device, spec load.Spec, d time.Duration) (float64, error) {
	n := spec.Size * spec.Depth
	src, err := dev.AllocBuffer(n)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	dst, err := dev.AllocBuffer(n)
	if err != nil {
		return 0, err
	}
	defer dst.Close()
	from, to := src.Bytes(), dst.Bytes()
	for i := 0; i < n; i += 8 { // pages of its own for each
		from[i] = byte(i)
	}
	copy(to, from)
	var octets uint64
	start := time.Now()
	for i := 0; ; i = (i + spec.Size) % n {
		octets += uint64(copy(to[i:i+spec.Size], from[i:i+spec.Size]))
		if e := time.Since(start); e >= d {
			return float64(octets) * 8 / e.Seconds(), nil
		}
	}
}
