/* A program that polls gives its processor away when there is nothing, and not when there is something. */
#include "vt.h"

#include <sched.h>
#include <sys/syscall.h>

static int yields_seen;

/* In place of the C library's, for the libraries too. */
int sched_yield(void)
{
	yields_seen++;
	return syscall(SYS_sched_yield);
}

static void yields(void)
{
	struct vt_pair p;
	struct ibv_wc wc;
	int before, empty = 0;

	vt_open(&p, &(struct vt_opts){ 0 });
	before = yields_seen;
	for (int i = 0; i < 1000; i++)
		CHECK_EQ(ibv_poll_cq(p.b.rcq, 1, &wc), 0);
	if (yields_seen - before < 8 || yields_seen - before > 500)
		FAIL("%d yields in 1000 empty polls", yields_seen - before);
	for (int i = 0; i < 50; i++) {
		vt_recv(&p.b, i, 0, 10);
		vt_send(&p.a, i, 0, 10);
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
	}
	before = yields_seen;
	for (int i = 0; i < 50;) {
		int n = ibv_poll_cq(p.b.rcq, 1, &wc);

		CHECK(n >= 0);
		i += n;
		if (!n) { /* it is on its way */
			CHECK(++empty < VT_PATIENCE / 10);
			usleep(10000);
		}
	}
	CHECK(yields_seen - before <= (empty + 7) / 8);
	vt_close(&p);
}

static const struct vt_case cases[] = { { "yields", yields }, {} };

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
