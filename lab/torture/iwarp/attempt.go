package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/torture"
)

// A Dialer connects to an endpoint.
type Dialer func(ctx context.Context, addr netip.AddrPort) (*rawpeer.Peer, error)

// An attempt is one run of a case.
type attempt struct {
	ctx  context.Context
	t    torture.Target
	with Dialer
	open []*rawpeer.Peer
	stop []func() bool // have the end of ctx do nothing to these any more
}

// tried makes a case's Try of what a peer does.
func tried(dial Dialer, run func(a *attempt) error,
) func(ctx context.Context, t torture.Target) (said string, err error) {
	return func(ctx context.Context, t torture.Target) (said string, err error) {
		a := &attempt{ctx: ctx, t: t, with: dial}
		err = run(a)
		for _, stop := range a.stop {
			stop()
		}
		for _, p := range a.open {
			said += p.Transcript()
			_ = p.Close() // it may be closed
		}
		return said, err
	}
}

// dial makes a TCP connection.
func (a *attempt) dial() (*rawpeer.Peer, error) {
	ctx, cancel := context.WithTimeout(a.ctx, a.t.Timeout)
	defer cancel()
	p, err := a.with(ctx, a.t.Addr)
	if err != nil {
		return nil, err
	}
	p.Patience = a.t.Timeout
	a.open = append(a.open, p)
	a.stop = append(a.stop, context.AfterFunc(a.ctx, func() { _ = p.C.Close() })) // nothing is left
	return p, nil
}

// DialHost makes a connection of the host's TCP.
func DialHost(ctx context.Context, addr netip.AddrPort) (*rawpeer.Peer, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return rawpeer.New(rawpeer.Kernel(c.(*net.TCPConn))), nil
}

// start makes a connection with a Request, and wants a Reply that takes it.
func (a *attempt) start(request rawpeer.Start) (*rawpeer.Peer, error) {
	p, err := a.dial()
	if err != nil {
		return nil, err
	}
	if err := p.PutStart(request); err != nil {
		return nil, err
	}
	reply, err := p.ReadStart()
	switch {
	case err != nil:
		return nil, err
	case reply.Key != rawpeer.KeyReply:
		return nil, errors.New("a Request came for a Reply")
	case reply.Flags&rawpeer.FlagR != 0:
		return nil, errors.New("the Request was rejected")
	}
	return p, nil
}

// ready makes a connection and sends the RTR.
func (a *attempt) ready() (*rawpeer.Peer, error) {
	p, err := a.start(Plain(4, 4))
	if err == nil {
		err = a.rtr(p)
	}
	return p, err
}

func (a *attempt) rtr(p *rawpeer.Peer) error {
	a.settle()
	if err := p.Put(nowhere); err != nil {
		return err
	}
	a.settle()
	return nil
}

func (a *attempt) settle() { time.Sleep(a.t.Settle) } // what comes early may wait

// alive wants an answer to a Read of nothing, the msn-th of the connection.
func (a *attempt) alive(p *rawpeer.Peer, msn uint32) error {
	r := rawpeer.Read{SinkSTag: 0xdeadbeef, SinkTO: 77}
	if err := p.Put(rawpeer.ReadRequest(msn, r)); err != nil {
		return err
	}
	return a.want(p, rawpeer.ReadResponse(r.SinkSTag, r.SinkTO, nil))
}

// want waits for exactly this segment.
func (a *attempt) want(p *rawpeer.Peer, s rawpeer.Seg) error {
	got, err := p.Next()
	if err != nil {
		return fmt.Errorf("no %s: %w", s.Name(), ended(err))
	}
	if string(got.ULPDU()) != string(s.ULPDU()) {
		return fmt.Errorf("%s, not %s", words(got), words(s))
	}
	return nil
}

// ended words the end of a stream.
func ended(err error) error {
	if e := rawpeer.EndingOf(err); e != 0 {
		return fmt.Errorf("%v came", e)
	}
	return err
}

func comesUp(a *attempt) error {
	p, err := a.ready()
	if err != nil {
		return err
	}
	return a.alive(p, 1)
}

// refused wants a Terminate, if there is to be one, and the end of the stream.
func (a *attempt) refused(p *rawpeer.Peer, want rawpeer.Seg, silent bool) error {
	got, err := p.Next()
	switch e := rawpeer.EndingOf(err); {
	case err == nil && got.Op() != rawpeer.OpTerminate:
		return fmt.Errorf("it was taken: %s came", words(got))
	case err == nil && silent:
		return torture.Differf("%s, not the end alone", words(got))
	case err == nil && string(got.ULPDU()) != string(want.ULPDU()):
		return torture.Differf("%s, not %s", words(got), words(want))
	case err == nil:
		return a.fin(p)
	case e == rawpeer.EndFIN && silent:
		return nil
	case e == rawpeer.EndFIN:
		return torture.Differf("a FIN without a Terminate, not %s", words(want))
	case e == rawpeer.EndReset:
		return torture.Differf("a RST, not %s", words(want))
	case e == rawpeer.EndSilence:
		return fmt.Errorf("nothing came of it in %v, not %s", p.Patience, words(want))
	}
	return torture.Differf("what came is malformed: %w", err)
}

// fin wants the orderly end of the stream.
func (a *attempt) fin(p *rawpeer.Peer) error {
	switch e, err := p.End(p.Patience); {
	case err != nil:
		return err
	case e == rawpeer.EndReset:
		return torture.Differf("a RST, not a FIN")
	case e == rawpeer.EndSilence:
		return fmt.Errorf("the stream is not closed in %v", p.Patience)
	}
	return nil
}

// closed wants the end of the stream, in any way, and no octet before.
func (a *attempt) closed(p *rawpeer.Peer) error {
	e, err := p.End(p.Patience)
	if err == nil && e == rawpeer.EndSilence {
		err = fmt.Errorf("the stream is not closed in %v", p.Patience)
	}
	return err
}

// over wants the end of the stream, in any way, whatever comes before.
func (a *attempt) over(p *rawpeer.Peer) error {
	err := p.C.SetReadDeadline(time.Now().Add(p.Patience))
	if err != nil {
		return err
	}
	if _, err = io.Copy(io.Discard, p.C); rawpeer.EndingOf(err) == rawpeer.EndSilence {
		return fmt.Errorf("the stream is not closed in %v", p.Patience)
	}
	return nil
}

// words is a segment in some.
func words(s rawpeer.Seg) string {
	if s.Op() == rawpeer.OpTerminate && len(s.Body) >= 4 {
		return fmt.Sprintf("Terminate %d/%d/%02x with M, D, R %#02x and %d octets", s.Body[0]>>4,
			s.Body[0]&15, s.Body[1], s.Body[2], len(s.Body))
	}
	return fmt.Sprintf("%s of %d octets", s.Name(), len(s.Body))
}
