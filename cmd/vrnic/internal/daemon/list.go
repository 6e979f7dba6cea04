package daemon

import (
	"encoding/json"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/vnic"
)

// Rows of LIST and STAT: flat JSON objects, whose members come in the order in which tools print
// them. Keys of regions are not in them: they are what access rests on.

// An endpoint is an address with a port, null if there is none.
type endpoint netip.AddrPort

func (e endpoint) MarshalJSON() ([]byte, error) {
	a := netip.AddrPort(e)
	if !a.IsValid() {
		return []byte("null"), nil
	}
	return json.Marshal(a.String())
}

// An owner is the session that an object belongs to.
type owner struct {
	Session int    `json:"session"`
	PID     int    `json:"pid"`
	Comm    string `json:"comm"`
}

func ownerOf(o vnic.Owner) owner {
	n, _ := strconv.Atoi(o.Label) // sessionDevice.context made it
	return owner{n, o.PID, o.Comm}
}

type devRow struct {
	Dev   string         `json:"dev"`
	Kind  string         `json:"transport"` // iwarp or roce
	MAC   string         `json:"mac"`
	MTU   int            `json:"mtu"`
	Addrs []netip.Prefix `json:"addrs"`
	State string         `json:"state"` // of the port, as what follows
	Phys  string         `json:"physical_state"`
	GIDs  int            `json:"gids"` // entries of its table
	// The card that it shows itself as, and what sysfs has of that.
	Profile  string `json:"profile,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	HCAType  string `json:"hca_type,omitempty"`
	BoardID  string `json:"board_id,omitempty"`
	PCI      string `json:"pci,omitempty"` // vendor and device
	Revision uint32 `json:"hw_rev,omitempty"`
}

// A devCounts says what all users of a device have made; not everybody is told.
type devCounts struct {
	devRow
	PDs     int   `json:"pds"`
	MRs     int   `json:"mrs"`
	MWs     int   `json:"mws"`
	CQs     int   `json:"cqs"`
	SRQs    int   `json:"srqs"`
	QPs     int   `json:"qps"`
	CMIDs   int   `json:"cm_ids"`
	Pending int64 `json:"pending"`
}

// A gidRow is an entry of a GID table: those that are empty are left out.
type gidRow struct {
	Dev   string     `json:"dev"`
	Port  int        `json:"port"`
	Index int        `json:"index"`
	GID   netip.Addr `json:"gid"`
	Type  string     `json:"type"`
}

func (d *device) gids() (rows []gidRow) {
	_, n := d.vnic.RoCEPort()
	for i := range n {
		if e, err := d.vnic.GID(i); err == nil && e != (rdma.GIDEntry{}) {
			rows = append(rows, gidRow{d.spec.Name, 1, i, netip.AddrFrom16(e.GID), "RoCE v2"})
		}
	}
	return rows
}

type qpRow struct {
	Dev   string `json:"dev"`
	QPN   uint32 `json:"qpn"`
	State string `json:"state"`
	// tcp, sctp or loop, behind which +roi says that it is not iWARP; null while not connected,
	// as what follows
	Transport *string `json:"transport"`
	// direct (without the daemon), daemon or wire; and why it is not direct between two of a device
	Path      *string  `json:"path"`
	Why       *string  `json:"why"`
	Local     endpoint `json:"local"`
	Remote    endpoint `json:"remote"`
	MPA       *uint8   `json:"mpa"` // revision
	Enhanced  *bool    `json:"enhanced"`
	CRC       *bool    `json:"crc"`
	Markers   *string  `json:"markers"` // what has MPA markers: in, out or both
	IRD       *uint16  `json:"ird"`
	ORD       *uint16  `json:"ord"`
	RTR       *string  `json:"rtr"` // ready-to-receive message of the handshake
	EMSS      *int     `json:"emss"`
	Stream    *int     `json:"stream,omitempty"` // of an SCTP association
	PD        uint32   `json:"pdn"`
	SendCQ    uint32   `json:"scqn"`
	RecvCQ    uint32   `json:"rcqn"`
	SRQ       *uint32  `json:"srqn"` // null: it has receives of its own
	MaxSendWR int      `json:"sq_size"`
	MaxRecvWR int      `json:"rq_size"`
	Seconds   int64    `json:"seconds"`
	*refusal
	owner
}

// A refusal is what the peer has asked for last of what it did not get; nil: nothing.
type refusal struct {
	Refused string `json:"refused"`      // RDMA Write, RDMA Read or atomic
	RKey    string `json:"refused_rkey"` // hexadecimal, as mrRow's
	Addr    string `json:"refused_addr"`
	Octets  uint32 `json:"refused_octets"`
	Why     string `json:"refused_why"` // no-region, stranger, no-right or outside
}

func newRefusal(r *vnic.Refused) *refusal {
	if r == nil {
		return nil
	}
	return &refusal{r.Use, fmt.Sprintf("%#x", r.Key), fmt.Sprintf("%#x", r.Addr), r.Octets,
		string(r.Why)}
}

func (d *device) newQPRow(i *vnic.QPInfo) qpRow {
	r := qpRow{
		Dev: i.Dev, QPN: i.QPN, State: i.State, PD: i.PD, SendCQ: i.SendCQ, RecvCQ: i.RecvCQ,
		MaxSendWR: i.MaxSendWR, MaxRecvWR: i.MaxRecvWR, Seconds: int64(time.Since(i.Created).Seconds()),
		refusal: newRefusal(i.Refused), owner: ownerOf(i.Owner),
	}
	if i.SRQ != 0 {
		r.SRQ = &i.SRQ
	}
	if i.Transport == "" {
		return r
	}
	r.Transport, r.Local, r.Remote = &i.Transport, endpoint(i.Local), endpoint(i.Remote)
	path, why := "wire", ""
	if i.Transport == "loop" {
		path, why = d.direct.Path(i.QPN)
	}
	if r.Path = &path; why != "" {
		r.Why = &why
	}
	r.IRD, r.ORD = &i.IRD, &i.ORD
	if strings.HasPrefix(i.Transport, "sctp") {
		r.Stream = &i.Stream
	}
	if i.MPA != 0 { // none on loopback
		r.MPA, r.Enhanced, r.CRC, r.EMSS = &i.MPA, &i.Enhanced, &i.CRC, &i.EMSS
		if i.Markers != "" {
			r.Markers = &i.Markers
		}
		if i.RTR != "" {
			r.RTR = &i.RTR
		}
	}
	return r
}

// A roceQPRow is a QP of RoCE. What has not been set is null.
type roceQPRow struct {
	Dev       string      `json:"dev"`
	QPN       uint32      `json:"qpn"`
	State     string      `json:"state"`
	Type      string      `json:"type"`
	Dest      *uint32     `json:"dest_qpn"`
	Remote    *netip.Addr `json:"remote"`
	GIDIndex  *uint8      `json:"gid_index"`
	PathMTU   *int        `json:"path_mtu"`
	Path      *string     `json:"path"` // as of iWARP's
	Why       *string     `json:"why"`
	SQPSN     *uint32     `json:"sq_psn"` // of the first packet, as those of rq_psn
	RQPSN     *uint32     `json:"rq_psn"`
	Timeout   *uint8      `json:"timeout"`
	Retry     *uint8      `json:"retry_cnt"`
	RNRRetry  *uint8      `json:"rnr_retry"`
	MinRNR    *uint8      `json:"min_rnr_timer"`
	MaxRead   *uint8      `json:"max_rd_atomic"`
	MaxDest   *uint8      `json:"max_dest_rd_atomic"`
	PD        uint32      `json:"pdn"`
	SendCQ    uint32      `json:"scqn"`
	RecvCQ    uint32      `json:"rcqn"`
	SRQ       *uint32     `json:"srqn"`
	MaxSendWR int         `json:"sq_size"`
	MaxRecvWR int         `json:"rq_size"`
	Seconds   int64       `json:"seconds"`
	*refusal
	owner
}

func (d *device) newRoCEQPRow(i *vnic.QPInfo) roceQPRow {
	r := roceQPRow{
		Dev: i.Dev, QPN: i.QPN, State: i.State, Type: i.Type.String(), PD: i.PD, SendCQ: i.SendCQ,
		RecvCQ: i.RecvCQ, MaxSendWR: i.MaxSendWR, MaxRecvWR: i.MaxRecvWR,
		Seconds: int64(time.Since(i.Created).Seconds()), refusal: newRefusal(i.Refused),
		owner: ownerOf(i.Owner),
	}
	if i.SRQ != 0 {
		r.SRQ = &i.SRQ
	}
	a := i.Attr
	if a == nil || a.PathMTU == 0 { // of datagrams, or not in RTR yet
		return r
	}
	remote, mtu := a.Path.GID.Addr(), a.PathMTU.Octets()
	r.Dest, r.Remote, r.GIDIndex, r.PathMTU = &a.DestQPN, &remote, &a.Path.GIDIndex, &mtu
	r.SQPSN, r.RQPSN = &a.SQPSN, &a.RQPSN
	if i.Type == rdma.RC {
		r.Timeout, r.Retry, r.RNRRetry, r.MinRNR = &a.Timeout, &a.RetryCount, &a.RNRRetry, &a.MinRNRTimer
		r.MaxRead, r.MaxDest = &a.MaxRead, &a.MaxDestRead
		path, why := "wire", ""
		if slices.ContainsFunc(d.gids(), func(g gidRow) bool { return g.GID.Unmap() == remote }) {
			path, why = d.direct.Path(i.QPN)
		}
		if r.Path = &path; why != "" {
			r.Why = &why
		}
	}
	return r
}

type mrRow struct {
	Dev  string `json:"dev"`
	Kind string `json:"kind"` // region, or fast: one without memory of its own
	MR   uint32 `json:"mrn"`
	PD   uint32 `json:"pdn"`
	// Hexadecimal: keys, null while there are none, and an address, which JSON readers round.
	LKey   *string `json:"lkey"`
	RKey   *string `json:"rkey"`
	Addr   string  `json:"iova"`
	Length uint64  `json:"length"`
	Access string  `json:"access"`
	Mode   string  `json:"mode"`
	Valid  bool    `json:"valid"` // of fast: has memory now
	Users  int64   `json:"users"` // windows, and fast ones, that stand on it
	owner
}

func hexKey(k uint32) *string {
	if k == 0 {
		return nil
	}
	s := fmt.Sprintf("%#x", k)
	return &s
}

// An mwRow is a memory window, among the regions. What follows its type is null while it is not
// bound.
type mwRow struct {
	Dev    string  `json:"dev"`
	Kind   string  `json:"kind"` // window
	MW     uint32  `json:"mwn"`
	PD     uint32  `json:"pdn"`
	Type   uint32  `json:"type"`
	MR     *uint32 `json:"mrn"` // of the region
	Addr   *string `json:"iova"`
	Length *uint64 `json:"length"`
	Access *string `json:"access"`
	QPN    *uint32 `json:"qpn"` // of type 2: the QP that it serves
	owner
}

func newMWRow(i *vnic.MWInfo) mwRow {
	r := mwRow{Dev: i.Dev, Kind: "window", MW: i.Handle, PD: i.PD, Type: i.Type,
		owner: ownerOf(i.Owner)}
	if i.Bound {
		addr := fmt.Sprintf("%#x", i.Addr)
		r.MR, r.Addr, r.Length, r.Access = &i.MR, &addr, &i.Length, &i.Access
		if i.QPN != 0 {
			r.QPN = &i.QPN
		}
	}
	return r
}

type cqRow struct {
	Dev     string `json:"dev"`
	CQ      uint32 `json:"cqn"`
	Context uint32 `json:"context"`
	Depth   int    `json:"depth"`
	Queues  int    `json:"queues"`
	Pushed  uint64 `json:"completions"`
	Overrun bool   `json:"overrun"`
	owner
}

// A ctxRow is a session's context: it has opened the device.
type ctxRow struct {
	Dev     string `json:"dev"`
	Context uint32 `json:"context"`
	owner
}

// A pdRow is a protection domain, with how much keeps it from being freed.
type pdRow struct {
	Dev     string `json:"dev"`
	PD      uint32 `json:"pdn"`
	Context uint32 `json:"context"`
	MRs     int    `json:"mrs"`
	Windows int    `json:"mws"` // and regions for fast registration
	QPs     int    `json:"qps"`
	SRQs    int    `json:"srqs"`
	AHs     int    `json:"ahs"`
	owner
}

type srqRow struct {
	Dev    string `json:"dev"`
	SRQ    uint32 `json:"srqn"`
	PD     uint32 `json:"pdn"`
	MaxWR  int    `json:"rq_size"`
	Posted int    `json:"posted"` // and not taken
	Limit  int    `json:"limit"`  // that is armed
	QPs    int    `json:"qps"`
	owner
}

// A peerRow is what somebody on the network, or a session by the device itself, has of connections
// that it asked for.
type peerRow struct {
	Dev      string      `json:"dev"`
	Peer     *netip.Addr `json:"peer"`    // null: the device itself
	Context  *uint32     `json:"context"` // of the device itself
	HalfOpen int         `json:"half_open"`
	Pending  int         `json:"pending"`
	Conns    int         `json:"connections"`
	Refused  uint64      `json:"refused"`
}

func newPeerRow(i *vnic.PeerInfo) peerRow {
	row := peerRow{Dev: i.Dev, HalfOpen: i.HalfOpen, Pending: i.Pending, Conns: i.Conns,
		Refused: i.Refused}
	if i.Addr.IsValid() {
		row.Peer = &i.Addr
	}
	if i.Context != 0 {
		row.Context = &i.Context
	}
	return row
}

type cmRow struct {
	Dev     string   `json:"dev"`
	ID      uint32   `json:"id"`
	State   string   `json:"state"`
	Space   string   `json:"space"` // of ports: TCP or UDP
	Local   endpoint `json:"local"`
	Remote  endpoint `json:"remote"`
	QPN     *uint32  `json:"qpn"`
	Waiting int32    `json:"waiting"`
	owner
}

type portRow struct {
	Port     string   `json:"port"`
	Kind     string   `json:"kind"`
	Detail   string   `json:"detail"`
	Offloads bool     `json:"offloads"`
	MACs     []string `json:"macs"`
}

// A DaemonRow is the daemon itself: row of LIST daemon.
type DaemonRow struct {
	PID         int    `json:"pid"`
	Goroutines  int    `json:"goroutines"`
	Heap        uint64 `json:"heap_bytes"`
	Allocs      uint64 `json:"allocs"` // objects allocated on the heap since it began
	Collections uint32 `json:"collections"`
	Sandbox     string `json:"sandbox"` // what it has given up; "off": nothing
}

// newDaemonRow counts exactly: all goroutines stand still for a moment, for which caches of the
// runtime are counted. Only who could stop the daemon anyway is to ask for it.
func (d *Daemon) newDaemonRow() DaemonRow {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	sandbox := "off"
	if c := d.confined.Load(); c != nil {
		sandbox = c.How
	}
	return DaemonRow{os.Getpid(), runtime.NumGoroutine(), m.HeapAlloc, m.Mallocs, m.NumGC, sandbox}
}

// visible is what List and Stat may look at on a device: all contexts (nil and true), or the
// session's own, if it has one.
func (sd *sessionDevice) visible(all bool) (*vnic.Context, bool) {
	if all {
		return nil, true
	}
	sd.mu.Lock()
	defer sd.mu.Unlock()
	return sd.ctx, sd.ctx != nil
}

func (s *session) List(kind uint32, all bool) (iter.Seq[any], error) {
	var of func(dev *device, ctx *vnic.Context) iter.Seq[any]
	switch kind {
	case rpc.ListPort:
		return only(all, s.d.portRows()), nil
	case rpc.ListNetif:
		return only(all, s.d.ipoibRows()), nil
	case rpc.ListConfig:
		return only(all, s.d.configRows()), nil
	case rpc.ListImpair:
		return only(all, s.d.impaired.Rows()), nil
	case rpc.ListFault:
		return only(all, s.d.faults.Rows()), nil
	case rpc.ListDaemon:
		return only(all, func(yield func(any) bool) { yield(s.d.newDaemonRow()) }), nil
	case rpc.ListDev:
		return func(yield func(any) bool) {
			for _, sd := range s.listed() {
				if !yield(sd.dev.row(all)) {
					return
				}
			}
		}, nil
	case rpc.ListQP:
		of = func(dev *device, ctx *vnic.Context) iter.Seq[any] {
			return as(dev.vnic.EachQP(ctx), func(i *vnic.QPInfo) any {
				if dev.roce() {
					return dev.newRoCEQPRow(i)
				}
				return dev.newQPRow(i)
			})
		}
	case rpc.ListMR:
		of = func(dev *device, ctx *vnic.Context) iter.Seq[any] {
			return both(as(dev.vnic.EachMR(ctx), func(i *vnic.MRInfo) any {
				return mrRow{i.Dev, i.Kind, i.Handle, i.PD, hexKey(i.LKey), hexKey(i.RKey),
					fmt.Sprintf("%#x", i.Addr), i.Length, i.Access, i.Mode, i.Valid, i.Users, ownerOf(i.Owner)}
			}), eachMW(dev, ctx))
		}
	case rpc.ListMW:
		of = eachMW
	case rpc.ListCtx:
		of = func(dev *device, ctx *vnic.Context) iter.Seq[any] {
			return as(dev.vnic.EachContext(ctx), func(i *vnic.ContextInfo) any {
				return ctxRow{i.Dev, i.Number, ownerOf(i.Owner)}
			})
		}
	case rpc.ListPD:
		of = func(dev *device, ctx *vnic.Context) iter.Seq[any] {
			return as(dev.vnic.EachPD(ctx), func(i *vnic.PDInfo) any {
				return pdRow{i.Dev, i.Handle, i.Context, i.MRs, i.MWs, i.QPs, i.SRQs, i.AHs,
					ownerOf(i.Owner)}
			})
		}
	case rpc.ListSRQ:
		of = func(dev *device, ctx *vnic.Context) iter.Seq[any] {
			return as(dev.vnic.EachSRQ(ctx), func(i *vnic.SRQInfo) any {
				return srqRow{i.Dev, i.Num, i.PD, i.MaxWR, i.Posted, i.Limit, i.QPs, ownerOf(i.Owner)}
			})
		}
	case rpc.ListPeer:
		return only(all, s.eachDevice(true, func(dev *device, _ *vnic.Context) iter.Seq[any] {
			return as(slices.Values(dev.vnic.Peers()), func(i *vnic.PeerInfo) any { return newPeerRow(i) })
		})), nil
	case rpc.ListCQ:
		of = func(dev *device, ctx *vnic.Context) iter.Seq[any] {
			return as(dev.vnic.EachCQ(ctx), func(i *vnic.CQInfo) any {
				return cqRow{i.Dev, i.Handle, i.Context, i.Depth, i.Queues, i.Pushed, i.Overrun,
					ownerOf(i.Owner)}
			})
		}
	case rpc.ListGID:
		return func(yield func(any) bool) {
			for _, sd := range s.listed() {
				for _, row := range sd.dev.gids() {
					if !yield(row) {
						return
					}
				}
			}
		}, nil
	case rpc.ListCM:
		of = func(dev *device, ctx *vnic.Context) iter.Seq[any] {
			return as(dev.vnic.EachCM(ctx), func(i *vnic.CMInfo) any { return newCMRow(i) })
		}
	default:
		return nil, syscall.EINVAL
	}
	return s.eachDevice(all, of), nil
}

func eachMW(dev *device, ctx *vnic.Context) iter.Seq[any] {
	return as(dev.vnic.EachMW(ctx), func(i *vnic.MWInfo) any { return newMWRow(i) })
}

// eachDevice gives the rows of each device in turn, of what of may look at there.
func (s *session) eachDevice(all bool,
	of func(*device, *vnic.Context) iter.Seq[any]) iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, sd := range s.listed() {
			ctx, ok := sd.visible(all)
			if !ok {
				continue
			}
			for row := range of(sd.dev, ctx) {
				if !yield(row) {
					return
				}
			}
		}
	}
}

// only is rows, or none.
func only(yes bool, rows iter.Seq[any]) iter.Seq[any] {
	if yes {
		return rows
	}
	return func(func(any) bool) {}
}

// both is a and then b.
func both(a, b iter.Seq[any]) iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, s := range []iter.Seq[any]{a, b} {
			for row := range s {
				if !yield(row) {
					return
				}
			}
		}
	}
}

// as makes rows of infos.
func as[T any](infos iter.Seq[T], row func(*T) any) iter.Seq[any] {
	return func(yield func(any) bool) {
		for i := range infos {
			if !yield(row(&i)) {
				return
			}
		}
	}
}

func newCMRow(i *vnic.CMInfo) cmRow {
	row := cmRow{Dev: i.Dev, ID: i.Handle, State: i.State, Space: i.Space,
		Local: endpoint(i.Local), Remote: endpoint(i.Remote), Waiting: i.Waiting,
		owner: ownerOf(i.Owner)}
	if i.QPN != 0 {
		row.QPN = &i.QPN
	}
	return row
}

func (d *device) row(all bool) any {
	row := devRow{Dev: d.spec.Name, Kind: d.spec.transport(),
		MAC: net.HardwareAddr(d.mac[:]).String(), MTU: d.mtu(), Addrs: d.addrs,
		State: "ACTIVE", Phys: "LINK_UP", GIDs: 1}
	if !d.vnic.PortActive() {
		row.State, row.Phys = "DOWN", "DISABLED"
	}
	if d.roce() {
		_, row.GIDs = d.vnic.RoCEPort()
	}
	if p := d.spec.Profile; p != nil {
		row.Profile, row.Firmware, row.HCAType, row.BoardID = p.Name, p.Firmware, p.HCAType, p.BoardID
		row.Revision = p.HWVersion
		if p.PCIVendor != 0 {
			row.PCI = fmt.Sprintf("%04x:%04x", p.PCIVendor, p.PCIDevice)
		}
		row.GIDs = max(row.GIDs, int(p.GIDs))
	}
	if !all {
		return row
	}
	i := d.vnic.DevInfo()
	return devCounts{row, i.PDs, i.MRs, i.MWs, i.CQs, i.SRQs, i.QPs, i.CMIDs, i.Pending}
}

func (d *Daemon) portRows() iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, p := range d.sw.Ports() {
			row := portRow{Port: p.Name, Kind: p.Kind, Detail: p.Detail, Offloads: p.Offloads,
				MACs: []string{}}
			for _, m := range p.MACs {
				row.MACs = append(row.MACs, net.HardwareAddr(m[:]).String())
			}
			if !yield(row) {
				return
			}
		}
	}
}
