package rpc

import (
	"errors"
	"reflect"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
)

func TestReads(t *testing.T) {
	for ring, want := range map[uint16]uint16{0: rdma.NoReads, ReadsDefault: 0, 1: 1, 128: 128} {
		if got := readsFromRing(ring); got != want {
			t.Errorf("%d of the ring is %d, want %d", ring, got, want)
		}
	}
	for n, want := range map[uint16]uint16{rdma.NoReads: 0, 0: ReadsDefault, 32: 32} {
		if got := readsToRing(n); got != want {
			t.Errorf("%d is %d on the ring, want %d", n, got, want)
		}
	}
}

func TestConnOptions(t *testing.T) {
	var o ConnOptions
	for _, tt := range []struct {
		name uint32
		n    uint64
		want error
	}{
		{OptMPARevision, 1, nil}, {OptMPARevision, 3, syscall.EINVAL}, {OptMPARevision, 1<<32 + 1,
			syscall.EINVAL},
		{OptMPACRC, 1, nil}, {OptMPACRC, 4, syscall.EINVAL},
		{OptReads, 4<<16 | 8, nil}, {OptReads, 1 << 32, syscall.EINVAL},
		{OptMPAMarkers, 1, nil}, {OptMPAMarkers, 2, syscall.EINVAL}, {OptMPARTR, 0xa, nil},
		{OptMPARTR, 0x10, syscall.EINVAL},
		{OptFPDUSize, 0, nil}, {OptFPDUSize, 127, syscall.EINVAL}, {OptFPDUSize, 64769, syscall.EINVAL},
		{OptFPDUSize, 64768, nil},
		{OptExtensions, 1, nil}, {OptExtensions, 2, syscall.EINVAL},
		{OptDevice, 1, nil}, {OptDevice, 2, syscall.ENODEV}, {OptTransport, 1, nil},
		{OptProtocol, 2, nil}, {OptProtocol, 8, syscall.EINVAL}, {OptProtocol, 5, nil},
		{OptTransport, 2, syscall.EINVAL}, {99, 0, syscall.EOPNOTSUPP},
	} {
		if err := o.Set(tt.name, abi.Order.AppendUint64(nil, tt.n), 2); !errors.Is(err, tt.want) {
			t.Errorf("option %d = %d: %v, want %v", tt.name, tt.n, err, tt.want)
		}
	}
	want := ConnOptions{MPA: rdma.MPAParam{Revision: 1, CRC: rdma.CRCOff, Markers: true,
		ClientServer: true, RTR: rdma.RTRRead, MULPDU: 64768}, Extensions: true, SCTP: true, IRD: 4,
		ORD: 8, Device: 2, Protocol: rdma.ROI, ROI: rdma.ROIParam{NoReadCredits: true}}
	if o != want {
		t.Errorf("options are %+v, want %+v", o, want)
	}
	if err := o.Set(OptDevice, []byte{0}, 2); err != syscall.EINVAL {
		t.Errorf("an octet as a number: %v", err)
	}
	var back ConnOptions
	for _, r := range want.Requests(7) {
		if err := back.Set(r.Name, r.Value[:r.Len], 2); err != nil || r.ID != 7 ||
			r.Level != OptLevelVRNIC {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if want.IRD, want.ORD = 0, 0; back != want { // which go with the connection itself
		t.Errorf("what was asked for arrives as %+v, want %+v", back, want)
	}
}

func TestIDOptions(t *testing.T) {
	var o IDOptions
	word := func(n uint32) []byte { return abi.Order.AppendUint32(nil, n) }
	for _, tt := range []struct {
		name  uint32
		value []byte
		want  error
	}{
		{OptTOS, []byte{104}, nil}, {OptTOS, nil, syscall.EINVAL},
		{OptTOS, make([]byte, 8), syscall.EINVAL}, {OptAFOnly, make([]byte, 2), syscall.EINVAL},
		{OptReuseAddr, word(1), nil}, {OptAFOnly, word(2), nil},
		{OptACKTimeout, []byte{31}, nil}, {OptACKTimeout, []byte{32}, syscall.EINVAL},
		{OptACKTimeout, word(1 << 8), syscall.EINVAL}, {99, word(0), syscall.EOPNOTSUPP},
	} {
		if err := o.Set(tt.name, tt.value); !errors.Is(err, tt.want) {
			t.Errorf("option %d = %x: %v, want %v", tt.name, tt.value, err, tt.want)
		}
	}
	want := IDOptions{TOS: 104, ACKTimeout: 31, ReuseAddr: true, AFOnly: true}
	if o != want {
		t.Errorf("options are %+v, want %+v", o, want)
	}
	var back IDOptions
	for _, r := range want.Requests(7) {
		if err := back.Set(r.Name, r.Value[:r.Len]); err != nil || r.ID != 7 || r.Level != OptLevelID {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if want.ReuseAddr, want.AFOnly = false, false; back != want { // which go with what is bound
		t.Errorf("what was asked for arrives as %+v, want %+v", back, want)
	}
}

// What the daemon tells of a connection is what the client hears of it, and the other way round.
func TestConnParam(t *testing.T) {
	want := rdma.ConnParam{
		PrivateData: []byte("hello"), IRD: rdma.NoReads, ORD: 7, Extensions: true, SCTP: true,
		Protocol: rdma.ROI, ROI: rdma.ROIParam{NoSendCredits: true},
	}
	var e CMEvent
	e.SetConn(&want)
	if got := e.Conn(); !reflect.DeepEqual(got, want) {
		t.Errorf("the event tells %+v, want %+v", got, want)
	}
	want.Extensions, want.SCTP = false, false // options of the id
	want.Protocol, want.ROI = rdma.IWARP, rdma.ROIParam{}
	var c ConnParam
	if ok := c.Set(&want); !ok {
		t.Error("refused")
	}
	if got, ok := c.Get(); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("asked for %+v, %v, want %+v", got, ok, want)
	}
	if c.Set(&rdma.ConnParam{PrivateData: make([]byte, MaxPrivate+1)}) {
		t.Error("too long private data are taken")
	}
	c.PrivateLen = MaxPrivate + 1
	if _, ok := c.Get(); ok {
		t.Error("a length beyond the room is taken")
	}
}
