/*
 * What a peer has written, or a Read has brought, is there when the standards say so: behind a completion. The wrong ones
 * poll the last octet, which works on most cards on most days.
 */
#include "vt.h"

#include <sched.h>

#define LEN 4096
#define ROUNDS 40

static struct vt_pair p;

static void write_round(int i)
{
	memset(p.a.buf, i, LEN);
	vt_rdma(&p.a, i, IBV_WR_RDMA_WRITE, 0, LEN, &p.b, 0);
}

static void read_round(int i)
{
	memset(p.b.buf, i, LEN);
	vt_rdma(&p.a, i, IBV_WR_RDMA_READ, 0, LEN, &p.b, 0);
}

/* How many octets of a round are not in buf. */
static int missing(const char *buf, int i)
{
	int k, n = 0;

	for (k = 0; k < LEN; k++)
		n += ((const volatile unsigned char *)buf)[k] != i;
	return n;
}

/* Polls the last octet of what each round brings to s. */
static void poll_last(void (*round)(int), const struct vt_side *s, enum ibv_wc_opcode opcode)
{
	uint64_t late;
	bool torn = false;
	int i;

	vt_open(&p, &(struct vt_opts){ 0 });
	for (i = 1; i <= ROUNDS && !torn; i++) {
		round(i);
		late = vt_now_ms() + VT_PATIENCE;
		while (((const volatile unsigned char *)s->buf)[LEN - 1] != i)
			if (vt_now_ms() > late)
				FAIL("the last octet does not come");
		torn = missing(s->buf, i);
		if (torn)
			printf("torn\n");
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, opcode);
	}
	vt_close(&p);
}

static void wrong(void)
{
	poll_last(write_round, &p.b, IBV_WC_RDMA_WRITE);
}

static void read_wrong(void)
{
	poll_last(read_round, &p.a, IBV_WC_RDMA_READ);
}

static void read_right(void)
{
	int i;

	vt_open(&p, &(struct vt_opts){ 0 });
	for (i = 1; i <= ROUNDS; i++) {
		read_round(i);
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		CHECK_EQ(missing(p.a.buf, i), 0);
	}
	vt_close(&p);
}

/* A Send behind the Write: its completion says that all of both is there. */
static void right(void)
{
	int i;

	vt_open(&p, &(struct vt_opts){ 0 });
	for (i = 1; i <= ROUNDS; i++) {
		vt_recv(&p.b, i, LEN, 0);
		write_round(i);
		vt_send(&p.a, 1000 + i, 0, 0);
		vt_wc(p.b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
		CHECK_EQ(missing(p.b.buf, i), 0);
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		vt_wc(p.a.scq, 1000 + i, IBV_WC_SUCCESS, IBV_WC_SEND);
	}
	vt_close(&p);
}

static const struct vt_case cases[] = { { "wrong", wrong }, { "right", right }, { "read_wrong", read_wrong },
					{ "read_right", read_right }, { NULL, NULL } };

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
