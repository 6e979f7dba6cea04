/* Generated from shm/abi and shm/rpc by go generate; do not edit. */
#ifndef VRNIC_ABI_CONTROL_H
#define VRNIC_ABI_CONTROL_H

#ifndef VRNIC_ABI_H
#error "include abi.h"
#endif

/* VRNIC_MAX_MESSAGE is the most that one message holds, header included. */
#define VRNIC_MAX_MESSAGE		4096

/* VRNIC_HEADER_LEN is the length of the encoded struct vrnic_header. */
#define VRNIC_HEADER_LEN		16

/* Features in HELLO. */
#define VRNIC_FEATURE_REASONS		1	/* asks for a struct vrnic_refusal with refusals */
/* what is answered by EINPROGRESS is sent again; else it is waited for */
#define VRNIC_FEATURE_AGAIN		2
/* offers the direct path; in the reply: it can be had (docs/direct.md) */
#define VRNIC_FEATURE_DIRECT		8
/* QUERY_DEVICE tells a device that has gone, ENXIO, from none, ENODEV */
#define VRNIC_FEATURE_GONE		16
#define VRNIC_FEATURE_SOCKETS		32	/* takes sockets for events; else they are pipes */

/* Namespaces of IDENTIFY. */
#define VRNIC_NAMESPACE_USER		1
#define VRNIC_NAMESPACE_PROCESS		2

/*
 * VRNIC_DEVICE_NAME_LEN is the space for a device's name, zero padded. VRNIC_MAX_DEVICES is how
 * many names HELLO returns; further ones are found by QUERY_DEVICE.
 */
#define VRNIC_DEVICE_NAME_LEN		32
#define VRNIC_MAX_DEVICES		64

/* VRNIC_MAX_ADDRS is how many addresses of a device QUERY_DEVICE returns. */
#define VRNIC_MAX_ADDRS			16

/* Kinds of object in an struct vrnic_async_event. */
#define VRNIC_OBJ_NONE			0
#define VRNIC_OBJ_CQ			1
#define VRNIC_OBJ_QP			2
#define VRNIC_OBJ_SRQ			3

/* Modes of REG_MR. */
#define VRNIC_MODE_APP			0	/* the program's own memory, through the fd of SET_MEM */
#define VRNIC_MODE_SHARED		1	/* a part of a memfd of ADD_MEM */

/* Flags of REREG_MR: enum ibv_rereg_mr_flags. */
#define VRNIC_REREG_TRANSLATION		1	/* Addr, Length, IOVA, Offset, Mode and Mem */
#define VRNIC_REREG_PD			2
#define VRNIC_REREG_ACCESS		4

/* Mask of MODIFY_SRQ: enum ibv_srq_attr_mask, of which the change of MaxWR is EOPNOTSUPP. */
#define VRNIC_MODIFY_SRQ_MAX_WR		1
#define VRNIC_MODIFY_SRQ_LIMIT		2

/* Flags of CREATE_QP. */
#define VRNIC_CREATE_QP_SIG_ALL		1	/* every send request completes visibly */
/* after a graceful end the QP is in VRNIC_STATE_ERR, not in VRNIC_STATE_INIT */
#define VRNIC_CREATE_QP_END_IN_ERROR	2

/* Mask of MODIFY_QP: enum ibv_qp_attr_mask, of which daemons of minor version 0 know one. */
#define VRNIC_MODIFY_QP_STATE		1
#define VRNIC_MODIFY_QP_KNOWN		((1u << 21) - 1)	/* all of them */

/* Types of QP, enum ibv_qp_type. */
#define VRNIC_TYPE_R_C			2
#define VRNIC_TYPE_U_C			3
#define VRNIC_TYPE_U_D			4

/* VRNIC_AH_GLOBAL in struct vrnic_ah_attr.flags is is_global: without it there is no address. */
#define VRNIC_AH_GLOBAL			1

/* Kinds of device, enum ibv_node_type. */
#define VRNIC_NODE_CA			1
#define VRNIC_NODE_R_N_I_C		4

/* What struct vrnic_query_device_reply.card says. */
#define VRNIC_CARD_FIGURES		1	/* the device is described as a card of others */
#define VRNIC_CARD_UNPAGED		2	/* it has no memory that is paged on demand */
#define VRNIC_CARD_CLOCKLESS		4	/* and no clock for completions */

/* Verbs of CONTROL, and its flags. Key is device, port, limit, impair or fault. */
#define VRNIC_CONTROL_ADD		1
#define VRNIC_CONTROL_DEL		2
#define VRNIC_CONTROL_SET		3
#define VRNIC_CONTROL_RELOAD		4	/* its file, with Key and Value empty */
/*
 * VRNIC_CONTROL_CAPTURE changes nothing: Key is how many octets of a packet are wanted, Value the
 * names of devices and ports, one a line; the descriptor is a stream socket, to which they come.
 * Behind the number the word " requests" says that what happens to requests of these devices is to
 * come, too: CaptureKey makes it.
 */
#define VRNIC_CONTROL_CAPTURE		5
/*
 * VRNIC_CONTROL_LATENCY changes nothing: Value names devices, or queue pairs as DEVICE,qp=N, one a
 * line, or is empty for all devices. To the stream socket that is the descriptor comes, when its
 * other end has been shut for writing, what requests of theirs have taken meanwhile, in JSON.
 */
#define VRNIC_CONTROL_LATENCY		6
/*
 * VRNIC_CONTROL_TRACE changes nothing: Value is a queue pair as DEVICE,qp=N. What happens to its
 * requests, and the packets of its device, come to the stream socket that is the descriptor.
 */
#define VRNIC_CONTROL_TRACE		7
/*
 * VRNIC_CONTROL_RECORD changes nothing: Value names devices, one a line, or is empty for all. A
 * recording of what they do comes to the stream socket that is the descriptor.
 */
#define VRNIC_CONTROL_RECORD		8

#define VRNIC_CONTROL_FORCE		1	/* also what ends connections */
#define VRNIC_CONTROL_OFFLOADS		2	/* the TAP takes super-frames and partial checksums */
#define VRNIC_CONTROL_UDP		4	/* super-frames of UDP, too */
#define VRNIC_CONTROL_KNOWN		7

/* Limits of LIST. */
#define VRNIC_LIST_DEV			1
#define VRNIC_LIST_QP			2
#define VRNIC_LIST_MR			3
#define VRNIC_LIST_CQ			4
#define VRNIC_LIST_CM			5
#define VRNIC_LIST_CLIENT		6
#define VRNIC_LIST_PORT			7
#define VRNIC_LIST_DAEMON		8
#define VRNIC_LIST_USER			9
#define VRNIC_LIST_GID			10
#define VRNIC_LIST_PD			11
#define VRNIC_LIST_SRQ			12
#define VRNIC_LIST_MW			13
#define VRNIC_LIST_PEER			14
#define VRNIC_LIST_NETIF		15
#define VRNIC_LIST_CONFIG		16
#define VRNIC_LIST_IMPAIR		17
#define VRNIC_LIST_FAULT		18
#define VRNIC_LIST_CTX			19

/* VRNIC_LIST_DATA is how much of rows one reply holds. */
#define VRNIC_LIST_DATA			((VRNIC_MAX_MESSAGE - VRNIC_HEADER_LEN) - 16)

/* The calls. Numbers are never used again. */
#define VRNIC_OP_HELLO			1
#define VRNIC_OP_SET_MEM		2
#define VRNIC_OP_ADD_MEM		3
#define VRNIC_OP_DEL_MEM		4
#define VRNIC_OP_QUERY_DEVICE		5
#define VRNIC_OP_QUERY_PORT		6
#define VRNIC_OP_QUERY_GID		7
#define VRNIC_OP_CTX_OPEN		16
#define VRNIC_OP_CTX_CLOSE		17
#define VRNIC_OP_GET_ASYNC_EVENT	18
#define VRNIC_OP_ALLOC_PD		32
#define VRNIC_OP_DEALLOC_PD		33
#define VRNIC_OP_REG_MR			34
#define VRNIC_OP_DEREG_MR		35
#define VRNIC_OP_REREG_MR		36
#define VRNIC_OP_ALLOC_MW		37
#define VRNIC_OP_DEALLOC_MW		38
#define VRNIC_OP_ALLOC_MR		39
#define VRNIC_OP_CREATE_CHAN		48
#define VRNIC_OP_DESTROY_CHAN		49
#define VRNIC_OP_CREATE_CQ		50
#define VRNIC_OP_DESTROY_CQ		51
#define VRNIC_OP_RESIZE_CQ		53
#define VRNIC_OP_SWITCH_CQ		54
#define VRNIC_OP_CREATE_SRQ		64
#define VRNIC_OP_MODIFY_SRQ		65
#define VRNIC_OP_QUERY_SRQ		66
#define VRNIC_OP_DESTROY_SRQ		67
#define VRNIC_OP_CREATE_QP		68
#define VRNIC_OP_MODIFY_QP		69
#define VRNIC_OP_QUERY_QP		70
#define VRNIC_OP_DESTROY_QP		71
#define VRNIC_OP_CREATE_AH		72
#define VRNIC_OP_DESTROY_AH		73
#define VRNIC_OP_ATTACH_MCAST		74
#define VRNIC_OP_DETACH_MCAST		75
#define VRNIC_OP_DIRECT			76
#define VRNIC_OP_IDENTIFY		77
#define VRNIC_OP_DIRECT_KEYS		78
#define VRNIC_OP_DIRECT_MEM		79
#define VRNIC_OP_DIRECT_SLEEP		80
#define VRNIC_OP_DIRECT_WAKE		81
#define VRNIC_OP_DIRECT_BITS		82
#define VRNIC_OP_DIRECT_PEER_BITS	83
#define VRNIC_OP_LIST			128
#define VRNIC_OP_STAT			129
#define VRNIC_OP_CONTROL		131

/* A struct vrnic_header begins every message. */
struct vrnic_header {
	uint16_t op;
	uint16_t flags;	/* none is known: zero */
	uint32_t seq;	/* the reply repeats the request's */
	int32_t status;	/* 0 or -errno; 0 in a request */
	uint32_t len;	/* octets that follow */
};
VRNIC_ABI_SIZE(vrnic_header, 16);

/*
 * A struct vrnic_handle_request names one object: DEL_MEM, CTX_CLOSE, GET_ASYNC_EVENT (a context),
 * DEALLOC_PD, DEREG_MR, DEALLOC_MW, DESTROY_*, SWITCH_CQ, QUERY_QP, QUERY_SRQ, CM_DESTROY_*,
 * CM_DISCONNECT, CM_QUERY, CM_ESTABLISH, CM_NOTIFY, CM_OPEN_UDP, CM_GET_EVENT (a channel).
 */
struct vrnic_handle_request {
	uint32_t handle;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_handle_request, 8);

/*
 * A struct vrnic_destroy_reply says how many async events of the object the client has been given
 * (it may wait until they are acknowledged), and how many were dropped, whose tokens it takes back.
 */
struct vrnic_destroy_reply {
	uint32_t reported;
	uint32_t tokens;
};
VRNIC_ABI_SIZE(vrnic_destroy_reply, 8);

/*
 * A struct vrnic_refusal says in words why a request was refused, to a client that has asked for it
 * by VRNIC_FEATURE_REASONS. It stands behind a status below 0 where there is more to say than that,
 * but for the HELLO of another version.
 */
struct vrnic_refusal {
	char why[512];
};
VRNIC_ABI_SIZE(vrnic_refusal, 512);

/* A struct vrnic_prefix is an address of a device. family 0 is none. */
struct vrnic_prefix {
	uint16_t family;	/* VRNIC_AF_INET, VRNIC_AF_INET6 */
	uint16_t bits;
	uint32_t pad;
	uint8_t addr[16];	/* IPv4 in the first four */
};
VRNIC_ABI_SIZE(vrnic_prefix, 24);

/*
 * struct vrnic_qp_caps sizes a QP. With an SRQ max_recv_wr, max_recv_sge and rx_slab are 0 in the
 * reply.
 */
struct vrnic_qp_caps {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline;
	uint32_t tx_slab;	/* octets of slab for sends: a power of two, or 0 for none */
	uint32_t rx_slab;	/* octets of slab for receives */
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_qp_caps, 32);

/* An struct vrnic_ah_attr is struct ibv_ah_attr, as far as Ethernet has it: where packets go to. */
struct vrnic_ah_attr {
	uint8_t gid[16];	/* of the peer, or of a multicast group */
	uint32_t flow_label;
	uint32_t flags;	/* VRNIC_AH_GLOBAL */
	uint8_t gid_index;	/* of the device's gid that packets come from */
	uint8_t hop_limit;	/* 0: 64 */
	uint8_t traffic_class;
	uint8_t s_l;
	uint32_t port;	/* 1 */
};
VRNIC_ABI_SIZE(vrnic_ah_attr, 32);

/*
 * A struct vrnic_qp_attr is struct ibv_qp_attr but for its state and what RoCE has not: capacities,
 * an alternate path and a rate.
 */
struct vrnic_qp_attr {
	uint32_t cur_state;	/* VRNIC_STATE_ERR... */
	uint32_t path_mtu;	/* enum ibv_mtu */
	uint32_t mig_state;	/* enum ibv_mig_state: 0 migrated */
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qpn;
	uint32_t access;	/* enum ibv_access_flags */
	struct vrnic_ah_attr path;
	uint32_t pkey_index;
	uint8_t port;
	uint8_t max_read;	/* max_rd_atomic */
	uint8_t max_dest_read;	/* max_dest_rd_atomic */
	uint8_t min_rnr_timer;
	uint8_t timeout;
	uint8_t retry_count;
	uint8_t rnr_retry;
	uint8_t drained_event;	/* en_sqd_async_notify */
	uint32_t draining;	/* sq_draining */
};
VRNIC_ABI_SIZE(vrnic_qp_attr, 80);

/* struct vrnic_hello_request must come first, within the time that the daemon allows. */
struct vrnic_hello_request {
	uint32_t magic;	/* VRNIC_MAGIC_HELLO */
	uint16_t major;
	uint16_t minor;
	/* VRNIC_FEATURE_REASONS, Again, Direct, Gone, Sockets; others are passed over */
	uint64_t features;
	char comm[16];
};
VRNIC_ABI_SIZE(vrnic_hello_request, 32);

/*
 * struct vrnic_hello_reply carries the session memfd and the doorbell eventfd, in this order. On a
 * mismatch of versions the status is -EPROTONOSUPPORT, there is no fd, and major and minor are the
 * daemon's.
 */
struct vrnic_hello_reply {
	uint32_t magic;
	uint16_t major;
	uint16_t minor;
	uint64_t features;
	uint32_t session;
	uint32_t num_devices;
	char devices[VRNIC_MAX_DEVICES][VRNIC_DEVICE_NAME_LEN];
};
VRNIC_ABI_SIZE(vrnic_hello_reply, 2072);

/*
 * struct vrnic_set_mem_request carries the client's /proc/self/mem, open for reading and writing.
 */
struct vrnic_set_mem_request {
	uint64_t nonce_addr;	/* where the client has mapped the session page's nonce */
};
VRNIC_ABI_SIZE(vrnic_set_mem_request, 8);

/* struct vrnic_add_mem_request carries a sealed memfd. */
struct vrnic_add_mem_request {
	uint32_t flags;	/* none is known */
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_add_mem_request, 8);

/* struct vrnic_add_mem_reply: size is that of the memfd. */
struct vrnic_add_mem_reply {
	uint32_t mem;
	uint32_t pad;
	uint64_t size;
};
VRNIC_ABI_SIZE(vrnic_add_mem_reply, 16);

/*
 * struct vrnic_query_device_request: device counts from 0 in the order of struct
 * vrnic_hello_reply.devices; ENODEV beyond the last, and of one that has gone ENXIO, to who has set
 * VRNIC_FEATURE_GONE.
 */
struct vrnic_query_device_request {
	uint32_t device;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_query_device_request, 8);

/* struct vrnic_query_device_reply describes a device and its limits for this session. */
struct vrnic_query_device_reply {
	char name[VRNIC_DEVICE_NAME_LEN];
	uint64_t guid;
	uint64_t max_mr_len;
	uint8_t mac[6];
	uint16_t num_addrs;
	uint32_t mtu;
	uint32_t vendor_id;
	uint32_t part_id;
	uint32_t hw_version;
	uint32_t max_qp;
	uint32_t max_qp_wr;
	uint32_t max_sge;
	uint32_t max_inline;
	uint32_t max_cq;
	uint32_t max_cqe;
	uint32_t max_mr;
	uint32_t max_pd;
	uint32_t max_mw;
	uint32_t max_srq;
	uint32_t max_srq_wr;
	uint32_t max_srq_sge;
	uint32_t max_ird;
	uint32_t max_ord;
	uint32_t cap_flags;
	uint32_t atomic_cap;
	char fw_version[32];
	struct vrnic_prefix addrs[VRNIC_MAX_ADDRS];

	/* Since minor version 1. */

	/* enum ibv_node_type: VRNIC_NODE_CA speaks RoCE, VRNIC_NODE_R_N_I_C, or 0, iWARP */
	uint32_t node_type;
	uint32_t max_ah;
	uint32_t max_groups;	/* multicast groups */
	uint32_t max_group_qps;	/* QPs attached to one */

	/* Since minor version 2. */

	uint64_t page_sizes;
	uint32_t card;	/* VRNIC_CARD_FIGURES...: what is told is a card's, whatever the session's quotas */
	uint32_t refused_ops;	/* opcodes that are not to be posted, a bit each */
	uint32_t max_read_sge;	/* of a Read */
	uint32_t max_reads;	/* Reads and atomics that the device answers at a time */
	uint32_t max_members;	/* QPs attached to all multicast groups */
	uint32_t max_pkeys;
	uint32_t ack_delay;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_query_device_reply, 608);

/* struct vrnic_query_port_request: ports count from 1. */
struct vrnic_query_port_request {
	uint32_t device;
	uint32_t port;
};
VRNIC_ABI_SIZE(vrnic_query_port_request, 8);

/* struct vrnic_query_port_reply is struct ibv_port_attr, as far as an RNIC has something to say. */
struct vrnic_query_port_reply {
	uint32_t state;	/* enum ibv_port_state: 4 active */
	uint32_t max_mtu;	/* enum ibv_mtu */
	uint32_t active_mtu;
	uint32_t gids;
	uint32_t max_msg;
	uint32_t link_layer;	/* 2 Ethernet */
	uint32_t width;
	uint32_t speed;
	uint32_t phys_state;
	uint32_t cap_flags;
};
VRNIC_ABI_SIZE(vrnic_query_port_reply, 40);

/* struct vrnic_query_gid_request asks for entry index of a port's GID table. */
struct vrnic_query_gid_request {
	uint32_t device;
	uint32_t port;
	uint32_t index;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_query_gid_request, 16);

/* struct vrnic_query_gid_reply is one entry, zero if it is empty. */
struct vrnic_query_gid_reply {
	uint8_t gid[16];
	uint32_t type;	/* enum ibv_gid_type: 2 RoCE v2; 0 of iWARP */
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_query_gid_reply, 24);

/* struct vrnic_ctx_open_request opens a device; the context owns PDs, CQs and channels. */
struct vrnic_ctx_open_request {
	uint32_t device;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_ctx_open_request, 8);

/* struct vrnic_ctx_open_reply carries the client's end of the async event pipe, or socket. */
struct vrnic_ctx_open_reply {
	uint32_t ctx;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_ctx_open_reply, 8);

/* An struct vrnic_async_event answers GET_ASYNC_EVENT; -EAGAIN if there is none. */
struct vrnic_async_event {
	uint32_t type;	/* enum ibv_event_type */
	uint32_t kind;	/* VRNIC_OBJ_CQ... */
	uint32_t handle;	/* of the object */
	uint32_t cause;	/* as the word at VRNIC_QP_ERROR */
};
VRNIC_ABI_SIZE(vrnic_async_event, 16);

/* struct vrnic_alloc_pd_request makes a PD of a context. */
struct vrnic_alloc_pd_request {
	uint32_t ctx;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_alloc_pd_request, 8);

/* struct vrnic_alloc_pd_reply names it. */
struct vrnic_alloc_pd_reply {
	uint32_t pd;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_alloc_pd_reply, 8);

/*
 * struct vrnic_reg_mr_request registers a region. Its octets are addr.. of the program
 * (VRNIC_MODE_APP) or offset.. of mem (VRNIC_MODE_SHARED); SGEs and the peer address it from iova
 * on.
 */
struct vrnic_reg_mr_request {
	uint32_t pd;
	uint32_t access;	/* enum ibv_access_flags; bits 20 to 29 are ignored */
	uint64_t addr;
	uint64_t length;
	uint64_t iova;
	uint64_t offset;
	uint32_t mode;
	uint32_t mem;
};
VRNIC_ABI_SIZE(vrnic_reg_mr_request, 48);

/* struct vrnic_reg_mr_reply names the region. */
struct vrnic_reg_mr_reply {
	uint32_t mr;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_reg_mr_reply, 16);

/*
 * struct vrnic_rereg_mr_request changes what flags name of a region; the other fields are zero. Its
 * reply is REG_MR's: the handle stays, and the keys unless there is a new translation, with which
 * they are new. If it fails the region is as it was.
 */
struct vrnic_rereg_mr_request {
	uint32_t mr;
	uint32_t flags;
	struct vrnic_reg_mr_request new;
};
VRNIC_ABI_SIZE(vrnic_rereg_mr_request, 56);

/* struct vrnic_alloc_mw_request makes a memory window that is not bound. */
struct vrnic_alloc_mw_request {
	uint32_t pd;
	uint32_t type;	/* enum ibv_mw_type */
};
VRNIC_ABI_SIZE(vrnic_alloc_mw_request, 8);

/* struct vrnic_alloc_mw_reply names it. */
struct vrnic_alloc_mw_reply {
	uint32_t mw;
	uint32_t rkey;
};
VRNIC_ABI_SIZE(vrnic_alloc_mw_reply, 8);

/*
 * struct vrnic_alloc_mr_request makes a region of at most max_len octets without memory, for REG_MR
 * work requests. Its reply is REG_MR's.
 */
struct vrnic_alloc_mr_request {
	uint32_t pd;
	uint32_t pad;
	uint64_t max_len;
};
VRNIC_ABI_SIZE(vrnic_alloc_mr_request, 16);

/* struct vrnic_create_chan_request makes a completion channel. */
struct vrnic_create_chan_request {
	uint32_t ctx;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_create_chan_request, 8);

/*
 * struct vrnic_create_chan_reply carries the client's end of the event pipe, or socket, and the
 * ring memfd, in this order.
 */
struct vrnic_create_chan_reply {
	uint32_t chan;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_create_chan_reply, 8);

/* struct vrnic_create_cq_request makes a CQ of at least cqe entries. chan 0: none. */
struct vrnic_create_cq_request {
	uint32_t ctx;
	uint32_t cqe;
	uint32_t chan;
	uint32_t vector;
};
VRNIC_ABI_SIZE(vrnic_create_cq_request, 16);

/*
 * struct vrnic_create_cq_reply carries the cq memfd. cqe is what it is said to hold; its ring may
 * have more.
 */
struct vrnic_create_cq_reply {
	uint32_t cq;
	uint32_t cqe;
};
VRNIC_ABI_SIZE(vrnic_create_cq_reply, 8);

/*
 * struct vrnic_resize_cq_request makes other memory for a cq, of at least cqe entries. It is used
 * from SWITCH_CQ on; another RESIZE_CQ takes its place.
 */
struct vrnic_resize_cq_request {
	uint32_t cq;
	uint32_t cqe;
};
VRNIC_ABI_SIZE(vrnic_resize_cq_request, 8);

/*
 * struct vrnic_resize_cq_reply carries the new memfd. cqe is as struct vrnic_create_cq_reply has
 * it.
 */
struct vrnic_resize_cq_reply {
	uint32_t cqe;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_resize_cq_reply, 8);

/* struct vrnic_create_srq_request makes a shared receive queue. */
struct vrnic_create_srq_request {
	uint32_t pd;
	uint32_t max_wr;
	uint32_t max_sge;
	int32_t max_per_qp;	/* max_per_qp is rdma.SRQConfig's: 0 is the default, below 0 no limit. */
};
VRNIC_ABI_SIZE(vrnic_create_srq_request, 16);

/*
 * struct vrnic_create_srq_reply carries the srq memfd. The counts are those that the srq got: never
 * less than asked.
 */
struct vrnic_create_srq_reply {
	uint32_t srq;
	uint32_t bell;
	uint32_t max_wr;
	uint32_t max_sge;
};
VRNIC_ABI_SIZE(vrnic_create_srq_reply, 16);

/* struct vrnic_modify_srq_request changes what mask names. */
struct vrnic_modify_srq_request {
	uint32_t srq;
	uint32_t mask;
	uint32_t max_wr;
	uint32_t limit;
};
VRNIC_ABI_SIZE(vrnic_modify_srq_request, 16);

/* struct vrnic_query_srq_reply describes an SRQ. limit is 0 if none is armed. */
struct vrnic_query_srq_reply {
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t limit;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_query_srq_reply, 16);

/* struct vrnic_create_qp_request makes a QP. */
struct vrnic_create_qp_request {
	uint32_t pd;
	uint32_t send_cq;
	uint32_t recv_cq;
	uint32_t srq;	/* 0 none */
	struct vrnic_qp_caps caps;
	uint32_t flags;
	uint32_t type;	/* VRNIC_TYPE_R_C, VRNIC_TYPE_U_C, VRNIC_TYPE_U_D; 0 is RC */
};
VRNIC_ABI_SIZE(vrnic_create_qp_request, 56);

/*
 * struct vrnic_create_qp_reply carries the qp memfd. caps are those that the qp got: never less
 * than asked.
 */
struct vrnic_create_qp_reply {
	uint32_t qp;	/* handle */
	uint32_t qpn;
	uint32_t bell;
	uint32_t pad;
	struct vrnic_qp_caps caps;
};
VRNIC_ABI_SIZE(vrnic_create_qp_reply, 48);

/*
 * struct vrnic_modify_qp_request changes what mask names; a mask of 0 changes nothing and succeeds.
 * EINPROGRESS: the way to the peer that attr.path names is being looked for, for some seconds at
 * most, and who sends the request again comes to know.
 */
struct vrnic_modify_qp_request {
	uint32_t qp;
	uint32_t mask;	/* enum ibv_qp_attr_mask */
	uint32_t state;	/* VRNIC_STATE_ERR... */
	uint32_t pad;

	/* Since minor version 1. */

	struct vrnic_qp_attr attr;
};
VRNIC_ABI_SIZE(vrnic_modify_qp_request, 96);

/* struct vrnic_query_qp_reply describes a QP. */
struct vrnic_query_qp_reply {
	uint32_t state;
	uint32_t qpn;
	uint32_t access;
	uint32_t ird;
	uint32_t ord;
	uint32_t pad;
	struct vrnic_qp_caps caps;

	/* Since minor version 1. */

	struct vrnic_qp_attr attr;
};
VRNIC_ABI_SIZE(vrnic_query_qp_reply, 136);

/* struct vrnic_create_ah_request makes an address handle. EINPROGRESS is as MODIFY_QP's. */
struct vrnic_create_ah_request {
	uint32_t pd;
	uint32_t pad;
	struct vrnic_ah_attr attr;
};
VRNIC_ABI_SIZE(vrnic_create_ah_request, 40);

/*
 * struct vrnic_create_ah_reply names it: ah for DESTROY_AH, key for send requests, at VRNIC_SQ_AH.
 */
struct vrnic_create_ah_reply {
	uint32_t ah;
	uint32_t key;
};
VRNIC_ABI_SIZE(vrnic_create_ah_reply, 8);

/*
 * struct vrnic_attach_mcast_request has a UD qp receive what is sent to a multicast group, or not
 * any more (DETACH_MCAST).
 */
struct vrnic_attach_mcast_request {
	uint32_t qp;
	uint32_t pad;
	uint8_t gid[16];
};
VRNIC_ABI_SIZE(vrnic_attach_mcast_request, 24);

/* struct vrnic_direct_reply carries the pair's memfd. */
struct vrnic_direct_reply {
	uint32_t second;	/* 1: the QP is the pair's second, 0: its first */
	uint32_t covered;	/* 1: the QP's CQs have room for all that their queues can have in them */
};
VRNIC_ABI_SIZE(vrnic_direct_reply, 8);

/*
 * struct vrnic_identify_request carries a descriptor of a namespace of the client's,
 * /proc/self/ns/user or pid: of each once, before DIRECT. EOPNOTSUPP: there is no direct path for
 * it.
 */
struct vrnic_identify_request {
	uint32_t kind;	/* VRNIC_NAMESPACE_USER, VRNIC_NAMESPACE_PROCESS */
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_identify_request, 8);

/*
 * struct vrnic_direct_mem_request names memory that the peer of a qp has lent, as the table of keys
 * has it. EAGAIN: there is no direct path for the qp now; ENOENT: there is no such memory any more.
 */
struct vrnic_direct_mem_request {
	uint32_t qp;
	uint32_t mem;
};
VRNIC_ABI_SIZE(vrnic_direct_mem_request, 8);

/*
 * struct vrnic_list_request asks for rows (LIST, STAT). cursor 0 takes a fresh snapshot; Next of
 * the reply goes on in it. kind is unused by STAT.
 */
struct vrnic_list_request {
	uint32_t kind;
	uint32_t flags;	/* none is known */
	uint64_t cursor;
};
VRNIC_ABI_SIZE(vrnic_list_request, 16);

/*
 * struct vrnic_list_reply holds whole rows, each a JSON object and a newline. next 0: that was all.
 */
struct vrnic_list_reply {
	uint64_t next;
	uint32_t len;
	uint32_t pad;
	uint8_t data[VRNIC_LIST_DATA];
};
VRNIC_ABI_SIZE(vrnic_list_reply, 4080);

/*
 * struct vrnic_control_request changes the daemon, for root and the daemon's own user. What verb is
 * done with is value of key, in the words of the command line. A descriptor may come with
 * VRNIC_CONTROL_ADD of a TAP, which it is then; flags say of it what VRNIC_CONTROL_FORCE does not.
 * With VRNIC_CONTROL_CAPTURE, VRNIC_CONTROL_LATENCY, VRNIC_CONTROL_TRACE and VRNIC_CONTROL_RECORD
 * one has to come.
 */
struct vrnic_control_request {
	uint32_t verb;
	uint32_t flags;
	char key[32];
	char value[2048];
};
VRNIC_ABI_SIZE(vrnic_control_request, 2088);

#endif
