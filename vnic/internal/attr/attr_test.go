package attr_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/attr"
)

// table is that of ibv_modify_qp: a transition, what it requires, and what may be there beside.
const table = `
RC RESET INIT | PKEY PORT ACCESS ;
RC INIT INIT | ; PKEY PORT ACCESS
RC INIT RTR | AV MTU DEST RQPSN MAXDEST RNRTIMER ; ALT ACCESS PKEY
RC RTR RTS | SQPSN TIMEOUT RETRY RNR MAXREAD ; CUR ALT ACCESS RNRTIMER MIG
RC RTS RTS | ; CUR ACCESS ALT MIG RNRTIMER
RC RTS SQD | ; NOTIFY
RC SQD SQD | ; PORT AV TIMEOUT RETRY RNR MAXREAD MAXDEST ALT ACCESS PKEY RNRTIMER MIG
RC SQD RTS | ; CUR ALT ACCESS RNRTIMER MIG
UC RESET INIT | PKEY PORT ACCESS ;
UC INIT INIT | ; PKEY PORT ACCESS
UC INIT RTR | AV MTU DEST RQPSN ; ALT ACCESS PKEY
UC RTR RTS | SQPSN ; CUR ALT ACCESS MIG
UC RTS RTS | ; CUR ACCESS ALT MIG
UC RTS SQD | ; NOTIFY
UC SQD SQD | ; AV ALT ACCESS PKEY MIG
UC SQD RTS | ; CUR ALT ACCESS MIG
UC SQE RTS | ; CUR ACCESS
UD RESET INIT | PKEY PORT QKEY ;
UD INIT INIT | ; PKEY PORT QKEY
UD INIT RTR | ; PKEY QKEY
UD RTR RTS | SQPSN ; CUR QKEY
UD RTS RTS | ; CUR QKEY
UD RTS SQD | ; NOTIFY
UD SQD SQD | ; PKEY QKEY
UD SQD RTS | ; CUR QKEY
UD SQE RTS | ; CUR QKEY
`

var bits = map[string]rdma.QPAttrMask{"CUR": rdma.AttrCurState, "NOTIFY": rdma.AttrDrainedEvent,
	"ACCESS": rdma.AttrAccess, "PKEY": rdma.AttrPKeyIndex, "PORT": rdma.AttrPort,
	"QKEY": rdma.AttrQKey, "AV": rdma.AttrPath, "MTU": rdma.AttrPathMTU,
	"TIMEOUT": rdma.AttrTimeout, "RETRY": rdma.AttrRetryCount, "RNR": rdma.AttrRNRRetry,
	"RQPSN": rdma.AttrRQPSN, "MAXREAD": rdma.AttrMaxRead, "ALT": rdma.AttrAltPath,
	"RNRTIMER": rdma.AttrMinRNRTimer, "SQPSN": rdma.AttrSQPSN, "MAXDEST": rdma.AttrMaxDestRead,
	"MIG": rdma.AttrMigState, "CAP": rdma.AttrCap, "DEST": rdma.AttrDestQPN}

var states = []rdma.QPState{rdma.QPReset, rdma.QPInit, rdma.QPRTR, rdma.QPRTS, rdma.QPSQD,
	rdma.QPSQE, rdma.QPError}

type row struct{ required, optional rdma.QPAttrMask }

// rows reads the table.
func rows(t *testing.T) map[string]row {
	m := make(map[string]row)
	mask := func(s string) (b rdma.QPAttrMask) {
		for name := range strings.FieldsSeq(s) {
			if bits[name] == 0 {
				t.Fatalf("no attribute %s", name)
			}
			b |= bits[name]
		}
		return b
	}
	for line := range strings.Lines(strings.TrimSpace(table)) {
		what, attrs, _ := strings.Cut(line, "|")
		req, opt, _ := strings.Cut(attrs, ";")
		m[strings.TrimSpace(what)] = row{mask(req), mask(opt)}
	}
	return m
}

// RVB-001, RVB-010, RVB-014, RVB-015: each transition there is takes what it needs and what it may
// have, and nothing else: every attribute is left out once and added once.
func TestTransitions(t *testing.T) {
	known := rows(t)
	for _, typ := range []rdma.QPType{rdma.RC, rdma.UC, rdma.UD} {
		for _, from := range states {
			for _, to := range states {
				r, ok := known[fmt.Sprint(typ, " ", from, " ", to)]
				ok = ok || to == rdma.QPReset || to == rdma.QPError && from != rdma.QPReset
				check := func(why string, extra rdma.QPAttrMask, want bool) {
					t.Helper()
					a := rdma.QPAttr{State: to, CurState: from}
					err := attr.CheckMask(typ, from, &a, rdma.AttrState|extra)
					if (err == nil) != want || err != nil && !errors.Is(err, rdma.ErrInvalid) {
						t.Errorf("%v from %v to %v, %s: %v", typ, from, to, why, err)
					}
				}
				check("what is required", r.required, ok)
				check("all that may be", r.required|r.optional, ok)
				for name, b := range bits {
					switch {
					case r.required&b != 0:
						check("without "+name, (r.required|r.optional)&^b, false)
					case r.optional&b == 0:
						check("with "+name, r.required|b, false)
					default:
						check("with "+name, r.required|b, ok)
					}
				}
			}
		}
	}
}

// Without State the queue pair stays where it is, where that is a transition.
func TestSameState(t *testing.T) {
	for _, from := range states {
		err := attr.CheckMask(rdma.RC, from, &rdma.QPAttr{}, rdma.AttrAccess)
		want := from == rdma.QPInit || from == rdma.QPRTS || from == rdma.QPSQD
		if (err == nil) != want {
			t.Errorf("the rights in state %v: %v", from, err)
		}
	}
}

// RVB-010: a program that is wrong about the state is told so.
func TestCurState(t *testing.T) {
	a := rdma.QPAttr{State: rdma.QPRTS, CurState: rdma.QPSQD}
	if err := attr.CheckMask(rdma.RC, rdma.QPRTS, &a, rdma.AttrState|rdma.AttrCurState); !errors.Is(
		err,
		rdma.ErrInvalid) {
		t.Errorf("a wrong current state: %v", err)
	}
}

func limits() *attr.Limits {
	return &attr.Limits{ActiveMTU: rdma.MTU1024, MaxRead: 16,
		GID: func(i uint8) (rdma.GID, bool) {
			switch i {
			case 0:
				return rdma.GID{0: 0xfe, 1: 0x80, 15: 1}, true
			case 1:
				return rdma.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, true
			}
			return rdma.GID{}, false
		}}
}

// RVB-002, RVB-003, RVB-006, RVB-008, RVB-009: values that cannot be.
func TestValues(t *testing.T) {
	v4 := rdma.GID{10: 0xff, 11: 0xff, 12: 10, 15: 2}
	v6 := rdma.GID{0: 0xfe, 1: 0x80, 15: 2}
	good := rdma.AHAttr{GID: v4, GIDIndex: 1, Port: 1, Global: true}
	path := func(f func(*rdma.AHAttr)) rdma.QPAttr {
		p := good
		f(&p)
		return rdma.QPAttr{Path: p}
	}
	for _, tt := range []struct {
		what string
		mask rdma.QPAttrMask
		a    rdma.QPAttr
		ok   bool
	}{
		{"port 0", rdma.AttrPort, rdma.QPAttr{}, false},
		{"port 1", rdma.AttrPort, rdma.QPAttr{Port: 1}, true},
		{"port 2", rdma.AttrPort, rdma.QPAttr{Port: 2}, false},
		{"P_Key 1", rdma.AttrPKeyIndex, rdma.QPAttr{PKeyIndex: 1}, false},
		{"path MTU 0", rdma.AttrPathMTU, rdma.QPAttr{}, false},
		{"path MTU 256", rdma.AttrPathMTU, rdma.QPAttr{PathMTU: rdma.MTU256}, true},
		{"path MTU 1024", rdma.AttrPathMTU, rdma.QPAttr{PathMTU: rdma.MTU1024}, true},
		{"path MTU above the active one", rdma.AttrPathMTU, rdma.QPAttr{PathMTU: rdma.MTU2048}, false},
		{"path MTU code 6", rdma.AttrPathMTU, rdma.QPAttr{PathMTU: 6}, false},
		{"timeout 31", rdma.AttrTimeout, rdma.QPAttr{Timeout: 31}, true},
		{"timeout 32", rdma.AttrTimeout, rdma.QPAttr{Timeout: 32}, false},
		{"retry count 7", rdma.AttrRetryCount, rdma.QPAttr{RetryCount: 7}, true},
		{"retry count 8", rdma.AttrRetryCount, rdma.QPAttr{RetryCount: 8}, false},
		{"RNR retry 8", rdma.AttrRNRRetry, rdma.QPAttr{RNRRetry: 8}, false},
		{"RNR timer 31", rdma.AttrMinRNRTimer, rdma.QPAttr{MinRNRTimer: 31}, true},
		{"RNR timer 32", rdma.AttrMinRNRTimer, rdma.QPAttr{MinRNRTimer: 32}, false},
		{"16 Reads", rdma.AttrMaxRead, rdma.QPAttr{MaxRead: 16}, true},
		{"17 Reads", rdma.AttrMaxRead, rdma.QPAttr{MaxRead: 17}, false},
		{"17 Reads served", rdma.AttrMaxDestRead, rdma.QPAttr{MaxDestRead: 17}, false},
		{"rights", rdma.AttrAccess, rdma.QPAttr{Access: rdma.RemoteWrite | rdma.RemoteRead}, true},
		{"rights there are not", rdma.AttrAccess, rdma.QPAttr{Access: 1 << 9}, false},
		{"an alternate path", rdma.AttrAltPath, rdma.QPAttr{}, false},
		{"what the mask does not name", 0, rdma.QPAttr{Port: 9, PathMTU: 9, Timeout: 99}, true},

		{"a path", rdma.AttrPath, path(func(*rdma.AHAttr) {}), true},
		{"not global", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.Global = false }), false},
		{"port 0", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.Port = 0 }), false},
		{"port 2", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.Port = 2 }), false},
		{"an empty GID", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.GIDIndex = 2 }), false},
		{"a GID beyond the table", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.GIDIndex = 255 }), false},
		{"to no address", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.GID = rdma.GID{} }), false},
		{"to 0.0.0.0", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.GID = rdma.GID{10: 0xff, 11: 0xff} }),
			false},
		{"to 255.255.255.255", rdma.AttrPath, path(func(p *rdma.AHAttr) {
			p.GID = rdma.GID{10: 0xff, 11: 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}
		}), false},
		{"to a group", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.GID[12] = 224 }), false},
		{"from IPv4 to IPv6", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.GID = v6 }), false},
		{"from IPv6 to IPv4", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.GIDIndex = 0 }), false},
		{"IPv6", rdma.AttrPath, path(func(p *rdma.AHAttr) { p.GID, p.GIDIndex = v6, 0 }), true},
	} {
		err := limits().CheckValues(&tt.a, tt.mask)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
	group := good
	group.GID[12] = 224
	if err := limits().CheckPath(&group, true); err != nil {
		t.Errorf("an address handle of a group: %v", err)
	}
}

// RVB-004, RVB-005: of PSNs and the destination 24 bits count; what the mask does not name stays.
func TestSet(t *testing.T) {
	const all = 1<<21 - 1
	a := rdma.QPAttr{Access: rdma.RemoteRead, PKeyIndex: 1, Port: 1, QKey: 7, PathMTU: rdma.MTU512,
		DestQPN: 0xff000011, RQPSN: 0xff000022, SQPSN: 0xff000033, MaxDestRead: 3, MaxRead: 4,
		MinRNRTimer: 5, Timeout: 6, RetryCount: 7, RNRRetry: 2, DrainedEvent: true,
		Path: rdma.AHAttr{Port: 1, HopLimit: 9}}
	want := a
	want.DestQPN, want.RQPSN, want.SQPSN = 0x11, 0x22, 0x33
	var q rdma.QPAttr
	if attr.Set(&q, &a, 0); q != (rdma.QPAttr{}) {
		t.Errorf("set nothing: %+v", q)
	}
	if attr.Set(&q, &a, all); q != want {
		t.Errorf("set all: %+v, want %+v", q, want)
	}
}
