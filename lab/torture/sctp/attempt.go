package sctp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/lab/torture"
)

// A Dialer makes a peer that has no association yet.
type Dialer func(ctx context.Context, t torture.Target) (*rawsctp.Peer, error)

// A row is a case, and what its peer does.
type row struct {
	name string
	ids  []string
	want string
	run  func(a *attempt) error
}

// Suite is all that there is, with peers of dial.
func Suite(dial Dialer) torture.Suite {
	s := torture.Suite{Transport: "sctp", ComesUp: tried(dial, comesUp)}
	for _, r := range slices.Concat(inits(), associations(), streams(), sessions(), segments()) {
		s.Cases = append(s.Cases, torture.Case{Name: r.name, IDs: r.ids, Want: r.want,
			Try: tried(dial, r.run)})
	}
	return s
}

// An attempt is one run of a case.
type attempt struct{ *rawsctp.Peer }

// tried makes a case's Try of what a peer does. The association ends by an ABORT: an endpoint keeps
// one of a peer that is silent for long.
func tried(dial Dialer, run func(a *attempt) error,
) func(ctx context.Context, t torture.Target) (said string, err error) {
	return func(ctx context.Context, t torture.Target) (said string, err error) {
		p, err := dial(ctx, t)
		if err != nil {
			return "", err
		}
		a := &attempt{p}
		a.Patience, a.Terse = t.Timeout, true
		stop := context.AfterFunc(ctx, a.Close) // nothing is waited for
		err = run(a)
		said = a.Transcript()
		if a.Tag != 0 {
			a.Send(rawsctp.Make(rawsctp.Abort, 0))
		}
		stop()
		a.Close()
		return said, err
	}
}

func comesUp(a *attempt) error {
	err := a.Establish()
	if err == nil {
		err = a.Alive()
	}
	return err
}

// speaksDDP is an error if an INIT ACK with these parameters does not say so.
func speaksDDP(params map[uint16][]byte) error {
	if v := params[rawsctp.ParamAdaptation]; len(v) != 4 || binary.BigEndian.Uint32(v) != 1 {
		return torture.Skipf("the endpoint does not say that it speaks DDP: an indication % x", v)
	}
	return nil
}

// associated makes an association with an endpoint that speaks DDP.
func (a *attempt) associated() error {
	cookie, params, err := a.Begin(a.Setup())
	if err == nil {
		err = speaksDDP(params)
	}
	if err != nil {
		return err
	}
	a.Send(rawsctp.Make(rawsctp.CookieEcho, 0, cookie...))
	_, err = a.Want(rawsctp.CookieAck)
	return err
}

// began opens a session on a stream of an association.
func (a *attempt) began(stream uint16) error {
	a.Control(stream, rawsctp.Initiate)
	if err := a.WantControl(stream, 0, rawsctp.Accept); err != nil {
		return fmt.Errorf("no session: %w", err)
	}
	return nil
}

// session makes an association with a session on stream 0.
func (a *attempt) session() error {
	err := a.associated()
	if err == nil {
		err = a.began(0)
	}
	return err
}

// moves has a Read of nothing answered, which is the first message of a session, of the endpoint's
// with this DDP-SSN.
func (a *attempt) moves(stream, ssn uint16) error {
	r := rawpeer.Read{SinkSTag: 0xdeadbeef, SinkTO: 77}
	a.Segment(stream, rawpeer.ReadRequest(1, r).ULPDU())
	got, err := a.WantSegment(stream, ssn)
	if err != nil {
		return fmt.Errorf("a Read of nothing is not answered: %w", err)
	}
	if want := rawpeer.ReadResponse(r.SinkSTag, r.SinkTO, nil).ULPDU(); string(got) != string(want) {
		return fmt.Errorf("% x, not the answer to a Read of nothing", got)
	}
	return nil
}

// behind is what has come of a case: differs counts if nothing failed behind it.
func behind(differs, err error) error { return cmp.Or(err, differs) }

// unlessAborted is err, of what is to be ignored: an ABORT of it is another way to refuse it.
func unlessAborted(err error) error {
	if errors.Is(err, rawsctp.ErrAborted) {
		return torture.Differf("%w", err)
	}
	return err
}

// aborted wants an ABORT with a tag and a T bit. One of another cause differs.
func (a *attempt) aborted(tag uint32, t bool, cause int) error {
	err := a.WantAbort(tag, t, cause)
	if errors.Is(err, rawsctp.ErrOtherAbort) {
		return torture.Differf("%w", err)
	}
	return err
}
