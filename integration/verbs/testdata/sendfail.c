/*
 * Who reads the buffer of a receive when a request to send has failed: of a service without acknowledgements receives go on
 * then, and the buffer is the device's still; behind IBV_QPS_ERR it is the program's.
 */
#include "roce.h"

#define N 16384

static volatile char seen;
static struct ibv_mr *mr;
static char *buf;

/* a has a receive, and a Send that fails, and another one behind it. */
static void fail(void)
{
	struct ibv_sge bad = { .lkey = 0x7fffff, .addr = (uintptr_t)a.buf, .length = 8 };
	struct ibv_send_wr *wrong, wr = { .wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &bad, .num_sge = 1 };
	struct ibv_recv_wr *refused, recv = { .wr_id = 1, .num_sge = 1 };
	struct ibv_sge sge;

	open_ends();
	join(IBV_QPT_UC);
	CHECK(buf = aligned_alloc(4096, N));
	CHECK(mr = ibv_reg_mr(a.pd, buf, N, IBV_ACCESS_LOCAL_WRITE));
	sge = (struct ibv_sge){ .addr = (uintptr_t)buf, .length = N, .lkey = mr->lkey };
	recv.sg_list = &sge;
	CHECK_EQ(ibv_post_recv(a.qp, &recv, &refused), 0);
	CHECK_EQ(ibv_post_send(a.qp, &wr, &wrong), 0);
	CHECK_EQ(vt_wc(a.scq, 2, IBV_WC_LOC_PROT_ERR, -1).qp_num, a.qp->qp_num);
}

static void end(enum ibv_wc_status status)
{
	vt_wc(a.rcq, 1, status, -1);
	part();
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	close_ends();
	free(buf);
}

static void arrives(void)
{
	CHECK_EQ(post(&b, 3, IBV_WR_SEND, N), 0);
	vt_wc(b.scq, 3, IBV_WC_SUCCESS, IBV_WC_SEND);
	end(IBV_WC_SUCCESS);
}

static void completed(void)
{
	fail();
	CHECK_EQ(post(&a, 4, IBV_WR_SEND, 8), 0);
	vt_wc(a.scq, 4, IBV_WC_WR_FLUSH_ERR, -1);
	seen = buf[8192];
	arrives();
}

static void asked(void)
{
	fail();
	CHECK_EQ(query(a.qp).qp_state, IBV_QPS_SQE);
	seen = buf[8192];
	arrives();
}

static void over(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	fail();
	CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	seen = buf[8192];
	end(IBV_WC_WR_FLUSH_ERR);
}

static const struct vt_case cases[] = {
	{ "completed", completed }, { "asked", asked }, { "over", over }, { NULL, NULL },
};

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
