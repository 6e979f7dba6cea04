package daemon

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/shm/abi"
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
	MAC   string         `json:"mac"`
	MTU   int            `json:"mtu"`
	Addrs []netip.Prefix `json:"addrs"`
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

type qpRow struct {
	Dev   string `json:"dev"`
	QPN   uint32 `json:"qpn"`
	State string `json:"state"`
	// tcp, sctp or loop; null while not connected, as what follows
	Transport *string  `json:"transport"`
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
	PD        uint32   `json:"pdn"`
	SendCQ    uint32   `json:"scqn"`
	RecvCQ    uint32   `json:"rcqn"`
	SRQ       *uint32  `json:"srqn"` // null: it has receives of its own
	MaxSendWR int      `json:"sq_size"`
	MaxRecvWR int      `json:"rq_size"`
	Seconds   int64    `json:"seconds"`
	owner
}

func newQPRow(i *vnic.QPInfo) qpRow {
	r := qpRow{
		Dev: i.Dev, QPN: i.QPN, State: i.State, PD: i.PD, SendCQ: i.SendCQ, RecvCQ: i.RecvCQ,
		MaxSendWR: i.MaxSendWR, MaxRecvWR: i.MaxRecvWR, Seconds: int64(time.Since(i.Created).Seconds()),
		owner: ownerOf(i.Owner),
	}
	if i.SRQ != 0 {
		r.SRQ = &i.SRQ
	}
	if i.Transport == "" {
		return r
	}
	r.Transport, r.Local, r.Remote = &i.Transport, endpoint(i.Local), endpoint(i.Remote)
	r.IRD, r.ORD = &i.IRD, &i.ORD
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

type mrRow struct {
	Dev    string `json:"dev"`
	Kind   string `json:"kind"` // region, or fast: one without memory of its own
	MR     uint32 `json:"mrn"`
	PD     uint32 `json:"pdn"`
	Addr   string `json:"iova"` // hexadecimal: JSON readers round such numbers
	Length uint64 `json:"length"`
	Access string `json:"access"`
	Mode   string `json:"mode"`
	Valid  bool   `json:"valid"` // of fast: has memory now
	Users  int64  `json:"users"` // windows, and fast ones, that stand on it
	owner
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
	Depth   int    `json:"depth"`
	Queues  int    `json:"queues"`
	Pushed  uint64 `json:"completions"`
	Overrun bool   `json:"overrun"`
	owner
}

type cmRow struct {
	Dev     string   `json:"dev"`
	ID      uint32   `json:"id"`
	State   string   `json:"state"`
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
}

// newDaemonRow counts exactly: all goroutines stand still for a moment, for which caches of the
// runtime are counted. Only who could stop the daemon anyway is to ask for it.
func newDaemonRow() DaemonRow {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return DaemonRow{os.Getpid(), runtime.NumGoroutine(), m.HeapAlloc, m.Mallocs, m.NumGC}
}

// rows collects rows as they go to the client.
type rows struct {
	out [][]byte
	err error
}

func (r *rows) add(row any) {
	b, err := json.Marshal(row)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("row %T: %w", row, err)
	}
	r.out = append(r.out, b)
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

func (s *session) List(kind uint32, all bool) ([][]byte, error) {
	var r rows
	switch {
	case kind == abi.ListPort && all:
		s.d.listPorts(&r)
		return r.out, r.err
	case kind == abi.ListDaemon && all:
		r.add(newDaemonRow())
		return r.out, r.err
	case kind == abi.ListPort || kind == abi.ListDaemon:
		return nil, nil
	}
	for _, sd := range s.devs {
		if kind == abi.ListDev {
			r.add(sd.dev.row(all))
			continue
		}
		ctx, ok := sd.visible(all)
		if !ok {
			continue
		}
		switch kind {
		case abi.ListQP:
			for _, i := range sd.dev.vnic.QPs(ctx) {
				r.add(newQPRow(&i))
			}
		case abi.ListMR:
			for _, i := range sd.dev.vnic.MRs(ctx) {
				r.add(mrRow{i.Dev, i.Kind, i.Handle, i.PD, fmt.Sprintf("%#x", i.Addr), i.Length, i.Access,
					i.Mode, i.Valid, i.Users, ownerOf(i.Owner)})
			}
			for _, i := range sd.dev.vnic.MWs(ctx) {
				r.add(newMWRow(&i))
			}
		case abi.ListCQ:
			for _, i := range sd.dev.vnic.CQs(ctx) {
				r.add(cqRow{i.Dev, i.Handle, i.Depth, i.Queues, i.Pushed, i.Overrun, ownerOf(i.Owner)})
			}
		case abi.ListCM:
			for _, i := range sd.dev.vnic.CMs(ctx) {
				row := cmRow{i.Dev, i.Handle, i.State, endpoint(i.Local), endpoint(i.Remote), nil, i.Waiting,
					ownerOf(i.Owner)}
				if i.QPN != 0 {
					row.QPN = &i.QPN
				}
				r.add(row)
			}
		default:
			return nil, syscall.EINVAL
		}
	}
	return r.out, r.err
}

func (d *device) row(all bool) any {
	row := devRow{d.spec.Name, net.HardwareAddr(d.mac[:]).String(), d.mtu, d.spec.Reach()}
	if !all {
		return row
	}
	i := d.vnic.DevInfo()
	return devCounts{row, i.PDs, i.MRs, i.MWs, i.CQs, i.SRQs, i.QPs, i.CMIDs, i.Pending}
}

func (d *Daemon) listPorts(r *rows) {
	for _, p := range d.sw.Ports() {
		row := portRow{Port: p.Name, Kind: p.Kind, Detail: p.Detail, Offloads: p.Offloads,
			MACs: []string{}}
		for _, m := range p.MACs {
			row.MACs = append(row.MACs, net.HardwareAddr(m[:]).String())
		}
		r.add(row)
	}
}

// Rows of STAT. Kind comes first and says which.
type (
	devStat struct {
		Kind string `json:"kind"`
		Dev  string `json:"dev"`
		*vnic.Counters
		*tcpStat
		*sctpStat
	}
	tcpStat struct {
		Established    uint64 `json:"tcp_established"`
		ActiveOpens    uint64 `json:"tcp_active_opens"`
		PassiveOpens   uint64 `json:"tcp_passive_opens"`
		FailedConnects uint64 `json:"tcp_failed_connects"`
		SegmentsIn     uint64 `json:"tcp_segments_in"`
		SegmentsOut    uint64 `json:"tcp_segments_out"`
		Retransmits    uint64 `json:"tcp_retransmits"`
		Timeouts       uint64 `json:"tcp_timeouts"`
		FastRecoveries uint64 `json:"tcp_fast_recoveries"`
		ResetsSent     uint64 `json:"tcp_resets_out"`
		ResetsReceived uint64 `json:"tcp_resets_in"`
	}
	sctpStat struct {
		Associations    int    `json:"sctp_associations"`
		PacketsIn       uint64 `json:"sctp_packets_in"`
		PacketsOut      uint64 `json:"sctp_packets_out"`
		Retransmits     uint64 `json:"sctp_retransmits"`
		FastRetransmits uint64 `json:"sctp_fast_retransmits"` // of these
		Timeouts        uint64 `json:"sctp_timeouts"`
		Duplicates      uint64 `json:"sctp_duplicates"`
		OutOfTheBlue    uint64 `json:"sctp_out_of_the_blue"`
		BadChecksums    uint64 `json:"sctp_bad_checksums"`
		BadTags         uint64 `json:"sctp_bad_tags"`
		BadCookies      uint64 `json:"sctp_bad_cookies"` // stale ones too
	}
	portStat struct {
		Kind     string `json:"kind"`
		Port     string `json:"port"`
		RxFrames uint64 `json:"rx_frames"`
		RxOctets uint64 `json:"rx_octets"`
		RxDrops  uint64 `json:"rx_drops"`
		TxFrames uint64 `json:"tx_frames"`
		TxOctets uint64 `json:"tx_octets"`
		TxDrops  uint64 `json:"tx_drops"`
	}
	qpStat struct {
		Kind string `json:"kind"`
		Dev  string `json:"dev"`
		QPN  uint32 `json:"qpn"`
		PID  int    `json:"pid"`
		vnic.Counters
		SRQTaken uint64 `json:"srq_taken"` // receives that came from an SRQ
		SRQHeld  int    `json:"srq_held"`  // of them, not polled yet
	}
	srqStat struct {
		Kind   string `json:"kind"`
		Dev    string `json:"dev"`
		SRQ    uint32 `json:"srqn"`
		PID    int    `json:"pid"`
		QPs    int    `json:"qps"`
		Posted int    `json:"posted"` // and not taken
		Taken  uint64 `json:"taken"`
		Waits  uint64 `json:"waits"`        // of Sends, for a receive
		Quota  uint64 `json:"over_quota"`   // of them, because their QP had its share
		Limits uint64 `json:"limit_events"` // told to the program
	}
)

// Stat: who sees only what is theirs gets a device's name without the totals of all its users.
func (s *session) Stat(all bool) ([][]byte, error) {
	var r rows
	for _, sd := range s.devs {
		row := devStat{Kind: "dev", Dev: sd.dev.spec.Name}
		if all {
			total := sd.dev.vnic.DevInfo().Counters
			row.Counters, row.tcpStat = &total, newTCPStat(sd.dev.stack.Stats())
			row.sctpStat = newSCTPStat(sd.dev.net.SCTP())
		}
		r.add(row)
	}
	if all {
		for _, p := range s.d.sw.Ports() {
			r.add(portStat{"port", p.Name, p.RxFrames, p.RxOctets, p.RxDrops, p.TxFrames, p.TxOctets,
				p.TxDrops})
		}
	}
	for _, sd := range s.devs {
		if ctx, ok := sd.visible(all); ok {
			for _, i := range sd.dev.vnic.QPs(ctx) {
				r.add(qpStat{"qp", i.Dev, i.QPN, i.Owner.PID, i.Counters, i.SRQTaken, i.SRQHeld})
			}
			for _, i := range sd.dev.vnic.SRQs(ctx) {
				r.add(srqStat{"srq", i.Dev, i.Num, i.Owner.PID, i.QPs, i.Posted, i.Taken, i.Waits, i.Quota,
					i.Limits})
			}
		}
	}
	return r.out, r.err
}

func newSCTPStat(s *sctphost.Host) *sctpStat {
	t := s.Stats()
	return &sctpStat{
		Associations: s.Associations(), PacketsIn: t.PacketsIn, PacketsOut: t.PacketsOut,
		Retransmits: t.Retransmits, FastRetransmits: t.FastRetransmits, Timeouts: t.Timeouts,
		Duplicates:   t.Duplicates,
		OutOfTheBlue: t.OutOfTheBlue, BadChecksums: t.BadChecksum, BadTags: t.BadTag,
		BadCookies: t.BadCookie + t.StaleCookie,
	}
}

func newTCPStat(t netstack.StackStats) *tcpStat {
	return &tcpStat{
		Established: t.TCPEstablished, ActiveOpens: t.TCPActiveOpens, PassiveOpens: t.TCPPassiveOpens,
		FailedConnects: t.TCPFailedConnects, SegmentsIn: t.TCPSegmentsReceived,
		SegmentsOut: t.TCPSegmentsSent,
		Retransmits: t.TCPRetransmits, Timeouts: t.TCPTimeouts, FastRecoveries: t.TCPFastRecoveries,
		ResetsSent: t.TCPResetsSent, ResetsReceived: t.TCPResetsReceived,
	}
}
