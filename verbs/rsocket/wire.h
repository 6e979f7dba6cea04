/*
 * What is on the wire between two sockets of a stream, as librdmacm/docs/rsocket of rdma-core has
 * it: data is written into the peer's receive buffer, and a message of 32 bits behind it says that
 * it is there. Of the receive buffer each half is offered to the peer in turn, by a Write into an
 * array that the peer has registered for that. Messages are immediate data; on iWARP, where RFC
 * 5040 has none, they are Sends of 4 octets.
 */
#ifndef VRNIC_RSOCKET_WIRE_H
#define VRNIC_RSOCKET_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>

/* A piece of memory. In private data in network order, in memory in that of its host. */
struct rs_sge {
	uint64_t addr;
	uint32_t key;
	uint32_t length;
};
_Static_assert(sizeof(struct rs_sge) == 16, "as it is on the wire");

/* What riomap has made: offset is that of its first octet. */
struct rs_iomap {
	uint64_t offset;
	struct rs_sge sge;
};
_Static_assert(sizeof(struct rs_iomap) == 24, "as it is on the wire");

enum {
	RS_VERSION = 1,
	RS_FLAG_NET = 1,   /* the host is big endian: so is what is written into its arrays */
	RS_FLAG_IOMAP = 2, /* iomap_size tells of an array of iomaps behind the offered buffers */
};

/* The private data of a connection's request and reply. */
struct rs_conn_data {
	uint8_t version;
	uint8_t flags;
	uint16_t credits; /* messages of data that the peer may send until it is told of more */
	uint8_t reserved[3];
	uint8_t iomap_size;	/* how many; above 128 its low 7 bits are times 256 */
	struct rs_sge offers;	/* the array that offered buffers are written to; length: entries */
	struct rs_sge data_buf; /* the first buffer that is offered */
};
_Static_assert(sizeof(struct rs_conn_data) == 40, "as it is on the wire");

/* The upper 3 bits of a message; the others are its value. */
enum {
	RS_MSG_DATA = 0,    /* so many octets are in the buffer */
	RS_MSG_CREDIT = 4,  /* the number, 16 bits, of the first message that may not be sent yet */
	RS_MSG_IOMAP = 6,   /* so manieth iomap has been written */
	RS_MSG_CONTROL = 7, /* one of the next */
	RS_MSG_BITS = 29,
};

enum {
	RS_CONTROL_DISCONNECT = 0,
	RS_CONTROL_KEEPALIVE = 1,
	RS_CONTROL_SHUTDOWN = 2, /* nothing more will be sent */
};

/*
 * Sockets of datagrams send each other datagrams by queue pairs of UD, each with a header that says
 * from which UDP port it is. Which queue pair somebody has they ask by UDP: a first datagram goes
 * that way, and is answered by a message of RS_UDP_CONTROL, without data; either says which queue
 * pair its sender has. All is in network order.
 */
struct rs_datagram_header {
	uint8_t version; /* 4 or 6: of IP */
	uint8_t length;	 /* of this header */
	uint16_t port;
	uint8_t addr[20]; /* IPv4's 4 octets; or a flow label of 4 octets and IPv6's 16 */
};
_Static_assert(sizeof(struct rs_datagram_header) == 24, "as it is on the wire");

struct rs_udp_header {
	uint32_t tag;
	uint8_t version;
	uint8_t op;
	uint8_t length;
	uint8_t reserved;
	uint32_t qpn;
	uint8_t addr[16]; /* of the sender; IPv4's in the first 4 octets */
};
_Static_assert(sizeof(struct rs_udp_header) == 28, "as it is on the wire");

enum {
	RS_DATAGRAM_LEN4 = 8, /* of the headers with an address of IPv4; whole with one of IPv6 */
	RS_UDP_LEN4 = 16,
	RS_UDP_TAG = 0x55555555,
	RS_UDP_DATA = 0,
	RS_UDP_CONTROL = 7,
	RS_DATAGRAM = 2048,	 /* the most octets of one, with its header */
	RS_DATAGRAM_QKEY = 0x01234567,
};

static inline uint32_t rs_msg(unsigned int type, uint32_t value)
{
	return (uint32_t)type << RS_MSG_BITS | value;
}

static inline unsigned int rs_msg_type(uint32_t msg) { return msg >> RS_MSG_BITS; }

static inline uint32_t rs_msg_value(uint32_t msg) { return msg & ((1u << RS_MSG_BITS) - 1); }

/* The number of iomaps, as an octet: its nearest that is no larger. */
static inline uint8_t rs_pack_size(uint16_t n)
{
	return n <= 128 ? n : 128 | n >> 8;
}

static inline uint16_t rs_unpack_size(uint8_t n)
{
	return n <= 128 ? n : (uint16_t)(n & 127) << 8;
}

/* An entry of the array of a host of the other byte order. */
static inline struct rs_sge rs_swapped(struct rs_sge s)
{
	return (struct rs_sge){ __builtin_bswap64(s.addr), __builtin_bswap32(s.key),
				__builtin_bswap32(s.length) };
}

/* From and to network order. */
static inline struct rs_sge rs_net(struct rs_sge s)
{
	return (struct rs_sge){ htobe64(s.addr), htobe32(s.key), htobe32(s.length) };
}

#endif
