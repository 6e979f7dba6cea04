package roce

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/lab/torture"
)

var own, remote = netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.1")

// An endpoint is a Link to one that takes a connection and Writes of nothing, in fake time.
type endpoint struct {
	say    func() rawroce.Packet // all that comes, again and again; nil: what is due
	reject func()                // a REJ has come
	queue  [][]byte
	peer   uint32 // the other queue pair
	id     uint32 // and communication id
	msn    uint32
	closed bool
}

func (e *endpoint) Close() error { e.closed = true; return nil }

func (e *endpoint) Send(b []byte) error {
	if e.closed {
		return net.ErrClosed
	}
	q, err := rawroce.Read(b)
	if err != nil {
		return err
	}
	if q.QPN != rawroce.ManagerQPN {
		e.msn++
		e.put(rawroce.Packet{Opcode: rawroce.Ack, QPN: e.peer, PSN: q.PSN,
			Ext: rawroce.AETH(0x1f, e.msn)})
		return nil
	}
	switch m := rawroce.MAD(q.Payload); m.Attr() {
	case rawroce.AttrREQ:
		e.peer = uint32(m[24+32])<<16 | uint32(m[24+33])<<8 | uint32(m[24+34])
		e.id = m.Local()
		e.message(rawroce.Pair(rawroce.AttrREP, m.TID(), 7, m.Local()).Set(12, 3, 0x77))
	case rawroce.AttrDREQ:
		e.message(rawroce.Pair(rawroce.AttrDREP, m.TID(), m.Remote(), m.Local()))
	case rawroce.AttrREJ:
		e.reject()
	}
	return nil
}

func (e *endpoint) message(m rawroce.MAD) {
	e.put(rawroce.Packet{Opcode: rawroce.UDSendOnly, QPN: rawroce.ManagerQPN,
		Ext: rawroce.DETH(rawroce.ManagerQKey, 1), Payload: m})
}

func (e *endpoint) put(q rawroce.Packet) {
	q.Src, q.Dst = remote, own
	e.queue = append(e.queue, q.Bytes())
}

// Receive takes a millisecond.
func (e *endpoint) Receive(by time.Time) ([]byte, error) {
	time.Sleep(time.Millisecond)
	if e.closed {
		return nil, net.ErrClosed
	}
	if !time.Now().Before(by) {
		return nil, os.ErrDeadlineExceeded
	}
	if len(e.queue) == 0 {
		if e.say == nil {
			time.Sleep(time.Until(by))
			return nil, os.ErrDeadlineExceeded
		}
		e.put(e.say())
	}
	b := e.queue[0]
	e.queue = e.queue[1:]
	return b, nil
}

// ends wants that f ends before long.
func ends(t *testing.T, what string, limit time.Duration, f func() error) {
	began := time.Now()
	if err := f(); err == nil {
		t.Errorf("%s is what is due", what)
	}
	if d := time.Since(began); d > limit {
		t.Errorf("%s keeps a case for %v", what, d)
	}
}

// An endpoint that says more and more does not keep a case longer than one that says nothing.
func TestEndless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = time.Second
		e := new(endpoint)
		a := &attempt{rawroce.NewPeer(e, own, remote, 7174), 10 * time.Millisecond}
		a.Patience = patience
		e.say = func() rawroce.Packet {
			return rawroce.Packet{Opcode: rawroce.ReadReq, QPN: a.QPN, PSN: a.First,
				Ext: rawroce.RETH(firstVA, ourKey, readSize)}
		}
		ends(t, "the same Read", 2*patience, a.send)
		ends(t, "the same Read, where an ACK is due", 2*patience, a.offer)
		e.queue = nil
		e.say = func() rawroce.Packet {
			m := rawroce.Pair(rawroce.AttrMRA, 1, 7, a.ID)
			return rawroce.Packet{Opcode: rawroce.UDSendOnly, QPN: rawroce.ManagerQPN,
				Ext: rawroce.DETH(rawroce.ManagerQKey, 1), Payload: m}
		}
		e.reject = func() {}
		ends(t, "an MRA", 2*patience, func() error {
			_, err := a.Ask(a.Request().MAD(3).Set(0, 4, 1)) // its REP is for somebody else
			return err
		})
	})
}

// A run that is interrupted ends, also in a case that waits for the end of a connection; that case
// passes when the connection is over.
func TestRejected(t *testing.T) {
	for _, interrupted := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e := new(endpoint)
			s := Suite(func(netip.Addr) (rawroce.Link, netip.Addr, error) { return e, own, nil })
			c := torture.Select(s.Cases, []string{"manager/a REJ of a connection"})[0]
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			e.reject = func() {
				if interrupted {
					cancel()
					synctest.Wait()
				} else {
					e.message(rawroce.Pair(rawroce.AttrDREQ, 1, 7, e.id))
				}
			}
			_, err := c.Try(ctx, torture.Target{Addr: netip.AddrPortFrom(remote, 7174),
				Timeout: time.Second, Settle: 10 * time.Millisecond})
			if interrupted != errors.Is(err, net.ErrClosed) || !interrupted && err != nil {
				t.Errorf("interrupted %v: %v", interrupted, err)
			}
		})
	}
}
