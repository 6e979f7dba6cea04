package sctp

import (
	"encoding/binary"
	"time"
)

// A prober looks for the PMTU of a path that takes less than our link does: by HEARTBEATs that a
// PAD chunk (RFC 4820) makes as long as the packet in question. A path of which nothing bad is
// known is taken to carry what the link does. RFC 8899, section 6.2, and RFC 9260, section 7.3.
type prober struct {
	at    time.Time // the next probe, or when the last one counts as lost; zero: nothing to look for
	size  int       // of the probe under way; 0: none
	high  int       // a size that is too large, as far as is known
	tries int       // probes of size that were lost
	holes int       // T3 expiries in a row that lost large packets
	due   bool
	nonce uint64
}

const (
	chunkPad     ChunkType = 0x84
	raiseTime              = 10 * time.Minute // PMTU_RAISE_TIMER
	maxProbes              = 3
	blackHole              = 3    // timeouts after which a path is taken to swallow large packets
	basePMTU               = 1200 // BASE_PLPMTU
	probeStep              = 32   // two sizes so near are the same
	heartbeatLen           = headerLen + chunkLen + paramLen + heartbeatInfo
)

// narrow lowers the PMTU of p to n, and has it looked for a larger one after wait.
func (a *Association) narrow(now time.Time, p *path, n int, wait time.Duration) {
	p.pmtu = n
	p.prober = prober{at: now.Add(wait), high: a.e.mtu(p.addr, p.encap) + 1}
	a.checkMaxPayload()
}

// swallowed counts a timeout of p that lost octets of data. If timeouts go on, that may be because
// the packets are too large for a link that does not say so.
func (a *Association) swallowed(now time.Time, p *path, octets int) {
	base := max(basePMTU, minPMTU(p.addr))
	if p.pmtu <= base {
		base = minPMTU(p.addr)
	}
	if headerLen+octets <= base || p.pmtu <= base {
		return
	}
	if p.prober.holes++; p.prober.holes >= blackHole {
		a.narrow(now, p, base, p.rto)
	}
}

// probeTimeout sends the next probe: the largest size first, then halves of what is left.
func (a *Association) probeTimeout(now time.Time, p *path) {
	s := &p.prober
	if !a.state.sends() || !p.confirmed {
		return
	}
	if s.size != 0 {
		if s.tries++; s.tries >= maxProbes {
			s.high, s.size = s.size, 0
		}
	}
	if s.size == 0 {
		s.tries = 0
		s.size = s.high - 1
		if most := a.e.mtu(p.addr, p.encap); s.high <= most {
			s.size = (p.pmtu + s.high) / 2
		}
		if s.size &^= 3; s.high-p.pmtu <= probeStep || s.size <= p.pmtu {
			// Found; the network may change.
			s.size, s.high, s.at = 0, a.e.mtu(p.addr, p.encap)+1, now.Add(raiseTime)
			return
		}
	}
	a.e.random(a.e.scratch[:8])
	s.nonce, s.due, s.at = binary.BigEndian.Uint64(a.e.scratch[:]), true, now.Add(p.rto)
}

// probed takes the answer to a probe.
func (a *Association) probed(now time.Time, p *path) {
	s := &p.prober
	p.pmtu = max(p.pmtu, s.size)
	s.size, s.at = 0, now
	if s.high-p.pmtu <= 4 {
		s.at = time.Time{} // all that the link has
	}
	a.checkMaxPayload()
}

// appendProbe appends a HEARTBEAT with a nonce, and the padding that makes a packet of the prober's
// size.
func (p *path) appendProbe(b []byte) []byte {
	b = p.appendHeartbeat(b, p.prober.nonce)
	at := len(b)
	b = beginChunk(b, chunkPad, 0)
	for len(b) < p.prober.size {
		b = append(b, zeros[:min(4, p.prober.size-len(b))]...)
	}
	return endChunk(b, at)
}
