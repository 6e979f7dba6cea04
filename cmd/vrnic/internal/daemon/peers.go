package daemon

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vrnic/vrnic/vnic"
)

// PeerLimits bound what peers on the network may use of each device; 0 is the default. What a peer
// is, and what happens beyond a limit, says docs/limits.md.
type PeerLimits struct {
	Requests, RequestsPerPeer int
	HalfOpen, HalfOpenPerPeer int
	ConnectionsPerPeer        int
}

// A PeerLimit describes one of them by the name that `--limit NAME=N` takes.
type PeerLimit struct {
	Name, Help string
	Default    int
	field      func(*PeerLimits) *int
}

// PeerLimitTable lists them, in the order in which help prints them.
var PeerLimitTable = []PeerLimit{
	{"requests", "connection requests waiting at a device", 1024,
		func(l *PeerLimits) *int { return &l.Requests }},
	{"peer-requests", "of these, from one peer; and, up to 64, its SCTP associations", 256,
		func(l *PeerLimits) *int { return &l.RequestsPerPeer }},
	{"half-open", "TCP connections to a device without a complete MPA Request", 512,
		func(l *PeerLimits) *int { return &l.HalfOpen }},
	{"peer-half-open", "of these, from one peer", 128,
		func(l *PeerLimits) *int { return &l.HalfOpenPerPeer }},
	{"peer-connections", "connections that one peer has asked for", 4096,
		func(l *PeerLimits) *int { return &l.ConnectionsPerPeer }},
}

// config is c with the limits.
func (l PeerLimits) config(c vnic.Config) vnic.Config {
	c.MaxPending, c.MaxPendingPerPeer = l.Requests, l.RequestsPerPeer
	c.MaxHalfOpen, c.MaxHalfOpenPerPeer = l.HalfOpen, l.HalfOpenPerPeer
	c.MaxConnsPerPeer = l.ConnectionsPerPeer
	return c
}

const maxPeerLimit = 1 << 20

// Set changes one limit; s is NAME=N. known is false if the name is not one of these.
func (l *PeerLimits) Set(s string) (known bool, err error) {
	name, val, _ := strings.Cut(s, "=")
	for i := range PeerLimitTable {
		t := &PeerLimitTable[i]
		if t.Name != name {
			continue
		}
		n, err := strconv.Atoi(val)
		if err != nil || n < 1 || n > maxPeerLimit {
			return true, fmt.Errorf("limit %s: want a number from 1 to %d, not %q", name, maxPeerLimit, val)
		}
		*t.field(l) = n
		return true, nil
	}
	return false, nil
}
