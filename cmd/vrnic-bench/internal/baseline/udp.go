package baseline

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
)

// serveUDP sends each datagram that comes to a back, until stop is called.
func serveUDP(a netip.AddrPort) (at net.Addr, stop func(), err error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
	if err != nil {
		return nil, nil, err
	}
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(b[:n], from) // the client waits in vain, and says so
		}
	}()
	return c.LocalAddr(), func() { c.Close() }, nil
}

// lostAfter is how long the last echo of a measurement may take.
const lostAfter = 10 * time.Second

// measureUDP has datagrams echoed over c, one at a time, and closes it.
func measureUDP(ctx context.Context, c net.Conn, req Request) (r rawtcp.Result, err error) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if req.Kind != RoundTrip || req.Poll {
		return r, fmt.Errorf("no measurement %q of UDP, polled: %v", req.Kind, req.Poll)
	}
	h := hist.New()
	out, in := make([]byte, max(req.Size, 8)), make([]byte, 1<<16)
	start := time.Now()
	if err := c.SetDeadline(start.Add(req.Time + lostAfter)); err != nil {
		return r, err
	}
	for now := start; now.Sub(start) < req.Time; {
		binary.BigEndian.PutUint64(out, r.Messages)
		if _, err := c.Write(out); err != nil {
			return r, err
		}
		n, err := c.Read(in)
		if err != nil {
			return r, fmt.Errorf("echo %d: %w", r.Messages, err)
		}
		if n != len(out) || binary.BigEndian.Uint64(in) != r.Messages {
			return r, fmt.Errorf("echo %d came back changed", r.Messages)
		}
		r.Messages++
		r.Octets += uint64(n)
		then := now
		now = time.Now()
		h.Add(now.Sub(then))
		r.Elapsed = now.Sub(start)
	}
	r.Mean, r.P50, r.P99, r.P999 = h.Mean(), h.Quantile(0.5), h.Quantile(0.99), h.Quantile(0.999)
	return r, nil
}
