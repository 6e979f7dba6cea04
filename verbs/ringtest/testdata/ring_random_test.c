/* Daemons that write anything, anywhere they can: for the sanitizers to watch. */
#include <string.h>

#include "ring_test.h"

#define DEPTH 8

static struct fake_recv r;
static uint32_t state;

static uint32_t rnd(void)
{
	state = state * 1664525 + 1013904223;
	return state >> 8;
}

/* Numbers at edges, and others. */
static uint32_t number(void)
{
	static const uint32_t edges[] = { 0, 1, 2, 7, 8, 9, 63, 64, 65, 8192, 65535, 65536, 65537,
					 262144, 1u << 31, -1u, -2u, -8u, -64u };

	switch (rnd() % 4) {
	case 0:
		return rnd() % 32;
	case 1:
		return rnd() << 8 | (rnd() & 255);
	default:
		return edges[rnd() % (sizeof(edges) / sizeof(edges[0]))];
	}
}

static void scribble(struct pair *p)
{
	static const uint32_t words[] = {
		VRNIC_QP_SQ_DONE,	VRNIC_QP_RQ_HEAD, VRNIC_QP_STATE,	VRNIC_QP_TX_SLAB_CONS,
		VRNIC_QP_RX_SLAB_PROD,	VRNIC_QP_ERROR,	  VRNIC_QP_RQ_STARVED,	VRNIC_QP_SQ_SIZE,
		VRNIC_QP_SQ_STRIDE,	VRNIC_QP_SQ_OFF,  VRNIC_QP_RQ_SIZE,	VRNIC_QP_RX_SLAB_SIZE,
		VRNIC_QP_RX_SLAB_OFF,	VRNIC_QP_SQ_PROD, VRNIC_QP_RX_SLAB_CONS, VRNIC_QP_TX_SLAB_PROD,
	};
	uint32_t n = rnd() % (sizeof(words) / sizeof(words[0]) + 2);

	if (n < sizeof(words) / sizeof(words[0]))
		atomic_store(vrnic_word(p->q->mem, words[n]), number());
	else
		atomic_store(n & 1 ? p->cq->prod : p->cq->cons_word, number());
}

/* A completion that makes sense, but for some of its fields. */
static void push(struct pair *p)
{
	uint32_t prod = atomic_load(p->cq->prod), taken = p->q->sq_head;
	struct vrnic_cqe e = {
		.wr_id = 7,
		.opcode = rnd() % 2 ? IBV_WC_RECV : IBV_WC_SEND,
		.status = rnd() % 4 ? 0 : number(),
		.qpn = p->q->num,
		.sq_done = taken,
		.cookie = r.w.cookie,
		.slab_off = rnd() % 2 ? VRNIC_NO_SLAB : rnd() % 65536,
		.slab_len = rnd() % 4096,
		.byte_len = number(),
	};

	switch (rnd() % 8) {
	case 0:
		e.qpn = number();
		break;
	case 1:
		e.sq_done = taken + number();
		break;
	case 2:
		e.cookie += number();
		break;
	case 3:
		e.slab_off = number();
		break;
	case 4:
		e.slab_len = number();
		break;
	case 5:
		e.opcode = number();
		break;
	case 6:
		e.wc_flags = number();
		break;
	}
	memcpy(p->cq->cqes + (size_t)(prod & p->cq->mask) * VRNIC_CQE_LEN, &e, sizeof(e));
	atomic_store(p->cq->prod, prod + 1);
}

static void post_some(struct pair *p, uint32_t *sends, uint32_t *recvs)
{
	struct ibv_sge sge[2] = { sge_of(rnd() % 100, rnd() % 3000),
				 sge_of(4096 + rnd() % 100, rnd() % 6000) };

	if (rnd() % 2)
		*sends += !post(p, rnd() % 3, *sends, sge, rnd() % 3, rnd() % 2 ? IBV_SEND_SIGNALED : 0);
	else
		*recvs += !post_recv(p, 1000 + *recvs, sge, rnd() % 3);
}

/*
 * No daemon makes the library touch what is not its own, and each receive completes once at most.
 */
void test_random(void)
{
	struct ibv_wc wc[4];
	int round, step, n, i;

	for (round = 0; round < 4000; round++) {
		uint32_t sends = 0, recvs = 0, polled = 0;
		bool seen[64] = { false };
		struct pair p;

		fake_start();
		session.poll_yield = -1u;
		state = round;
		p = setup(DEPTH, DEPTH, 2, 64, NULL);
		fake_indices(p.qp, number());
		for (step = 0; step < 60; step++) {
			switch (rnd() % 8) {
			case 0:
			case 1:
			case 2:
				post_some(&p, &sends, &recvs);
				break;
			case 3:
				if (atomic_load(vrnic_word(p.q->mem, VRNIC_QP_RQ_PROD)) - p.q->rq_head <= DEPTH)
					fake_take_recv(p.q, &r);
				break;
			case 4:
				p.q->sq_head = atomic_load(&p.qp->sq.prod); /* as if it had taken them */
				break;
			case 5:
				push(&p);
				break;
			case 6:
				if (rnd() % 3 == 0)
					scribble(&p);
				break;
			}
			if (step == 59 && !vrnic_dead(&session))
				vrnic_die(&session, "test");
			do {
				n = vrnic_poll_cq(&p.cq->cq, 1 + rnd() % 4, wc);
				for (i = 0; i < n; i++) {
					CHECK_EQ(wc[i].qp_num, p.q->num);
					if (!(wc[i].opcode & IBV_WC_RECV))
						continue;
					CHECK(wc[i].wr_id >= 1000 && wc[i].wr_id < 1000 + recvs);
					CHECK(!seen[wc[i].wr_id - 1000]);
					seen[wc[i].wr_id - 1000] = true;
					polled++;
				}
			} while (n > 0 && step == 59);
		}
		CHECK_EQ(polled, recvs);
		CHECK(corrupt <= 2);
		teardown(&p);
	}
}
