package docker

import (
	"context"
	"errors"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/port"
)

// A plug is a TAP on its way from here into a container.
type plug struct {
	endpoint
	fd   int
	kind port.TAPKind
	// end closes fd, and with undo takes the TAP away.
	end func(undo bool) error

	index  int // of the TAP, while it is here
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when it is nobody's any more
}

// newPlug makes the TAP for a device.
func newPlug(e endpoint, dev row) (p *plug, err error) {
	mac, err := net.ParseMAC(dev.MAC)
	if err != nil {
		return nil, err
	}
	p = &plug{endpoint: e, done: make(chan struct{})}
	p.fd, p.kind, p.end, err = port.LendTAP(port.TAPConfig{Name: e.tap, MAC: frame.MAC(mac),
		MTU: dev.MTU})
	if err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(e.tap)
	if err != nil {
		return nil, errors.Join(err, p.end(true))
	}
	p.index = link.Attrs().Index
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// moved waits until the TAP is in another network namespace.
func (p *plug) moved() error {
	events, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(p.ctx)
	context.AfterFunc(ctx, events.Close) // ends Receive
	defer cancel()
	for {
		_, err := netlink.LinkByIndex(p.index)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		_, _, err = events.Receive() // of any interface; ENOBUFS: of more than it could keep
		if p.ctx.Err() != nil {
			return p.ctx.Err()
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
}
