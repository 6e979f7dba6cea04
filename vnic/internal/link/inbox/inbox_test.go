package inbox_test

import (
	"testing"

	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	. "github.com/vrnic/vrnic/vnic/internal/link/inbox"
)

// A piece is memory that packets lie in.
type piece struct {
	b    []byte
	kept int
}

func (p *piece) Keep() datagram.Kept { p.kept++; return p }
func (p *piece) Release()            { p.kept-- }

func (p *piece) Memory() (end *byte, octets int) { return &p.b[len(p.b)-1], len(p.b) }

// fill puts packets of n octets of the pieces in as long as there is room: how many.
func fill(x *Inbox, n int, pieces ...*piece) (put int) {
	for _, m := range pieces {
		for off := 0; off+n <= len(m.b); off += n {
			m.b[off] = byte(put)
			if !x.Put(&datagram.Packet{Owner: m, Packet: udp.Packet{
				Header: []byte{0x45, udp.CE}, Datagram: m.b[off:][:n]}}) {
				return put
			}
			put++
		}
	}
	return put
}

func pieces(n, size int) (all []*piece) {
	for range n {
		all = append(all, &piece{b: make([]byte, size)})
	}
	return all
}

// ROCE-211: packets that wait for a QP are bounded, in number, and in the memory that they keep,
// which is that of all they came with; those beyond are lost, and what is taken makes room.
func TestInbox(t *testing.T) {
	const most = 1 << 20
	for _, tt := range []struct{ size, octets, want int }{
		{64, 64, 1000},                    // as many as there may be
		{1 << 16, 1 << 10, 1000},          // many of one piece
		{1 << 16, 1 << 16, most >> 16},    // whole ones
		{1 << 16, 1<<15 + 1, most >> 16},  // a part of each is kept, and counts whole
		{1 << 12, 1<<11 + 16, most >> 12}, // the same, of smaller ones
	} {
		x := New(Config{Packets: 1000, Octets: most})
		for round := range 3 {
			all := pieces(2000, tt.size)
			if n := fill(x, tt.octets, all...); n != tt.want {
				t.Fatalf("%d octets of pieces of %d: %d wait, want %d", tt.octets, tt.size, n, tt.want)
			}
			came := x.Take()
			if len(came) != tt.want || len(x.Take()) != 0 {
				t.Fatalf("round %d: %d are taken", round, len(came))
			}
			for i := range came {
				if came[i].Octets[0] != byte(i) || !came[i].Congested {
					t.Fatalf("packet %d begins with %d, congested %v", i, came[i].Octets[0], came[i].Congested)
				}
				came[i].Free()
			}
			for i, m := range all {
				if m.kept != 0 {
					t.Fatalf("piece %d is kept %d times when all was freed", i, m.kept)
				}
			}
		}
	}
}

// What cannot be kept is copied, and is the packet's own.
func TestCopies(t *testing.T) {
	x := New(Config{Packets: 1000, Octets: 1 << 20, Heads: true})
	p := datagram.Packet{Packet: udp.Packet{Header: make([]byte, 20), Datagram: make([]byte, 1<<16)}}
	p.Header[0] = 0x45
	n := 0
	for x.Put(&p) {
		n++
		p.Datagram[0] = byte(n)
	}
	if n == 0 || n > 16 {
		t.Fatalf("%d copies of 64 KiB wait in 1 MiB", n)
	}
	came := x.Take()
	for i := range came {
		if came[i].Octets[0] != byte(i) || len(came[i].IP()) != 20 {
			t.Errorf("packet %d begins with %d", i, came[i].Octets[0])
		}
		came[i].Free()
	}
	if !x.Put(&p) {
		t.Error("no room in an empty one")
	}
	x.Close()
	if x.Put(&p) {
		t.Error("a closed one takes a packet")
	}
}

// ROCE-211: the Inboxes of one user share what that user has, and all users what the device has;
// nothing is left of either when all were emptied or closed.
func TestBudget(t *testing.T) {
	device := &Budget{Max: 10 << 16}
	users := []*Budget{{Max: 6 << 16, Parent: device}, {Max: 6 << 16, Parent: device}}
	var all []*Inbox
	for i := range 6 {
		x := New(Config{Packets: 1000, Octets: 3 << 16, Budget: users[i/3]})
		n := fill(x, 1<<16, pieces(5, 1<<16)...)
		if want := []int{3, 3, 0, 3, 1, 0}[i]; n != want {
			t.Errorf("inbox %d has %d pieces, want %d", i, n, want)
		}
		all = append(all, x)
	}
	for i, x := range all {
		if i%2 == 0 {
			for p := range x.Take() {
				_ = p
			}
		}
		x.Close()
	}
	if device.Used() != 0 || users[0].Used() != 0 || users[1].Used() != 0 {
		t.Errorf("%d, %d and %d octets are counted of what is gone", device.Used(), users[0].Used(),
			users[1].Used())
	}
}
