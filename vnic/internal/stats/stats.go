// Package stats is what RNICs count.
package stats

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

// Add adds d to c.
func (c *Counters) Add(d Counters) {
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

// A QP has the counters of one QP. They are written by whoever moves its messages.
type QP struct {
	// Those of most messages are on one line of the cache.
	Sends, Writes, SentOctets, Recvs, RecvOctets, InWrites, Solicited atomic.Uint64

	Reads, ReadOctets, InReads, ServedOctets     atomic.Uint64
	Atomics, Immediates, InAtomics, InImmediates atomic.Uint64
	Stalls, EmptyReads, EmptyWrites, Tiny        atomic.Uint64
	Errors, Terminates /* sent */, Terminated/* received */ atomic.Uint64
}

// Send counts a message of n octets that was posted.
func (s *QP) Send(op rdma.Opcode, n uint32) {
	switch op {
	case rdma.OpSend, rdma.OpSendInv:
		s.Sends.Add(1)
		s.SentOctets.Add(uint64(n))
	case rdma.OpWrite:
		s.Writes.Add(1)
		s.SentOctets.Add(uint64(n))
	case rdma.OpWriteImm:
		s.Writes.Add(1)
		s.Immediates.Add(1)
		s.SentOctets.Add(uint64(n))
	case rdma.OpSendImm: // of iWARP it has no octets
		s.Immediates.Add(1)
		s.SentOctets.Add(uint64(n))
	case rdma.OpRead:
		s.Reads.Add(1)
		s.ReadOctets.Add(uint64(n))
	case rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd, rdma.OpMaskedCompareSwap:
		s.Atomics.Add(1)
	default: // it moves nothing, or a QP does not take it
	}
}

// Received counts n receives that were completed.
func (s *QP) Received(n, octets uint64) {
	s.Recvs.Add(n)
	s.RecvOctets.Add(octets)
}

// Inbound counts what the peer did to memory by itself.
func (s *QP) Inbound(op rdma.Opcode, n uint32) {
	switch {
	case op == rdma.OpWrite || op == rdma.OpWriteImm:
		s.InWrites.Add(1)
		s.RecvOctets.Add(uint64(n))
	case op == rdma.OpRead:
		s.InReads.Add(1)
		s.ServedOctets.Add(uint64(n))
	default:
		s.InAtomics.Add(1)
	}
}

// Snapshot returns what s has counted.
func (s *QP) Snapshot() Counters {
	return Counters{
		Stalls: s.Stalls.Load(), EmptyReads: s.EmptyReads.Load(), EmptyWrites: s.EmptyWrites.Load(),
		Tiny: s.Tiny.Load(), Solicited: s.Solicited.Load(),
		Atomics: s.Atomics.Load(), Immediates: s.Immediates.Load(),
		InAtomics: s.InAtomics.Load(), InImmediates: s.InImmediates.Load(),
		Sends: s.Sends.Load(), Writes: s.Writes.Load(), Reads: s.Reads.Load(),
		SentOctets: s.SentOctets.Load(), ReadOctets: s.ReadOctets.Load(),
		Receives: s.Recvs.Load(), InWrites: s.InWrites.Load(), InReads: s.InReads.Load(),
		ReceivedOctets: s.RecvOctets.Load(), ServedOctets: s.ServedOctets.Load(),
		Errors: s.Errors.Load(), TerminatesOut: s.Terminates.Load(), TerminatesIn: s.Terminated.Load(),
	}
}

// Moved changes whenever a message was moved.
func (s *QP) Moved() uint64 {
	return s.Sends.Load() + s.Writes.Load() + s.Reads.Load() + s.Atomics.Load() + s.Immediates.Load() +
		s.Recvs.Load() + s.InWrites.Load() + s.InReads.Load() + s.InAtomics.Load() + s.RecvOctets.Load()
}
