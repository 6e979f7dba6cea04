package vnic_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A rally is two queue pairs whose programs answer each other's Writes, and what went over the
// network.
type rally struct {
	t     *testing.T
	ends  [2]*vnictest.Peer
	posts [2]int // not waited for

	mu    sync.Mutex
	alone map[packet.QPN]int       // ACKs that went alone, by whom they were for
	last  map[packet.QPN]time.Time // when a Write went there
	went  []packet.Opcode          // all, in their order
}

// rallyDelay is how long a packet takes.
const rallyDelay = 10 * time.Microsecond

func newRally(t *testing.T) *rally {
	r, f, cfg := unconnected(t)
	r.ends = [2]*vnictest.Peer{vnictest.NewPeer(t, f.a, cfg), vnictest.NewPeer(t, f.b, cfg)}
	vnictest.ConnectByNumber(t, r.ends[0], r.ends[1], nil)
	return r
}

// unconnected is a rally without its ends, and what they are to be.
func unconnected(t *testing.T) (*rally, *fabric, vnictest.PeerConfig) {
	r := &rally{t: t, alone: map[packet.QPN]int{}, last: map[packet.QPN]time.Time{}}
	f := newFabric(t, vnictest.RoCELink{Delay: rallyDelay, Lost: func(ip []byte) bool {
		p, err := udp.Parse(ip)
		var h packet.Header
		if err == nil {
			_, err = h.Parse(p.Datagram)
		}
		if err != nil {
			t.Error(err)
			return true
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.went = append(r.went, h.Opcode)
		if now := time.Now(); h.Opcode != packet.Acknowledge {
			r.last[h.Dest] = now
		} else if !now.Equal(r.last[h.Dest]) {
			r.alone[h.Dest]++
		}
		return false
	}})
	return r, f, vnictest.PeerConfig{CQDepth: 4096,
		QP: rdma.QPConfig{Type: rdma.RC, MaxSendWR: 4096}}
}

// write has an end write to the other one, which has it when write returns.
func (r *rally) write(end int) {
	r.ends[end].Write(uint64(r.posts[end]), 0, 64, r.ends[1-end], 64)
	r.posts[end]++
	synctest.Wait()
	time.Sleep(rallyDelay)
	synctest.Wait()
}

// rounds has each write, behind some thought.
func (r *rally) rounds(n int, thought time.Duration) {
	for range n {
		for end := range r.ends {
			time.Sleep(thought)
			r.write(end)
		}
	}
}

// wantAlone checks how many ACKs an end was sent alone since this was asked last.
func (r *rally) wantAlone(why string, end, want int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	to := packet.QPN(r.ends[end].QP.Num())
	if got := r.alone[to]; got != want {
		r.t.Errorf("%s: end %d is sent %d ACKs alone, want %d", why, end, got, want)
	}
	delete(r.alone, to)
}

// wantDone checks that all that an end has posted is done within d.
func (r *rally) wantDone(why string, end int, d time.Duration) {
	r.t.Helper()
	var all []want
	for i := range r.posts[end] {
		all = append(all, is(uint64(i), ok))
	}
	r.posts[end] = 0
	begun := time.Now()
	r.ends[end].WantSend(why, all...)
	if took := time.Since(begun); took > d {
		r.t.Errorf("%s: end %d has waited %v", why, end, took)
	}
}

// ROCE-127, ROCE-168: where a program has answered each Write at once many times in a row the ACK
// waits for its answer, but not for long.
func TestACKWaitsForAnswer(t *testing.T) {
	const patience = 10*time.Millisecond + rallyDelay
	synctest.Test(t, func(t *testing.T) {
		r := newRally(t)
		r.rounds(16, 0)
		r.wantAlone("not known yet", 0, 16)
		r.wantAlone("not known yet", 1, 16)
		r.rounds(20, 5*time.Microsecond)
		r.wantAlone("answers in a row", 0, 0)
		r.wantAlone("answers in a row", 1, 0)
		r.wantDone("all were answered", 0, 0)
		r.wantDone("the last one was not", 1, patience)
		r.wantAlone("in the end", 1, 1)

		r.rounds(33, 0) // the first end has let the other one wait
		r.wantAlone("it always answers", 0, 0)
		r.wantAlone("twice as many are wanted", 1, 32)
		r.wantDone("all were answered", 0, 0)
		r.wantDone("the last one was not", 1, patience)
		r.wantAlone("in the end", 1, 1)

		r.write(0)
		r.wantAlone("the peer goes on", 0, 0)
		r.write(0)
		r.wantAlone("the peer goes on", 0, 1)
		time.Sleep(rallyDelay)
		r.wantDone("the peer goes on", 0, 0)
		r.rounds(31, 0)
		r.wantAlone("twice as many are wanted", 0, 31)
	})
}

// An answer that takes long is not waited for: the completion would take as long. ROCE-168.
func TestACKOfSlowProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRally(t)
		r.rounds(50, 200*time.Microsecond)
		r.wantAlone("slow answers", 0, 50)
		r.wantAlone("slow answers", 1, 50)
	})
}

// What was carried out is acknowledged though the program ends its queue pair in place of an
// answer. ROCE-168.
func TestACKBeforeEnd(t *testing.T) {
	for name, end := range map[string]func(p *vnictest.Peer){
		"destroyed": func(p *vnictest.Peer) {
			if err := p.QP.Close(); err != nil {
				t.Error(err)
			}
		},
		"reset": func(p *vnictest.Peer) { p.Move(rdma.QPReset, rdma.QPAttr{}, 0) },
		"error": func(p *vnictest.Peer) { p.Move(rdma.QPError, rdma.QPAttr{}, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRally(t)
				r.rounds(20, 0)
				r.write(0)
				r.wantAlone("an answer is expected", 0, 16)
				end(r.ends[1])
				r.wantDone("written", 0, rallyDelay)
			})
		})
	}
}

// A program that disconnects in place of an answer: the peer is told behind the ACK, as it may give
// up what it waits for then. ROCE-168.
func TestACKBeforeDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f, cfg := unconnected(t)
		x, y := vnictest.NewQPs(t, f.a, f.b, cfg, cfg)
		r.ends = [2]*vnictest.Peer{x, y}
		r.rounds(20, 0)
		r.write(0)
		r.wantAlone("an answer is expected", 0, 16)
		r.went = nil
		if err := y.Conn.Disconnect(); err != nil {
			t.Fatal(err)
		}
		r.wantDone("written", 0, rallyDelay)
		<-x.Conn.Done()
		message := packet.SendOnly.Of(packet.UD)
		if want := []packet.Opcode{packet.Acknowledge, message, message}; !slices.Equal(r.went, want) {
			t.Errorf("%v went, want %v: an ACK, a DREQ, a DREP", r.went, want)
		}
	})
}
