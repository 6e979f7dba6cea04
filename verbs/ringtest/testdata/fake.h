/*
 * A daemon in the test's own process, for the data path of libibverbs: it makes the memory of
 * queues as the real one does, takes what is posted under the same checks, and completes it. What
 * it finds wrong in a ring ends the test.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stdio.h>
#include <stdlib.h>

#include "ibverbs/queue.h"

#define CHECK(cond)                                                                               \
	do {                                                                                      \
		if (!(cond)) {                                                                    \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #cond); \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

#define CHECK_EQ(a, b)                                                                                        \
	do {                                                                                                  \
		long long a_ = (a), b_ = (b);                                                                 \
		if (a_ != b_) {                                                                               \
			fprintf(stderr, "%s:%d: %s: %s is %lld, want %s = %lld\n", __FILE__, __LINE__, __func__, #a, a_, #b, b_); \
			exit(1);                                                                              \
		}                                                                                             \
	} while (0)

/* A queue of the daemon's: a QP, or an SRQ (no send queue). */
struct fake_q {
	char *mem;
	size_t len;
	struct vrnic_layout l;
	uint32_t num, bell;
	uint32_t sq_head, sq_done, rq_head;
	uint32_t tx_taken, tx_cons, *tx_ends;
	uint32_t rx_prod;
};

struct fake_wqe {
	struct vrnic_send_wqe w;
	struct vrnic_sge sge[VRNIC_MAX_SGE];
	char data[VRNIC_MAX_SLAB]; /* inline or out of the slab */
};

struct fake_recv {
	struct vrnic_recv_wqe w;
	struct vrnic_sge sge[VRNIC_MAX_SGE];
};

extern struct vrnic_session session;
extern struct vrnic_context context;
extern struct vrnic_pd pd;

/*
 * What the library said: how often vrnic_corrupt and the doorbell were called, what LOCAL_INV and
 * completions revoked.
 */
extern atomic_int corrupt, doorbells;
extern uint32_t revoked;
extern unsigned int complaints; /* what vrnic_complain was called with */
extern bool peer_gone;	  /* what vrnic_peer_gone finds */
extern bool unmapped;	  /* as in the child of a fork */
extern int rpc_error;	  /* of the next CREATE */
extern bool refuse_slabs; /* ENOMEM for a QP that has some */

void fake_start(void);
struct vrnic_cq *fake_cq(uint32_t size);
void fake_cq_free(struct vrnic_cq *cq);

/* Registers [addr, addr+len), at iova, for PD pd: its lkey. */
uint32_t fake_mr(void *addr, size_t len, uint64_t iova, int access);
void fake_dereg(uint32_t lkey);

/* Memory for a pair, for who asks: second is the number of the QP that is its second. */
char *fake_pair(size_t len, uint32_t second);
void fake_pair_left(int side); /* who has left it may have it again */
void fake_pair_free(void);
extern bool fake_covered; /* what it says of the CQs */

/* Memory that a peer has lent, as its memory 1, and a table for the keys of it. */
void fake_peer(size_t keys_len, size_t len, char **keys, char **mem);
void fake_peer_free(void);
/* What happens while a program asks for it, or NULL. */
extern void (*fake_asked)(void);
extern void (*fake_looked)(void); /* each time that SGEs are looked at */

struct fake_q *fake_of(uint32_t num); /* the daemon's queue of a QP number or an SRQ handle */
void fake_state(struct fake_q *q, uint32_t state);

/* Has all the indices of a QP without anything outstanding start at n. */
void fake_indices(struct vrnic_qp *qp, uint32_t n);
void fake_cq_indices(struct vrnic_cq *cq, uint32_t n);

bool fake_take_send(struct fake_q *q, struct fake_wqe *w);
uint32_t fake_retire(struct fake_q *q, uint32_t n);
void fake_push(struct vrnic_cq *cq, const struct vrnic_cqe *e);

/* Retires n requests and completes the last of them. */
void fake_sent(struct fake_q *q, struct vrnic_cq *cq, const struct fake_wqe *w, uint32_t status,
	       uint32_t n);

bool fake_take_recv(struct fake_q *q, struct fake_recv *r);

/*
 * Completes a receive of QP number qpn with len octets of data, through q's slab if there is room
 * and slab is set.
 */
void fake_received(struct fake_q *q, struct vrnic_cq *cq, const struct fake_recv *r, uint32_t qpn,
		   const void *data,
		   uint32_t len, bool slab);
/* Immediate data of iWARP, which has no octets. */
void fake_told(struct fake_q *q, struct vrnic_cq *cq, const struct fake_recv *r, uint32_t imm);

/* The bell of q rang since the last time. */
bool fake_rang(const struct fake_q *q);

#endif
