/*
 * Sockets of SOCK_DGRAM. For each address that one sends from it has a port: a queue pair of UD,
 * and the UDP port of the same number, by which it asks others for theirs and is asked (wire.h).
 * There is no thread that answers: like all progress that is made when the program calls.
 *
 * Anybody on the network can send what it likes. What is kept of others is bounded, and nobody is
 * waited for before the program sends something to it.
 */
#ifndef VRNIC_RSOCKET_DATAGRAM_H
#define VRNIC_RSOCKET_DATAGRAM_H

#include "socket.h"
#include "wire.h"

struct rs_datagram;

/* A datagram that has come. */
struct rs_arrival {
	struct rs_arrival *next;
	struct rs_port *port; /* whose receive this is; NULL: one of UDP, with memory of its own */
	uint32_t len;
	const uint8_t *data; /* struct rs_datagram_header, and what is behind */
};

struct rs_port {
	struct rs_port *next;
	const struct rs_options *opt; /* the socket's */
	struct rdma_cm_id *id;
	struct sockaddr_storage at;
	struct rs_datagram_header header; /* of what is sent */
	int udp;
	uint8_t gid; /* the index of the address in the device's table */
	uint32_t most; /* octets of a datagram, with the header */
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *memory; /* slots of receives, and behind them those of sends */
	uint32_t receives, sends;
	struct rs_arrival *in; /* one for each receive */
	uint32_t *idle, nidle; /* slots of sends */
};

/* Whom something was sent to, or has come from. */
struct rs_dest {
	struct rs_dest *next;
	struct sockaddr_storage at;
	struct rs_port *port;
	uint32_t qpn; /* 0: it is not known */
	struct ibv_ah *ah; /* or NULL */
};

enum { RS_DEST_LISTS = 64 };

struct rs_datagram {
	struct rs s;
	int epoll; /* its number, and of all that tells */
	struct rdma_event_channel *ch;
	struct sockaddr_storage at; /* that it is bound to; family 0: to nothing yet */
	struct rs_port *ports;
	struct rs_dest *dests[RS_DEST_LISTS];
	unsigned int ndests;
	struct rs_dest *to; /* of rconnect, or NULL */
	struct rs_arrival *first, **last; /* that the program has not read */
	unsigned int copies; /* of them, those of UDP */
	unsigned int looks;
	bool no_read, no_write;
	bool over;
};

static inline struct rs_datagram *to_datagram(struct rs *s)
{
	return (struct rs_datagram *)((char *)s - offsetof(struct rs_datagram, s));
}

/* Nothing can be sent or received any more. */
static inline void rs_datagram_over(struct rs_datagram *dg, int err)
{
	if (!dg->over)
		dg->s.err = err;
	dg->over = true;
}

/* Length of the header in front of a datagram of a family, and of one of UDP. */
static inline uint8_t rs_header_len(int family)
{
	return family == AF_INET ? RS_DATAGRAM_LEN4 : sizeof(struct rs_datagram_header);
}

static inline uint8_t rs_udp_len(int family)
{
	return family == AF_INET ? RS_UDP_LEN4 : sizeof(struct rs_udp_header);
}

/* port.c. Those that return int: 0, or -errno */
int rs_port_make(struct rs_datagram *dg, const struct sockaddr_storage *at);
/* At all addresses of the socket's family; number, in network order, is 0 for a free one. */
int rs_ports_make(struct rs_datagram *dg, uint16_t number);
void rs_ports_free(struct rs_datagram *dg);
int rs_port_receive(struct rs_port *p, uint32_t slot); /* again */
/* To d, whose queue pair is known; -EAGAIN: no slot is idle. */
int rs_port_send(struct rs_port *p, struct rs_dest *d, struct rs_cursor *c);
/* By UDP, with c, or without data */
void rs_port_say(struct rs_port *p, const struct sockaddr_storage *to, unsigned int op,
		 struct rs_cursor *c);

/* NULL: there is none */
struct rs_dest *rs_dest_find(struct rs_datagram *dg, const struct sockaddr_storage *at);
struct rs_dest *rs_dest_add(struct rs_datagram *dg, const struct sockaddr_storage *at,
			    struct rs_port *p);
void rs_dests_forget(struct rs_datagram *dg); /* all but the one of rconnect */
bool rs_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

#endif
