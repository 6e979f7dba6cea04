package iwarp

import "fmt"

// What two ends agree on beside their framing: how many Reads may be outstanding, and the message
// that says that the Initiator is ready (RFC 6581, section 9). An MPA start frame carries it
// (section 6), and so does the session control of DDP over SCTP (section 7).

// WithDefaults is c with what was left open filled in. ErrConfig.
func (c StartConfig) WithDefaults() (StartConfig, error) {
	err := c.check()
	return c, err
}

// Offer is what an Initiator with c, which has its defaults, asks for; ok is false if it wants
// nothing of the enhanced form: then it must not use it (EMPA-015).
func (c *StartConfig) Offer() (d EnhancedData, ok bool) {
	if c.Revision < 2 || c.ClientServer && c.IRD == 0 && c.ORD == 0 {
		return d, false
	}
	d = EnhancedData{PeerToPeer: !c.ClientServer, IRD: c.IRD, ORD: c.ORD}
	if d.PeerToPeer {
		d.RTR = c.RTR
	}
	return d, true
}

// Conclude applies the accepting answer d to the offer of an Initiator with c: RFC 6581, sections
// 9.1 and 9.2, and docs/decisions.md#M15. p has IRD and ORD of c.
func (c *StartConfig) Conclude(p *Params, d EnhancedData) error {
	p.Enhanced, p.PeerIRD, p.PeerORD = true, d.IRD, d.ORD
	if d.IRD != NotNegotiated {
		p.ORD = min(p.ORD, d.IRD)
	}
	if d.ORD != NotNegotiated {
		if d.ORD > c.MaxIRD {
			return localErrorf(TermInsufficientIRD, "the peer wants %d Reads outstanding, the limit is %d",
				d.ORD, c.MaxIRD)
		}
		p.IRD = raiseIRD(p.IRD, d.ORD, c.MaxIRD)
	}
	offer, _ := c.Offer()
	if d.PeerToPeer != offer.PeerToPeer {
		// Nothing has been agreed: docs/decisions.md#M13, #D14.
		return localErrorf(TermNoRTR, "got an answer with A=%t to a request with A=%t", d.PeerToPeer,
			offer.PeerToPeer)
	}
	if !d.PeerToPeer {
		return nil // B, C and D are ignored: EMPA-032
	}
	p.PeerToPeer, p.PeerRTR = true, d.RTR
	common := d.RTR & offer.RTR
	switch {
	case common&RTRWrite != 0:
		p.RTR = RTRWrite
	case common&RTRRead != 0 && d.IRD != 0:
		p.RTR = RTRRead
	case common&RTRSend != 0:
		p.RTR = RTRSend
	default:
		return localErrorf(TermNoRTR, "offered %v, the peer takes %v with IRD %d", offer.RTR,
			d.RTR, d.IRD)
	}
	return nil
}

// Answer is what a Responder with c says to the offer d, and applies it to p, which has the IRD and
// ORD that the connection wants: ORD falls to the peer's IRD, IRD rises to the peer's ORD.
func (c *StartConfig) Answer(p *Params, d EnhancedData) EnhancedData {
	p.Enhanced, p.PeerToPeer, p.PeerIRD, p.PeerORD = true, d.PeerToPeer, d.IRD, d.ORD
	if d.PeerToPeer {
		// EMPA-035, EMPA-038; docs/decisions.md#M4
		if p.RTR = d.RTR & c.RTR; p.RTR == 0 {
			p.RTR = c.RTR
		}
	}
	out := EnhancedData{PeerToPeer: p.PeerToPeer, RTR: p.RTR, IRD: NotNegotiated, ORD: NotNegotiated}
	if d.ORD != NotNegotiated {
		p.IRD = raiseIRD(p.IRD, d.ORD, c.MaxIRD)
		if p.RTR&RTRRead != 0 {
			p.IRD = max(p.IRD, 1) // EMPA-020
		}
		out.IRD = p.IRD
	}
	if d.IRD != NotNegotiated {
		p.ORD = min(p.ORD, d.IRD)
		out.ORD = p.ORD
	}
	return out
}

// checkReads checks what a Responder's connection wants.
func checkReads(ird, ord uint16) error {
	if ird > MaxReads || ord > MaxReads {
		return fmt.Errorf("%w: IRD %d, ORD %d, at most %d", ErrConfig, ird, ord, MaxReads)
	}
	return nil
}
