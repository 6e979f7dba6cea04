// Code generated from messages.table by go generate; DO NOT EDIT.

package rpc

import "unsafe"

// Sizes are those that the table makes.
var (
	_ = [1]int{}[unsafe.Sizeof(Header{})-16]
	_ = [1]int{}[unsafe.Sizeof(HandleRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(DestroyReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(Refusal{})-512]
	_ = [1]int{}[unsafe.Sizeof(Prefix{})-24]
	_ = [1]int{}[unsafe.Sizeof(QPCaps{})-32]
	_ = [1]int{}[unsafe.Sizeof(AHAttr{})-32]
	_ = [1]int{}[unsafe.Sizeof(QPAttr{})-80]
	_ = [1]int{}[unsafe.Sizeof(HelloRequest{})-32]
	_ = [1]int{}[unsafe.Sizeof(HelloReply{})-2072]
	_ = [1]int{}[unsafe.Sizeof(SetMemRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(AddMemRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(AddMemReply{})-16]
	_ = [1]int{}[unsafe.Sizeof(QueryDeviceRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(QueryDeviceReply{})-608]
	_ = [1]int{}[unsafe.Sizeof(QueryPortRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(QueryPortReply{})-40]
	_ = [1]int{}[unsafe.Sizeof(QueryGIDRequest{})-16]
	_ = [1]int{}[unsafe.Sizeof(QueryGIDReply{})-24]
	_ = [1]int{}[unsafe.Sizeof(CtxOpenRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(CtxOpenReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(AsyncEvent{})-16]
	_ = [1]int{}[unsafe.Sizeof(AllocPDRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(AllocPDReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(RegMRRequest{})-48]
	_ = [1]int{}[unsafe.Sizeof(RegMRReply{})-16]
	_ = [1]int{}[unsafe.Sizeof(ReregMRRequest{})-56]
	_ = [1]int{}[unsafe.Sizeof(AllocMWRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(AllocMWReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(AllocMRRequest{})-16]
	_ = [1]int{}[unsafe.Sizeof(CreateChanRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(CreateChanReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(CreateCQRequest{})-16]
	_ = [1]int{}[unsafe.Sizeof(CreateCQReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(ResizeCQRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(ResizeCQReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(CreateSRQRequest{})-16]
	_ = [1]int{}[unsafe.Sizeof(CreateSRQReply{})-16]
	_ = [1]int{}[unsafe.Sizeof(ModifySRQRequest{})-16]
	_ = [1]int{}[unsafe.Sizeof(QuerySRQReply{})-16]
	_ = [1]int{}[unsafe.Sizeof(CreateQPRequest{})-56]
	_ = [1]int{}[unsafe.Sizeof(CreateQPReply{})-48]
	_ = [1]int{}[unsafe.Sizeof(ModifyQPRequest{})-96]
	_ = [1]int{}[unsafe.Sizeof(QueryQPReply{})-136]
	_ = [1]int{}[unsafe.Sizeof(CreateAHRequest{})-40]
	_ = [1]int{}[unsafe.Sizeof(CreateAHReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(AttachMcastRequest{})-24]
	_ = [1]int{}[unsafe.Sizeof(DirectReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(IdentifyRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(DirectMemRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(SockAddr{})-24]
	_ = [1]int{}[unsafe.Sizeof(ConnParam{})-528]
	_ = [1]int{}[unsafe.Sizeof(CMCreateChanReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(CMCreateIDRequest{})-24]
	_ = [1]int{}[unsafe.Sizeof(CMCreateIDReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(CMDestroyIDReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(CMBindRequest{})-32]
	_ = [1]int{}[unsafe.Sizeof(CMResolveAddrRequest{})-56]
	_ = [1]int{}[unsafe.Sizeof(CMResolveRouteRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(CMListenRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(CMConnectRequest{})-544]
	_ = [1]int{}[unsafe.Sizeof(CMRejectRequest{})-520]
	_ = [1]int{}[unsafe.Sizeof(CMMigrateRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(CMMigrateReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(CMSetOptionRequest{})-80]
	_ = [1]int{}[unsafe.Sizeof(CMInitQPAttrRequest{})-8]
	_ = [1]int{}[unsafe.Sizeof(CMInitQPAttrReply{})-96]
	_ = [1]int{}[unsafe.Sizeof(CMQueryReply{})-56]
	_ = [1]int{}[unsafe.Sizeof(CMEvent{})-656]
	_ = [1]int{}[unsafe.Sizeof(CMJoinMulticastRequest{})-40]
	_ = [1]int{}[unsafe.Sizeof(CMLeaveMulticastRequest{})-32]
	_ = [1]int{}[unsafe.Sizeof(CMLeaveMulticastReply{})-8]
	_ = [1]int{}[unsafe.Sizeof(ListRequest{})-16]
	_ = [1]int{}[unsafe.Sizeof(ListReply{})-4080]
	_ = [1]int{}[unsafe.Sizeof(ControlRequest{})-2088]
)

func (m *Header) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *Header) padZero() bool  { return true }

func (m *HandleRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *HandleRequest) padZero() bool  { return m.Pad == 0 }

func (m *DestroyReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *DestroyReply) padZero() bool  { return true }

func (m *Refusal) octets() []byte { return (*[512]byte)(unsafe.Pointer(m))[:] }
func (m *Refusal) padZero() bool  { return true }

func (m *Prefix) octets() []byte { return (*[24]byte)(unsafe.Pointer(m))[:] }
func (m *Prefix) padZero() bool  { return m.Pad == 0 }

func (m *QPCaps) octets() []byte { return (*[32]byte)(unsafe.Pointer(m))[:] }
func (m *QPCaps) padZero() bool  { return m.Pad == 0 }

func (m *AHAttr) octets() []byte { return (*[32]byte)(unsafe.Pointer(m))[:] }
func (m *AHAttr) padZero() bool  { return true }

func (m *QPAttr) octets() []byte { return (*[80]byte)(unsafe.Pointer(m))[:] }
func (m *QPAttr) padZero() bool  { return m.Path.padZero() }

func (m *HelloRequest) octets() []byte { return (*[32]byte)(unsafe.Pointer(m))[:] }
func (m *HelloRequest) padZero() bool  { return true }

func (m *HelloReply) octets() []byte { return (*[2072]byte)(unsafe.Pointer(m))[:] }
func (m *HelloReply) padZero() bool  { return true }

func (m *SetMemRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *SetMemRequest) padZero() bool  { return true }

func (m *AddMemRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *AddMemRequest) padZero() bool  { return m.Pad == 0 }

func (m *AddMemReply) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *AddMemReply) padZero() bool  { return m.Pad == 0 }

func (m *QueryDeviceRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *QueryDeviceRequest) padZero() bool  { return m.Pad == 0 }

func (m *QueryDeviceReply) octets() []byte { return (*[608]byte)(unsafe.Pointer(m))[:] }
func (m *QueryDeviceReply) padZero() bool  { return m.Pad == 0 }
func (m *QueryDeviceReply) knownTo(minor uint16) int {
	switch {
	case minor < 1:
		return 552
	case minor < 2:
		return 568
	}
	return 608
}

func (m *QueryPortRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *QueryPortRequest) padZero() bool  { return true }

func (m *QueryPortReply) octets() []byte { return (*[40]byte)(unsafe.Pointer(m))[:] }
func (m *QueryPortReply) padZero() bool  { return true }

func (m *QueryGIDRequest) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *QueryGIDRequest) padZero() bool  { return m.Pad == 0 }

func (m *QueryGIDReply) octets() []byte { return (*[24]byte)(unsafe.Pointer(m))[:] }
func (m *QueryGIDReply) padZero() bool  { return m.Pad == 0 }

func (m *CtxOpenRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CtxOpenRequest) padZero() bool  { return m.Pad == 0 }

func (m *CtxOpenReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CtxOpenReply) padZero() bool  { return m.Pad == 0 }

func (m *AsyncEvent) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *AsyncEvent) padZero() bool  { return true }

func (m *AllocPDRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *AllocPDRequest) padZero() bool  { return m.Pad == 0 }

func (m *AllocPDReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *AllocPDReply) padZero() bool  { return m.Pad == 0 }

func (m *RegMRRequest) octets() []byte { return (*[48]byte)(unsafe.Pointer(m))[:] }
func (m *RegMRRequest) padZero() bool  { return true }

func (m *RegMRReply) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *RegMRReply) padZero() bool  { return m.Pad == 0 }

func (m *ReregMRRequest) octets() []byte { return (*[56]byte)(unsafe.Pointer(m))[:] }
func (m *ReregMRRequest) padZero() bool  { return m.New.padZero() }

func (m *AllocMWRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *AllocMWRequest) padZero() bool  { return true }

func (m *AllocMWReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *AllocMWReply) padZero() bool  { return true }

func (m *AllocMRRequest) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *AllocMRRequest) padZero() bool  { return m.Pad == 0 }

func (m *CreateChanRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CreateChanRequest) padZero() bool  { return m.Pad == 0 }

func (m *CreateChanReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CreateChanReply) padZero() bool  { return m.Pad == 0 }

func (m *CreateCQRequest) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *CreateCQRequest) padZero() bool  { return true }

func (m *CreateCQReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CreateCQReply) padZero() bool  { return true }

func (m *ResizeCQRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *ResizeCQRequest) padZero() bool  { return true }

func (m *ResizeCQReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *ResizeCQReply) padZero() bool  { return m.Pad == 0 }

func (m *CreateSRQRequest) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *CreateSRQRequest) padZero() bool  { return true }

func (m *CreateSRQReply) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *CreateSRQReply) padZero() bool  { return true }

func (m *ModifySRQRequest) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *ModifySRQRequest) padZero() bool  { return true }

func (m *QuerySRQReply) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *QuerySRQReply) padZero() bool  { return m.Pad == 0 }

func (m *CreateQPRequest) octets() []byte { return (*[56]byte)(unsafe.Pointer(m))[:] }
func (m *CreateQPRequest) padZero() bool  { return m.Caps.padZero() }

func (m *CreateQPReply) octets() []byte { return (*[48]byte)(unsafe.Pointer(m))[:] }
func (m *CreateQPReply) padZero() bool  { return m.Pad == 0 && m.Caps.padZero() }

func (m *ModifyQPRequest) octets() []byte { return (*[96]byte)(unsafe.Pointer(m))[:] }
func (m *ModifyQPRequest) padZero() bool  { return m.Pad == 0 && m.Attr.padZero() }
func (m *ModifyQPRequest) knownTo(minor uint16) int {
	switch {
	case minor < 1:
		return 16
	}
	return 96
}

func (m *QueryQPReply) octets() []byte { return (*[136]byte)(unsafe.Pointer(m))[:] }
func (m *QueryQPReply) padZero() bool  { return m.Pad == 0 && m.Caps.padZero() && m.Attr.padZero() }
func (m *QueryQPReply) knownTo(minor uint16) int {
	switch {
	case minor < 1:
		return 56
	}
	return 136
}

func (m *CreateAHRequest) octets() []byte { return (*[40]byte)(unsafe.Pointer(m))[:] }
func (m *CreateAHRequest) padZero() bool  { return m.Pad == 0 && m.Attr.padZero() }

func (m *CreateAHReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CreateAHReply) padZero() bool  { return true }

func (m *AttachMcastRequest) octets() []byte { return (*[24]byte)(unsafe.Pointer(m))[:] }
func (m *AttachMcastRequest) padZero() bool  { return m.Pad == 0 }

func (m *DirectReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *DirectReply) padZero() bool  { return true }

func (m *IdentifyRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *IdentifyRequest) padZero() bool  { return m.Pad == 0 }

func (m *DirectMemRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *DirectMemRequest) padZero() bool  { return true }

func (m *SockAddr) octets() []byte { return (*[24]byte)(unsafe.Pointer(m))[:] }
func (m *SockAddr) padZero() bool  { return true }

func (m *ConnParam) octets() []byte { return (*[528]byte)(unsafe.Pointer(m))[:] }
func (m *ConnParam) padZero() bool  { return true }

func (m *CMCreateChanReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMCreateChanReply) padZero() bool  { return m.Pad == 0 }

func (m *CMCreateIDRequest) octets() []byte { return (*[24]byte)(unsafe.Pointer(m))[:] }
func (m *CMCreateIDRequest) padZero() bool  { return m.Pad == 0 }

func (m *CMCreateIDReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMCreateIDReply) padZero() bool  { return m.Pad == 0 }

func (m *CMDestroyIDReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMDestroyIDReply) padZero() bool  { return true }

func (m *CMBindRequest) octets() []byte { return (*[32]byte)(unsafe.Pointer(m))[:] }
func (m *CMBindRequest) padZero() bool  { return m.Pad == 0 && m.Addr.padZero() }

func (m *CMResolveAddrRequest) octets() []byte { return (*[56]byte)(unsafe.Pointer(m))[:] }
func (m *CMResolveAddrRequest) padZero() bool  { return m.Src.padZero() && m.Dst.padZero() }

func (m *CMResolveRouteRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMResolveRouteRequest) padZero() bool  { return true }

func (m *CMListenRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMListenRequest) padZero() bool  { return true }

func (m *CMConnectRequest) octets() []byte { return (*[544]byte)(unsafe.Pointer(m))[:] }
func (m *CMConnectRequest) padZero() bool  { return m.Param.padZero() }

func (m *CMRejectRequest) octets() []byte { return (*[520]byte)(unsafe.Pointer(m))[:] }
func (m *CMRejectRequest) padZero() bool  { return true }

func (m *CMMigrateRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMMigrateRequest) padZero() bool  { return true }

func (m *CMMigrateReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMMigrateReply) padZero() bool  { return true }

func (m *CMSetOptionRequest) octets() []byte { return (*[80]byte)(unsafe.Pointer(m))[:] }
func (m *CMSetOptionRequest) padZero() bool  { return true }

func (m *CMInitQPAttrRequest) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMInitQPAttrRequest) padZero() bool  { return true }

func (m *CMInitQPAttrReply) octets() []byte { return (*[96]byte)(unsafe.Pointer(m))[:] }
func (m *CMInitQPAttrReply) padZero() bool  { return m.Attr.padZero() }
func (m *CMInitQPAttrReply) knownTo(minor uint16) int {
	switch {
	case minor < 1:
		return 16
	}
	return 96
}

func (m *CMQueryReply) octets() []byte { return (*[56]byte)(unsafe.Pointer(m))[:] }
func (m *CMQueryReply) padZero() bool  { return m.Src.padZero() && m.Dst.padZero() }

func (m *CMEvent) octets() []byte { return (*[656]byte)(unsafe.Pointer(m))[:] }
func (m *CMEvent) padZero() bool {
	return m.Src.padZero() && m.Dst.padZero() && m.Param.padZero() && m.Path.padZero()
}
func (m *CMEvent) knownTo(minor uint16) int {
	switch {
	case minor < 1:
		return 616
	}
	return 656
}

func (m *CMJoinMulticastRequest) octets() []byte { return (*[40]byte)(unsafe.Pointer(m))[:] }
func (m *CMJoinMulticastRequest) padZero() bool  { return m.Addr.padZero() }

func (m *CMLeaveMulticastRequest) octets() []byte { return (*[32]byte)(unsafe.Pointer(m))[:] }
func (m *CMLeaveMulticastRequest) padZero() bool  { return m.Pad == 0 && m.Addr.padZero() }

func (m *CMLeaveMulticastReply) octets() []byte { return (*[8]byte)(unsafe.Pointer(m))[:] }
func (m *CMLeaveMulticastReply) padZero() bool  { return true }

func (m *ListRequest) octets() []byte { return (*[16]byte)(unsafe.Pointer(m))[:] }
func (m *ListRequest) padZero() bool  { return true }

func (m *ListReply) octets() []byte { return (*[4080]byte)(unsafe.Pointer(m))[:] }
func (m *ListReply) padZero() bool  { return m.Pad == 0 }

func (m *ControlRequest) octets() []byte { return (*[2088]byte)(unsafe.Pointer(m))[:] }
func (m *ControlRequest) padZero() bool  { return true }
