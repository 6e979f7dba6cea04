package baseline

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/rawtcp"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
)

// A Stacks is TCP between two stacks of this process.
type Stacks struct {
	name   string
	client *netstack.Stack
	remote netip.AddrPort
	close  []func()
}

// NewStacks is TCP between the stacks of two devices.
func NewStacks(client, server *netstack.Stack, addr netip.Addr) (*Stacks, error) {
	s := &Stacks{name: "netstack-tcp", client: client, remote: netip.AddrPortFrom(addr, basePort)}
	l, err := server.TCP().ListenNet(s.remote)
	if err != nil {
		return nil, err
	}
	s.close = append(s.close, func() { l.Close() })
	go func() { _ = rawtcp.Serve(l) }() // until it is closed
	return s, nil
}

// Close ends what serves.
func (s *Stacks) Close() {
	for i := len(s.close) - 1; i >= 0; i-- {
		s.close[i]()
	}
}

func (s *Stacks) Name() string { return s.name }
func (*Stacks) Does(Kind) bool { return true }
func (*Stacks) Traits() Traits { return Traits{} }

// Measure implements Baseline.
func (s *Stacks) Measure(ctx context.Context, req Request) (r rawtcp.Result, err error) {
	dial, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := s.client.TCP().DialNet(dial, s.remote)
	if err != nil {
		return r, err
	}
	return measure(ctx, c, req)
}

var (
	bestA = netip.MustParsePrefix("10.80.0.1/24")
	bestB = netip.MustParsePrefix("10.80.0.2/24")
	// bestMTUs are the sizes of packets among which NewBestStacks looks.
	bestMTUs = []int{netstack.DefaultMTU, 9000, netstack.MaxMTU}
)

// NewBestStacks is TCP between two stacks of its own on a switch in memory, with the MTU that is
// the fastest here: its name tells which.
func NewBestStacks(ctx context.Context) (best *Stacks, err error) {
	const try = 100 * time.Millisecond
	var most float64
	for _, mtu := range bestMTUs {
		s, err := ownStacks(mtu)
		var r rawtcp.Result
		if err == nil {
			r, err = s.Measure(ctx, Request{Kind: Bandwidth, Size: 1 << 20, Slots: 16, Time: try})
		}
		switch {
		case err != nil:
			err = fmt.Errorf("MTU %d: %w", mtu, err)
			fallthrough
		case r.BitsPerSecond() <= most:
			if s != nil {
				s.Close()
			}
		default:
			if best != nil {
				best.Close()
			}
			best, most = s, r.BitsPerSecond()
		}
		if err != nil {
			if best != nil {
				best.Close()
			}
			return nil, err
		}
	}
	return best, nil
}

// ownStacks makes two stacks.
func ownStacks(mtu int) (s *Stacks, err error) {
	var made []func()
	defer func() {
		if err != nil {
			for i := len(made) - 1; i >= 0; i-- {
				made[i]()
			}
		}
	}()
	sw := ethswitch.New(ethswitch.Config{})
	made = append(made, func() { sw.Close() })
	var stacks [2]*netstack.Stack
	for i, addr := range []netip.Prefix{bestA, bestB} {
		if stacks[i], err = netstack.NewStack(sw, netstack.Config{Name: fmt.Sprintf("best%d", i),
			Addrs: []netip.Prefix{addr}, MTU: mtu}); err != nil {
			return nil, err
		}
		made = append(made, func() { stacks[i].Close() })
	}
	if s, err = NewStacks(stacks[0], stacks[1], bestB.Addr()); err != nil {
		return nil, err
	}
	s.name = fmt.Sprintf("netstack-tcp-mtu-%d", mtu)
	s.close = append(made, s.close...)
	return s, nil
}
