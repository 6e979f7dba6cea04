#ifndef RING_TEST_H
#define RING_TEST_H

#include "fake.h"

/* A QP of the library and of the daemon, in RTS, whose completions come on one CQ. */
struct pair {
	struct vrnic_cq *cq;
	struct vrnic_qp *qp;
	struct fake_q *q;
};

struct pair setup(uint32_t sends, uint32_t recvs, uint32_t sges, uint32_t max_inline,
		  struct ibv_srq *srq);
void teardown(struct pair *p);

/* Of memory that setup registers. */
struct ibv_sge sge_of(uint32_t off, uint32_t len);

static inline struct vrnic_cqe cqe_of(struct pair *p)
{
	return (struct vrnic_cqe){ .qpn = p->q->num, .slab_off = VRNIC_NO_SLAB };
}

static inline struct vrnic_cqe recv_cqe(struct pair *p, uint32_t cookie)
{
	struct vrnic_cqe e = cqe_of(p);

	e.opcode = IBV_WC_RECV;
	e.cookie = cookie;
	return e;
}

int post(struct pair *p, enum ibv_wr_opcode op, uint64_t id, struct ibv_sge *sge, int n,
	 unsigned int flags);
int post_recv(struct pair *p, uint64_t id, struct ibv_sge *sge, int n);
struct ibv_wc poll1(struct vrnic_cq *cq);
void want_empty(struct vrnic_cq *cq);

/* ring_random_test.c */
void test_random(void);

/* table_test.c */
void test_table(void);
void test_regions_forked(void);
void test_regions_remembered(void);
void bench_tables(void);

/* ring_hostile_test.c */
void test_hostile(void);
void test_hostile_destroy(void);
void test_flush(void);
void test_forked(void);
void test_direct_layout(void);

/* ring_calls_test.c */
void test_cq_ex(void);
void test_wr(void);

/* ring_threads_test.c */
void test_threads(void);
void bench(void);
void bench_direct(void);

/* ring_direct_test.c */
void test_direct(void);
void test_direct_room(void);
void test_direct_behind(void);
void test_direct_off(void);
void test_direct_events(void);
void test_direct_again(void);
void test_direct_late(void);
void test_direct_left(void);
void test_direct_armed(void);
void test_direct_polling(void);
void test_direct_receiver(void);
void test_direct_forked(void);
void test_direct_unfinished(void);
void test_direct_hostile(void);

/* ring_remote_test.c */
void test_direct_remote(void);
void test_direct_uncovered(void);

/* ring_roce_test.c */
void test_services(void);
void test_datagrams(void);
void test_reset(void);

#endif
