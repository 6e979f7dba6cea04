package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// An rxePeer is a UD queue pair of rxe in a guest that speaks IP over InfiniBand: the test says
// what it sends, and reads what it gets, octet by octet. Linux's ib_ipoib does not attach to rxe.
type rxePeer struct {
	*siwSide
	own []byte // its link-layer address
	r   *region
}

const (
	rxeSlots = 64
	rxeSlot  = 4096
	// The last slot is what is sent.
	ipoibQKey = 0x80000b1b
)

func newRxePeer(ctx context.Context, b *siwBench) *rxePeer {
	p := &rxePeer{siwSide: &siwSide{ctx: ctx, p: b.probe, rxe: true}}
	p.makeQP(rdma.UD)
	mask := rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrQKey
	p.modify(rdma.QPAttr{State: rdma.QPInit, Port: 1, QKey: ipoibQKey}, mask)
	p.modify(rdma.QPAttr{State: rdma.QPRTR}, rdma.AttrState)
	p.modify(rdma.QPAttr{State: rdma.QPRTS}, rdma.AttrState|rdma.AttrSQPSN)
	p.r = p.region(rxeSlots*rxeSlot, rdma.LocalWrite, 0)
	for i := range rxeSlots - 1 {
		p.recv(uint64(i), p.r, i*rxeSlot, rxeSlot)
	}
	gid := p.gid(p.linkLocal())
	p.own = append(binary.BigEndian.AppendUint32(nil, p.num()), gid[:]...)
	return p
}

// linkLocal is the index of the port's link-local GID, which a kernel takes a moment to have.
func (p *rxePeer) linkLocal() int {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(
		50 * time.Millisecond) {
		for i := range 8 {
			if g := p.gid(i); g[0] == 0xfe && g[1] == 0x80 {
				return i
			}
		}
	}
	failf("rxe has no link-local GID")
	return 0
}

func (p *rxePeer) attach(group string) {
	g := netip.MustParseAddr(group).As16()
	p.do("attach %s %x", p.conn, g[:])
}

// sends sends a frame to a queue pair of a GID, or to a group.
func (p *rxePeer) sends(to netip.Addr, qpn uint32, frame []byte) {
	const at = (rxeSlots - 1) * rxeSlot
	for i := 0; i < len(frame); i += 8 {
		var w [8]byte
		copy(w[:], frame[i:])
		p.setWord(p.r, at+i, binary.NativeEndian.Uint64(w[:]))
	}
	ah := p.address(rdma.AHAttr{GID: rdma.GID(to.As16()), GIDIndex: uint8(p.linkLocal())})
	p.post(work{id: 1 << 32, op: rdma.OpSend, r: p.r, off: at, n: len(frame),
		to: rdma.Datagram{AH: ah, QPN: qpn, QKey: ipoibQKey}})
	p.do("unah %d", ah)
	p.ahs = p.ahs[:len(p.ahs)-1]
}

// gets waits for the next frame that want accepts, and says whose it is.
func (p *rxePeer) gets(why string, want func(f []byte) bool) (f []byte, from uint32) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		for _, d := range p.poll(1, 10*time.Second) {
			if d.status != rdma.WCSuccess {
				failf("%s: %+v", why, d)
			}
			if d.id >= rxeSlots { // what was sent
				continue
			}
			f := make([]byte, 0, d.n+8)
			for i := 0; i < d.n; i += 8 {
				f = binary.NativeEndian.AppendUint64(f, p.word(p.r, int(d.id)*rxeSlot+i))
			}
			f = f[rdma.NetworkHeaderLen:d.n]
			p.recv(d.id, p.r, int(d.id)*rxeSlot, rxeSlot)
			if want(f) {
				return f, d.from
			}
		}
	}
	failf("%s: nothing comes", why)
	return nil, 0
}

// arp is a frame of ARP, from octets of link-layer and IPv4 addresses.
func arp(op byte, from []byte, ip string, to []byte, target string) []byte {
	f := []byte{8, 6, 0, 0, 0, 32, 8, 0, 20, 4, 0, op}
	f = append(append(f, from...), netip.MustParseAddr(ip).AsSlice()...)
	return append(append(f, to...), netip.MustParseAddr(target).AsSlice()...)
}

// ipoibFrame is a frame of IPv4 or IPv6.
func ipoibFrame(proto byte, from, to string, payload []byte) []byte {
	src, dst := netip.MustParseAddr(from).AsSlice(), netip.MustParseAddr(to).AsSlice()
	if len(src) == 16 {
		f := []byte{0x86, 0xdd, 0, 0, 0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)),
			proto, 255}
		return append(append(append(f, src...), dst...), payload...)
	}
	h := []byte{0x45, 0, byte((len(payload) + 20) >> 8), byte(len(payload) + 20), 0, 1, 0, 0, 64,
		proto, 0, 0}
	h = append(append(h, src...), dst...)
	binary.BigEndian.PutUint16(h[10:], onesSum(h))
	return append(append([]byte{8, 0, 0, 0}, h...), payload...)
}

// onesSum is the Internet's checksum.
func onesSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// rxe's UD queue pairs take what vrnic's interface sends, datagrams and groups, and it takes what
// they send: resolution by ARP and ND, a ping of the longest packet, and TCP that is refused.
// IPOIB-002, IPOIB-006, IPOIB-007, IPOIB-015, IPOIB-016, IPOIB-025.
func TestRxeIPoIB(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	b := newSiwBench(t, ctx, siwImage(t, ctx), false, true, "--ipoib",
		"ib0,dev=vrnic0,addr=10.78.0.1/24,addr=fd78::1/64")
	if err := guarded(func() { rxeSpeaksIPoIB(ctx, b) }); err != nil {
		t.Errorf("%v\n%s", err, b.d.run("show", "ipoib"))
	}
	b.stop()
}

func rxeSpeaksIPoIB(ctx context.Context, b *siwBench) {
	var rows []struct {
		GID netip.Addr `json:"gid"`
		QPN uint32     `json:"qpn"`
	}
	must(json.Unmarshal([]byte(b.d.run("show", "ipoib", "--json")), &rows))
	gid, qpn := rows[0].GID, rows[0].QPN
	vrnic := append(binary.BigEndian.AppendUint32(nil, qpn), gid.AsSlice()...)
	const broadcast, everyone = "ff12:401b:ffff::ffff:ffff", 1<<24 - 1
	p := newRxePeer(ctx, b)
	p.attach(broadcast)

	// rxe asks, to all; what it says of itself vrnic knows then.
	p.sends(netip.MustParseAddr(broadcast), everyone,
		arp(1, p.own, "10.78.0.9", make([]byte, 20), "10.78.0.1"))
	want := arp(2, vrnic, "10.78.0.1", p.own, "10.78.0.9")
	_, from := p.gets("a reply of ARP", func(f []byte) bool { return bytes.Equal(f, want) })
	if from != qpn {
		failf("the reply is queue pair %#x's, want %#x", from, qpn)
	}
	// A ping, as long as datagrams are.
	echo := make([]byte, 2044-20)
	fillPattern(echo, 1)
	copy(echo, []byte{8, 0, 0, 0, 0, 7, 0, 1})
	binary.BigEndian.PutUint16(echo[2:], onesSum(echo))
	p.sends(gid, qpn, ipoibFrame(1, "10.78.0.9", "10.78.0.1", echo))
	f, _ := p.gets("an answer to a ping", func(f []byte) bool {
		return len(f) == 2048 && f[0] == 8 && f[1] == 0 && f[13] == 1
	})
	if f[24] != 0 || !bytes.Equal(f[28:], echo[4:]) || onesSum(f[24:]) != 0 {
		failf("an answer to a ping: % x", f[:40])
	}

	// vrnic asks, for two addresses that are rxe's: connections are refused.
	for _, ip := range []string{"10.78.0.9", "10.78.0.10"} {
		client := b.d.start("ping", "-c", "-d", "ib0", "-a", ip, "-C", "1")
		if ip != "10.78.0.9" { // which is known
			asked := arp(1, vrnic, "10.78.0.1", make([]byte, 20), ip)
			p.gets("a request of ARP", func(f []byte) bool { return bytes.Equal(f, asked) })
			p.sends(gid, qpn, arp(2, p.own, ip, vrnic, "10.78.0.1"))
		}
		syn, _ := p.gets("a SYN", func(f []byte) bool {
			return len(f) >= 44 && f[0] == 8 && f[1] == 0 && f[13] == 6 && f[37] == 2
		})
		p.sends(gid, qpn, ipoibFrame(6, ip, "10.78.0.1", refusal(syn, ip)))
		if client.Wait(patience) == nil {
			failf("a connection to rxe")
		}
		client.WaitOutput("refused", 1)
	}

	// ND: a solicitation to the group of vrnic's address.
	target := netip.MustParseAddr("fd78::1").AsSlice()
	ns := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target...)
	ns = append(append(ns, 1, 3, 0, 0), p.own...)
	setICMPv6(ns, "fd78::9", "ff02::1:ff00:1")
	p.sends(netip.MustParseAddr("ff12:601b:ffff::1:ff00:1"), everyone,
		ipoibFrame(58, "fd78::9", "ff02::1:ff00:1", ns))
	na, _ := p.gets("an advertisement", func(f []byte) bool {
		return len(f) == 4+40+48 && f[0] == 0x86 && f[44] == 136
	})
	if !bytes.Equal(na[52:68], target) || !bytes.Equal(na[68:72], []byte{2, 3, 0, 0}) ||
		!bytes.Equal(na[72:92], vrnic) {
		failf("an advertisement: % x", na)
	}
	p.close()
}

// refusal is a RST to a SYN of 10.78.0.1's, in its frame.
func refusal(syn []byte, from string) []byte {
	s := syn[24:]
	rst := append(append([]byte{}, s[2:4]...), s[0:2]...)
	rst = append(rst, 0, 0, 0, 0)
	rst = binary.BigEndian.AppendUint32(rst, binary.BigEndian.Uint32(s[4:])+1)
	rst = append(rst, 5<<4, 0x14, 0, 0, 0, 0, 0, 0)
	pseudo := append(netip.MustParseAddr(from).AsSlice(), 10, 78, 0, 1, 0, 6, 0, byte(len(rst)))
	binary.BigEndian.PutUint16(rst[16:], onesSum(append(pseudo, rst...)))
	return rst
}

func setICMPv6(m []byte, from, to string) {
	pseudo := append(netip.MustParseAddr(from).AsSlice(), netip.MustParseAddr(to).AsSlice()...)
	pseudo = append(pseudo, 0, 0, 0, byte(len(m)), 0, 0, 0, 58)
	binary.BigEndian.PutUint16(m[2:], onesSum(append(pseudo, m...)))
}
