/* Generated from shm/abi and shm/rpc by go generate; do not edit. */
#ifndef VRNIC_ABI_CM_H
#define VRNIC_ABI_CM_H

#ifndef VRNIC_ABI_H
#error "include abi.h"
#endif

/* Address families of struct vrnic_sock_addr and struct vrnic_prefix. */
#define VRNIC_AF_INET			2
#define VRNIC_AF_INET6			10

/*
 * VRNIC_MAX_PRIVATE is the space for private data. MPA carries 512 octets, less 4 for its revision
 * 2.
 */
#define VRNIC_MAX_PRIVATE		512

/*
 * VRNIC_READS_DEFAULT in struct vrnic_conn_param.ird or struct vrnic_conn_param.ord asks for the
 * endpoint's default; 0 is none.
 */
#define VRNIC_READS_DEFAULT		0xffff

/* Numbers of enum rdma_port_space that are known; VRNIC_PS_UDP on RoCE only. */
#define VRNIC_PS_TCP			0x0106
#define VRNIC_PS_UDP			0x0111

/* Levels and names of CM_SET_OPTION. Levels 0 and 1 are rdma_cm's. */
#define VRNIC_OPT_LEVEL_ID		0
#define VRNIC_OPT_LEVEL_IB		1
#define VRNIC_OPT_LEVEL_VRNIC		0x5652

#define VRNIC_OPT_TOS			0	/* of VRNIC_OPT_LEVEL_ID, as the next */
#define VRNIC_OPT_REUSE_ADDR		1
#define VRNIC_OPT_AF_ONLY		2
#define VRNIC_OPT_ACK_TIMEOUT		3

#define VRNIC_OPT_MPA_REVISION		1	/* 1 or 2 */
#define VRNIC_OPT_MPA_CRC		2	/* 0 default: as 2; 1 off; 2 wanted; 3 required */
#define VRNIC_OPT_MPA_MARKERS		3	/* 1: ask for markers */
#define VRNIC_OPT_MPA_RTR		4	/* 1 Write, 2 Read, 4 Send, 0 all; VRNIC_RTR_CLIENT_SERVER */
#define VRNIC_OPT_READS			5	/* ird<<16 | ord */
#define VRNIC_OPT_FPDU_SIZE		6	/* the longest segment that is sent, 128 to 64768; 0 as TCP's */
#define VRNIC_OPT_TRANSPORT		7	/* 0 TCP, 1 SCTP */
/* number of the only device that CM_BIND of an unspecified address binds to */
#define VRNIC_OPT_DEVICE		8
#define VRNIC_OPT_EXTENSIONS		9	/* 1: the messages of RFC 7306 are allowed */
#define VRNIC_OPT_PROTOCOL		10	/* 0: iWARP, or VRNIC_PROTOCOL_R_O_I with the other flags */

/* VRNIC_RTR_CLIENT_SERVER in VRNIC_OPT_MPA_RTR turns the peer-to-peer model off. */
#define VRNIC_RTR_CLIENT_SERVER		8

/*
 * VRNIC_PROTOCOL_R_O_I in VRNIC_OPT_PROTOCOL is draft-bailey-roi-rdma-00, experimental: without the
 * credits that the other flags name.
 */
#define VRNIC_PROTOCOL_R_O_I		1
#define VRNIC_PROTOCOL_NO_SEND_CREDITS	2
#define VRNIC_PROTOCOL_NO_READ_CREDITS	4

#define VRNIC_MAX_OPTION		64

/* Bits of struct vrnic_cm_init_qp_attr_reply.mask: enum ibv_qp_attr_mask. */
#define VRNIC_QP_ATTR_STATE		(1u << 0)
#define VRNIC_QP_ATTR_ACCESS		(1u << 3)

/* VRNIC_NO_DEVICE in struct vrnic_cm_query_reply. */
#define VRNIC_NO_DEVICE			0xffffffffu

/* Types of a CM event: enum rdma_cm_event_type. */
#define VRNIC_EV_ADDR_RESOLVED		0
#define VRNIC_EV_ADDR_ERROR		1
#define VRNIC_EV_ROUTE_RESOLVED		2
#define VRNIC_EV_ROUTE_ERROR		3
#define VRNIC_EV_CONNECT_REQUEST	4
#define VRNIC_EV_CONNECT_RESPONSE	5
#define VRNIC_EV_CONNECT_ERROR		6
#define VRNIC_EV_UNREACHABLE		7
#define VRNIC_EV_REJECTED		8
#define VRNIC_EV_ESTABLISHED		9
#define VRNIC_EV_DISCONNECTED		10
#define VRNIC_EV_DEVICE_REMOVAL		11
#define VRNIC_EV_MULTICAST_JOIN		12
#define VRNIC_EV_MULTICAST_ERROR	13
#define VRNIC_EV_ADDR_CHANGE		14
#define VRNIC_EV_TIMEWAIT_EXIT		15

/* Flags of a struct vrnic_cm_event. */
/* the connection that is established has the messages of RFC 7306 */
#define VRNIC_EVENT_EXTENSIONS		1
#define VRNIC_EVENT_SCTP		2	/* it is over SCTP, as the one that is asked for */
/* it was rejected by the peer's program, and not lost on the way */
#define VRNIC_EVENT_BY_PROGRAM		4
/* the flags of VRNIC_OPT_PROTOCOL, each times 8 */
#define VRNIC_EVENT_R_O_I		8
#define VRNIC_EVENT_NO_SEND_CREDITS	16
#define VRNIC_EVENT_NO_READ_CREDITS	32

/* The calls. Numbers are never used again. */
#define VRNIC_OP_CM_CREATE_CHAN		96
#define VRNIC_OP_CM_DESTROY_CHAN	97
#define VRNIC_OP_CM_CREATE_ID		98
#define VRNIC_OP_CM_DESTROY_ID		99
#define VRNIC_OP_CM_BIND		100
#define VRNIC_OP_CM_RESOLVE_ADDR	101
#define VRNIC_OP_CM_RESOLVE_ROUTE	102
#define VRNIC_OP_CM_LISTEN		103
#define VRNIC_OP_CM_CONNECT		104
#define VRNIC_OP_CM_ACCEPT		105
#define VRNIC_OP_CM_REJECT		106
#define VRNIC_OP_CM_DISCONNECT		107
#define VRNIC_OP_CM_MIGRATE		108
#define VRNIC_OP_CM_SET_OPTION		109
#define VRNIC_OP_CM_INIT_QP_ATTR	110
#define VRNIC_OP_CM_QUERY		111
#define VRNIC_OP_CM_GET_EVENT		112
#define VRNIC_OP_CM_JOIN_MULTICAST	113
#define VRNIC_OP_CM_LEAVE_MULTICAST	114
#define VRNIC_OP_CM_ESTABLISH		115
#define VRNIC_OP_CM_NOTIFY		116
#define VRNIC_OP_CM_OPEN_UDP		117

/* A struct vrnic_sock_addr is an address with a port in host byte order. family 0 is none. */
struct vrnic_sock_addr {
	uint16_t family;
	uint16_t port;
	uint32_t scope;
	uint8_t addr[16];	/* IPv4 in the first four */
};
VRNIC_ABI_SIZE(vrnic_sock_addr, 24);

/* A struct vrnic_conn_param is struct rdma_conn_param. */
struct vrnic_conn_param {
	uint16_t ird;	/* responder_resources */
	uint16_t ord;	/* initiator_depth */
	uint8_t flow_control;
	uint8_t retry;
	uint8_t rnr_retry;
	uint8_t srq;
	uint32_t qpn;
	uint32_t private_len;
	uint8_t private[VRNIC_MAX_PRIVATE];
};
VRNIC_ABI_SIZE(vrnic_conn_param, 528);

/* struct vrnic_cm_create_chan_reply carries the client's end of the event pipe, or socket. */
struct vrnic_cm_create_chan_reply {
	uint32_t chan;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_cm_create_chan_reply, 8);

/*
 * struct vrnic_cm_create_id_request makes an id whose events go to a channel. CM_CREATE_CHAN's
 * request is empty.
 */
struct vrnic_cm_create_id_request {
	uint32_t chan;
	uint32_t ps;	/* enum rdma_port_space: VRNIC_PS_TCP, VRNIC_PS_UDP */
	uint32_t type;	/* VRNIC_TYPE_R_C, VRNIC_TYPE_U_D */
	uint32_t pad;
	uint64_t uid;	/* comes back in events */
};
VRNIC_ABI_SIZE(vrnic_cm_create_id_request, 24);

/* struct vrnic_cm_create_id_reply names the id. */
struct vrnic_cm_create_id_reply {
	uint32_t id;
	uint32_t pad;
};
VRNIC_ABI_SIZE(vrnic_cm_create_id_reply, 8);

/*
 * struct vrnic_cm_destroy_id_reply: events of the id that the client has been given, and tokens of
 * those dropped.
 */
struct vrnic_cm_destroy_id_reply {
	uint32_t reported;
	uint32_t tokens;
};
VRNIC_ABI_SIZE(vrnic_cm_destroy_id_reply, 8);

/*
 * struct vrnic_cm_bind_request binds an id to an address of a device, or an unspecified one; port 0
 * for a free one.
 */
struct vrnic_cm_bind_request {
	uint32_t id;
	uint32_t pad;
	struct vrnic_sock_addr addr;
};
VRNIC_ABI_SIZE(vrnic_cm_bind_request, 32);

/*
 * struct vrnic_cm_resolve_addr_request: src may have family 0. ADDR_RESOLVED or ADDR_ERROR follows.
 */
struct vrnic_cm_resolve_addr_request {
	uint32_t id;
	uint32_t timeout_ms;
	struct vrnic_sock_addr src;
	struct vrnic_sock_addr dst;
};
VRNIC_ABI_SIZE(vrnic_cm_resolve_addr_request, 56);

/* struct vrnic_cm_resolve_route_request: ROUTE_RESOLVED or ROUTE_ERROR follows. */
struct vrnic_cm_resolve_route_request {
	uint32_t id;
	uint32_t timeout_ms;
};
VRNIC_ABI_SIZE(vrnic_cm_resolve_route_request, 8);

/* struct vrnic_cm_listen_request: backlog 0 is a default. */
struct vrnic_cm_listen_request {
	uint32_t id;
	uint32_t backlog;
};
VRNIC_ABI_SIZE(vrnic_cm_listen_request, 8);

/*
 * struct vrnic_cm_connect_request connects or accepts (CM_CONNECT, CM_ACCEPT). The QP is the one of
 * this session with number param.qpn and protection domain pd; an id of VRNIC_PS_UDP connects
 * without one, both 0. ESTABLISHED, or a failure, follows. With pd 0 an id of VRNIC_PS_TCP on RoCE
 * tells the peer of a QP that the client takes to RTR and RTS itself (CM_INIT_QP_ATTR):
 * CONNECT_RESPONSE follows CM_CONNECT then, and is answered by CM_ESTABLISH or CM_REJECT.
 */
struct vrnic_cm_connect_request {
	uint32_t id;
	uint32_t pd;
	uint64_t uid;	/* CM_ACCEPT: the uid of later events of the id; 0 leaves it */
	struct vrnic_conn_param param;
};
VRNIC_ABI_SIZE(vrnic_cm_connect_request, 544);

/* struct vrnic_cm_reject_request refuses a connection request with private data. */
struct vrnic_cm_reject_request {
	uint32_t id;
	uint32_t private_len;
	uint8_t private[VRNIC_MAX_PRIVATE];
};
VRNIC_ABI_SIZE(vrnic_cm_reject_request, 520);

/* struct vrnic_cm_migrate_request moves an id, and its events that wait, to another channel. */
struct vrnic_cm_migrate_request {
	uint32_t id;
	uint32_t chan;
};
VRNIC_ABI_SIZE(vrnic_cm_migrate_request, 8);

/*
 * struct vrnic_cm_migrate_reply: events of the id that the client has been given so far, and tokens
 * to take back from the channel that it came from.
 */
struct vrnic_cm_migrate_reply {
	uint32_t reported;
	uint32_t tokens;
};
VRNIC_ABI_SIZE(vrnic_cm_migrate_reply, 8);

/*
 * struct vrnic_cm_set_option_request sets an option of an id before it listens or connects. A
 * number is a u32 or u64 value.
 */
struct vrnic_cm_set_option_request {
	uint32_t id;
	uint32_t level;
	uint32_t name;
	uint32_t len;
	uint8_t value[VRNIC_MAX_OPTION];
};
VRNIC_ABI_SIZE(vrnic_cm_set_option_request, 80);

/*
 * struct vrnic_cm_init_qp_attr_request asks for what ibv_modify_qp needs to take the QP of an id to
 * state.
 */
struct vrnic_cm_init_qp_attr_request {
	uint32_t id;
	uint32_t state;	/* VRNIC_STATE_INIT, VRNIC_STATE_RTR or VRNIC_STATE_RTS */
};
VRNIC_ABI_SIZE(vrnic_cm_init_qp_attr_request, 8);

/* struct vrnic_cm_init_qp_attr_reply is struct ibv_qp_attr as far as mask says. */
struct vrnic_cm_init_qp_attr_reply {
	uint32_t mask;
	uint32_t state;
	uint32_t access;	/* enum ibv_access_flags */
	uint32_t port;

	/* Since minor version 1. */

	struct vrnic_qp_attr attr;
};
VRNIC_ABI_SIZE(vrnic_cm_init_qp_attr_reply, 96);

/*
 * struct vrnic_cm_query_reply describes an id. device is VRNIC_NO_DEVICE while it is bound to none.
 */
struct vrnic_cm_query_reply {
	struct vrnic_sock_addr src;
	struct vrnic_sock_addr dst;
	uint32_t device;
	uint32_t port;	/* 1, or 0 without a device */
};
VRNIC_ABI_SIZE(vrnic_cm_query_reply, 56);

/* A struct vrnic_cm_event answers CM_GET_EVENT; -EAGAIN if there is none. */
struct vrnic_cm_event {
	uint32_t type;	/* VRNIC_EV_ADDR_RESOLVED... */
	int32_t status;	/* 0 or -errno; a reject's reason */
	uint32_t id;	/* whose event it is; of a connect request, the listener */
	uint32_t child;	/* the new id of a connect request */
	uint64_t uid;	/* of id */
	uint32_t cause;	/* as the word at VRNIC_QP_ERROR, for DISCONNECTED and CONNECT_ERROR */
	uint32_t device;	/* of id or child */
	struct vrnic_sock_addr src;
	struct vrnic_sock_addr dst;
	uint32_t flags;	/* VRNIC_EVENT_EXTENSIONS and its like */
	uint32_t qkey;	/* of VRNIC_PS_UDP: with param.qpn and path what datagrams go to */
	struct vrnic_conn_param param;	/* what the peer sent */

	/* Since minor version 1. */

	struct vrnic_ah_attr path;
	uint64_t group;	/* the uid of CM_JOIN_MULTICAST, of MULTICAST_JOIN and MULTICAST_ERROR */
};
VRNIC_ABI_SIZE(vrnic_cm_event, 656);

/*
 * struct vrnic_cm_join_multicast_request joins a multicast group, with port 0. MULTICAST_JOIN or
 * MULTICAST_ERROR follows; the former has in Path and Param.QPN what to attach a QP to and to send
 * to.
 */
struct vrnic_cm_join_multicast_request {
	uint32_t id;
	uint32_t flags;	/* none: a full member */
	uint64_t uid;	/* comes back in events, as Group */
	struct vrnic_sock_addr addr;
};
VRNIC_ABI_SIZE(vrnic_cm_join_multicast_request, 40);

/* struct vrnic_cm_leave_multicast_request leaves a group that the id has joined. */
struct vrnic_cm_leave_multicast_request {
	uint32_t id;
	uint32_t pad;
	struct vrnic_sock_addr addr;
};
VRNIC_ABI_SIZE(vrnic_cm_leave_multicast_request, 32);

/*
 * struct vrnic_cm_leave_multicast_reply: events of the group that the client has been given, and
 * tokens of those dropped.
 */
struct vrnic_cm_leave_multicast_reply {
	uint32_t reported;
	uint32_t tokens;
};
VRNIC_ABI_SIZE(vrnic_cm_leave_multicast_reply, 8);

#endif
