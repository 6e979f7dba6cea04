package netstacktest

import (
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// An Asker asks a stack for its address by ARP, and so knows when the stack has dealt with what it
// got before: a stack looks at ARP, ICMP and UDP in their turn, on a goroutine of its own, which in
// fake time may be later than anything.
type Asker struct {
	tb   testing.TB
	st   *netstack.Stack
	port *porttest.Port
}

// NewAsker makes one for st, on its switch. It goes when the test ends.
func NewAsker(tb testing.TB, sw *ethswitch.Switch, st *netstack.Stack) *Asker {
	tb.Helper()
	return &Asker{tb: tb, st: st, port: porttest.NewPort(tb, sw, "asker", false)}
}

// Wait returns when the stack has dealt with all that it got before.
func (a *Asker) Wait() {
	a.tb.Helper()
	mac, ip := a.st.MAC(), a.st.Addrs()[0].Addr().As4()
	own := []byte{2, 0, 0, 0, 0, 0xa5}
	q := append(append(mac[:], own...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1) // ARP, Ethernet, IPv4, who is
	q = append(append(append(q, own...), 10, 77, 0, 250), 0, 0, 0, 0, 0, 0)
	if err := a.port.Send(append(q, ip[:]...), frame.Offload{}); err != nil {
		a.tb.Fatal(err)
	}
	for f := range a.port.Frames {
		if b := f.Octets; string(b[:6]) == string(own) && len(b) > 21 && b[12] == 8 && b[13] == 6 {
			return
		}
	}
}
