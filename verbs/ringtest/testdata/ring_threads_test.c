/* Threads that post and poll at the same time; and the benchmarks. */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "ring_test.h"

static struct fake_wqe w;
static struct fake_recv r;

/* ---- threads ---- */

#define MESSAGES 20000
#define POSTERS 2
#define POLLERS 2

static struct pair shared;
static atomic_uint posted, sends_polled, recvs_polled, recvs_posted;
static atomic_bool seen[MESSAGES];
static char areas[POSTERS][2048], sinks[64][2048];
static uint32_t sink_key, area_keys[POSTERS];

/* Posts sends, of sizes for the ring and for the slab, and invisible ones, as there is room. */
static void *poster(void *arg)
{
	uint32_t me = (uintptr_t)arg, id, len;

	while ((id = atomic_fetch_add(&posted, 1)) < MESSAGES) {
		struct ibv_sge sge = { .addr = (uintptr_t)areas[me], .lkey = area_keys[me] };

		len = id % 3 ? 8 : 1500;
		memcpy(areas[me], &id, sizeof(id));
		sge.length = len;
		while (post(&shared, IBV_WR_SEND, id, &sge, 1, id % 4 ? 0 : IBV_SEND_SIGNALED))
			sched_yield();
	}
	return NULL;
}

static void repost(uint32_t place)
{
	struct ibv_sge sge = { .addr = (uintptr_t)sinks[place], .length = sizeof(sinks[0]),
			      .lkey = sink_key };

	CHECK_EQ(post_recv(&shared, place, &sge, 1), 0);
	atomic_fetch_add(&recvs_posted, 1);
}

static void *poller(void *arg)
{
	struct ibv_wc wc[8];
	uint32_t id;
	int i, n;

	(void)arg;
	while (atomic_load(&recvs_polled) < MESSAGES || atomic_load(&sends_polled) < MESSAGES / 4) {
		n = vrnic_poll_cq(&shared.cq->cq, 8, wc);
		CHECK(n >= 0 && n <= 8);
		for (i = 0; i < n; i++) {
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
			if (wc[i].opcode != IBV_WC_RECV) {
				atomic_fetch_add(&sends_polled, 1);
				continue;
			}
			memcpy(&id, sinks[wc[i].wr_id], sizeof(id));
			CHECK(id < MESSAGES);
			CHECK(!atomic_exchange(&seen[id], true));
			repost(wc[i].wr_id);
			atomic_fetch_add(&recvs_polled, 1);
		}
		CHECK(!corrupt);
	}
	return NULL;
}

/* The daemon: loops what is sent to the same QP's receives. */
static void *looper(void *arg)
{
	uint32_t done = 0, unretired = 0;

	(void)arg;
	while (done < MESSAGES) {
		if (atomic_load(shared.cq->prod) - atomic_load(shared.cq->cons_word) > shared.cq->mask - 2 ||
		    atomic_load(vrnic_word(shared.q->mem, VRNIC_QP_RQ_PROD)) == shared.q->rq_head ||
		    !fake_take_send(shared.q, &w)) {
			sched_yield();
			continue;
		}
		CHECK(!w.w.num_sge); /* the slab has room for them all */
		CHECK(fake_take_recv(shared.q, &r));
		unretired++;
		if (w.w.flags & VRNIC_SQ_SIGNALED) {
			fake_sent(shared.q, shared.cq, &w, 0, unretired);
			unretired = 0;
		} else if (unretired > 3) {
			fake_retire(shared.q, unretired);
			unretired = 0;
		}
		fake_received(shared.q, shared.cq, &r, shared.q->num, w.data, w.w.length, true);
		done++;
	}
	return NULL;
}

/*
 * Threads post on one QP and poll one CQ at the same time: each message comes once, with its
 * octets.
 */
void test_threads(void)
{
	pthread_t t[POSTERS + POLLERS + 1];
	size_t i, n = 0;

	shared = setup(32, 64, 1, 64, NULL);
	posted = sends_polled = recvs_polled = recvs_posted = 0;
	memset(seen, 0, sizeof(seen));
	fake_indices(shared.qp, -1000u);
	fake_cq_indices(shared.cq, -1000u);
	sink_key = fake_mr(sinks, sizeof(sinks), (uintptr_t)sinks, IBV_ACCESS_LOCAL_WRITE);
	for (i = 0; i < POSTERS; i++)
		area_keys[i] = fake_mr(areas[i], sizeof(areas[i]), (uintptr_t)areas[i], 0);
	for (i = 0; i < 64; i++)
		repost(i);
	CHECK_EQ(pthread_create(&t[n++], NULL, looper, NULL), 0);
	for (i = 0; i < POSTERS; i++)
		CHECK_EQ(pthread_create(&t[n++], NULL, poster, (void *)i), 0);
	for (i = 0; i < POLLERS; i++)
		CHECK_EQ(pthread_create(&t[n++], NULL, poller, NULL), 0);
	while (n)
		pthread_join(t[--n], NULL);
	for (i = 0; i < MESSAGES; i++)
		CHECK(seen[i]);
	CHECK_EQ(corrupt, 0);
	teardown(&shared);
}

/* ---- benchmarks ---- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void report(const char *name, double start, int n)
{
	printf("Benchmark%s %d %.2f ns/op\n", name, n, (now() - start) * 1e9 / n);
}

static void bench_send(struct pair *p, const char *name, uint32_t len, unsigned int flags)
{
	struct ibv_sge sge = sge_of(0, len);
	double spent = 0, start;
	struct ibv_wc wc[16];
	int i, k, n = 20000;

	for (i = 0; i < n; i++) {
		start = now();
		for (k = 0; k < 16; k++)
			post(p, IBV_WR_SEND, k, &sge, 1, flags | IBV_SEND_SIGNALED);
		spent += now() - start;
		while (fake_take_send(p->q, &w))
			fake_sent(p->q, p->cq, &w, 0, 1);
		start = now();
		for (k = 0; k < 16;)
			k += vrnic_poll_cq(&p->cq->cq, 16, wc);
		spent += now() - start;
	}
	printf("Benchmark%s %d %.2f ns/op\n", name, 16 * n, spent * 1e9 / 16 / n);
}

static void bench_recv(struct pair *p, const char *name, uint32_t len, bool slab)
{
	struct ibv_sge sge = sge_of(0, 8192);
	double spent = 0, start;
	static char data[8192];
	struct ibv_wc wc[16];
	int i, k, n = 20000;

	for (i = 0; i < n; i++) {
		start = now();
		for (k = 0; k < 16; k++)
			post_recv(p, k, &sge, 1);
		spent += now() - start;
		while (fake_take_recv(p->q, &r))
			fake_received(p->q, p->cq, &r, p->q->num, data, len, slab);
		start = now();
		for (k = 0; k < 16;)
			k += vrnic_poll_cq(&p->cq->cq, 16, wc);
		spent += now() - start;
	}
	printf("Benchmark%s %d %.2f ns/op\n", name, 16 * n, spent * 1e9 / 16 / n);
}

void bench(void)
{
	struct pair p = setup(64, 64, 1, 256, NULL);
	int i, n = 100000000;
	struct ibv_wc wc;
	double start;

	session.poll_yield = 1u << 31;
	start = now();
	for (i = 0; i < n; i++)
		vrnic_poll_cq(&p.cq->cq, 1, &wc);
	report("PollEmpty", start, n);
	n /= 50;
	start = now();
	for (i = 0; i < n; i++)
		vrnic_req_notify_cq(&p.cq->cq, 0);
	report("Notify", start, n);
	for (uint32_t y = 16; y <= 256; y *= 4) {
		char name[32];

		session.poll_yield = y;
		snprintf(name, sizeof(name), "PollEmptyYield%u", y);
		start = now();
		for (i = 0; i < n; i++)
			vrnic_poll_cq(&p.cq->cq, 1, &wc);
		report(name, start, n);
	}
	bench_send(&p, "Send64Inline", 64, IBV_SEND_INLINE);
	bench_send(&p, "Send64", 64, 0);
	bench_send(&p, "Send2KSlab", 2048, 0);
	bench_send(&p, "Send64KSlab", 65536, 0);
	bench_send(&p, "Send128K", 131072, 0);
	bench_recv(&p, "Recv64", 64, false);
	bench_recv(&p, "Recv64Slab", 64, true);
	bench_recv(&p, "Recv2KSlab", 2048, true);
	teardown(&p);
	bench_direct();
	bench_tables();
}
