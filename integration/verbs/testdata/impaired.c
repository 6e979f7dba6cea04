/*
 * What a program sees of a bad network, which begins when it has said "opened", and is over when it has said "done" and a
 * line has come: $VT_ROUNDS of all operations, both ways, all octets of which are looked at; or that nothing gets through.
 * With $VT_BEFORE there were messages before.
 */
#include "vt.h"

#define PART 16384
#define WINDOW 3 /* messages on their way */
#define SUM (4 * PART) /* where b has a number that is added to */
#define BACK (5 * PART) /* where a reads to */

static struct vt_pair p;

static void ready(int retries, int ack_timeout)
{
	vt_open(&p, &(struct vt_opts){ .len = 6 * PART, .retries = retries, .ack_timeout = ack_timeout,
				       .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						 IBV_ACCESS_REMOTE_ATOMIC });
}

static void begin(void)
{
	printf("opened\n");
	CHECK_EQ(getchar(), '\n');
}

static uint32_t length(uint32_t n)
{
	return 1 + n * 7919 % PART;
}

/* n messages of s to its peer. */
static uint64_t messages(struct vt_side *s, struct vt_side *peer, uint32_t n, uint32_t seed)
{
	uint64_t octets = 0;
	uint32_t i;

	for (i = 0; i < n; i++)
		vt_recv(peer, i, i * PART, PART);
	for (i = 0; i < n; i++) {
		vt_fill(s->buf + i * PART, length(seed + i), seed + i);
		vt_send(s, i, i * PART, length(seed + i));
		octets += length(seed + i);
	}
	for (i = 0; i < n; i++) {
		vt_wc(s->scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
		CHECK_EQ(vt_wc(peer->rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, length(seed + i));
		vt_verify(peer->buf + i * PART, length(seed + i), seed + i);
	}
	return octets;
}

/* What a writes comes back by a Read. */
static uint32_t written(uint32_t seed)
{
	uint32_t n = length(seed);

	vt_fill(p.a.buf, n, ~seed);
	memset(p.a.buf + BACK, 0, n);
	vt_rdma(&p.a, 1, IBV_WR_RDMA_WRITE, 0, n, &p.b, 0);
	vt_rdma(&p.a, 2, IBV_WR_RDMA_READ, BACK, n, &p.b, 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	vt_verify(p.a.buf + BACK, n, ~seed);
	return n;
}

/* However often it is sent, it is done once. */
static void added(uint64_t before)
{
	struct ibv_sge sge = vt_sge(&p.a, SUM, 8);
	struct ibv_send_wr *bad, wr = { .wr_id = 3, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
					.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };

	wr.wr.atomic.remote_addr = (uintptr_t)p.b.buf + SUM;
	wr.wr.atomic.rkey = p.b.mr->rkey;
	wr.wr.atomic.compare_add = 1;
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 3, IBV_WC_SUCCESS, IBV_WC_FETCH_ADD);
	CHECK_EQ(*(uint64_t *)(p.a.buf + SUM), before);
}

/* Each round has three round trips at least. Says how many octets a has sent, and in how many milliseconds. */
static void data(void)
{
	uint32_t round, rounds = getenv("VT_ROUNDS") ? (uint32_t)atoi(getenv("VT_ROUNDS")) : 0;
	uint64_t octets = 0, begun;

	CHECK(rounds > 0);
	ready(7, 15); /* 134 ms each: a machine with other work may take 67 away eight times */
	for (round = 0; getenv("VT_BEFORE") && round < 5; round++)
		messages(&p.a, &p.b, WINDOW, round);
	begin();
	begun = vt_now_ms();
	for (round = 0; round < rounds; round++) {
		octets += messages(&p.a, &p.b, WINDOW, round * WINDOW);
		messages(&p.b, &p.a, 1, round);
		octets += written(round);
		added(round);
		printf("round %u\n", round);
	}
	printf("done %llu %llu\n", (unsigned long long)octets, (unsigned long long)(vt_now_ms() - begun));
	CHECK_EQ(getchar(), '\n');
	vt_close(&p);
}

/* Nothing gets through: a request completes with $VT_WANT. */
static void cut(void)
{
	uint64_t from;

	CHECK(getenv("VT_WANT"));
	ready(2, 14);
	begin();
	from = vt_now_ms();
	vt_rdma(&p.a, 1, IBV_WR_RDMA_READ, 0, 64, &p.b, 0);
	vt_wc(p.a.scq, 1, (enum ibv_wc_status)atoi(getenv("VT_WANT")), -1);
	CHECK_EQ(vt_state(p.a.qp), IBV_QPS_ERR);
	printf("done 0 %d\n", (int)(vt_now_ms() - from));
	CHECK_EQ(getchar(), '\n');
	rdma_disconnect(p.a.id); /* of iWARP the connection is over already */
	CHECK_EQ(rdma_ack_cm_event(vt_event(p.a.ch, RDMA_CM_EVENT_DISCONNECTED)), 0);
	CHECK_EQ(rdma_ack_cm_event(vt_event(p.b.ch, RDMA_CM_EVENT_DISCONNECTED)), 0);
	vt_free(&p);
}

static const struct vt_case cases[] = { { "data", data }, { "cut", cut }, { NULL, NULL } };

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
