package capture

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Filter says which packets are wanted: those for which each of its parts that is set holds.
type Filter struct {
	Peer  netip.Addr // from or to this address
	QP    uint32     // of a queue pair of this number
	Proto string     // one of Protocols
}

// Check says whether f can be.
func (f *Filter) Check() error {
	if f.Proto != "" && !slices.Contains(Protocols, f.Proto) {
		return fmt.Errorf("protocol %q is none of %s", f.Proto, strings.Join(Protocols, ", "))
	}
	return nil
}

// String is f in words, for the file.
func (f *Filter) String() string {
	var words []string
	add := func(is bool, format string, v any) {
		if is {
			words = append(words, fmt.Sprintf(format, v))
		}
	}
	add(f.Proto != "", "proto %v", f.Proto)
	add(f.Peer.IsValid(), "peer %v", f.Peer)
	add(f.QP != 0, "qp %v", f.QP)
	return strings.Join(words, " and ")
}

// Wants says whether a packet is wanted, which comes from and goes to those queue pairs.
func (f *Filter) Wants(p *Parsed, from, to *QP) bool {
	is := func(q *QP) bool { return q != nil && q.Num == f.QP }
	proto := p.Proto == f.Proto || f.Proto == "udp" && p.Proto == "roce"
	return (f.Proto == "" || proto) &&
		(!f.Peer.IsValid() || p.Src.Addr() == f.Peer || p.Dst.Addr() == f.Peer) &&
		(f.QP == 0 || is(from) || is(to) || p.BTH != nil && p.BTH.Dest == f.QP)
}

// Comments are what a packet's comment says: of which queue pairs it is, and of RoCE which part of
// which operation, and more that is known.
func Comments(p *Parsed, from, to *QP, more ...string) []string {
	var parts []string
	if p.BTH != nil && (from != nil || to != nil) {
		parts = append(parts, p.BTH.String())
	}
	if from != nil {
		parts = append(parts, "from "+from.String())
	}
	if to != nil {
		parts = append(parts, "to "+to.String())
	}
	parts = append(parts, more...)
	if parts == nil {
		return nil
	}
	return []string{strings.Join(parts, ", ")}
}
