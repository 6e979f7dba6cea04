// Package attr says which attributes of a RoCE queue pair may change with which transition, and
// what they may be: the table of ibv_modify_qp, as Linux's ib_modify_qp_is_ok has it. It is pure.
package attr

import (
	"fmt"
	"net/netip"

	"github.com/vrnic/vrnic/rdma"
)

// Short names for what the table is made of.
const (
	pkey     = rdma.AttrPKeyIndex
	port     = rdma.AttrPort
	access   = rdma.AttrAccess
	qkey     = rdma.AttrQKey
	path     = rdma.AttrPath
	mtu      = rdma.AttrPathMTU
	dest     = rdma.AttrDestQPN
	rqPSN    = rdma.AttrRQPSN
	sqPSN    = rdma.AttrSQPSN
	inDepth  = rdma.AttrMaxDestRead
	depth    = rdma.AttrMaxRead
	rnrTimer = rdma.AttrMinRNRTimer
	timeout  = rdma.AttrTimeout
	retries  = rdma.AttrRetryCount
	rnr      = rdma.AttrRNRRetry
	alt      = rdma.AttrAltPath
	mig      = rdma.AttrMigState
	cur      = rdma.AttrCurState
	notify   = rdma.AttrDrainedEvent
)

// masks are what a transition takes beside AttrState.
type masks struct{ required, optional rdma.QPAttrMask }

// A transition is a row of the table, for RC, UC and UD.
type transition struct {
	from, to rdma.QPState
	rc       masks
	uc       masks
	ud       masks
}

var transitions = []transition{
	{rdma.QPReset, rdma.QPInit,
		masks{required: pkey | port | access},
		masks{required: pkey | port | access},
		masks{required: pkey | port | qkey}},
	{rdma.QPInit, rdma.QPInit,
		masks{optional: pkey | port | access},
		masks{optional: pkey | port | access},
		masks{optional: pkey | port | qkey}},
	{rdma.QPInit, rdma.QPRTR,
		masks{path | mtu | dest | rqPSN | inDepth | rnrTimer, alt | access | pkey},
		masks{path | mtu | dest | rqPSN, alt | access | pkey},
		masks{optional: pkey | qkey}},
	{rdma.QPRTR, rdma.QPRTS,
		masks{sqPSN | timeout | retries | rnr | depth, cur | alt | access | rnrTimer | mig},
		masks{sqPSN, cur | alt | access | mig},
		masks{sqPSN, cur | qkey}},
	{rdma.QPRTS, rdma.QPRTS,
		masks{optional: cur | access | alt | mig | rnrTimer},
		masks{optional: cur | access | alt | mig},
		masks{optional: cur | qkey}},
	{rdma.QPRTS, rdma.QPSQD,
		masks{optional: notify}, masks{optional: notify}, masks{optional: notify}},
	{rdma.QPSQD, rdma.QPSQD,
		masks{optional: port | path | timeout | retries | rnr | depth | inDepth | alt | access | pkey |
			rnrTimer | mig},
		masks{optional: path | alt | access | pkey | mig},
		masks{optional: pkey | qkey}},
	{rdma.QPSQD, rdma.QPRTS,
		masks{optional: cur | alt | access | rnrTimer | mig},
		masks{optional: cur | alt | access | mig},
		masks{optional: cur | qkey}},
	{rdma.QPSQE, rdma.QPRTS, masks{}, masks{optional: cur | access}, masks{optional: cur | qkey}},
}

// lookup is what the transition takes; ok is false if there is no such.
func lookup(t rdma.QPType, from, to rdma.QPState) (m masks, ok bool) {
	switch {
	case to == rdma.QPReset, to == rdma.QPError && from != rdma.QPReset:
		return masks{}, true
	case t == rdma.RC && from == rdma.QPSQE:
		return masks{}, false // only a Send that nobody acknowledges brings a QP there
	}
	for i := range transitions {
		x := &transitions[i]
		if x.from != from || x.to != to {
			continue
		}
		switch t {
		case rdma.RC:
			return x.rc, true
		case rdma.UC:
			return x.uc, true
		case rdma.UD:
			return x.ud, true
		}
	}
	return masks{}, false
}

// Target is the state that a modify of a queue pair in state from asks for.
func Target(from rdma.QPState, a *rdma.QPAttr, mask rdma.QPAttrMask) rdma.QPState {
	if mask&rdma.AttrState == 0 {
		return from
	}
	return a.State
}

// CheckMask says whether a queue pair of type t in state from may change what mask names, of a, on
// its way to Target. An error wraps rdma.ErrInvalid.
func CheckMask(t rdma.QPType, from rdma.QPState, a *rdma.QPAttr, mask rdma.QPAttrMask) error {
	to := Target(from, a, mask)
	m, ok := lookup(t, from, to)
	rest := mask &^ rdma.AttrState
	switch {
	case !ok:
		return fmt.Errorf("no transition of a %v queue pair from %v to %v: %w", t, from, to,
			rdma.ErrInvalid)
	case m.required&^rest != 0:
		return fmt.Errorf("from %v to %v, attributes %#x are missing: %w", from, to,
			uint32(m.required&^rest), rdma.ErrInvalid)
	case rest&^(m.required|m.optional) != 0:
		return fmt.Errorf("from %v to %v, attributes %#x cannot be changed: %w", from, to,
			uint32(rest&^(m.required|m.optional)), rdma.ErrInvalid)
	case mask&cur != 0 && a.CurState != from:
		return fmt.Errorf("the queue pair is in state %v, not %v: %w", from, a.CurState, rdma.ErrInvalid)
	}
	return nil
}

// Limits are what a device has for its queue pairs.
type Limits struct {
	ActiveMTU rdma.MTU // no path MTU is above it: docs/decisions.md#R9
	MaxRead   int      // Reads and atomics under way, of either side
	// GID says what the index of a queue pair's own address stands for; ok is false of an empty entry.
	GID func(index uint8) (g rdma.GID, ok bool)
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// What fields of verbs can hold.
const (
	maxTimeout = 31
	maxRetries = 7
	maxTimer   = 31
	psnMask    = 1<<24 - 1
)

// CheckValues checks what mask names of a. An error wraps rdma.ErrInvalid.
func (l *Limits) CheckValues(a *rdma.QPAttr, mask rdma.QPAttrMask) error {
	for _, f := range []struct {
		bit   rdma.QPAttrMask
		name  string
		value int
		least int
		most  int
	}{
		{port, "port", int(a.Port), 1, 1},
		{pkey, "P_Key index", int(a.PKeyIndex), 0, 0},
		{mtu, "path MTU (code)", int(a.PathMTU), int(rdma.MTU256), int(l.ActiveMTU)},
		{timeout, "timeout", int(a.Timeout), 0, maxTimeout},
		{retries, "retry count", int(a.RetryCount), 0, maxRetries},
		{rnr, "RNR retry count", int(a.RNRRetry), 0, maxRetries},
		{rnrTimer, "RNR timer", int(a.MinRNRTimer), 0, maxTimer},
		{depth, "number of Reads and atomics under way", int(a.MaxRead), 0, l.MaxRead},
		{inDepth, "number of Reads and atomics served", int(a.MaxDestRead), 0, l.MaxRead},
	} {
		if mask&f.bit != 0 && (f.value < f.least || f.value > f.most) {
			return fmt.Errorf("%s %d, possible are %d to %d: %w", f.name, f.value, f.least, f.most,
				rdma.ErrInvalid)
		}
	}
	const rights = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic |
		rdma.MWBind
	switch {
	case mask&alt != 0:
		return fmt.Errorf("an alternate path, which there is none of on Ethernet: %w", rdma.ErrInvalid)
	case mask&access != 0 && a.Access&^rights != 0:
		return fmt.Errorf("rights %#x: %w", uint32(a.Access), rdma.ErrInvalid)
	case mask&path != 0:
		return l.CheckPath(&a.Path, false)
	}
	return nil
}

// CheckPath checks where a queue pair or an address handle is to send to; group says that it may be
// a multicast group. An error wraps rdma.ErrInvalid.
func (l *Limits) CheckPath(p *rdma.AHAttr, group bool) error {
	own, ok := l.GID(p.GIDIndex)
	to, from := p.GID.Addr(), own.Addr()
	switch {
	case !p.Global:
		return fmt.Errorf("a path without a global route (is_global), on Ethernet: %w", rdma.ErrInvalid)
	case p.Port != 1:
		return fmt.Errorf("a path on port %d, the only one is 1: %w", p.Port, rdma.ErrInvalid)
	case !ok:
		return fmt.Errorf("a path from GID index %d, where there is none: %w", p.GIDIndex,
			rdma.ErrInvalid)
	case to.IsUnspecified(), to.IsMulticast() && !group, to.Is4() && to == broadcast:
		return fmt.Errorf("a path to %v, which is no peer's address: %w", to, rdma.ErrInvalid)
	case to.Is4() != from.Is4():
		return fmt.Errorf("a path from %v to %v: %w", from, to, rdma.ErrInvalid)
	}
	return nil
}

// Set copies what mask names of a, which has been checked, to q.
func Set(q, a *rdma.QPAttr, mask rdma.QPAttrMask) {
	for _, f := range []struct {
		bit rdma.QPAttrMask
		set func()
	}{
		{access, func() { q.Access = a.Access }},
		{pkey, func() { q.PKeyIndex = a.PKeyIndex }},
		{port, func() { q.Port = a.Port }},
		{qkey, func() { q.QKey = a.QKey }},
		{path, func() { q.Path = a.Path }},
		{mtu, func() { q.PathMTU = a.PathMTU }},
		{dest, func() { q.DestQPN = a.DestQPN & psnMask }},
		{rqPSN, func() { q.RQPSN = a.RQPSN & psnMask }},
		{sqPSN, func() { q.SQPSN = a.SQPSN & psnMask }},
		{inDepth, func() { q.MaxDestRead = a.MaxDestRead }},
		{depth, func() { q.MaxRead = a.MaxRead }},
		{rnrTimer, func() { q.MinRNRTimer = a.MinRNRTimer }},
		{timeout, func() { q.Timeout = a.Timeout }},
		{retries, func() { q.RetryCount = a.RetryCount }},
		{rnr, func() { q.RNRRetry = a.RNRRetry }},
		{notify, func() { q.DrainedEvent = a.DrainedEvent }},
	} {
		if mask&f.bit != 0 {
			f.set()
		}
	}
}
