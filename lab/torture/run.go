package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
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
	// Try does it, and gives what went over the connection, and an error if something else came of it
	// (Differf, Skipf). It returns when ctx ends.
	Try func(ctx context.Context, t Target) (said string, err error) `json:"-"`
}

// A Suite is what there is for a transport.
type Suite struct {
	Transport string
	Cases     []Case
	// ComesUp makes a connection that is in order, and looks whether it is alive.
	ComesUp func(ctx context.Context, t Target) (said string, err error)
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

// Run runs the cases of s one after the other; each result is told when it is there. Cases behind
// one that has the endpoint take no connections any more are not run, and those that are left when
// ctx ends neither: that is told of each. An error says that the endpoint took no connection in the
// first place, or that ctx has ended.
func Run(ctx context.Context, t Target, s Suite, tell func(Result)) error {
	if err := t.Check(); err != nil {
		return err
	}
	if _, err := s.ComesUp(ctx, t); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return fmt.Errorf("%v does not take a connection that is in order: %w", t.Addr, err)
	}
	left := func(cases []Case, why string) {
		for _, c := range cases {
			tell(Result{Case: c, Status: Skip, Detail: why})
		}
	}
	for i, c := range s.Cases {
		r := one(ctx, t, s, c)
		if ctx.Err() != nil {
			left(s.Cases[i:], "interrupted")
			return ctx.Err()
		}
		tell(r)
		if r.Status == Down {
			left(s.Cases[i+1:], "the endpoint is down")
			return nil
		}
	}
	return nil
}

// one runs a case, and looks whether the endpoint is still there if it has not passed.
func one(ctx context.Context, t Target, s Suite, c Case) Result {
	began := time.Now()
	said, err := c.Try(ctx, t)
	r := result(c, err)
	if r.Status == Differs || r.Status == Fail {
		r.Transcript = said
		// What failed may have ended it; somebody who is slow to come back is asked again.
		_, down := s.ComesUp(ctx, t)
		if down != nil {
			_, down = s.ComesUp(ctx, t)
		}
		if down != nil {
			r.Status = Down
			r.Detail += fmt.Sprintf("; and now no connection comes up: %v", down)
		}
	}
	r.Seconds = time.Since(began).Seconds()
	return r
}

// A differs is an answer that refuses, but not as it is wanted; a skipped says why a case makes no
// sense here.
type (
	differs struct{ error }
	skipped struct{ error }
)

// Differf is the error of what is wrong and was refused, but not as it is wanted.
func Differf(format string, args ...any) error { return differs{fmt.Errorf(format, args...)} }

// Differing says whether an error is one of Differf.
func Differing(err error) bool { return errors.As(err, new(differs)) }

// Skipf is that of a case that makes no sense with this endpoint.
func Skipf(format string, args ...any) error { return skipped{fmt.Errorf(format, args...)} }

func result(c Case, err error) Result {
	r := Result{Case: c, Status: Pass}
	if err == nil {
		return r
	}
	r.Status, r.Detail = Fail, err.Error()
	if Differing(err) {
		r.Status = Differs
	} else if errors.As(err, new(skipped)) {
		r.Status = Skip
	}
	return r
}
