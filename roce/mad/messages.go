package mad

// A GID is a global identifier: an IPv6 address, or an IPv4 address as IPv6 has it.
type GID = [16]byte

// A Path is where a connection's packets go, of which RoCE looks at a part only.
type Path struct {
	LocalLID, RemoteLID uint16 // 0xffff
	LocalGID, RemoteGID GID    // local to who sends the message
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	ACKTimeout          uint8 // code of the local ACK timeout, 5 bits
}

const pathLen = 44

func (p *Path) fields(c *codec, at int) {
	c.u16(at, &p.LocalLID)
	c.u16(at+2, &p.RemoteLID)
	c.array(at+4, &p.LocalGID)
	c.array(at+20, &p.RemoteGID)
	// 20 bits of flow label, six that are reserved, six of rate.
	w := uint64(p.FlowLabel)<<12 | uint64(p.PacketRate)&0x3f
	c.number(at+36, 4, &w)
	p.FlowLabel, p.PacketRate = uint32(w>>12), uint8(w)&0x3f
	c.u8(at+40, &p.TrafficClass)
	c.u8(at+41, &p.HopLimit)
	c.bits(at+42, 4, 4, &p.SL)
	c.bit(at+42, 3, &p.SubnetLocal)
	c.bits(at+43, 3, 5, &p.ACKTimeout)
}

// Transport types of a REQ.
const (
	TransportRC uint8 = iota
	TransportUC
	TransportRD
	TransportExtended
)

// A REQ asks for a connection.
type REQ struct {
	LocalID            uint32
	ServiceID          uint64
	GUID               uint64 // of the sender's adapter
	QKey               uint32
	QPN                uint32 // 24 bits, as all numbers of QPs and PSNs
	ResponderResources uint8  // Reads and atomics of the peer that the sender can answer at once
	InitiatorDepth     uint8  // Reads and atomics that the sender would have under way
	RemoteCMTimeout    uint8  // codes: 4.096 us * 2^n, 5 bits
	Transport          uint8  // 2 bits
	FlowControl        bool
	StartingPSN        uint32 // with which who gets this message begins to send
	LocalCMTimeout     uint8
	Retries            uint8 // 3 bits
	PKey               uint16
	PathMTU            uint8 // code: 1 is 256 octets, 5 is 4096; 4 bits
	RNRRetries         uint8 // 3 bits
	MaxCMRetries       uint8 // 4 bits
	SRQ                bool
	ExtendedTransport  uint8 // 3 bits
	Primary, Alternate Path
	PrivateData        []byte
}

// Attribute implements Message.
func (*REQ) Attribute() Attribute { return AttrREQ }

func (m *REQ) fields(c *codec) {
	c.u32(0, &m.LocalID)
	c.u64(8, &m.ServiceID)
	c.u64(16, &m.GUID)
	c.u32(28, &m.QKey)
	c.u24(32, &m.QPN)
	c.u8(35, &m.ResponderResources)
	c.u8(39, &m.InitiatorDepth)
	c.bits(43, 3, 5, &m.RemoteCMTimeout)
	c.bits(43, 1, 2, &m.Transport)
	c.bit(43, 0, &m.FlowControl)
	c.u24(44, &m.StartingPSN)
	c.bits(47, 3, 5, &m.LocalCMTimeout)
	c.bits(47, 0, 3, &m.Retries)
	c.u16(48, &m.PKey)
	c.bits(50, 4, 4, &m.PathMTU)
	c.bits(50, 0, 3, &m.RNRRetries)
	c.bits(51, 4, 4, &m.MaxCMRetries)
	c.bit(51, 3, &m.SRQ)
	c.bits(51, 0, 3, &m.ExtendedTransport)
	m.Primary.fields(c, 52)
	m.Alternate.fields(c, 52+pathLen)
	c.rest(140, bodyLen, &m.PrivateData)
}

// A REP accepts.
type REP struct {
	LocalID, RemoteID  uint32
	QKey               uint32
	QPN                uint32
	StartingPSN        uint32 // as a REQ's
	ResponderResources uint8
	InitiatorDepth     uint8
	TargetACKDelay     uint8 // code, 5 bits
	Failover           uint8 // 2 bits
	FlowControl        bool
	RNRRetries         uint8 // 3 bits
	SRQ                bool
	GUID               uint64
	PrivateData        []byte
}

// Attribute implements Message.
func (*REP) Attribute() Attribute { return AttrREP }

func (m *REP) fields(c *codec) {
	c.u32(0, &m.LocalID)
	c.u32(4, &m.RemoteID)
	c.u32(8, &m.QKey)
	c.u24(12, &m.QPN)
	c.u24(20, &m.StartingPSN)
	c.u8(24, &m.ResponderResources)
	c.u8(25, &m.InitiatorDepth)
	c.bits(26, 3, 5, &m.TargetACKDelay)
	c.bits(26, 1, 2, &m.Failover)
	c.bit(26, 0, &m.FlowControl)
	c.bits(27, 5, 3, &m.RNRRetries)
	c.bit(27, 4, &m.SRQ)
	c.u64(28, &m.GUID)
	c.rest(36, bodyLen, &m.PrivateData)
}

// Which message an MRA or a REJ is about.
const (
	AboutREQ   uint8 = iota
	AboutREP         // of an MRA and a REJ
	AboutOther       // of a REJ: none of them; of an MRA: a LAP
)

// An MRA asks for patience.
type MRA struct {
	LocalID, RemoteID uint32
	About             uint8 // 2 bits
	ServiceTimeout    uint8 // code, 5 bits
	PrivateData       []byte
}

// Attribute implements Message.
func (*MRA) Attribute() Attribute { return AttrMRA }

func (m *MRA) fields(c *codec) {
	c.u32(0, &m.LocalID)
	c.u32(4, &m.RemoteID)
	c.bits(8, 6, 2, &m.About)
	c.bits(9, 3, 5, &m.ServiceTimeout)
	c.rest(10, bodyLen, &m.PrivateData)
}

// A Reason says why a REJ rejects.
type Reason uint16

// The reasons that are made here, or looked at.
const (
	NoResources       Reason = 3
	Timeout           Reason = 4
	UnsupportedReq    Reason = 5
	InvalidCommID     Reason = 6
	InvalidServiceID  Reason = 8
	InvalidTransport  Reason = 9
	StaleConnection   Reason = 10
	InvalidGID        Reason = 12
	InvalidAltGID     Reason = 18
	InvalidMTU        Reason = 26
	ConsumerRejection Reason = 28
)

// A REJ rejects, or ends what has not quite begun.
type REJ struct {
	LocalID, RemoteID uint32
	About             uint8 // 2 bits
	InfoLen           uint8 // octets of Info that mean something, 7 bits
	Reason            Reason
	Info              []byte // up to 72 octets
	PrivateData       []byte
}

// Attribute implements Message.
func (*REJ) Attribute() Attribute { return AttrREJ }

func (m *REJ) fields(c *codec) {
	c.u32(0, &m.LocalID)
	c.u32(4, &m.RemoteID)
	c.bits(8, 6, 2, &m.About)
	c.bits(9, 1, 7, &m.InfoLen)
	c.u16(10, (*uint16)(&m.Reason))
	c.rest(12, 84, &m.Info)
	c.rest(84, bodyLen, &m.PrivateData)
}

// An RTU says that its sender is ready to use the connection.
type RTU struct {
	LocalID, RemoteID uint32
	PrivateData       []byte
}

// Attribute implements Message.
func (*RTU) Attribute() Attribute { return AttrRTU }

func (m *RTU) fields(c *codec) {
	c.u32(0, &m.LocalID)
	c.u32(4, &m.RemoteID)
	c.rest(8, bodyLen, &m.PrivateData)
}

// A DREQ ends a connection.
type DREQ struct {
	LocalID, RemoteID uint32
	RemoteQPN         uint32
	PrivateData       []byte
}

// Attribute implements Message.
func (*DREQ) Attribute() Attribute { return AttrDREQ }

func (m *DREQ) fields(c *codec) {
	c.u32(0, &m.LocalID)
	c.u32(4, &m.RemoteID)
	c.u24(8, &m.RemoteQPN)
	c.rest(12, bodyLen, &m.PrivateData)
}

// A DREP answers a DREQ.
type DREP struct {
	LocalID, RemoteID uint32
	PrivateData       []byte
}

// Attribute implements Message.
func (*DREP) Attribute() Attribute { return AttrDREP }

func (m *DREP) fields(c *codec) {
	c.u32(0, &m.LocalID)
	c.u32(4, &m.RemoteID)
	c.rest(8, bodyLen, &m.PrivateData)
}

// A SIDRREQ asks for the QP of a service that is reached by datagrams.
type SIDRREQ struct {
	RequestID   uint32
	PKey        uint16
	ServiceID   uint64
	PrivateData []byte
}

// Attribute implements Message.
func (*SIDRREQ) Attribute() Attribute { return AttrSIDRREQ }

func (m *SIDRREQ) fields(c *codec) {
	c.u32(0, &m.RequestID)
	c.u16(4, &m.PKey)
	c.u64(8, &m.ServiceID)
	c.rest(16, bodyLen, &m.PrivateData)
}

// Statuses of a SIDRREP.
const (
	SIDRValid uint8 = iota
	SIDRUnsupported
	SIDRRejected
	SIDRNoQP
	SIDRRedirected
	SIDRVersion
)

// A SIDRREP says which QP it is.
type SIDRREP struct {
	RequestID   uint32
	Status      uint8
	InfoLen     uint8
	QPN         uint32
	ServiceID   uint64
	QKey        uint32
	Info        []byte // up to 72 octets
	PrivateData []byte
}

// Attribute implements Message.
func (*SIDRREP) Attribute() Attribute { return AttrSIDRREP }

func (m *SIDRREP) fields(c *codec) {
	c.u32(0, &m.RequestID)
	c.u8(4, &m.Status)
	c.u8(5, &m.InfoLen)
	c.u24(8, &m.QPN)
	c.u64(12, &m.ServiceID)
	c.u32(20, &m.QKey)
	c.rest(24, 96, &m.Info)
	c.rest(96, bodyLen, &m.PrivateData)
}
