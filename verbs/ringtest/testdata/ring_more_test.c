/*
 * More of ring_test.c: daemons out of their mind, dead sessions, the extended calls, threads; and
 * the benchmarks.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "ring_test.h"

static struct fake_wqe w;
static struct fake_recv r;

static struct vrnic_cqe cqe_of(struct pair *p)
{
	return (struct vrnic_cqe){ .qpn = p->q->num, .slab_off = VRNIC_NO_SLAB };
}

static struct vrnic_cqe recv_cqe(struct pair *p, uint32_t cookie)
{
	struct vrnic_cqe e = cqe_of(p);

	e.opcode = IBV_WC_RECV;
	e.cookie = cookie;
	return e;
}

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

void test_cq_ex(void)
{
	struct pair p = setup(8, 8, 1, 0, NULL);
	struct ibv_cq_ex *ex = &p.cq->ex;
	struct ibv_poll_cq_attr attr = { 0 }, bad = { 1 };
	struct vrnic_cqe e;
	int i;

	vrnic_cq_ex_ops(p.cq, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
	CHECK(!ex->read_completion_wallclock_ns);
	vrnic_cq_ex_ops(p.cq,
			IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
	CHECK_EQ(ex->start_poll(ex, &bad), EINVAL);
	CHECK_EQ(ex->start_poll(ex, &attr), ENOENT);
	for (i = 0; i < 3; i++)
		CHECK_EQ(post(&p, IBV_WR_SEND, i, NULL, 0, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post_recv(&p, 7, NULL, 0), 0);
	CHECK(fake_take_send(p.q, &w));
	fake_sent(p.q, p.cq, &w, 0, 1);
	CHECK(fake_take_send(p.q, &w));
	fake_sent(p.q, p.cq, &w, IBV_WC_REM_ACCESS_ERR, 1);
	CHECK(fake_take_recv(p.q, &r));
	e = recv_cqe(&p, r.w.cookie);
	e.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
	e.wc_flags = IBV_WC_WITH_IMM;
	e.imm = htonl(99);
	e.byte_len = 4;
	e.vendor_err = 5;
	e.src_qp = 6;
	fake_push(p.cq, &e);

	CHECK_EQ(ex->start_poll(ex, &attr), 0);
	CHECK(ex->wr_id == 0 && ex->status == IBV_WC_SUCCESS && ex->read_opcode(ex) == IBV_WC_SEND);
	CHECK_EQ(ex->read_completion_ts(ex), 12345);
	CHECK(ex->read_completion_wallclock_ns(ex) > 12345);
	CHECK_EQ(ex->next_poll(ex), 0);
	CHECK(ex->wr_id == 1 && ex->status == IBV_WC_REM_ACCESS_ERR);
	CHECK_EQ(vrnic_req_notify_cq(&p.cq->cq, 0), 0); /* it does not wait for end_poll */
	CHECK_EQ(atomic_load(p.cq->arm), VRNIC_ARM_NEXT);
	ex->end_poll(ex);
	CHECK_EQ(ex->start_poll(ex, &attr), 0);
	CHECK(ex->wr_id == 7 && ex->read_opcode(ex) == IBV_WC_RECV_RDMA_WITH_IMM &&
	      ntohl(ex->read_imm_data(ex)) == 99);
	CHECK(ex->read_byte_len(ex) == 4 && ex->read_vendor_err(ex) == 5 &&
	      ex->read_qp_num(ex) == p.q->num &&
	      ex->read_wc_flags(ex) == IBV_WC_WITH_IMM && ex->read_src_qp(ex) == 0 &&
	      	ex->read_slid(ex) == 0 &&
	      ex->read_sl(ex) == 0 && ex->read_dlid_path_bits(ex) == 0);
	CHECK_EQ(ex->next_poll(ex), ENOENT);
	ex->end_poll(ex);
	CHECK_EQ(ex->start_poll(ex, &attr), ENOENT);
	vrnic_die(&session, "test");
	CHECK_EQ(ex->start_poll(ex, &attr), 0);
	CHECK(ex->wr_id == 2 && ex->status == IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(ex->next_poll(ex), ENOENT);
	ex->end_poll(ex);
	CHECK_EQ(corrupt, 0);
	teardown(&p);
}

/* Requests that are made by calls come together with one bell, or not at all. */
void test_wr(void)
{
	struct pair p = setup(4, 1, 2, 64, NULL);
	uint64_t all =
		IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
		       IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
		       IBV_QP_EX_WITH_SEND_WITH_INV;
	struct ibv_sge sge[2] = { sge_of(0, 3000), sge_of(4000, 1000) }, at = sge_of(0, 8);
	struct ibv_data_buf bufs[3] = { { "ab", 2 }, { NULL, 0 }, { "cde", 3 } };
	struct ibv_mr mr = { .pd = &pd.pd, .lkey = 0x77 };
	struct ibv_mw mw = { .pd = &pd.pd, .type = IBV_MW_TYPE_2 };
	struct ibv_mw_bind_info info = { &mr, 0x100, 16, IBV_ACCESS_REMOTE_READ };
	struct ibv_qp_ex *ex;
	uint32_t slab;
	char big[100] = { 0 };

	vrnic_qp_ex_ops(p.qp, all);
	ex = ibv_qp_to_qp_ex(&p.qp->qp);
	CHECK(ex);

	ex->wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ex->wr_send(ex); /* of no octets */
	ex->wr_id = 2;
	ex->wr_flags = 0;
	ex->wr_rdma_write_imm(ex, 0x10, 0x2000, htonl(1));
	ex->wr_set_sge_list(ex, 2, sge);
	memset(sge, 0, sizeof(sge)); /* they have been read */
	ex->wr_id = 3;
	ex->wr_send_inv(ex, 0x55);
	ex->wr_set_inline_data_list(ex, 3, bufs);
	ex->wr_id = 4;
	ex->wr_atomic_fetch_add(ex, 0x11, 0x3000, 42);
	ex->wr_set_sge(ex, at.lkey, at.addr, at.length);
	CHECK(!fake_take_send(p.q, &w) && !fake_rang(p.q));
	CHECK_EQ(ex->wr_complete(ex), 0);
	CHECK(fake_rang(p.q));
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.wr_id == 1 && w.w.op == IBV_WR_SEND && w.w.flags == VRNIC_SQ_SIGNALED &&
	      w.w.length == 0);
	fake_sent(p.q, p.cq, &w, 0, 1);
	CHECK_EQ(poll1(p.cq).wr_id, 1);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.wr_id == 2 && w.w.flags == VRNIC_SQ_SLAB && w.w.length == 4000 && ntohl(w.w.imm) == 1
	      && w.w.rkey == 0x10);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.wr_id == 3 && w.w.flags == VRNIC_SQ_INLINE && w.w.length == 5 &&
	      !memcmp(w.data, "abcde", 5) && w.w.imm == 0x55);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.wr_id == 4 && w.w.cmp_add == 42 && w.w.remote_addr == 0x3000 && w.w.rkey == 0x11);
	CHECK(!fake_take_send(p.q, &w));
	fake_retire(p.q, 3);

	/*
	 * Aborted, full, or with anything wrong in it: nothing of it is posted, and the slab is as before.
	 */
	slab = p.qp->sq.slab_prod;
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_sge(ex, at.lkey, at.addr, 2000);
	ex->wr_abort(ex);
	CHECK_EQ(p.qp->sq.slab_prod, slab);
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_sge(ex, at.lkey, at.addr, 2000);
	ex->wr_send(ex);
	ex->wr_set_inline_data(ex, big, p.qp->cap.max_inline_data + 1);
	ex->wr_send(ex);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	CHECK_EQ(p.qp->sq.slab_prod, slab);
	ex->wr_start(ex);
	ex->wr_send(ex);
	bufs[0].addr = bufs[2].addr = big;
	bufs[0].length = 60;
	bufs[2].length = p.qp->cap.max_inline_data - 59;
	ex->wr_set_inline_data_list(ex, 3, bufs);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	ex->wr_start(ex);
	ex->wr_send(ex);
	bufs[2].length = -30ul; /* 60 of them, and -30, are no 30 */
	ex->wr_set_inline_data_list(ex, 3, bufs);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	ex->wr_start(ex);
	for (int i = 0; i < 5; i++)
		ex->wr_send(ex);
	CHECK_EQ(ex->wr_complete(ex), ENOMEM);
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_sge_list(ex, p.qp->cap.max_send_sge + 1, sge);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	ex->wr_start(ex);
	ex->wr_send_tso(ex, big, 10, 10);
	CHECK_EQ(ex->wr_complete(ex), EOPNOTSUPP);
	ex->wr_start(ex);
	ex->wr_set_sge(ex, at.lkey, at.addr, 1); /* of nothing */
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	fake_state(p.q, IBV_QPS_INIT);
	ex->wr_start(ex);
	ex->wr_send(ex);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	fake_state(p.q, IBV_QPS_RTS);
	CHECK(!fake_take_send(p.q, &w) && !fake_rang(p.q));

	ex->wr_start(ex);
	ex->wr_bind_mw(ex, &mw, 0x901, &info);
	ex->wr_local_inv(ex, 0x902);
	ex->wr_rdma_read(ex, 0x903, 0x4000);
	ex->wr_set_sge(ex, at.lkey, at.addr, 8);
	ex->wr_atomic_cmp_swp(ex, 0x904, 0x5000, 1, 2);
	ex->wr_set_sge(ex, at.lkey, at.addr, 8);
	CHECK_EQ(ex->wr_complete(ex), 0);
	CHECK(fake_rang(p.q));
	CHECK(fake_take_send(p.q, &w) && w.w.rkey == 0x901 && w.w.cmp_add == 16 && w.sge[0].lkey == 0x77);
	CHECK(fake_take_send(p.q, &w) && w.w.imm == 0x902 && w.w.num_sge == 0);
	CHECK(fake_take_send(p.q, &w) && w.w.rkey == 0x903 && w.w.remote_addr == 0x4000 &&
	      w.w.num_sge == 1 && !w.w.imm);
	CHECK(fake_take_send(p.q, &w) && w.w.cmp_add == 1 && w.w.swap == 2);
	fake_retire(p.q, 4);
	mw.type = IBV_MW_TYPE_1;
	ex->wr_start(ex);
	ex->wr_bind_mw(ex, &mw, 0x901, &info);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);

	vrnic_die(&session, "test");
	for (int i = 0; i < 4; i++) /* invisible, and nobody can know any more that they are over */
		CHECK_EQ(poll1(p.cq).status, IBV_WC_WR_FLUSH_ERR);
	ex->wr_start(ex);
	ex->wr_id = 10;
	ex->wr_send(ex);
	CHECK_EQ(ex->wr_complete(ex), 0);
	CHECK(!fake_rang(p.q));
	teardown(&p);
}

/* ---- threads ---- */

#define MESSAGES 20000
#define POSTERS 2
#define POLLERS 2

static struct pair shared;
static atomic_uint posted, sends_polled, recvs_polled, recvs_posted;
static atomic_bool seen[MESSAGES];
static char areas[POSTERS][2048], sinks[64][2048];
static uint32_t sink_key, area_keys[POSTERS];

/* Posts sends, of sizes for the ring and for the slab, and invisible ones, as there is room. */
static void *poster(void *arg)
{
	uint32_t me = (uintptr_t)arg, id, len;

	while ((id = atomic_fetch_add(&posted, 1)) < MESSAGES) {
		struct ibv_sge sge = { .addr = (uintptr_t)areas[me], .lkey = area_keys[me] };

		len = id % 3 ? 8 : 1500;
		memcpy(areas[me], &id, sizeof(id));
		sge.length = len;
		while (post(&shared, IBV_WR_SEND, id, &sge, 1, id % 4 ? 0 : IBV_SEND_SIGNALED))
			sched_yield();
	}
	return NULL;
}

static void repost(uint32_t place)
{
	struct ibv_sge sge = { .addr = (uintptr_t)sinks[place], .length = sizeof(sinks[0]),
			      .lkey = sink_key };

	CHECK_EQ(post_recv(&shared, place, &sge, 1), 0);
	atomic_fetch_add(&recvs_posted, 1);
}

static void *poller(void *arg)
{
	struct ibv_wc wc[8];
	uint32_t id;
	int i, n;

	(void)arg;
	while (atomic_load(&recvs_polled) < MESSAGES || atomic_load(&sends_polled) < MESSAGES / 4) {
		n = vrnic_poll_cq(&shared.cq->cq, 8, wc);
		CHECK(n >= 0 && n <= 8);
		for (i = 0; i < n; i++) {
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
			if (wc[i].opcode != IBV_WC_RECV) {
				atomic_fetch_add(&sends_polled, 1);
				continue;
			}
			memcpy(&id, sinks[wc[i].wr_id], sizeof(id));
			CHECK(id < MESSAGES);
			CHECK(!atomic_exchange(&seen[id], true));
			repost(wc[i].wr_id);
			atomic_fetch_add(&recvs_polled, 1);
		}
		CHECK(!corrupt);
	}
	return NULL;
}

/* The daemon: loops what is sent to the same QP's receives. */
static void *looper(void *arg)
{
	uint32_t done = 0, unretired = 0;

	(void)arg;
	while (done < MESSAGES) {
		if (atomic_load(shared.cq->prod) - atomic_load(shared.cq->cons_word) > shared.cq->mask - 2 ||
		    atomic_load(vrnic_word(shared.q->mem, VRNIC_QP_RQ_PROD)) == shared.q->rq_head ||
		    !fake_take_send(shared.q, &w)) {
			sched_yield();
			continue;
		}
		CHECK(!w.w.num_sge); /* the slab has room for them all */
		CHECK(fake_take_recv(shared.q, &r));
		unretired++;
		if (w.w.flags & VRNIC_SQ_SIGNALED) {
			fake_sent(shared.q, shared.cq, &w, 0, unretired);
			unretired = 0;
		} else if (unretired > 3) {
			fake_retire(shared.q, unretired);
			unretired = 0;
		}
		fake_received(shared.q, shared.cq, &r, shared.q->num, w.data, w.w.length, true);
		done++;
	}
	return NULL;
}

/*
 * Threads post on one QP and poll one CQ at the same time: each message comes once, with its
 * octets.
 */
void test_threads(void)
{
	pthread_t t[POSTERS + POLLERS + 1];
	size_t i, n = 0;

	shared = setup(32, 64, 1, 64, NULL);
	posted = sends_polled = recvs_polled = recvs_posted = 0;
	memset(seen, 0, sizeof(seen));
	fake_indices(shared.qp, -1000u);
	fake_cq_indices(shared.cq, -1000u);
	sink_key = fake_mr(sinks, sizeof(sinks), (uintptr_t)sinks, IBV_ACCESS_LOCAL_WRITE);
	for (i = 0; i < POSTERS; i++)
		area_keys[i] = fake_mr(areas[i], sizeof(areas[i]), (uintptr_t)areas[i], 0);
	for (i = 0; i < 64; i++)
		repost(i);
	CHECK_EQ(pthread_create(&t[n++], NULL, looper, NULL), 0);
	for (i = 0; i < POSTERS; i++)
		CHECK_EQ(pthread_create(&t[n++], NULL, poster, (void *)i), 0);
	for (i = 0; i < POLLERS; i++)
		CHECK_EQ(pthread_create(&t[n++], NULL, poller, NULL), 0);
	while (n)
		pthread_join(t[--n], NULL);
	for (i = 0; i < MESSAGES; i++)
		CHECK(seen[i]);
	CHECK_EQ(corrupt, 0);
	teardown(&shared);
}

/* ---- benchmarks ---- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void report(const char *name, double start, int n)
{
	printf("Benchmark%s %d %.2f ns/op\n", name, n, (now() - start) * 1e9 / n);
}

static void bench_send(struct pair *p, const char *name, uint32_t len, unsigned int flags)
{
	struct ibv_sge sge = sge_of(0, len);
	double spent = 0, start;
	struct ibv_wc wc[16];
	int i, k, n = 20000;

	for (i = 0; i < n; i++) {
		start = now();
		for (k = 0; k < 16; k++)
			post(p, IBV_WR_SEND, k, &sge, 1, flags | IBV_SEND_SIGNALED);
		spent += now() - start;
		while (fake_take_send(p->q, &w))
			fake_sent(p->q, p->cq, &w, 0, 1);
		start = now();
		for (k = 0; k < 16;)
			k += vrnic_poll_cq(&p->cq->cq, 16, wc);
		spent += now() - start;
	}
	printf("Benchmark%s %d %.2f ns/op\n", name, 16 * n, spent * 1e9 / 16 / n);
}

static void bench_recv(struct pair *p, const char *name, uint32_t len, bool slab)
{
	struct ibv_sge sge = sge_of(0, 8192);
	double spent = 0, start;
	static char data[8192];
	struct ibv_wc wc[16];
	int i, k, n = 20000;

	for (i = 0; i < n; i++) {
		start = now();
		for (k = 0; k < 16; k++)
			post_recv(p, k, &sge, 1);
		spent += now() - start;
		while (fake_take_recv(p->q, &r))
			fake_received(p->q, p->cq, &r, p->q->num, data, len, slab);
		start = now();
		for (k = 0; k < 16;)
			k += vrnic_poll_cq(&p->cq->cq, 16, wc);
		spent += now() - start;
	}
	printf("Benchmark%s %d %.2f ns/op\n", name, 16 * n, spent * 1e9 / 16 / n);
}

void bench(void)
{
	struct pair p = setup(64, 64, 1, 256, NULL);
	int i, n = 100000000;
	struct ibv_wc wc;
	double start;

	session.poll_yield = 1u << 31;
	start = now();
	for (i = 0; i < n; i++)
		vrnic_poll_cq(&p.cq->cq, 1, &wc);
	report("PollEmpty", start, n);
	n /= 50;
	start = now();
	for (i = 0; i < n; i++)
		vrnic_req_notify_cq(&p.cq->cq, 0);
	report("Notify", start, n);
	for (uint32_t y = 16; y <= 256; y *= 4) {
		char name[32];

		session.poll_yield = y;
		snprintf(name, sizeof(name), "PollEmptyYield%u", y);
		start = now();
		for (i = 0; i < n; i++)
			vrnic_poll_cq(&p.cq->cq, 1, &wc);
		report(name, start, n);
	}
	bench_send(&p, "Send64Inline", 64, IBV_SEND_INLINE);
	bench_send(&p, "Send64", 64, 0);
	bench_send(&p, "Send2KSlab", 2048, 0);
	bench_send(&p, "Send64KSlab", 65536, 0);
	bench_send(&p, "Send128K", 131072, 0);
	bench_recv(&p, "Recv64", 64, false);
	bench_recv(&p, "Recv64Slab", 64, true);
	bench_recv(&p, "Recv2KSlab", 2048, true);
	teardown(&p);
}
