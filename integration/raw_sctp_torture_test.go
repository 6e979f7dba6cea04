package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/rdma"
)

// Conversations over SCTP that are right but for one packet or a few. Whatever comes of it: the
// daemon lives, memory that the peer was not given is as it was, what the daemon sends is
// well-formed, each receive completes once, and nobody else notices. SEC-010, 011, 029.
func TestRawSCTPTorture(t *testing.T) { overSCTP(t, rawSCTPTorture) }

func rawSCTPTorture(t *testing.T, s *sctpRig) {
	if v := os.Getenv(tortureSeed); v != "" {
		seed, err := strconv.ParseUint(v, 0, 64)
		if err != nil {
			t.Fatalf("%s: %v", tortureSeed, err)
		}
		tortureSCTP(t, s, seed)
		return
	}
	limit, most, base := time.Minute/2, uint64(20), uint64(1)
	if v := os.Getenv(tortureTime); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("%s: %v", tortureTime, err)
		}
		limit, most, base = d/2, 1<<63, rand.Uint64()
	}
	n, connected := uint64(0), 0
	for end := time.Now().Add(limit); n < most && time.Now().Before(end) && !t.Failed(); n++ {
		if tortureSCTP(t, s, base+n*0x9e3779b97f4a7c15) {
			connected++
		}
	}
	s.by.moves(t)
	t.Logf("%d conversations from seed %#x, %d with a session", n, base, connected)
}

// tortureSCTP has one conversation; connected says that there was a session.
func tortureSCTP(t *testing.T, s *sctpRig, seed uint64) (connected bool) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	v := newVictim(t, s.rig, 8)
	p := s.raw(t)
	defer p.Close()
	p.Patience = 100 * time.Millisecond // what a lie has swallowed does not come
	lies := "none"
	defer func() {
		if t.Failed() {
			t.Logf("%s=%#x repeats this. The lies: %s.\n%s", tortureSeed, seed, lies, p.Transcript())
			return
		}
		v.close()
	}()
	p.Alter = func(b []byte) [][]byte {
		if rnd.IntN(8) > 0 {
			return [][]byte{b}
		}
		packets, lie := rawsctp.Lie(rnd, b)
		lies += fmt.Sprintf("; of % x...: %s", b[:min(20, len(b))], lie)
		return packets
	}
	// An answer that does not come is fine, a malformed one is not.
	lenient := func(err error) bool {
		if errors.Is(err, rawsctp.ErrMalformed) {
			t.Error(err)
		}
		return err == nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	accepted := make(chan error, 1)
	go func() {
		req, err := s.l.Next(ctx)
		if err == nil {
			v.conn, err = req.Accept(ctx, v.qp, rdma.ConnParam{})
		}
		accepted <- err
	}()
	stream := uint16(rnd.IntN(16))
	if lenient(p.Establish()) {
		p.Control(stream, rawsctp.Initiate, octets(rnd.IntN(513), 1)...)
		_, err := p.Message(stream)
		lenient(err)
	}
	for msn := uint32(1); msn <= 8; msn++ {
		switch rnd.IntN(4) {
		case 0:
			p.Segment(stream, rawpeer.Write(v.wo.RKey(), v.wo.Addr(), octets(rnd.IntN(1000), 1)).ULPDU())
		case 1:
			lenient(p.Alive())
		case 2:
			p.Send(rawsctp.SackChunk(p.Cum(), rnd.Uint32(), 1, uint16(rnd.IntN(5))))
		}
		p.Segment(stream, rawpeer.Send(msn, 0, octets(rnd.IntN(recvLen), 2)).ULPDU())
	}
	lenient(p.Alive())
	cancel()
	connected = <-accepted == nil
	if rnd.IntN(2) == 0 {
		p.Control(stream, rawsctp.Terminate)
		lenient(p.Alive())
	}
	p.Alter = nil
	p.Send(rawsctp.Make(rawsctp.Abort, 0))
	if !connected {
		// The Accept was given up, but may have come about.
		if err := v.qp.Abort(); err != nil {
			t.Error(err)
		}
	} else {
		// The daemon may hold an association with another tag than p has, if an INIT was altered: the
		// client ends that by itself.
		select {
		case <-v.conn.Done():
		case <-time.After(time.Second):
			if err := v.qp.Abort(); err != nil {
				t.Error(err)
			}
		}
	}
	for v.recvs > 0 {
		v.wc("a receive")
		v.recvs--
	}
	v.none("each receive has completed")
	b := v.buf.Bytes()
	v.expect(atWO, b[atWO:atWO+4096])
	v.expect(atRW, b[atRW:atRW+4096]) // a lie can name it
	v.expect(atRecv, b[atRecv:atRecv+recvRoom])
	v.expect(atBig, b[atBig:atBig+bigLen])
	v.unharmed()
	s.neighbour.works(t)
	return connected
}
