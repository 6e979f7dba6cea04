/* Tables that grow, and what a look-up in them costs for a program with many QPs and regions. */
#include <semaphore.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ring_test.h"

/* The library's own regions, under other names than those of the double. */
#define vrnic_sges_local region_sges_local
#define vrnic_sges_readable real_sges_readable
#define vrnic_mr_revoked region_mr_revoked
#include "ibverbs/region.c"

#define ENTRIES 5000
#define KEYS 3000 /* so that some entries have the same */

static uint32_t key_of(uint32_t i) { return i % 3 ? i % KEYS : (i % KEYS) << 20; }

static uint32_t found(struct vrnic_table *t, struct vrnic_entry *e)
{
	struct vrnic_entry *f;
	uint32_t n = 0;

	for (f = vrnic_table_find(t, e->key); f; f = vrnic_table_again(f))
		n += f == e;
	return n;
}

/*
 * Entries are found as long as they are in, whatever their keys are and however many there are;
 * each is gone through once.
 */
void test_table(void)
{
	static struct vrnic_entry entries[ENTRIES];
	static bool in[ENTRIES];
	struct vrnic_table t = { 0 };
	struct vrnic_entry *e;
	uint32_t i, n, round;

	CHECK(!vrnic_table_find(&t, 0) && !vrnic_table_each(&t, NULL));
	vrnic_table_remove(&t, &entries[0]);
	CHECK_EQ(t.n, 0);
	for (round = 0; round < 4; round++) {
		for (i = 0; i < ENTRIES; i++)
			if (!in[i]) {
				vrnic_table_add(&t, &entries[i], key_of(i));
				in[i] = true;
			}
		CHECK_EQ(t.n, ENTRIES);
		CHECK(t.buckets && 1u << t.bits >= ENTRIES / 2);
		for (i = round; i < ENTRIES; i += 1 + round) {
			vrnic_table_remove(&t, &entries[i]);
			in[i] = false;
		}
		for (n = i = 0; i < ENTRIES; i++) {
			CHECK_EQ(found(&t, &entries[i]), in[i]);
			n += in[i];
		}
		CHECK_EQ(t.n, n);
		for (e = NULL; (e = vrnic_table_each(&t, e)); n--)
			CHECK(in[e - entries]);
		CHECK_EQ(n, 0);
	}
	vrnic_table_free(&t);
	CHECK(!vrnic_table_each(&t, NULL));
}

static sem_t changing, forked;

/*
 * Is in the middle of a change for a while, and there until the child is done: of a thread that has
 * ended before the fork, and that it cannot join, ThreadSanitizer would complain in the child.
 */
static void *change(void *arg)
{
	struct vrnic_table whole;

	pthread_rwlock_wrlock(&lock);
	whole = regions;
	regions = (struct vrnic_table){ 0 };
	sem_post(&changing);
	usleep(100000);
	regions = whole;
	pthread_rwlock_unlock(&lock);
	sem_wait(&forked);
	return arg;
}

/* The child of a fork has the regions, and can add to them, whatever another thread is doing. */
void test_regions_forked(void)
{
	static struct vrnic_mr mrs[2];
	struct ibv_sge sge = { .length = 8 };
	struct vrnic_region r = { 0 };
	struct iovec iov[2];
	pthread_t thread;
	int i, status;
	pid_t child;

	for (i = 0; i < 2; i++)
		mrs[i].mr = (struct ibv_mr){ .pd = &pd.pd, .addr = iov, .length = 64, .lkey = 7 + i };
	vrnic_region_add(&mrs[0]);
	sem_init(&changing, 0, 0);
	sem_init(&forked, 0, 0);
	CHECK_EQ(pthread_create(&thread, NULL, change, NULL), 0);
	sem_wait(&changing);
	child = fork();
	if (!child) {
		vrnic_region_add(&mrs[1]);
		for (i = 0; i < 2; i++) {
			sge.lkey = 7 + i;
			if (!region_sges_local(&r, &pd.pd, &sge, 1, false, iov))
				_exit(1);
		}
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	sem_post(&forked);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	vrnic_region_remove(&mrs[0]);
}

/* What a queue remembers of a region is good for as long as that is what it was. */
void test_regions_remembered(void)
{
	static char a[64], b[64];
	struct vrnic_mr mr = { .s = &session, .access = IBV_ACCESS_LOCAL_WRITE,
			       .mr = { .pd = &pd.pd, .addr = a, .length = 64, .lkey = 7 } };
	struct ibv_sge sge = { .addr = 8, .length = 56, .lkey = 7 };
	struct vrnic_region r = { 0 };
	struct vrnic_pd other = { .is = &other };
	struct iovec iov;
	int i;

	vrnic_region_add(&mr);
	for (i = 0; i < 2; i++) {
		CHECK(region_sges_local(&r, &pd.pd, &sge, 1, true, &iov) && iov.iov_base == a + 8);
		CHECK(!region_sges_local(&r, &other.pd, &sge, 1, true, &iov));
		sge.length++; /* beyond its end */
		CHECK(!region_sges_local(&r, &pd.pd, &sge, 1, true, &iov));
		sge.length--;
	}
	vrnic_region_remove(&mr);
	CHECK(!region_sges_local(&r, &pd.pd, &sge, 1, false, &iov));
	mr.mr.addr = b;
	mr.access = 0;
	vrnic_region_add(&mr);
	CHECK(region_sges_local(&r, &pd.pd, &sge, 1, false, &iov) && iov.iov_base == b + 8);
	CHECK(!region_sges_local(&r, &pd.pd, &sge, 1, true, &iov));
	region_mr_revoked(&session, 7);
	CHECK(!region_sges_local(&r, &pd.pd, &sge, 1, false, &iov));
	vrnic_region_remove(&mr);
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Completions of n QPs, each of another than the one before, on one CQ. */
static void bench_qps(uint32_t n)
{
	struct vrnic_cq *cq = fake_cq(1024);
	struct vrnic_qp *qps = calloc(n, sizeof(*qps));
	struct ibv_wc wc[64];
	uint32_t i, k, at = 0, rounds = 2000;
	double spent = 0, start;

	for (i = 0; i < n; i++) {
		qps[i].s = cq->s;
		qps[i].qp.qp_num = 2 + 3 * i;
		qps[i].qp.send_cq = qps[i].qp.recv_cq = &cq->cq;
		vrnic_cq_attach(cq, &qps[i]);
	}
	for (i = 0; i < rounds; i++) {
		for (k = 0; k < 1024; k++, at = (at + 7919) % n) {
			struct vrnic_cqe e = { .opcode = IBV_WC_SEND, .qpn = 2 + 3 * at, .slab_off = VRNIC_NO_SLAB };

			fake_push(cq, &e);
		}
		start = seconds();
		for (k = 0; k < 1024; k += 64)
			CHECK_EQ(vrnic_poll_cq(&cq->cq, 64, wc), 64);
		spent += seconds() - start;
	}
	printf("BenchmarkPollOf%uQPs %u %.2f ns/op\n", n, 1024 * rounds, spent * 1e9 / 1024 / rounds);
	for (i = 0; i < n; i++)
		vrnic_cq_detach(cq, &qps[i]);
	fake_cq_free(cq);
	free(qps);
}

/* SGEs in n regions, whose keys are as random as the daemon's. */
static void bench_regions(uint32_t n)
{
	struct vrnic_mr *mrs = calloc(n, sizeof(*mrs));
	struct ibv_sge sge = { .length = 8 };
	uint32_t i, at = 0, times = 4000000;
	struct vrnic_region r = { 0 };
	struct iovec iov;
	double start;

	for (i = 0; i < n; i++) {
		mrs[i].s = &session;
		mrs[i].access = IBV_ACCESS_LOCAL_WRITE;
		mrs[i].mr = (struct ibv_mr){ .pd = &pd.pd, .addr = &iov, .length = 64,
					    .lkey = (i + 1) * 2246822519u };
		vrnic_region_add(&mrs[i]);
	}
	start = seconds();
	for (i = 0; i < times; i++, at = (at + 611953) % n) {
		sge.lkey = mrs[at].mr.lkey;
		CHECK(region_sges_local(&r, &pd.pd, &sge, 1, false, &iov));
	}
	printf("BenchmarkSGEOf%uRegions %u %.2f ns/op\n", n, times, (seconds() - start) * 1e9 / times);
	for (i = 0; i < n; i++)
		vrnic_region_remove(&mrs[i]);
	free(mrs);
}

void bench_tables(void)
{
	bench_qps(64);
	bench_qps(10000);
	bench_regions(4096);
	bench_regions(1000000);
}
