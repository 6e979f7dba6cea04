package sctp

import "testing"

// A peer with two addresses may send its INIT from one to ours of the other network, as usrsctp
// does: each of its addresses is reached from ours in the same network all the same. Found against
// usrsctp. SCTP-064.
func TestSourceOfCrossedInit(t *testing.T) {
	for _, tt := range []struct {
		name           string
		src, dst, also string
	}{
		{"crossed", "10.2.0.1", "10.1.0.2", "10.1.0.1"},
		{"straight", "10.2.0.1", "10.2.0.2", "10.1.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			n := w.node("n", Config{}, addrB, addrB2)
			if err := n.e.Listen(5043, ListenConfig{Locals: n.addrs}); err != nil {
				t.Fatal(err)
			}
			p := &rawPeer{w: w, n: n, src: addr(tt.src), dst: addr(tt.dst), sport: 4000, dport: 5043,
				own: peerTag, tsn: peerTSN}
			p.handshake(100_000, appendAddr(nil, addr(tt.also)))
			want := map[string]string{"10.1.0.1": "10.1.0.2", "10.2.0.1": "10.2.0.2"}
			for _, x := range p.a.Paths() {
				if x.Local.String() != want[x.Addr.String()] {
					t.Errorf("%v is reached from %v, want %s", x.Addr, x.Local, want[x.Addr.String()])
				}
				if x.Confirmed != (x.Addr == p.src) {
					t.Errorf("%v: confirmed %v; the cookie came from %v", x.Addr, x.Confirmed, p.src)
				}
			}
		})
	}
	// With one address there is no choice: it may be far from the peer's.
	_, n, p := lonely(t, Config{})
	p.src, p.dst = addr("192.0.2.1"), addrB
	p.handshake(100_000)
	if x := n.last.Paths()[0]; x.Local != addrB {
		t.Errorf("%v is reached from %v", x.Addr, x.Local)
	}
}
