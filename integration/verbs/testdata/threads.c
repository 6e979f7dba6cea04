/* Several threads on one queue pair and one completion queue. */
#include "vt.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

static struct vt_pair p;

enum { POSTERS = 4, EACH = 500, TOTAL = POSTERS * EACH };

static unsigned char sent[TOTAL], received[TOTAL];
static int nsent, nreceived;

/* Each thread posts its numbers; the message says which. */
static void *posts(void *arg)
{
	int first = (int)(intptr_t)arg * EACH;

	for (int i = first; i < first + EACH; i++) {
		struct ibv_sge sge = vt_sge(&p.a, 64 * (i / EACH), 8);
		char local[8] = "";
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad;
		int err;

		memcpy(local, &i, sizeof(i));
		sge.addr = (uintptr_t)local;
		while ((err = ibv_post_send(p.a.qp, &wr, &bad)) == ENOMEM)
			sched_yield();
		CHECK_EQ(err, 0);
	}
	return NULL;
}

static void post_receive(int slot)
{
	struct ibv_sge sge = vt_sge(&p.b, 64 * slot, 64);
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK_EQ(ibv_post_recv(p.b.qp, &wr, &bad), 0);
}

/* Two threads take the completions of the same CQ: each is given to one of them. */
static void *polls_sends(void *arg)
{
	(void)arg;
	while (__atomic_load_n(&nsent, __ATOMIC_SEQ_CST) < TOTAL) {
		struct ibv_wc wc[4];
		int n = ibv_poll_cq(p.a.scq, 4, wc);

		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
			CHECK(wc[i].wr_id < TOTAL);
			CHECK_EQ(__atomic_add_fetch(&sent[wc[i].wr_id], 1, __ATOMIC_SEQ_CST), 1);
			__atomic_add_fetch(&nsent, 1, __ATOMIC_SEQ_CST);
		}
	}
	return NULL;
}

static void *polls_receives(void *arg)
{
	(void)arg;
	while (__atomic_load_n(&nreceived, __ATOMIC_SEQ_CST) < TOTAL) {
		struct ibv_wc wc[4];
		int n = ibv_poll_cq(p.b.rcq, 4, wc);

		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			int which;

			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
			CHECK_EQ(wc[i].byte_len, 8);
			memcpy(&which, p.b.buf + 64 * wc[i].wr_id, sizeof(which));
			CHECK(which >= 0 && which < TOTAL);
			CHECK_EQ(__atomic_add_fetch(&received[which], 1, __ATOMIC_SEQ_CST), 1);
			post_receive((int)wc[i].wr_id);
			__atomic_add_fetch(&nreceived, 1, __ATOMIC_SEQ_CST);
		}
	}
	return NULL;
}

static void share(void)
{
	pthread_t t[POSTERS + 4];

	vt_open(&p, &(struct vt_opts){ .send_wr = 32, .recv_wr = 256 });
	for (int i = 0; i < 200; i++)
		post_receive(i);
	for (intptr_t i = 0; i < POSTERS; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, posts, (void *)i), 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(pthread_create(&t[POSTERS + i], NULL, polls_sends, NULL), 0);
		CHECK_EQ(pthread_create(&t[POSTERS + 2 + i], NULL, polls_receives, NULL), 0);
	}
	for (int i = 0; i < POSTERS + 4; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
	for (int i = 0; i < TOTAL; i++)
		CHECK(sent[i] == 1 && received[i] == 1);
	vt_close(&p);
}

/* Threads that make and destroy objects of one context. */
static void *makes(void *arg)
{
	struct ibv_context *ctx = arg;

	for (int i = 0; i < 50; i++) {
		struct ibv_pd *pd = ibv_alloc_pd(ctx);
		struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
		struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, ch, 0);
		struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
		struct ibv_qp *qp = ibv_create_qp(pd, &attr);
		struct ibv_wc wc;

		CHECK(pd && ch && cq && qp);
		CHECK_EQ(ibv_poll_cq(cq, 1, &wc), 0);
		CHECK_EQ(ibv_destroy_qp(qp), 0);
		CHECK_EQ(ibv_destroy_cq(cq), 0);
		CHECK_EQ(ibv_destroy_comp_channel(ch), 0);
		CHECK_EQ(ibv_dealloc_pd(pd), 0);
	}
	return NULL;
}

static void objects(void)
{
	pthread_t t[4];

	vt_open(&p, &(struct vt_opts){ 0 });
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, makes, p.a.id->verbs), 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
	vt_close(&p);
}

/* Connections of several threads, each with channels of its own, at the same time. */
static void *connects(void *arg)
{
	(void)arg;
	for (int i = 0; i < 10; i++) {
		struct vt_pair q;

		vt_open(&q, &(struct vt_opts){ 0 });
		vt_recv(&q.b, 1, 0, 100);
		vt_fill(q.a.buf, 100, i);
		vt_send(&q.a, 2, 0, 100);
		vt_wc(q.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
		vt_verify(q.b.buf, 100, i);
		vt_close(&q);
	}
	return NULL;
}

static void connections(void)
{
	pthread_t t[4];

	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, connects, NULL), 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
}

/* No thread of a program's beside its own: a signal goes to none that does not expect it. */
static volatile sig_atomic_t signals;

static void count(int sig)
{
	(void)sig;
	signals++;
}

static void no_helper_threads(void)
{
	struct sigaction sa = { .sa_handler = count };
	struct rdma_cm_event *ev;
	int n = 0;
	char path[64];

	vt_open(&p, &(struct vt_opts){ .channel = true });
	/* /proc/self/task has an entry for each thread and nothing else */
	snprintf(path, sizeof(path), "ls /proc/%d/task | wc -l", getpid());
	FILE *f = popen(path, "r");
	CHECK(f && fscanf(f, "%d", &n) == 1);
	pclose(f);
	CHECK_EQ(n, 1);
	/* A handler without SA_RESTART interrupts a wait, which says so; all else goes on. */
	CHECK_EQ(sigaction(SIGALRM, &sa, NULL), 0);
	alarm(1);
	CHECK_ERRNO(rdma_get_cm_event(p.a.ch, &ev), EINTR);
	CHECK_EQ(signals, 1);
	alarm(1);
	{
		struct ibv_cq *cq;
		void *ctx;

		CHECK_EQ(ibv_get_cq_event(p.a.cc, &cq, &ctx), -1);
		CHECK_EQ(signals, 2);
	}
	vt_close(&p);
}

static const struct vt_case cases[] = {
	{ "share", share }, { "objects", objects }, { "connections", connections }, { "no_helper_threads", no_helper_threads }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
