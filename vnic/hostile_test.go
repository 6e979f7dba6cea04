package vnic_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A rawPeer speaks MPA by hand: it has connected to a listener and can send anything.
type rawPeer struct {
	t *testing.T
	s iwarp.Stream
	y *vnictest.Peer
	d *vnic.Device
}

func newRawPeer(t *testing.T) *rawPeer {
	t.Helper()
	n := vnictest.NewNet()
	c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
	return rawDial(t, n, c, vnictest.PeerConfig{})
}

// rawDial makes a peer with cfg in c and connects to it by hand.
func rawDial(t *testing.T, n *vnictest.Net, c *vnic.Context, cfg vnictest.PeerConfig) *rawPeer {
	t.Helper()
	p := rawStart(t, n, c, cfg)
	p.ready()
	return p
}

// rawStream connects a host of n that has no device to a listener, by TCP.
func rawStream(t *testing.T, n *vnictest.Net, to netip.AddrPort) iwarp.Stream {
	t.Helper()
	from := netip.MustParseAddr("10.0.0.2")
	s, err := n.Host(from).Dial(context.Background(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// rawStart is rawDial, but for the ready-to-receive message.
func rawStart(t *testing.T, n *vnictest.Net, c *vnic.Context, cfg vnictest.PeerConfig) *rawPeer {
	t.Helper()
	l, lr := listen(t, c, 0)
	s := rawStream(t, n, l.Local())
	m, err := iwarp.NewInitiator(iwarp.DefaultStartConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	k, _ := s.WriteFrom(m)
	m.Commit(k)
	req := lr.want("a request", vnic.CMConnectRequest)[0]
	p := &rawPeer{t: t, s: s, y: vnictest.NewPeer(t, c, cfg), d: c.Device()}
	req.ID.SetHandler(nil)
	if err := req.ID.Accept(p.y.QP, cfg.Param); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	s.ReadInto(m)
	if _, err := m.Result(); err != nil {
		t.Fatal(err)
	}
	p.y.WantState("accepted", rdma.QPRTS)
	return p
}

// ready sends the ready-to-receive message.
func (p *rawPeer) ready() {
	p.t.Helper()
	p.send(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 0, 0))
}

// send sends a ULPDU.
func (p *rawPeer) send(ulpdu []byte) {
	p.t.Helper()
	writeAll(p.t, p.s, iwarp.AppendFPDU(nil, ulpdu, true))
}

// terminate takes what the other end sends until it closes, and returns the Terminate in it.
func (p *rawPeer) terminate() (iwarp.TermCode, bool) {
	p.t.Helper()
	synctest.Wait()
	var in sink
	p.s.ReadInto(&in)
	for b := in.b; len(b) >= 2; {
		n := int(binary.BigEndian.Uint16(b))
		if len(b) < iwarp.FPDULen(n) {
			break
		}
		u := b[2 : 2+n]
		if len(u) > 18 && u[1]&15 == byte(iwarp.OpTerminate) {
			t, err := iwarp.ParseTerminate(u[18:])
			if err != nil {
				p.t.Fatal(err)
			}
			return t.Cause, true
		}
		b = b[iwarp.FPDULen(n):]
	}
	return iwarp.TermCode{}, false
}

// What a peer must not send ends its connection with the right cause, and nothing else. A second
// connection of the device is well afterwards.
func TestHostilePeer(t *testing.T) {
	payload := func(h []byte, n int) []byte { return append(h, make([]byte, n)...) }
	for name, tt := range map[string]struct {
		ulpdu func(y *vnictest.Peer) []byte
		want  iwarp.TermCode
	}{
		"Write to an unknown STag": {func(*vnictest.Peer) []byte {
			return payload(iwarp.AppendTagged(nil, true, iwarp.OpWrite, 77, 0), 8)
		}, iwarp.TermInvalidSTag},
		"Write whose offset wraps": {func(y *vnictest.Peer) []byte {
			return payload(iwarp.AppendTagged(nil, true, iwarp.OpWrite, iwarp.STag(y.MR.RKey()), 1<<64-4), 8)
		}, iwarp.TermTOWrap},
		"Read of more than there is": {func(y *vnictest.Peer) []byte {
			return iwarp.AppendReadRequest(iwarp.AppendUntagged(nil, true, iwarp.OpReadRequest, 0, 1, 0), 1,
				0, 1<<31, iwarp.STag(y.MR.RKey()), y.MR.Addr())
		}, iwarp.TermReadBounds},
		"Read Response nobody asked for": {func(y *vnictest.Peer) []byte {
			return payload(iwarp.AppendTagged(nil, true, iwarp.OpReadResponse, iwarp.STag(y.MR.RKey()),
				y.MR.Addr()), 8)
		}, iwarp.TermUnexpectedOpcode},
		"Send with the wrong MSN": {func(*vnictest.Peer) []byte {
			return payload(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 9, 0), 8)
		}, iwarp.TermMSNRange},
		"Send longer than the receive": {func(*vnictest.Peer) []byte {
			return payload(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 1, 0), 101)
		}, iwarp.TermMessageTooLong},
		"reserved opcode": {func(*vnictest.Peer) []byte {
			return payload(iwarp.AppendUntagged(nil, true, 12, 0, 1, 0), 8)
		}, iwarp.TermUnexpectedOpcode},
		"shorter than a header": {func(*vnictest.Peer) []byte { return []byte{0x41} }, iwarp.TermMarker},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newRawPeer(t)
				before := append([]byte(nil), p.y.Buf...)
				p.y.Recv(1, 0, 100)
				p.send(tt.ulpdu(p.y))
				got, ok := p.terminate()
				if !ok || got != tt.want {
					t.Errorf("Terminate %v (%v), want %v", got, ok, tt.want)
				}
				time.Sleep(time.Minute) // we never close our side
				p.y.WantState("Q15 by the timer", rdma.QPError)
				if wc := p.y.Next(p.y.RecvCQ, 1)[0]; wc.Status == rdma.WCSuccess {
					t.Errorf("receive completed with %v", wc.Status)
				}
				if string(before) != string(p.y.Buf) {
					t.Error("memory was changed")
				}
			})
		})
	}
}

// Any octets at all in place of FPDUs: the QP ends or waits, nothing is delivered, nothing hangs.
func TestHostileNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		synctest.Test(t, func(t *testing.T) {
			p := newRawPeer(t)
			p.y.Recv(1, 0, 1000)
			b := make([]byte, 1+rng.IntN(3000))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			if rng.IntN(2) == 0 { // a valid frame around noise, so that it gets further
				b = iwarp.AppendFPDU(nil, b, true)
			}
			writeAll(t, p.s, b)
			synctest.Wait()
			p.s.Close()
			wc := p.y.Next(p.y.RecvCQ, 1)[0]
			if wc.Status == rdma.WCSuccess {
				t.Fatalf("noise was delivered as a Send: % x", b)
			}
			time.Sleep(time.Minute)
			if s := p.y.QP.State(); s != rdma.QPError && s != rdma.QPIdle {
				t.Fatalf("the QP is in state %v", s)
			}
		})
	}
}

// Q14: data behind the peer's own wish to close, or ours, is answered with a reset.
func TestDataWhileClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newRawPeer(t)
		synctest.Wait()
		if err := p.y.QP.Disconnect(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.y.WantState("FIN sent", rdma.QPClosing)
		p.send(append(iwarp.AppendUntagged(nil, true, iwarp.OpSend, 0, 1, 0), 1, 2, 3))
		synctest.Wait()
		p.y.WantState("Q14", rdma.QPError)
	})
}

// A responder that disconnects at once waits for the ready-to-receive message, which would meet its
// FIN else: Q4. If none comes the timer ends it.
func TestDisconnectBeforeRTR(t *testing.T) {
	for _, comes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n := vnictest.NewNet()
			c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
			p := rawStart(t, n, c, vnictest.PeerConfig{})
			if err := p.y.QP.Disconnect(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			p.y.WantState("not yet", rdma.QPRTS)
			if !comes {
				time.Sleep(time.Minute)
				synctest.Wait()
				p.y.WantState("it never came", rdma.QPError)
				return
			}
			p.ready()
			synctest.Wait()
			p.y.WantState("FIN sent", rdma.QPClosing)
			p.s.CloseWrite()
			synctest.Wait()
			p.y.WantState("Q13", rdma.QPIdle)
		})
	}
}

// Q13, Q14 by the timer: the peer never closes its side.
func TestCloseTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newRawPeer(t)
		p.y.Recv(1, 0, 1)
		p.y.QP.Disconnect()
		p.y.WantRecv("flushed at once", is(1, flush))
		time.Sleep(5*time.Second - 1)
		p.y.WantState("waits", rdma.QPClosing)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		p.y.WantState("no longer", rdma.QPError)
	})
}

// A flood of connections that say nothing: bounded, and gone after the timer (SEC-024).
func TestHalfOpenFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		d := n.Device(t, "vnic0", []string{"10.0.0.1/24"}, func(c *vnic.Config) { c.MaxPending = 10 })
		l, _ := listen(t, vnictest.Open(t, d, vnic.ContextConfig{}), 100)
		from := netip.MustParseAddr("10.0.0.2")
		h := n.Host(from)
		for range 50 {
			s, err := h.Dial(context.Background(), from, l.Local())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			synctest.Wait()
		}
		if p := d.DevInfo().Pending; p != 10 {
			t.Fatalf("%d are pending, want 10", p)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if p := d.DevInfo().Pending; p != 0 {
			t.Fatalf("%d are pending after the timer", p)
		}
	})
}
