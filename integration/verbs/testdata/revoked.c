/*
 * Of two programs the one writes to memory that the other takes back meanwhile. Nothing of it is
 * stored there when the call that takes it back has returned:
 *
 *   revoked a          writes
 *   revoked b ROUNDS   takes back so often
 *
 * $RECORD names a file that they share with the test. A request that comes too late ends the
 * connection, and they make another.
 */
#define _GNU_SOURCE /* memfd_create */
#include "vt.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#define LONGEST (384u << 10) /* three times what is copied between two looks at the key */
#define OVER UINT64_MAX
#define ACCESS                                                                              \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC |      \
	 IBV_ACCESS_MW_BIND)

static struct record {
	volatile uint64_t rounds, busy, landed, ended; /* for the test */
	volatile uint64_t port;
	volatile uint64_t round, stop;		       /* of the one that takes back */
	volatile uint64_t addr, key, length, atomic, base_addr, base_key;
	volatile uint64_t posting, done, at_rest, broken; /* of the one that writes */
} *rec;

static struct vt_pair pair;
static struct vt_side *s;
static const struct vt_opts opts = { .len = LONGEST + 8 }; /* with what atomic operations answer */
static uint32_t state;

static uint32_t rnd(uint32_t n)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % n;
}

static void fence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/*
 * The one that writes.
 */

static bool write_one(void)
{
	struct ibv_sge sge = vt_sge(s, 0, rec->length);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (rec->atomic) {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = rec->addr;
		wr.wr.atomic.rkey = rec->key;
		wr.wr.atomic.compare_add = 0x0101010101010101; /* each octet changes */
		sge.addr += LONGEST;
		sge.length = 8;
	} else {
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = rec->addr;
		wr.wr.rdma.rkey = rec->key;
	}
	if (ibv_post_send(s->qp, &wr, &bad))
		return false;
	return vt_poll(s->scq).status == IBV_WC_SUCCESS;
}

/* A Read behind them: the peer's daemon has refused none of those that are over here. */
static bool all_are_there(void)
{
	struct ibv_sge sge = vt_sge(s, LONGEST, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.rdma.remote_addr = rec->base_addr;
	wr.wr.rdma.rkey = rec->base_key;
	return !ibv_post_send(s->qp, &wr, &bad) && vt_poll(s->scq).status == IBV_WC_SUCCESS;
}

static void connect_to_it(void)
{
	vt_meet(&pair, s, false, &opts, &rec->port);
	memset(s->buf, 0xee, s->len);
}

/* Writes until it is to stop: whether the connection is there still. */
static bool write_some(uint64_t round)
{
	bool ok = true;

	while (ok && rec->stop < round) {
		rec->posting = 1;
		ok = write_one();
		rec->posting = 0;
		rec->done++;
	}
	return ok && all_are_there();
}

static void write_all(void)
{
	uint64_t round, was = 0;

	connect_to_it();
	for (; (round = rec->round) != OVER; was = round) {
		fence();
		if (round == was) {
			sched_yield();
			continue;
		}
		if (write_some(round)) {
			rec->at_rest = round;
			continue;
		}
		vt_free_side(s);
		rec->broken = round;
		fence();
		rec->at_rest = round;
		connect_to_it();
	}
	vt_free_side(s);
}

/*
 * The one that takes back.
 */

enum { DEREGISTERED, OWN_MEMFD, INVALIDATED, DEALLOCATED, MOVED, REFUSED, WAYS };

static struct ibv_mr *base, *mr; /* base is for windows */
static struct ibv_mw *mw;
static char *area, *other, *at;
static bool fresh; /* the connection */

static bool request(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags = IBV_SEND_SIGNALED;
	return !ibv_post_send(s->qp, wr, &bad) && vt_poll(s->scq).status == IBV_WC_SUCCESS;
}

static char *own_memfd(void)
{
	int fd = memfd_create("revoked", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char *p;

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, LONGEST), 0);
	CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	CHECK((p = mmap(NULL, LONGEST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
	CHECK_EQ(close(fd), 0);
	return p;
}

/* Returns the key to what is at. */
static uint32_t give(int way)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };

	at = way == OWN_MEMFD ? own_memfd() : area;
	if (way != INVALIDATED && way != DEALLOCATED) {
		CHECK(mr = ibv_reg_mr(s->pd, at, LONGEST, ACCESS));
		return mr->rkey;
	}
	CHECK(mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_2));
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = mw->rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ base, (uintptr_t)at, LONGEST,
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(request(&wr));
	return mw->rkey;
}

static void no_window(void)
{
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	mw = NULL;
}

static void take_back(int way)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV };

	switch (way) {
	case INVALIDATED:
		wr.invalidate_rkey = mw->rkey;
		if (!request(&wr)) /* the connection has ended, and the window has not */
			no_window();
		break;
	case DEALLOCATED:
		no_window();
		break;
	case MOVED:
		CHECK_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, LONGEST, 0), 0);
		break;
	case REFUSED:
		CHECK_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
				      IBV_ACCESS_LOCAL_WRITE), 0);
		break;
	default:
		CHECK_EQ(ibv_dereg_mr(mr), 0);
		mr = NULL;
	}
}

static void leave(int way)
{
	if (mw)
		no_window();
	if (mr)
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	mr = NULL;
	if (way == OWN_MEMFD)
		CHECK_EQ(munmap(at, LONGEST), 0);
}

static void begin(void)
{
	vt_meet(&pair, s, true, &opts, &rec->port);
	CHECK(base = ibv_reg_mr(s->pd, area, LONGEST, ACCESS | IBV_ACCESS_REMOTE_READ));
	rec->base_addr = (uintptr_t)area;
	rec->base_key = base->rkey;
	fresh = true;
}

static void end(void)
{
	CHECK_EQ(ibv_dereg_mr(base), 0);
	vt_free_side(s);
}

static uint32_t some_length(void)
{
	static const uint32_t lengths[] = { 8, 64, 1000, 4096, 16384, 65536, 128 << 10, LONGEST };

	return lengths[rnd(16) ? rnd(6) : 6 + rnd(2)];
}

/*
 * Waits until the other is in the midst of it, or has been: it may have ended the connection. Of a
 * new one the first requests are the daemon's.
 */
static void await_some(uint64_t round)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;
	volatile char *end = at + rec->length - 1;
	uint64_t enough = rec->done + (fresh ? 100 : rnd(2) ? 2 : 0);
	int i;

	fresh = false;
	for (i = 1; (rec->done < enough || !rec->posting) && rec->broken != round; i++) {
		if (i % 256)
			continue;
		sched_yield();
		CHECK(i % 65536 || vt_now_ms() < late);
	}
	if (*end != 0x11)
		rec->landed++;
	for (i = rnd(4) ? rnd(300) : 0; i; i--)
		fence();
}

static void await_rest(uint64_t round)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;
	int i;

	for (i = 1; rec->at_rest != round; i++) {
		sched_yield();
		CHECK(i % 1024 || vt_now_ms() < late);
	}
	fence();
}

static void one_round(uint64_t round)
{
	uint32_t i, n = some_length();
	int way = rnd(WAYS);
	bool late = !rnd(100);

	if (way == OWN_MEMFD && rnd(8))
		way = DEREGISTERED;
	rec->key = give(way);
	rec->atomic = !rnd(8);
	if (rec->atomic)
		n = 8;
	memset(at, 0x11, n);
	rec->addr = (uintptr_t)at;
	rec->length = n;
	fence();
	rec->round = round;
	await_some(round);
	if (!late)
		rec->stop = round;
	fence();
	rec->busy += rec->posting;
	take_back(way);
	memset(at, 0x5a, n); /* it is ours again */
	fence();
	rec->stop = round;
	await_rest(round);
	for (i = 0; i < n; i++)
		if (at[i] != 0x5a)
			FAIL("round %lu, way %d: octet %u of %u has been written to, %02x", round, way, i, n,
			     (uint8_t)at[i]);
	leave(way);
	rec->rounds = round;
	if (rec->broken == round) {
		rec->ended++;
		end();
		begin();
	}
}

static void take_all(uint64_t rounds)
{
	uint64_t round;

	CHECK(area = aligned_alloc(4096, LONGEST));
	CHECK(other = aligned_alloc(4096, LONGEST));
	begin();
	for (round = 1; round <= rounds; round++)
		one_round(round);
	rec->round = OVER;
	end();
	CHECK_EQ(rdma_destroy_id(pair.listen), 0);
	rdma_destroy_event_channel(pair.lch);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	rec = vt_record(sizeof(*rec));
	state = getpid();
	if (argv[1][0] == 'a') {
		s = &pair.a;
		write_all();
	} else {
		s = &pair.b;
		take_all(atol(argv[2]));
	}
	return 0;
}
