package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vrnic/vrnic/lab/rawpeer"
)

// A Status is what a case has come to.
type Status string

// The endpoint did what it has to; it refused what it has to, in another way than wanted; it did
// not; it takes no connections any more; the case could not be tried.
const (
	Pass    Status = "pass"
	Differs Status = "differs"
	Fail    Status = "FAIL"
	Down    Status = "DOWN"
	Skip    Status = "skip"
)

// A Case is something that a peer does, and what must come of it. Each has a connection of its own.
type Case struct {
	Name string   `json:"name"`
	IDs  []string `json:"ids"`
	Want string   `json:"want"`
	run  func(a *attempt) error
}

// A Result is what a Case has come to.
type Result struct {
	Case
	Status     Status  `json:"status"`
	Detail     string  `json:"detail,omitempty"`
	Seconds    float64 `json:"seconds"`
	Transcript string  `json:"transcript,omitempty"` // of what did not pass
}

// A Target is the endpoint, and how long it may take for what it has to do.
type Target struct {
	Addr    netip.AddrPort
	Timeout time.Duration
	// Settle is for a Responder that has sent its Reply before it reads on: siw looks at what comes in
	// between only when more comes (docs/interop.md, S1).
	Settle time.Duration
	// Dial connects to Addr in place of the host's TCP, if it is not nil.
	Dial func(ctx context.Context, addr netip.AddrPort) (*rawpeer.Peer, error)
}

// Check refuses what is not the address of one endpoint.
func (t Target) Check() error {
	a := t.Addr.Addr().Unmap()
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return fmt.Errorf("%v is nobody's address", a)
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%v is the address of many: name one endpoint", a)
	case broadcast(a):
		return fmt.Errorf("%v is a broadcast address of this host's network", a)
	case t.Addr.Port() == 0:
		return errors.New("port 0 is nobody's")
	}
	return nil
}

// broadcast says whether a is the last address of a network that this host is in.
func broadcast(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil || !a.Is4() {
		return false
	}
	for _, i := range addrs {
		n, ok := i.(*net.IPNet)
		ip := n.IP.To4()
		if !ok || ip == nil || len(n.Mask) != 4 || n.Mask[3]&1 != 0 || n.Mask[3] == 0xfe {
			continue
		}
		for j := range ip {
			ip[j] |= ^n.Mask[j]
		}
		if netip.AddrFrom4([4]byte(ip)) == a {
			return true
		}
	}
	return false
}

// Select is the cases whose name has one of words, or that are about a requirement of that ID; with
// no words it is all.
func Select(cases []Case, words []string) []Case {
	if len(words) == 0 {
		return cases
	}
	return slices.DeleteFunc(slices.Clone(cases), func(c Case) bool {
		return !slices.ContainsFunc(words, func(w string) bool {
			return strings.Contains(strings.ToLower(c.Name), strings.ToLower(w)) ||
				slices.ContainsFunc(c.IDs, func(id string) bool { return strings.EqualFold(id, w) })
		})
	})
}

// Run runs cases one after the other; each result is told when it is there. Cases behind one that
// has the endpoint take no connections any more are not run. An error says that it took none in the
// first place, or that ctx has ended.
func Run(ctx context.Context, t Target, cases []Case, tell func(Result)) error {
	if err := t.Check(); err != nil {
		return err
	}
	if _, err := try(ctx, t, Case{Name: "first", run: comesUp}); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return fmt.Errorf("%v does not take a connection that is in order: %w", t.Addr, err)
	}
	for i, c := range cases {
		began := time.Now()
		said, err := try(ctx, t, c)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r := result(c, err)
		if r.Status == Differs || r.Status == Fail {
			r.Transcript = said
		}
		if r.Status != Pass && r.Status != Skip {
			// What failed may have ended it; somebody who is slow to come back is asked again.
			_, down := try(ctx, t, Case{run: comesUp})
			if down != nil {
				_, down = try(ctx, t, Case{run: comesUp})
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if down != nil {
				r.Status = Down
				r.Detail += fmt.Sprintf("; and now no connection comes up: %v", down)
			}
		}
		r.Seconds = time.Since(began).Seconds()
		tell(r)
		if r.Status == Down {
			for _, c := range cases[i+1:] {
				tell(Result{Case: c, Status: Skip, Detail: "the endpoint is down"})
			}
			return nil
		}
	}
	return nil
}

// A differs is an answer that refuses, but not as it is wanted; a skipped says why a case makes no
// sense here.
type (
	differs struct{ error }
	skipped struct{ error }
)

func differsf(format string, args ...any) error { return differs{fmt.Errorf(format, args...)} }
func skipf(format string, args ...any) error    { return skipped{fmt.Errorf(format, args...)} }

func result(c Case, err error) Result {
	r := Result{Case: c, Status: Pass}
	if err == nil {
		return r
	}
	r.Status, r.Detail = Fail, err.Error()
	if d := (differs{}); errors.As(err, &d) {
		r.Status = Differs
	} else if s := (skipped{}); errors.As(err, &s) {
		r.Status = Skip
	}
	return r
}

// An attempt is one run of a case.
type attempt struct {
	ctx  context.Context
	t    Target
	open []*rawpeer.Peer
	stop []func() bool // have the end of ctx do nothing to these any more
}

// try runs a case, and says what went over its connections.
func try(ctx context.Context, t Target, c Case) (said string, err error) {
	a := &attempt{ctx: ctx, t: t}
	err = c.run(a)
	for _, stop := range a.stop {
		stop()
	}
	for _, p := range a.open {
		said += p.Transcript()
		_ = p.Close() // it may be closed
	}
	return said, err
}

// dial makes a TCP connection.
func (a *attempt) dial() (*rawpeer.Peer, error) {
	ctx, cancel := context.WithTimeout(a.ctx, a.t.Timeout)
	defer cancel()
	dial := a.t.Dial
	if dial == nil {
		dial = dialHost
	}
	p, err := dial(ctx, a.t.Addr)
	if err != nil {
		return nil, err
	}
	p.Patience = a.t.Timeout
	a.open = append(a.open, p)
	a.stop = append(a.stop, context.AfterFunc(a.ctx, func() { _ = p.C.Close() })) // nothing is left
	return p, nil
}

// dialHost makes a connection of the host's TCP.
func dialHost(ctx context.Context, addr netip.AddrPort) (*rawpeer.Peer, error) {
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
		return differsf("%s, not the end alone", words(got))
	case err == nil && string(got.ULPDU()) != string(want.ULPDU()):
		return differsf("%s, not %s", words(got), words(want))
	case err == nil:
		return a.fin(p)
	case e == rawpeer.EndFIN && silent:
		return nil
	case e == rawpeer.EndFIN:
		return differsf("a FIN without a Terminate, not %s", words(want))
	case e == rawpeer.EndReset:
		return differsf("a RST, not %s", words(want))
	case e == rawpeer.EndSilence:
		return fmt.Errorf("nothing came of it in %v, not %s", p.Patience, words(want))
	}
	return differsf("what came is malformed: %w", err)
}

// fin wants the orderly end of the stream.
func (a *attempt) fin(p *rawpeer.Peer) error {
	switch e, err := p.End(p.Patience); {
	case err != nil:
		return err
	case e == rawpeer.EndReset:
		return differsf("a RST, not a FIN")
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
