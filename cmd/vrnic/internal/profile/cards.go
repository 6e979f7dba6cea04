package profile

import (
	"math"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/rpc"
	"github.com/vrnic/vrnic/shm/server"
)

// Bits of enum ibv_device_cap_flags and of IB_PORT_*_SUP, as rdma-core's verbs.h and Linux's
// ib_verbs.h have them.
const (
	capRNR       = 1 << 12
	capMW        = 1 << 17
	capMemMgt    = 1 << 21
	capMWType2B  = 1 << 24
	portCM       = 1 << 16
	portSNMP     = 1 << 17
	portReinit   = 1 << 18
	portMgmt     = 1 << 19
	portVendor   = 1 << 20
	portBootMgmt = 1 << 23
	atomicHCA    = 1
)

// The cards, in an order in which those of one name are together. Where each figure comes from
// stands with it: files are those of Linux, below drivers/infiniband, if nothing else is said, and
// issues are of projects on GitHub, whose reporters have put there what ibv_devinfo -v printed.
// docs/laboratory.md has the same as a table, and what is left out.
var all = []Profile{
	{
		// sw/siw/siw.h and siw_query_device, siw_query_port and siw_create_qp of sw/siw/siw_verbs.c;
		// SIW_MAX_SGE and SIW_MAX_INLINE (5 SGEs of 16 octets) of include/uapi/rdma/siw-abi.h. It
		// has no firmware; rdma-core's provider prints the zero so. What its library lacks is not among
		// siw_context_ops of providers/siw/siw.c.
		Name: "siw", IWARP: true,
		Firmware: "0.0.0", VendorID: 0x626d74,
		MaxMRLen: math.MaxUint64, PageSizes: 4096, CapFlags: capMemMgt,
		MaxQP: 102400, MaxQPWR: 32768, MaxSGE: 6, MaxReadSGE: 1, MaxInline: 80,
		MaxCQ: 102400, MaxCQE: 3276800, MaxMR: 1024000, MaxPD: 102400,
		MaxSRQ: 102400, MaxSRQWR: 327680, MaxSRQSGE: 6,
		MaxIRD: 128, MaxORD: 128, MaxReads: 102400 * 128,
		GIDs: 1, PortCaps: portCM | portMgmt, MaxMsg: math.MaxUint32,
		Lacks: LacksODP | LacksTimestamps | LacksAtomics | LacksImmediate | LacksMW |
			LacksResizeCQ | LacksQuerySRQ,
		TooDeep: syscall.EINVAL, TooWide: syscall.EINVAL, TooInline: syscall.EINVAL,
		TooLargeSRQ: syscall.EINVAL, EmptySRQ: true, Moves: siwMoves,
		// siw_create_srq leaves what was asked for.
		SRQSizes: func(wr, sge uint32) SRQSize { return SRQSize{WR: wr, SGE: sge} },
	},
	{
		// sw/rxe/rxe_param.h of Linux 6, whose DEFAULT_MAX_VALUE is 2^20; inline is 32 SGEs of 16
		// octets. The flags are without the three above bit 31, which are of operations that are not
		// there. Ports and PKeys are of the same file; no ODP, and no clock: openucx/ucx issue 5045.
		Name: "rxe", RoCE: true,
		Firmware: "0.0.0", VendorID: 0xffffff,
		MaxMRLen: math.MaxUint64, PageSizes: 0xfffff000, CapFlags: 0x01223c76, AtomicCap: atomicHCA,
		MaxQP: 1<<20 - 16, MaxQPWR: 1 << 20, MaxSGE: 32, MaxReadSGE: 32, MaxInline: 512,
		MaxCQ: 1 << 20, MaxCQE: 1<<15 - 1, MaxMR: 1<<19 - 1, MaxPD: 1 << 20, MaxMW: 1<<19 - 1,
		MaxSRQ: 1<<20 - 0x20001, MaxSRQWR: 1 << 20, MaxSRQSGE: 27,
		MaxIRD: 128, MaxORD: 128, MaxReads: 0x3f000, MaxAH: 1<<15 - 1,
		MaxGroups: 8192, MaxGroupQPs: 56, MaxMembers: 0x70000, MaxPKeys: 64, AckDelay: 15,
		GIDs: 1024, PortCaps: portCM, MaxMsg: 0x800000,
		Lacks:   LacksODP | LacksTimestamps,
		TooDeep: syscall.EINVAL, TooWide: syscall.EINVAL, TooInline: syscall.EINVAL,
		CQDepths: oneIsEmpty, TooLargeSRQ: syscall.EINVAL, EmptySRQ: true,
		// rxe_srq_chk_init and rxe_srq_from_init of sw/rxe/rxe_srq.c since Linux's 06e1f13ffd8b.
		SRQSizes: func(wr, sge uint32) SRQSize { return SRQSize{WR: oneIsEmpty(wr), SGE: max(sge, 1)} },
	},
	{
		// A Chelsio T580-LP-CR (PCI 1425:5410, of drivers/net/ethernet/chelsio/cxgb4/t4_pci_id_tbl.h).
		// c4iw_query_device and c4iw_query_port of hw/cxgb4/provider.c, t4_max_qp_depth and
		// t4_max_cq_depth of hw/cxgb4/device.c with one status entry, c4iw_create_qp of
		// hw/cxgb4/qp.c, T4_MAX_RECV_SGE and T4_MAX_SEND_INLINE (five slots of 64 octets without the
		// 40 of the headers) of hw/cxgb4/t4.h, c4iw_max_read_depth of hw/cxgb4/cm.c. How many queue
		// pairs, completion queues, regions and shared receive queues there are is the card's memory's,
		// and firmware's; a driver has no query_srq, whatever its library asks.
		Name: "cxgb4", IWARP: true,
		Firmware: "vrnic", VendorID: 0x1425, PartID: 0x5410,
		HCAType: "cxgb4", BoardID: "1425.5410", PCIVendor: 0x1425, PCIDevice: 0x5410,
		MaxMRLen: math.MaxUint64, PageSizes: 0x0ffff000, CapFlags: capMW | capMemMgt,
		MaxQPWR: 8190, MaxSGE: 4, MaxReadSGE: 1, MaxInline: 280, MaxCQE: 65518, MaxPD: 65536,
		MaxSRQWR: 8190, MaxSRQSGE: 4,
		MaxIRD: 32, MaxORD: 32, GIDs: 1,
		PortCaps: portCM | portSNMP | portReinit | portMgmt | portVendor | portBootMgmt,
		MaxMsg:   math.MaxUint32,
		Lacks: LacksODP | LacksTimestamps | LacksAtomics | LacksResizeCQ |
			LacksQuerySRQ,
		TooDeep: syscall.E2BIG, TooWide: syscall.EINVAL, TooInline: syscall.EINVAL,
		Sizes: t4Size, CQDepths: t4CQDepth, TooLargeSRQ: syscall.E2BIG, SRQSizes: t4SRQ,
		Moves: t4Moves,
	},
	e810(Profile{RoCE: true, CapFlags: capRNR | capMW | capMemMgt | capMWType2B, MaxPKeys: 1,
		GIDs: 32}),
	e810(Profile{IWARP: true, CapFlags: capMW | capMemMgt | capMWType2B, GIDs: 1, Moves: e810Moves}),
	{
		// An NVIDIA ConnectX-5 with RoCE. Ids, firmware, board, flags, max_qp and max_qp_wr:
		// openucx/ucx issue 9830. The other limits: open-mpi/ompi pull request 6137, of the same card;
		// what that does not show (windows, groups, handles, SRQs, PKeys, the delay of ACKs) is of
		// the same driver: openucx/ucx issue 10317. The port: openucx/ucx issue 10430. What queue
		// pairs are refused with: mlx5_calc_sq_size and mlx5_calc_rq_size of providers/mlx5/verbs.c
		// of rdma-core (the library of Mellanox's own distribution says ENOMEM if one is too deep).
		// Octets inline are what is left of a request of max_sq_desc_sz, of datagrams.
		Name: "mlx5", RoCE: true,
		Firmware: "16.27.1016", VendorID: 0x02c9, PartID: 4119,
		HCAType: "MT4119", BoardID: "MT_0000000080", PCIVendor: 0x15b3, PCIDevice: 0x1017,
		MaxMRLen: math.MaxUint64, PageSizes: 0xfffffffffffff000, CapFlags: 0xed721c36,
		AtomicCap: atomicHCA,
		MaxQP:     262144, MaxQPWR: 32768, MaxSGE: 30, MaxReadSGE: 30, MaxInline: 956,
		MaxCQ: 16777216, MaxCQE: 4194303, MaxMR: 16777216, MaxPD: 16777216, MaxMW: 16777216,
		MaxSRQ: 8388608, MaxSRQWR: 32767, MaxSRQSGE: 31,
		MaxIRD: 16, MaxORD: 16, MaxReads: 4194304, MaxAH: math.MaxInt32,
		MaxGroups: 2097152, MaxGroupQPs: 240, MaxMembers: 503316480, MaxPKeys: 128, AckDelay: 16,
		PortCaps: 0x04010000, MaxMsg: 0x40000000,
		TooDeep: syscall.EINVAL, TooWide: syscall.EINVAL, TooInline: syscall.EINVAL,
		Sizes: mlx5Size, CQDepths: oneIsEmpty, TooLargeSRQ: syscall.EINVAL, SRQSizes: mlx5SRQ,
		Moves: mlx5Moves,
	},
}

// e810 is an Intel E810-C in the mode of p, which its driver, irdma, is loaded with. Ids, firmware
// and limits: deepseek-ai/3FS issue 192, where it speaks RoCE. The port and what iWARP has in
// another way: irdma_query_device and irdma_query_port of hw/irdma/verbs.c. Inline:
// IRDMA_MAX_INLINE_DATA_SIZE of hw/irdma/user.h. The driver of that firmware has no atomics and no
// shared receive queues; its library refuses queue pairs with EINVAL (linux-rdma/rdma-core pull
// request 1365).
func e810(p Profile) Profile {
	p.Name = "irdma"
	p.Firmware, p.VendorID, p.PartID, p.HWVersion = "1.74", 0x8086, 5522, 2
	p.PCIVendor, p.PCIDevice = 0x8086, 5522
	p.MaxMRLen, p.PageSizes = 0x200000000000, 0x40201000
	p.MaxQP, p.MaxQPWR, p.MaxSGE, p.MaxReadSGE, p.MaxInline = 4092, 8127, 6, 6, 101
	p.MaxCQ, p.MaxCQE, p.MaxMR, p.MaxPD = 8189, 1048574, 4194301, 262141
	p.MaxIRD, p.MaxORD, p.MaxAH = 8, 8, 131072
	p.MaxGroups, p.MaxGroupQPs, p.MaxMembers = 4096, 8, 32768
	p.PortCaps, p.MaxMsg = portCM|portReinit, math.MaxInt32
	p.Lacks = LacksODP | LacksTimestamps | LacksAtomics | LacksSRQ
	p.TooDeep, p.TooWide, p.TooInline = syscall.EINVAL, syscall.EINVAL, syscall.EINVAL
	p.Sizes = e810Size
	// ucreate_cq of providers/irdma/uverbs.c says what was asked for.
	p.CQDepths = func(asked uint32) uint32 { return asked }
	return p
}

// e810Size is that of irdma_ucreate_qp of providers/irdma/uverbs.c in rdma-core: a queue has a
// power of two of units, of which a request takes one, two, four or eight, and some are kept
// (irdma_get_wqe_shift, irdma_get_sqdepth and irdma_get_rqdepth of uk.c; IRDMA_SQ_RSVD and
// IRDMA_RQ_RSVD of defs.h). A send request has a part more, for immediate data.
func e810Size(c *rpc.QPCaps, _ uint32) (size server.QPSize, ok bool) {
	size.Send = e810Depth(c.MaxSendWR, e810Shift(c.MaxSendSGE+1, c.MaxInline), 258)
	size.Recv = e810Depth(c.MaxRecvWR, e810Shift(c.MaxRecvSGE, 0), 1)
	return size, true
}

func e810Shift(parts, inline uint32) int {
	switch {
	case parts <= 1 && inline <= 8:
		return 0
	case parts < 4 && inline <= 39:
		return 1
	case parts < 8 && inline <= 101:
		return 2
	}
	return 3
}

// e810Depth is of IRDMA_QP_SW_MIN_WQSIZE, 8, requests at least.
func e810Depth(asked uint32, shift int, kept uint32) uint32 {
	return (max(abi.CeilPow2(asked<<shift+kept), 8<<shift) - kept) >> shift
}

// t4Size is that of c4iw_create_qp of hw/cxgb4/qp.c: a queue has one place more than is asked
// for, and eight at least.
func t4Size(c *rpc.QPCaps, _ uint32) (size server.QPSize, ok bool) {
	return server.QPSize{Send: max(c.MaxSendWR, 7), Recv: max(c.MaxRecvWR, 7)}, true
}

// mlx5Size is that of mlx5_calc_sq_size of providers/mlx5/verbs.c in rdma-core: a send queue
// has a power of two of octets, and as many requests as go into these. A request takes units of 64
// octets, of which a queue has max_qp_wr at most (max_send_wqebb and max_qp_wr of hw/mlx5/main.c
// before Linux's commit 1a7c18c485bf, which says so), for what is in front of its parts or its
// octets inline (_sq_overhead and mlx5_calc_send_wqe): of RC and UC as much as binding a window
// takes. It has 1024 octets at most (max_sq_desc_sz): linux-rdma/perftest pull request 176 found
// 1004 inline on a queue pair that says that it only Sends, in front of which are 16, and 4.
func mlx5Size(c *rpc.QPCaps, typ uint32) (size server.QPSize, ok bool) {
	const unit, part, units, most = 64, 16, 32768, 1024
	front := uint32(192)
	if typ == rpc.TypeUD {
		front = 64
	}
	one := front + c.MaxSendSGE*part
	if c.MaxInline > 0 {
		one = max(one, front+roundUp(4+c.MaxInline, part))
	}
	if one > most {
		return size, false
	}
	one = roundUp(one, unit)
	all := abi.CeilPow2(c.MaxSendWR * one)
	return server.QPSize{Send: all / one, Inline: one - front - 4}, all/unit <= units
}

// mlx5SRQ is that of mlx5_create_srq and mlx5_alloc_srq_buf of providers/mlx5 in rdma-core: one of
// a power of two is empty, and what a receive takes, with 16 octets in front of its parts, is one.
// A queue that waits for pages has as many again, if there is room, which mlx5_ib_query_srq of
// hw/mlx5/srq.c counts, too.
func mlx5SRQ(wr, sge uint32) SRQSize {
	const part, most = 16, 32767
	size := SRQSize{WR: oneIsEmpty(wr), SGE: max(abi.CeilPow2(part+sge*part), 2*part)/part - 1}
	if size.QueriedWR = size.WR; 2*wr+1 <= most {
		size.QueriedWR = oneIsEmpty(2 * wr)
	}
	return size
}

// mlx5Moves is optab of hw/mlx5/qp.c: none leads to SQD.
func mlx5Moves(_, to uint32) Move {
	if to == abi.StateSQD {
		return MoveRefused
	}
	return MoveAsDevice
}

// t4SRQ is that of c4iw_create_srq of hw/cxgb4/qp.c: a power of two, 16 at least, of which one is
// empty.
func t4SRQ(wr, sge uint32) SRQSize { return SRQSize{WR: max(oneIsEmpty(wr), 15), SGE: sge} }

// t4Moves are those of c4iw_ib_modify_qp and c4iw_modify_qp of hw/cxgb4/qp.c, where they are not
// the device's: iWARP has no RTR, which is passed over, and what ends is not moved any more.
func t4Moves(from, to uint32) Move {
	switch {
	case to == abi.StateRTR, from == to:
		return MoveNowhere
	case from == abi.StateSQD, from == abi.StateSQE:
		return MoveRefused
	}
	return MoveAsDevice
}

// siwMoves are those of siw_qp_modify of sw/siw/siw_qp.c, where they are not the device's: what it
// does not know it passes over, and from an error nothing leads back.
func siwMoves(from, to uint32) Move {
	ends := to == abi.StateSQD || to == abi.StateSQE
	switch from {
	case abi.StateReset, abi.StateInit:
		if ends || to == abi.StateRTR {
			return MoveNowhere
		}
	case abi.StateRTS:
		if !ends && to != abi.StateErr {
			return MoveNowhere
		}
	case abi.StateSQE:
		if to != abi.StateErr {
			return MoveNowhere
		}
	case abi.StateErr:
		return MoveNowhere
	}
	return MoveAsDevice
}

// e810Moves are those of irdma_modify_qp of hw/irdma/verbs.c, which is iWARP's, where they are not
// the device's: Reset is an error there, from which nothing leads back.
func e810Moves(from, to uint32) Move {
	idle := from == abi.StateReset || from == abi.StateInit
	switch to {
	case abi.StateReset:
		return MoveToError
	case abi.StateInit, abi.StateRTR:
		if idle {
			return MoveNowhere
		}
		return MoveRefused
	case abi.StateSQD:
		if idle || from == abi.StateSQD {
			return MoveNowhere
		}
	}
	return MoveAsDevice
}

// t4CQDepth is that of c4iw_create_cq of hw/cxgb4/cq.c: multiples of 16, of which two are not for
// completions.
func t4CQDepth(asked uint32) uint32 { return roundUp(asked+2, 16) - 2 }

// oneIsEmpty is how many completions are in a power of two of places one of which is none:
// rxe_queue_init of sw/rxe/rxe_queue.c, and mlx5_ib_create_cq of hw/mlx5/cq.c, before which
// create_cq of libmlx5 does the same.
func oneIsEmpty(asked uint32) uint32 { return abi.CeilPow2(asked+1) - 1 }

func roundUp(n, to uint32) uint32 { return (n + to - 1) / to * to }
