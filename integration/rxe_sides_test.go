package integration

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vrnic/vrnic/integration/peer"
	"github.com/vrnic/vrnic/rdma"
)

// A byHand is a side whose queue pair the test connects by its attributes.
type byHand interface {
	side
	num() uint32
	addr(f family) netip.Addr
	// gid is an entry of the side's GID table.
	gid(index int) rdma.GID
	modify(a rdma.QPAttr, mask rdma.QPAttrMask)
	// try is modify that may be refused.
	try(a rdma.QPAttr, mask rdma.QPAttrMask) error
	state() rdma.QPState
	// address makes an address handle, by which work.to names it.
	address(a rdma.AHAttr) uint32
	// word reads 8 octets as a number of the host.
	word(r *region, off int) uint64
	setWord(r *region, off int, v uint64)
}

func (s *vrnicSide) num() uint32 { return s.qp.Num() }

func (s *vrnicSide) addr(f family) netip.Addr {
	for _, a := range s.dev.Attr().Addrs {
		if a.Addr().Is4() == (f == 0) {
			return a.Addr()
		}
	}
	failf("vrnic: no address of %v", f)
	return netip.Addr{}
}

func (s *vrnicSide) gid(index int) rdma.GID {
	e, err := s.dev.GID(index)
	must(err)
	return e.GID
}

func (s *vrnicSide) try(a rdma.QPAttr, mask rdma.QPAttrMask) error { return s.qp.Modify(&a, mask) }

func (s *vrnicSide) modify(a rdma.QPAttr, mask rdma.QPAttrMask) { must(s.try(a, mask)) }

func (s *vrnicSide) state() rdma.QPState {
	a, err := s.qp.Query()
	must(err)
	return a.State
}

func (s *vrnicSide) address(a rdma.AHAttr) uint32 {
	ah, err := s.pds[0].CreateAH(a)
	must(err)
	s.ahs = append(s.ahs, ah)
	return ah.Handle()
}

func (s *vrnicSide) word(r *region, off int) uint64 {
	return binary.NativeEndian.Uint64(r.buf.Bytes()[off:])
}

func (s *vrnicSide) setWord(r *region, off int, v uint64) {
	binary.NativeEndian.PutUint64(r.buf.Bytes()[off:], v)
}

// ibvStates are the numbers of enum ibv_qp_state.
var ibvStates = map[rdma.QPState]int{rdma.QPReset: 0, rdma.QPInit: 1, rdma.QPRTR: 2,
	rdma.QPRTS: 3, rdma.QPSQD: 4, rdma.QPSQE: 5, rdma.QPError: 6}

// makeQP makes the side's queue pair, which the test connects.
func (s *siwSide) makeQP(t rdma.QPType) {
	words := s.do("qp %d", t)
	s.conn, s.qpn = words[0], uint32(number(words[1]))
}

func (s *siwSide) num() uint32 { return s.qpn }

func (s *siwSide) addr(f family) netip.Addr { return netip.MustParseAddr(guestAddrs[f]) }

func (s *siwSide) gid(index int) rdma.GID { return rdma.GID(fromHex(s.do("gid %d", index)[0])) }

func (s *siwSide) modify(a rdma.QPAttr, mask rdma.QPAttrMask) { must(s.try(a, mask)) }

func (s *siwSide) try(a rdma.QPAttr, mask rdma.QPAttrMask) error {
	var b strings.Builder
	for _, v := range []struct {
		bit  rdma.QPAttrMask
		name string
		v    any
	}{
		{rdma.AttrState, "state", ibvStates[a.State]},
		{rdma.AttrCurState, "cur_state", ibvStates[a.CurState]},
		{rdma.AttrDrainedEvent, "en_sqd_async_notify", 1},
		{rdma.AttrAccess, "access_flags", uint32(a.Access)},
		{rdma.AttrPKeyIndex, "pkey_index", a.PKeyIndex},
		{rdma.AttrPort, "port", a.Port},
		{rdma.AttrQKey, "qkey", a.QKey},
		{rdma.AttrPath, "av", peer.ProbeOctets(a.Path.GID[:])},
		{rdma.AttrPath, "sgid", a.Path.GIDIndex},
		{rdma.AttrPathMTU, "path_mtu", a.PathMTU},
		{rdma.AttrTimeout, "timeout", a.Timeout},
		{rdma.AttrRetryCount, "retry_cnt", a.RetryCount},
		{rdma.AttrRNRRetry, "rnr_retry", a.RNRRetry},
		{rdma.AttrRQPSN, "rq_psn", a.RQPSN},
		{rdma.AttrMaxRead, "max_qp_rd_atomic", a.MaxRead},
		{rdma.AttrMinRNRTimer, "min_rnr_timer", a.MinRNRTimer},
		{rdma.AttrSQPSN, "sq_psn", a.SQPSN},
		{rdma.AttrMaxDestRead, "max_dest_rd_atomic", a.MaxDestRead},
		{rdma.AttrDestQPN, "dest_qpn", a.DestQPN},
	} {
		if mask&v.bit != 0 {
			fmt.Fprintf(&b, " %s=%v", v.name, v.v)
		}
	}
	_, err := s.p.Do(s.ctx, "modify %s%s", s.conn, b.String())
	return err
}

func (s *siwSide) state() rdma.QPState {
	n := int(number(s.do("query %s", s.conn)[0]))
	for state, number := range ibvStates {
		if n == number {
			return state
		}
	}
	failf("rxe: state %d", n)
	return 0
}

func (s *siwSide) address(a rdma.AHAttr) uint32 {
	n := number(s.do("ah %s %d", peer.ProbeOctets(a.GID[:]), a.GIDIndex)[0])
	s.ahs = append(s.ahs, n)
	return uint32(n)
}

func (s *siwSide) word(r *region, off int) uint64 {
	return number(s.do("word %s %d", r.siw, off)[0])
}

func (s *siwSide) setWord(r *region, off int, v uint64) {
	s.do("word %s %d %d", r.siw, off, v)
}
