// Code generated from messages.table by go generate; DO NOT EDIT.

package rpc

// The calls. Numbers are never used again.
const (
	OpHello          Op = 1
	OpSetMem         Op = 2
	OpAddMem         Op = 3
	OpDelMem         Op = 4
	OpQueryDevice    Op = 5
	OpQueryPort      Op = 6
	OpQueryGID       Op = 7
	OpCtxOpen        Op = 16
	OpCtxClose       Op = 17
	OpGetAsyncEvent  Op = 18
	OpAllocPD        Op = 32
	OpDeallocPD      Op = 33
	OpRegMR          Op = 34
	OpDeregMR        Op = 35
	OpReregMR        Op = 36
	OpAllocMW        Op = 37
	OpDeallocMW      Op = 38
	OpAllocMR        Op = 39
	OpCreateChan     Op = 48
	OpDestroyChan    Op = 49
	OpCreateCQ       Op = 50
	OpDestroyCQ      Op = 51
	OpResizeCQ       Op = 53
	OpSwitchCQ       Op = 54
	OpCreateSRQ      Op = 64
	OpModifySRQ      Op = 65
	OpQuerySRQ       Op = 66
	OpDestroySRQ     Op = 67
	OpCreateQP       Op = 68
	OpModifyQP       Op = 69
	OpQueryQP        Op = 70
	OpDestroyQP      Op = 71
	OpCreateAH       Op = 72
	OpDestroyAH      Op = 73
	OpAttachMcast    Op = 74
	OpDetachMcast    Op = 75
	OpDirect         Op = 76
	OpIdentify       Op = 77
	OpDirectKeys     Op = 78
	OpDirectMem      Op = 79
	OpDirectSleep    Op = 80
	OpDirectWake     Op = 81
	OpDirectBits     Op = 82
	OpDirectPeerBits Op = 83

	OpCMCreateChan     Op = 96
	OpCMDestroyChan    Op = 97
	OpCMCreateID       Op = 98
	OpCMDestroyID      Op = 99
	OpCMBind           Op = 100
	OpCMResolveAddr    Op = 101
	OpCMResolveRoute   Op = 102
	OpCMListen         Op = 103
	OpCMConnect        Op = 104
	OpCMAccept         Op = 105
	OpCMReject         Op = 106
	OpCMDisconnect     Op = 107
	OpCMMigrate        Op = 108
	OpCMSetOption      Op = 109
	OpCMInitQPAttr     Op = 110
	OpCMQuery          Op = 111
	OpCMGetEvent       Op = 112
	OpCMJoinMulticast  Op = 113
	OpCMLeaveMulticast Op = 114
	OpCMEstablish      Op = 115
	OpCMNotify         Op = 116
	OpCMOpenUDP        Op = 117

	OpList    Op = 128
	OpStat    Op = 129
	OpControl Op = 131
)

var calls = [...]callInfo{
	OpHello: {name: "HELLO", gives: 2, messages: func() (req, rep Message) {
		return &HelloRequest{}, &HelloReply{}
	}},
	OpSetMem: {name: "SET_MEM", takes: 1, messages: func() (req, rep Message) {
		return &SetMemRequest{}, &Empty{}
	}},
	OpAddMem: {name: "ADD_MEM", takes: 1, messages: func() (req, rep Message) {
		return &AddMemRequest{}, &AddMemReply{}
	}},
	OpDelMem: {name: "DEL_MEM", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpQueryDevice: {name: "QUERY_DEVICE", quick: true, messages: func() (req, rep Message) {
		return &QueryDeviceRequest{}, &QueryDeviceReply{}
	}},
	OpQueryPort: {name: "QUERY_PORT", quick: true, messages: func() (req, rep Message) {
		return &QueryPortRequest{}, &QueryPortReply{}
	}},
	OpQueryGID: {name: "QUERY_GID", quick: true, messages: func() (req, rep Message) {
		return &QueryGIDRequest{}, &QueryGIDReply{}
	}},
	OpCtxOpen: {name: "CTX_OPEN", gives: 1, messages: func() (req, rep Message) {
		return &CtxOpenRequest{}, &CtxOpenReply{}
	}},
	OpCtxClose: {name: "CTX_CLOSE", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpGetAsyncEvent: {name: "GET_ASYNC_EVENT", quick: true, messages: func() (req, rep Message) {
		return &HandleRequest{}, &AsyncEvent{}
	}},
	OpAllocPD: {name: "ALLOC_PD", quick: true, messages: func() (req, rep Message) {
		return &AllocPDRequest{}, &AllocPDReply{}
	}},
	OpDeallocPD: {name: "DEALLOC_PD", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpRegMR: {name: "REG_MR", quick: true, messages: func() (req, rep Message) {
		return &RegMRRequest{}, &RegMRReply{}
	}},
	OpDeregMR: {name: "DEREG_MR", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpReregMR: {name: "REREG_MR", messages: func() (req, rep Message) {
		return &ReregMRRequest{}, &RegMRReply{}
	}},
	OpAllocMW: {name: "ALLOC_MW", quick: true, messages: func() (req, rep Message) {
		return &AllocMWRequest{}, &AllocMWReply{}
	}},
	OpDeallocMW: {name: "DEALLOC_MW", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpAllocMR: {name: "ALLOC_MR", quick: true, messages: func() (req, rep Message) {
		return &AllocMRRequest{}, &RegMRReply{}
	}},
	OpCreateChan: {name: "CREATE_CHAN", gives: 2, messages: func() (req, rep Message) {
		return &CreateChanRequest{}, &CreateChanReply{}
	}},
	OpDestroyChan: {name: "DESTROY_CHAN", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpCreateCQ: {name: "CREATE_CQ", quick: true, gives: 1, messages: func() (req, rep Message) {
		return &CreateCQRequest{}, &CreateCQReply{}
	}},
	OpDestroyCQ: {name: "DESTROY_CQ", messages: func() (req, rep Message) {
		return &HandleRequest{}, &DestroyReply{}
	}},
	OpResizeCQ: {name: "RESIZE_CQ", gives: 1, messages: func() (req, rep Message) {
		return &ResizeCQRequest{}, &ResizeCQReply{}
	}},
	OpSwitchCQ: {name: "SWITCH_CQ", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpCreateSRQ: {name: "CREATE_SRQ", quick: true, gives: 1, messages: func() (req, rep Message) {
		return &CreateSRQRequest{}, &CreateSRQReply{}
	}},
	OpModifySRQ: {name: "MODIFY_SRQ", messages: func() (req, rep Message) {
		return &ModifySRQRequest{}, &Empty{}
	}},
	OpQuerySRQ: {name: "QUERY_SRQ", quick: true, messages: func() (req, rep Message) {
		return &HandleRequest{}, &QuerySRQReply{}
	}},
	OpDestroySRQ: {name: "DESTROY_SRQ", messages: func() (req, rep Message) {
		return &HandleRequest{}, &DestroyReply{}
	}},
	OpCreateQP: {name: "CREATE_QP", quick: true, gives: 1, messages: func() (req, rep Message) {
		return &CreateQPRequest{}, &CreateQPReply{}
	}},
	OpModifyQP: {name: "MODIFY_QP", messages: func() (req, rep Message) {
		return &ModifyQPRequest{}, &Empty{}
	}},
	OpQueryQP: {name: "QUERY_QP", quick: true, messages: func() (req, rep Message) {
		return &HandleRequest{}, &QueryQPReply{}
	}},
	OpDestroyQP: {name: "DESTROY_QP", messages: func() (req, rep Message) {
		return &HandleRequest{}, &DestroyReply{}
	}},
	OpCreateAH: {name: "CREATE_AH", messages: func() (req, rep Message) {
		return &CreateAHRequest{}, &CreateAHReply{}
	}},
	OpDestroyAH: {name: "DESTROY_AH", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpAttachMcast: {name: "ATTACH_MCAST", messages: func() (req, rep Message) {
		return &AttachMcastRequest{}, &Empty{}
	}},
	OpDetachMcast: {name: "DETACH_MCAST", messages: func() (req, rep Message) {
		return &AttachMcastRequest{}, &Empty{}
	}},
	OpDirect: {name: "DIRECT", gives: 1, messages: func() (req, rep Message) {
		return &HandleRequest{}, &DirectReply{}
	}},
	OpIdentify: {name: "IDENTIFY", takes: 1, messages: func() (req, rep Message) {
		return &IdentifyRequest{}, &Empty{}
	}},
	OpDirectKeys: {name: "DIRECT_KEYS", gives: 1, messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpDirectMem: {name: "DIRECT_MEM", gives: 1, messages: func() (req, rep Message) {
		return &DirectMemRequest{}, &Empty{}
	}},
	OpDirectSleep: {name: "DIRECT_SLEEP", gives: 1, messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpDirectWake: {name: "DIRECT_WAKE", gives: 1, messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpDirectBits: {name: "DIRECT_BITS", gives: 1, messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpDirectPeerBits: {name: "DIRECT_PEER_BITS", gives: 1, messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpCMCreateChan: {name: "CM_CREATE_CHAN", gives: 1, messages: func() (req, rep Message) {
		return &Empty{}, &CMCreateChanReply{}
	}},
	OpCMDestroyChan: {name: "CM_DESTROY_CHAN", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpCMCreateID: {name: "CM_CREATE_ID", quick: true, messages: func() (req, rep Message) {
		return &CMCreateIDRequest{}, &CMCreateIDReply{}
	}},
	OpCMDestroyID: {name: "CM_DESTROY_ID", messages: func() (req, rep Message) {
		return &HandleRequest{}, &CMDestroyIDReply{}
	}},
	OpCMBind: {name: "CM_BIND", quick: true, messages: func() (req, rep Message) {
		return &CMBindRequest{}, &Empty{}
	}},
	OpCMResolveAddr: {name: "CM_RESOLVE_ADDR", quick: true, messages: func() (req, rep Message) {
		return &CMResolveAddrRequest{}, &Empty{}
	}},
	OpCMResolveRoute: {name: "CM_RESOLVE_ROUTE", quick: true, messages: func() (req, rep Message) {
		return &CMResolveRouteRequest{}, &Empty{}
	}},
	OpCMListen: {name: "CM_LISTEN", messages: func() (req, rep Message) {
		return &CMListenRequest{}, &Empty{}
	}},
	OpCMConnect: {name: "CM_CONNECT", quick: true, messages: func() (req, rep Message) {
		return &CMConnectRequest{}, &Empty{}
	}},
	OpCMAccept: {name: "CM_ACCEPT", quick: true, messages: func() (req, rep Message) {
		return &CMConnectRequest{}, &Empty{}
	}},
	OpCMReject: {name: "CM_REJECT", messages: func() (req, rep Message) {
		return &CMRejectRequest{}, &Empty{}
	}},
	OpCMDisconnect: {name: "CM_DISCONNECT", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpCMMigrate: {name: "CM_MIGRATE", messages: func() (req, rep Message) {
		return &CMMigrateRequest{}, &CMMigrateReply{}
	}},
	OpCMSetOption: {name: "CM_SET_OPTION", quick: true, messages: func() (req, rep Message) {
		return &CMSetOptionRequest{}, &Empty{}
	}},
	OpCMInitQPAttr: {name: "CM_INIT_QP_ATTR", quick: true, messages: func() (req, rep Message) {
		return &CMInitQPAttrRequest{}, &CMInitQPAttrReply{}
	}},
	OpCMQuery: {name: "CM_QUERY", quick: true, messages: func() (req, rep Message) {
		return &HandleRequest{}, &CMQueryReply{}
	}},
	OpCMGetEvent: {name: "CM_GET_EVENT", quick: true, messages: func() (req, rep Message) {
		return &HandleRequest{}, &CMEvent{}
	}},
	OpCMJoinMulticast: {name: "CM_JOIN_MULTICAST", messages: func() (req, rep Message) {
		return &CMJoinMulticastRequest{}, &Empty{}
	}},
	OpCMLeaveMulticast: {name: "CM_LEAVE_MULTICAST", messages: func() (req, rep Message) {
		return &CMLeaveMulticastRequest{}, &CMLeaveMulticastReply{}
	}},
	OpCMEstablish: {name: "CM_ESTABLISH", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpCMNotify: {name: "CM_NOTIFY", messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpCMOpenUDP: {name: "CM_OPEN_UDP", gives: 1, messages: func() (req, rep Message) {
		return &HandleRequest{}, &Empty{}
	}},
	OpList: {name: "LIST", messages: func() (req, rep Message) {
		return &ListRequest{}, &ListReply{}
	}},
	OpStat: {name: "STAT", messages: func() (req, rep Message) {
		return &ListRequest{}, &ListReply{}
	}},
	OpControl: {name: "CONTROL", takes: 1, messages: func() (req, rep Message) {
		return &ControlRequest{}, &Empty{}
	}},
}
