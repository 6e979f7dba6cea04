/*
 * The direct path, docs/direct.md: two QPs of this process with a pair, and the daemon between them
 * that carries out what they post to their rings.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "ring_direct.h"

static uint32_t state;

uint32_t direct_rnd(uint32_t n)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % n;
}

struct end direct_ends[2];

_Atomic uint32_t *direct_word(struct end *e, uint32_t off)
{
	return vrnic_word(e->dir, off);
}

static void make_end(struct end *e, uint32_t first)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { DEPTH, DEPTH, 2, 2, 64 } };

	memset(e, 0, sizeof(*e));
	e->cq = fake_cq(1024);
	attr.send_cq = attr.recv_cq = &e->cq->cq;
	e->out_key = fake_mr(e->out, sizeof(e->out), (uintptr_t)e->out, 0);
	e->in_key = fake_mr(e->in, sizeof(e->in), (uintptr_t)e->in, IBV_ACCESS_LOCAL_WRITE);
	e->qp = to_vqp(ibv_create_qp(&pd.pd, &attr));
	CHECK(e->qp && e->qp->sq.mask + 1 == DEPTH && e->qp->rq.mask + 1 == DEPTH);
	e->q = fake_of(e->qp->qp.qp_num);
	fake_state(e->q, IBV_QPS_RTS);
	fake_indices(e->qp, first);
	fake_cq_indices(e->cq, first);
}

static uint32_t dir_len(void)
{
	return ((VRNIC_DIR_ROOMS + DEPTH * VRNIC_ROOM_LEN + 63) & ~63u) + DEPTH * VRNIC_SLOT_LEN + SLAB;
}

/* The daemon's making of a pair. */
static char *new_pair(void)
{
	uint32_t i, k, used, off = VRNIC_PAIR_HEADER_LEN;
	char *mem = fake_pair(VRNIC_PAIR_HEADER_LEN + 2 * dir_len(), direct_ends[1].q->num);

	for (i = 0; i < 2; i++, off += dir_len()) {
		struct end *e = &direct_ends[i], *to = &direct_ends[!i];

		atomic_store(vrnic_word(mem, VRNIC_PAIR_QPN + 4 * i), e->q->num);
		atomic_store(vrnic_word(mem, VRNIC_PAIR_OFF + 4 * i), off);
		atomic_store(vrnic_word(mem, VRNIC_PAIR_SLOTS + 4 * i), DEPTH);
		atomic_store(vrnic_word(mem, VRNIC_PAIR_SLAB + 4 * i), SLAB);
		atomic_store(vrnic_word(mem, VRNIC_PAIR_REACH + 4 * i), 0xe);
		e->dir = mem + off;
		used = e->was = to->q->rq_head;
		atomic_store(direct_word(e, VRNIC_DIR_RECV_BASE), used);
		atomic_store(direct_word(e, VRNIC_DIR_RECV_DONE), used);
		for (k = 0; k < DEPTH; k++) {
			atomic_store(direct_word(e, VRNIC_DIR_ROOMS + k * VRNIC_ROOM_LEN), used - DEPTH);
			atomic_store(direct_word(e, (dir_len() - SLAB - DEPTH * VRNIC_SLOT_LEN) + k * VRNIC_SLOT_LEN),
				     used - DEPTH);
		}
		e->open = false;
	}
	atomic_store(vrnic_word(mem, VRNIC_PAIR_MAGIC), VRNIC_MAGIC_PAIR);
	return mem;
}

/* The same, and both programs' asking for it. */
char *direct_pair(void)
{
	char *mem = new_pair();
	uint32_t i;

	for (i = 0; i < 2; i++) {
		vrnic_direct_try(direct_ends[i].qp);
		CHECK(direct_ends[i].qp->direct && direct_ends[i].qp->sq.direct == direct_ends[i].qp->direct);
	}
	return mem;
}

/* The daemon goes on behind what the sender has used. */
static void take_over(struct end *e)
{
	struct fake_q *to = direct_ends[e == direct_ends].q;
	uint32_t done = atomic_load(direct_word(e, VRNIC_DIR_RECV_DONE));
	uint32_t prod = atomic_load(vrnic_word(to->mem, VRNIC_QP_RQ_PROD));

	if (done != e->was) {
		if (prod - done <= DEPTH && to->rq_head - done > DEPTH) /* else the connection direct_ends */
			to->rq_head = done;
		e->was = done;
	}
	if (prod - to->rq_head > DEPTH) /* here, too */
		to->rq_head = prod - DEPTH;
	atomic_store(vrnic_word(to->mem, VRNIC_QP_RQ_HEAD), to->rq_head);
}

void direct_open(struct end *e, bool open)
{
	if (e->open == open)
		return;
	e->open = open;
	if (open) {
		take_over(e);
		atomic_store(direct_word(e, VRNIC_DIR_RECV_BASE), direct_ends[e == direct_ends].q->rq_head);
	}
	atomic_store(direct_word(e, VRNIC_DIR_OPEN), open);
	CHECK(!(atomic_load(direct_word(e, VRNIC_DIR_SEQ)) & 1));
	if (!open)
		take_over(e);
}

/* The daemon carries out one request, if it can. */
static void carry(struct end *e)
{
	struct end *to = &direct_ends[e == direct_ends];
	char octets[LONG];
	struct fake_recv r;

	if (!e->taken && !fake_take_send(e->q, &e->w))
		return;
	e->taken = true;
	take_over(e);
	if (!fake_take_recv(to->q, &r))
		return;
	e->taken = false;
	e->byring++;
	if (e->w.w.flags & (VRNIC_SQ_INLINE | VRNIC_SQ_SLAB))
		memcpy(octets, e->w.data, e->w.w.length);
	else if (e->w.w.length)
		memcpy(octets, (void *)(uintptr_t)e->w.sge[0].addr, e->w.w.length);
	if (e->w.w.op == IBV_WR_SEND)
		fake_received(to->q, to->cq, &r, to->q->num, octets, e->w.w.length, direct_rnd(2));
	else
		fake_told(to->q, to->cq, &r, e->w.w.imm);
	atomic_store(direct_word(e, VRNIC_DIR_RECV_BASE), to->q->rq_head);
	if (e->w.w.flags & VRNIC_SQ_SIGNALED)
		fake_sent(e->q, e->cq, &e->w, 0, 1);
	else
		fake_retire(e->q, 1);
}

static void fill(struct end *e, uint32_t n, char *at, uint32_t len)
{
	uint32_t i;

	for (i = 0; i < len; i++)
		at[i] = (char)(n * 7 + i + (e == direct_ends));
}

static void send(struct end *e)
{
	static const uint32_t lengths[] = { 0, 1, 64, 111, 112, 113, 700, 8191, 8192, 8193, LONG };
	uint32_t n = e->sent, len = lengths[direct_rnd(sizeof(lengths) / sizeof(lengths[0]))];
	char *at = e->out[n % (2 * DEPTH)];
	struct ibv_sge sge = { (uintptr_t)at, len, e->out_key };
	struct ibv_send_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = !!len, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad;

	if (n == MESSAGES)
		return;
	e->imm[n] = !direct_rnd(4);
	if (e->imm[n]) {
		wr.opcode = direct_rnd(2) ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = ~n;
		wr.num_sge = len = 0;
	}
	wr.send_flags = (direct_rnd(2) ? IBV_SEND_SIGNALED : 0) | (direct_rnd(4) ? 0 : IBV_SEND_SOLICITED) |
			(len <= 64 && direct_rnd(2) ? IBV_SEND_INLINE : 0);
	fill(e, n, at, len);
	if (vrnic_post_send(&e->qp->qp, &wr, &bad))
		return;
	e->length[n] = len;
	if (wr.send_flags & IBV_SEND_SIGNALED)
		e->signaled[e->nsignaled++] = n;
	e->sent++;
}

void direct_receive(struct end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->in[e->recvs % DEPTH], LONG, e->in_key };
	struct ibv_recv_wr wr = { .wr_id = e->recvs, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (!vrnic_post_recv(&e->qp->qp, &wr, &bad))
		e->recvs++;
}

/* Polls up to n: each is the next of its kind, and has what was sent. */
static int poll(struct end *e, int n)
{
	struct end *from = &direct_ends[e == direct_ends];
	char want[LONG];
	struct ibv_wc wc[4];
	int i, got = vrnic_poll_cq(&e->cq->cq, n, wc);

	CHECK_EQ(corrupt, 0);
	for (i = 0; i < got; i++) {
		CHECK_EQ(wc[i].status, 0);
		CHECK_EQ(wc[i].qp_num, e->q->num);
		if (!(wc[i].opcode & IBV_WC_RECV)) {
			CHECK(e->completed < e->nsignaled);
			CHECK_EQ(wc[i].wr_id, e->signaled[e->completed++]);
			continue;
		}
		CHECK(e->received < from->sent);
		CHECK_EQ(wc[i].opcode, from->imm[e->received] ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
		CHECK_EQ(wc[i].wc_flags, from->imm[e->received] ? IBV_WC_WITH_IMM : 0);
		CHECK(!from->imm[e->received] || wc[i].imm_data == ~e->received);
		CHECK_EQ(wc[i].wr_id, e->received);
		CHECK_EQ(wc[i].byte_len, from->length[e->received]);
		fill(from, e->received, want, wc[i].byte_len);
		CHECK(!memcmp(want, e->in[e->received % DEPTH], wc[i].byte_len));
		e->received++;
	}
	return got;
}

/* Until all that was sent has come and completed. */
static void drain(void)
{
	int i, rounds = 0;

	while (direct_ends[0].received < direct_ends[1].sent || direct_ends[1].received < direct_ends[0].sent ||
	       direct_ends[0].completed < direct_ends[0].nsignaled || direct_ends[1].completed < direct_ends[1].nsignaled) {
		CHECK(rounds++ < 100);
		for (i = 0; i < 2; i++) {
			direct_receive(&direct_ends[i]);
			carry(&direct_ends[i]);
			poll(&direct_ends[i], 4);
		}
	}
}

void direct_finish(void)
{
	int i;

	for (i = 0; i < 2; i++) {
		CHECK_EQ(ibv_destroy_qp(&direct_ends[i].qp->qp), 0);
		fake_cq_free(direct_ends[i].cq);
	}
	CHECK_EQ(pd.users, 0);
	fake_pair_free();
}

uint64_t direct_counted(struct end *e, uint32_t off)
{
	return atomic_load((_Atomic uint64_t *)(e->dir + off));
}

void direct_begin(uint32_t round, uint32_t first)
{
	fake_start();
	session.poll_yield = -1u;
	session.direct = true;
	state = round;
	make_end(&direct_ends[0], first);
	make_end(&direct_ends[1], first);
}

/*
 * Programs at random, with the direction opened and closed at random: what completes, in which
 * order and with which octets, is the same whichever way a message has gone.
 */
void test_direct(void)
{
	uint32_t round, step, i, direct = 0, imms = 0, byring = 0;

	for (round = 0; round < 60; round++) {
		direct_begin(round, round % 3 ? 0xfffffff0u : 0);
		direct_pair();
		for (step = 0; step < 4000; step++) {
			struct end *e = &direct_ends[direct_rnd(2)];

			switch (direct_rnd(10)) {
			case 0:
			case 1:
				send(e);
				break;
			case 2:
			case 3:
				direct_receive(e);
				break;
			case 4:
				poll(e, 1 + direct_rnd(4));
				break;
			case 5:
			case 6:
			case 7:
				carry(e);
				break;
			case 8:
				direct_open(e, direct_rnd(4));
			}
		}
		drain();
		for (i = 0; i < 2; i++) {
			CHECK_EQ(direct_ends[i].received, direct_ends[!i].sent);
			CHECK_EQ(direct_ends[i].completed, direct_ends[i].nsignaled);
			CHECK_EQ(poll(&direct_ends[i], 4), 0);
			CHECK_EQ(direct_counted(&direct_ends[i], VRNIC_DIR_MESSAGES) + direct_ends[i].byring, direct_ends[i].sent);
			direct += direct_counted(&direct_ends[i], VRNIC_DIR_MESSAGES);
			imms += direct_counted(&direct_ends[i], VRNIC_DIR_IMMS);
			byring += direct_ends[i].byring;
		}
		direct_finish();
	}
	CHECK(direct > 2000 && imms > 500 && byring > 2000); /* both ways were taken */
}

/*
 * What completes invisibly by the ring is over for who posts directly behind it, too: a completion
 * that has been polled makes room for all that was posted before.
 */
void test_direct_room(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct end *a = &direct_ends[0], *b = &direct_ends[1];
	int i;

	direct_begin(1, 0);
	direct_pair();
	for (i = 0; i < DEPTH - 2; i++) {
		direct_receive(b);
		CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
		carry(a);
	}
	CHECK_EQ(vrnic_poll_cq(&b->cq->cq, 1, &(struct ibv_wc){ 0 }), 1);
	direct_open(a, true);
	wr.send_flags = IBV_SEND_SIGNALED;
	for (i = 0; i < DEPTH; i++) {
		while (vrnic_poll_cq(&b->cq->cq, 1, &(struct ibv_wc){ 0 }))
			;
		direct_receive(b);
		CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
	}
	CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES), DEPTH);
	direct_receive(b);
	CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), ENOMEM);
	direct_finish();
}

/* What completes invisibly by the ring, before there is a pair, is waited for by nobody. */
void test_direct_behind(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct end *a = &direct_ends[0], *b = &direct_ends[1];
	struct ibv_wc wc;
	int i;

	direct_begin(1, 0xfffffffau);
	a->qp->direct_in = 0; /* who posts does not ask yet */
	new_pair();
	for (i = 0; i < 2 * DEPTH + 1; i++) {
		direct_receive(b);
		CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
		carry(a);
		while (vrnic_poll_cq(&b->cq->cq, 1, &wc))
			;
	}
	vrnic_direct_try(a->qp);
	vrnic_direct_try(b->qp);
	direct_open(a, true);
	direct_receive(b);
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
	CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES), 1);
	CHECK_EQ(vrnic_poll_cq(&a->cq->cq, 1, &wc), 1);
	direct_finish();
}

/*
 * A daemon that has not offered the path is not asked, nor shown who the program is: one of an
 * earlier version direct_ends the session of who sends it a descriptor that it does not know.
 */
void test_direct_off(void)
{
	struct end *e = &direct_ends[0];

	fake_start();
	make_end(e, 0);
	vrnic_qp_connected(&context.v.context, e->qp->qp.qp_num);
	CHECK(!e->qp->direct && !e->qp->direct_in);
	CHECK_EQ(ibv_destroy_qp(&e->qp->qp), 0);
	fake_cq_free(e->cq);
}

/* Who wants an event is told of by a count and the bell, and of nothing else. */
void test_direct_events(void)
{
	struct ibv_sge sge = { (uintptr_t)direct_ends[0].out, 8, 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	static const struct {
		int arm; /* -1: not, 0: any, 1: solicited ones */
		unsigned int flags;
		uint32_t notify, solicited;
	} cases[] = {
		{ -1, IBV_SEND_SOLICITED, 0, 0 }, { 0, 0, 1, 0 }, { 1, 0, 0, 0 },
		{ 0, IBV_SEND_SOLICITED, 0, 1 }, { 1, IBV_SEND_SOLICITED, 0, 1 },
	};
	uint32_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct end *a = &direct_ends[0], *b = &direct_ends[1];

		direct_begin(i, 0);
		direct_pair();
		direct_open(a, true);
		direct_receive(b);
		fake_rang(a->q);
		if (cases[i].arm >= 0)
			vrnic_req_notify_cq(&b->cq->cq, cases[i].arm);
		sge.lkey = a->out_key;
		wr.send_flags = cases[i].flags;
		CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
		CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES), 1);
		CHECK_EQ(direct_counted(a, VRNIC_DIR_ASKED), !!cases[i].flags);
		CHECK_EQ(atomic_load(direct_word(a, VRNIC_DIR_NOTIFY)), cases[i].notify);
		CHECK_EQ(atomic_load(direct_word(a, VRNIC_DIR_SOLICITED)), cases[i].solicited);
		CHECK_EQ(fake_rang(a->q), cases[i].notify + cases[i].solicited);
		atomic_store(b->cq->arm, 0); /* the daemon has raised it */
		CHECK_EQ(vrnic_poll_cq(&b->cq->cq, 1, &(struct ibv_wc){ 0 }), 1);
		CHECK_EQ(atomic_load(direct_word(a, VRNIC_DIR_WANT)), 0); /* it costs a bell as long as it is not */
		/* who sends may be who waits */
		direct_receive(b);
		vrnic_req_notify_cq(&a->cq->cq, 0);
		wr.send_flags = IBV_SEND_SIGNALED;
		CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
		CHECK_EQ(atomic_load(direct_word(a, VRNIC_DIR_OWN)), 1);
		CHECK(fake_rang(a->q));
		direct_finish();
	}
}

/*
 * The next connection has a pair of its own, when all that came by the one before has been polled;
 * meanwhile messages go by the ring.
 */
void test_direct_again(void)
{
	struct vrnic_direct *was;
	uint32_t round, i;

	direct_begin(1, 0xffffff00u);
	direct_pair();
	for (round = 0; round < 20; round++) {
		direct_open(&direct_ends[0], true);
		direct_open(&direct_ends[1], true);
		for (i = 0; i < 200; i++) {
			struct end *e = &direct_ends[direct_rnd(2)];

			direct_rnd(2) ? send(e) : direct_receive(e);
			carry(&direct_ends[direct_rnd(2)]);
			if (direct_rnd(2))
				poll(e, 2);
		}
		do {
			drain();
			direct_receive(&direct_ends[0]);
			send(&direct_ends[1]);
		} while (!vrnic_pair_stamped(&direct_ends[0].qp->direct->in, direct_ends[0].qp->direct->next));
		vrnic_direct_try(direct_ends[0].qp); /* it has one: nothing changes */
		direct_open(&direct_ends[0], false);
		direct_open(&direct_ends[1], false);
		was = direct_ends[0].qp->direct;
		vrnic_direct_try(direct_ends[0].qp);
		CHECK(direct_ends[0].qp->direct == was); /* what has come has not been polled */
		send(&direct_ends[0]);
		drain();
		fake_pair_free();
		direct_pair();
		CHECK(direct_ends[0].cq->nall == 1 && direct_ends[1].cq->nall == 1);
		for (i = 0; i < 2; i++)
			direct_ends[i].byring = 0;
	}
	direct_finish();
}

/*
 * A peer leaves the pair, comes back and asks for another: who stayed finds its direction closed,
 * by what it sends or by what it gets, and asks by itself.
 */
void test_direct_left(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct end *a = &direct_ends[0], *b = &direct_ends[1], *from;
	struct vrnic_direct *was;
	uint32_t round, i;

	direct_begin(1, 0);
	direct_pair();
	for (round = 0; round < 4; round++) {
		from = round % 2 ? a : b;
		was = b->qp->direct;
		fake_pair_free();
		new_pair();
		vrnic_direct_free(a->qp);
		vrnic_direct_try(a->qp);
		CHECK(a->qp->direct && b->qp->direct == was);
		for (i = 0; i < 100 && b->qp->direct == was; i++) {
			direct_receive(from == a ? b : a);
			CHECK_EQ(vrnic_post_send(&from->qp->qp, &wr, &bad), 0);
			carry(from);
			while (vrnic_poll_cq(&a->cq->cq, 1, &(struct ibv_wc){ 0 }) ||
			       vrnic_poll_cq(&b->cq->cq, 1, &(struct ibv_wc){ 0 }))
				;
		}
		CHECK(i > 1 && b->qp->direct != was);
		direct_open(a, true);
		direct_open(b, true);
		direct_receive(b);
		CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
		CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES), 1);
		CHECK_EQ(vrnic_poll_cq(&b->cq->cq, 1, &(struct ibv_wc){ 0 }), 1);
		direct_open(a, false);
		direct_open(b, false);
	}
	direct_finish();
}

static uint32_t shown;

/* The first receive has been shown to the sender, who has waited for it. */
static void send_at_once(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;

	if (shown++ == 1)
		CHECK_EQ(vrnic_post_send(&direct_ends[0].qp->qp, &wr, &bad), 0);
}

/*
 * A thread waits for an event of a CQ that it has armed, while another one asks for a pair: what the
 * peer, who has it already, sends at once raises that event.
 */
void test_direct_armed(void)
{
	struct end *a = &direct_ends[0], *b = &direct_ends[1];

	direct_begin(1, 0);
	direct_receive(b);
	direct_receive(b);
	new_pair();
	vrnic_direct_try(a->qp);
	direct_open(a, true);
	vrnic_req_notify_cq(&b->cq->cq, 0);
	CHECK_EQ(vrnic_poll_cq(&b->cq->cq, 1, &(struct ibv_wc){ 0 }), 0);
	shown = 0;
	fake_looked = send_at_once;
	vrnic_direct_try(b->qp);
	fake_looked = NULL;
	CHECK(b->qp->direct);
	CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES), 1);
	CHECK_EQ(atomic_load(direct_word(a, VRNIC_DIR_NOTIFY)), 1);
	CHECK(fake_rang(a->q));
	direct_finish();
}

/* The last message by a pair, which its sender was about to send when the connection ended. */
static void send_last(void)
{
	send(&direct_ends[1]);
	atomic_store(direct_ends[1].qp->direct->out.open, 0);
}

/* What comes while the next pair is asked for is in the one before, which is polled first. */
void test_direct_late(void)
{
	struct vrnic_direct *was;

	direct_begin(0, 0);
	direct_pair();
	direct_receive(&direct_ends[0]);
	direct_open(&direct_ends[1], true);
	was = direct_ends[0].qp->direct;
	fake_pair_free();
	new_pair();
	fake_asked = send_last;
	vrnic_direct_try(direct_ends[0].qp);
	fake_asked = NULL;
	CHECK(direct_ends[0].qp->direct == was && vrnic_pair_stamped(&was->in, was->next));
	CHECK_EQ(poll(&direct_ends[0], 1), 1);
	CHECK_EQ(direct_ends[0].received, 1);
	direct_finish();
}

/* Who posts between ibv_start_poll and ibv_end_poll, which have a lock of the CQ's, asks later. */
void test_direct_polling(void)
{
	struct end *a = &direct_ends[0];
	struct ibv_send_wr *bad;

	direct_begin(1, 0);
	CHECK_EQ(a->qp->direct_in, 1);
	pthread_mutex_lock(&a->cq->lock);
	send(a);
	pthread_mutex_unlock(&a->cq->lock);
	CHECK(a->sent == 1 && a->qp->direct_in > 0);
	direct_pair();
	direct_receive(&direct_ends[1]);
	carry(a);
	direct_open(a, true);
	direct_receive(&direct_ends[1]);
	CHECK_EQ(vrnic_post_send(&a->qp->qp, &(struct ibv_send_wr){ .opcode = IBV_WR_SEND }, &bad), 0);
	CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES), 1);
	direct_finish();
}

/* A program that does nothing but receive asks, too; before it is connected it does not. */
void test_direct_receiver(void)
{
	struct end *b = &direct_ends[1];

	direct_begin(1, 0);
	fake_state(b->q, IBV_QPS_INIT);
	direct_receive(b);
	CHECK_EQ(b->qp->direct_every, 1);
	fake_state(b->q, IBV_QPS_RTS);
	direct_receive(b);
	CHECK(b->qp->direct_every == 2 && b->qp->direct_in == 2);
	direct_receive(b);
	CHECK(b->qp->direct_every == 2 && b->qp->direct_in == 1);
	vrnic_direct_begin(b->qp); /* a new connection */
	CHECK(b->qp->direct_every == 2 && b->qp->direct_in == 2);
	direct_finish();
}

/* In the child of a fork nothing of a pair is there, and what is outstanding completes. */
void test_direct_forked(void)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct end *a = &direct_ends[0], *b = &direct_ends[1];
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int i;

	direct_begin(3, 0);
	direct_pair();
	direct_open(a, true);
	direct_receive(b);
	direct_receive(b);
	vrnic_req_notify_cq(&a->cq->cq, 0);
	CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
	CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES), 1);
	for (i = 0; i < 2; i++)
		CHECK_EQ(mprotect(direct_ends[i].qp->direct->map.mem, direct_ends[i].qp->direct->map.len, PROT_NONE), 0);
	unmapped = true;
	atomic_store(&session.dead, true);
	wr.wr_id = 2;
	CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
	direct_receive(b);
	for (i = 1; i <= 2; i++) {
		CHECK_EQ(vrnic_poll_cq(&a->cq->cq, 1, &wc), 1);
		CHECK(wc.wr_id == (uint64_t)i && wc.status == (i == 1 ? 0 : IBV_WC_WR_FLUSH_ERR));
	}
	for (i = 0; i < 3; i++) {
		CHECK_EQ(vrnic_poll_cq(&b->cq->cq, 1, &wc), 1);
		CHECK(wc.wr_id == (uint64_t)i && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	direct_finish();
}

/*
 * A daemon that dies between the end of a request and its completion: what was done directly behind
 * it is flushed with it, and in order.
 */
void test_direct_unfinished(void)
{
	struct end *a = &direct_ends[0], *b = &direct_ends[1];
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc[4];
	int i;

	direct_begin(5, 0xfffffffeu);
	sge = (struct ibv_sge){ (uintptr_t)a->out[0], LONG, a->out_key };
	direct_pair();
	direct_open(a, true);
	direct_receive(b);
	for (i = 0; i < 4; i++) {
		wr.wr_id = i;
		wr.num_sge = i % 3 == 0; /* the first and the last go by the ring */
		CHECK_EQ(vrnic_post_send(&a->qp->qp, &wr, &bad), 0);
		if (i)
			continue;
		CHECK(fake_take_send(a->q, &a->w));
		fake_retire(a->q, 1);
		direct_receive(b);
	}
	CHECK_EQ(direct_counted(a, VRNIC_DIR_MESSAGES), 2);
	CHECK_EQ(vrnic_poll_cq(&a->cq->cq, 4, wc), 0);
	atomic_store(&session.dead, true);
	for (i = 0; i < 4; i++) {
		CHECK_EQ(vrnic_poll_cq(&a->cq->cq, 1, wc), 1);
		CHECK(wc->wr_id == (uint64_t)i && wc->status == IBV_WC_WR_FLUSH_ERR);
	}
	direct_finish();
}

/*
 * A peer that writes anything anywhere direct_ends the connection, and not more: nothing is touched that
 * is not the library's, no receive completes twice, and the session goes on.
 */
void test_direct_hostile(void)
{
	static const uint32_t edges[] = { 0, 1, 7, 8, 111, 112, 113, 8192, SLAB - 1, SLAB, SLAB + 1,
					 1u << 31, -1u, -8u };
	uint32_t round, step, ended = 0;

	for (round = 0; round < 1500; round++) {
		struct end *a = &direct_ends[0], *b = &direct_ends[1];
		uint64_t seen = 0;

		direct_begin(round, round % 2 ? 0xfffffff0u : 0);
		direct_pair();
		direct_open(a, true);
		direct_open(b, true);
		for (step = 0; step < 60; step++) {
			struct ibv_wc wc[4];
			uint32_t off = direct_rnd(4) ? direct_rnd(dir_len() - SLAB) & ~3u : direct_rnd(34) * 4;
			uint32_t v = direct_rnd(2) ? edges[direct_rnd(sizeof(edges) / sizeof(edges[0]))] : b->recvs + direct_rnd(3);
			bool was;
			int i, n;

			if (!direct_rnd(3))
				atomic_store(direct_word(direct_rnd(2) ? a : b, off), v);
			direct_receive(b);
			send(a);
			if (direct_rnd(2))
				carry(a);
			was = b->qp->direct->bad;
			n = vrnic_poll_cq(&b->cq->cq, 1 + direct_rnd(4), wc);
			if (!was && b->qp->direct->bad) { /* and the daemon has been told */
				ended++;
				CHECK_EQ(load_acquire(direct_word(a, VRNIC_DIR_SPOILED)), 1);
				CHECK(atomic_load(&session.bells[b->qp->bell >> 5]) >> (b->qp->bell & 31) & 1);
			}
			for (i = 0; i < n; i++) {
				if (!(wc[i].opcode & IBV_WC_RECV))
					continue;
				CHECK(wc[i].wr_id < b->recvs && !(seen >> wc[i].wr_id & 1));
				seen |= 1ull << wc[i].wr_id;
			}
			vrnic_poll_cq(&a->cq->cq, 4, wc);
			CHECK(!vrnic_dead(&session) && !corrupt);
		}
		if (b->qp->direct->bad) { /* all receives have completed, or do at the next look */
			struct ibv_wc wc[DEPTH];

			while (vrnic_poll_cq(&b->cq->cq, DEPTH, wc))
				;
			CHECK_EQ(b->qp->rq.nfree, DEPTH);
		}
		direct_finish();
	}
	CHECK(ended > 10);
}
