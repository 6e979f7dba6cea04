package ipoib

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// drops are the counters of what was dropped, by their names.
func drops(s Stats) map[string]uint64 {
	all := map[string]uint64{}
	v := reflect.ValueOf(s)
	for n := range v.NumField() {
		if name := v.Type().Field(n).Name; strings.HasPrefix(name, "Drop") {
			all[name] = v.Field(n).Uint()
		}
	}
	return all
}

// Each kind of drop has a counter of its own, which rises by one for it, and no other one does.
func TestDrops(t *testing.T) {
	nobody := netip.MustParseAddr("10.0.0.99")
	datagram := func(a *node, f []byte) {
		a.ReceiveDatagram(a.w.now, gid(7), 0x700, f)
	}
	// connected has a and b have a connection, and forgets what it took.
	connected := func(a, b *node) *Conn {
		a.sends(packet(a.ip4(), b.ip4(), 3000))
		a.w.run()
		c := b.peers[a.own.Bare()].conn
		if !c.Open() {
			t.Fatal("there is no connection")
		}
		return c
	}
	cases := map[string]func(a, b *node) (who *node, drop func()){
		"DropUnknownType": func(a, _ *node) (*node, func()) {
			return a, func() { datagram(a, frame(RARP, make([]byte, 56))) }
		},
		"DropMalformed": func(a, _ *node) (*node, func()) {
			return a, func() { datagram(a, []byte{8, 0, 0}) }
		},
		"DropTooBig": func(a, b *node) (*node, func()) {
			connected(a, b)
			p := packet(a.ip6(), netip.MustParseAddr("ff02::7"), 2045)
			return a, func() { a.Send(a.w.now, p) }
		},
		"DropUnresolved": func(a, _ *node) (*node, func()) {
			return a, func() {
				a.sends(packet(a.ip4(), nobody, 100))
				a.w.pass(4 * retransTime)
			}
		},
		"DropWaiting": func(a, _ *node) (*node, func()) {
			for range maxWaiting {
				a.sends(packet(a.ip4(), nobody, 100))
			}
			return a, func() { a.sends(packet(a.ip4(), nobody, 100)) }
		},
		"DropNotJoined": func(a, _ *node) (*node, func()) {
			alone := &node{Interface: New(a.cfg), w: a.w}
			return alone, func() { alone.Send(a.w.now, packet(a.ip4(), nobody, 100)) }
		},
		"DropConnected": func(a, b *node) (*node, func()) {
			c := connected(a, b)
			p := packet(a.ip4(), allSystems, 100)
			return b, func() { b.ReceiveConnected(b.w.now, c, frame(IPv4, p)) }
		},
		"DropForeign": func(a, _ *node) (*node, func()) {
			claim := arpPacket{op: arpReply, sender: LinkAddr{QPN: 0x700, GID: gid(7)},
				senderIP: a.ip4(), targetIP: a.ip4()}
			return a, func() { datagram(a, frame(ARP, claim.append(nil))) }
		},
		"DropNeighbours": func(a, _ *node) (*node, func()) {
			ask := func(n int) { // who is asked for cannot be forgotten yet
				ip := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
				a.Send(a.w.now, packet(a.ip4(), ip, 100))
				a.Outputs()
			}
			for n := range maxNeighbours {
				ask(n)
			}
			return a, func() { ask(maxNeighbours) }
		},
		"DropGroups": func(a, _ *node) (*node, func()) {
			report := func(n int) {
				group := netip.AddrFrom4([4]byte{239, 1, byte(n >> 8), byte(n)})
				p := packet(a.ip4(), group, 28)
				p[9] = protoIGMP
				p[20] = igmpReport2
				copy(p[24:], group.AsSlice())
				a.Send(a.w.now, p)
				a.Outputs()
			}
			for n := range maxHostGroups {
				report(n)
			}
			return a, func() { report(maxHostGroups) }
		},
	}
	for name := range drops(Stats{}) {
		if cases[name] == nil {
			t.Errorf("nothing here makes %s rise", name)
		}
	}
	for name, c := range cases {
		w := newWorld(t)
		a, b := w.add(1, nil), w.add(2, nil)
		who, drop := c(a, b)
		want := drops(who.Stats())
		want[name]++
		drop()
		if got := drops(who.Stats()); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
