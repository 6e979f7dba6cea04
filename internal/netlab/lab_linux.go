package netlab

import (
	"errors"
	"time"
)

// Bridge is the name of the bridge in each namespace of a Lab.
const Bridge = "br0"

// uplink is the name of the veth end that joins a Lab's bridges.
const uplink = "up0"

// carrierTimeout bounds the wait for a carrier; the kernel takes up to a second.
const carrierTimeout = 10 * time.Second

// A Lab is two sites of one Ethernet: namespaces A and B with a bridge br0 each, the bridges
// joined by a veth pair.
type Lab struct{ A, B *NS }

// NewLab makes the two namespaces and joins them. It leaves nothing behind if it fails.
func NewLab() (l *Lab, err error) {
	l = &Lab{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
			l = nil
		}
	}()
	if l.A, err = NewNS(); err != nil {
		return l, err
	}
	if l.B, err = NewNS(); err != nil {
		return l, err
	}
	if err := l.A.AddVeth(uplink, l.B, uplink); err != nil {
		return l, err
	}
	for _, ns := range []*NS{l.A, l.B} {
		if err := ns.AddBridge(Bridge); err != nil {
			return l, err
		}
		if err := ns.SetMaster(uplink, Bridge); err != nil {
			return l, err
		}
	}
	for _, ns := range []*NS{l.A, l.B} {
		for _, link := range []string{uplink, Bridge} {
			if err := ns.WaitRunning(link, carrierTimeout); err != nil {
				return l, err
			}
		}
	}
	return l, nil
}

// Plug puts a link of ns on the bridge of ns, sets it up and waits for its carrier: a TAP has
// one as long as a process holds it open.
func (l *Lab) Plug(ns *NS, link string) error {
	if err := ns.SetMaster(link, Bridge); err != nil {
		return err
	}
	if err := ns.SetUp(link); err != nil {
		return err
	}
	return ns.WaitRunning(link, carrierTimeout)
}

// SetMTU has the bridges, and what joins them, carry IP packets of mtu octets. A link that is
// plugged later has an MTU of its own.
func (l *Lab) SetMTU(mtu int) error {
	for _, ns := range []*NS{l.A, l.B} {
		for _, link := range []string{uplink, Bridge} {
			if err := ns.SetMTU(link, mtu); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close lets go of both namespaces.
func (l *Lab) Close() error {
	var errs []error
	for _, ns := range []*NS{l.A, l.B} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}
