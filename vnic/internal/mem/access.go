package mem

import (
	"fmt"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
)

// A Use is what a peer wants of memory: the right that it takes, and the cause for each check that
// fails, a column of docs/decisions.md#access-checks.
type Use struct {
	name                               string
	need                               rdma.Access
	stag, assoc, wrap, access, outside iwarp.TermCode
}

var (
	// PeerWrite is an RDMA Write. DDP has no code for a missing right: docs/decisions.md#A1.
	PeerWrite = &Use{
		name: "RDMA Write", need: rdma.RemoteWrite,
		stag: iwarp.TermInvalidSTag, assoc: iwarp.TermNotAssociated, wrap: iwarp.TermTOWrap,
		access: iwarp.TermInvalidSTag, outside: iwarp.TermBounds,
	}
	// PeerRead is an RDMA Read.
	PeerRead = &Use{
		name: "RDMA Read", need: rdma.RemoteRead,
		stag: iwarp.TermReadInvalidSTag, assoc: iwarp.TermReadNotAssociated,
		wrap: iwarp.TermReadTOWrap, access: iwarp.TermReadAccess, outside: iwarp.TermReadBounds,
	}
	// PeerAtomic is an atomic operation: RFC 7306 has no codes of its own, and the checks of RFC
	// 5040, section 7.2, apply (docs/decisions.md#A12).
	PeerAtomic = &Use{
		name: "atomic", need: rdma.RemoteAtomic,
		stag: iwarp.TermReadInvalidSTag, assoc: iwarp.TermReadNotAssociated,
		wrap: iwarp.TermReadTOWrap, access: iwarp.TermReadAccess, outside: iwarp.TermReadBounds,
	}
)

func (u *Use) fail(code iwarp.TermCode, stag uint32, format string, args ...any) *iwarp.LocalError {
	return &iwarp.LocalError{
		Cause: code,
		Err:   fmt.Errorf("%s to STag %#x: %s", u.name, stag, fmt.Sprintf(format, args...)),
	}
}

// Gone is the refusal of a region that went away, or faulted, after the checks.
func (u *Use) Gone(m *MR, err error) *iwarp.LocalError { return u.fail(u.stag, m.stag, "%v", err) }

// local returns the region of an SGE of a work request on a QP of pd, or an error for WCLocProt. A
// length of 0 needs no region: nil and nil.
func (pd *PD) local(s rdma.SGE, write bool, hint *MR) (*MR, error) {
	if s.Length == 0 {
		return nil, nil
	}
	m := hint
	if m == nil || m.stag != s.LKey || m.Revoked() {
		m = pd.keys.lookup(s.LKey)
	}
	switch {
	case m == nil || m.Revoked() || m.pd.space != pd.space || m.remoteOnly():
		return nil, fmt.Errorf("no region has the key %#x", s.LKey)
	case m.pd != pd:
		return nil, fmt.Errorf("the region of key %#x belongs to another protection domain", s.LKey)
	case !m.holds(s.Addr, uint64(s.Length)):
		return nil, fmt.Errorf("%#x + %d lies outside of the region of key %#x, %#x + %d",
			s.Addr, s.Length, s.LKey, m.base, m.length)
	case write && m.access&rdma.LocalWrite == 0: // enough for a Read's: docs/decisions.md#A19
		return nil, fmt.Errorf("the region of key %#x may not be written", s.LKey)
	}
	return m, nil
}
