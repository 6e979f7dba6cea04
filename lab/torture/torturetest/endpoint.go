// Package torturetest has an endpoint for package torture to lie to, which does what a test wants.
package torturetest

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/lab/rawpeer"
)

// An Endpoint is a Responder of MPA on the loopback interface, one connection at a time. It answers
// Reads of nothing.
type Endpoint struct {
	Addr netip.AddrPort
	l    net.Listener
	// wrong is what it does when a segment has come that is neither an empty Write nor a Read of
	// nothing; it closes behind that.
	wrong func(p *rawpeer.Peer, s rawpeer.Seg) error
	done  chan struct{}
}

// New makes an Endpoint for the test's time.
func New(t testing.TB, wrong func(p *rawpeer.Peer, s rawpeer.Seg) error) *Endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &Endpoint{Addr: l.Addr().(*net.TCPAddr).AddrPort(), l: l, wrong: wrong,
		done: make(chan struct{})}
	go func() {
		defer close(e.done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = e.serve(rawpeer.New(rawpeer.Kernel(c.(*net.TCPConn)))) // it ends in many ways
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { e.Stop(); <-e.done })
	return e
}

// Stop has the Endpoint take no more connections.
func (e *Endpoint) Stop() { _ = e.l.Close() }

func (e *Endpoint) serve(p *rawpeer.Peer) error {
	p.Lenient = true
	s, err := p.ReadStart()
	if err != nil || s.Key != rawpeer.KeyRequest {
		return err
	}
	err = p.PutStart(rawpeer.Reply(rawpeer.FlagC).Enhanced(rawpeer.WordA|4, rawpeer.WordC|4))
	for err == nil {
		var got rawpeer.Seg
		if got, err = p.Next(); err != nil {
			break
		}
		r, ok := got.Read()
		switch {
		case ok && r.Size == 0 && got.QN == 1:
			err = p.Put(rawpeer.ReadResponse(r.SinkSTag, r.SinkTO, nil))
		case got.Op() == rawpeer.OpWrite && len(got.Body) == 0:
		default:
			return e.wrong(p, got)
		}
	}
	return err
}
