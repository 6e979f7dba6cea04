package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/rdma"
)

// Environment of TestRawTorture: how long it goes on, in place of a short while; and what one line
// of a failure says, to repeat that run alone.
const (
	tortureTime = "VRNIC_TORTURE"
	tortureSeed = "VRNIC_TORTURE_SEED"
)

// Conversations that are right but for one lie somewhere: in a field, in the framing, in the order,
// in the length, in how the connection ends. Whatever comes of it: the daemon lives; memory that
// the peer was not given is as it was; what the daemon sends is well-formed to the last octet; the
// connection ends; each request and receive completes once; nobody else notices, and nothing is
// left. DDP-071, 089; RDMAP-109; SEC-010, 011, 029; EMPA-049.
func TestRawTorture(t *testing.T) {
	r := newRig(t)
	if s := os.Getenv(tortureSeed); s != "" {
		seed, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("%s: %v", tortureSeed, err)
		}
		newTorture(t, r, seed, true).run()
		return
	}
	limit, most := time.Minute, uint64(400)
	if s := os.Getenv(tortureTime); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("%s: %v", tortureTime, err)
		}
		limit, most = d, 1<<63
	}
	// A smoke is the same each time; a long run begins elsewhere each time.
	base := uint64(1)
	if most == 1<<63 {
		base = rand.Uint64()
	}
	var next atomic.Uint64
	var ends [endKinds]atomic.Int64
	end := time.Now().Add(limit)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !t.Failed() && time.Now().Before(end) {
				n := next.Add(1)
				if n > most {
					return
				}
				o := newTorture(t, r, base+n*0x9e3779b97f4a7c15, false).run()
				ends[o].Add(1)
			}
		})
	}
	wg.Wait()
	r.by.moves(t)
	t.Logf("%d conversations from seed %#x: %d ended in set-up, %d by a Terminate, %d otherwise, %d "+
		"were harmless",
		min(next.Load(), most), base, ends[endSetUp].Load(), ends[endTerminate].Load(),
		ends[endClosed].Load(), ends[endHarmless].Load())
}

type tortureEnd int

const (
	endSetUp     tortureEnd = iota // there was no connection
	endTerminate                   // the daemon said why
	endClosed                      // it ended as the peer did, or without a word
	endHarmless                    // all was taken
	endKinds
)

// An ordeal is one conversation.
type ordeal struct {
	t       *testing.T
	r       *rig
	seed    uint64
	verbose bool
	lie     string
}

// newTorture makes one over IPv4 or IPv6, as the seed has it.
func newTorture(t *testing.T, r *rig, seed uint64, verbose bool) *ordeal {
	return &ordeal{t: t, r: r.over(int(seed >> 63)), seed: seed, verbose: verbose}
}

// fail reports what went wrong, with the seed to repeat it.
func (x *ordeal) fail(p *rawpeer.Peer, format string, args ...any) {
	x.t.Helper()
	said := ""
	if p != nil {
		said = p.Transcript()
	}
	x.t.Errorf("%s=%#x repeats this. The lie: %s.\n%s\n%s", tortureSeed, x.seed, x.lie,
		fmt.Sprintf(format, args...), said)
}

func (x *ordeal) run() tortureEnd {
	rnd := rand.New(rand.NewPCG(x.seed, 0))
	v := newVictim(x.t, x.r, 8)
	defer func() {
		if !x.t.Failed() {
			v.close()
		}
	}()
	cp := rdma.ConnParam{IRD: 4, ORD: 4, Extensions: rnd.IntN(2) == 0}
	flags := byte(0)
	if rnd.IntN(4) > 0 {
		flags |= rawpeer.FlagC
	} else {
		cp.MPA.CRC = rdma.CRCOff
	}
	if rnd.IntN(3) == 0 {
		flags |= rawpeer.FlagM
	}
	cp.MPA.Markers = rnd.IntN(3) == 0
	if rnd.IntN(2) == 0 {
		return x.asInitiator(rnd, v, cp, flags)
	}
	return x.asResponder(rnd, v, cp, flags)
}

// requests are what a peer may ask of v: all kinds of messages.
func (x *ordeal) requests(rnd *rand.Rand, v *victim, ext bool) (segs []seg) {
	msn, rmsn := uint32(0), uint32(0)
	for range 3 + rnd.IntN(5) {
		cut := 1 + rnd.IntN(600)
		switch rnd.IntN(7) {
		case 0:
			segs = append(segs, rawpeer.Write(v.rw.RKey(), v.rw.Addr()+uint64(rnd.IntN(2000)),
				octets(rnd.IntN(2000), 1)).Split(cut)...)
		case 1:
			segs = append(segs, rawpeer.Write(v.wo.RKey(), v.wo.Addr(), octets(rnd.IntN(4096), 1)).Split(
				cut)...)
		case 2, 3:
			if msn < 8 {
				msn++
				segs = append(segs, rawpeer.Send(msn, 0, octets(rnd.IntN(recvLen+1), 2)).Opcode(
					[]byte{rawpeer.OpSend, rawpeer.OpSendSE}[rnd.IntN(2)]).Split(1+rnd.IntN(60))...)
			}
		case 4:
			if rmsn < 4 {
				rmsn++
				segs = append(segs, rawpeer.ReadRequest(rmsn, readOf(v.ro, int64(rnd.IntN(100)),
					uint32(rnd.IntN(3900)))))
			}
		case 5:
			if ext && rmsn < 4 {
				rmsn++
				segs = append(segs, rawpeer.AtomicRequest(rmsn, rawpeer.Atomic{
					Op: []uint32{rawpeer.FetchAdd, rawpeer.CmpSwap}[rnd.IntN(2)], ID: rnd.Uint32(),
					STag: v.rw.RKey(),
					TO:   v.rw.Addr() + 8*uint64(rnd.IntN(512)), Data: rnd.Uint64(), Compare: rnd.Uint64(),
					CmpMask: rnd.Uint64(),
				}))
			}
		default:
			if ext && msn < 8 {
				msn++
				segs = append(segs, rawpeer.Immediate(msn, octets(8, 3)))
			}
		}
	}
	return segs
}

// startTime is how long the daemon may take for an answer in the set-up before it is told that no
// more comes: it waits for the rest of a frame that says it is longer than it is.
func (x *ordeal) startTime() time.Duration {
	if strings.HasPrefix(x.lie, "start frame") {
		return 50 * time.Millisecond
	}
	return patience
}

// asInitiator connects to v's listener, and lies in what it says then.
func (x *ordeal) asInitiator(rnd *rand.Rand, v *victim, cp rdma.ConnParam, flags byte) tortureEnd {
	start := plain(4, 4)
	start.Flags = rawpeer.FlagS | flags
	c := rawpeer.NewConversation(start, append([]seg{rawpeer.Write(0, 0, nil)},
		x.requests(rnd, v, cp.Extensions)...)...)
	x.lie = c.Mutate(rnd)
	l := v.listen(4)
	defer l.Close()
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	p := got[*rawpeer.Peer](x.t)(x.r.host.Dial(ctx, l.Addr()))
	defer p.Close()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Next(ctx)
		if err == nil {
			v.conn, err = req.Accept(ctx, v.qp, cp)
		}
		accepted <- err
	}()
	sent := append([]byte(nil), c.Start...)
	_ = p.Write(sent)
	started := make(chan error, 1)
	go func() { _, err := p.ReadStart(); started <- err }()
	var err error
	select {
	case err = <-started:
	case <-time.After(x.startTime()):
		_ = p.C.CloseWrite() // a Request that says that more comes
		err = <-started
	}
	if err != nil { // the Request was none
		cancel()
		if aerr := <-accepted; aerr == nil {
			x.fail(p, "the client has a connection, the peer has no Reply: %v", err)
		}
		v.run(p, rawpeer.WantClosed())
		return x.gone(v, p)
	}
	if err := <-accepted; err != nil {
		x.fail(p, "accept: %v", err)
		return endSetUp
	}
	p.Agree(sent[16])
	return x.speak(rnd, v, p, c)
}

// asResponder has v connect, and lies in the Reply or in what it says then. v asks for Reads.
func (x *ordeal) asResponder(rnd *rand.Rand, v *victim, cp rdma.ConnParam, flags byte) tortureEnd {
	l := got[*rawhost.Listener](x.t)(x.r.host.Listen(x.r.peer))
	defer l.Close()
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	connected := make(chan error, 1)
	go func() {
		var err error
		v.conn, err = x.r.dev.Connect(ctx, v.qp, l.Addr(), cp)
		connected <- err
	}()
	p := got[*rawpeer.Peer](x.t)(l.Accept())
	defer p.Close()
	if _, err := p.ReadStart(); err != nil {
		x.fail(p, "no Request: %v", err)
		return endSetUp
	}
	reply := accepting(4, 4)
	reply.Flags = rawpeer.FlagS | flags
	lieEarly := rnd.IntN(8) == 0
	c := rawpeer.NewConversation(reply)
	if lieEarly {
		x.lie = c.Mutate(rnd)
	}
	_ = p.Write(append([]byte(nil), c.Start...))
	p.Agree(c.Start[16])
	var err error
	select {
	case err = <-connected:
	case <-time.After(x.startTime()):
		_ = p.C.CloseWrite() // a Reply that says that more comes
		err = <-connected
	}
	if err != nil {
		if !lieEarly {
			x.fail(p, "connect: %v", err)
			return endSetUp
		}
		if err := p.Drain(); err != nil {
			x.fail(p, "what the daemon sent is not well-formed: %v", err)
		}
		return x.gone(v, p)
	}
	for id := range uint64(3) {
		wr := rdma.SendWR{ID: 100 + id, Op: rdma.OpRead, Flags: rdma.Signaled,
			SGEs: sge(v.local, 100, 64), RemoteAddr: id, RKey: 5}
		if err := v.qp.PostSend(&wr); err != nil {
			if !lieEarly || !errors.Is(err, rdma.ErrNotConnected) {
				x.fail(p, "post a Read: %v", err)
				return endSetUp
			}
			break // the end came first
		}
		v.sent++
	}
	// The Reads are answered in order, between requests of the peer's own.
	segs := x.requests(rnd, v, cp.Extensions)
	for range 3 {
		s, err := p.Next()
		for err == nil && s.Op() == rawpeer.OpWrite { // the RTR, and reminders
			s, err = p.Next()
		}
		read, ok := s.Read()
		if err != nil || !ok {
			if lieEarly {
				break // fewer Reads, say
			}
			x.fail(p, "want a Read Request: %v", err)
			return endSetUp
		}
		segs = append(segs, rawpeer.ReadResponse(read.SinkSTag, read.SinkTO, octets(64, 7)).Split(
			1+rnd.IntN(64))...)
	}
	c = rawpeer.NewConversation(reply, segs...)
	for !lieEarly && (x.lie == "" || strings.HasPrefix(x.lie, "start frame")) {
		x.lie = c.Mutate(rnd)
	}
	return x.speak(rnd, v, p, c)
}

// speak says what c has, ends as c does, and looks at everything that must hold then.
func (x *ordeal) speak(rnd *rand.Rand, v *victim, p *rawpeer.Peer,
	c *rawpeer.Conversation) tortureEnd {
	drained := make(chan error, 1)
	go func() { drained <- p.Drain() }()
	stream := c.Stream(&p.Out)
	for _, n := range c.Cuts {
		n = min(n, len(stream))
		if _, err := p.C.Write(stream[:n]); err != nil {
			break
		}
		stream = stream[n:]
	}
	_, _ = p.C.Write(stream) // it may have been thrown out half way
	switch c.End {
	case rawpeer.SayFIN:
		_ = p.C.CloseWrite()
	case rawpeer.SayStall:
		time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond) // what a stalled peer does
		fallthrough
	case rawpeer.SayReset:
		_ = p.C.Reset()
	}
	err := <-drained
	if err != nil && c.End == rawpeer.SayFIN {
		x.fail(p, "what the daemon sent is not well-formed: %v", err)
	}
	p.Close()
	return x.gone(v, p)
}

// gone waits until v's connection is over, if there was one, and looks at its memory and
// completions.
func (x *ordeal) gone(v *victim, p *rawpeer.Peer) tortureEnd {
	how := endSetUp
	if v.conn != nil {
		select {
		case <-v.conn.Done():
		case <-time.After(patience):
			x.fail(p, "the connection does not end")
			return how
		}
		var term *rdma.TerminateError
		switch err := v.conn.Err(); {
		case errors.As(err, &term):
			how = endTerminate
		case err != nil:
			how = endClosed
		default:
			how = endHarmless
		}
	}
	// A QP that never connected, or that ended gracefully, keeps its receives until it is aborted.
	if err := v.qp.Abort(); err != nil && !errors.Is(err, rdma.ErrClosed) {
		x.fail(p, "abort: %v", err)
	}
	seen := map[uint64]bool{}
	want := v.recvs
	if v.conn != nil && how != endSetUp && v.sent > 0 {
		want += v.sent
	}
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	for len(seen) < want {
		wc, err := v.next(ctx)
		if err != nil {
			x.fail(p, "%d of %d completions came: %v", len(seen), want, err)
			return how
		}
		if seen[wc.ID] {
			x.fail(p, "%d completed twice", wc.ID)
			return how
		}
		seen[wc.ID] = true
	}
	v.recvs = 0
	granted := v.image
	for _, w := range [][2]int{{atRW, 4096}, {atWO, 4096}, {atBig, bigLen}, {atRecv, 8 * recvLen},
		{atLocal + 100, 64}} {
		copy(granted[w[0]:w[0]+w[1]], v.buf.Bytes()[w[0]:])
	}
	if !bytes.Equal(v.buf.Bytes(), granted) {
		x.fail(p, "memory that the peer was not given has changed")
	}
	if x.verbose {
		x.t.Logf("the lie: %s; it came to %d, %v\n%s", x.lie, how, v.end, p.Transcript())
	}
	return how
}
