package sctp

import (
	"context"

	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/lab/torture"
)

// Host is a Dialer of the host: to a port of UDP where SCTP is in it, or, with none, over IP.
func Host(udp uint16) Dialer {
	return func(ctx context.Context, t torture.Target) (*rawsctp.Peer, error) {
		var l rawsctp.Link
		var err error
		if udp == 0 {
			l, err = rawsctp.DialIP(ctx, t.Addr.Addr())
		} else {
			l, err = rawsctp.DialUDP(ctx, t.Addr.Addr(), udp)
		}
		if err != nil {
			return nil, err
		}
		return rawsctp.New(l, t.Addr.Port()), nil
	}
}
