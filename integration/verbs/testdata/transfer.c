/* Every operation moves its data to where it belongs, and nothing else. */
#include "vt.h"

#include <arpa/inet.h>

static struct vt_pair p;
static const uint32_t sizes[] = { 0, 1, 2, 3, 4, 7, 63, 64, 65, 255, 1000, 1460, 4095, 4096, 4097, 8191, 8192, 8193, 20000, 65536, 200000 };
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))
#define LEN (1u << 20)

/* What is around a range of the target stays as it was. */
static void untouched(const struct vt_side *s, size_t off, size_t n)
{
	const size_t near = 64;

	for (size_t i = off > near ? off - near : 0; i < off; i++)
		CHECK_EQ(s->buf[i], 0);
	for (size_t i = off + n; i < off + n + near && i < s->len; i++)
		CHECK_EQ(s->buf[i], 0);
}

static void sends_from(struct vt_side *x, struct vt_side *y)
{
	for (unsigned i = 0; i < NSIZES; i++) {
		struct ibv_wc wc;

		memset(y->buf, 0, y->len);
		vt_fill(x->buf + 11, sizes[i], i);
		vt_recv(y, 100 + i, 4097, sizes[i] + 5);
		vt_send(x, i, 11, sizes[i]);
		wc = vt_wc(y->rcq, 100 + i, IBV_WC_SUCCESS, IBV_WC_RECV);
		CHECK_EQ(wc.byte_len, sizes[i]);
		CHECK_EQ(wc.qp_num, y->qp->qp_num);
		CHECK_EQ(wc.wc_flags, 0);
		wc = vt_wc(x->scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
		CHECK_EQ(wc.qp_num, x->qp->qp_num);
		vt_verify(y->buf + 4097, sizes[i], i);
		untouched(y, 4097, sizes[i]);
	}
}

static void sends(void)
{
	vt_open(&p, &(struct vt_opts){ .len = LEN });
	sends_from(&p.a, &p.b);
	sends_from(&p.b, &p.a);
	vt_close(&p);
}

static void rdma_from(struct vt_side *x, struct vt_side *y)
{
	for (unsigned i = 0; i < NSIZES; i++) {
		memset(y->buf, 0, y->len);
		vt_fill(x->buf + 11, sizes[i], i);
		vt_rdma(x, i, IBV_WR_RDMA_WRITE, 11, sizes[i], y, 4097);
		vt_wc(x->scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		/* A Read behind the Write sees what it has written. */
		memset(x->buf, 0, x->len);
		vt_rdma(x, 1000 + i, IBV_WR_RDMA_READ, 999, sizes[i], y, 4097);
		vt_wc(x->scq, 1000 + i, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		vt_verify(x->buf + 999, sizes[i], i);
		untouched(x, 999, sizes[i]);
		vt_verify(y->buf + 4097, sizes[i], i);
		untouched(y, 4097, sizes[i]);
	}
	vt_no_wc(y->scq);
	if (y->rcq != y->scq)
		vt_no_wc(y->rcq);
}

static void writes_and_reads(void)
{
	vt_open(&p, &(struct vt_opts){ .len = LEN });
	rdma_from(&p.a, &p.b);
	rdma_from(&p.b, &p.a);
	vt_close(&p);
}

/* Gather and scatter: pieces of odd lengths, some empty, on both sides. */
static void gather(void)
{
	static const uint32_t lens[2][4] = { { 1, 4000, 0, 333 }, { 100, 0, 4100, 200 } };
	const uint32_t total = 1 + 4000 + 333;

	vt_open(&p, &(struct vt_opts){ 0 });
	for (int op = 0; op < 3; op++) {
		struct ibv_sge sge[4];
		struct ibv_send_wr swr = { .wr_id = 1, .sg_list = sge, .num_sge = 4, .send_flags = IBV_SEND_SIGNALED }, *sbad;
		struct ibv_recv_wr rwr = { .wr_id = 2, .sg_list = sge, .num_sge = 4 }, *rbad;
		char all[8192], *at = all;

		vt_fill(all, total, op);
		memset(p.a.buf, 0, p.a.len);
		memset(p.b.buf, 0, p.b.len);
		swr.wr.rdma.remote_addr = (uintptr_t)p.b.buf + 100;
		swr.wr.rdma.rkey = p.b.mr->rkey;
		if (op == 0) { /* Send from four pieces to four */
			for (int i = 0; i < 4; i++)
				sge[i] = vt_sge(&p.b, 5000 * (4 - i), lens[1][i]);
			CHECK_EQ(ibv_post_recv(p.b.qp, &rwr, &rbad), 0);
		}
		for (int i = 0; i < 4; i++) {
			sge[i] = vt_sge(&p.a, 10000 * i + 3, lens[0][i]);
			if (op != 2)
				memcpy(p.a.buf + 10000 * i + 3, at, lens[0][i]);
			at += lens[0][i];
		}
		if (op == 2)
			memcpy(p.b.buf + 100, all, total);
		swr.opcode = op == 0 ? IBV_WR_SEND : op == 1 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		CHECK_EQ(ibv_post_send(p.a.qp, &swr, &sbad), 0);
		vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, -1);
		if (op == 0) {
			struct ibv_wc wc = vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);

			CHECK_EQ(wc.byte_len, total);
			at = all;
			for (int i = 0; i < 4; i++) {
				uint32_t n = lens[1][i], rest = (uint32_t)(all + total - at);

				if (n > rest)
					n = rest;
				CHECK(!memcmp(p.b.buf + 5000 * (4 - i), at, n));
				at += n;
			}
		} else if (op == 1) {
			/* a Write's completion does not say that it has arrived; a Read behind it does */
			vt_rdma(&p.a, 9, IBV_WR_RDMA_READ, 60000, 1, &p.b, 0);
			vt_wc(p.a.scq, 9, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
			vt_verify(p.b.buf + 100, total, op);
		} else {
			at = all;
			for (int i = 0; i < 4; i++) {
				CHECK(!memcmp(p.a.buf + 10000 * i + 3, at, lens[0][i]));
				at += lens[0][i];
			}
		}
	}
	vt_close(&p);
}

/* Inline data are taken by the call: the buffer, in no region, is free at once. */
static void inlined(void)
{
	vt_open(&p, &(struct vt_opts){ .inline_data = 200 });
	for (uint32_t n = 0; n <= 200; n += n < 8 ? 1 : 32) {
		char local[200];
		struct ibv_sge sge = { (uintptr_t)local, n, 0xdeadbeef };
		struct ibv_send_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;

		vt_recv(&p.b, 1, 0, 4096);
		vt_fill(local, n, n);
		CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
		memset(local, 0xee, sizeof(local));
		CHECK_EQ(vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, n);
		vt_verify(p.b.buf, n, n);
		vt_wc(p.a.scq, n, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_fill(local, n, n + 1);
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = (uintptr_t)p.b.buf + 5000;
		wr.wr.rdma.rkey = p.b.mr->rkey;
		CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
		memset(local, 0xee, sizeof(local));
		vt_wc(p.a.scq, n, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		vt_rdma(&p.a, 7, IBV_WR_RDMA_READ, 0, n ? n : 1, &p.b, 5000);
		vt_wc(p.a.scq, 7, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		vt_verify(p.b.buf + 5000, n, n + 1);
	}
	vt_close(&p);
}

/* Immediate data arrive as they were given. In iWARP they are a message of their own: a Send has no octets beside them,
 * and behind a Write they say nothing of its length. */
static void immediate(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	for (uint32_t n = 0; n < 10000; n += 3333) {
		struct ibv_sge sge = vt_sge(&p.a, 0, n);
		struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
					  .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0x01020300 + n) }, *bad;
		struct ibv_wc wc;

		memset(p.b.buf, 0, p.b.len);
		vt_fill(p.a.buf, n, n + 1);
		vt_recv(&p.b, 2, 0, 16);
		wr.wr.rdma.remote_addr = (uintptr_t)p.b.buf + 30000;
		wr.wr.rdma.rkey = p.b.mr->rkey;
		CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
		wc = vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM);
		CHECK_EQ(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
		CHECK_EQ(ntohl(wc.imm_data), 0x01020300 + n);
		vt_verify(p.b.buf + 30000, n, n + 1);
		vt_wc(p.a.scq, 5, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);

		wr.opcode = IBV_WR_SEND_WITH_IMM;
		if (n) {
			CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), EINVAL);
			CHECK(bad == &wr);
			sge.length = 0;
		}
		vt_recv(&p.b, 1, 0, 20000);
		CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
		wc = vt_poll(p.b.rcq);
		CHECK_EQ(wc.wr_id, 1);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.opcode & IBV_WC_RECV, IBV_WC_RECV);
		CHECK_EQ(wc.byte_len, 0);
		CHECK_EQ(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
		CHECK_EQ(ntohl(wc.imm_data), 0x01020300 + n);
		vt_wc(p.a.scq, 5, IBV_WC_SUCCESS, IBV_WC_SEND);
	}
	vt_close(&p);
}

static void atomics(void)
{
	uint64_t *target, *result;
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;

	vt_open(&p, &(struct vt_opts){ .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC });
	target = (uint64_t *)(p.b.buf + 64);
	result = (uint64_t *)(p.a.buf + 128);
	sge = vt_sge(&p.a, 128, 8);
	wr = (struct ibv_send_wr){ .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED };
	wr.wr.atomic.remote_addr = (uintptr_t)target;
	wr.wr.atomic.rkey = p.b.mr->rkey;
	*target = 0xfffffffffffffffeull;
	for (int i = 0; i < 5; i++) {
		wr.wr.atomic.compare_add = 3;
		CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
		CHECK_EQ(vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_FETCH_ADD).byte_len, 8);
		CHECK_EQ(*result, 0xfffffffffffffffeull + 3 * i);
		CHECK_EQ(*target, 0xfffffffffffffffeull + 3 * (i + 1));
	}
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	*target = 77;
	wr.wr.atomic.compare_add = 78;
	wr.wr.atomic.swap = 1234;
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_COMP_SWAP);
	CHECK_EQ(*result, 77);
	CHECK_EQ(*target, 77);
	wr.wr.atomic.compare_add = 77;
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_COMP_SWAP);
	CHECK_EQ(*result, 77);
	CHECK_EQ(*target, 1234);
	vt_close(&p);
}

/* Receives of a shared queue are taken in their order, and its limit is told once. */
static void shared_receives(void)
{
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	struct ibv_async_event ev;

	vt_open(&p, &(struct vt_opts){ .srq = true });
	CHECK_EQ(ibv_query_srq(p.b.srq, &attr), 0);
	CHECK(attr.max_wr >= 64 && attr.max_sge >= 4);
	for (int i = 0; i < 8; i++)
		vt_recv(&p.b, 100 + i, 4000 * i, 4000);
	attr.srq_limit = 3;
	CHECK_EQ(ibv_modify_srq(p.b.srq, &attr, IBV_SRQ_LIMIT), 0);
	CHECK_EQ(ibv_query_srq(p.b.srq, &attr), 0);
	CHECK_EQ(attr.srq_limit, 3);
	CHECK(!vt_readable(p.b.id->verbs->async_fd, 50));
	for (int i = 0; i < 8; i++) {
		vt_fill(p.a.buf, 500 * i + 1, i);
		vt_send(&p.a, i, 0, 500 * i + 1);
		CHECK_EQ(vt_wc(p.b.rcq, 100 + i, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, 500 * i + 1);
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_verify(p.b.buf + 4000 * i, 500 * i + 1, i);
	}
	CHECK(vt_readable(p.b.id->verbs->async_fd, VT_PATIENCE));
	CHECK_EQ(ibv_get_async_event(p.b.id->verbs, &ev), 0);
	CHECK_EQ(ev.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(ev.element.srq == p.b.srq);
	ibv_ack_async_event(&ev);
	CHECK(!vt_readable(p.b.id->verbs->async_fd, 50));
	CHECK_EQ(ibv_query_srq(p.b.srq, &attr), 0);
	CHECK_EQ(attr.srq_limit, 0);
	/* A QP with an SRQ has no receives of its own. */
	{
		struct ibv_sge sge = vt_sge(&p.b, 0, 10);
		struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;

		CHECK_EQ(ibv_post_recv(p.b.qp, &wr, &bad), EINVAL);
		CHECK(bad == &wr);
	}
	vt_close(&p);
}

/* Hundreds of messages that come before their receives, which are posted late and one by one. */
static void late_receives(void)
{
	vt_open(&p, &(struct vt_opts){ .send_wr = 128 });
	for (int i = 0; i < 100; i++) {
		vt_fill(p.a.buf + 600 * i, 600, i);
		vt_send(&p.a, i, 600 * i, 600);
	}
	usleep(300000);
	vt_no_wc(p.b.rcq);
	for (int i = 0; i < 100; i++) {
		vt_recv(&p.b, i, 700 * (i % 8), 700);
		CHECK_EQ(vt_wc(p.b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, 600);
		vt_verify(p.b.buf + 700 * (i % 8), 600, i);
	}
	for (int i = 0; i < 100; i++)
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_close(&p);
}

/* A side that disconnects and destroys all it has, in one go, takes back nothing of what was complete for it. */
static void leaves_at_once(void)
{
	enum { N = 46, SIZE = 60000 }; /* more than the peer takes before it has receives */

	vt_open(&p, &(struct vt_opts){ .len = 4 * LEN });
	for (int i = 0; i < N; i++) {
		vt_fill(p.a.buf + SIZE * i, SIZE, i);
		if (!memcmp(&vt_server, &vt_client, sizeof(vt_server)))
			vt_recv(&p.b, i, SIZE * i, SIZE); /* within a device a Send is complete when it has been received */
		vt_send(&p.a, i, SIZE * i, SIZE);
	}
	for (int i = 0; i < N; i++)
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
	CHECK_EQ(rdma_disconnect(p.a.id), 0);
	CHECK_EQ(ibv_destroy_qp(p.a.qp), 0);
	CHECK_EQ(rdma_destroy_id(p.a.id), 0);
	p.a.qp = NULL;
	p.a.id = NULL;
	usleep(50000);
	if (memcmp(&vt_server, &vt_client, sizeof(vt_server)))
		for (int i = 0; i < N; i++)
			vt_recv(&p.b, i, SIZE * i, SIZE);
	for (int i = 0; i < N; i++) {
		vt_wc(p.b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
		vt_verify(p.b.buf + SIZE * i, SIZE, i);
	}
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_free(&p);
}

/* Completions come in the order of posting, though Sends are done before the large Reads in front of them. */
static void order(void)
{
	vt_open(&p, &(struct vt_opts){ .len = LEN });
	for (int i = 0; i < 16; i++)
		vt_recv(&p.b, i, 0, 64);
	for (int i = 0; i < 16; i++) {
		vt_rdma(&p.a, 2 * i, IBV_WR_RDMA_READ, 1024, 200000, &p.b, 4096);
		vt_send(&p.a, 2 * i + 1, 0, 10);
	}
	for (int i = 0; i < 16; i++) {
		vt_wc(p.a.scq, 2 * i, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		vt_wc(p.a.scq, 2 * i + 1, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_wc(p.b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
	}
	vt_close(&p);
}

/* Work that is not signaled completes with the signaled work behind it, and slots come free with it. Signaled work keeps its
 * slots until the program has seen it complete. */
static void unsignaled(void)
{
	vt_open(&p, &(struct vt_opts){ .unsignaled = true, .send_wr = 16 });
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 16; i++)
			CHECK_EQ(vt_try_send(&p.a, i, IBV_WR_RDMA_WRITE, 0, 100, i == 15 ? IBV_SEND_SIGNALED : 0, (uintptr_t)p.b.buf, p.b.mr->rkey), 0);
		vt_wc(p.a.scq, 15, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	}
	for (int i = 0; i < 16; i++)
		CHECK_EQ(vt_try_send(&p.a, i, IBV_WR_RDMA_WRITE, 0, 100, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf, p.b.mr->rkey), 0);
	usleep(100000);
	CHECK_EQ(vt_try_send(&p.a, 99, IBV_WR_RDMA_WRITE, 0, 100, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf, p.b.mr->rkey), ENOMEM);
	for (int i = 0; i < 16; i++)
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	vt_no_wc(p.a.scq);
	vt_close(&p);
}

/* Regions with an address of their own choice, and read-only ones that may be sent from. */
static void addresses(void)
{
	struct ibv_mr *mr;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	static const char text[] = "what stands in the program's read-only data";

	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK(mr = ibv_reg_mr_iova(p.b.pd, p.b.buf + 4096, 8192, 0x10000, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	vt_fill(p.a.buf, 5000, 1);
	sge = vt_sge(&p.a, 0, 5000);
	wr.wr.rdma.remote_addr = 0x10000 + 100;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	sge = vt_sge(&p.a, 20000, 5000);
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	vt_verify(p.a.buf + 20000, 5000, 1);
	vt_verify(p.b.buf + 4096 + 100, 5000, 1);
	CHECK_EQ(ibv_dereg_mr(mr), 0);

	/* Access 0 still allows local reads; flags that are optional are ignored. */
	{
		volatile int access = IBV_ACCESS_RELAXED_ORDERING;

		CHECK(mr = ibv_reg_mr(p.a.pd, (void *)text, sizeof(text), access));
	}
	vt_recv(&p.b, 2, 0, 4096);
	sge = (struct ibv_sge){ (uintptr_t)text, sizeof(text), mr->lkey };
	wr.opcode = IBV_WR_SEND;
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	CHECK_EQ(vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, sizeof(text));
	CHECK(!memcmp(p.b.buf, text, sizeof(text)));
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	vt_close(&p);
}

/* The last octet of a Write is placed last: who sees it may read the rest. */
static void last_octet(void)
{
	const uint32_t n = 30000;
	volatile char *last;

	vt_open(&p, &(struct vt_opts){ 0 });
	last = p.b.buf + n - 1;
	for (int i = 1; i < 100; i++) {
		uint64_t late = vt_now_ms() + VT_PATIENCE;

		memset(p.a.buf, i, n);
		vt_rdma(&p.a, i, IBV_WR_RDMA_WRITE, 0, n, &p.b, 0);
		/* This side makes no call until the data are there. */
		while (*last != (char)i)
			if (vt_now_ms() > late)
				FAIL("round %d: the Write does not arrive while nobody calls the library", i);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		for (uint32_t k = 0; k < n; k++)
			if (p.b.buf[k] != (char)i)
				FAIL("round %d: octet %u was not there when the last one was", i, k);
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	}
	vt_close(&p);
}

/* The responder is the first to say something. */
static void responder_first(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	vt_recv(&p.a, 1, 0, 100);
	vt_fill(p.b.buf, 100, 1);
	vt_send(&p.b, 2, 0, 100);
	vt_wc(p.a.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_verify(p.a.buf, 100, 1);
	vt_wc(p.b.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_close(&p);
}

/* A chain of requests, one of them bad: what is before it is done, it and what follows is not. */
static void chains(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr[3], *bad = NULL;
	struct ibv_recv_wr rwr[3], *rbad = NULL;

	vt_open(&p, &(struct vt_opts){ 0 });
	sge = vt_sge(&p.b, 0, 100);
	for (int i = 0; i < 3; i++)
		rwr[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &sge, .num_sge = i == 2 ? 5 : 1, .next = i < 2 ? &rwr[i + 1] : NULL };
	CHECK_EQ(ibv_post_recv(p.b.qp, rwr, &rbad), EINVAL);
	CHECK(rbad == &rwr[2]);
	sge = vt_sge(&p.a, 0, 100);
	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = i == 1 ? (enum ibv_wr_opcode)77 : IBV_WR_SEND,
					      .send_flags = IBV_SEND_SIGNALED, .next = i < 2 ? &wr[i + 1] : NULL };
	CHECK_EQ(ibv_post_send(p.a.qp, wr, &bad), EINVAL);
	CHECK(bad == &wr[1]);
	vt_wc(p.a.scq, 0, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 0, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_no_wc(p.a.scq);
	vt_close(&p);
}

/* Many messages in flight both ways, of all kinds, on one CQ for everything. */
static void mixed(void)
{
	enum { ROUNDS = 60, N = 8 };

	vt_open(&p, &(struct vt_opts){ .one_cq = true, .len = LEN });
	for (int round = 0; round < ROUNDS; round++) {
		struct vt_side *x[2] = { &p.a, &p.b };
		int left[2] = { 4 * N, 4 * N };
		uint64_t late = vt_now_ms() + VT_PATIENCE;

		for (int s = 0; s < 2; s++)
			for (int i = 0; i < N; i++)
				vt_recv(x[s], 1000 + i, 10000 * i, 10000);
		for (int s = 0; s < 2; s++)
			for (int i = 0; i < N; i++) {
				uint32_t n = (round * 997 + i * 131) % 9999 + 1;

				vt_fill(x[s]->buf + 200000 + 10000 * i, n, round + i + s);
				vt_send(x[s], i, 200000 + 10000 * i, n);
				vt_rdma(x[s], 100 + i, IBV_WR_RDMA_WRITE, 200000 + 10000 * i, n, x[!s], 400000 + 10000 * i);
				vt_rdma(x[s], 200 + i, IBV_WR_RDMA_READ, 600000 + 10000 * i, n, x[!s], 400000 + 10000 * i);
			}
		while (left[0] || left[1])
			for (int s = 0; s < 2; s++) {
				struct ibv_wc wc[5];
				int n = ibv_poll_cq(x[s]->scq, 5, wc);

				CHECK(n >= 0);
				for (int k = 0; k < n; k++) {
					if (wc[k].status != IBV_WC_SUCCESS)
						FAIL("%llu: %s", (unsigned long long)wc[k].wr_id, ibv_wc_status_str(wc[k].status));
					if (wc[k].wr_id >= 1000)
						vt_verify(x[s]->buf + 10000 * (wc[k].wr_id - 1000), wc[k].byte_len, round + (int)wc[k].wr_id - 1000 + !s);
				}
				left[s] -= n;
				if (vt_now_ms() > late)
					FAIL("round %d: %d and %d completions are missing", round, left[0], left[1]);
			}
		for (int s = 0; s < 2; s++)
			for (int i = 0; i < N; i++)
				vt_verify(x[s]->buf + 600000 + 10000 * i, (round * 997 + i * 131) % 9999 + 1, round + i + s);
	}
	vt_close(&p);
}

static const struct vt_case cases[] = {
	{ "sends", sends }, { "writes_and_reads", writes_and_reads }, { "gather", gather }, { "inlined", inlined },
	{ "immediate", immediate }, { "atomics", atomics }, { "shared_receives", shared_receives },
	{ "late_receives", late_receives }, { "leaves_at_once", leaves_at_once }, { "order", order }, { "unsignaled", unsignaled }, { "addresses", addresses },
	{ "last_octet", last_octet }, { "responder_first", responder_first }, { "chains", chains }, { "mixed", mixed }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
