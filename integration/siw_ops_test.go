package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/rdma"
)

// siwSizes are the sizes of messages: none, around a word and a pad, around what one segment of
// either end holds (1424 octets untagged and 1428 tagged from siw), several segments.
var siwSizes = []int{0, 1, 2, 3, 4, 5, 31, 32, 33, 100, 1000, 1423, 1424, 1425, 1427, 1428, 1429,
	1440, 1448, 2856, 2857, 4095, 4096, 4097, 16384, 65535, 65536, 262144}

// doneLimit is how long the completions of an operation may take, on a wire that loses frames too.
const doneLimit = 60 * time.Second

// slots lays messages out in a region, some octets that nobody may touch around each.
type slots struct {
	sizes, offs []int
	size        int // of the region
}

const (
	guardLen  = 24
	guardSeed = 0xdeadbeef
)

func layOut(sizes []int) slots {
	s := slots{sizes: sizes}
	for _, n := range sizes {
		s.size += guardLen
		s.offs = append(s.offs, s.size)
		s.size += n
	}
	s.size += guardLen
	return s
}

func (l slots) each(f func(i, off, n int)) {
	for i, off := range l.offs {
		f(i, off, l.sizes[i])
	}
}

// source makes a region with data in the slots.
func (l slots) source(x side, access rdma.Access, seed uint64) *region {
	r := x.region(l.size, access, 0)
	l.each(func(i, off, n int) { x.fill(r, off, n, seed+uint64(i)) })
	return r
}

// target makes a region for data to go to.
func (l slots) target(x side, access rdma.Access) *region {
	r := x.region(l.size, access|rdma.LocalWrite, 0)
	l.guards(func(off int) { x.fill(r, off, guardLen, guardSeed) })
	return r
}

func (l slots) guards(f func(off int)) {
	for i, off := range l.offs {
		f(off - guardLen)
		if i == len(l.offs)-1 {
			f(off + l.sizes[i])
		}
	}
}

// arrived wants the data in a target, and nothing beside it.
func (l slots) arrived(x side, r *region, seed uint64) {
	l.each(func(i, off, n int) { x.check(r, off, n, seed+uint64(i)) })
	l.guards(func(off int) { x.check(r, off, guardLen, guardSeed) })
}

// succeeded takes the completions of n requests with IDs from first on, in this order.
func succeeded(x side, first uint64, n int) {
	got := x.poll(n, doneLimit)
	for i, d := range got {
		if d.status != rdma.WCSuccess || d.id != first+uint64(i) {
			failf("%v: completion %d is of request %d: %v; want %d: success", x, i, d.id, d.status,
				first+uint64(i))
		}
	}
	if len(got) != n {
		failf("%v: %d of %d requests have completed within %v", x, len(got), n, doneLimit)
	}
}

// received takes the completions of receives 0, 1, ... with messages of these sizes.
func received(x side, sizes ...int) {
	got := x.poll(len(sizes), doneLimit)
	for i, d := range got {
		if d.status != rdma.WCSuccess || d.id != uint64(i) || d.n != sizes[i] || d.op != rdma.WCRecv {
			failf("%v: receive %d of %d octets has completed as %+v", x, i, sizes[i], d)
		}
	}
	if len(got) != len(sizes) {
		failf("%v: %d of %d messages have come within %v", x, len(got), len(sizes), doneLimit)
	}
}

// bothWays runs f from siw to vrnic and from vrnic to siw.
func bothWays(f func(p *pair, from, to side)) func(p *pair) {
	return func(p *pair) {
		for i, from := range p.sides() {
			f(p, from, p.sides()[1-i])
		}
	}
}

// sends has Sends of all sizes into receives of just that size.
func sends(p *pair, from, to side) {
	l := layOut(siwSizes)
	seed := uint64(p.port) << 16
	src, dst := l.source(from, 0, seed), l.target(to, 0)
	l.each(func(i, off, n int) { to.recv(uint64(i), dst, off, n) })
	l.each(func(i, off, n int) {
		w := work{id: uint64(i), op: rdma.OpSend, r: src, off: off, n: n}
		if i%2 == 1 {
			w.flags = rdma.Solicited
		}
		from.post(w)
	})
	succeeded(from, 0, len(siwSizes))
	received(to, siwSizes...)
	l.arrived(to, dst, seed)
}

// writes has Writes of all sizes, and a Send that says that they are done.
func writes(p *pair, from, to side) {
	l := layOut(siwSizes)
	seed := uint64(p.port)<<16 + 1<<12
	src, dst := l.source(from, 0, seed), l.target(to, rdma.RemoteWrite)
	to.recv(0, p.memOf(to), 0, 0)
	l.each(func(i, off, n int) {
		from.post(work{id: uint64(i), op: rdma.OpWrite, r: src, off: off, n: n,
			addr: dst.addr + uint64(off), key: dst.key})
	})
	from.post(work{id: uint64(len(siwSizes)), op: rdma.OpSend, r: src})
	received(to, 0)
	succeeded(from, 0, len(siwSizes)+1)
	l.arrived(to, dst, seed)
}

// reads has Reads of all sizes, all posted at once.
func reads(p *pair, from, to side) {
	l := layOut(siwSizes)
	seed := uint64(p.port)<<16 + 2<<12
	src, dst := l.source(to, rdma.RemoteRead, seed), l.target(from, 0)
	l.each(func(i, off, n int) {
		from.post(work{id: uint64(i), op: rdma.OpRead, r: dst, off: off, n: n,
			addr: src.addr + uint64(off), key: src.key})
	})
	succeeded(from, 0, len(siwSizes))
	l.arrived(from, dst, seed)
}

// mixed has both ends send, write and read at the same time.
func mixed(p *pair) {
	const rounds, n = 16, 3000
	sizes := slices.Repeat([]int{n}, rounds)
	l := layOut(sizes)
	type half struct {
		src, written, sent, fetched *region
		seed                        uint64
	}
	var halves [2]half
	for i, x := range p.sides() {
		h := &halves[i]
		h.seed = uint64(p.port)<<16 + uint64(3+i)<<12
		h.src = l.source(x, rdma.RemoteRead, h.seed)
		h.written, h.sent, h.fetched = l.target(x, rdma.RemoteWrite), l.target(x, 0), l.target(x, 0)
		l.each(func(j, off, n int) { x.recv(uint64(j), h.sent, off, n) })
	}
	var both sync.WaitGroup
	var errs [2]error
	for i, x := range p.sides() {
		both.Go(func() {
			errs[i] = guarded(func() {
				h, far := &halves[i], &halves[1-i]
				l.each(func(j, off, n int) {
					id := uint64(1000 + 10*j)
					x.post(work{id: id, op: rdma.OpWrite, r: h.src, off: off, n: n,
						addr: far.written.addr + uint64(off), key: far.written.key})
					x.post(work{id: id + 1, op: rdma.OpRead, r: h.fetched, off: off, n: n,
						addr: far.src.addr + uint64(off), key: far.src.key})
					w := work{id: id + 2, op: rdma.OpSend, r: h.src, off: off, n: n}
					if j == rounds/2 && !p.noFence {
						w.flags = rdma.Fence
					}
					x.post(w)
				})
			})
		})
	}
	both.Wait()
	must(errors.Join(errs[:]...))
	for i, x := range p.sides() {
		h, far := &halves[i], &halves[1-i]
		want := 4 * rounds
		got := x.poll(want, doneLimit)
		count := make(map[rdma.WCOpcode]int)
		for _, d := range got {
			if d.status != rdma.WCSuccess {
				failf("%v: completion %+v", x, d)
			}
			count[d.op]++
		}
		if count[rdma.WCWrite] != rounds || count[rdma.WCSend] != rounds ||
			count[rdma.WCRead] != rounds || count[rdma.WCRecv] != rounds || len(got) != want {
			failf("%v: %d of %d completions: %v", x, len(got), want, count)
		}
		l.arrived(x, h.sent, far.seed)
		l.arrived(x, h.written, far.seed)
		l.arrived(x, h.fetched, far.seed)
	}
}

// invalidates writes to a region and gives it back by a Send with Invalidate, with and without
// the Solicited Event.
func invalidates(p *pair, from, to side) {
	const n = 5000
	l := layOut([]int{n})
	for i, flags := range []rdma.SendFlags{0, rdma.Solicited} {
		const at = 1024 // in the memory for first messages
		sent := []int{helloLen, 3000}[i]
		seed := uint64(p.port)<<16 + uint64(5+i)<<12
		src, dst := l.source(from, 0, seed), l.target(to, rdma.RemoteWrite|rdma.MWBind)
		key := to.lend(dst, rdma.RemoteWrite)
		to.recv(0, p.memOf(to), at, sent)
		from.post(work{id: 0, op: rdma.OpWrite, r: src, off: l.offs[0], n: n,
			addr: dst.addr + uint64(l.offs[0]), key: key})
		from.post(work{id: 1, op: rdma.OpSendInv, flags: flags, r: src, off: l.offs[0], n: sent,
			key: key})
		got := to.poll(1, doneLimit)
		if len(got) != 1 || got[0].status != rdma.WCSuccess || got[0].n != sent {
			failf("%v: the receive of a Send with Invalidate has completed as %+v", to, got)
		}
		// Libsiw does not say which key it was.
		if to == side(p.v) && got[0].invalidated != key {
			failf("vrnic: key %#x was invalidated, want %#x", got[0].invalidated, key)
		}
		succeeded(from, 0, 2)
		to.check(p.memOf(to), at, sent, seed)
		l.arrived(to, dst, seed)
	}
}

// deep has more Reads than the connection allows at once, of sizes that mix.
func deep(p *pair, from, to side) {
	const rounds = 200
	sizes := make([]int, rounds)
	for i := range sizes {
		sizes[i] = []int{8, 1, 3000, 64}[i%4]
	}
	l := layOut(sizes)
	src := to.region(l.size, rdma.RemoteRead, 0)
	dst := from.region(l.size, rdma.LocalWrite, 0)
	seed := uint64(p.port)<<16 + 7<<12
	to.fill(src, 0, l.size, seed)
	from.fill(dst, 0, l.size, seed) // what is between the slots
	l.each(func(i, off, n int) {
		from.post(work{id: uint64(i), op: rdma.OpRead, r: dst, off: off, n: n,
			addr: src.addr + uint64(off), key: src.key})
	})
	succeeded(from, 0, rounds)
	from.check(dst, 0, l.size, seed)
	// That the Reads were needed: other data, read again.
	to.fill(src, 0, l.size, seed+1)
	from.post(work{id: 0, op: rdma.OpRead, r: dst, n: l.size, addr: src.addr, key: src.key})
	succeeded(from, 0, 1)
	from.check(dst, 0, l.size, seed+1)
}

// large has one Write and one Read of size octets.
func large(size int) func(p *pair, from, to side) {
	return func(p *pair, from, to side) {
		transfer(p, rdma.OpWrite, size, from, to)
		transfer(p, rdma.OpRead, size, from, to)
	}
}

// transfer moves size octets by one request of from.
func transfer(p *pair, op rdma.Opcode, size int, from, to side) {
	seed := uint64(p.port)<<16 + 8<<12 + uint64(op)
	near, far := from.region(size, rdma.LocalWrite, 0), to.region(size, reachable, 0)
	source, sink, src, dst := near, far, from, to
	if op == rdma.OpRead {
		source, sink, src, dst = far, near, to, from
	}
	src.fill(source, 0, size, seed)
	switch op {
	case rdma.OpSend:
		to.recv(0, far, 0, size)
	case rdma.OpWrite:
		to.recv(0, p.memOf(to), 0, 0)
	default: // the peer's program has no part in it
	}
	from.post(work{id: 0, op: op, r: near, n: size, addr: far.addr, key: far.key})
	switch op {
	case rdma.OpSend:
		received(to, size)
	case rdma.OpWrite:
		from.post(work{id: 1, op: rdma.OpSend, r: near})
		received(to, 0)
		succeeded(from, 0, 1)
		succeeded(from, 1, 1)
	default: // see below
	}
	if op != rdma.OpWrite {
		succeeded(from, 0, 1)
	}
	dst.check(sink, 0, size, seed)
}

// reachable are all rights to a region that a peer can have.
const reachable = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead

// privateSizes are those of private data: siw's own limit is 251.
var privateSizes = []int{1, 3, 4, 100, 251}

// privateData connects with private data of each size from both programs.
func privateData(ctx context.Context, m *siwMatrix, k plan) (retries int) {
	for _, n := range privateSizes {
		k.private = [2][]byte{make([]byte, n), make([]byte, n)}
		for i := range k.private {
			fillPattern(k.private[i], uint64(n+i))
		}
		p, more := m.open(ctx, k)
		retries += more
		for i, got := range p.got {
			// A verbs program may be given more than was sent, as zeroes.
			if want := k.private[1-i]; !bytes.Equal(got, want) {
				failf("the %s was given private data of %d octets % x, want %d % x",
					[2]string{"initiator", "responder"}[i], len(got), got, n, want)
			}
		}
		initiator, _ := p.ends()
		p.finish(initiator)
		p.free()
	}
	return retries
}

var errNoReason = errors.New("siw was given no private data with the rejection")

// rejects refuses connections, with private data and without; the next one is accepted.
func rejects(ctx context.Context, m *siwMatrix, k plan) (retries int) {
	for _, n := range []int{0, 1, 50, 251} {
		reason := make([]byte, n)
		fillPattern(reason, uint64(n))
		// Siw forgets the reason if the end of the stream is there before it has looked at the reply.
		for try := 1; ; try++ {
			m.port++
			p := &pair{plan: k, b: m.siwBench, port: m.port}
			err := guarded(func() { p.rejected(ctx, reason) })
			must(guarded(p.free))
			if !errors.Is(err, errNoReason) || try == siwTries {
				must(err)
				break
			}
			retries++
		}
	}
	p, more := m.open(ctx, k)
	initiator, _ := p.ends()
	p.finish(initiator)
	p.free()
	return retries + more
}

// endings ends connections in each way that one end can: the other sees it, and what is
// posted there is flushed.
func endings(ctx context.Context, m *siwMatrix, k plan) (retries int) {
	for _, end := range []func(p *pair) (first, second side){
		func(p *pair) (first, second side) { _, r := p.ends(); r.disconnect(); return p.endsFrom(r) },
		func(p *pair) (first, second side) { p.s.abort(); return p.endsFrom(p.s) },
		func(p *pair) (first, second side) { p.v.abort(); return p.endsFrom(p.v) },
	} {
		p, more := m.open(ctx, k)
		retries += more
		for _, x := range p.sides() {
			x.recv(7, p.memOf(x), 0, helloLen)
		}
		first, second := end(p)
		second.ended(10 * time.Second)
		first.ended(10 * time.Second)
		for _, x := range []side{first, second} {
			if got := x.poll(1, doneLimit); len(got) != 1 || got[0].id != 7 ||
				got[0].status != rdma.WCFlush {
				failf("after the end by %v, %v's receive has completed as %+v", first, x, got)
			}
		}
		p.free()
	}
	return retries
}

// endsFrom returns x and the other end.
func (p *pair) endsFrom(x side) (first, second side) {
	if x == side(p.s) {
		return p.s, p.v
	}
	return p.v, p.s
}

// rejected has the responder's program refuse the connection for reason, and the initiator see it.
func (p *pair) rejected(ctx context.Context, reason []byte) {
	p.newSides(ctx)
	if p.from == fromSiw {
		err := p.attempt(ctx, reason)
		var refused *peer.ProbeError
		if !errors.As(err, &refused) || !strings.HasPrefix(refused.Text, "REJECTED ") {
			failf("siw's connection ended with %v, want a rejection", err)
		}
		got := fromHex(refused.Text[strings.LastIndex(refused.Text, " ")+1:])
		if len(got) == 0 && len(reason) > 0 {
			must(fmt.Errorf("%w: %w", errNoReason, err))
		}
		if !bytes.Equal(got, reason) {
			failf("siw was given private data % x with the rejection, want % x", got, reason)
		}
		return
	}
	err := p.attempt(ctx, reason)
	var refused *rdma.RejectedError
	if !errors.As(err, &refused) || !bytes.Equal(refused.PrivateData, reason) {
		failf("vrnic's connection ended with %v (%+v), want a rejection with % x", err, refused, reason)
	}
}

// attempt tries to connect and returns what the initiator is told. The responder's program takes
// every connection, or, given a reason, none.
func (p *pair) attempt(ctx context.Context, reason ...[]byte) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	result := make(chan error, 1)
	param := rdma.ConnParam{IRD: p.ird, ORD: p.ord, MPA: p.mpa}
	if p.from == fromSiw {
		l, err := p.b.dev.Listen(addrPort(addrsA[p.family], p.port), 1)
		must(err)
		defer l.Close()
		go func() {
			req, err := l.Next(ctx)
			switch {
			case err == nil && len(reason) > 0:
				err = req.Reject(reason[0])
			case err == nil:
				_, err = req.Accept(ctx, p.v.qp, param)
			}
			result <- err
		}()
		p.s.conn = p.s.do("prepare %s %d", addrsA[p.family], p.port)[0]
		_, err = p.b.probe.Do(ctx, "connect %s %d %d -", p.s.conn, p.ird, p.ord)
		cancel()
		if theirs := <-result; len(reason) > 0 {
			must(theirs)
		}
		return err
	}
	p.s.do("listen %s %d", guestAddrs[p.family], p.port)
	go func() {
		_, err := p.b.dev.Connect(ctx, p.v.qp, addrPort(guestAddrs[p.family], p.port), param)
		result <- err
	}()
	if len(reason) > 0 {
		conn := p.s.do("request")[0]
		p.s.do("reject %s %s", conn, peer.ProbeOctets(reason[0]))
	}
	return <-result
}
