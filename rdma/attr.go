package rdma

// A QPType is the service of a queue pair. The numbers are enum ibv_qp_type's.
type QPType uint32

const (
	RC QPType = 2 // reliable connection; the only one of iWARP
	UC QPType = 3 // unreliable connection
	UD QPType = 4 // unreliable datagram
)

func (t QPType) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return "?"
}

// An MTU is a path MTU: octets of payload of each packet of a message but the last. The numbers are
// enum ibv_mtu's.
type MTU uint8

const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Octets is the MTU in octets, 0 of one that there is not.
func (m MTU) Octets() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// A QPAttr is the attributes of a queue pair: struct ibv_qp_attr.
type QPAttr struct {
	State    QPState
	CurState QPState // what the program takes the state for
	Draining bool    // of Query: what was begun before SQD is not over yet

	Access      Access // what the peer may ask for at all: RemoteWrite, RemoteRead, RemoteAtomic
	PKeyIndex   uint16
	Port        uint8
	QKey        uint32 // of UD
	Path        AHAttr // to the peer, of RC and UC
	PathMTU     MTU
	DestQPN     uint32
	RQPSN       uint32 // of the first packet that the peer sends; 24 bits
	SQPSN       uint32 // of the first packet that goes out
	MaxDestRead uint8  // Reads and atomics of the peer that are served at a time
	MaxRead     uint8  // and of this end that are under way
	MinRNRTimer uint8  // code of what a peer waits that finds no receive
	Timeout     uint8  // code of the local ACK timeout: 4.096 us * 2^Timeout; 0: none
	RetryCount  uint8  // up to 7
	RNRRetry    uint8  // up to 7, which is without end

	DrainedEvent bool // tell of the end of draining by EventSQDrained
}

// A QPAttrMask says which attributes a Modify changes. The bits are enum ibv_qp_attr_mask's.
type QPAttrMask uint32

const (
	AttrState        QPAttrMask = 1 << 0
	AttrCurState     QPAttrMask = 1 << 1
	AttrDrainedEvent QPAttrMask = 1 << 2
	AttrAccess       QPAttrMask = 1 << 3
	AttrPKeyIndex    QPAttrMask = 1 << 4
	AttrPort         QPAttrMask = 1 << 5
	AttrQKey         QPAttrMask = 1 << 6
	AttrPath         QPAttrMask = 1 << 7 // IBV_QP_AV
	AttrPathMTU      QPAttrMask = 1 << 8
	AttrTimeout      QPAttrMask = 1 << 9
	AttrRetryCount   QPAttrMask = 1 << 10
	AttrRNRRetry     QPAttrMask = 1 << 11
	AttrRQPSN        QPAttrMask = 1 << 12
	AttrMaxRead      QPAttrMask = 1 << 13
	AttrAltPath      QPAttrMask = 1 << 14 // always refused: there is no path migration
	AttrMinRNRTimer  QPAttrMask = 1 << 15
	AttrSQPSN        QPAttrMask = 1 << 16
	AttrMaxDestRead  QPAttrMask = 1 << 17
	AttrMigState     QPAttrMask = 1 << 18 // migrated is the only one
	AttrCap          QPAttrMask = 1 << 19 // always refused
	AttrDestQPN      QPAttrMask = 1 << 20
)
