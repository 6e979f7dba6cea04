package rawroce_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/internal/stacknet"
	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A rig is a device of RoCE on a stack, and a raw peer on its switch.
type rig struct {
	*testing.T
	sw  *ethswitch.Switch
	st  *netstack.Stack
	ctx *vnic.Context
	raw *rawhost.Station
}

const (
	startPSN = 0xfffffe // of both sides: it wraps soon
	rawQPN   = 0x1234
	mtu      = 1024
)

func rawAddrs(n int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.77.0.%d", n)),
		netip.MustParseAddr(fmt.Sprintf("fd77::%x", n))}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, sw: ethswitch.New(ethswitch.Config{})}
	r.st, r.ctx = r.device(1)
	r.raw = r.peer(9)
	return r
}

// device is a device of RoCE on a stack of its own, the n-th station.
func (r *rig) device(n int) (*netstack.Stack, *vnic.Context) {
	r.Helper()
	st := netstacktest.NewStack(r, r.sw, n, 1500)
	net := stacknet.New(st)
	r.Cleanup(func() { net.Close() })
	d, err := vnic.New(vnic.Config{Name: "roce0", RoCE: true, MAC: st.MAC(), MTU: st.MTU(),
		Addrs: st.Addrs(), Network: net})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { d.Close() })
	return st, vnictest.Open(r, d, vnic.ContextConfig{})
}

// peer is one more raw peer, the n-th station.
func (r *rig) peer(n int) *rawhost.Station {
	r.Helper()
	p, err := rawhost.NewStation(r.sw, rawAddrs(n)...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(p.Close)
	return p
}

// A conn is a QP of the device that is connected to the raw peer.
type conn struct {
	*rig
	*vnictest.Peer
	v6   int    // 1: over IPv6
	psn  uint32 // of the next request to the device
	done uint32 // the device's MSN
}

// connect makes a QP and connects it with the raw peer, over IPv4 or, if v6 is 1, IPv6.
func (r *rig) connect(typ rdma.QPType, v6 int, state rdma.QPState) *conn {
	r.Helper()
	c := &conn{rig: r, v6: v6, psn: startPSN,
		Peer: vnictest.NewPeer(r, r.ctx, vnictest.PeerConfig{QP: rdma.QPConfig{Type: typ}})}
	a := rdma.QPAttr{Port: 1, Access: vnictest.Full, PathMTU: rdma.MTU1024, DestQPN: rawQPN,
		RQPSN: startPSN, SQPSN: startPSN, MaxDestRead: 4, MaxRead: 4, MinRNRTimer: 1, Timeout: 0,
		RetryCount: 7, RNRRetry: 7,
		Path: rdma.AHAttr{GID: rdma.GIDOf(r.raw.Addrs[v6]), GIDIndex: uint8(1 + v6), Port: 1,
			Global: true}}
	for _, s := range []struct {
		to   rdma.QPState
		mask rdma.QPAttrMask
	}{{rdma.QPInit, vnictest.ToInit}, {rdma.QPRTR, vnictest.ToRTR}, {rdma.QPRTS, vnictest.ToRTS}} {
		c.Move(s.to, a, s.mask)
		if s.to == state {
			break
		}
	}
	return c
}

// to fills in where p goes, and who sends it.
func (c *conn) to(p rawroce.Packet) rawroce.Packet {
	p.Src, p.Dst = c.raw.Addrs[c.v6], rawAddrs(1)[c.v6]
	if p.QPN == 0 {
		p.QPN = c.QP.Num()
	}
	return p
}

// put sends p.
func (c *conn) put(p rawroce.Packet) { c.octets(c.to(p).Bytes()) }

// octets sends a whole IP packet.
func (c *conn) octets(ip []byte) { c.raw.Send(c.st.MAC(), ip) }

// next is the next packet that the device sends.
func (c *conn) next() rawroce.Packet {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p, err := c.raw.Next(ctx)
	if err != nil {
		c.Fatalf("%v: %v", err, p)
	}
	return p
}

// write is a Write of four octets that asks for an answer, with the next PSN.
func (c *conn) write() rawroce.Packet {
	return c.to(rawroce.Packet{Opcode: rawroce.WriteOnly, PSN: c.psn, Ack: rawroce.AckReq,
		Ext: rawroce.RETH(c.MR.Addr(), c.MR.RKey(), 4), Payload: []byte("good")})
}

// answered sends p, a request with the next PSN, and wants its ACK.
func (c *conn) answered(what string, p rawroce.Packet) {
	c.Helper()
	c.octets(p.Bytes())
	c.wantACK(what)
}

func (c *conn) wantACK(what string) {
	c.Helper()
	c.done++
	a := c.next()
	if want := rawroce.AETH(0x1f, c.done); a.Opcode != rawroce.Ack || a.PSN != c.psn&0xffffff ||
		a.QPN != rawQPN || a.Ext[0]&0xe0 != 0 || string(a.Ext[1:]) != string(want[1:]) {
		c.Fatalf("%s: %v, want an ACK of PSN %#x with MSN %d", what, a, c.psn&0xffffff, c.done)
	}
	c.psn++
}

// clean wants that nothing was answered, and that the QP takes a good request now.
func (c *conn) clean(what string) {
	c.Helper()
	clear(c.Buf[:4])
	c.answered(what+", then a good request", c.write())
	if string(c.Buf[:4]) != "good" {
		c.Errorf("%s: the good request wrote %q", what, c.Buf[:4])
	}
}
