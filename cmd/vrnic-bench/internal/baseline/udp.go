package baseline

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

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
	if err := c.SetDeadline(time.Now().Add(req.Time + lostAfter)); err != nil {
		return r, err
	}
	in := make([]byte, 1<<16)
	return rawtcp.RoundTrips(max(req.Size, 8), req.Time, func(out []byte) ([]byte, error) {
		if _, err := c.Write(out); err != nil {
			return nil, err
		}
		n, err := c.Read(in)
		return in[:n], err
	})
}
