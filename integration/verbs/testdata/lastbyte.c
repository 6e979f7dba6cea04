/*
 * What a peer has written is there when the standards say so: behind a completion. The wrong one polls the last octet, which
 * works on most cards on most days.
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

/* How many octets of a round are not there. */
static int missing(int i)
{
	int k, n = 0;

	for (k = 0; k < LEN; k++)
		n += ((volatile unsigned char *)p.b.buf)[k] != i;
	return n;
}

static void wrong(void)
{
	uint64_t late;
	int i;

	vt_open(&p, &(struct vt_opts){ 0 });
	for (i = 1; i <= ROUNDS; i++) {
		write_round(i);
		late = vt_now_ms() + VT_PATIENCE;
		while (((volatile unsigned char *)p.b.buf)[LEN - 1] != i)
			if (vt_now_ms() > late)
				FAIL("the last octet does not come");
		if (missing(i)) {
			printf("torn\n");
			vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
			break;
		}
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
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
		CHECK_EQ(missing(i), 0);
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
		vt_wc(p.a.scq, 1000 + i, IBV_WC_SUCCESS, IBV_WC_SEND);
	}
	vt_close(&p);
}

static const struct vt_case cases[] = { { "wrong", wrong }, { "right", right }, { NULL, NULL } };

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
