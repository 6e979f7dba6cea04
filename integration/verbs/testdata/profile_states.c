/*
 * What a card's driver makes of the states that a program asks for: $VT_STEPS are steps,
 * STATE=ERRNO/NOW, of a queue pair that nobody has connected, or of one that is. Each asks for a
 * state (enum ibv_qp_state, as a number), and has the errno and the state that come of it.
 */
#include "vt.h"

static void walk(struct ibv_qp *qp)
{
	const char *steps = getenv("VT_STEPS");
	int to, err, now, n;

	CHECK(steps);
	while (sscanf(steps, "%d=%d/%d%n", &to, &err, &now, &n) == 3) {
		struct ibv_qp_attr a = { .qp_state = (enum ibv_qp_state)to };
		int got = ibv_modify_qp(qp, &a, IBV_QP_STATE);

		if (got != err || (int)vt_state(qp) != now)
			FAIL("step %s: errno %d, state %d", steps, got, (int)vt_state(qp));
		steps += n;
		steps += *steps == ',';
	}
	CHECK_EQ(*steps, 0);
}

static const struct vt_opts opts = { .ird = 4, .ord = 4 };

static void fresh(void)
{
	struct vt_pair p = { 0 };

	vt_listen(&p);
	vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
	vt_objects(&p.a, &opts, false);
	vt_qp(&p.a, &opts);
	walk(p.a.qp);
}

static void connected(void)
{
	struct vt_pair p;

	vt_open(&p, &opts);
	walk(p.a.qp);
}

/* What is left goes with the program. */
int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "fresh", fresh }, { "connected", connected }, { NULL, NULL } };

	return vt_main(argc, argv, cases);
}
