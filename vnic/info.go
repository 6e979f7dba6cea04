package vnic

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/internal/mem"
)

// Owner says whose an object is.
type Owner struct {
	Label string `json:"label,omitempty"`
	PID   int    `json:"pid,omitempty"`
	Comm  string `json:"comm,omitempty"`
}

// DevInfo describes a device.
type DevInfo struct {
	Name     string         `json:"name"`
	MAC      string         `json:"mac"`
	MTU      int            `json:"mtu"`
	Addrs    []netip.Prefix `json:"addrs"`
	Contexts int            `json:"contexts"`
	PDs      int            `json:"pds"`
	MRs      int            `json:"mrs"`
	MWs      int            `json:"mws"`
	CQs      int            `json:"cqs"`
	SRQs     int            `json:"srqs"`
	Keys     int            `json:"keys"`  // STags in force
	Ports    int            `json:"ports"` // that CM ids have
	QPs      int            `json:"qps"`
	CMIDs    int            `json:"cm_ids"`
	Pending  int64          `json:"pending"` // connection requests half open or unanswered
	HalfOpen int            `json:"half_open"`
	Refused  Refusals       `json:"refused"` // connection requests
	Reaped   uint64         `json:"reaped"`  // connections that were idle for too long
	Counters Counters       `json:"counters"`

	// Of a RoCE device: packets of all its QPs, those that came to none, messages of connection
	// management, and what has datagrams.
	Packets    *PacketCounters `json:"packets,omitempty"`
	Dropped    *PacketDrops    `json:"dropped,omitempty"`
	CMMessages *CMMessages     `json:"cm_messages,omitempty"`
	AHs        int             `json:"ahs,omitempty"`
	// multicast groups that QPs are attached to
	Groups int `json:"groups,omitempty"`
	// Of one with congestion control: packets that came marked, CNPs sent for them, and heeded.
	ECNMarked   uint64 `json:"ecn_marked,omitempty"`
	CNPsSent    uint64 `json:"cnps_sent,omitempty"`
	CNPsHandled uint64 `json:"cnps_handled,omitempty"`
}

// QPInfo describes a QP. The fields from Transport on hold something while it is connected, of
// iWARP.
type QPInfo struct {
	Type rdma.QPType `json:"type"`
	// Attr is what the attributes of a QP of RoCE were set to; nil: none was yet, or it is of iWARP.
	Attr      *rdma.QPAttr   `json:"-"`
	Dev       string         `json:"dev"`
	QPN       uint32         `json:"qpn"`
	State     string         `json:"state"`
	PD        uint32         `json:"pd"`
	SendCQ    uint32         `json:"send_cq"`
	RecvCQ    uint32         `json:"recv_cq"`
	MaxSendWR int            `json:"max_send_wr"`
	MaxRecvWR int            `json:"max_recv_wr"`
	SRQ       uint32         `json:"srq,omitempty"`       // its number
	SRQTaken  uint64         `json:"srq_taken,omitempty"` // receives that came from there
	SRQHeld   int            `json:"srq_held,omitempty"`  // of them, not polled yet
	Owner     Owner          `json:"owner"`
	Created   time.Time      `json:"created"`
	Counters  Counters       `json:"counters"`
	Refused   *Refused       `json:"refused,omitempty"`   // to the peer, last
	Transport string         `json:"transport,omitempty"` // "tcp", "sctp" or "loop"; "tcp+roi"
	Local     netip.AddrPort `json:"local,omitzero"`
	Remote    netip.AddrPort `json:"remote,omitzero"`
	MPA       uint8          `json:"mpa,omitempty"` // revision
	Enhanced  bool           `json:"enhanced,omitempty"`
	CRC       bool           `json:"crc"`
	Markers   string         `json:"markers,omitempty"` // "in", "out" or "both": what has them
	IRD       uint16         `json:"ird"`
	ORD       uint16         `json:"ord"`
	// the ready-to-receive message that was agreed (RFC 6581, section 9)
	RTR string `json:"rtr,omitempty"`
	// octets TCP puts into a segment; over SCTP, of the longest DDP segment
	EMSS      int       `json:"emss,omitempty"`
	Stream    int       `json:"stream,omitempty"` // of an SCTP association
	Connected time.Time `json:"connected,omitzero"`
	// Idle is for how long nothing has moved, counted from the first look at it that found it so.
	Idle time.Duration `json:"idle_ns,omitempty"`
}

// Refused is what a peer has asked for and not got.
type Refused = mem.Refused

// MRInfo describes a registered region. Its keys are left out: they are what access rests on.
type MRInfo struct {
	Dev    string `json:"dev"`
	Handle uint32 `json:"handle"`
	PD     uint32 `json:"pd"`
	LKey   uint32 `json:"lkey"` // 0: of a fast one that is not valid; as RKey
	RKey   uint32 `json:"rkey"`
	Addr   uint64 `json:"addr"`
	Length uint64 `json:"length"`
	Access string `json:"access"`
	Mode   string `json:"mode"` // "local", "shared" (mode 1) or "private" (mode 0)
	// Kind is "region", or "fast" for one of PD.AllocMR: its handle is among its kind's, and
	// Length is what it can cover while it is not valid.
	Kind  string `json:"kind"`
	Valid bool   `json:"valid"`           // not invalidated, and registered
	Users int64  `json:"users,omitempty"` // windows and fast registrations on a region's memory
	Owner Owner  `json:"owner"`
}

// PDInfo describes a protection domain, by what keeps it from being freed.
type PDInfo struct {
	Dev     string `json:"dev"`
	Handle  uint32 `json:"handle"`
	Context uint32 `json:"context"` // its number, as in CQInfo and PeerInfo
	MRs     int    `json:"mrs"`
	MWs     int    `json:"mws"` // and regions for fast registration
	QPs     int    `json:"qps"`
	SRQs    int    `json:"srqs"`
	AHs     int    `json:"ahs"`
	Owner   Owner  `json:"owner"`
}

// ContextInfo describes a context: a device that somebody has opened.
type ContextInfo struct {
	Dev    string `json:"dev"`
	Number uint32 `json:"number"`
	Owner  Owner  `json:"owner"`
}

// MWInfo describes a memory window. The fields from Addr on hold something while it is bound.
type MWInfo struct {
	Dev    string `json:"dev"`
	Handle uint32 `json:"handle"`
	PD     uint32 `json:"pd"`
	Type   uint32 `json:"type"` // 1 or 2
	Bound  bool   `json:"bound"`
	Addr   uint64 `json:"addr"` // as the peer counts
	Length uint64 `json:"length"`
	Access string `json:"access,omitempty"`
	MR     uint32 `json:"mr,omitempty"`  // handle of the region
	QPN    uint32 `json:"qpn,omitempty"` // of type 2: the QP that it is bound to
	Owner  Owner  `json:"owner"`
}

// CQInfo describes a completion queue.
type CQInfo struct {
	Dev     string `json:"dev"`
	Handle  uint32 `json:"handle"`
	Context uint32 `json:"context"`
	Depth   int    `json:"depth"`
	Queues  int    `json:"queues"` // of QPs
	Need    int    `json:"need"`   // completions that these can have at once
	Pushed  uint64 `json:"pushed"`
	Events  uint64 `json:"events"` // of a CQ in this process
	Overrun bool   `json:"overrun"`
	Owner   Owner  `json:"owner"`
}

// SRQInfo describes a shared receive queue. Who takes how much of it QPInfo says.
type SRQInfo struct {
	Dev      string `json:"dev"`
	Num      uint32 `json:"srqn"`
	PD       uint32 `json:"pd"`
	MaxWR    int    `json:"max_wr"`
	MaxPerQP int    `json:"max_per_qp"` // in force now; 0: no limit
	Posted   int    `json:"posted"`     // and not taken
	QPs      int    `json:"qps"`
	Taken    uint64 `json:"taken"`
	Waits    uint64 `json:"waits"`      // times that a Send had to wait
	Quota    uint64 `json:"over_quota"` // of them, for its QP's quota
	Limit    int    `json:"limit"`      // that is armed
	Limits   uint64 `json:"limit_events"`
	Owner    Owner  `json:"owner"`
}

// CMInfo describes an identifier of the connection manager.
type CMInfo struct {
	Dev    string         `json:"dev"`
	Handle uint32         `json:"handle"`
	State  string         `json:"state"`
	Space  string         `json:"space"` // of ports: TCP or UDP
	Local  netip.AddrPort `json:"local,omitzero"`
	Remote netip.AddrPort `json:"remote,omitzero"`
	QPN    uint32         `json:"qpn,omitempty"`
	// of a listener: requests half open or unanswered
	Waiting int32 `json:"waiting,omitempty"`
	Owner   Owner `json:"owner"`
}

func (c *Context) owner() Owner {
	return Owner{Label: c.cfg.Label, PID: c.cfg.PID, Comm: c.cfg.Comm}
}

// DevInfo describes d.
func (d *Device) DevInfo() DevInfo {
	i := DevInfo{Name: d.cfg.Name, MAC: macString(d.cfg.MAC), MTU: d.cfg.MTU,
		Addrs: slices.Clone(d.cfg.Addrs)}
	l := d.cm.Load()
	i.Ports, i.Pending, i.HalfOpen, i.Refused = l.Ports, int64(l.Pending), l.HalfOpen, l.Refused
	for _, c := range d.contextList() {
		i.Contexts++
		pds, mrs, mws := c.mem.Counts()
		i.PDs += pds
		i.MRs += mrs
		i.MWs += mws
		c.mu.Lock()
		i.CQs += len(c.queues.CQs())
		i.SRQs += len(c.queues.SRQs())
		i.QPs += len(c.qps)
		c.mu.Unlock()
		i.CMIDs += len(c.cm.IDs())
		if c.ahs != nil {
			i.AHs += c.ahs.Len()
		}
	}
	if r := d.roce; r != nil {
		i.Groups = r.groups.Len()
		i.Dropped = r.drops.snapshot()
		messages := r.gsi.Load().Stats()
		i.CMMessages = &messages
		if c := r.links.Congestion; c != nil {
			i.ECNMarked, i.CNPsSent, i.CNPsHandled = c.Marked.Load(), c.Told.Load(), c.Heeded.Load()
		}
	}
	i.Keys = d.keys.Len()
	d.mu.Lock()
	i.Counters, i.Reaped = d.past, d.reaped
	for qp := range d.qps.All() {
		i.Counters.Add(qp.counted().Snapshot())
	}
	if r := d.roce; r != nil {
		p := r.past
		for qp := range d.qps.All() {
			p.Add(qp.packets.stats.Snapshot())
		}
		i.Packets = &p
	}
	d.mu.Unlock()
	return i
}

func macString(m [6]byte) string {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, 17)
	for i, o := range m {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, hex[o>>4], hex[o&15])
	}
	return string(b)
}

// only returns the contexts asked for: c, or all of d if c is nil.
func (d *Device) only(c *Context) []*Context {
	switch {
	case c == nil:
		return d.contextList()
	case c.dev == d:
		return []*Context{c}
	}
	return nil
}

// QPs describes the QPs of c, or all for nil.
func (d *Device) QPs(c *Context) []QPInfo {
	return slices.AppendSeq([]QPInfo{}, d.EachQP(c))
}

// EachQP gives what QPs does, one after the other, and keeps no more than a list of one context's.
func (d *Device) EachQP(c *Context) iter.Seq[QPInfo] {
	return func(yield func(QPInfo) bool) {
		for _, c := range d.only(c) {
			for _, qp := range c.qpList() {
				if !yield(qp.Info()) {
					return
				}
			}
		}
	}
}

// A QPKind is what QPs are counted by.
type QPKind struct {
	Type  rdma.QPType
	State rdma.QPState
}

// QPKinds counts the QPs of d.
func (d *Device) QPKinds() map[QPKind]int {
	kinds := make(map[QPKind]int)
	for _, c := range d.contextList() {
		for _, qp := range c.qpList() {
			kinds[QPKind{qp.Type(), qp.State()}]++
		}
	}
	return kinds
}

// Info describes qp.
func (qp *QP) Info() QPInfo {
	i := QPInfo{
		Dev: qp.dev.cfg.Name, QPN: qp.num, State: qp.State().String(), PD: qp.pd.Handle(),
		Type:   qp.Type(),
		SendCQ: qp.work.Queues.SendCQ.Handle(), RecvCQ: qp.work.Queues.RecvCQ.Handle(),
		MaxSendWR: qp.work.Config().MaxSendWR,
		MaxRecvWR: qp.work.Config().MaxRecvWR,
		Owner:     qp.ctx.owner(), Created: qp.tells.created, Counters: qp.counted().Snapshot(),
		Refused: qp.work.Memory.Refused(),
	}
	if p := qp.packets; p != nil {
		i.Attr = p.shown.Load()
	}
	if t := qp.work.Queues.Tap; t != nil {
		i.SRQ, i.SRQTaken, i.SRQHeld = t.SRQ().Num(), t.Taken(), t.Held()
	}
	if p := qp.peek.Load(); p != nil {
		i.Transport, i.Local, i.Remote = p.llp.Transport.String(), p.local, p.remote
		if p.roi {
			i.Transport += "+roi"
		}
		i.Connected, i.Idle = p.since, qp.idle(p, time.Now())
		i.IRD, i.ORD, i.EMSS, i.Stream = p.param.IRD, p.param.ORD, p.emss, p.llp.Number
		if p.param.PeerToPeer && p.llp.Transport != llp.Memory {
			i.RTR = p.param.RTR.String()
		}
		switch p.llp.Transport {
		case llp.SCTP:
			i.Enhanced = p.param.Revision == 2
		case llp.TCP:
			i.MPA, i.Enhanced, i.CRC = p.param.Revision, p.param.Enhanced, p.param.CRC
			i.Markers = p.param.Markers()
		}
	}
	return i
}

// EachContext describes c, or all contexts for nil.
func (d *Device) EachContext(c *Context) iter.Seq[ContextInfo] {
	return func(yield func(ContextInfo) bool) {
		for _, c := range d.only(c) {
			if !yield(ContextInfo{Dev: d.cfg.Name, Number: c.id, Owner: c.owner()}) {
				return
			}
		}
	}
}

// EachPD describes the protection domains of c, or all for nil.
func (d *Device) EachPD(c *Context) iter.Seq[PDInfo] {
	return func(yield func(PDInfo) bool) {
		for _, c := range d.only(c) {
			for _, pd := range byHandle(c.mem.PDs()) {
				h := pd.Holding()
				if !yield(PDInfo{
					Dev: d.cfg.Name, Handle: pd.Handle(), Context: c.id, MRs: h.MRs, MWs: h.Windows,
					QPs: h.QPs, SRQs: h.SRQs, AHs: h.AHs, Owner: c.owner(),
				}) {
					return
				}
			}
		}
	}
}

// MRs describes the regions of c, or all for nil.
func (d *Device) MRs(c *Context) []MRInfo {
	return slices.AppendSeq([]MRInfo{}, d.EachMR(c))
}

// EachMR gives what MRs does, one after the other, and keeps no more than a list of one context's.
func (d *Device) EachMR(c *Context) iter.Seq[MRInfo] {
	return func(yield func(MRInfo) bool) {
		for _, c := range d.only(c) {
			for _, m := range byHandle(c.mem.MRs()) {
				if !yield(MRInfo{
					Dev: d.cfg.Name, Handle: m.Handle(), PD: m.PD().Handle(), LKey: m.LKey(),
					RKey: m.RKey(), Addr: m.Addr(), Length: m.Len(), Access: m.Access().String(),
					Mode: modeOf(m), Kind: "region", Valid: !m.Revoked(), Users: m.Users(),
					Owner: c.owner(),
				}) {
					return
				}
			}
			for _, f := range byHandle(c.mem.FastMRs()) {
				i := MRInfo{
					Dev: d.cfg.Name, Handle: f.Handle(), PD: f.PD().Handle(), Length: f.MaxLen(), Kind: "fast",
					Owner: c.owner(),
				}
				if m := f.Bound(); m != nil {
					i.LKey, i.RKey = m.LKey(), m.RKey()
					i.Addr, i.Length, i.Access = m.Addr(), m.Len(), m.Access().String()
					i.Mode, i.Valid = modeOf(m), true
				}
				if !yield(i) {
					return
				}
			}
		}
	}
}

// byHandle sorts objects by their handles.
func byHandle[T interface{ Handle() uint32 }](objects []T) []T {
	slices.SortFunc(objects, func(a, b T) int { return cmp.Compare(a.Handle(), b.Handle()) })
	return objects
}

func modeOf(m *MR) string {
	switch {
	case m.Blocking():
		return "private"
	case m.Foreign():
		return "shared"
	}
	return "local"
}

// MWs describes the memory windows of c, or all for nil.
func (d *Device) MWs(c *Context) []MWInfo {
	return slices.AppendSeq([]MWInfo{}, d.EachMW(c))
}

// EachMW gives what MWs does, one after the other, and keeps no more than a list of one context's.
func (d *Device) EachMW(c *Context) iter.Seq[MWInfo] {
	return func(yield func(MWInfo) bool) {
		for _, c := range d.only(c) {
			for _, w := range byHandle(c.mem.MWs()) {
				i := MWInfo{
					Dev: d.cfg.Name, Handle: w.Handle(), PD: w.PD().Handle(), Type: uint32(w.Type()),
					Owner: c.owner(),
				}
				if m := w.Bound(); m != nil {
					i.Bound, i.Addr, i.Length, i.Access = true, m.Addr(), m.Len(), m.Access().String()
					i.MR, i.QPN = m.Source().Handle(), m.QPN()
				}
				if !yield(i) {
					return
				}
			}
		}
	}
}

// CQs describes the completion queues of c, or all for nil.
func (d *Device) CQs(c *Context) []CQInfo {
	return slices.AppendSeq([]CQInfo{}, d.EachCQ(c))
}

// EachCQ gives what CQs does, one after the other, and keeps no more than a list of one context's.
func (d *Device) EachCQ(c *Context) iter.Seq[CQInfo] {
	return func(yield func(CQInfo) bool) {
		for _, c := range d.only(c) {
			for _, cq := range byHandle(c.queues.CQs()) {
				s := cq.Stats()
				if !yield(CQInfo{
					Dev: d.cfg.Name, Handle: cq.Handle(), Context: c.id, Depth: cq.Depth(), Queues: s.Queues,
					Need: s.Need, Pushed: s.Pushed, Events: s.Events, Overrun: s.Overrun, Owner: c.owner(),
				}) {
					return
				}
			}
		}
	}
}

// SRQs describes the shared receive queues of c, or all for nil.
func (d *Device) SRQs(c *Context) []SRQInfo {
	return slices.AppendSeq([]SRQInfo{}, d.EachSRQ(c))
}

// EachSRQ gives what SRQs does, one after the other, and keeps no more than a list of one
// context's.
func (d *Device) EachSRQ(c *Context) iter.Seq[SRQInfo] {
	return func(yield func(SRQInfo) bool) {
		for _, c := range d.only(c) {
			srqs := c.queues.SRQs()
			slices.SortFunc(srqs, func(a, b *SRQ) int { return cmp.Compare(a.Num(), b.Num()) })
			for _, q := range srqs {
				if s, ok := q.Stats(); ok {
					if !yield(SRQInfo{
						Dev: d.cfg.Name, Num: q.Num(), PD: q.PD().Handle(), MaxWR: q.Config().MaxWR,
						MaxPerQP: s.MaxPerQP, Posted: s.Posted, QPs: s.QPs, Taken: s.Taken, Waits: s.Waits,
						Quota: s.OverQuota, Limit: s.Limit, Limits: s.Limits, Owner: c.owner(),
					}) {
						return
					}
				}
			}
		}
	}
}

// CMs describes the identifiers of c, or all for nil.
func (d *Device) CMs(c *Context) []CMInfo {
	return slices.AppendSeq([]CMInfo{}, d.EachCM(c))
}

// EachCM gives what CMs does, one after the other, and keeps no more than a list of one context's.
func (d *Device) EachCM(c *Context) iter.Seq[CMInfo] {
	return func(yield func(CMInfo) bool) {
		for _, c := range d.only(c) {
			ids := c.cm.IDs()
			for _, id := range byHandle(ids) {
				i := id.Info()
				if !yield(CMInfo{
					Dev: d.cfg.Name, Handle: id.Handle(), State: i.State, Space: i.Space.String(),
					Local: i.Local, Remote: i.Remote, QPN: i.QPN,
					Waiting: int32(i.Waiting), Owner: c.owner(),
				}) {
					return
				}
			}
		}
	}
}

var _ rdma.Device = (*Context)(nil)
