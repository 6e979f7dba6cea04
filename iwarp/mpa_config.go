package iwarp

import "fmt"

// A CRCMode says whether an end wants CRCs (RFC 5044, section 4.4). They are on if either end asks.
type CRCMode uint8

const (
	CRCWanted   CRCMode = iota // asked for, so used
	CRCOff                     // not asked for; used if the peer asks
	CRCRequired                // as CRCWanted, and the peer's Reply has to confirm it
)

// Numbers of outstanding Reads.
const (
	DefaultReads = 32
	MaxReads     = 128 // the limit of siw, and our own
)

// A StartConfig is what one end brings to the start-up of an MPA connection.
type StartConfig struct {
	// Revision is 1, or 2 for the enhanced set-up of RFC 6581; 0 is 2. A Responder with 2 takes
	// both.
	Revision uint8
	CRC      CRCMode
	// Markers asks for markers in what the peer sends (RFC 5044, section 4.3). They cost this end
	// time and give it nothing but one more check of the framing. What the peer asks for is its
	// own choice and always served.
	Markers bool
	// IRD and ORD are how many Reads of the peer and of our own may be outstanding: 0 is none.
	// At most MaxReads.
	IRD, ORD uint16
	// MaxIRD is how far IRD may be raised for a peer that wants more; 0 is MaxReads.
	MaxIRD uint16
	// ClientServer turns the peer-to-peer model off: no ready-to-receive message. An Initiator
	// with ClientServer and neither IRD nor ORD does not use the enhanced form (EMPA-015).
	ClientServer bool
	// RTR holds the ready-to-receive messages that are offered or accepted; 0 is all.
	RTR RTRKinds
	// ROI tells the peer that what follows is not to be iWARP but package roi's, by a bit that iWARP
	// leaves zero and does not look at. Params.ROI is the peer's.
	ROI bool
}

// DefaultStartConfig is revision 2 with enhanced set-up, CRCs, 32 Reads each way, peer-to-peer
// with every kind of ready-to-receive message.
func DefaultStartConfig() StartConfig {
	return StartConfig{Revision: 2, IRD: DefaultReads, ORD: DefaultReads, MaxIRD: MaxReads,
		RTR: rtrAll}
}

// check fills in defaults.
func (c *StartConfig) check() error {
	if c.Revision == 0 {
		c.Revision = 2
	}
	if c.MaxIRD == 0 {
		c.MaxIRD = MaxReads
	}
	if c.RTR == 0 {
		c.RTR = rtrAll
	}
	switch {
	case c.Revision > 2:
		return fmt.Errorf("%w: revision %d", ErrConfig, c.Revision)
	case c.CRC > CRCRequired:
		return fmt.Errorf("%w: CRC mode %d", ErrConfig, c.CRC)
	case c.IRD > MaxReads || c.ORD > MaxReads || c.MaxIRD > MaxReads:
		return fmt.Errorf("%w: IRD %d, ORD %d, at most %d", ErrConfig, c.IRD, c.ORD, MaxReads)
	case c.RTR&^rtrAll != 0:
		return fmt.Errorf("%w: RTR kinds %#x", ErrConfig, uint8(c.RTR))
	}
	c.MaxIRD = max(c.MaxIRD, c.IRD)
	return nil
}

// Params are what two ends agreed on.
type Params struct {
	Initiator  bool
	Revision   uint8
	CRC        bool // FPDUs carry CRCs, both ways
	MarkersIn  bool // what comes in has markers
	MarkersOut bool // what goes out has markers
	Enhanced   bool
	PeerToPeer bool
	ROI        bool // the peer's frame has told of it, see StartConfig
	// IRD and ORD are how many Reads of the peer and of our own may be outstanding.
	IRD, ORD uint16
	// PeerIRD and PeerORD are what the peer's frame said: NotNegotiated, if nothing.
	PeerIRD, PeerORD uint16
	// RTR is the ready-to-receive message the Initiator sends, or those that the Responder
	// allowed; 0 if there is none.
	RTR RTRKinds
	// PeerRTR are the kinds that the peer's Reply takes, as an Initiator sees it.
	PeerRTR RTRKinds
	// PrivateData is the peer's.
	PrivateData []byte
}

// Markers says what has markers: "in", "out", "both", or "".
func (p Params) Markers() string {
	switch {
	case p.MarkersIn && p.MarkersOut:
		return "both"
	case p.MarkersIn:
		return "in"
	case p.MarkersOut:
		return "out"
	}
	return ""
}

func (p Params) String() string {
	role := "responder"
	if p.Initiator {
		role = "initiator"
	}
	crc := "off"
	if p.CRC {
		crc = "on"
	}
	if m := p.Markers(); m != "" {
		crc += " markers=" + m
	}
	return fmt.Sprintf("%s rev=%d enhanced=%t crc=%s ird=%d ord=%d p2p=%t rtr=%v pd=%d",
		role, p.Revision, p.Enhanced, crc, p.IRD, p.ORD, p.PeerToPeer, p.RTR, len(p.PrivateData))
}

// raiseIRD is IRD after the peer has named its ORD: at least that, as a power of two (siw rounds
// its own up, docs/interop.md#S10), as far as limit.
func raiseIRD(own, peer, limit uint16) uint16 {
	if peer <= own {
		return own
	}
	n := uint16(1)
	for n < peer && n < limit {
		n <<= 1
	}
	return max(own, min(n, limit))
}
