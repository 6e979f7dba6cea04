package vnic

import (
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// An accessKind is one column of the ledger's section 4: what a peer wants, the right that this
// takes, and the cause for each check that fails.
type accessKind struct {
	name                               string
	need                               rdma.Access
	stag, assoc, wrap, access, outside iwarp.TermCode
}

var (
	writeAccess = accessKind{
		name: "RDMA Write", need: rdma.RemoteWrite,
		// "No DDP code exists" for a missing right; choice A1 sends Invalid STag.
		stag: iwarp.TermInvalidSTag, assoc: iwarp.TermNotAssociated, wrap: iwarp.TermTOWrap, access: iwarp.TermInvalidSTag, outside: iwarp.TermBounds,
	}
	readAccess = accessKind{
		name: "RDMA Read", need: rdma.RemoteRead,
		stag: iwarp.TermReadInvalidSTag, assoc: iwarp.TermReadNotAssociated, wrap: iwarp.TermReadTOWrap, access: iwarp.TermReadAccess, outside: iwarp.TermReadBounds,
	}
)

func (k *accessKind) fail(code iwarp.TermCode, stag uint32, format string, args ...any) *iwarp.LocalError {
	return &iwarp.LocalError{Cause: code, Err: fmt.Errorf("%s to STag %#x: %s", k.name, stag, fmt.Sprintf(format, args...))}
}

// remoteMR makes the checks of the ledger's section 4 for n > 0 octets at to of the region that the
// peer of qp calls stag, in the order given there, and returns the region. The caller pins it for
// each access and takes a failure to pin as row 1.
func (qp *QP) remoteMR(k *accessKind, stag uint32, to uint64, n uint32) (*MR, error) {
	pd := qp.pd
	m := pd.rhint.Load() // the region of the last access
	if m == nil || m.stag != stag || m.disabled() {
		m = pd.dev.lookupMR(stag)
		if m == nil || m.disabled() { // row 1: all 32 bits match, and it is enabled
			return nil, k.fail(k.stag, stag, "no such region")
		}
		if m.pd == pd {
			pd.rhint.Store(m)
		}
	}
	if m.pd != pd { // row 2
		return nil, k.fail(k.assoc, stag, "it belongs to another protection domain")
	}
	if m.qp != nil && m.qp != qp {
		return nil, k.fail(k.assoc, stag, "it is a window for another connection")
	}
	if to+uint64(n) < to { // row 3; a sum of exactly 2^64 wraps
		return nil, k.fail(k.wrap, stag, "offset %#x + %d wraps", to, n)
	}
	if m.access&k.need == 0 { // row 4
		return nil, k.fail(k.access, stag, "no right to do so (%v)", m.access)
	}
	if !m.holds(to, uint64(n)) { // row 5
		return nil, k.fail(k.outside, stag, "%#x + %d lies outside of %#x + %d", to, n, m.base, m.length)
	}
	return m, nil
}

// localMR returns the region of an SGE of a work request on a QP of pd, or an error for
// WCLocProt. A length of 0 needs no region: nil and nil.
func (pd *PD) localMR(s rdma.SGE, write bool, hint *MR) (*MR, error) {
	if s.Length == 0 {
		return nil, nil
	}
	m := hint
	if m == nil || m.stag != s.LKey || m.disabled() {
		m = pd.dev.lookupMR(s.LKey)
	}
	switch {
	case m == nil || m.disabled() || m.pd.ctx != pd.ctx || m.remoteOnly():
		return nil, fmt.Errorf("no region has the key %#x", s.LKey)
	case m.pd != pd:
		return nil, fmt.Errorf("the region of key %#x belongs to another protection domain", s.LKey)
	case !m.holds(s.Addr, uint64(s.Length)):
		return nil, fmt.Errorf("%#x + %d lies outside of the region of key %#x, %#x + %d", s.Addr, s.Length, s.LKey, m.base, m.length)
	case write && m.access&rdma.LocalWrite == 0:
		return nil, fmt.Errorf("the region of key %#x may not be written", s.LKey)
	}
	return m, nil
}
