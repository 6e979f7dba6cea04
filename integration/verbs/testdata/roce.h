/*
 * Queue pairs of RoCE, as a program connects them by itself. The first device is a's and the last one b's; they may be the
 * same.
 */
#ifndef ROCE_H
#define ROCE_H

#include "vt.h"

#include <arpa/inet.h>

#define GID_INDEX 1 /* the first address of a device: 0 is the link-local one of its MAC */
#define LEN 65536
#define QKEY 0x11111111
#define PSN_A 0xfffffe
#define PSN_B 0x123456

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *scq, *rcq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	union ibv_gid gid;
	char *buf;
};

static struct end a, b;

static __attribute__((unused)) void open_ends(void)
{
	struct ibv_device **list;
	int n;

	list = ibv_get_device_list(&n);
	CHECK(list && n >= 1);
	CHECK(a.ctx = ibv_open_device(list[0]));
	CHECK(b.ctx = ibv_open_device(list[n - 1]));
	ibv_free_device_list(list);
	for (struct end *e = &a; e; e = e == &a ? &b : NULL) {
		CHECK(e->pd = ibv_alloc_pd(e->ctx));
		CHECK(e->scq = ibv_create_cq(e->ctx, 64, NULL, NULL, 0));
		CHECK(e->rcq = ibv_create_cq(e->ctx, 64, NULL, NULL, 0));
		CHECK(e->buf = calloc(1, LEN));
		CHECK(e->mr = ibv_reg_mr(e->pd, e->buf, LEN,
					 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						 IBV_ACCESS_REMOTE_ATOMIC));
		CHECK_EQ(ibv_query_gid(e->ctx, 1, GID_INDEX, &e->gid), 0);
	}
}

static __attribute__((unused)) void close_ends(void)
{
	for (struct end *e = &a; e; e = e == &a ? &b : NULL) {
		CHECK_EQ(ibv_dereg_mr(e->mr), 0);
		CHECK_EQ(ibv_destroy_cq(e->rcq), 0);
		CHECK_EQ(ibv_destroy_cq(e->scq), 0);
		CHECK_EQ(ibv_dealloc_pd(e->pd), 0);
		CHECK_EQ(ibv_close_device(e->ctx), 0);
		free(e->buf);
	}
}

static __attribute__((unused)) struct ibv_qp *new_qp(struct end *e, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = e->scq, .recv_cq = e->rcq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
	};

	CHECK(e->qp = ibv_create_qp(e->pd, &attr));
	CHECK_EQ(e->qp->state, IBV_QPS_RESET);
	return e->qp;
}

static __attribute__((unused)) void drop(struct end *e)
{
	CHECK_EQ(ibv_destroy_qp(e->qp), 0);
	e->qp = NULL;
}

/*
 * What each step requires and may have beside IBV_QP_STATE, as ibv_modify_qp(3) says it of each service.
 */
#define PKEY IBV_QP_PKEY_INDEX
#define PORT IBV_QP_PORT
#define ACC IBV_QP_ACCESS_FLAGS
#define ALT IBV_QP_ALT_PATH
#define CUR IBV_QP_CUR_STATE
#define RNR IBV_QP_MIN_RNR_TIMER
#define MIG IBV_QP_PATH_MIG_STATE

static const struct step {
	enum ibv_qp_type type;
	enum ibv_qp_state from, to;
	int required, optional;
} steps[] = {
	{ IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, PKEY | PORT | ACC, 0 },
	{ IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_INIT, 0, PKEY | PORT | ACC },
	{ IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR,
	  IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | RNR, ALT | ACC | PKEY },
	{ IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS,
	  IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
	  CUR | ALT | ACC | RNR | MIG },
	{ IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0, CUR | ACC | ALT | MIG | RNR },
	{ IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	{ IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_SQD, 0,
	  PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
		  IBV_QP_MAX_DEST_RD_ATOMIC | ALT | ACC | PKEY | RNR | MIG },
	{ IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_RTS, 0, CUR | ALT | ACC | RNR | MIG },
	{ IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, PKEY | PORT | ACC, 0 },
	{ IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_INIT, 0, PKEY | PORT | ACC },
	{ IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	  ALT | ACC | PKEY },
	{ IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, CUR | ALT | ACC | MIG },
	{ IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_RTS, 0, CUR | ACC | ALT | MIG },
	{ IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	{ IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_AV | ALT | ACC | PKEY | MIG },
	{ IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_RTS, 0, CUR | ALT | ACC | MIG },
	{ IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, PKEY | PORT | IBV_QP_QKEY, 0 },
	{ IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_INIT, 0, PKEY | PORT | IBV_QP_QKEY },
	{ IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, PKEY | IBV_QP_QKEY },
	{ IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, CUR | IBV_QP_QKEY },
	{ IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, 0, CUR | IBV_QP_QKEY },
	{ IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	{ IBV_QPT_UD, IBV_QPS_SQD, IBV_QPS_SQD, 0, PKEY | IBV_QP_QKEY },
	{ IBV_QPT_UD, IBV_QPS_SQD, IBV_QPS_RTS, 0, CUR | IBV_QP_QKEY },
};

#define NSTEPS (sizeof(steps) / sizeof(steps[0]))

static __attribute__((unused)) const struct step *find_step(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	for (size_t i = 0; i < NSTEPS; i++)
		if (steps[i].type == type && steps[i].from == from && steps[i].to == to)
			return &steps[i];
	return NULL;
}

/* Attributes that are right for every step of e's QP towards a peer. */
static __attribute__((unused)) struct ibv_qp_attr good(const struct end *to, uint32_t qpn, uint32_t sq_psn, uint32_t rq_psn)
{
	return (struct ibv_qp_attr){
		.port_num = 1, .qkey = QKEY, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .sq_psn = sq_psn, .rq_psn = rq_psn,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.max_rd_atomic = 4, .max_dest_rd_atomic = 4, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = to->gid, .sgid_index = GID_INDEX, .hop_limit = 64 } },
	};
}

static __attribute__((unused)) int go(struct end *e, enum ibv_qp_state to, struct ibv_qp_attr attr)
{
	enum ibv_qp_state from = e->qp->state;
	const struct step *s = find_step(e->qp->qp_type, from, to);

	CHECK(s);
	attr.qp_state = to;
	return ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | s->required);
}

/* Brings e's QP, which is in RESET, to a state on its way to RTS and SQD. */
static __attribute__((unused)) void advance(struct end *e, struct ibv_qp_attr attr, enum ibv_qp_state to)
{
	static const enum ibv_qp_state way[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD };

	for (size_t i = 0; to != IBV_QPS_RESET && i < 4; i++) {
		CHECK_EQ(go(e, way[i], attr), 0);
		if (way[i] == to)
			break;
	}
}

/* Connects QPs of a type between a and b. */
static __attribute__((unused)) void join(enum ibv_qp_type type)
{
	new_qp(&a, type);
	new_qp(&b, type);
	advance(&a, good(&b, b.qp->qp_num, PSN_A, PSN_B), IBV_QPS_RTS);
	advance(&b, good(&a, a.qp->qp_num, PSN_B, PSN_A), IBV_QPS_RTS);
}

static __attribute__((unused)) void part(void)
{
	drop(&a);
	drop(&b);
}

static __attribute__((unused)) struct ibv_qp_attr query(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	return attr;
}

static __attribute__((unused)) struct ibv_sge sge_of(const struct end *e, size_t off, uint32_t len)
{
	return (struct ibv_sge){ .addr = (uintptr_t)e->buf + off, .length = len, .lkey = e->mr->lkey };
}

static __attribute__((unused)) int post(struct end *e, uint64_t id, enum ibv_wr_opcode op, uint32_t len)
{
	struct end *peer = e == &a ? &b : &a;
	struct ibv_sge sge = sge_of(e, 0, len);
	struct ibv_send_wr wr = { .wr_id = id, .opcode = op, .sg_list = &sge, .num_sge = 1, .imm_data = htonl(0x01020304) },
			   *bad = NULL;
	int err;

	wr.wr.rdma.remote_addr = (uintptr_t)peer->buf;
	wr.wr.rdma.rkey = peer->mr->rkey;
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		memset(&wr.wr, 0, sizeof(wr.wr));
		wr.wr.atomic.remote_addr = (uintptr_t)peer->buf;
		wr.wr.atomic.rkey = peer->mr->rkey;
		wr.wr.atomic.compare_add = 5;
	}
	err = ibv_post_send(e->qp, &wr, &bad);
	CHECK(err ? bad == &wr : !bad);
	return err;
}

static __attribute__((unused)) int post_recv(struct end *e, uint64_t id, uint32_t len)
{
	struct ibv_sge sge = sge_of(e, 0, len);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	int err = ibv_post_recv(e->qp, &wr, &bad);

	CHECK(err ? bad == &wr : !bad);
	return err;
}

#endif
