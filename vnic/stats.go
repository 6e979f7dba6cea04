package vnic

import (
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
)

// Counters count what one QP, or all QPs of a device, did: messages and octets of payload.
// Outbound ones count what was posted to the wire, inbound ones what was delivered or answered.
type Counters struct {
	Sends      uint64 `json:"sends"`
	Writes     uint64 `json:"writes"`
	Reads      uint64 `json:"reads"`
	Atomics    uint64 `json:"atomics"`
	Immediates uint64 `json:"immediates"` // of them, those behind a Write count as a Write too
	SentOctets uint64 `json:"sent_octets"`
	ReadOctets uint64 `json:"read_octets"`

	Receives       uint64 `json:"receives"`
	InWrites       uint64 `json:"in_writes"`
	InReads        uint64 `json:"in_reads"`
	InAtomics      uint64 `json:"in_atomics"`
	InImmediates   uint64 `json:"in_immediates"`   // among Receives
	ReceivedOctets uint64 `json:"received_octets"` // by Sends and Writes of the peer
	ServedOctets   uint64 `json:"served_octets"`   // by answers to Reads of the peer

	// What costs time and ends no connection: RFC 5042, section 6.4.4.
	Stalls      uint64 `json:"stalls"`       // Sends of the peer that had to wait for a receive
	EmptyReads  uint64 `json:"empty_reads"`  // of the peer, of no octets; Writes likewise
	EmptyWrites uint64 `json:"empty_writes"` //
	Tiny        uint64 `json:"tiny"`         // segments of the peer that were cut for no reason
	Solicited   uint64 `json:"solicited"`    // receives for which the peer asked for an event

	Errors        uint64 `json:"errors"`         // completions with an error, flushes not counted
	TerminatesOut uint64 `json:"terminates_out"` // connections ended by a Terminate from here
	TerminatesIn  uint64 `json:"terminates_in"`
}

func (c *Counters) add(d Counters) {
	c.Sends += d.Sends
	c.Writes += d.Writes
	c.Reads += d.Reads
	c.Atomics += d.Atomics
	c.Immediates += d.Immediates
	c.SentOctets += d.SentOctets
	c.ReadOctets += d.ReadOctets
	c.Receives += d.Receives
	c.InWrites += d.InWrites
	c.InReads += d.InReads
	c.InAtomics += d.InAtomics
	c.InImmediates += d.InImmediates
	c.ReceivedOctets += d.ReceivedOctets
	c.ServedOctets += d.ServedOctets
	c.Stalls += d.Stalls
	c.EmptyReads += d.EmptyReads
	c.EmptyWrites += d.EmptyWrites
	c.Tiny += d.Tiny
	c.Solicited += d.Solicited
	c.Errors += d.Errors
	c.TerminatesOut += d.TerminatesOut
	c.TerminatesIn += d.TerminatesIn
}

type qpStats struct {
	// Those of most messages are on one line of the cache.
	sends, writes, sentOctets, recvs, recvOctets, inWrites, solicited atomic.Uint64

	reads, readOctets, inReads, servedOctets     atomic.Uint64
	atomics, immediates, inAtomics, inImmediates atomic.Uint64
	stalls, emptyReads, emptyWrites, tiny        atomic.Uint64
	errors, terminates /* sent */, terminated/* received */ atomic.Uint64
}

func (s *qpStats) send(op rdma.Opcode, n uint32) {
	switch op {
	case rdma.OpSend, rdma.OpSendInv:
		s.sends.Add(1)
		s.sentOctets.Add(uint64(n))
	case rdma.OpWrite:
		s.writes.Add(1)
		s.sentOctets.Add(uint64(n))
	case rdma.OpWriteImm:
		s.writes.Add(1)
		s.immediates.Add(1)
		s.sentOctets.Add(uint64(n))
	case rdma.OpSendImm:
		s.immediates.Add(1)
	case rdma.OpRead:
		s.reads.Add(1)
		s.readOctets.Add(uint64(n))
	case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
		s.atomics.Add(1)
	default: // it moves nothing, or a QP does not take it
	}
}

func (s *qpStats) recv(n, octets uint64) {
	s.recvs.Add(n)
	s.recvOctets.Add(octets)
}

func (s *qpStats) inbound(op rdma.Opcode, n uint32) {
	switch {
	case op == rdma.OpWrite || op == rdma.OpWriteImm:
		s.inWrites.Add(1)
		s.recvOctets.Add(uint64(n))
	case op == rdma.OpRead:
		s.inReads.Add(1)
		s.servedOctets.Add(uint64(n))
	default:
		s.inAtomics.Add(1)
	}
}

func (s *qpStats) snapshot() Counters {
	return Counters{
		Stalls: s.stalls.Load(), EmptyReads: s.emptyReads.Load(), EmptyWrites: s.emptyWrites.Load(),
		Tiny: s.tiny.Load(), Solicited: s.solicited.Load(),
		Atomics: s.atomics.Load(), Immediates: s.immediates.Load(),
		InAtomics: s.inAtomics.Load(), InImmediates: s.inImmediates.Load(),
		Sends: s.sends.Load(), Writes: s.writes.Load(), Reads: s.reads.Load(),
		SentOctets: s.sentOctets.Load(), ReadOctets: s.readOctets.Load(),
		Receives: s.recvs.Load(), InWrites: s.inWrites.Load(), InReads: s.inReads.Load(),
		ReceivedOctets: s.recvOctets.Load(), ServedOctets: s.servedOctets.Load(),
		Errors: s.errors.Load(), TerminatesOut: s.terminates.Load(), TerminatesIn: s.terminated.Load(),
	}
}
