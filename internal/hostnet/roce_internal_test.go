package hostnet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/netstack/hostudp"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
)

// taken is what a Receiver has been given last.
type taken struct {
	header []byte
	class  uint8
	valid  bool
	n      int
}

func (r *taken) ReceiveRoCE(p *vnic.RoCEPacket) {
	*r = taken{bytes.Clone(p.Header), p.TrafficClass(), p.Valid(), r.n + 1}
}

// ROCE-009: of a packet whose identification the kernel does not show the header is made again from
// its ICRC, whatever the peer had put there, with DF and without; one that is damaged is not valid.
func TestIdentify(t *testing.T) {
	for _, a := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		src, dst := netip.MustParseAddr(a[0]), netip.MustParseAddr(a[1])
		template := udp.NewTemplate(udp.Flow{Src: src, Dst: dst, SrcPort: 0xc123, TrafficClass: 0x6b,
			HopLimit: 7})
		got := &taken{}
		r := &roceReceiver{up: got, n: new(Network)}
		for i := range 200 {
			h := packet.Header{Opcode: packet.SendOnly, PKey: packet.DefaultPKey, Dest: 18,
				PSN: packet.PSN(i)}
			ip := template.Finish(append(h.Append(template.Append(nil)), make([]byte, i*4)...))
			head, end := ipLen(ip)+udp.HeaderLen, len(ip)-packet.ICRCLen
			if i%2 == 1 && src.Is4() { // DF is not set
				ip[6] = 0
				c, _ := packet.Of(ip[:end])
				c.Append(ip[:end])
			}
			d := &hostudp.Datagram{Src: netip.AddrPortFrom(src, 0xc123), Dst: dst, Class: 0x6b, Hops: 7,
				Data: bytes.Clone(ip[head:])}
			r.Receive(d)
			if src.Is4() {
				ip[10], ip[11] = 0, 0 // of the header's checksum nobody asks
			}
			if !got.valid || got.class != 0x6b || !bytes.Equal(got.header, ip[:head]) {
				t.Fatalf("%v, packet %d: %v, header\n% x, was\n% x", src, i, got.valid, got.header, ip[:head])
			}
			d.Data[12] ^= 1 // some payload, or the ICRC
			if r.Receive(d); got.valid {
				t.Fatalf("%v, packet %d: a damaged packet is valid", src, i)
			}
		}
		n := got.n
		r.Receive(&hostudp.Datagram{Src: netip.AddrPortFrom(src, 1), Dst: dst, Data: make([]byte, 15)})
		if got.n != n {
			t.Error("what is shorter than any packet is handed up")
		}
	}
}

// A packet that a device has made has the ICRC of the headers that the kernel gives it.
func TestKernels(t *testing.T) {
	for _, a := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		template := udp.NewTemplate(udp.Flow{Src: netip.MustParseAddr(a[0]),
			Dst: netip.MustParseAddr(a[1]), SrcPort: 0xc123})
		x := &roceSender{}
		for i := range 100 {
			h := packet.Header{Opcode: packet.SendOnly, PSN: packet.PSN(i)}
			ip := template.Finish(append(h.Append(template.Append(nil)), make([]byte, i%3*4)...))
			x.kernels(ip, uint16(i))
			if p, err := udp.Parse(ip); err != nil || !p.Valid() ||
				binary.BigEndian.Uint16(ip[ipLen(ip):]) != packet.Port ||
				p.Src.Is4() && binary.BigEndian.Uint16(ip[4:]) != uint16(i) {
				t.Fatalf("%v, packet %d: %v, % x", a, i, err, ip)
			}
		}
	}
}

// told is a Receiver that may be called at any time.
type told struct {
	mu    sync.Mutex
	first []byte // octets of what came
}

func (r *told) ReceiveRoCE(p *vnic.RoCEPacket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first = append(r.first, p.Datagram[0])
}

// Two copies of a packet may arrive at the same time, one where the socket is read and the other
// from the Road that was slower: each is what it is. That they share nothing -race tells.
func TestTwoCopies(t *testing.T) {
	up := &told{}
	r := &roceReceiver{up: up, n: new(Network)}
	d := &hostudp.Datagram{Src: netip.MustParseAddrPort("10.0.0.1:4000"),
		Dst: netip.MustParseAddr("10.0.0.2"), Data: make([]byte, 40)}
	for range 100 {
		one := r.later(d)
		other := *one
		other.Octets = slices.Clone(one.Octets)
		other.Octets[one.From] = 1
		up.first = nil
		var all sync.WaitGroup
		all.Go(func() { one.Arrive(one) })
		all.Go(func() { other.Arrive(&other) })
		all.Wait()
		if slices.Sort(up.first); !bytes.Equal(up.first, []byte{0, 1}) {
			t.Fatalf("copies with 0 and 1 arrive as %v", up.first)
		}
	}
}
