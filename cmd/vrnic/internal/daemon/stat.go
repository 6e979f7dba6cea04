package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/direct"
	"github.com/vrnic/vrnic/cmd/vrnic/internal/latency"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/hosttcp"
	"github.com/vrnic/vrnic/netstack/sctphost"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// Rows of STAT. Kind comes first and says which.
type (
	// A DevStat is what a device counts; what it does not have is nil.
	DevStat struct {
		Kind string `json:"kind"`
		Dev  string `json:"dev"`
		*vnic.Counters
		*direct.Counts
		*tcpStat
		*sctpStat
		*roceStat
	}
	tcpStat struct {
		Established    uint64 `json:"tcp_established"`
		ActiveOpens    uint64 `json:"tcp_active_opens"`
		PassiveOpens   uint64 `json:"tcp_passive_opens"`
		FailedConnects uint64 `json:"tcp_failed_connects"`
		SegmentsIn     uint64 `json:"tcp_segments_in"`
		SegmentsOut    uint64 `json:"tcp_segments_out"`
		Retransmits    uint64 `json:"tcp_retransmits"`
		*stackTCPStat
	}
	// stackTCPStat is what the kernel does not tell of its connections.
	stackTCPStat struct {
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
		direct.Counts
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
func (s *session) Stat(all bool) iter.Seq[any] {
	return both(func(yield func(any) bool) {
		for _, sd := range s.listed() {
			row := DevStat{Kind: "dev", Dev: sd.dev.spec.Name}
			if all {
				i := sd.dev.vnic.DevInfo()
				row = sd.dev.stat(&i)
			}
			if !yield(row) || row.roceStat != nil && !yield(cmStat{row.Dev, row.messages}) {
				return
			}
		}
		if !all {
			return
		}
		for _, p := range s.d.sw.Ports() {
			if !yield(portStat{"port", p.Name, p.RxFrames, p.RxOctets, p.RxDrops, p.TxFrames, p.TxOctets,
				p.TxDrops}) {
				return
			}
		}
	}, s.eachDevice(all, func(dev *device, ctx *vnic.Context) iter.Seq[any] {
		return both(as(dev.vnic.EachQP(ctx), func(i *vnic.QPInfo) any {
			return qpStat{"qp", i.Dev, i.QPN, i.Owner.PID, i.Counters,
				dev.direct.CountsOf(i.QPN), i.SRQTaken, i.SRQHeld}
		}), as(dev.vnic.EachSRQ(ctx), func(i *vnic.SRQInfo) any {
			return srqStat{"srq", i.Dev, i.Num, i.Owner.PID, i.QPs, i.Posted, i.Taken, i.Waits, i.Quota,
				i.Limits}
		}))
	}))
}

// stat is the row of d with the totals of all its users, of i and the station.
func (d *device) stat(i *vnic.DevInfo) DevStat {
	directly := d.direct.Counts()
	row := DevStat{Kind: "dev", Dev: d.spec.Name, Counters: &i.Counters, Counts: &directly}
	if d.roce() {
		row.roceStat = newRoCEStat(i)
	}
	d.station.Stat(&row)
	return row
}

// Metrics are the totals of a daemon: as much for a thousand QPs as for one.
type Metrics struct {
	Devices []DeviceMetrics
	Ports   []ethswitch.PortTotal
	Server  server.Stats
	Clients []server.ClientRow
	Pools   []server.PoolUse // what all sessions share
	Limits  []Limit          // in force
}

// DeviceMetrics are those of a device. QPs is how many there are of each kind.
type DeviceMetrics struct {
	Transport string
	Active    bool // its port
	Stat      DevStat
	Info      vnic.DevInfo
	QPs       map[vnic.QPKind]int
	Latency   *latency.Totals // nil: not measured
}

// A Limit is what --limit Name=Value would say.
type Limit struct {
	Name  string
	Value int64
}

// Metrics collects them, without a lock that a message takes.
func (d *Daemon) Metrics() Metrics {
	m := Metrics{Ports: d.sw.Totals(), Server: d.server.Stats(), Clients: d.server.Clients(),
		Pools: d.server.Pools(), Limits: d.limits()}
	for _, dev := range d.deviceList() {
		i := dev.vnic.DevInfo()
		m.Devices = append(m.Devices, DeviceMetrics{Transport: dev.spec.transport(),
			Active: dev.vnic.PortActive(), Stat: dev.stat(&i), Info: i, QPs: dev.vnic.QPKinds(),
			Latency: dev.latency})
	}
	return m
}

// measure has the requests measured of targets, devices or, as DEVICE,qp=N, queue pairs, or of all
// devices if that is one "", until the other end of the stream socket fd, which is d's from now on,
// is shut for writing. Then it writes there what they took.
func (d *Daemon) measure(targets []string, fd int) error {
	conn, err := streamSocket(fd)
	if err != nil {
		return err
	}
	if len(targets) == 1 && targets[0] == "" {
		targets = nil
		for _, dev := range d.deviceList() {
			targets = append(targets, dev.spec.Name)
		}
	}
	set := new(latency.Set)
	var stops []func()
	stop := func() {
		for _, f := range stops {
			f()
		}
	}
	err = d.onlookers.Begin(func() (run, end func(), err error) {
		for _, target := range targets {
			dev, qpn, err := d.target(target)
			if err != nil {
				return nil, nil, err
			}
			stops = append(stops, dev.vnic.Observe(func(n uint32) vnic.RequestWatcher {
				if qpn != 0 && qpn != n {
					return nil
				}
				return set.Of(dev.spec.Name, n)
			}))
		}
		run = func() {
			defer conn.Close()
			_, _ = io.Copy(io.Discard, conn) // until it is shut, or gone
			stop()
			_ = json.NewEncoder(conn).Encode(set.Rows()) // to nobody, if that has gone
		}
		return run, func() { conn.Close() }, nil
	})
	if err != nil {
		stop()
		return errors.Join(err, conn.Close())
	}
	return nil
}

// target is the device that s names and, if it has one, the number of a queue pair of it.
func (d *Daemon) target(s string) (dev *device, qpn uint32, err error) {
	name, qp, one := strings.Cut(s, ",qp=")
	if dev = d.device(name); dev == nil {
		return nil, 0, fmt.Errorf("there is no device %s", name)
	}
	if !one {
		return dev, 0, nil
	}
	n, err := strconv.ParseUint(qp, 10, 32)
	for i := range dev.vnic.EachQP(nil) {
		if err == nil && uint64(i.QPN) == n {
			return dev, i.QPN, nil
		}
	}
	return nil, 0, fmt.Errorf("device %s has no queue pair %s", name, qp)
}

// limits are all that are in force.
func (d *Daemon) limits() (all []Limit) {
	cfg := d.current()
	for i := range server.LimitTable {
		t := &server.LimitTable[i]
		all = append(all, Limit{t.Name, cfg.Limits.Get(t)})
	}
	for i := range PeerLimitTable {
		t := &PeerLimitTable[i]
		n := *t.field(&cfg.Peers)
		if n == 0 {
			n = t.Default
		}
		all = append(all, Limit{t.Name, int64(n)})
	}
	return all
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

func newHostTCPStat(t hosttcp.Stats) *tcpStat {
	return &tcpStat{
		Established: t.Established, ActiveOpens: t.ActiveOpens, PassiveOpens: t.PassiveOpens,
		FailedConnects: t.FailedConnects, SegmentsIn: t.SegmentsReceived, SegmentsOut: t.SegmentsSent,
		Retransmits: t.Retransmits,
	}
}

func newTCPStat(t netstack.StackStats) *tcpStat {
	return &tcpStat{
		Established: t.TCPEstablished, ActiveOpens: t.TCPActiveOpens, PassiveOpens: t.TCPPassiveOpens,
		FailedConnects: t.TCPFailedConnects, SegmentsIn: t.TCPSegmentsReceived,
		SegmentsOut: t.TCPSegmentsSent, Retransmits: t.TCPRetransmits,
		stackTCPStat: &stackTCPStat{
			Timeouts: t.TCPTimeouts, FastRecoveries: t.TCPFastRecoveries,
			ResetsSent: t.TCPResetsSent, ResetsReceived: t.TCPResetsReceived,
		},
	}
}

// A roceStat is what a device of RoCE counts beside its messages, by the names of Linux's rxe in
// hw_counters as far as it has them.
type roceStat struct {
	vnic.PacketCounters
	SendMessages uint64 `json:"rdma_sends"`
	RecvMessages uint64 `json:"rdma_recvs"`
	UnknownQP    uint64 `json:"drop_unknown_qp"` // for a QP that is not there, or takes none yet
	ForeignPeer  uint64 `json:"drop_foreign_peer"`
	BadICRC      uint64 `json:"drop_bad_icrc"`
	BadChecksum  uint64 `json:"drop_bad_checksum"` // UDP's; of an address of the host the kernel counts
	Full         uint64 `json:"drop_full"`         // for a QP for which too many waited
	ECNMarked    uint64 `json:"ecn_marked"`
	CNPsSent     uint64 `json:"cnps_sent"`
	CNPsHandled  uint64 `json:"cnps_handled"`
	CMRefused    uint64 `json:"cm_refused"` // requests to connect, for want of room

	messages *vnic.CMMessages
}

// newRoCEStat is for a device of RoCE.
func newRoCEStat(i *vnic.DevInfo) *roceStat {
	return &roceStat{
		PacketCounters: *i.Packets, SendMessages: i.Counters.Sends, RecvMessages: i.Counters.Receives,
		UnknownQP: i.Dropped.Unknown, ForeignPeer: i.Dropped.Foreign, BadICRC: i.Dropped.ICRC,
		Full: i.Dropped.Full, ECNMarked: i.ECNMarked, CNPsSent: i.CNPsSent, CNPsHandled: i.CNPsHandled,
		CMRefused: i.CMMessages.Refused, messages: i.CMMessages,
	}
}

// A cmStat is the row of a device's messages of connection management, by the names that Linux has
// for them.
type cmStat struct {
	dev   string
	stats *vnic.CMMessages
}

// MarshalJSON implements json.Marshaler: 36 counters, of each way and kind of message.
func (s cmStat) MarshalJSON() ([]byte, error) {
	dev, err := json.Marshal(s.dev)
	if err != nil {
		return nil, fmt.Errorf("row of device %s: %w", s.dev, err)
	}
	b := fmt.Appendf(nil, `{"kind":"cm","dev":%s`, dev)
	for _, way := range []struct {
		name string
		n    []uint64
	}{
		{"cm_rx_msgs", s.stats.Received[:]}, {"cm_rx_duplicates", s.stats.Duplicates[:]},
		{"cm_tx_msgs", s.stats.Sent[:]}, {"cm_tx_retries", s.stats.Retries[:]},
	} {
		for i, kind := range CMMessageKinds {
			b = fmt.Appendf(b, `,"%s_%s":%d`, way.name, kind, way.n[i])
		}
	}
	return append(b, '}'), nil
}

// CMMessageKinds are names of messages in the order of their numbers.
var CMMessageKinds = []string{"req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req",
	"sidr_rep"}
