package daemon

import (
	"errors"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// Numbers change type here: those of the rings are what a client wrote or will read, those of rdma
// are the RNIC's. Tables have keys; what is not in one is no valid number.

// opInvalid is what an operation code of no meaning becomes: the RNIC refuses it, in order, with a
// completion, since a program's mistake is no violation.
const opInvalid rdma.Opcode = 0xff

// sendOps is keyed by the op of a send WQE, which is enum ibv_wr_opcode.
var sendOps = [256]rdma.Opcode{
	0: rdma.OpWrite,
	1: rdma.OpWriteImm,
	2: rdma.OpSend,
	3: rdma.OpSendImm,
	4: rdma.OpRead,
	5: rdma.OpCompareSwap,
	6: rdma.OpFetchAdd,
	7: rdma.OpLocalInv,
	8: rdma.OpBindMW,
	9: rdma.OpSendInv,
	// Numbers of the kernel's, which verbs programs do not have.
	12: rdma.OpMaskedCompareSwap,
	13: rdma.OpMaskedFetchAdd,
	32: rdma.OpRegMR,
}

func init() {
	for i := range sendOps {
		if i != 0 && sendOps[i] == 0 {
			sendOps[i] = opInvalid
		}
	}
}

// sendFlags is keyed by the low four bits of a WQE's flags.
var sendFlags = func() (t [16]rdma.SendFlags) {
	for _, f := range []struct {
		ring uint8
		flag rdma.SendFlags
	}{
		{abi.SQSignaled, rdma.Signaled}, {abi.SQSolicited, rdma.Solicited},
		{abi.SQFence, rdma.Fence}, {abi.SQInline, rdma.Inline},
	} {
		for i := range t {
			if uint8(i)&f.ring != 0 {
				t[i] |= f.flag
			}
		}
	}
	return t
}()

// wcStatuses is keyed by rdma.WCStatus and holds enum ibv_wc_status; a hole is WCGeneral.
var wcStatuses = [...]uint32{
	rdma.WCSuccess:   0,
	rdma.WCLocLen:    1,
	rdma.WCLocQPOp:   2,
	3:                21, // what RoCE has not
	rdma.WCLocProt:   4,
	rdma.WCFlush:     5,
	rdma.WCMWBind:    6,
	rdma.WCBadResp:   7,
	rdma.WCLocAccess: 8,
	rdma.WCRemInvReq: 9,
	rdma.WCRemAccess: 10,
	rdma.WCRemOp:     11,
	rdma.WCRetryExc:  12,
	rdma.WCRNRRetry:  13,
	14:               21, 15: 21, 16: 21, 17: 21, 18: 21,
	rdma.WCFatal:   19,
	20:             21,
	rdma.WCGeneral: 21,
}

func wcStatus(s rdma.WCStatus) uint32 {
	if int(s) < len(wcStatuses) {
		return wcStatuses[s]
	}
	return wcStatuses[rdma.WCGeneral]
}

// wcOpcode is enum ibv_wc_opcode.
func wcOpcode(o rdma.WCOpcode) uint32 {
	switch o {
	case rdma.WCSend:
		return 0
	case rdma.WCWrite:
		return 1
	case rdma.WCRead:
		return 2
	case rdma.WCCompareSwap:
		return 3
	case rdma.WCFetchAdd:
		return 4
	case rdma.WCBindMW:
		return 5
	case rdma.WCLocalInv:
		return 6
	case rdma.WCRegMR:
		return 32
	case rdma.WCRecv:
		return 128
	case rdma.WCRecvImm:
		return 129
	}
	return 0
}

// wcFlags is enum ibv_wc_flags.
func wcFlags(f rdma.WCFlags) (n uint32) {
	if f&rdma.WCGRH != 0 {
		n |= 1 << 0
	}
	if f&rdma.WCWithImm != 0 {
		n |= 1 << 1
	}
	if f&rdma.WCWithInv != 0 {
		n |= 1 << 3
	}
	return n
}

// qpStates is keyed by rdma.QPState and holds what the ring's state word says.
var qpStates = [...]uint32{
	rdma.QPIdle:      abi.StateInit,
	rdma.QPRTS:       abi.StateRTS,
	rdma.QPClosing:   abi.StateSQD,
	rdma.QPTerminate: abi.StateSQE,
	rdma.QPError:     abi.StateErr,
	rdma.QPReset:     abi.StateReset,
	rdma.QPInit:      abi.StateInit,
	rdma.QPRTR:       abi.StateRTR,
	rdma.QPSQD:       abi.StateSQD,
	rdma.QPSQE:       abi.StateSQE,
}

func qpState(s rdma.QPState) uint32 {
	if int(s) < len(qpStates) {
		return qpStates[s]
	}
	return abi.StateErr
}

// modifyStates are the states that a client may ask for on iWARP, by MODIFY_QP. RTR and RTS are
// reached by connecting only: a program that sets them as on InfiniBand must be told at once
// (docs/decisions.md#V9).
var modifyStates = map[uint32]rdma.QPState{
	abi.StateReset: rdma.QPIdle,
	abi.StateInit:  rdma.QPIdle,
	abi.StateSQD:   rdma.QPClosing,
	abi.StateSQE:   rdma.QPTerminate,
	abi.StateErr:   rdma.QPError,
}

// accessIgnored are the optional bits of enum ibv_access_flags (IBV_ACCESS_OPTIONAL_RANGE): hints
// that a device may pass over.
const accessIgnored = 0x3ff00000

// accessFlags is keyed by enum ibv_access_flags.
var accessFlags = [...]struct {
	ring   uint32
	access rdma.Access
}{
	{1 << 0, rdma.LocalWrite},
	{1 << 1, rdma.RemoteWrite},
	{1 << 2, rdma.RemoteRead},
	{1 << 3, rdma.RemoteAtomic},
	{1 << 4, rdma.MWBind},
}

// access translates the rights of REG_MR; false for a bit that is not known.
func access(ring uint32) (a rdma.Access, ok bool) {
	ring &^= accessIgnored
	for _, f := range accessFlags {
		if ring&f.ring != 0 {
			a |= f.access
			ring &^= f.ring
		}
	}
	return a, ring == 0
}

// ringAccess is access backwards.
func ringAccess(a rdma.Access) (ring uint32) {
	for _, f := range accessFlags {
		if a&f.access != 0 {
			ring |= f.ring
		}
	}
	return ring
}

// cmEvents is keyed by vnic's events and holds enum rdma_cm_event_type.
var cmEvents = map[vnic.CMEventType]uint32{
	vnic.CMAddrResolved:    rpc.EvAddrResolved,
	vnic.CMAddrError:       rpc.EvAddrError,
	vnic.CMRouteResolved:   rpc.EvRouteResolved,
	vnic.CMRouteError:      rpc.EvRouteError,
	vnic.CMConnectRequest:  rpc.EvConnectRequest,
	vnic.CMConnectResponse: rpc.EvConnectResponse,
	vnic.CMConnectError:    rpc.EvConnectError,
	vnic.CMUnreachable:     rpc.EvUnreachable,
	vnic.CMRejected:        rpc.EvRejected,
	vnic.CMEstablished:     rpc.EvEstablished,
	vnic.CMDisconnected:    rpc.EvDisconnected,
	vnic.CMDeviceRemoval:   rpc.EvDeviceRemoval,
	vnic.CMMulticastJoin:   rpc.EvMulticastJoin,
	vnic.CMMulticastError:  rpc.EvMulticastError,
	vnic.CMTimewaitExit:    rpc.EvTimewaitExit,
}

// asyncEvents is keyed by rdma's events and says what enum ibv_event_type and which kind of object.
var asyncEvents = map[rdma.AsyncEventType]struct{ ring, kind uint32 }{
	rdma.EventCQErr:       {0, rpc.ObjCQ},
	rdma.EventQPFatal:     {1, rpc.ObjQP},
	rdma.EventQPReqErr:    {2, rpc.ObjQP},
	rdma.EventQPAccessErr: {3, rpc.ObjQP},
	rdma.EventCommEst:     {4, rpc.ObjQP},
	rdma.EventSQDrained:   {5, rpc.ObjQP},
	rdma.EventDeviceFatal: {8, rpc.ObjNone},
	rdma.EventPortActive:  {9, rpc.ObjNone},
	rdma.EventPortErr:     {10, rpc.ObjNone},
	rdma.EventSRQErr:      {14, rpc.ObjSRQ},

	rdma.EventSRQLimitReached: {15, rpc.ObjSRQ},
	rdma.EventLastWQEReached:  {16, rpc.ObjQP},
	rdma.EventGIDChange:       {18, rpc.ObjNone},
}

// cause is t as the word at QPError.
func cause(t *rdma.TerminateError) uint32 {
	if t == nil {
		return 0
	}
	c := abi.ErrorValid | t.VendorErr()&abi.ErrorCauseMax
	if t.Remote {
		c |= abi.ErrorRemote
	}
	return c
}

// causeOf is the Terminate in err as the word at QPError, or 0.
func causeOf(err error) uint32 {
	var t *rdma.TerminateError
	if errors.As(err, &t) {
		return cause(t)
	}
	return 0
}

// errnos says what a reply's status is for errors that bring no errno of their own.
var errnos = []struct {
	is    error
	errno syscall.Errno
}{
	{rdma.ErrInvalid, syscall.EINVAL},
	{rdma.ErrQueueFull, syscall.ENOMEM},
	{rdma.ErrLimit, syscall.ENOMEM},
	{rdma.ErrNotConnected, syscall.ENOTCONN},
	{rdma.ErrBusy, syscall.EBUSY},
	{rdma.ErrUnsupported, syscall.EOPNOTSUPP},
	{rdma.ErrClosed, syscall.ENODEV},
	{rdma.ErrDeviceGone, syscall.ENODEV},
}

// errno makes err what shm turns into a status.
func errno(err error) error {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*server.Refusal](err); ok {
		return r
	}
	var e syscall.Errno
	if errors.As(err, &e) && e != 0 {
		return e
	}
	for _, m := range errnos {
		if errors.Is(err, m.is) {
			return m.errno
		}
	}
	return syscall.EIO
}
