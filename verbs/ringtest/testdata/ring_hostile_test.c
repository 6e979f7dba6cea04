/* Daemons out of their mind, dead sessions, and what a fork leaves of them. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "ring_direct.h"

static struct fake_wqe w;
static struct fake_recv r;


/*
 * Each breaks something that only the daemon writes; the posts and the poll after it are to
 * survive.
 */
static void wrong_cq_prod(struct pair *p)
{
	atomic_fetch_add(p->cq->prod, p->cq->mask + 2);
}

static void emptied(struct pair *p)
{
	struct vrnic_cqe e = cqe_of(p);

	e.sq_done = 1;
	e.qpn = 0xffffff; /* of nobody: passed over */
	fake_push(p->cq, &e);
	want_empty(p->cq);
	atomic_store(p->cq->prod, 0);
}

static void wrong_sq_done(struct pair *p)
{
	struct vrnic_cqe e = cqe_of(p);

	e.sq_done = 3; /* two are posted */
	fake_push(p->cq, &e);
}

static void sq_done_long_ago(struct pair *p)
{
	struct vrnic_cqe e = cqe_of(p);

	e.sq_done = -15u; /* more than a queue ago */
	fake_push(p->cq, &e);
}

static void no_cookie(struct pair *p)
{
	struct vrnic_cqe e = recv_cqe(p, 0);

	fake_push(p->cq, &e);
}

static void cookie_beyond(struct pair *p)
{
	struct vrnic_cqe e = recv_cqe(p, 0x1ffff);

	fake_push(p->cq, &e);
}

static void cookie_unposted(struct pair *p)
{
	struct vrnic_cqe e = recv_cqe(p, (1 << 17) | 4);

	fake_push(p->cq, &e);
}

static void cookie_twice(struct pair *p)
{
	struct vrnic_cqe e;

	CHECK(fake_take_recv(p->q, &r));
	e = recv_cqe(p, r.w.cookie);
	fake_push(p->cq, &e);
	fake_push(p->cq, &e);
	poll1(p->cq);
	post_recv(p, 50, NULL, 0); /* the same place, another cookie */
}

static void cookie_over(struct pair *p)
{
	struct vrnic_cqe e;

	CHECK(fake_take_recv(p->q, &r));
	e = recv_cqe(p, r.w.cookie);
	fake_push(p->cq, &e);
	fake_push(p->cq, &e);
	poll1(p->cq);
	CHECK_EQ(post(p, IBV_WR_SEND, 3, NULL, 0, 0), 0); /* for three to be flushed */
}

static void slab(struct pair *p, uint32_t off, uint32_t len, uint32_t prod)
{
	struct vrnic_cqe e;

	CHECK(fake_take_recv(p->q, &r));
	e = recv_cqe(p, r.w.cookie);
	e.slab_off = off;
	e.slab_len = len;
	atomic_store(vrnic_word(p->q->mem, VRNIC_QP_RX_SLAB_PROD), prod);
	fake_push(p->cq, &e);
}

static void slab_outside(struct pair *p)
{
	slab(p, 65536, 8, 100);
}

static void slab_far_outside(struct pair *p)
{
	slab(p, 0xfffffff0, 0xfffffff0, 100);
}

static void slab_over_end(struct pair *p)
{
	slab(p, 65530, 8, 65536);
}

static void slab_not_put(struct pair *p)
{
	slab(p, 0, 8, 7);
}

static void slab_prod_beyond(struct pair *p)
{
	slab(p, 0, 8, 65537);
}

static void slab_more_than_receive(struct pair *p)
{
	slab(p, 0, 101, 200); /* the receive takes 100 */
}

static void rq_head_beyond(struct pair *p)
{
	atomic_store(vrnic_word(p->q->mem, VRNIC_QP_RQ_HEAD), 5);
	CHECK_EQ(post_recv(p, 50, NULL, 0), 0);
}

static void sq_done_beyond(struct pair *p)
{
	int i;

	atomic_store(vrnic_word(p->q->mem, VRNIC_QP_SQ_DONE), 50);
	for (i = 0; i < 14; i++)
		CHECK_EQ(post(p, IBV_WR_SEND, i, NULL, 0, 0), 0);
	CHECK_EQ(post(p, IBV_WR_SEND, i, NULL, 0, 0), EIO);
}

static void txslab_cons_beyond(struct pair *p)
{
	struct ibv_sge sge = sge_of(0, 1000);

	atomic_store(vrnic_word(p->q->mem, VRNIC_QP_TX_SLAB_CONS), 9);
	CHECK_EQ(post(p, IBV_WR_SEND, 50, &sge, 1, 0), 0);
}

static void wrong_cq(struct pair *p)
{
	/*
	 * A completion of another CQ's QP is none of ours: a QP number that this CQ does not know is
	 * passed over.
	 */
	struct vrnic_cqe e = cqe_of(p);

	e.qpn++;
	fake_push(p->cq, &e);
	want_empty(p->cq);
	e.qpn--;
	e.sq_done = 100;
	fake_push(p->cq, &e);
}

void test_hostile(void)
{
	static const struct {
		const char *name;
		void (*breaks)(struct pair *p);
	} cases[] = {
		{ "cq_prod", wrong_cq_prod },
		{ "emptied", emptied },
		{ "sq_done", wrong_sq_done },
		{ "sq_done_long_ago", sq_done_long_ago },
		{ "no_cookie", no_cookie },
		{ "cookie_beyond", cookie_beyond },
		{ "cookie_unposted", cookie_unposted },
		{ "cookie_twice", cookie_twice },
		{ "cookie_over", cookie_over },
		{ "slab_outside", slab_outside },
		{ "slab_far_outside", slab_far_outside },
		{ "slab_over_end", slab_over_end },
		{ "slab_not_put", slab_not_put },
		{ "slab_prod_beyond", slab_prod_beyond },
		{ "slab_more_than_receive", slab_more_than_receive },
		{ "rq_head_beyond", rq_head_beyond },
		{ "sq_done_beyond", sq_done_beyond },
		{ "txslab_cons_beyond", txslab_cons_beyond },
		{ "wrong_cq", wrong_cq },
	};
	struct ibv_wc wc[64];
	struct pair p;
	size_t i;
	int n;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ibv_sge sge;

		fake_start();
		p = setup(16, 4, 1, 0, NULL);
		sge = sge_of(0, 100);
		CHECK_EQ(post(&p, IBV_WR_SEND, 1, NULL, 0, 0), 0);
		CHECK_EQ(post(&p, IBV_WR_SEND, 2, NULL, 0, IBV_SEND_SIGNALED), 0);
		CHECK_EQ(post_recv(&p, 3, &sge, 1), 0);
		CHECK_EQ(post_recv(&p, 4, &sge, 1), 0);
		CHECK_EQ(corrupt, 0);
		cases[i].breaks(&p);
		n = vrnic_poll_cq(&p.cq->cq, 64, wc); /* may find it out, or have flushed already */
		if (corrupt != 1 || !vrnic_dead(&session)) {
			fprintf(stderr, "%s: found %d times\n", cases[i].name, corrupt);
			exit(1);
		}
		/* The rest is flushed, and then there is peace. */
		n += vrnic_poll_cq(&p.cq->cq, 64, wc);
		CHECK(n >= 3);
		want_empty(p.cq);
		CHECK_EQ(corrupt, 1);
		teardown(&p);
	}
}

/* Nor does it matter to the end of a QP with an SRQ, which looks for its receives in the ring. */
void test_hostile_destroy(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(&pd.pd, &sa);
	struct pair p = setup(8, 8, 1, 0, srq);

	atomic_fetch_add(p.cq->prod, 1u << 30);
	CHECK_EQ(ibv_destroy_qp(&p.qp->qp), 0);
	CHECK_EQ(corrupt, 1);
	want_empty(p.cq);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	fake_cq_free(p.cq);
}

/*
 * On a dead session what is outstanding completes as flushed, once, the sends first, each queue in
 * the order of posting, visible or not; and so does what is posted later.
 */
void test_flush(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(&pd.pd, &sa);
	struct pair p = setup(8, 8, 1, 0, NULL), q = setup(8, 8, 1, 0, srq);
	struct ibv_sge sge = sge_of(0, 64);
	struct ibv_recv_wr rw = { .wr_id = 9 }, *bad;
	struct ibv_wc wc[64];
	int i, n;

	fake_indices(p.qp, 0xfffffffd);
	for (i = 0; i < 6; i++)
		CHECK_EQ(post_recv(&p, 100 + i, &sge, 1), 0);
	for (i = 0; i < 5; i++)
		CHECK_EQ(post(&p, i == 3 ? IBV_WR_RDMA_READ : IBV_WR_SEND, i, &sge, 1, i % 2 ? IBV_SEND_SIGNALED
			      : 0), 0);
	/*
	 * Two sends are over, one known to be so; a receive in the middle has been completed, and polled.
	 */
	CHECK(fake_take_send(p.q, &w) && fake_take_send(p.q, &w));
	fake_sent(p.q, p.cq, &w, 0, 2);
	CHECK(fake_take_recv(p.q, &r) && fake_take_recv(p.q, &r));
	fake_received(p.q, p.cq, &r, p.q->num, "abc", 3, true);
	CHECK_EQ(poll1(p.cq).wr_id, 1);
	CHECK_EQ(poll1(p.cq).wr_id, 101);
	CHECK_EQ(post_recv(&p, 106, &sge, 1), 0);
	/* This one the daemon has completed before its end: it comes as it is. */
	CHECK(fake_take_send(p.q, &w));
	fake_sent(p.q, p.cq, &w, 0, 1);
	CHECK_EQ(vrnic_post_srq_recv(srq, &rw, &bad), 0);

	vrnic_die(&session, "test");
	CHECK_EQ(post(&p, IBV_WR_RDMA_WRITE, 5, &sge, 1, 0), 0);
	CHECK_EQ(post_recv(&p, 107, &sge, 1), 0);
	CHECK_EQ(post(&q, IBV_WR_SEND, 200, &sge, 1, 0), 0);
	CHECK_EQ(vrnic_post_srq_recv(srq, &rw, &bad), 0);
	CHECK(!fake_take_send(q.q, &w));

	CHECK_EQ(vrnic_poll_cq(&p.cq->cq, 64, wc), 1);
	CHECK(wc[0].wr_id == 2 && wc[0].status == IBV_WC_SUCCESS);
	n = vrnic_poll_cq(&p.cq->cq, 2, wc);
	n += vrnic_poll_cq(&p.cq->cq, 60, wc + n);
	CHECK_EQ(n, 10);
	for (i = 0; i < n; i++) {
		static const int want[] = { 3, 4, 5, 100, 102, 103, 104, 105, 106, 107 };

		CHECK_EQ(wc[i].wr_id, want[i]);
		CHECK_EQ(wc[i].status, IBV_WC_WR_FLUSH_ERR);
		CHECK_EQ(wc[i].qp_num, p.q->num);
	}
	CHECK_EQ(wc[0].opcode, IBV_WC_RDMA_READ);
	CHECK_EQ(wc[2].opcode, IBV_WC_RDMA_WRITE);
	CHECK_EQ(wc[3].opcode, IBV_WC_RECV);
	want_empty(p.cq);
	CHECK_EQ(poll1(q.cq).wr_id, 200);
	want_empty(q.cq); /* receives of an SRQ are no QP's */
	CHECK_EQ(post(&p, IBV_WR_SEND, 6, &sge, 1, 0), 0);
	CHECK_EQ(poll1(p.cq).wr_id, 6);
	want_empty(p.cq);
	for (i = 0; i < 8; i++)
		CHECK_EQ(post(&p, IBV_WR_SEND, 6, &sge, 1, 0), 0);
	CHECK_EQ(post(&p, IBV_WR_SEND, 6, &sge, 1, 0), ENOMEM);
	CHECK_EQ(ibv_destroy_qp(&p.qp->qp), 0);
	CHECK_EQ(ibv_destroy_qp(&q.qp->qp), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(corrupt, 0);
	fake_cq_free(p.cq);
	fake_cq_free(q.cq);
}

/* The child of a fork has the objects, but not the memory of the rings. */
void test_forked(void)
{
	struct pair p = setup(8, 8, 1, 0, NULL);
	struct ibv_sge sge = sge_of(0, 64);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	void *ring = p.cq->head.mem;

	CHECK_EQ(post_recv(&p, 1, &sge, 1), 0);
	CHECK_EQ(post(&p, IBV_WR_SEND, 2, &sge, 1, 0), 0);
	vrnic_die(&session, "test");
	unmapped = true;
	CHECK_EQ(mprotect(p.q->mem, p.q->len, PROT_NONE), 0);
	p.cq->prod = p.cq->cons_word = p.cq->arm = NULL;
	p.cq->cqes = NULL;
	CHECK_EQ(post(&p, IBV_WR_SEND, 3, &sge, 1, 0), 0);
	CHECK_EQ(post_recv(&p, 4, &sge, 1), 0);
	CHECK_EQ(vrnic_req_notify_cq(&p.cq->cq, 0), 0);
	CHECK_EQ(poll1(p.cq).wr_id, 2);
	CHECK_EQ(poll1(p.cq).wr_id, 3);
	CHECK_EQ(poll1(p.cq).wr_id, 1);
	CHECK_EQ(poll1(p.cq).wr_id, 4);
	want_empty(p.cq);
	CHECK_EQ(ibv_modify_qp(&p.qp->qp, &attr, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_query_qp(&p.qp->qp, &attr, IBV_QP_STATE, &init), 0);
	CHECK_EQ(attr.qp_state, IBV_QPS_ERR);
	p.cq->head.mem = ring;
	teardown(&p);
}

/*
 * Memory of a pair that makes no sense is the peer's doing: there is no direct path then, and what
 * the peer has the daemon complete twice is passed over.
 */
void test_direct_layout(void)
{
	static const struct {
		uint32_t off, v;
	} bad[] = {
		{ VRNIC_PAIR_MAGIC, 1 }, { VRNIC_PAIR_OFF, 1 << 20 }, { VRNIC_PAIR_OFF, 60 },
		{ VRNIC_PAIR_OFF + 4, -64u }, { VRNIC_PAIR_SLOTS, 3 }, { VRNIC_PAIR_SLOTS, 0 },
		{ VRNIC_PAIR_SLOTS + 4, 1u << 31 }, { VRNIC_PAIR_SLAB, 100 }, { VRNIC_PAIR_SLAB, 1u << 31 },
		{ VRNIC_PAIR_SLOTS, 2 * DEPTH }, { VRNIC_PAIR_SLOTS, DEPTH / 2 },
	};
	struct end *b = &direct_ends[1];
	struct ibv_wc wc;
	uint32_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char *mem;

		direct_begin(i, 0);
		mem = direct_pair();
		vrnic_direct_free(b->qp);
		fake_pair_left(1);
		atomic_store(vrnic_word(mem, bad[i].off), bad[i].v);
		vrnic_direct_try(b->qp);
		CHECK(!b->qp->direct && !b->qp->direct_in);
		direct_receive(b);
		CHECK(fake_take_recv(b->q, &r));
		fake_received(b->q, b->cq, &r, b->q->num, "", 0, false);
		fake_received(b->q, b->cq, &r, b->q->num, "", 0, false);
		CHECK(vrnic_poll_cq(&b->cq->cq, 1, &wc) == 1 && !wc.status);
		CHECK(!vrnic_poll_cq(&b->cq->cq, 1, &wc) && !corrupt && !vrnic_dead(&session));
		direct_finish();
	}
}
