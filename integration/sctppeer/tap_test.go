package sctppeer_test

import (
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/integration/proctest"
	"github.com/vrnic/vrnic/integration/sctppeer/peertest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// plainTAP is a stack of ours, and usrsctp over raw sockets in a namespace, with a TAP between
// them. filter sees the frames.
func plainTAP(t *testing.T, ours, theirs []string, filter porttest.Filter) *peertest.Plain {
	t.Helper()
	build(t)
	ns := proctest.NewNS(t)
	p := &peertest.Plain{Start: starter(ns, "raw")}
	var mine, other []netip.Prefix
	for i := range ours {
		mine, other = append(mine, netip.MustParsePrefix(ours[i])),
			append(other, netip.MustParsePrefix(theirs[i]))
		p.Ours, p.Theirs = append(p.Ours, mine[i].Addr()), append(p.Theirs, other[i].Addr())
	}
	near, far := ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})
	t.Cleanup(func() { near.Close(); far.Close() })
	porttest.Wire(t, near, far, false, filter)
	tap, err := port.OpenTAP(far, port.TAPConfig{Name: "ta", NetNS: ns.Path(), Addrs: other})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tap.Close() })
	st, err := netstack.NewStack(near, netstack.Config{Name: "vrnic0", Addrs: mine})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	p.SCTP = st.SCTP()
	return p
}

var (
	oursIPv4, theirsIPv4 = []string{"10.77.0.2/24"}, []string{"10.77.0.1/24"}
	oursIPv6, theirsIPv6 = []string{"fd77::2/64"}, []string{"fd77::1/64"}
)

// usrsctp on raw sockets of a kernel's network: SCTP as it is on the wire, IPv4 and IPv6. SCTP-047,
// SCTP-157.
func TestUsrsctpRaw(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) { plainTAP(t, oursIPv4, theirsIPv4, nil).Data(t) })
	t.Run("IPv6", func(t *testing.T) { plainTAP(t, oursIPv6, theirsIPv6, nil).Data(t) })
}

// Its aborts, and ours. SCTP-154.
func TestUsrsctpRawAbort(t *testing.T) { plainTAP(t, oursIPv4, theirsIPv4, nil).Abort(t) }

// Two addresses on either side, one path of which breaks. SCTP-026.
func TestUsrsctpMultihomed(t *testing.T) {
	var broken atomic.Bool
	first := netip.MustParsePrefix("10.77.0.0/24")
	p := plainTAP(t, []string{"10.77.0.2/24", "10.78.0.2/24"}, []string{"10.77.0.1/24",
		"10.78.0.1/24"}, func(f porttest.Received) bool {
		return !broken.Load() || !peertest.Carries(f.Octets, first)
	})
	p.Multihomed(t, func() { broken.Store(true) }, func() { broken.Store(false) })
}
