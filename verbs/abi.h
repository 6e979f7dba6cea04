/* Generated from shm/abi and shm/rpc by go generate; do not edit. */
/*
 * The ABI between the daemon and a program: the layout of shared memory, and the messages of the
 * control socket.
 *
 * This file has the shared memory; abi_control.h and abi_cm.h, which it includes, the messages.
 * Hosts are 64-bit and little-endian. Every word that both sides touch is an aligned uint32_t.
 * Lines of shared memory have 64 octets and one writer, unless "both" is noted. Sizes, strides and
 * offsets of rings are read from line 0 of the memory, not from here. Messages are the structs as
 * they lie in memory, behind a vrnic_header: fixed width, naturally aligned, padding zero. One
 * that is shorter than its struct leaves the rest zero; one that is longer must be zero there.
 */
#ifndef VRNIC_ABI_H
#define VRNIC_ABI_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || __SIZEOF_POINTER__ != 8
#error "the ring ABI is for 64-bit little-endian hosts"
#endif

#define VRNIC_ABI_SIZE(type, size) \
	_Static_assert(sizeof(struct type) == (size), "size of struct " #type)
#define VRNIC_ABI_OFFSET(type, field, offset) \
	_Static_assert(__builtin_offsetof(struct type, field) == (offset), "offset of " #field)

/* Version of the ABI. Majors must be equal on both sides; the smaller minor counts. */
#define VRNIC_MAJOR			1
#define VRNIC_MINOR			2

/* Magics: the first word of each kind of shared memory, and of HELLO. */
#define VRNIC_MAGIC_HELLO		0x484e5256	/* "VRNH" */
#define VRNIC_MAGIC_SESSION		0x534e5256	/* "VRNS" */
#define VRNIC_MAGIC_QP			0x514e5256	/* "VRNQ" */
#define VRNIC_MAGIC_CQ			0x434e5256	/* "VRNC" */
#define VRNIC_MAGIC_CHANNEL		0x454e5256	/* "VRNE" */
#define VRNIC_MAGIC_SRQ			0x524e5256	/* "VRNR" */
#define VRNIC_MAGIC_PAIR		0x504e5256	/* "VRNP" */
#define VRNIC_MAGIC_KEYS		0x4b4e5256	/* "VRNK" */

/* Session page. */
#define VRNIC_SESS_MAGIC		0	/* const */
#define VRNIC_SESS_MAJOR		4	/* const, u16 */
#define VRNIC_SESS_MINOR		6	/* const, u16 */
#define VRNIC_SESS_ID			8	/* const */
#define VRNIC_SESS_BELL_WORDS		12	/* const: words of bells */
#define VRNIC_SESS_BELL_OFF		16	/* const */
#define VRNIC_SESS_POLL_YIELD		20	/* const: empty polls after which poll_cq yields the processor */
#define VRNIC_SESS_NONCE		24	/* const, 16 octets */
#define VRNIC_SESS_SLEEPING		64	/* both: the daemon blocks on the doorbell */
#define VRNIC_SESS_HEADER_LEN		128

#define VRNIC_NONCE_LEN			16
/* VRNIC_POLL_YIELD is the value of VRNIC_SESS_POLL_YIELD. */
#define VRNIC_POLL_YIELD		64

/*
 * QP memory. An SRQ has the RQ half of it, with VRNIC_MAGIC_SRQ and its handle as VRNIC_QP_NUM;
 * what a QP has beyond that is 0. A QP that takes its receives from an SRQ has an RQ of size 0.
 * Indices of rings and of slabs run free; sizes are powers of two.
 */
#define VRNIC_QP_MAGIC			0	/* line 0 is const */
#define VRNIC_QP_NUM			4
#define VRNIC_QP_SQ_SIZE		8
#define VRNIC_QP_SQ_STRIDE		12
#define VRNIC_QP_RQ_SIZE		16
#define VRNIC_QP_RQ_STRIDE		20
#define VRNIC_QP_SQ_OFF			24
#define VRNIC_QP_RQ_OFF			28
#define VRNIC_QP_TX_SLAB_OFF		32
#define VRNIC_QP_TX_SLAB_SIZE		36
#define VRNIC_QP_RX_SLAB_OFF		40
#define VRNIC_QP_RX_SLAB_SIZE		44
#define VRNIC_QP_MAX_INLINE		48
#define VRNIC_QP_FLAGS			52
#define VRNIC_QP_SQ_PROD		64	/* line 1 client */
#define VRNIC_QP_TX_SLAB_PROD		68	/* octets put into the slab: stored before VRNIC_QP_SQ_PROD */
#define VRNIC_QP_RQ_PROD		128	/* line 2 client */
#define VRNIC_QP_RX_SLAB_CONS		132	/* octets taken out of the slab */
#define VRNIC_QP_SQ_DONE		192	/* line 3 daemon: send WQEs retired, in order */
#define VRNIC_QP_RQ_HEAD		196	/* receive WQEs taken */
#define VRNIC_QP_STATE			200	/* an ibv_qp_state, below */
#define VRNIC_QP_TX_SLAB_CONS		204	/* octets of retired requests */
/* cause of the end: VRNIC_ERROR_VALID | VRNIC_ERROR_REMOTE | vendor_err, or 0 */
#define VRNIC_QP_ERROR			208
#define VRNIC_QP_RX_SLAB_PROD		212	/* octets of completed receives */
#define VRNIC_QP_RQ_STARVED		256	/* line 4 daemon: ring the bell for the next receive */
#define VRNIC_QP_HEADER_LEN		320
#define VRNIC_ERROR_VALID		(1u << 31)
#define VRNIC_ERROR_REMOTE		(1u << 30)
#define VRNIC_ERROR_CAUSE_MAX		((1u << 16) - 1)	/* layer<<12 | type<<8 | code */

/* Values of VRNIC_QP_STATE: enum ibv_qp_state. */
#define VRNIC_STATE_RESET		0
#define VRNIC_STATE_INIT		1
#define VRNIC_STATE_RTR			2
#define VRNIC_STATE_RTS			3
#define VRNIC_STATE_SQD			4
#define VRNIC_STATE_SQE			5
#define VRNIC_STATE_ERR			6

/*
 * Send WQE. Some operations use words in a way of their own:
 *
 * - Immediate data: its eight octets as on the wire at VRNIC_SQ_IMM, four of them, and
 *   VRNIC_SQ_IMM_LOW.
 * - Atomics: VRNIC_SQ_CMP_ADD and VRNIC_SQ_SWAP; the masked ones have one SGE and their masks
 *   behind it.
 * - BIND_MW and REG_MR: VRNIC_SQ_RKEY is the new key, VRNIC_SQ_REMOTE_ADDR the address of the first
 *   octet in the region, VRNIC_SQ_CMP_ADD how many there are, VRNIC_SQ_SWAP the access. The one
 *   SGE, of length 0, has the region's lkey, and as its address what the peer calls the first octet
 *   (0: zero based).
 * - A UD QP sends to VRNIC_SQ_REMOTE_QPN with VRNIC_SQ_REMOTE_QKEY; VRNIC_SQ_AH is the Key of
 *   CREATE_AH.
 */
#define VRNIC_SQ_WR_ID			0	/* u64 */
#define VRNIC_SQ_OP			8	/* u8, enum ibv_wr_opcode */
#define VRNIC_SQ_FLAGS			9	/* u8, VRNIC_SQ_SIGNALED... */
#define VRNIC_SQ_NUM_SGE		10	/* u16 */
/* octets of the message: the sum of the SGEs, of inline or of the slab range */
#define VRNIC_SQ_LENGTH			12
#define VRNIC_SQ_REMOTE_ADDR		16	/* u64 */
#define VRNIC_SQ_RKEY			24
#define VRNIC_SQ_IMM			28	/* immediate data in wire order, or the key to invalidate in host order */
#define VRNIC_SQ_CMP_ADD		32	/* u64 */
#define VRNIC_SQ_IMM_LOW		32	/* the low half of VRNIC_SQ_CMP_ADD */
#define VRNIC_SQ_SWAP			40	/* u64 */
#define VRNIC_SQ_SGE			48	/* SGEs, or inline octets, or the u32 offset into the tx slab */
#define VRNIC_SQ_CMP_MASK		64	/* u64, of masked atomics */
#define VRNIC_SQ_SWAP_MASK		72	/* u64 */
#define VRNIC_SQ_AH			16	/* of a UD QP: the low half of VRNIC_SQ_REMOTE_ADDR */
#define VRNIC_SQ_REMOTE_QPN		24	/* of a UD QP: VRNIC_SQ_RKEY */
#define VRNIC_SQ_REMOTE_QKEY		40	/* of a UD QP: the low half of VRNIC_SQ_SWAP */

#define VRNIC_SQ_SIGNALED		1
#define VRNIC_SQ_SOLICITED		2
#define VRNIC_SQ_FENCE			4
#define VRNIC_SQ_INLINE			8
#define VRNIC_SQ_SLAB			16

/* SGE within a WQE. */
#define VRNIC_SGE_ADDR			0	/* u64 */
#define VRNIC_SGE_LENGTH		8
#define VRNIC_SGE_LKEY			12
#define VRNIC_SGE_LEN			16

/* Receive WQE. Stride is VRNIC_RQ_SGE + VRNIC_SGE_LEN*max_sge. */
#define VRNIC_RQ_WR_ID			0	/* u64 */
#define VRNIC_RQ_NUM_SGE		8
#define VRNIC_RQ_COOKIE			12
#define VRNIC_RQ_SGE			16

/* CQ memory. */
#define VRNIC_CQ_MAGIC			0	/* line 0 is const */
#define VRNIC_CQ_HANDLE			4
#define VRNIC_CQ_SIZE			8
#define VRNIC_CQ_CQE_OFF		12
#define VRNIC_CQ_PROD			64	/* line 1 daemon */
#define VRNIC_CQ_OVERRUN		68
#define VRNIC_CQ_CONS			128	/* line 2 client */
#define VRNIC_CQ_ARM			192	/* line 3 both */
#define VRNIC_CQ_HEADER_LEN		256

#define VRNIC_ARM_SOLICITED		1	/* an event for the next solicited completion or error */
#define VRNIC_ARM_NEXT			2	/* an event for the next completion of any kind */
#define VRNIC_ARM_QUEUED		4	/* an event is queued and not yet taken */

/* CQE. The first 40 octets are those of struct ibv_wc. */
#define VRNIC_CQE_WR_ID			0	/* u64 */
#define VRNIC_CQE_STATUS		8
#define VRNIC_CQE_OPCODE		12
#define VRNIC_CQE_VENDOR_ERR		16
#define VRNIC_CQE_BYTE_LEN		20
#define VRNIC_CQE_IMM			24	/* immediate data in wire order, or the invalidated key in host order */
#define VRNIC_CQE_QPN			28	/* 0: of one that the program has destroyed */
/* on iWARP, with immediate data: its last four octets, in wire order */
#define VRNIC_CQE_SRC_QP		32
#define VRNIC_CQE_WC_FLAGS		36
#define VRNIC_CQE_SQ_DONE		40
#define VRNIC_CQE_COOKIE		44
/* where in the rx slab the message is; VRNIC_NO_SLAB: in the receive's memory */
#define VRNIC_CQE_SLAB_OFF		48
#define VRNIC_CQE_SLAB_LEN		52
#define VRNIC_CQE_TIMESTAMP		56	/* u64, CLOCK_MONOTONIC nanoseconds */
#define VRNIC_CQE_LEN			64

#define VRNIC_NO_SLAB			0xffffffffu

/* Completion channel memory. */
#define VRNIC_CHAN_MAGIC		0	/* line 0 is const */
#define VRNIC_CHAN_HANDLE		4
#define VRNIC_CHAN_SIZE			8
#define VRNIC_CHAN_OFF			12
#define VRNIC_CHAN_PROD			64	/* line 1 daemon */
#define VRNIC_CHAN_CONS			128	/* line 2 client */
#define VRNIC_CHAN_HEADER_LEN		192

/* VRNIC_CHAN_SLOTS is how many CQ handles a channel's ring holds. */
#define VRNIC_CHAN_SLOTS		4096

/*
 * Memory of a pair: of two connected QPs whose programs exchange messages without the daemon
 * (docs/direct.md). Of each direction it has what goes from one of them, the sender, to the other.
 */
#define VRNIC_PAIR_MAGIC		0	/* line 0 is const */
#define VRNIC_PAIR_QPN			4	/* of the first QP; the second one's behind it */
#define VRNIC_PAIR_OFF			16	/* of the direction from the first QP; the other one's behind it */
/* how many slots that has, a power of two; the other one's behind it */
#define VRNIC_PAIR_SLOTS		24
#define VRNIC_PAIR_SLAB			32	/* octets of its slab; the other one's behind it */
/* what keys may give its sender: enum ibv_access_flags; behind it the other's */
#define VRNIC_PAIR_REACH		40
#define VRNIC_PAIR_HEADER_LEN		64

#define VRNIC_DIR_OPEN			0	/* line 0 daemon: the sender may, if its send queue is drained */
/* receives that are used: stored before VRNIC_QP_SQ_DONE of the sender */
#define VRNIC_DIR_RECV_BASE		4
/* line 1 sender: odd while it looks at what the daemon may take from it */
#define VRNIC_DIR_SEQ			64
#define VRNIC_DIR_RECV_DONE		68	/* receives that are used */
#define VRNIC_DIR_NOTIFY		72	/* messages for which the receiver's CQ wanted an event */
#define VRNIC_DIR_SOLICITED		76	/* solicited ones of them */
#define VRNIC_DIR_MESSAGES		80	/* u64, those that a receive has got */
#define VRNIC_DIR_OCTETS		88	/* u64, of them and of Writes */
#define VRNIC_DIR_OWN			96	/* requests that are over for which its own CQ wanted an event */
#define VRNIC_DIR_ASKED			104	/* u64, of VRNIC_DIR_MESSAGES those that were solicited */
/* requests that have completed without the daemon, if its CQ is not covered */
#define VRNIC_DIR_COMPLETED		112
#define VRNIC_DIR_POLLED		116	/* of VRNIC_DIR_COMPLETED those that are polled */
#define VRNIC_DIR_SLAB_CONS		128	/* line 2 receiver: octets taken out of the slab */
#define VRNIC_DIR_WANT			132	/* what its CQ is armed for */
/* not 0: what has come makes no sense, and the connection is to end */
#define VRNIC_DIR_SPOILED		136
/* times that the daemon is to raise an event of which a sleeper has heard */
#define VRNIC_DIR_PASSED		140
#define VRNIC_DIR_TAKES			144	/* what its library knows of beside Sends: VRNIC_TAKES_IMM */
/* and one, in the bitmap of its CQ, that is set behind each message; 0: none */
#define VRNIC_DIR_BIT			148
#define VRNIC_DIR_WRITES		192	/* line 3 sender: u64 */
#define VRNIC_DIR_READS			200	/* u64 */
#define VRNIC_DIR_READ_OCTETS		208	/* u64, octets of Reads */
#define VRNIC_DIR_ATOMICS		216	/* u64 */
#define VRNIC_DIR_IMMS			224	/* u64, of VRNIC_DIR_MESSAGES those that are immediate data */
/* messages for which a sleeper wanted an event, or was about to sleep */
#define VRNIC_DIR_HEARD			232
#define VRNIC_DIR_HEARD_ASKED		236	/* solicited ones beside them */
/* u64, of VRNIC_DIR_WRITES those of which iWARP sends but the immediate data */
#define VRNIC_DIR_UNSENT		240
/* receiver: a room for each slot, then the slots, each on lines of its own */
#define VRNIC_DIR_ROOMS			256

/* In VRNIC_DIR_WANT, beside what VRNIC_CQ_ARM has. */
#define VRNIC_WANT_ASLEEP		4	/* who waits is woken by the socket of DIRECT_SLEEP */
#define VRNIC_WANT_SLEEP		8	/* and what lies from here on tells this sleep from others */

/* In VRNIC_DIR_TAKES: immediate data. Earlier libraries say 0, and have it from the daemon. */
#define VRNIC_TAKES_IMM			1

/* Room i says that receive i is posted (docs/decisions.md#X3). */
#define VRNIC_ROOM_STAMP		0	/* i + 1, XOR VRNIC_ROOM_BIT if there is VRNIC_DIR_BIT: stored last */
/* octets that it takes; VRNIC_NO_ROOM: a message for it goes by the daemon */
#define VRNIC_ROOM_LENGTH		4
#define VRNIC_ROOM_LEN			8

#define VRNIC_NO_ROOM			0xffffffffu
#define VRNIC_ROOM_BIT			(1u << 31)	/* earlier libraries, which set no bits, find no receive */

/* Slot i is the message that receive i has got (docs/decisions.md#X4). */
#define VRNIC_SLOT_STAMP		0	/* i + 1: stored last */
#define VRNIC_SLOT_LENGTH		4	/* octets of the message, immediate data not among them */
#define VRNIC_SLOT_FLAGS		8	/* VRNIC_SQ_SOLICITED, VRNIC_SLOT_IMM, VRNIC_SLOT_WRITE */
#define VRNIC_SLOT_SLAB_OFF		12	/* where in the slab it is; VRNIC_NO_SLAB: in the slot */
#define VRNIC_SLOT_DATA			16
#define VRNIC_SLOT_LEN			128

/* in front of its octets are VRNIC_IMM_LEN of immediate data, as from VRNIC_SQ_IMM on */
#define VRNIC_SLOT_IMM			256
/* with it: no octets follow, and VRNIC_SLOT_LENGTH is what the completion says of a Write */
#define VRNIC_SLOT_WRITE		512
#define VRNIC_IMM_LEN			8

/*
 * Table of the keys that open memory of a protection domain, for those who write and read there
 * without the daemon. A key's entry is at (key >> 8) & (size - 1) or one of the seven behind.
 */
#define VRNIC_KEYS_MAGIC		0	/* line 0 is const */
#define VRNIC_KEYS_SIZE			4	/* entries, a power of two */
#define VRNIC_KEYS_OFF			8
#define VRNIC_KEYS_GONE			12	/* counts memory that has been taken back */
#define VRNIC_KEYS_HEADER_LEN		64

#define VRNIC_KEY_KEY			0	/* 0: there is none. Stored last. */
#define VRNIC_KEY_ACCESS		4	/* enum ibv_access_flags */
#define VRNIC_KEY_QPN			8	/* of the only QP whose peer it serves; 0: all of the domain */
#define VRNIC_KEY_MEM			12	/* of ADD_MEM, in the owner's session */
#define VRNIC_KEY_ADDR			16	/* u64, that the peer says for the first octet */
#define VRNIC_KEY_LENGTH		24	/* u64 */
#define VRNIC_KEY_OFFSET		32	/* u64, of the first octet in Mem */
#define VRNIC_KEY_LEN			64

/*
 * Bitmap of a CQ's: of those of many QPs that have a direct path which are to be looked at
 * (docs/direct.md#many, docs/decisions.md#X17). All peers may write all of it, so nothing there
 * says how it is laid out: VRNIC_MAX_BITS bits come behind the header.
 */
/* line 0 receiver: what the CQ is armed for, in place of VRNIC_DIR_WANT */
#define VRNIC_BITS_WANT			0
#define VRNIC_BITS_HEADER_LEN		64

/* Bounds that no peer may exceed, whatever the quotas say. */
#define VRNIC_MAX_DEPTH			65536	/* slots of a queue, and of a channel's ring */
#define VRNIC_MAX_CQ_DEPTH		(1u << 20)	/* slots of a CQ: those of many QPs complete there */
#define VRNIC_MAX_BITS			4096	/* of a CQ's bitmap */
#define VRNIC_MAX_SGE			32	/* SGEs of a WQE */
#define VRNIC_MAX_INLINE		1024	/* inline octets of a WQE */
/* what a QP gets at least; so a stride has room for the masks of an atomic */
#define VRNIC_MIN_INLINE		64
#define VRNIC_MAX_SLAB			(1u << 20)
#define VRNIC_MIN_SLAB			64	/* and the granularity of slabs */

/*
 * VRNIC_MAX_SLAB_RECV is the longest receive that goes through an rx slab: copying more costs more
 * than the daemon's access to the program's memory.
 */
#define VRNIC_MAX_SLAB_RECV		8192

/* roundup64(VRNIC_SQ_SGE + max(VRNIC_SGE_LEN*VRNIC_MAX_SGE, VRNIC_MAX_INLINE)) */
#define VRNIC_MAX_SQ_STRIDE		1088
#define VRNIC_MAX_RQ_STRIDE		(VRNIC_RQ_SGE + (VRNIC_SGE_LEN * VRNIC_MAX_SGE))

/*
 * The same, as structs: for a CQE that has been copied out, and for WQEs that are made in place.
 * A send WQE goes on with SGEs, inline octets or the offset into the slab, a receive WQE with SGEs.
 */
struct vrnic_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};
VRNIC_ABI_SIZE(vrnic_sge, VRNIC_SGE_LEN);
VRNIC_ABI_OFFSET(vrnic_sge, addr, VRNIC_SGE_ADDR);
VRNIC_ABI_OFFSET(vrnic_sge, length, VRNIC_SGE_LENGTH);
VRNIC_ABI_OFFSET(vrnic_sge, lkey, VRNIC_SGE_LKEY);

struct vrnic_send_wqe {
	uint64_t wr_id;
	uint8_t op;
	uint8_t flags;
	uint16_t num_sge;
	uint32_t length;
	uint64_t remote_addr;
	uint32_t rkey;
	uint32_t imm;
	uint64_t cmp_add;
	uint64_t swap;
};
VRNIC_ABI_SIZE(vrnic_send_wqe, VRNIC_SQ_SGE);
VRNIC_ABI_OFFSET(vrnic_send_wqe, wr_id, VRNIC_SQ_WR_ID);
VRNIC_ABI_OFFSET(vrnic_send_wqe, op, VRNIC_SQ_OP);
VRNIC_ABI_OFFSET(vrnic_send_wqe, flags, VRNIC_SQ_FLAGS);
VRNIC_ABI_OFFSET(vrnic_send_wqe, num_sge, VRNIC_SQ_NUM_SGE);
VRNIC_ABI_OFFSET(vrnic_send_wqe, length, VRNIC_SQ_LENGTH);
VRNIC_ABI_OFFSET(vrnic_send_wqe, remote_addr, VRNIC_SQ_REMOTE_ADDR);
VRNIC_ABI_OFFSET(vrnic_send_wqe, rkey, VRNIC_SQ_RKEY);
VRNIC_ABI_OFFSET(vrnic_send_wqe, imm, VRNIC_SQ_IMM);
VRNIC_ABI_OFFSET(vrnic_send_wqe, cmp_add, VRNIC_SQ_CMP_ADD);
VRNIC_ABI_OFFSET(vrnic_send_wqe, swap, VRNIC_SQ_SWAP);

struct vrnic_recv_wqe {
	uint64_t wr_id;
	uint32_t num_sge;
	uint32_t cookie;
};
VRNIC_ABI_SIZE(vrnic_recv_wqe, VRNIC_RQ_SGE);
VRNIC_ABI_OFFSET(vrnic_recv_wqe, wr_id, VRNIC_RQ_WR_ID);
VRNIC_ABI_OFFSET(vrnic_recv_wqe, num_sge, VRNIC_RQ_NUM_SGE);
VRNIC_ABI_OFFSET(vrnic_recv_wqe, cookie, VRNIC_RQ_COOKIE);

struct vrnic_cqe {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm;
	uint32_t qpn;
	uint32_t src_qp;
	uint32_t wc_flags;
	uint32_t sq_done;
	uint32_t cookie;
	uint32_t slab_off;
	uint32_t slab_len;
	uint64_t timestamp;
};
VRNIC_ABI_SIZE(vrnic_cqe, VRNIC_CQE_LEN);
VRNIC_ABI_OFFSET(vrnic_cqe, wr_id, VRNIC_CQE_WR_ID);
VRNIC_ABI_OFFSET(vrnic_cqe, status, VRNIC_CQE_STATUS);
VRNIC_ABI_OFFSET(vrnic_cqe, opcode, VRNIC_CQE_OPCODE);
VRNIC_ABI_OFFSET(vrnic_cqe, vendor_err, VRNIC_CQE_VENDOR_ERR);
VRNIC_ABI_OFFSET(vrnic_cqe, byte_len, VRNIC_CQE_BYTE_LEN);
VRNIC_ABI_OFFSET(vrnic_cqe, imm, VRNIC_CQE_IMM);
VRNIC_ABI_OFFSET(vrnic_cqe, qpn, VRNIC_CQE_QPN);
VRNIC_ABI_OFFSET(vrnic_cqe, src_qp, VRNIC_CQE_SRC_QP);
VRNIC_ABI_OFFSET(vrnic_cqe, wc_flags, VRNIC_CQE_WC_FLAGS);
VRNIC_ABI_OFFSET(vrnic_cqe, sq_done, VRNIC_CQE_SQ_DONE);
VRNIC_ABI_OFFSET(vrnic_cqe, cookie, VRNIC_CQE_COOKIE);
VRNIC_ABI_OFFSET(vrnic_cqe, slab_off, VRNIC_CQE_SLAB_OFF);
VRNIC_ABI_OFFSET(vrnic_cqe, slab_len, VRNIC_CQE_SLAB_LEN);
VRNIC_ABI_OFFSET(vrnic_cqe, timestamp, VRNIC_CQE_TIMESTAMP);


#include "abi_control.h"
#include "abi_cm.h"

#endif
