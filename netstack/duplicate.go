package netstack

import (
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvconv"
)

// probing is how often the network is asked whether an address is taken, and how long somebody who
// has it may take to say so (RFC 5227, section 1.1).
var probing = stack.DADConfigurations{DupAddrDetectTransmits: 3, RetransmitTimer: time.Second}

// FindDuplicates asks the network who else has an IPv4 address of s (RFC 5227, section 2.1.1), and
// calls found for each that somebody has, within some seconds, on a goroutine of its own. It does
// not wait for that. s goes on with its addresses in any case. Of IPv6 gVisor hears no answer: that
// comes from an address which is its own.
func (s *Stack) FindDuplicates(found func(addr netip.Addr, holder frame.MAC)) {
	for _, p := range s.cfg.Addrs {
		addr := p.Addr()
		if !addr.Is4() {
			continue
		}
		// gVisor calls it with locks held.
		done := func(r stack.DADResult) {
			d, ok := r.(*stack.DADDupAddrDetected)
			if !ok || len(d.HolderLinkAddress) != len(frame.MAC{}) {
				return
			}
			if holder := frame.MAC([]byte(d.HolderLinkAddress)); holder != s.cfg.MAC {
				go found(addr, holder)
			}
		}
		// An interface that is gone, the only error, has nothing to ask for.
		_, _ = s.st.CheckDuplicateAddress(gvconv.NIC, header.IPv4ProtocolNumber, gvconv.Addr(addr), done)
	}
}
