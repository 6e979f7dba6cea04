// Package profile has what cards of others say of themselves, so that a device can say and hold to
// the same: a program finds there the limits that it would find on that card.
package profile

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// A Profile is a card as its driver shows it. A figure that nobody has published is 0, and then
// the device has its own.
type Profile struct {
	Name  string
	IWARP bool
	RoCE  bool

	Firmware  string
	VendorID  uint32
	PartID    uint32
	HWVersion uint32
	HCAType   string // what sysfs has of a card on PCI; "": it is not on it
	BoardID   string
	PCIVendor uint32
	PCIDevice uint32

	MaxMRLen  uint64
	PageSizes uint64
	CapFlags  uint32 // enum ibv_device_cap_flags
	AtomicCap uint32 // enum ibv_atomic_cap

	MaxQP, MaxQPWR                     uint32
	MaxSGE, MaxReadSGE                 uint32
	MaxInline                          uint32
	MaxCQ, MaxCQE                      uint32
	MaxMR, MaxPD, MaxMW                uint32
	MaxSRQ, MaxSRQWR, MaxSRQSGE        uint32
	MaxIRD, MaxORD, MaxReads           uint32
	MaxAH                              uint32
	MaxGroups, MaxGroupQPs, MaxMembers uint32
	MaxPKeys, AckDelay                 uint32

	GIDs     uint32
	PortCaps uint32 // IB_PORT_*_SUP
	MaxMsg   uint32

	// Lacks are what the driver has not, and programs are refused.
	Lacks Lack
	// TooDeep, TooWide and TooInline are what the driver refuses a queue pair with that asks for more
	// requests, parts of one, or octets inline.
	TooDeep, TooWide, TooInline syscall.Errno
	// Sizes are what the driver says that a queue pair of a type has; nil: as the device. Not ok: that
	// is too much for the card.
	Sizes func(asked *rpc.QPCaps, typ uint32) (size server.QPSize, ok bool)
	// CQDepths says the same of a completion queue.
	CQDepths func(asked uint32) uint32
	// TooLargeSRQ is what the driver refuses a shared receive queue with that asks for more receives,
	// or parts of one; EmptySRQ: so it does one of no receives.
	TooLargeSRQ syscall.Errno
	EmptySRQ    bool
	// SRQSizes are what it makes of one; nil: the device's.
	SRQSizes func(maxWR, maxSGE uint32) SRQSize
	// Moves is what it makes of a state that a program asks for, of abi.StateReset and its like, when
	// a queue pair is in another one; nil: the device's way.
	Moves func(from, to uint32) Move
}

// An SRQSize is how many receives of how many parts a driver says that a shared receive queue has,
// when it is made and when it is asked for that later; 0: as many as the device's.
type SRQSize struct{ WR, SGE, QueriedWR uint32 }

// A Move is what becomes of a queue pair that a program asks to be in a state.
type Move uint8

// A driver may do as the device does, say that it has while nothing happens, refuse with EINVAL, or
// have the queue pair in error.
const (
	MoveAsDevice Move = iota
	MoveNowhere
	MoveRefused
	MoveToError
)

// A Lack is something that other cards have.
type Lack uint32

const (
	LacksODP        Lack = 1 << iota // memory that is paged on demand
	LacksTimestamps                  // a clock for completions
	LacksAtomics
	LacksImmediate
	LacksSRQ
	LacksMW
	LacksResizeCQ
	LacksQuerySRQ
)

// Find is the profile of a name for a device of iWARP or RoCE.
func Find(name string, roce bool) (*Profile, error) {
	transport := "iwarp"
	if roce {
		transport = "roce"
	}
	var here, other []string
	for i := range all {
		p := &all[i]
		fits := p.IWARP && !roce || p.RoCE && roce
		switch {
		case p.Name == name && fits:
			return p, nil
		case fits:
			here = append(here, p.Name)
		case p.Name == name:
			other = append(other, name)
		}
	}
	if other != nil {
		return nil, fmt.Errorf("profile=%s: that card does not speak what transport=%s says; those "+
			"that do are %s", name, transport, strings.Join(here, ", "))
	}
	return nil, fmt.Errorf("profile=%s: there is none; with transport=%s there are %s", name,
		transport, strings.Join(here, ", "))
}

// Names are those of all profiles.
func Names() (names []string) {
	for i := range all {
		if i == 0 || all[i-1].Name != all[i].Name {
			names = append(names, all[i].Name)
		}
	}
	return names
}

// Describe has r say what the card says; the zero Profile leaves it as it is.
func (p *Profile) Describe(r *rpc.QueryDeviceReply) {
	if p.Name == "" {
		return
	}
	r.Card = rpc.CardFigures
	if p.Lacks&LacksODP != 0 {
		r.Card |= rpc.CardUnpaged
	}
	if p.Lacks&LacksTimestamps != 0 {
		r.Card |= rpc.CardClockless
	}
	r.RefusedOps = p.refusedOps()
	r.FWVersion = [32]byte{}
	copy(r.FWVersion[:], p.Firmware)
	r.VendorID, r.PartID, r.HWVersion = p.VendorID, p.PartID, p.HWVersion
	r.CapFlags, r.AtomicCap = p.CapFlags, p.AtomicCap
	r.MaxMRLen, r.PageSizes = p.MaxMRLen, p.PageSizes
	r.MaxReads, r.MaxPkeys, r.AckDelay, r.MaxMembers = p.MaxReads, p.MaxPKeys, p.AckDelay, p.MaxMembers
	r.MaxMW = p.MaxMW
	r.MaxReadSGE = p.MaxReadSGE
	for _, f := range []struct {
		to   *uint32
		card uint32
	}{
		{&r.MaxQP, p.MaxQP}, {&r.MaxQPWR, p.MaxQPWR}, {&r.MaxSGE, p.MaxSGE},
		{&r.MaxInline, p.MaxInline}, {&r.MaxCQ, p.MaxCQ}, {&r.MaxCQE, p.MaxCQE}, {&r.MaxMR, p.MaxMR},
		{&r.MaxPD, p.MaxPD}, {&r.MaxIRD, p.MaxIRD}, {&r.MaxORD, p.MaxORD}, {&r.MaxAH, p.MaxAH},
		{&r.MaxGroups, p.MaxGroups}, {&r.MaxGroupQPs, p.MaxGroupQPs}, {&r.MaxSRQ, p.MaxSRQ},
		{&r.MaxSRQWR, p.MaxSRQWR}, {&r.MaxSRQSGE, p.MaxSRQSGE},
	} {
		if f.card != 0 {
			*f.to = f.card
		}
	}
	if p.Lacks&LacksSRQ != 0 {
		r.MaxSRQ, r.MaxSRQWR, r.MaxSRQSGE = 0, 0, 0
	}
}

// DescribePort has r say what the card says of its port, as Describe does.
func (p *Profile) DescribePort(r *rpc.QueryPortReply) {
	if p.Name == "" {
		return
	}
	r.CapFlags = p.PortCaps
	if p.GIDs != 0 {
		r.GIDs = p.GIDs
	}
	if p.MaxMsg != 0 {
		r.MaxMsg = p.MaxMsg
	}
}

// refusedOps are opcodes that the library of the card refuses to post, a bit each.
func (p *Profile) refusedOps() (ops uint32) {
	if p.Lacks&LacksAtomics != 0 {
		ops |= 1<<rdma.OpCompareSwap | 1<<rdma.OpFetchAdd |
			1<<rdma.OpMaskedCompareSwap | 1<<rdma.OpMaskedFetchAdd
	}
	if p.Lacks&LacksImmediate != 0 {
		ops |= 1<<rdma.OpWriteImm | 1<<rdma.OpSendImm
	}
	return ops
}

// CheckQP says what the card refuses of a queue pair of a type that is asked for.
func (p *Profile) CheckQP(c *rpc.QPCaps, typ uint32) error {
	switch {
	case over(c.MaxSendWR, p.MaxQPWR), over(c.MaxRecvWR, p.MaxQPWR):
		return p.refuse(p.TooDeep, "a queue of a queue pair has up to %d requests", p.MaxQPWR)
	case over(c.MaxSendSGE, p.MaxSGE), over(c.MaxRecvSGE, p.MaxSGE):
		return p.refuse(p.TooWide, "a request has up to %d parts (max_sge)", p.MaxSGE)
	case over(c.MaxInline, p.MaxInline):
		return p.refuse(p.TooInline, "a request has up to %d octets inline", p.MaxInline)
	}
	if p.Sizes == nil {
		return nil
	}
	if _, ok := p.Sizes(c, typ); !ok {
		return p.refuse(p.TooDeep, "requests with so many parts or octets inline have no room for %d",
			c.MaxSendWR)
	}
	return nil
}

// QPSize is what the card says of a queue pair that asks for these.
func (p *Profile) QPSize(c *rpc.QPCaps, typ uint32) (size server.QPSize) {
	if p.Sizes != nil && p.CheckQP(c, typ) == nil {
		size, _ = p.Sizes(c, typ)
	}
	return size
}

// CQDepth is what the card says of a completion queue's depth that asks for so many; 0: nothing.
func (p *Profile) CQDepth(asked uint32) uint32 {
	if p.CQDepths == nil || p.CheckCQ(asked) != nil {
		return 0
	}
	return p.CQDepths(asked)
}

// CheckCQ says the same of a completion queue.
func (p *Profile) CheckCQ(depth uint32) error {
	if over(depth, p.MaxCQE) {
		return p.refuse(syscall.EINVAL, "a completion queue has up to %d completions", p.MaxCQE)
	}
	return nil
}

// CheckResizeCQ says the same of one that is to have another size.
func (p *Profile) CheckResizeCQ(depth uint32) error {
	if p.Lacks&LacksResizeCQ != 0 {
		return p.refuse(syscall.EOPNOTSUPP, "a completion queue keeps its size")
	}
	return p.CheckCQ(depth)
}

// CheckSRQ says the same of a shared receive queue.
func (p *Profile) CheckSRQ(maxWR, maxSGE uint32) error {
	switch {
	case p.Lacks&LacksSRQ != 0:
		return p.refuse(syscall.EOPNOTSUPP, "it has no shared receive queues")
	case p.EmptySRQ && maxWR == 0:
		return p.refuse(syscall.EINVAL, "a shared receive queue has a receive at least")
	case over(maxWR, p.MaxSRQWR):
		return p.refuse(p.TooLargeSRQ, "a shared receive queue has up to %d receives", p.MaxSRQWR)
	case over(maxSGE, p.MaxSRQSGE):
		return p.refuse(p.TooLargeSRQ, "a receive of a shared receive queue has up to %d parts",
			p.MaxSRQSGE)
	}
	return nil
}

// SRQSize is what the card says of a shared receive queue that asks for these.
func (p *Profile) SRQSize(maxWR, maxSGE uint32) SRQSize {
	if p.SRQSizes == nil || p.CheckSRQ(maxWR, maxSGE) != nil {
		return SRQSize{}
	}
	return p.SRQSizes(maxWR, maxSGE)
}

// CheckQuerySRQ says whether it can be asked later.
func (p *Profile) CheckQuerySRQ() error {
	if p.Lacks&LacksQuerySRQ != 0 {
		return p.refuse(syscall.EOPNOTSUPP, "a shared receive queue cannot be asked")
	}
	return nil
}

// CheckMove is what the card makes of a queue pair in state from that a program wants in state to.
func (p *Profile) CheckMove(from, to uint32) (Move, error) {
	if p.Moves == nil {
		return MoveAsDevice, nil
	}
	m := p.Moves(from, to)
	if m == MoveRefused {
		return m, p.refuse(syscall.EINVAL, "a queue pair in state %d is not taken to state %d", from, to)
	}
	return m, nil
}

// CheckMW says the same of a memory window.
func (p *Profile) CheckMW() error {
	if p.Lacks&LacksMW != 0 {
		return p.refuse(syscall.EOPNOTSUPP, "it has no memory windows")
	}
	return nil
}

// Bound is limits, or those of the card that are less. What an object may have is for CheckQP and
// its like, which look at what was asked for.
func (p *Profile) Bound(l vnic.Limits) vnic.Limits {
	d := vnic.DefaultLimits() // what 0 stands for
	for _, f := range []struct {
		to    *int
		empty int
		card  uint32
	}{
		{&l.PD, d.PD, p.MaxPD}, {&l.MR, d.MR, p.MaxMR}, {&l.CQ, d.CQ, p.MaxCQ}, {&l.QP, d.QP, p.MaxQP},
		{&l.SRQ, d.SRQ, p.MaxSRQ}, {&l.MW, d.MW, p.MaxMW}, {&l.AH, d.AH, p.MaxAH},
		{&l.IRD, d.IRD, p.MaxIRD}, {&l.ORD, d.ORD, p.MaxORD},
	} {
		if f.card != 0 && int64(f.card) < int64(cmp.Or(*f.to, f.empty)) {
			*f.to = int(f.card)
		}
	}
	if p.MaxMRLen != 0 && p.MaxMRLen < cmp.Or(l.MRLen, d.MRLen) {
		l.MRLen = p.MaxMRLen
	}
	return l
}

func over(asked, most uint32) bool { return most != 0 && asked > most }

func (p *Profile) refuse(errno syscall.Errno, format string, args ...any) error {
	return &server.Refusal{Errno: errno,
		Why: fmt.Sprintf("profile %s: "+format, append([]any{p.Name}, args...)...)}
}
