package rpc

import (
	"fmt"
	"strconv"
	"strings"
)

// This file has what messages.table has no form for: the constants of the control socket, and what
// calls can be asked. The socket is SOCK_SEQPACKET; requests are answered one at a time and in
// their order, and nothing is unsolicited.

// MaxMessage is the most that one message holds, header included.
const MaxMessage = 4096

// HeaderLen is the length of the encoded Header.
const HeaderLen = 16

// An Op names an operation. Numbers are never used again.
type Op uint16

// callInfo is a row of calls.
type callInfo struct {
	name         string
	quick        bool
	takes, gives int
	messages     func() (req, rep Message)
}

// info is the row of o; the zero row if there is no such call.
func (o Op) info() callInfo {
	if int(o) < len(calls) {
		return calls[o]
	}
	return callInfo{}
}

func (o Op) String() string {
	if n := o.info().name; n != "" {
		return n
	}
	return fmt.Sprintf("Op(%d)", uint16(o))
}

// Known reports whether there is such a call.
func (o Op) Known() bool { return o.info().name != "" }

// Quick reports whether the call waits for nobody and comes in numbers: the replies to those before
// may wait for its own. Others can take long, as whatever lets go of memory that a QP is using.
func (o Op) Quick() bool { return o.info().quick }

// Takes is how many descriptors come with the request, and Gives how many go with a success.
func (o Op) Takes() int { return o.info().takes }
func (o Op) Gives() int { return o.info().gives }

// Messages makes an empty request and an empty reply of the call; nil if there is no such call.
func (o Op) Messages() (req, rep Message) {
	if f := o.info().messages; f != nil {
		return f()
	}
	return nil, nil
}

// Ops are all calls, in the order of their numbers.
func Ops() (all []Op) {
	for o := range calls {
		if calls[o].name != "" {
			all = append(all, Op(o))
		}
	}
	return all
}

// Features in HELLO.
const (
	FeatureReasons = 1  // asks for a Refusal with refusals
	FeatureAgain   = 2  // what is answered by EINPROGRESS is sent again; else it is waited for
	FeatureDirect  = 8  // offers the direct path; in the reply: it can be had (docs/direct.md)
	FeatureGone    = 16 // QUERY_DEVICE tells a device that has gone, ENXIO, from none, ENODEV
	FeatureSockets = 32 // takes sockets for events; else they are pipes
	// 4 was a direct path with pairs of another layout.
)

// Namespaces of IDENTIFY.
const (
	NamespaceUser    = 1
	NamespaceProcess = 2
)

// DeviceNameLen is the space for a device's name, zero padded. MaxDevices is how many names HELLO
// returns; further ones are found by QUERY_DEVICE.
const (
	DeviceNameLen = 32
	MaxDevices    = 64
)

// A DeviceName is a zero-padded name.
type DeviceName [DeviceNameLen]byte

func (n DeviceName) String() string { return CString(n[:]) }

// MakeDeviceName pads s, cutting what is too long.
func MakeDeviceName(s string) (n DeviceName) {
	copy(n[:DeviceNameLen-1], s)
	return n
}

// MaxAddrs is how many addresses of a device QUERY_DEVICE returns.
const MaxAddrs = 16

// Kinds of object in an AsyncEvent.
const (
	ObjNone = 0
	ObjCQ   = 1
	ObjQP   = 2
	ObjSRQ  = 3
)

// Modes of REG_MR.
const (
	ModeApp    = 0 // the program's own memory, through the fd of SET_MEM
	ModeShared = 1 // a part of a memfd of ADD_MEM
)

// Flags of REREG_MR: enum ibv_rereg_mr_flags.
const (
	ReregTranslation = 1 // Addr, Length, IOVA, Offset, Mode and Mem
	ReregPD          = 2
	ReregAccess      = 4
)

// Mask of MODIFY_SRQ: enum ibv_srq_attr_mask, of which the change of MaxWR is EOPNOTSUPP.
const (
	ModifySRQMaxWR = 1
	ModifySRQLimit = 2
)

// Flags of CREATE_QP.
const (
	CreateQPSigAll     = 1 // every send request completes visibly
	CreateQPEndInError = 2 // after a graceful end the QP is in StateErr, not in StateInit
)

// Mask of MODIFY_QP: enum ibv_qp_attr_mask, of which daemons of minor version 0 know one.
const (
	ModifyQPState = 1
	ModifyQPKnown = 1<<21 - 1 // all of them
)

// Types of QP, enum ibv_qp_type.
const (
	TypeRC = 2
	TypeUC = 3
	TypeUD = 4
)

// AHGlobal in AHAttr.Flags is is_global: without it there is no address.
const AHGlobal = 1

// Kinds of device, enum ibv_node_type.
const (
	NodeCA   = 1
	NodeRNIC = 4
)

// What QueryDeviceReply.Card says.
const (
	CardFigures   = 1 // the device is described as a card of others
	CardUnpaged   = 2 // it has no memory that is paged on demand
	CardClockless = 4 // and no clock for completions
)

// Verbs of CONTROL, and its flags. Key is device, port, limit, impair or fault.
const (
	ControlAdd    = 1
	ControlDel    = 2
	ControlSet    = 3
	ControlReload = 4 // its file, with Key and Value empty
	// ControlCapture changes nothing: Key is how many octets of a packet are wanted, Value the names
	// of devices and ports, one a line; the descriptor is a stream socket, to which they come. Behind
	// the number the word " requests" says that what happens to requests of these devices is to come,
	// too: CaptureKey makes it.
	ControlCapture = 5
	// ControlLatency changes nothing: Value names devices, or queue pairs as DEVICE,qp=N, one a line,
	// or is empty for all devices. To the stream socket that is the descriptor comes, when its other
	// end has been shut for writing, what requests of theirs have taken meanwhile, in JSON.
	ControlLatency = 6
	// ControlTrace changes nothing: Value is a queue pair as DEVICE,qp=N. What happens to its
	// requests, and the packets of its device, come to the stream socket that is the descriptor.
	ControlTrace = 7
	// ControlRecord changes nothing: Value names devices, one a line, or is empty for all. A recording
	// of what they do comes to the stream socket that is the descriptor.
	ControlRecord = 8

	ControlForce    = 1 // also what ends connections
	ControlOffloads = 2 // the TAP takes super-frames and partial checksums
	ControlUDP      = 4 // super-frames of UDP, too
	ControlKnown    = 7
)

// Limits of LIST.
const (
	ListDev    = 1
	ListQP     = 2
	ListMR     = 3
	ListCQ     = 4
	ListCM     = 5
	ListClient = 6
	ListPort   = 7
	ListDaemon = 8
	ListUser   = 9
	ListGID    = 10
	ListPD     = 11
	ListSRQ    = 12
	ListMW     = 13
	ListPeer   = 14
	ListNetif  = 15
	ListConfig = 16
	ListImpair = 17
	ListFault  = 18
	ListCtx    = 19

	// ListData is how much of rows one reply holds.
	ListData = MaxMessage - HeaderLen - 16
)

// CaptureKey is the Key of ControlCapture.
func CaptureKey(snap int, requests bool) string {
	key := strconv.Itoa(snap)
	if requests {
		key += requestsToo
	}
	return key
}

// ParseCaptureKey is what CaptureKey was given.
func ParseCaptureKey(key string) (snap int, requests bool, err error) {
	number, requests := strings.CutSuffix(key, requestsToo)
	snap, err = strconv.Atoi(number)
	return snap, requests, err
}

var requestsToo = " requests" // no constant, which would be one of the headers in C, too
