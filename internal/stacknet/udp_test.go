package stacknet_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
)

// Datagrams of programs between two stacks, and within one, of either family; what cannot be sent
// is lost, and so is what is for RoCE's own port.
func TestUDP(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	var nets [2]*stacknet.Network
	var addrs [2][]netip.Addr
	for i := range nets {
		st := netstacktest.NewStack(t, sw, i+1, 1500)
		nets[i] = stacknet.New(st)
		t.Cleanup(func() { nets[i].Close() })
		for _, p := range st.Addrs() {
			addrs[i] = append(addrs[i], p.Addr())
		}
	}
	type datagram struct {
		from netip.AddrPort
		data string
	}
	open := func(i int, at netip.AddrPort) (*stacknet.UDPPort, chan datagram) {
		got := make(chan datagram, 100)
		p, err := nets[i].OpenUDP(at, func(from netip.AddrPort, data []byte) {
			got <- datagram{from, string(data)}
		})
		if err != nil {
			t.Fatal(err)
		}
		return p, got
	}
	for family := range 2 {
		at := [3]netip.AddrPort{netip.AddrPortFrom(addrs[0][family], 7000),
			netip.AddrPortFrom(addrs[1][family], 7001), netip.AddrPortFrom(addrs[0][family], 7002)}
		a, _ := open(0, at[0])
		b, there := open(1, at[1])
		c, beside := open(0, at[2])
		if _, err := nets[0].OpenUDP(at[0], nil); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("the port of %v is given twice: %v", at[0], err)
		}
		ctx := t.Context()
		a.Send(ctx, netip.AddrPortFrom(at[1].Addr(), 4791), []byte("no"))
		a.Send(ctx, netip.MustParseAddrPort("224.0.0.1:7001"), []byte("no"))
		a.Send(ctx, at[1], []byte(strings.Repeat("x", 1500)))
		over, cancel := context.WithCancel(ctx)
		cancel()
		a.Send(over, netip.AddrPortFrom(at[1].Addr().Next().Next().Next(), 7001), []byte("nobody"))
		for _, to := range []struct {
			at  netip.AddrPort
			got chan datagram
		}{{at[1], there}, {at[2], beside}} {
			want := []string{"", "x", strings.Repeat("long", 300)}
			for _, s := range want {
				a.Send(ctx, to.at, []byte(s))
			}
			for _, s := range want {
				if d := <-to.got; d != (datagram{at[0], s}) {
					t.Errorf("from %v: %.20q, want %.20q from %v", d.from, d.data, s, at[0])
				}
			}
		}
		for _, p := range slices.Backward([]*stacknet.UDPPort{a, b, c}) {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		again, _ := open(0, at[0]) // it is free
		again.Close()
	}
}
