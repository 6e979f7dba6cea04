package packets

import (
	"testing"

	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
)

// ROCE-211: packets that wait for a QP are bounded, in number and in octets; those beyond are lost,
// and what is taken makes room.
func TestInbox(t *testing.T) {
	for _, tt := range []struct{ octets, most int }{{16, inboxMost}, {1 << 16, inboxOctets >> 16}} {
		var x Inbox
		p := datagram.Packet{Packet: udp.Packet{
			Header: []byte{0x45, 0}, Datagram: make([]byte, tt.octets)}}
		for round := range 3 {
			n := 0
			for x.Put(&p) {
				p.Datagram[0] = byte(n)
				n++
			}
			if n != tt.most {
				t.Fatalf("packets of %d octets: %d wait, want %d", tt.octets, n, tt.most)
			}
			came := x.take()
			if len(came) != tt.most || len(x.take()) != 0 {
				t.Fatalf("round %d: %d are taken", round, len(came))
			}
			for i := range came {
				if want := max(i-1, 0); round == 0 && came[i].b[0] != byte(want) {
					t.Fatalf("packet %d begins with %d: its octets are another's", i, came[i].b[0])
				}
			}
			for i := range came {
				came[i].free()
			}
		}
		x.close()
		if x.Put(&p) {
			t.Error("a closed one takes a packet")
		}
	}
}
