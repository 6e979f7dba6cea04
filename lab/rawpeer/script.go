package rawpeer

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Step is something that a Peer does or waits for.
type Step struct {
	Name string
	Do   func(*Peer) error
}

// Run does steps until one fails. The error says which, and what went before.
func (p *Peer) Run(steps ...Step) error {
	for i, s := range steps {
		p.note("step %d: %s", i+1, s.Name)
		if err := s.Do(p); err != nil {
			return fmt.Errorf("step %d of %d, %s: %w\n%s", i+1, len(steps), s.Name, err, p.Transcript())
		}
	}
	return nil
}

// PutStart sends a start frame.
func PutStart(s Start) Step {
	return Step{"send a start frame", func(p *Peer) error { return p.PutStart(s) }}
}

// WantStart waits for a start frame that ok finds right.
func WantStart(what string, ok func(Start) bool) Step {
	return Step{"want " + what, func(p *Peer) error {
		s, err := p.ReadStart()
		if err == nil && !ok(s) {
			err = fmt.Errorf("the start frame is %+v", s)
		}
		return err
	}}
}

// WantReply waits for a Reply with these flags and no others, beside FlagM.
func WantReply(flags byte) Step {
	return WantStart(fmt.Sprintf("a Reply with flags %#02x", flags), func(s Start) bool {
		return s.Key == KeyReply && s.Flags&^FlagM == flags
	})
}

// Put sends segments one by one.
func Put(segs ...Seg) Step {
	return Step{"send " + names(segs), func(p *Peer) error { return p.Put(segs...) }}
}

// PutTogether sends segments with one call: together in TCP segments as far as they fit.
func PutTogether(segs ...Seg) Step {
	return Step{"send together " + names(segs), func(p *Peer) error { return p.PutTogether(segs...) }}
}

// PutCut sends segments in TCP segments of n octets.
func PutCut(n int, segs ...Seg) Step {
	return Step{fmt.Sprintf("send in pieces of %d %s", n, names(segs)),
		func(p *Peer) error { return p.PutCut(n, segs...) }}
}

// PutLie sends a segment in an FPDU with something wrong.
func PutLie(s Seg, lie Lie) Step {
	return Step{"send in a bad FPDU " + names([]Seg{s}),
		func(p *Peer) error { return p.PutLie(s, lie) }}
}

// PutOctets sends octets.
func PutOctets(b []byte) Step {
	return Step{fmt.Sprintf("send %d octets", len(b)), func(p *Peer) error { return p.Write(b) }}
}

func names(segs []Seg) string {
	var n []string
	for _, s := range segs[:min(len(segs), 4)] {
		n = append(n, opNames[s.Op()])
	}
	if len(segs) > 4 {
		n = append(n, fmt.Sprintf("and %d more", len(segs)-4))
	}
	return strings.Join(n, ", ")
}

// Want waits for a segment with exactly these octets.
func Want(s Seg) Step {
	return Step{"want " + names([]Seg{s}), func(p *Peer) error {
		got, err := p.Next()
		if err == nil && !bytes.Equal(got.ULPDU(), s.ULPDU()) {
			err = fmt.Errorf("got  %s\nwant %s", DumpSeg(got.ULPDU()), DumpSeg(s.ULPDU()))
		}
		return err
	}}
}

// WantMessage waits for a whole message, in however many segments, that is as s but for L.
func WantMessage(s Seg) Step {
	return Step{"want the message " + names([]Seg{s}), func(p *Peer) error {
		got, err := p.Message()
		got.DDP |= bitL
		if err == nil && !bytes.Equal(got.ULPDU(), s.ULPDU()) {
			err = fmt.Errorf("got  %s\nwant %s", DumpSeg(got.ULPDU()), DumpSeg(s.ULPDU()))
		}
		return err
	}}
}

// WantSeg waits for a segment that ok finds right.
func WantSeg(what string, ok func(Seg) bool) Step {
	return Step{"want " + what, func(p *Peer) error {
		got, err := p.Next()
		if err == nil && !ok(got) {
			err = fmt.Errorf("got %s", DumpSeg(got.ULPDU()))
		}
		return err
	}}
}

// WantTerminate waits for a Terminate with exactly these contents.
func WantTerminate(layer, etype, code byte, c Copies, about Seg) Step {
	s := Want(Terminate(layer, etype, code, c, about))
	s.Name = fmt.Sprintf("want Terminate %d/%d/%02x", layer, etype, code)
	return s
}

// WantFIN waits for the orderly end of the stream.
func WantFIN() Step { return wantEnd("want a FIN", patience, EndFIN) }

// WantClosed waits for the end of the stream, orderly or not.
func WantClosed() Step { return wantEnd("want a FIN or RST", patience, EndFIN, EndReset) }

// WantSilence wants nothing to come for d.
func WantSilence(d time.Duration) Step {
	return wantEnd(fmt.Sprintf("want silence for %v", d), d, EndSilence)
}

func wantEnd(name string, d time.Duration, want ...Ending) Step {
	return Step{name, func(p *Peer) error {
		e, err := p.End(d)
		if err == nil && !slices.Contains(want, e) {
			err = fmt.Errorf("%v came", e)
		}
		return err
	}}
}

// CloseWrite sends a FIN.
func CloseWrite() Step {
	return Step{"send a FIN", func(p *Peer) error { return p.C.CloseWrite() }}
}

// Reset sends a RST.
func Reset() Step { return Step{"send a RST", func(p *Peer) error { return p.C.Reset() }} }

// Do calls f.
func Do(name string, f func() error) Step {
	return Step{name, func(*Peer) error { return f() }}
}
