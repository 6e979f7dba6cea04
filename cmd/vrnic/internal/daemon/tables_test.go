package daemon

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/vnic"
)

// The numbers here are written out as <infiniband/verbs.h> has them, not taken from a table.
func TestTables(t *testing.T) {
	for ring, want := range map[uint8]rdma.Opcode{
		0: rdma.OpWrite, 1: rdma.OpWriteImm, 2: rdma.OpSend, 3: rdma.OpSendImm, 4: rdma.OpRead,
		5: rdma.OpCompareSwap, 6: rdma.OpFetchAdd, 7: rdma.OpLocalInv, 8: rdma.OpBindMW,
		9:  rdma.OpSendInv,
		10: opInvalid, 11: opInvalid, 12: rdma.OpMaskedCompareSwap, 13: rdma.OpMaskedFetchAdd,
		14: opInvalid, 31: opInvalid,
		32: rdma.OpRegMR, 33: opInvalid, 128: opInvalid, 255: opInvalid,
	} {
		if got := sendOps[ring]; got != want {
			t.Errorf("send op %d is %v, want %v", ring, got, want)
		}
	}
	for ring, want := range map[uint8]rdma.SendFlags{
		0: 0, 1: rdma.Signaled, 2: rdma.Solicited, 4: rdma.Fence, 8: rdma.Inline,
		15: rdma.Signaled | rdma.Solicited | rdma.Fence | rdma.Inline,
	} {
		if got := sendFlags[ring]; got != want {
			t.Errorf("send flags %#x are %#x, want %#x", ring, got, want)
		}
	}
	for s, want := range map[rdma.WCStatus]uint32{
		rdma.WCSuccess: 0, rdma.WCLocLen: 1, rdma.WCLocQPOp: 2, rdma.WCLocProt: 4, rdma.WCFlush: 5,
		rdma.WCMWBind:  6,
		rdma.WCBadResp: 7, rdma.WCLocAccess: 8, rdma.WCRemInvReq: 9, rdma.WCRemAccess: 10,
		rdma.WCRemOp: 11,
		rdma.WCFatal: 19, rdma.WCGeneral: 21, 3: 21, 15: 21, 20: 21, 22: 21, 1 << 31: 21,
	} {
		if got := wcStatus(s); got != want {
			t.Errorf("status %v is %d, want %d", s, got, want)
		}
	}
	for o, want := range map[rdma.WCOpcode]uint32{
		rdma.WCSend: 0, rdma.WCWrite: 1, rdma.WCRead: 2, rdma.WCCompareSwap: 3, rdma.WCFetchAdd: 4,
		rdma.WCBindMW: 5, rdma.WCLocalInv: 6, rdma.WCRegMR: 32, rdma.WCRecv: 128, rdma.WCRecvImm: 129,
	} {
		if got := wcOpcode(o); got != want {
			t.Errorf("completion opcode %d is %d, want %d", o, got, want)
		}
	}
	if wcFlags(rdma.WCWithImm) != 2 || wcFlags(rdma.WCWithInv) != 8 || wcFlags(0) != 0 {
		t.Error("completion flags are not those of enum ibv_wc_flags")
	}
	for s, want := range map[rdma.QPState]uint32{
		rdma.QPIdle: 1, rdma.QPRTS: 3, rdma.QPClosing: 4, rdma.QPTerminate: 5, rdma.QPError: 6, 77: 6,
	} {
		if got := qpState(s); got != want {
			t.Errorf("state %v is %d, want %d", s, got, want)
		}
	}
	// V9: a program that drives a QP to RTR or RTS itself is told at once.
	for _, s := range []uint32{abi.StateRTR, abi.StateRTS, 7, 1 << 31} {
		if to, ok := modifyStates[s]; ok {
			t.Errorf("a client may ask for ring state %d, as %v", s, to)
		}
	}
}

func TestAccess(t *testing.T) {
	for _, tt := range []struct {
		ring uint32
		want rdma.Access
		ok   bool
	}{
		{0, 0, true},
		{1, rdma.LocalWrite, true},
		{7, rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead, true},
		{31, rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic | rdma.MWBind,
			true},
		{0x100001, rdma.LocalWrite, true},       // IBV_ACCESS_RELAXED_ORDERING, as perftest asks
		{0x3ff00007, rdma.Access(7), true},      // all that is optional
		{1 << 5, 0, false}, {1 << 30, 0, false}, // zero based; beyond the optional range
	} {
		got, ok := access(tt.ring)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("access %#x is %v, %v; want %v, %v", tt.ring, got, ok, tt.want, tt.ok)
		}
	}
}

func TestErrno(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want syscall.Errno
	}{
		{fmt.Errorf("a: %w", rdma.ErrInvalid), syscall.EINVAL},
		{fmt.Errorf("a: %w", rdma.ErrLimit), syscall.ENOMEM},
		{rdma.ErrQueueFull, syscall.ENOMEM},
		{rdma.ErrBusy, syscall.EBUSY},
		{rdma.ErrUnsupported, syscall.EOPNOTSUPP},
		{rdma.ErrNotConnected, syscall.ENOTCONN},
		{rdma.ErrClosed, syscall.ENODEV},
		{fmt.Errorf("a: %w", syscall.EADDRINUSE), syscall.EADDRINUSE},
		{errors.Join(rdma.ErrInvalid, syscall.EADDRNOTAVAIL), syscall.EADDRNOTAVAIL},
		{fmt.Errorf("a: %w", syscall.Errno(0)), syscall.EIO},
		{io.ErrUnexpectedEOF, syscall.EIO},
	} {
		if got := errno(tt.err); got != tt.want {
			t.Errorf("%v becomes %v, want %v", tt.err, got, tt.want)
		}
	}
	if errno(nil) != nil {
		t.Error("no error becomes an error")
	}
}

// What an end of a QP is called on the wire is what the client reads in the word at QPError.
func TestCause(t *testing.T) {
	c := cause(&rdma.TerminateError{Remote: true, Layer: 1, Type: 2, Code: 0x05})
	if c != 1<<31|1<<30|0x1205 {
		t.Errorf("cause is %#x, want %#x", c, uint32(1<<31|1<<30|0x1205))
	}
	if c := causeOf(fmt.Errorf("end: %w", &rdma.TerminateError{Layer: 2, Code: 2})); c !=
		1<<31|0x2002 {
		t.Errorf("cause is %#x, want %#x", c, uint32(1<<31|0x2002))
	}
	if causeOf(io.EOF) != 0 || causeOf(nil) != 0 {
		t.Error("an end without a Terminate has a cause")
	}
}

// Each event of the connection manager has a number of librdmacm's.
func TestCMEvents(t *testing.T) {
	for ev, want := range map[vnic.CMEventType]uint32{
		vnic.CMAddrResolved: 0, vnic.CMAddrError: 1, vnic.CMRouteResolved: 2, vnic.CMRouteError: 3,
		vnic.CMConnectRequest: 4,
		vnic.CMConnectError:   6, vnic.CMUnreachable: 7, vnic.CMRejected: 8, vnic.CMEstablished: 9,
		vnic.CMDisconnected:  10,
		vnic.CMDeviceRemoval: 11,
	} {
		if got, ok := cmEvents[ev]; !ok || got != want {
			t.Errorf("%v is %d, %v; want %d", ev, got, ok, want)
		}
	}
}

func TestIBMTU(t *testing.T) {
	for mtu, want := range map[int]uint32{256: 1, 511: 1, 512: 2, 1280: 3, 1500: 3, 2048: 4, 4095: 4,
		4096: 5, 9000: 5, 65535: 5} {
		if got := ibMTU(mtu); got != want {
			t.Errorf("MTU %d is enum ibv_mtu %d, want %d", mtu, got, want)
		}
	}
}
