/*
 * What a device that shows itself as a card of others holds to: profile DEVICE INLINE ERRNO NOSRQ
 * SEND RECV CQ RESIZE SRQ QUERIED LARGE EMPTY are the octets that the card has room for inline, what it refuses queues with that are
 * too deep, whether it has no shared receive queues, what depths it makes of 16 and 20,
 * and of 16 of a completion queue, and what it says to making that longer; what depth it makes of a
 * shared receive queue of 16, then and when it is asked later (0: it cannot be), and what it says to
 * one that is too deep, and to one of none.
 */
#include "vt.h"

static struct ibv_context *c;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

/* The errno of a queue pair with these; 0: it has come about, and has no more than was asked for. */
static int try_qp(struct ibv_qp_cap cap, struct ibv_qp_cap *got)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp;

	errno = 0;
	qp = ibv_create_qp(pd, &a);
	if (!qp)
		return errno;
	*got = a.cap;
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	return 0;
}

/* The errno of a shared receive queue with these; 0: it has come about, and is srq. */
static int try_srq(uint32_t wr, uint32_t sge, struct ibv_srq_attr *got, struct ibv_srq **srq)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = wr, .max_sge = sge } };

	errno = 0;
	*srq = ibv_create_srq(pd, &a);
	*got = a.attr;
	return *srq ? 0 : errno;
}

static void try_srqs(int no_srq, const struct ibv_device_attr *attr, char **want)
{
	int told = atoi(want[0]), queried = atoi(want[1]), large = atoi(want[2]), empty = atoi(want[3]);
	struct ibv_srq_attr got, later;
	struct ibv_srq *srq;

	if (no_srq) {
		CHECK_EQ(try_srq(1, 1, &got, &srq), EOPNOTSUPP);
		return;
	}
	CHECK_EQ(try_srq((uint32_t)attr->max_srq_wr + 1, 1, &got, &srq), large);
	CHECK_EQ(try_srq(1, (uint32_t)attr->max_srq_sge + 1, &got, &srq), large);
	CHECK_EQ(try_srq(0, 1, &got, &srq), empty);
	if (srq)
		CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(try_srq(1, (uint32_t)attr->max_srq_sge, &got, &srq), 0);
	CHECK_EQ(got.max_sge, attr->max_srq_sge);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(try_srq(16, 1, &got, &srq), 0);
	CHECK_EQ(got.max_wr, told);
	CHECK_EQ(ibv_query_srq(srq, &later), queried ? 0 : EOPNOTSUPP);
	if (queried) {
		CHECK_EQ(later.max_wr, queried);
		CHECK_EQ(later.max_sge, got.max_sge);
	}
	CHECK_EQ(ibv_destroy_srq(srq), 0);
}

int main(int argc, char **argv)
{
	struct ibv_device **list;
	struct ibv_device_attr attr;
	struct ibv_qp_cap got;
	unsigned int max_inline;
	int i, deep, no_srq, resize, err;

	CHECK_EQ(argc, 13);
	max_inline = (unsigned int)atoi(argv[2]);
	deep = atoi(argv[3]);
	no_srq = atoi(argv[4]);
	CHECK(list = ibv_get_device_list(NULL));
	for (i = 0; list[i] && strcmp(ibv_get_device_name(list[i]), argv[1]); i++)
		;
	CHECK(list[i]);
	CHECK(c = ibv_open_device(list[i]));
	CHECK_EQ(ibv_query_device(c, &attr), 0);
	CHECK(pd = ibv_alloc_pd(c));
	CHECK(cq = ibv_create_cq(c, 16, NULL, NULL, 0));
	CHECK_EQ(cq->cqe, atoi(argv[7]));
	resize = atoi(argv[8]);
	CHECK_EQ(ibv_resize_cq(cq, 5), resize);
	CHECK_EQ(ibv_resize_cq(cq, 16), resize);
	CHECK_EQ(ibv_resize_cq(cq, 0), resize ? resize : EINVAL);
	CHECK_EQ(ibv_resize_cq(cq, attr.max_cqe + 1), resize ? resize : EINVAL);
	CHECK_EQ(cq->cqe, atoi(argv[7]));

#define CAP(sends, sge, octets) ((struct ibv_qp_cap){ .max_send_wr = sends, .max_recv_wr = 1, \
	.max_send_sge = sge, .max_recv_sge = 1, .max_inline_data = octets })
	CHECK_EQ(try_qp(CAP(1, (uint32_t)attr.max_sge, max_inline), &got), 0);
	CHECK(got.max_send_sge == (uint32_t)attr.max_sge);
	CHECK(!max_inline || got.max_inline_data == max_inline);
	CHECK_EQ(try_qp(CAP(1, (uint32_t)attr.max_sge + 1, 0), &got), EINVAL);
	if (max_inline) /* else nobody has said how many a card has */
		CHECK_EQ(try_qp(CAP(1, 1, max_inline + 1), &got), EINVAL);
	CHECK_EQ(try_qp(((struct ibv_qp_cap){ .max_send_wr = 16, .max_recv_wr = 20, .max_send_sge = 1,
					      .max_recv_sge = 1 }), &got), 0);
	CHECK_EQ(got.max_send_wr, atoi(argv[5]));
	CHECK_EQ(got.max_recv_wr, atoi(argv[6]));
	CHECK_EQ(try_qp(CAP((uint32_t)attr.max_qp_wr + 1, 1, 0), &got), deep);
	errno = 0;
	err = ibv_create_cq(c, attr.max_cqe + 1, NULL, NULL, 0) ? 0 : errno;
	CHECK_EQ(err, EINVAL);
	try_srqs(no_srq, &attr, argv + 9);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_close_device(c), 0);
	ibv_free_device_list(list);
	printf("ok profile\n");
	return 0;
}
