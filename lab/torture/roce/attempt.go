package roce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vrnic/vrnic/lab/rawroce"
	"github.com/vrnic/vrnic/lab/torture"
)

// An Opener makes a link to an endpoint, from an address of its own.
type Opener func(remote netip.Addr) (l rawroce.Link, own netip.Addr, err error)

// A row is a case, and what its peer does.
type row struct {
	name string
	ids  []string
	want string
	run  func(a *attempt) error
}

// Suite is all that there is, on links of open.
func Suite(open Opener) torture.Suite {
	s := torture.Suite{Transport: "roce", ComesUp: tried(open, (*attempt).comesUp)}
	for _, r := range slices.Concat(packets(), sequences(), requests(), answers(), manager(),
		deadly()) {
		s.Cases = append(s.Cases, torture.Case{Name: r.name, IDs: r.ids, Want: r.want,
			Try: tried(open, r.run)})
	}
	return s
}

// An attempt is one run of a case.
type attempt struct {
	*rawroce.Peer
	settle time.Duration
}

// tried makes a case's Try of what a peer does.
func tried(open Opener, run func(a *attempt) error,
) func(ctx context.Context, t torture.Target) (said string, err error) {
	return func(ctx context.Context, t torture.Target) (said string, err error) {
		l, own, err := open(t.Addr.Addr())
		if err != nil {
			return "", err
		}
		a := &attempt{rawroce.NewPeer(l, own, t.Addr.Addr(), t.Addr.Port()), t.Settle}
		a.Patience = t.Timeout
		stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // nothing is waited for
		err = run(a)
		said = a.Transcript()
		// An endpoint that does not answer this is one of which other cases tell.
		_ = a.Disconnect(time.Now().Add(min(t.Timeout, time.Second)))
		stop()
		_ = l.Close() // it may be closed
		return said, err
	}
}

func (a *attempt) comesUp() error {
	err := a.connected()
	if err == nil {
		err = a.alive()
	}
	return err
}

func (a *attempt) connected() error { return a.Connect(a.Request()) }

// alive has a Write of nothing answered, with nothing before it.
func (a *attempt) alive() error {
	if err := a.Put(a.Write()); err != nil {
		return err
	}
	return a.acknowledged()
}

// acknowledged wants the ACK of the request with the next PSN, which has completed a message.
func (a *attempt) acknowledged() error {
	q, err := a.Next(a.Soon())
	if err != nil {
		return unanswered(err)
	}
	return a.acknowledges(q)
}

// acknowledges wants q to be that ACK.
func (a *attempt) acknowledges(q rawroce.Packet) error {
	if !isACK(q) || q.PSN != a.PSN {
		if isNAK(q) {
			return torture.Differf("%s, where an ACK of PSN %#x is due", words(q), a.PSN)
		}
		return fmt.Errorf("%s, not an ACK of PSN %#x", words(q), a.PSN)
	}
	a.done()
	if got := msn(q); got != a.MSN {
		return torture.Differf("an ACK with MSN %d, not %d", got, a.MSN)
	}
	return nil
}

// done counts a request that was executed.
func (a *attempt) done() {
	a.PSN = (a.PSN + 1) & 0xffffff
	a.MSN = (a.MSN + 1) & 0xffffff
}

func unanswered(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("a request that is right is not answered")
	}
	return err
}

func isACK(q rawroce.Packet) bool { return q.Opcode == rawroce.Ack && q.Syndrome()>>5 == 0 }
func isNAK(q rawroce.Packet) bool { return q.Opcode == rawroce.Ack && q.Syndrome()>>5 == 3 }

func msn(q rawroce.Packet) uint32 {
	return uint32(q.Ext[1])<<16 | uint32(q.Ext[2])<<8 | uint32(q.Ext[3])
}

// words is a packet in some.
func words(q rawroce.Packet) string {
	if q.Opcode == rawroce.Ack {
		kind := map[uint8]string{0: "an ACK", 1: "an RNR NAK", 3: fmt.Sprintf("NAK %#x",
			q.Syndrome())}[q.Syndrome()>>5]
		return fmt.Sprintf("%s of PSN %#x", kind, q.PSN)
	}
	return fmt.Sprintf("opcode %#x with PSN %#x and %d octets", q.Opcode, q.PSN, len(q.Payload))
}

// ignored sends what is to have no effect and no answer: what is heard next is that the connection
// is alive.
func (a *attempt) ignored(bad ...[]byte) error {
	for _, b := range bad {
		if err := a.Octets(b); err != nil {
			return err
		}
	}
	return a.alive()
}

// refused sends a request that is to be answered by a NAK with one of these syndromes, or, if
// orDropped is set, by nothing. It ends a connection.
func (a *attempt) refused(bad rawroce.Packet, orDropped bool, syndromes ...uint8) error {
	if err := a.Put(bad); err != nil {
		return err
	}
	// Of what was dropped the next one has the PSN: it is of a kind whose answer is another one.
	behind, opcode := a.read(), uint8(rawroce.ReadOnly)
	if bad.Opcode == rawroce.ReadReq {
		behind, opcode = a.Write(), rawroce.Ack
	}
	if orDropped {
		if err := a.Put(behind); err != nil {
			return err
		}
	}
	q, err := a.Next(a.Soon())
	switch {
	case orDropped && err == nil && q.Opcode == opcode && q.PSN == a.PSN && q.Syndrome()>>5 == 0:
		a.done()
		return a.alive()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("nothing came of it in %v, not %s", a.Patience, naks(syndromes))
	case errors.Is(err, rawroce.ErrOver):
		return torture.Differf("the connection was ended, without %s", naks(syndromes))
	case err != nil:
		return err
	case !isNAK(q):
		return fmt.Errorf("it was taken: %s, not %s", words(q), naks(syndromes))
	}
	if !slices.Contains(syndromes, q.Syndrome()) {
		err = torture.Differf("%s, not %s", words(q), naks(syndromes))
	} else if q.PSN != a.PSN || msn(q) != a.MSN {
		err = torture.Differf("a NAK of PSN %#x with MSN %d, not of %#x with %d", q.PSN, msn(q), a.PSN,
			a.MSN)
	}
	if alive := a.dead(); alive != nil {
		return alive
	}
	return err
}

// dead wants no answer to anything any more.
func (a *attempt) dead() error {
	if err := a.Put(a.Write()); err != nil {
		return err
	}
	if err := a.Quiet(a.settle); err != nil {
		return fmt.Errorf("the queue pair goes on behind a NAK: %w", err)
	}
	return nil
}

func naks(syndromes []uint8) string {
	var s []string
	for _, x := range syndromes {
		s = append(s, fmt.Sprintf("%#x", x))
	}
	return "NAK " + strings.Join(s, " or ")
}
