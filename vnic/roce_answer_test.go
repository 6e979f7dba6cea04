package vnic_test

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A waitingNet hands each packet up by itself where it was sent, as who reads a TAP does, and can
// wait for answers. It notes what was sent.
type waitingNet struct {
	vnic.Network
	ports map[netip.Addr]vnic.RoCEReceiver
	sent  []packet.Opcode
}

func (n *waitingNet) OpenRoCE(addrs []netip.Addr, r vnic.RoCEReceiver) (vnic.RoCEPort, error) {
	for _, a := range addrs {
		n.ports[a] = r
	}
	return waitingPort{n}, nil
}

type waitingPort struct{ n *waitingNet }

func (p waitingPort) MTU() int               { return 9000 }
func (p waitingPort) Join(netip.Addr) error  { return nil }
func (p waitingPort) Leave(netip.Addr) error { return nil }
func (p waitingPort) Close() error           { return nil }
func (p waitingPort) Route(_ context.Context, _, to netip.Addr) (vnic.RoCERoute, error) {
	return &waitingRoute{p, to}, nil
}

type waitingRoute struct {
	waitingPort
	to netip.Addr
}

func (r *waitingRoute) NextHop() [6]byte { return [6]byte{} }
func (r *waitingRoute) Send(src vnic.RoCESource) error {
	for {
		ip, ok := src.NextPacket(make([]byte, 0, 9000))
		if !ok {
			return nil
		}
		p, err := udp.Parse(ip)
		if err != nil {
			return err
		}
		r.n.sent = append(r.n.sent, packet.Opcode(p.Datagram[0]))
		b := &waitingBatch{}
		r.n.ports[r.to].ReceiveRoCE(&vnic.RoCEPacket{Packet: p, Batch: b})
		if b.f != nil {
			b.f.Finish()
		}
	}
}

// A waitingBatch is one packet, with nothing behind it.
type waitingBatch struct{ f interface{ Finish() } }

func (b *waitingBatch) Deferred() interface{ Finish() } { return b.f }
func (b *waitingBatch) Local() bool                     { return false }
func (b *waitingBatch) More() func() bool               { return func() bool { return false } }
func (b *waitingBatch) FinishEarly()                    { b.f.Finish() }
func (b *waitingBatch) Defer(f interface{ Finish() }) bool {
	b.f = f
	return true
}

// An answerer does what a program would while it is waited for.
type answerer struct {
	willing bool
	answer  func()
	calls   int
}

func (l *answerer) Expect() bool { return l.willing }
func (l *answerer) Linger(more func() bool) {
	if l.calls++; l.answer != nil {
		l.answer()
	}
}

// ROCE-127: who waits for the program's answer sends it before the ACK, which goes with it, or when
// none has come. But an answer that takes a receive goes behind the ACK: what it answers completes
// first.
func TestACKBehindAnswer(t *testing.T) {
	const write, send, ack = packet.WriteOnly, packet.SendOnly, packet.Acknowledge
	for name, tt := range map[string]struct {
		willing bool
		answer  packet.Opcode
		want    []packet.Opcode
	}{
		"a Write":   {true, write, []packet.Opcode{write, write, ack, ack}},
		"a Send":    {true, send, []packet.Opcode{write, ack, send, ack}},
		"none":      {true, ack, []packet.Opcode{write, ack}},
		"unwilling": {false, ack, []packet.Opcode{write, ack}},
	} {
		t.Run(name, func(t *testing.T) {
			// In fake time nothing is sent again because the machine was busy.
			synctest.Test(t, func(t *testing.T) {
				n := &waitingNet{ports: map[netip.Addr]vnic.RoCEReceiver{}}
				var peers [2]*vnictest.Peer
				var lingers [2]answerer
				for i, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
					d := vnictest.NewNet().Device(t, "rocep0", []string{addr}, func(c *vnic.Config) {
						c.RoCE, c.Network, c.MTU = true, n, 9000
					})
					peers[i] = vnictest.NewPeer(t, vnictest.Open(t, d, vnic.ContextConfig{}),
						vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.RC}, Linger: &lingers[i]})
				}
				x, y := peers[0], peers[1]
				vnictest.ConnectByNumber(t, x, y, nil)
				lingers[1].willing = tt.willing
				if tt.answer != ack {
					x.Recv(3, 500, 64)
					lingers[1].answer = func() {
						if len(n.sent) != 1 {
							t.Errorf("%v was sent while an answer was waited for", n.sent)
						}
						lingers[1].answer = nil
						if tt.answer == send {
							y.Send(2, 0, 64)
						} else {
							y.Write(2, 0, 64, x, 500)
						}
					}
				}
				for i := range y.Buf {
					x.Buf[i], y.Buf[i] = byte(i), byte(2*i+1)
				}
				x.Write(1, 0, 64, y, 1000)
				x.WantSend("written", is(1, ok))
				if tt.answer != ack {
					y.WantSend("answered", is(2, ok))
					if !bytes.Equal(x.Buf[500:564], y.Buf[:64]) {
						t.Error("other octets")
					}
				}
				if !slices.Equal(n.sent, tt.want) {
					t.Errorf("sent: %v, want %v", n.sent, tt.want)
				}
				if calls := lingers[1].calls; (calls > 0) != tt.willing {
					t.Errorf("waited %d times", calls)
				}
			})
		})
	}
}
