package stacknet_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// The flags of TCP.
const (
	syn = 2
	ack = 16
)

// segmentOf gives the parts of a frame with TCP over IPv4; ok is false for another.
func segmentOf(b []byte) (flags byte, data int, from, to uint16, ok bool) {
	if len(b) < 54 || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[23] != 6 {
		return 0, 0, 0, 0, false
	}
	l4 := 14 + int(b[14]&15)*4
	data = int(binary.BigEndian.Uint16(b[16:])) - (l4 - 14) - int(b[l4+12]>>4)*4
	return b[l4+13], data, binary.BigEndian.Uint16(b[l4:]), binary.BigEndian.Uint16(b[l4+2:]), true
}

// A shuffler keeps back segments of a kind until it has one of each of n connections, and has them
// arrive in the reverse order of the first.
type shuffler struct {
	kind func(flags byte, data int) bool
	n    int
	lost int // so many of the first of them do not arrive

	mu   sync.Mutex
	seen map[uint16]bool // by the port of who connects
	held []func()
}

func (s *shuffler) carry(flags byte, data int, port uint16, deliver func()) {
	s.mu.Lock()
	if !s.kind(flags, data) || s.seen[port] {
		s.mu.Unlock()
		deliver()
		return
	}
	if s.seen == nil {
		s.seen = make(map[uint16]bool)
	}
	s.seen[port] = true
	s.held = append(s.held, deliver)
	var arrive []func()
	if len(s.held) == s.n {
		arrive = slices.Clone(s.held[s.lost:])
		slices.Reverse(arrive)
	}
	s.mu.Unlock()
	for _, f := range arrive {
		f()
	}
}

// The requests of connections that a program asks for one right behind the other are announced in
// that order, whatever the network does to the order of the handshakes' segments, and in whichever
// order the listener's stack is done with them.
func TestConnectOrder(t *testing.T) {
	const n = 8 // streams are opened that many at a time
	isSYN := func(flags byte, data int) bool { return flags == syn }
	for i, test := range []struct {
		name string
		kind func(flags byte, data int) bool
		lost int
	}{
		{"as they are sent", func(flags byte, data int) bool { return false }, 0},
		{"SYNs reversed", isSYN, 0},
		{"SYN-ACKs reversed", func(flags byte, data int) bool { return flags == syn|ack }, 0},
		{"ACKs reversed", func(flags byte, data int) bool { return flags == ack && data == 0 }, 0},
		{"SYNs reversed, and two lost", isSYN, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // a SYN is sent again after a second
			const port = 7471
			s := &shuffler{kind: test.kind, n: n, lost: test.lost}
			sw := []*ethswitch.Switch{ethswitch.New(ethswitch.Config{}), ethswitch.New(ethswitch.Config{})}
			porttest.Bend(t, sw[0], sw[1], func(b []byte, deliver func()) {
				flags, data, from, to, ok := segmentOf(b)
				switch {
				case ok && to == port:
					s.carry(flags, data, from, deliver)
				case ok && from == port:
					s.carry(flags, data, to, deliver)
				default:
					deliver()
				}
			})
			// Nobody is late here, on whatever machine.
			cs := devices(t, sw, vnic.Timeouts{Turn: time.Minute})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			l, err := cs[1].Listen(netip.AddrPortFrom(cs[1].Attr().Addrs[0].Addr(), port), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			remote := l.Addr()
			var ids []*vnic.CMID
			resolved := make(chan struct{})
			for range n {
				id, err := cs[0].NewCMID(func(ev vnic.CMEvent) {
					if ev.Type == vnic.CMAddrResolved {
						resolved <- struct{}{}
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := id.ResolveAddr(netip.Addr{}, remote, 0); err != nil {
					t.Fatal(err)
				}
				<-resolved
				ids = append(ids, id)
			}
			for i, id := range ids {
				if err := id.Connect(vnictest.NewPeer(t, cs[0], vnictest.PeerConfig{}).QP, rdma.ConnParam{
					PrivateData: []byte{byte(i)}}); err != nil {
					t.Fatal(err)
				}
			}
			for want := range n {
				r, err := l.Next(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if got := r.Param().PrivateData; len(got) == 0 || got[0] != byte(want) {
					t.Errorf("request %d is %v", want, got)
				}
				if err := r.Reject(nil); err != nil {
					t.Error(err)
				}
			}
			if s.mu.Lock(); i > 0 && len(s.held) != n {
				t.Errorf("%d segments were shuffled, want %d", len(s.held), n)
			}
			s.mu.Unlock()
			for _, id := range ids {
				id.Close()
			}
		})
	}
}
