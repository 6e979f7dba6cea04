/* What tests of the direct path have in common: two QPs with a pair. */
#ifndef RING_DIRECT_H
#define RING_DIRECT_H

#include "ring_test.h"

#define DEPTH 8
#define LONG 9000 /* more than goes directly */
#define SLAB 16384
#define MESSAGES 4096

/* One of the two, and what goes from it to the other. */
struct end {
	struct vrnic_cq *cq;
	struct vrnic_qp *qp;
	struct fake_q *q;
	char out[2 * DEPTH][LONG], in[DEPTH][LONG];
	uint32_t out_key, in_key;
	struct fake_wqe w;
	bool taken; /* w, which waits for a receive */
	char *dir;
	bool open;
	uint32_t was; /* DirRecvDone */
	uint32_t base; /* the daemon's count of the peer's receives */
	/* what has been sent, and which of it completes */
	uint32_t sent, received, recvs, signaled[MESSAGES], nsignaled, completed;
	uint32_t length[MESSAGES], byring;
	bool imm[MESSAGES]; /* immediate data, of no octets */
};

extern struct end direct_ends[2];

uint32_t direct_rnd(uint32_t n);
void direct_begin(uint32_t round, uint32_t first);
char *direct_pair(void); /* for both to have */
void direct_open(struct end *e, bool open);
void direct_receive(struct end *e); /* posts one, if there is room */
_Atomic uint32_t *direct_word(struct end *e, uint32_t off);
uint64_t direct_counted(struct end *e, uint32_t off);
void direct_finish(void);

#endif
