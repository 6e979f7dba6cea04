package badnet

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/proc"
	"github.com/vrnic/vrnic/internal/netlab"
	"github.com/vrnic/vrnic/netstack/port/impair"
)

// bridgeTAP is the bridge's TAP in each namespace.
const bridgeTAP = "wire0"

var (
	prefixA = netip.MustParsePrefix("10.77.0.1/24")
	prefixB = netip.MustParsePrefix("10.77.0.2/24")
)

// A site is two namespaces with a bridge between them.
type site struct {
	a, b    *netlab.NS
	bridge  *proc.Process
	closers []func()
}

// newSite makes one; self is the command line that runs RunBridge.
func newSite(self []string) (s *site, err error) {
	s = &site{}
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()
	for _, ns := range []**netlab.NS{&s.a, &s.b} {
		if *ns, err = netlab.NewNS(); err != nil {
			return s, err
		}
		s.closers = append(s.closers, func() { (*ns).Close() })
	}
	args := append(slices.Clone(self[1:]), "--a", s.a.Path(), "--b", s.b.Path(), "--tap", bridgeTAP)
	if s.bridge, err = proc.Start(BridgeReady, self[0], args...); err != nil {
		return s, err
	}
	s.closers = append(s.closers, s.bridge.Close)
	for _, ns := range []*netlab.NS{s.a, s.b} {
		if err := ns.WaitRunning(bridgeTAP, carrierTimeout); err != nil {
			return s, err
		}
	}
	return s, nil
}

// begin has the bridge forget all that is on its way and do as it is told from now on.
func (s *site) begin(ctx context.Context, schedule impair.Schedule) error {
	var r BridgeReport
	return s.bridge.Ask(ctx, bridgeRequest{Begin: &schedule}, &r)
}

// report is what the bridge has done since.
func (s *site) report(ctx context.Context) (r BridgeReport, err error) {
	err = s.bridge.Ask(ctx, bridgeRequest{}, &r)
	return r, err
}

// missed is how many frames the bridge's TAPs have dropped because it was behind.
func (s *site) missed() (sum uint64, err error) {
	for _, ns := range []*netlab.NS{s.a, s.b} {
		n, e := ns.Dropped(bridgeTAP)
		sum, err = sum+n, errors.Join(err, e)
	}
	return sum, err
}

// Close takes all away.
func (s *site) Close() {
	for _, f := range slices.Backward(s.closers) {
		f()
	}
	s.closers = nil
}
