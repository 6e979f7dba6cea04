package vnic_test

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// halfClosed is a raw peer of a device with or without HalfClose, on a connection that holds 8 KiB.
func halfClosed(t *testing.T, on bool) *rawPeer {
	n := vnictest.NewNet()
	n.Link.Buffer = 8 << 10
	c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}, func(c *vnic.Config) {
		c.HalfClose = on
	}), vnic.ContextConfig{})
	return rawDial(t, n, c, vnictest.PeerConfig{})
}

// drain takes what comes up to the end of the stream, and says how many octets of payload each kind
// of message had, and how it ended.
func (p *rawPeer) drain() (octets map[iwarp.Opcode]int, err error) {
	p.t.Helper()
	var in sink
	for n := 1; n > 0; {
		synctest.Wait()
		n, err = p.s.ReadInto(&in)
	}
	octets = map[iwarp.Opcode]int{}
	for b := in.b; len(b) > 2; {
		n := int(binary.BigEndian.Uint16(b))
		if len(b) < iwarp.FPDULen(n) {
			break
		}
		u := b[2 : 2+n]
		h := iwarp.UntaggedHeaderLen
		if iwarp.DDPControl(u[0]).Tagged() {
			h = iwarp.TaggedHeaderLen
		}
		octets[iwarp.RDMAPControl(u[1]).Opcode()] += n - h
		b = b[iwarp.FPDULen(n):]
	}
	return octets, err
}

// A peer that closes its half while Sends and the answer to its Read are on their way gets all of
// it, and then a FIN; the end is graceful, and the program is told of it. Without HalfClose it gets
// a reset. DDP-068, DDP-069.
func TestPeerHalfCloses(t *testing.T) {
	for _, on := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := halfClosed(t, on)
			y := p.y
			y.Recv(1, 0, 10)
			y.Send(2, 0, 20000)
			p.send(iwarp.AppendReadRequest(iwarp.AppendUntagged(nil, true, iwarp.OpReadRequest, 1, 1, 0), 1,
				0, 30000, iwarp.STag(y.MR.RKey()), y.MR.Addr()))
			y.Send(3, 0, 20000)
			p.s.CloseWrite()
			synctest.Wait()
			if !on {
				y.WantState("Q12", rdma.QPError)
				y.WantSend("flushed", is(2, flush), is(3, flush))
				return
			}
			y.WantState("it goes on", rdma.QPRTS)
			octets, err := p.drain()
			if octets[iwarp.OpSend] != 40000 || octets[iwarp.OpReadResponse] != 30000 {
				t.Errorf("octets by kind: %v", octets)
			}
			if !errors.Is(err, io.EOF) {
				t.Errorf("the stream ended with %v", err)
			}
			y.WantSend("sent", is(2, ok), is(3, ok))
			y.WantRecv("flushed", is(1, flush))
			y.WantState("graceful", rdma.QPIdle)
		})
	}
}

// Serving on has an end: the time of a disconnect, and Reads of our own, which nobody answers.
// DDP-068.
func TestPeerHalfClosesAndStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := halfClosed(t, true)
		p.y.Send(2, 0, 20000)
		p.s.CloseWrite()
		time.Sleep(5*time.Second - 1)
		p.y.WantState("it goes on", rdma.QPRTS)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		p.y.WantState("no longer", rdma.QPError)
		p.y.WantSend("flushed", is(2, flush))
	})
	synctest.Test(t, func(t *testing.T) {
		p := halfClosed(t, true)
		p.y.Post(rdma.SendWR{ID: 2, Op: rdma.OpRead, RemoteAddr: 1, RKey: 1}, 0, 10)
		p.y.Send(3, 0, 10)
		p.s.CloseWrite()
		synctest.Wait()
		p.y.WantState("its Read is not answered", rdma.QPError)
		p.y.WantSend("nor is the Send behind it known to have come", is(2, flush), is(3, flush))
	})
}

// Behind our own FIN the peer's messages are taken until it closes its half; what is posted behind
// Disconnect flushes. A peer that never closes is reset. DDP-070.
func TestWeHalfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := halfClosed(t, true)
		y := p.y
		y.Recv(1, 0, 10)
		y.Recv(2, 0, 10)
		y.Send(3, 0, 10)
		if err := y.QP.Disconnect(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		y.WantSend("it goes out first", is(3, ok))
		if octets, err := p.drain(); octets[iwarp.OpSend] != 10 || !errors.Is(err, io.EOF) {
			t.Errorf("before the FIN: %v, %v", octets, err)
		}
		y.Send(4, 0, 10)
		time.Sleep(4 * time.Second)
		p.send(append(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 1, 0), "behind FIN"...))
		y.WantRecv("taken", is(1, ok))
		if got := string(y.Buf[:10]); got != "behind FIN" {
			t.Errorf("received %q", got)
		}
		y.WantNone("what is posted waits for the end")
		p.s.CloseWrite()
		synctest.Wait()
		y.WantSend("flushed", is(4, flush))
		y.WantRecv("flushed", is(2, flush))
		y.WantState("graceful", rdma.QPIdle)
	})
	synctest.Test(t, func(t *testing.T) {
		p := halfClosed(t, true)
		p.y.QP.Disconnect()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		p.y.WantState("the peer does not close", rdma.QPError)
	})
}

// Two devices with HalfClose: a disconnect of either, or of both, is graceful, and nothing that was
// posted before is lost.
func TestHalfClose(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		for i := range 3 {
			x, y := e.pair(vnictest.PeerConfig{Buffer: 1 << 20}, vnictest.PeerConfig{Buffer: 1 << 20})
			for _, p := range []*vnictest.Peer{x, y} {
				p.Recv(1, 0, 300_000)
				p.Send(2, 1<<19, 300_000)
			}
			if i != 1 {
				x.Conn.Disconnect()
			}
			if i != 0 {
				y.Conn.Disconnect()
			}
			for _, p := range []*vnictest.Peer{x, y} {
				if e.loop || e.sctp {
					p.Next(p.SendCQ, 1) // ends together
				} else {
					p.WantSend("sent", is(2, ok))
					p.WantRecv("received", is(1, ok))
				}
				if err := p.WantDone("over"); err != nil && !e.loop && !e.sctp {
					t.Errorf("disconnect %d: %v", i, err)
				}
			}
			x.QP.Close()
			y.QP.Close()
		}
	}, func(c *vnic.Config) { c.HalfClose = true })
}
