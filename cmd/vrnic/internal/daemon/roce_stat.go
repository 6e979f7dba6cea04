package daemon

import (
	"encoding/json"
	"fmt"

	"github.com/vrnic/vrnic/vnic"
)

// A roceStat is what a device of RoCE counts beside its messages, by the names of Linux's rxe in
// hw_counters as far as it has them.
type roceStat struct {
	vnic.PacketCounters
	SendMessages uint64 `json:"rdma_sends"`
	RecvMessages uint64 `json:"rdma_recvs"`
	UnknownQP    uint64 `json:"drop_unknown_qp"` // for a QP that is not there, or takes none yet
	ForeignPeer  uint64 `json:"drop_foreign_peer"`
	BadICRC      uint64 `json:"drop_bad_icrc"`
	Full         uint64 `json:"drop_full"` // for a QP for which too many waited
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
		for i, kind := range messageKinds {
			b = fmt.Appendf(b, `,"%s_%s":%d`, way.name, kind, way.n[i])
		}
	}
	return append(b, '}'), nil
}

// messageKinds are names of messages in the order of their numbers.
var messageKinds = []string{"req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req",
	"sidr_rep"}
