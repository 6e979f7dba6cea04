package stats

import "sync/atomic"

// PacketCounters count the packets of one queue pair of RoCE, or of all of a device. The
// names are those of Linux's rxe, in hw_counters, as far as it has them.
type PacketCounters struct {
	Sent          uint64 `json:"sent_pkts"`
	Received      uint64 `json:"rcvd_pkts"`
	Duplicates    uint64 `json:"duplicate_request"`  // requests that were carried out before
	OutOfSequence uint64 `json:"out_of_seq_request"` // requests behind one that is missing
	RNRReceived   uint64 `json:"rcvd_rnr_err"`       // the peer had no receive
	RNRSent       uint64 `json:"send_rnr_err"`       // a request found no receive
	SequenceNAKs  uint64 `json:"rcvd_seq_err"`       // the peer missed a request
	RetryExceeded uint64 `json:"retry_exceeded_err"` // requests that nobody answered
	RNRExceeded   uint64 `json:"retry_rnr_exceeded_err"`
	Again         uint64 `json:"completer_retry_err"` // times that requests went out again
	SendErrors    uint64 `json:"send_err"`            // times that the network refused packets
	WrongPKey     uint64 `json:"bad_pkey"`            // packets of another partition, dropped
	WrongQKey     uint64 `json:"bad_qkey"`            // datagrams with another Q_Key, dropped
	Copied        uint64 `json:"copied_msgs"`         // messages to a QP of this process, no packets
}

// Add adds d to c.
func (c *PacketCounters) Add(d PacketCounters) {
	c.Sent += d.Sent
	c.Received += d.Received
	c.Duplicates += d.Duplicates
	c.OutOfSequence += d.OutOfSequence
	c.RNRReceived += d.RNRReceived
	c.RNRSent += d.RNRSent
	c.SequenceNAKs += d.SequenceNAKs
	c.RetryExceeded += d.RetryExceeded
	c.RNRExceeded += d.RNRExceeded
	c.Again += d.Again
	c.SendErrors += d.SendErrors
	c.WrongPKey += d.WrongPKey
	c.WrongQKey += d.WrongQKey
	c.Copied += d.Copied
}

// Packets has the PacketCounters of one queue pair. They are written by who runs it.
type Packets struct {
	Sent, Received                                  atomic.Uint64
	Duplicates, OutOfSequence, RNRReceived, RNRSent atomic.Uint64
	SequenceNAKs, RetryExceeded, RNRExceeded, Again atomic.Uint64
	SendErrors, WrongPKey, WrongQKey, Copied        atomic.Uint64
}

// Snapshot returns what p has counted.
func (p *Packets) Snapshot() PacketCounters {
	return PacketCounters{
		Sent: p.Sent.Load(), Received: p.Received.Load(), Duplicates: p.Duplicates.Load(),
		OutOfSequence: p.OutOfSequence.Load(), RNRReceived: p.RNRReceived.Load(),
		RNRSent: p.RNRSent.Load(), SequenceNAKs: p.SequenceNAKs.Load(),
		RetryExceeded: p.RetryExceeded.Load(), RNRExceeded: p.RNRExceeded.Load(),
		Again: p.Again.Load(), SendErrors: p.SendErrors.Load(),
		WrongPKey: p.WrongPKey.Load(), WrongQKey: p.WrongQKey.Load(), Copied: p.Copied.Load(),
	}
}
