package metrics

import (
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/latency"
)

// A family is a metric with its labels.
type family struct {
	kind prometheus.ValueType
	desc *prometheus.Desc
}

// all are the families, for Describe.
var all []*family

func newFamily(kind prometheus.ValueType, name, help string, labels []string) *family {
	f := &family{kind, prometheus.NewDesc("vrnic_"+name, help, labels, nil)}
	all = append(all, f)
	return f
}

func counter(name, help string, labels ...string) *family {
	return newFamily(prometheus.CounterValue, name+"_total", help, labels)
}

func histogram(name, help string, labels ...string) *family {
	return newFamily(prometheus.UntypedValue, name, help, labels)
}

func gauge(name, help string, labels ...string) *family {
	return newFamily(prometheus.GaugeValue, name, help, labels)
}

// send gives one series of f. A label that is no UTF-8, such as a port with the name of a path, is
// quoted: one of those would cost all series.
func (f *family) send(ch chan<- prometheus.Metric, value float64, labels ...string) {
	for i, l := range labels {
		if !utf8.ValidString(l) {
			labels[i] = strconv.Quote(l)
		}
	}
	ch <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
}

// sendHistogram gives one series of f, a histogram.
func (f *family) sendHistogram(ch chan<- prometheus.Metric, h latency.Histogram,
	labels ...string) {
	ch <- prometheus.MustNewConstHistogram(f.desc, h.Count, h.Seconds, h.Buckets, labels...)
}

// Families that are not made of the counters of a device.
var (
	deviceInfo = gauge("device_info", "What a device is; always 1.", "device", "transport", "mac",
		"mtu")
	deviceUp = gauge("device_up", "Whether the port of the device has a link.", "device")
	objects  = gauge("objects", "Objects that programs have made on the device.", "device", "kind")
	qps      = gauge("queue_pairs", "Queue pairs by type and state.", "device", "type", "state")
	requests = gauge("connection_requests",
		"Connection requests under way: without a complete request, and without an answer.", "device",
		"stage")
	refused = counter("connection_requests_refused",
		"Connection requests refused, by the limit that was reached.", "device", "limit")
	reaped = counter("connections_reaped", "Connections ended because nothing moved for too long.",
		"device")
	durations = histogram("request_duration_seconds", "How long send requests took that did not "+
		"fail, from when the daemon took them until they completed.", "device", "operation")
	cmMessages = counter("cm_messages", "Messages of RoCE's connection management; duplicate and "+
		"retry count those among received and sent.", "device", "direction", "message")

	portFrames = counter("port_frames",
		"Frames through a port of the switch: in came from the port. A super-frame counts once.",
		"port", "kind", "direction")
	portBytes = counter("port_bytes", "Octets of the frames of a port.", "port", "kind", "direction")
	portDrops = counter("port_drops",
		"Frames dropped at a port: in made no sense, out had no room.", "port", "kind", "direction")

	sessions         = gauge("sessions", "Programs that have a session.")
	sessionsAccepted = counter("sessions_accepted", "Sessions begun.")
	sessionsRefused  = counter("sessions_refused",
		"Programs refused: over a limit, of another version, or too slow.")
	violations = counter("session_violations", "Sessions ended because the program broke a rule.")

	limits    = gauge("limit", "Limits in force, by the names of vrnic up --limit.", "limit")
	limitUsed = gauge("limit_used", "How much of a limit of the whole daemon is taken.", "limit")
	limitMost = gauge("limit_session_max",
		"How much of a limit of each session the session has that has most of it.", "limit")
)

// Families of the counters of a device.
var (
	messages = counter("messages", "Messages sent to peers, and delivered or answered for them.",
		"device", "direction", "operation")
	immediates = counter("immediate_messages", "Messages with immediate data; those behind a Write "+
		"count as a Write, too.", "device", "direction")
	payload = counter("payload_bytes", "Octets of payload: in Sends and Writes of either side, and "+
		"in answers to Reads.", "device", "direction", "operation")
	stalls  = counter("receive_stalls", "Sends of a peer that had to wait for a receive.", "device")
	empties = counter("empty_messages", "Reads and Writes of a peer of no octets.", "device",
		"operation")
	tiny = counter("tiny_segments", "Segments of a peer that were cut for no reason.",
		"device")
	solicited = counter("solicited_receives", "Receives for which the peer asked for an event.",
		"device")
	directly = counter("direct_messages", "Sends and receives that two programs of one user "+
		"exchanged by themselves, among the messages.", "device", "direction")
	errorsSeen = counter("completion_errors", "Completions with an error, flushes not counted.",
		"device")
	terminates = counter("terminates", "Connections ended by a Terminate message.", "device",
		"direction")

	tcpConnections = gauge("tcp_connections", "Established TCP connections.", "device")
	tcpOpens       = counter("tcp_opens", "TCP connections begun, by who began.", "device", "by")
	tcpFailed      = counter("tcp_failed_connects", "TCP connections that did not come about.",
		"device")
	tcpSegments    = counter("tcp_segments", "TCP segments.", "device", "direction")
	tcpRetransmits = counter("tcp_retransmits", "TCP segments sent again.", "device")
	tcpTimeouts    = counter("tcp_timeouts", "Retransmission timeouts of TCP.", "device")
	tcpRecoveries  = counter("tcp_fast_recoveries", "Times that TCP found a loss without a timeout.",
		"device")
	tcpResets = counter("tcp_resets", "Resets of TCP connections.", "device", "direction")

	sctpAssociations = gauge("sctp_associations", "Associations of SCTP.", "device")
	sctpPackets      = counter("sctp_packets", "Packets of SCTP.", "device", "direction")
	sctpRetransmits  = counter("sctp_retransmits", "Chunks that SCTP has sent again.", "device")
	sctpFast         = counter("sctp_fast_retransmits",
		"Those among the retransmits for which no timer had to run out.", "device")
	sctpTimeouts   = counter("sctp_timeouts", "Retransmission timeouts of SCTP.", "device")
	sctpDuplicates = counter("sctp_duplicates", "Chunks of SCTP that had come before.", "device")

	rocePackets = counter("roce_packets", "Packets of RoCE.", "device", "direction")
	roceEvents  = counter("roce_events", "What happened on RoCE queue pairs, by the names that "+
		"Linux's rxe has in hw_counters.", "device", "event")
	roceCopied = counter("roce_copied_messages",
		"Messages to a queue pair of the same daemon, for which no packets were made.", "device")
	ecn   = counter("ecn_marked_packets", "Packets that came marked for congestion.", "device")
	cnps  = counter("cnps", "Congestion notifications sent, and heeded.", "device", "direction")
	drops = counter("dropped_packets", "Packets of peers that were dropped, by the reason.",
		"device", "reason")
)

// A series is where a counter of a device goes: a family, and its labels but for the device's.
type series struct {
	family *family
	labels []string
}

func of(f *family, labels ...string) series { return series{f, labels} }

// counters has each field of a row of `vrnic stat` of a device, by its name there.
var counters = map[string]series{
	"sends":             of(messages, "out", "send"),
	"writes":            of(messages, "out", "write"),
	"reads":             of(messages, "out", "read"),
	"atomics":           of(messages, "out", "atomic"),
	"receives":          of(messages, "in", "send"),
	"in_writes":         of(messages, "in", "write"),
	"in_reads":          of(messages, "in", "read"),
	"in_atomics":        of(messages, "in", "atomic"),
	"immediates":        of(immediates, "out"),
	"in_immediates":     of(immediates, "in"),
	"sent_octets":       of(payload, "out", "send_write"),
	"received_octets":   of(payload, "in", "send_write"),
	"read_octets":       of(payload, "in", "read"),
	"served_octets":     of(payload, "out", "read"),
	"stalls":            of(stalls),
	"empty_reads":       of(empties, "read"),
	"empty_writes":      of(empties, "write"),
	"tiny":              of(tiny),
	"solicited":         of(solicited),
	"direct_sends":      of(directly, "out"),
	"direct_receives":   of(directly, "in"),
	"direct_immediates": of(directly, "immediate"),
	"direct_writes":     of(directly, "write"),
	"direct_reads":      of(directly, "read"),
	"direct_atomics":    of(directly, "atomic"),
	"errors":            of(errorsSeen),
	"terminates_out":    of(terminates, "out"),
	"terminates_in":     of(terminates, "in"),

	"tcp_established":     of(tcpConnections),
	"tcp_active_opens":    of(tcpOpens, "here"),
	"tcp_passive_opens":   of(tcpOpens, "peer"),
	"tcp_failed_connects": of(tcpFailed),
	"tcp_segments_in":     of(tcpSegments, "in"),
	"tcp_segments_out":    of(tcpSegments, "out"),
	"tcp_retransmits":     of(tcpRetransmits),
	"tcp_timeouts":        of(tcpTimeouts),
	"tcp_fast_recoveries": of(tcpRecoveries),
	"tcp_resets_out":      of(tcpResets, "out"),
	"tcp_resets_in":       of(tcpResets, "in"),

	"sctp_associations":     of(sctpAssociations),
	"sctp_packets_in":       of(sctpPackets, "in"),
	"sctp_packets_out":      of(sctpPackets, "out"),
	"sctp_retransmits":      of(sctpRetransmits),
	"sctp_fast_retransmits": of(sctpFast),
	"sctp_timeouts":         of(sctpTimeouts),
	"sctp_duplicates":       of(sctpDuplicates),
	"sctp_out_of_the_blue":  of(drops, "sctp_out_of_the_blue"),
	"sctp_bad_checksums":    of(drops, "sctp_bad_checksum"),
	"sctp_bad_tags":         of(drops, "sctp_bad_tag"),
	"sctp_bad_cookies":      of(drops, "sctp_bad_cookie"),

	"sent_pkts":              of(rocePackets, "out"),
	"rcvd_pkts":              of(rocePackets, "in"),
	"duplicate_request":      of(roceEvents, "duplicate_request"),
	"out_of_seq_request":     of(roceEvents, "out_of_seq_request"),
	"rcvd_rnr_err":           of(roceEvents, "rcvd_rnr_err"),
	"send_rnr_err":           of(roceEvents, "send_rnr_err"),
	"rcvd_seq_err":           of(roceEvents, "rcvd_seq_err"),
	"retry_exceeded_err":     of(roceEvents, "retry_exceeded_err"),
	"retry_rnr_exceeded_err": of(roceEvents, "retry_rnr_exceeded_err"),
	"completer_retry_err":    of(roceEvents, "completer_retry_err"),
	"send_err":               of(roceEvents, "send_err"),
	"bad_pkey":               of(drops, "bad_pkey"),
	"bad_qkey":               of(drops, "bad_qkey"),
	"copied_msgs":            of(roceCopied),
	"drop_unknown_qp":        of(drops, "unknown_qp"),
	"drop_foreign_peer":      of(drops, "foreign_peer"),
	"drop_bad_icrc":          of(drops, "bad_icrc"),
	"drop_bad_checksum":      of(drops, "bad_checksum"),
	"drop_full":              of(drops, "full"),
	"ecn_marked":             of(ecn),
	"cnps_sent":              of(cnps, "out"),
	"cnps_handled":           of(cnps, "in"),
	"cm_refused":             of(refused, "cm"),

	// The same as sends and receives, by other names.
	"rdma_sends": {},
	"rdma_recvs": {},
}
