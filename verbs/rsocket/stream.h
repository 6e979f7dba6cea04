/*
 * Sockets of SOCK_STREAM. What the peer writes and says is believed as far as it stays within what
 * it was offered: lengths are taken from messages, never looked up twice, and its offers are copied
 * before they are used. Beyond that it can spoil its own connection only.
 */
#ifndef VRNIC_RSOCKET_STREAM_H
#define VRNIC_RSOCKET_STREAM_H

#include "socket.h"
#include "wire.h"

enum rs_state {
	RS_FRESH,
	RS_BOUND,
	RS_LISTENING,
	RS_OPENING, /* what rdma_cm does next ends in an event */
	RS_OPEN,
	RS_OVER, /* there is no way back: what has been received can be read */
};

enum {
	RS_OFFERS = 2, /* the halves of the receive buffer */
	RS_CONTROLS = 4, /* messages other than data that are under way at the same time */
	RS_LEAST_SPACE = 2048, /* of the send buffer, to be writable */
	RS_LEAST_QUEUE = 16,
	RS_MOST_QUEUE = 32000,
	RS_MOST_WRITE = 65536,
	RS_INLINE = 32, /* for what is written into the peer's arrays */
};

/* Memory of riomap. */
struct rs_mapping {
	struct rs_mapping *next;
	struct ibv_mr *mr;
	uint64_t offset;
	int index; /* in the peer's array; -1: not to be written by it */
	bool told; /* the entry has been written */
};

struct rs_stream {
	struct rs s;
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	enum rs_state state;
	bool may_read, may_write; /* the peer may send more; the program may */
	bool said_bye;
	bool flushed; /* the QP is not what it was */
	unsigned int looks; /* in vain */
	bool ended; /* rdma_cm has said that the connection is over */
	struct sockaddr_storage to; /* of rconnect, while the address is looked up */

	/* endpoint.c: the QP, and all memory that it works on, in one piece */
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	uint8_t *memory;
	struct ibv_mr *shared, *own; /* the peer writes into the first part alone */
	bool messages; /* iWARP: messages are Sends of 4 octets */
	bool swap;     /* the peer is of the other byte order */
	uint32_t sq_free; /* of requests of data; those of control have a place of their own */
	unsigned int controls; /* under way */
	unsigned int send_size; /* requests in the queue, if none is under way */

	/* data.c: what is received */
	struct rs_sge *offers; /* of the peer; it writes here */
	struct rs_iomap *iomaps;
	uint16_t niomaps;
	uint8_t *rbuf;
	uint32_t rsize;
	uint32_t head;	  /* what the program reads next */
	uint32_t ready;	  /* octets from there on */
	uint32_t granted; /* that the peer may still write */
	uint32_t freed;	  /* read, or never offered: a half is offered when it is as much */
	uint32_t offer_at;
	uint16_t rx_seq, rx_told; /* messages of data; and when the peer was told of credits */
	uint32_t *msgs;	  /* of iWARP, one for each receive */

	/* and what is sent */
	uint8_t *sbuf;
	uint32_t ssize, spos, sfree;
	uint16_t tx_seq, tx_end; /* messages of data; the first that may not be sent */
	struct rs_sge target[RS_OFFERS]; /* copies of offers, what is left of each */
	unsigned int taking, writing; /* which is copied next, which is written to */
	struct rs_sge peer_offers; /* the peer's array */
	uint32_t peer_next;
	struct rs_sge peer_iomaps;

	struct rs_mapping *mappings; /* iomap.c */
};

static inline struct rs_stream *to_stream(struct rs *s)
{
	return (struct rs_stream *)((char *)s - offsetof(struct rs_stream, s));
}

/* Of one that opens: raccept has returned it, and the program takes it for connected. */
static inline bool rs_is_accepted(const struct rs_stream *st) { return !st->to.ss_family; }

/* err: what SO_ERROR says, or 0 */
static inline void rs_stream_over(struct rs_stream *st, int err)
{
	if (st->state == RS_OVER)
		return;
	st->state = RS_OVER;
	st->may_read = st->may_write = false;
	st->s.err = err;
}

/* endpoint.c. 0, or -errno */
int rs_endpoint_make(struct rs_stream *st);
void rs_endpoint_free(struct rs_stream *st);
void rs_endpoint_describe(struct rs_stream *st, struct rs_conn_data *d);
bool rs_endpoint_learn(struct rs_stream *st, const void *data, size_t len);
int rs_post_recv(struct rs_stream *st, uint32_t slot);
/*
 * A message, and with sge a Write in front of it. What the completion gives back: requests of data
 * and octets of the send buffer (RS_SENT_DATA), or places of control.
 */
enum rs_sent { RS_RECEIVED = 0, RS_SENT_DATA = 1, RS_SENT_CONTROL = 2, RS_SENT_SHIFT = 32 };
int rs_post(struct rs_stream *st, enum rs_sent kind, uint32_t gives_back, struct ibv_sge *sge,
	    uint64_t addr, uint32_t key, uint32_t msg, unsigned int flags);
/* The Write alone. */
int rs_post_write(struct rs_stream *st, struct ibv_sge *sge, uint64_t addr, uint32_t key);

/* protocol.c */
bool rs_can_send(const struct rs_stream *st);
/* A piece of data in the send buffer, len at most: its place */
void *rs_send_room(struct rs_stream *st, size_t *len);
int rs_send_control(struct rs_stream *st, uint32_t what); /* -EAGAIN: too many are under way */
void rs_give_credit(struct rs_stream *st);
void rs_stream_message(struct rs_stream *st, uint32_t msg);

/* progress.c: whether there has been any */
bool rs_stream_events(struct rs_stream *st);
bool rs_stream_progress(struct rs_stream *st);

/* iomap.c */
int rs_tell_mappings(struct rs_stream *st); /* -EAGAIN: not yet */
void rs_free_mappings(struct rs_stream *st);

/* data.c */
ssize_t rs_stream_recv(struct rs *s, struct rs_cursor *c, int flags,
		       struct sockaddr_storage *from);
ssize_t rs_stream_send(struct rs *s, struct rs_cursor *c, const struct sockaddr *to,
		       socklen_t len);

/* connect.c */
int rs_stream_bind(struct rs *s, const struct sockaddr *addr, socklen_t len);
int rs_stream_connect(struct rs *s, const struct sockaddr *addr, socklen_t len);
int rs_stream_listen(struct rs *s, int backlog);
/* The next request for a connection; then that is refused, or answered by a new socket. */
int rs_stream_request(struct rs *s, struct rdma_cm_event **ev);
void rs_stream_refuse(struct rdma_cm_event *ev);
int rs_stream_answer(struct rs_stream *st, const struct rs *listener, struct rdma_cm_event *ev);

#endif
