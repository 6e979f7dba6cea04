/* Writes, Reads and atomic operations of the direct path, to memory that a peer has lent. */
#include <string.h>
#include <time.h>

#include "ring_direct.h"

#define FAR (512u << 10)
#define ENTRIES 16
#define BASE 0x10000u /* what the peer calls the first octet */
#define KEY 0x1234501u

static char *keys, *far;

static void make_peer(void)
{
	fake_peer(VRNIC_KEYS_HEADER_LEN + ENTRIES * VRNIC_KEY_LEN, FAR, &keys, &far);
	atomic_store(vrnic_word(keys, VRNIC_KEYS_MAGIC), VRNIC_MAGIC_KEYS);
	atomic_store(vrnic_word(keys, VRNIC_KEYS_SIZE), ENTRIES);
	atomic_store(vrnic_word(keys, VRNIC_KEYS_OFF), VRNIC_KEYS_HEADER_LEN);
}

/* An entry at a place of the key's, for length octets of the peer's memory from offset on. */
static void publish(uint32_t probe, uint32_t access, uint32_t qpn, uint32_t offset, uint32_t length)
{
	char *e = keys + VRNIC_KEYS_HEADER_LEN +
		  ((KEY >> 8) + probe) % ENTRIES * VRNIC_KEY_LEN;

	memset(keys + VRNIC_KEYS_HEADER_LEN, 0, ENTRIES * VRNIC_KEY_LEN);
	atomic_store(vrnic_word(e, VRNIC_KEY_ACCESS), access);
	atomic_store(vrnic_word(e, VRNIC_KEY_QPN), qpn);
	atomic_store(vrnic_word(e, VRNIC_KEY_MEM), 1);
	*(uint64_t *)(e + VRNIC_KEY_ADDR) = BASE + offset;
	*(uint64_t *)(e + VRNIC_KEY_LENGTH) = length;
	*(uint64_t *)(e + VRNIC_KEY_OFFSET) = offset;
	atomic_store(vrnic_word(e, VRNIC_KEY_KEY), KEY);
}

static bool one_of(uint32_t n) { return !direct_rnd(n); }

/* A request at random, of which far_off and n say what it reaches. */
static struct ibv_send_wr any_wr(struct ibv_sge sge[2], uint32_t key, char *near, uint32_t *far_off)
{
	static const uint32_t lengths[] = { 1, 2, 3, 7, 8, 9, 64, 4096, 131071, 131072, 131073, 300000 };
	static const int ops[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
				  IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP };
	struct ibv_send_wr wr = { .opcode = ops[direct_rnd(5)], .sg_list = sge, .num_sge = 2 };
	bool atomic = wr.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
	uint32_t n = atomic ? 8 : lengths[direct_rnd(12)], cut = direct_rnd(n + 1);

	*far_off = direct_rnd(FAR - n + 1);
	if (atomic && direct_rnd(4))
		*far_off &= ~7u;
	sge[0] = (struct ibv_sge){ (uintptr_t)near, cut, key };
	sge[1] = (struct ibv_sge){ (uintptr_t)near + cut + 5, n - cut, key };
	if (one_of(2) || wr.opcode == IBV_WR_RDMA_WRITE)
		wr.send_flags = IBV_SEND_SIGNALED;
	if (atomic) {
		wr.wr.atomic.remote_addr = BASE + *far_off;
		wr.wr.atomic.rkey = KEY;
		wr.wr.atomic.compare_add = direct_rnd(2) ? direct_rnd(1000) : 0;
		wr.wr.atomic.swap = direct_rnd(1000);
	} else {
		wr.wr.rdma.remote_addr = BASE + *far_off;
		wr.wr.rdma.rkey = KEY;
	}
	return wr;
}

/* What wr does to the peer's memory at, and to near; there are n octets. */
static void expect(const struct ibv_send_wr *wr, char *at, char *near)
{
	char *to[] = { near, near + wr->sg_list[0].length + 5 };
	char old[8];
	uint64_t was;
	int i;

	if (wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP) {
		memcpy(&was, at, 8);
		memcpy(old, at, 8);
		if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			was += wr->wr.atomic.compare_add;
		else if (was == wr->wr.atomic.compare_add)
			was = wr->wr.atomic.swap;
		memcpy(at, &was, 8);
		at = old;
	}
	for (i = 0; i < 2; i++) {
		if (wr->opcode == IBV_WR_RDMA_WRITE)
			memcpy(at, to[i], wr->sg_list[i].length);
		else
			memcpy(to[i], at, wr->sg_list[i].length);
		at += wr->sg_list[i].length;
	}
}

/*
 * A request is done here exactly when the direction is open, the ring drained and the key gives what
 * is wanted, and then as a whole; else the ring has it. Completions come in the order of posting.
 */
void test_direct_remote(void)
{
	static char near[FAR], near_was[FAR], far_was[FAR];
	struct end *e = &direct_ends[0];
	uint32_t step, round, i, direct = 0, byring = 0;
	uint64_t done = 0;

	for (round = 0; round < 12; round++) {
		uint32_t access, qpn, begin_at, length, far_off, n, mark, posted = 0, polled = 0;
		uint64_t want[64];
		uint32_t len[64], key;
		int op[64];

		direct_begin(round, round % 2 ? 0xfffffff0u : 0);
		direct_pair();
		make_peer();
		key = fake_mr(near, sizeof(near), (uintptr_t)near, IBV_ACCESS_LOCAL_WRITE);
		direct_open(e, true);
		for (step = 0; step < 250; step++) {
			struct ibv_send_wr wr, *bad;
			struct ibv_sge sge[2];
			struct ibv_wc wc[4];
			bool may, ring;
			int k, got;

			if (one_of(3)) { /* the daemon's side */
				access = direct_rnd(16);
				qpn = one_of(3) ? direct_ends[1].q->num : one_of(3) ? 77777 : 0;
				begin_at = direct_rnd(3) ? 0 : direct_rnd(FAR / 2) & ~7u;
				length = direct_rnd(3) ? FAR - begin_at : direct_rnd(FAR - begin_at);
				publish(direct_rnd(9), access, qpn, begin_at, length);
			} else {
				access = direct_rnd(8) ? 14 : 0;
				qpn = begin_at = 0;
				length = FAR;
				publish(direct_rnd(8), access, 0, 0, FAR);
			}
			if (one_of(20)) /* what is mapped is mapped again */
				atomic_fetch_add(vrnic_word(keys, VRNIC_KEYS_GONE), 1);
			if (one_of(6))
				direct_open(e, !e->open);
			for (i = 0; i < FAR; i += 4099)
				near[i] = direct_rnd(256), far[i] = direct_rnd(256);
			memcpy(near_was, near, FAR);
			memcpy(far_was, far, FAR);
			wr = any_wr(sge, key, near, &far_off);
			wr.wr_id = step;
			n = sge[0].length + sge[1].length;
			ring = atomic_load(&e->qp->sq.prod) !=
			       atomic_load(vrnic_word(e->q->mem, VRNIC_QP_SQ_DONE));
			mark = atomic_load(&e->qp->sq.prod);
			may = e->open && !ring && (!qpn || qpn == direct_ends[1].q->num) && far_off >= begin_at &&
			      far_off + n <= begin_at + length &&
			      access & (wr.opcode == IBV_WR_RDMA_WRITE ? IBV_ACCESS_REMOTE_WRITE :
					wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ :
									IBV_ACCESS_REMOTE_ATOMIC) &&
			      (wr.opcode < IBV_WR_ATOMIC_CMP_AND_SWP || !(far_off % 8)) &&
			      *(uint32_t *)(keys + VRNIC_KEYS_HEADER_LEN +
					    ((KEY >> 8) + 8) % ENTRIES * VRNIC_KEY_LEN) != KEY;
			if (vrnic_post_send(&e->qp->qp, &wr, &bad))
				goto poll; /* the queue is full */
			CHECK_EQ(atomic_load(&e->qp->sq.prod) - mark, !may);
			if (may) {
				direct++;
				expect(&wr, far_was + far_off, near_was);
			} else {
				byring++;
			}
			CHECK(!memcmp(near, near_was, FAR) && !memcmp(far, far_was, FAR));
			if (wr.send_flags & IBV_SEND_SIGNALED) {
				want[posted % 64] = step;
				op[posted % 64] = vrnic_wc_opcode(wr.opcode);
				len[posted++ % 64] = may && wr.opcode != IBV_WR_RDMA_WRITE ? n : 0;
			}
			if (direct_rnd(3) && fake_take_send(e->q, &e->w)) {
				if (e->w.w.flags & VRNIC_SQ_SIGNALED)
					fake_sent(e->q, e->cq, &e->w, 0, 1);
				else
					fake_retire(e->q, 1);
			}
poll:
			got = vrnic_poll_cq(&e->cq->cq, direct_rnd(5), wc);
			for (k = 0; k < got; k++, polled++) {
				CHECK(polled < posted && !wc[k].status);
				CHECK_EQ(wc[k].wr_id, want[polled % 64]);
				if (len[polled % 64])
					CHECK_EQ(wc[k].byte_len, len[polled % 64]);
				if (len[polled % 64] || op[polled % 64] == IBV_WC_RDMA_WRITE)
					CHECK_EQ(wc[k].opcode, (uint32_t)op[polled % 64]);
			}
			if (direct_rnd(2))
				continue;
			while (fake_take_send(e->q, &e->w)) {
				if (e->w.w.flags & VRNIC_SQ_SIGNALED)
					fake_sent(e->q, e->cq, &e->w, 0, 1);
				else
					fake_retire(e->q, 1);
			}
		}
		done += direct_counted(e, VRNIC_DIR_WRITES) + direct_counted(e, VRNIC_DIR_READS) +
			direct_counted(e, VRNIC_DIR_ATOMICS);
		CHECK_EQ(done, direct);
		direct_finish();
		fake_peer_free();
	}
	CHECK(direct > 500 && byring > 500);
}

/*
 * Where a CQ can run over, no more completes here than there is room for in the CQ: the daemon, which
 * is told how many, finds the one too many. Messages take no receive.
 */
void test_direct_uncovered(void)
{
	static char near[64];
	struct end *e = &direct_ends[0];
	struct ibv_sge sge = { .addr = (uintptr_t)near, .length = 8 };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				       .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc[DEPTH];
	uint32_t i, most = DEPTH / 2;

	direct_begin(0, 0);
	fake_covered = false;
	direct_pair();
	fake_covered = true;
	make_peer();
	publish(0, IBV_ACCESS_REMOTE_WRITE, 0, 0, FAR);
	sge.lkey = fake_mr(near, sizeof(near), (uintptr_t)near, 0);
	wr.wr.rdma.rkey = KEY;
	wr.wr.rdma.remote_addr = BASE;
	e->cq->mask = most - 1;
	direct_open(e, true);
	for (i = 0; i <= most; i++) {
		CHECK_EQ(vrnic_post_send(&e->qp->qp, &wr, &bad), 0);
		CHECK_EQ(atomic_load(&e->qp->sq.prod), i == most);
	}
	CHECK_EQ(atomic_load(direct_word(e, VRNIC_DIR_COMPLETED)), most);
	CHECK_EQ(atomic_load(direct_word(e, VRNIC_DIR_POLLED)), 0);
	CHECK_EQ((uint32_t)vrnic_poll_cq(&e->cq->cq, most, wc), most);
	CHECK_EQ(atomic_load(direct_word(e, VRNIC_DIR_POLLED)), most);
	CHECK_EQ(atomic_load(&e->cq->unpolled), 0);
	direct_receive(&direct_ends[1]);
	CHECK_EQ(atomic_load(direct_word(e, VRNIC_DIR_ROOMS + VRNIC_ROOM_LENGTH)), VRNIC_NO_ROOM);
	direct_finish();
	fake_peer_free();
}

/* ---- benchmarks: the processor's time, which others that want it do not add to ---- */

static double spent(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void bench_empty(const char *name)
{
	double begin = spent();
	int i, n = 10000000;
	struct ibv_wc wc;

	for (i = 0; i < n; i++)
		vrnic_poll_cq(&direct_ends[0].cq->cq, 1, &wc);
	printf("Benchmark%s %d %.2f ns/op\n", name, n, (spent() - begin) * 1e9 / n);
}

/* A message with all that both ends do for it: two posts and two polls. */
static void bench_message(const char *name, uint32_t len)
{
	struct end *a = &direct_ends[0], *b = &direct_ends[1];
	struct ibv_sge sge = { (uintptr_t)a->out[0], len, a->out_key };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	uint64_t sends = direct_counted(a, VRNIC_DIR_MESSAGES);
	int i, n = 2000000;
	struct ibv_wc wc;
	double begin;

	begin = spent();
	for (i = 0; i < n; i++) {
		direct_receive(b);
		if (vrnic_post_send(&a->qp->qp, &wr, &bad) || vrnic_poll_cq(&a->cq->cq, 1, &wc) != 1 ||
		    vrnic_poll_cq(&b->cq->cq, 1, &wc) != 1)
			break;
	}
	printf("Benchmark%s %d %.2f ns/op\n", name, n, (spent() - begin) * 1e9 / n);
	CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES) - sends, (uint64_t)n);
}

void bench_direct(void)
{
	direct_begin(1, 0);
	bench_empty("PollEmptyUndirect");
	direct_pair();
	direct_open(&direct_ends[0], true);
	bench_empty("PollEmptyDirect");
	bench_message("DirectSend64", 64);
	bench_message("DirectSend4K", 4096);
	direct_finish();
}
