package vnic_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// real makes two contexts that reach each other without fake time.
func real(t testing.TB, loop bool) (a, b *vnic.Context) {
	t.Helper()
	n := vnictest.NewNet()
	n.Plain = true
	x, y := n.Pair(t)
	if loop {
		y = x
	}
	return vnictest.Open(t, x, vnic.ContextConfig{}), vnictest.Open(t, y, vnic.ContextConfig{})
}

// talks has both ends of three connections talk; wg waits for them.
func talks(t *testing.T, a, b *vnic.Context, wg *sync.WaitGroup) {
	for pair := range 3 {
		x, y := vnictest.NewQPs(t, a, b, vnictest.PeerConfig{}, vnictest.PeerConfig{})
		for side, p := range []*vnictest.Peer{x, y} {
			fill(p.Buf[out:written], byte(side))
		}
		for side, p := range []*vnictest.Peer{x, y} {
			q := []*vnictest.Peer{y, x}[side]
			wg.Go(func() { talk(t, p, q, uint64(pair*2+side)) })
		}
	}
}

// Both ends of several connections send, write and read at once, from several goroutines, into
// one CQ each: each octet arrives, each request completes once and in order.
func TestStress(t *testing.T) {
	for _, loop := range []bool{true, false} {
		name := map[bool]string{true: "loop", false: "wire"}[loop]
		t.Run(name, func(t *testing.T) {
			a, b := real(t, loop)
			var wg sync.WaitGroup
			talks(t, a, b, &wg)
			wg.Wait()
		})
	}
}

// The buffer of each Peer: what goes out, what the peer writes, what we read, where Sends land.
const out, written, read, landing = 0, 16 << 10, 32 << 10, 48 << 10

func talk(t *testing.T, p, q *vnictest.Peer, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 9))
	const rounds, slots = 200, 8
	for i := range slots {
		p.Recv(uint64(i), landing+i*2048, 2048)
	}
	var wg sync.WaitGroup
	wg.Go(func() { // what the peer sends
		for i := range rounds {
			wc := p.Next(p.RecvCQ, 1)[0]
			if wc.Status != ok || wc.ID != uint64(i%slots) {
				t.Errorf("receive %d: %+v", i, wc)
				return
			}
			at := landing + i%slots*2048
			if wc.ByteLen > 0 && p.Buf[at] != byte(i) {
				t.Errorf("Send %d begins with %d", i, p.Buf[at])
				return
			}
			p.Recv(wc.ID, at, 2048)
		}
	})
	var ids []uint64
	take := func() {
		wc := p.Next(p.SendCQ, 1)[0]
		if wc.Status != ok || wc.ID != ids[0] {
			t.Errorf("completion %+v, want id %d", wc, ids[0])
		}
		ids = ids[1:]
	}
	for i := range rounds {
		n := 1 + rng.IntN(2000)
		for len(ids) > 20 {
			take()
		}
		id := uint64(i) << 8
		off := rng.IntN(written - n)
		switch rng.IntN(3) {
		case 0:
			p.Write(id, out+off, n, q, written+off)
			ids = append(ids, id)
		case 1:
			p.Read(id, read+off, n, q, out+off)
			ids = append(ids, id)
		}
		p.Post(rdma.SendWR{ID: id + 1, Op: rdma.OpSend, Flags: rdma.Inline, Inline: []byte{byte(i), 1,
			2}}, 0, 0)
		ids = append(ids, id+1)
	}
	for len(ids) > 0 {
		take()
	}
	wg.Wait()
	// The peer's data, read last: what the region holds is what was there all the time.
	p.Read(1, read, written-out, q, out)
	p.WantSend("the last Read", is(1, ok))
	if !bytes.Equal(p.Buf[read:read+written], q.Buf[out:written]) {
		t.Error("the last Read differs")
	}
}

// Deregistering, aborting and closing while the peer writes as fast as it can. SEC-014.
func TestChurn(t *testing.T) {
	for _, loop := range []bool{true, false} {
		name := map[bool]string{true: "loop", false: "wire"}[loop]
		t.Run(name, func(t *testing.T) {
			a, b := real(t, loop)
			for i := range 30 {
				x, y := vnictest.NewQPs(t, a, b, vnictest.PeerConfig{}, vnictest.PeerConfig{})
				stop := make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() {
					wr := rdma.SendWR{Op: rdma.OpWrite, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
						SGEs: []rdma.SGE{x.SGE(0, 60000)}}
					for {
						select {
						case <-stop:
							return
						default:
							if x.QP.PostSend(&wr) != nil {
								time.Sleep(50 * time.Microsecond) // until there is room
							}
						}
					}
				})
				time.Sleep(time.Duration(i%5) * 100 * time.Microsecond) // the end comes at different points
				switch i % 4 {
				case 0:
					y.MR.Close()
					for j := range y.Buf { // ours again: the race detector watches
						y.Buf[j] = 1
					}
					x.WantDone("refused")
				case 1:
					y.QP.Abort()
					x.WantDone("aborted")
				case 2:
					y.QP.Close()
					x.WantDone("destroyed")
				case 3:
					x.QP.Close()
					y.WantDone("destroyed")
				}
				close(stop)
				wg.Wait()
				x.QP.Close()
				y.QP.Close()
			}
		})
	}
}

// steady returns a function that carries one message of op and n octets from x to y and takes all
// its completions.
func steady(t testing.TB, x, y *vnictest.Peer, op rdma.Opcode, n int) func() {
	wr := rdma.SendWR{Op: op, Flags: rdma.Signaled, RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
		SGEs: []rdma.SGE{x.SGE(0, n)}}
	rr := rdma.RecvWR{SGEs: []rdma.SGE{y.SGE(0, n)}}
	receives := op == rdma.OpSend || op == rdma.OpSendImm || op == rdma.OpWriteImm
	wc := make([]rdma.WC, 1)
	take := func(cq *vnic.CQ) {
		for {
			k, err := cq.Poll(wc)
			if err != nil {
				t.Fatal(err)
			}
			if k == 1 {
				if wc[0].Status != ok {
					t.Fatal(wc[0].Status)
				}
				return
			}
			cq.Arm(false)
			if k, _ = cq.Poll(wc); k == 1 {
				return
			}
			if err := cq.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func() {
		if receives {
			if err := y.QP.PostRecv(&rr); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.QP.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		take(x.SendCQ)
		if receives {
			take(y.RecvCQ)
		}
	}
}
