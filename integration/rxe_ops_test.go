package integration

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A roceWay is how two queue pairs are joined, and over which network.
type roceWay struct {
	kind   rdma.QPType
	mtu    rdma.MTU
	family family
	net    *roceNet

	// Of faults; zero asks for what conversations use.
	access   rdma.Access // that the responder's QP does not allow
	retries  uint8       // and RNR retries, plus one
	stranger bool        // the requester's peer is a QP that there is not
}

// A roceNet is what netem does to the frames of both ends, in the words of tc-netem(8).
type roceNet struct{ name, netem string }

const roceQKey = 0x11111111

// gidIndex finds an address in a side's GID table. A kernel takes a moment to put one there.
func gidIndex(x byHand, a netip.Addr) uint8 {
	want := rdma.GIDOf(a)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(
		50 * time.Millisecond) {
		for i := range uint8(8) {
			if x.gid(int(i)) == want {
				return i
			}
		}
	}
	failf("%v: no GID %v", x, a)
	return 0
}

// join makes both ends and connects their queue pairs by their attributes, first requester's.
func (b *siwBench) join(ctx context.Context, w roceWay, requester initiator) *pair {
	b.port++
	p := &pair{plan: plan{from: requester, family: w.family, kind: w.kind,
		noFence: w.net.netem != ""}, b: b, port: b.port}
	p.newSides(ctx)
	p.s.makeQP(w.kind)
	p.connectByNumber([2]byHand{p.s, p.v}, w, int(requester))
	return p
}

// connectByNumber brings both ends' queue pairs to RTS, connected if they can be.
func (p *pair) connectByNumber(ends [2]byHand, w roceWay, requester int) {
	var psn [2]uint32
	for i := range psn {
		// Near the wrap in a half of the cases.
		psn[i] = rand.Uint32N(1 << 24)
		if rand.N(2) == 0 {
			psn[i] = 1<<24 - 1 - rand.Uint32N(8)
		}
	}
	for i, x := range ends {
		far := ends[1-i]
		a := rdma.QPAttr{State: rdma.QPInit, Port: 1, QKey: roceQKey,
			Access: (rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic) &^ w.access}
		mask := rdma.AttrState | rdma.AttrPKeyIndex | rdma.AttrPort
		if w.kind == rdma.UD {
			x.modify(a, mask|rdma.AttrQKey)
			x.modify(rdma.QPAttr{State: rdma.QPRTR}, rdma.AttrState)
			x.modify(rdma.QPAttr{State: rdma.QPRTS, SQPSN: psn[i]}, rdma.AttrState|rdma.AttrSQPSN)
			continue
		}
		x.modify(a, mask|rdma.AttrAccess)
		a = rdma.QPAttr{State: rdma.QPRTR, PathMTU: w.mtu, DestQPN: far.num(), RQPSN: psn[1-i],
			MaxDestRead: 16, MinRNRTimer: 12, Path: p.path(x, far)}
		if w.stranger && i == requester {
			a.DestQPN ^= 1 << 23
		}
		mask = rdma.AttrState | rdma.AttrPath | rdma.AttrPathMTU | rdma.AttrDestQPN | rdma.AttrRQPSN
		if w.kind == rdma.RC {
			mask |= rdma.AttrMaxDestRead | rdma.AttrMinRNRTimer
		}
		x.modify(a, mask)
		a = rdma.QPAttr{State: rdma.QPRTS, SQPSN: psn[i], Timeout: 17, RetryCount: 7, RNRRetry: 7,
			MaxRead: 16}
		if w.retries > 0 {
			a.RetryCount, a.RNRRetry = w.retries-1, w.retries-1
		}
		mask = rdma.AttrState | rdma.AttrSQPSN
		if w.kind == rdma.RC {
			mask |= rdma.AttrTimeout | rdma.AttrRetryCount | rdma.AttrRNRRetry | rdma.AttrMaxRead
		}
		x.modify(a, mask)
	}
}

// path is the way from x to far.
func (p *pair) path(x, far byHand) rdma.AHAttr {
	return rdma.AHAttr{GID: rdma.GIDOf(far.addr(p.family)), GIDIndex: gidIndex(x, x.addr(p.family)),
		Port: 1, Global: true, HopLimit: 64}
}

// immediates has Sends and Writes with immediate data.
func immediates(p *pair, from, to side) {
	sizes := []int{0, 1, 255, 256, 1024, 1025, 5000}
	l := layOut(sizes)
	seed := uint64(p.port)<<16 + 9<<12
	src := l.source(from, 0, seed)
	sent, written := l.target(to, 0), l.target(to, rdma.RemoteWrite)
	number := func(i int) uint32 { return uint32(p.port)<<16 + 0x01020304*uint32(i+1) }
	l.each(func(i, off, n int) {
		to.recv(uint64(2*i), sent, off, n)
		to.recv(uint64(2*i+1), sent, off, 0)
		from.post(work{id: uint64(2 * i), op: rdma.OpSendImm, r: src, off: off, n: n,
			flags: rdma.Solicited, imm: number(2 * i)})
		from.post(work{id: uint64(2*i + 1), op: rdma.OpWriteImm, r: src, off: off, n: n,
			addr: written.addr + uint64(off), key: written.key, imm: number(2*i + 1)})
	})
	succeeded(from, 0, 2*len(sizes))
	got := to.poll(2*len(sizes), doneLimit)
	for i, d := range got {
		op := []rdma.WCOpcode{rdma.WCRecv, rdma.WCRecvImm}[i%2]
		if d.status != rdma.WCSuccess || d.id != uint64(i) || d.imm != number(i) || d.op != op ||
			d.n != sizes[i/2] {
			failf("%v: receive %d of %d octets with %#x has completed as %+v", to, i, sizes[i/2],
				number(i), d)
		}
	}
	if len(got) != 2*len(sizes) {
		failf("%v: %d of %d messages have come", to, len(got), 2*len(sizes))
	}
	l.arrived(to, sent, seed)
	l.arrived(to, written, seed)
}

// atomics adds and swaps, and wants what was there before.
func atomics(p *pair, from, to side) {
	const rounds = 40
	near := from.region(8*(2*rounds+2), rdma.LocalWrite, 0)
	far := to.region(64, rdma.LocalWrite|rdma.RemoteAtomic, 0)
	x, y := from.(byHand), to.(byHand)
	const step = 3
	begin := ^uint64(15) // so that it wraps
	y.setWord(far, 8, begin)
	y.setWord(far, 16, 100)
	for i := range rounds {
		from.post(work{id: uint64(2 * i), op: rdma.OpFetchAdd, r: near, off: 8 * 2 * i, n: 8,
			addr: far.addr + 8, key: far.key, compare: step})
		// Every other one finds what it compares with.
		from.post(work{id: uint64(2*i + 1), op: rdma.OpCompareSwap, r: near, off: 8 * (2*i + 1), n: 8,
			addr: far.addr + 16, key: far.key, compare: uint64(100 + i/2), swap: uint64(101 + i/2)})
	}
	succeeded(from, 0, 2*rounds)
	swapped := uint64(100)
	for i := range rounds {
		if got, want := x.word(near, 8*2*i), begin+step*uint64(i); got != want {
			failf("%v: addition %d has found %#x, want %#x", from, i, got, want)
		}
		if got := x.word(near, 8*(2*i+1)); got != swapped {
			failf("%v: swap %d has found %d, want %d", from, i, got, swapped)
		}
		if swapped == uint64(100+i/2) {
			swapped++
		}
	}
	if got, want := y.word(far, 8), begin+step*rounds; got != want {
		failf("%v: %#x after all additions, want %#x", to, got, want)
	}
	if got := y.word(far, 16); got != swapped {
		failf("%v: %d after all swaps, want %d", to, got, swapped)
	}
}

// grhLen is how much of a datagram's receive is the network header.
const grhLen = 40

// datagrams sends some of all sizes, with and without immediate data, and one with a wrong Q_Key,
// which must not arrive.
func datagrams(mtu rdma.MTU) func(p *pair, from, to side) {
	return func(p *pair, from, to side) {
		sizes := []int{0, 1, 3, 100, 255, mtu.Octets() - 1, mtu.Octets()}
		x, y := from.(byHand), to.(byHand)
		l := layOut(sizes)
		seed := uint64(p.port)<<16 + 10<<12
		src := l.source(from, 0, seed)
		dst := to.region(len(sizes)*(grhLen+mtu.Octets()), rdma.LocalWrite, 0)
		at := rdma.Datagram{AH: x.address(p.path(x, y)), QPN: y.num(), QKey: roceQKey}
		wrong := at
		wrong.QKey ^= 1
		l.each(func(i, off, n int) {
			to.recv(uint64(i), dst, i*(grhLen+mtu.Octets()), grhLen+n)
		})
		l.each(func(i, off, n int) {
			w := work{id: uint64(2*i + 1), op: rdma.OpSend, r: src, off: off, n: n, to: at}
			bad := w
			bad.id, bad.to = uint64(2*i), wrong
			if i%2 == 1 {
				w.op, w.imm = rdma.OpSendImm, 0xa0b0c0d0+uint32(i)
			}
			from.post(bad)
			from.post(w)
		})
		succeeded(from, 0, 2*len(sizes))
		got := to.poll(len(sizes), doneLimit)
		if len(got) != len(sizes) {
			failf("%v: %d of %d datagrams have come", to, len(got), len(sizes))
		}
		for i, d := range got {
			imm := uint32(0)
			if i%2 == 1 {
				imm = 0xa0b0c0d0 + uint32(i)
			}
			if d.status != rdma.WCSuccess || d.id != uint64(i) || d.n != grhLen+sizes[i] ||
				d.from != x.num() || i%2 == 1 && d.imm != imm {
				failf("%v: the receive of a datagram of %d octets has completed as %+v", to, sizes[i], d)
			}
			to.check(dst, i*(grhLen+mtu.Octets())+grhLen, sizes[i], seed+uint64(i))
		}
	}
}

// some has messages over a network that loses, of a queue pair that does not repeat: what arrives
// is whole, in order, and one of those that were sent.
func some(kind rdma.QPType, mtu rdma.MTU) func(p *pair, from, to side) {
	return func(p *pair, from, to side) {
		const rounds = 100
		n, head := 3*mtu.Octets()/2, 0
		if kind == rdma.UD {
			n, head = mtu.Octets()/2, grhLen
		}
		x, y := from.(byHand), to.(byHand)
		l := layOut(make([]int, rounds))
		for i := range l.sizes {
			l.sizes[i] = n
		}
		l = layOut(l.sizes)
		seed := uint64(p.port)<<16 + 11<<12
		src := l.source(from, 0, seed)
		dst := to.region(rounds*(head+n), rdma.LocalWrite, 0)
		var at rdma.Datagram
		if kind == rdma.UD {
			at = rdma.Datagram{AH: x.address(p.path(x, y)), QPN: y.num(), QKey: roceQKey}
		}
		for i := range rounds {
			to.recv(uint64(i), dst, i*(head+n), head+n)
		}
		l.each(func(i, off, n int) {
			from.post(work{id: uint64(i), op: rdma.OpSendImm, r: src, off: off, n: n, imm: uint32(i),
				to: at})
		})
		succeeded(from, 0, rounds)
		got := to.poll(rounds, 2*time.Second)
		if len(got) == 0 {
			failf("%v: nothing has come", to)
		}
		seen := make(map[uint32]bool)
		for i, d := range got {
			if d.status != rdma.WCSuccess || d.id != uint64(i) || d.n != head+n || d.imm >= rounds {
				failf("%v: receive %d has completed as %+v", to, i, d)
			}
			if kind == rdma.UC && seen[d.imm] {
				failf("%v: message %d has come twice", to, d.imm)
			}
			seen[d.imm] = true
			to.check(dst, i*(head+n)+head, n, seed+uint64(d.imm))
		}
	}
}
