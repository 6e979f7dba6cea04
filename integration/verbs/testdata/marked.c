/*
 * One of two programs that send each other numbered messages for as long as they can, and say in a
 * file that they share with the test what they have sent and received. With $LENT they also write to
 * each other's memory, with immediate data, too, read it and add to it; with $ASLEEP the second
 * sleeps now and then until there is an event, in its library or, if that is "poll", in poll:
 *
 *   marked a|b
 *
 * $RECORD names the file. $MARK, as in "5 17 9", has the program get a signal, 9, when it passes a
 * mark, 5, for the 17th time; verbs/pair/mark.h has marks. Whoever is left when the other has died,
 * or the daemon, wants all that is outstanding to complete or to be flushed, in order.
 */
#include "vt.h"

#include <fcntl.h>
#include <signal.h>

#define DEPTH 16
#define LONGEST 8192 /* that goes directly */
#define MESSAGES 3000
#define FAR_LONG (300u << 10) /* is copied in three parts */
#define FAR_SHORT 64
#define FAR (1ull << 63) /* of the wr_id of what goes to the peer's memory */
#define NOTHING (1ull << 62) /* of that of what goes by the daemon, and does nothing */
#define OF_WRITE (1u << 31) /* of immediate data that comes behind a Write */

static struct record {
	struct {
		volatile uint64_t posting, completed, received, marks, over;
		volatile uint64_t reaching, reached; /* of what goes to the peer's memory */
		volatile uint64_t taking, taken;     /* deregistered what the peer writes to */
		volatile uint64_t addr, key;
	} of[2];
	volatile uint64_t port;
	volatile uint64_t take; /* the second is to */
	volatile uint64_t quit; /* the second is to end the connection; 2: by an error */
} *rec;

/* What the peer reaches. Each of its Writes has but one number, which grows. */
static struct far {
	uint64_t count, told, words[FAR_SHORT / 8], many[FAR_LONG / 8];
} *mine, *theirs; /* of theirs what is written, and has been read, and counts */
static struct ibv_mr *mine_mr, *theirs_mr;

static int me, mark, signal_no;
static uint64_t in_marks;
static struct vt_pair pair;
static struct vt_side *s;
static uint64_t posted_recvs, received, flushed_recvs, completed, flushed_sends,
	flushed_fars;
static bool ended, daemon_gone, asleep, polls;
static bool detoured; /* one has not completed */
static uint32_t state;

/* The library calls it at each step: it is built with -DVRNIC_MARKS. */
void vrnic_mark(int step);
void vrnic_mark(int step)
{
	rec->of[me].marks |= 1ull << step;
	if (step == mark && !--in_marks)
		raise(signal_no);
}

static uint32_t rnd(uint32_t n)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % n;
}

static uint32_t length_of(uint64_t n)
{
	static const uint32_t lengths[] = { 0, 8, 64, 112, 113, 700, 4096, LONGEST };

	return lengths[(uint32_t)n * 2654435761u >> 27 & 7];
}

static void receive(void)
{
	while (!ended && posted_recvs - received - flushed_recvs < DEPTH) {
		vt_recv(s, posted_recvs, DEPTH * LONGEST + posted_recvs % DEPTH * LONGEST, LONGEST);
		posted_recvs++;
	}
}

static uint64_t outstanding(void)
{
	return rec->of[me].posting - completed - flushed_sends + rec->of[me].reaching -
	       rec->of[me].reached - flushed_fars;
}

/* How many of the first n add to the peer's count. */
static uint64_t adds(uint64_t n)
{
	return (n + 2) / 4;
}

/* Of four requests the second adds, and the third reads what the first has written. */
static void reach(void)
{
	uint64_t m = rec->of[me].reaching, peer = rec->of[!me].addr;
	struct far *f = &theirs[m % DEPTH];
	struct ibv_sge sge = { (uintptr_t)f->words, FAR_SHORT, theirs_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = FAR | m, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	uint32_t i;

	wr.wr.rdma.remote_addr = peer + offsetof(struct far, words);
	wr.wr.rdma.rkey = rec->of[!me].key;
	for (i = 0; i < FAR_SHORT / 8; i++)
		f->words[i] = m + 1;
	if (m % 4 == 1) {
		sge = (struct ibv_sge){ (uintptr_t)&f->count, 8, theirs_mr->lkey };
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = peer + offsetof(struct far, count);
		wr.wr.atomic.rkey = rec->of[!me].key;
		wr.wr.atomic.compare_add = 1;
	} else if (m % 4 == 2) {
		wr.opcode = IBV_WR_RDMA_READ;
	} else if (m % 32 == 3) {
		for (i = 0; i < FAR_LONG / 8; i++)
			f->many[i] = m + 1;
		sge = (struct ibv_sge){ (uintptr_t)f->many, FAR_LONG, theirs_mr->lkey };
		wr.wr.rdma.remote_addr = peer + offsetof(struct far, many);
	}
	rec->of[me].reaching = m + 1;
	CHECK_EQ(ibv_post_send(s->qp, &wr, &bad), 0);
}

static void reached_one(uint64_t m)
{
	const struct far *f = &theirs[m % DEPTH];
	int i;

	CHECK_EQ(flushed_fars, 0);
	CHECK_EQ(m, rec->of[me].reached);
	if (m % 4 == 1) /* nobody else does, and each does once */
		CHECK_EQ(f->count, adds(m));
	if (m % 4 == 2)
		for (i = 0; i < FAR_SHORT / 8; i++)
			CHECK(f->words[i] >= m - 1 && f->words[i] <= rec->of[me].reaching);
	rec->of[me].reached = m + 1;
}

/* Each word of p is from the last Write whose last word is there, or from one that has not ended. */
static uint64_t look_at(const uint64_t *p, uint32_t n, uint64_t most)
{
	uint64_t last = p[n / 8 - 1];
	uint32_t i;

	for (i = 0; i < n / 8; i++)
		CHECK(p[i] >= last && p[i] <= most);
	return last;
}

/* What was complete for the peer is here. */
static void look_at_mine(void)
{
	uint64_t done = rec->of[!me].reached, count, small, large, most;

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	count = mine->count;
	small = look_at(mine->words, FAR_SHORT, UINT64_MAX);
	large = look_at(mine->many, FAR_LONG, UINT64_MAX);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	most = rec->of[!me].reaching;
	CHECK(count >= adds(done) && count <= adds(most));
	/* the short Write before a request is three before it at most, the long one 31 */
	CHECK((!done || small + 3 >= done) && small <= most);
	CHECK((done < 4 || large + 32 > done) && large <= most);
}

static void lend(void)
{
	CHECK(mine = aligned_alloc(4096, (sizeof(*mine) + 4095) & ~4095ul));
	CHECK(theirs = aligned_alloc(4096, (DEPTH * sizeof(*mine) + 4095) & ~4095ul));
	memset(mine, 0, sizeof(*mine));
	CHECK(mine_mr = ibv_reg_mr(s->pd, mine, sizeof(*mine), IBV_ACCESS_LOCAL_WRITE |
				   IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC));
	CHECK(theirs_mr = ibv_reg_mr(s->pd, theirs, DEPTH * sizeof(*mine), IBV_ACCESS_LOCAL_WRITE));
	rec->of[me].addr = (uintptr_t)mine;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	rec->of[me].key = mine_mr->rkey;
}

static void take_back(void)
{
	rec->of[me].taking = 1;
	CHECK_EQ(ibv_dereg_mr(mine_mr), 0);
	rec->of[me].taken = 1;
}

/* Message n has no octets, but immediate data, behind a Write if the peer's memory is to be had. */
static void tell(uint64_t n)
{
	struct far *f = mine ? &theirs[n % DEPTH] : NULL;
	struct ibv_sge sge = { (uintptr_t)f + offsetof(struct far, told), 8, f ? theirs_mr->lkey : 0 };
	struct ibv_send_wr wr = { .wr_id = n, .sg_list = &sge, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(n) }, *bad;

	if (f && rec->of[!me].key) {
		f->told = n + 1;
		wr.imm_data = htonl(n | OF_WRITE);
		wr.num_sge = 1;
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.wr.rdma.remote_addr = rec->of[!me].addr + offsetof(struct far, told);
		wr.wr.rdma.rkey = rec->of[!me].key;
	}
	CHECK_EQ(ibv_post_send(s->qp, &wr, &bad), 0);
}

/* Such a message of the peer's has come. The Write of which it tells is here, or a later one. */
static void told_of(const struct ibv_wc *wc)
{
	uint32_t imm = ntohl(wc->imm_data);

	CHECK_EQ(wc->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK_EQ(imm & ~OF_WRITE, received);
	if (imm & OF_WRITE)
		CHECK(mine->told > received && mine->told <= rec->of[!me].posting);
}

/* What is behind a Write of no octets goes by the daemon, for a while. */
static void detour(void)
{
	struct ibv_send_wr wr = { .wr_id = NOTHING, .opcode = IBV_WR_RDMA_WRITE }, *bad;

	detoured = true;
	CHECK_EQ(ibv_post_send(s->qp, &wr, &bad), 0);
}

static void send_one(void)
{
	uint64_t n = rec->of[me].posting;
	size_t at = n % DEPTH * LONGEST;

	if (ended || n == MESSAGES || outstanding() == DEPTH)
		return;
	if (mine && rec->of[!me].key && rnd(2)) {
		reach();
		return;
	}
	if (n % 8 == 5 && !detoured)
		detour();
	vt_fill(s->buf + at, length_of(n), n * 2 + me);
	rec->of[me].posting = n + 1;
	if (length_of(n))
		CHECK_EQ(vt_try_send(s, n, IBV_WR_SEND, at, length_of(n), IBV_SEND_SIGNALED, 0, 0), 0);
	else
		tell(n);
}

static void completed_one(const struct ibv_wc *wc)
{
	if (wc->status == IBV_WC_SUCCESS && wc->opcode & IBV_WC_RECV) {
		CHECK_EQ(flushed_recvs, 0);
		CHECK_EQ(wc->wr_id, received);
		CHECK_EQ(wc->byte_len, length_of(received));
		vt_verify(s->buf + (DEPTH + received % DEPTH) * LONGEST, wc->byte_len, received * 2 + !me);
		if (!wc->byte_len)
			told_of(wc);
		rec->of[me].received = ++received;
	} else if (wc->status == IBV_WC_SUCCESS && wc->wr_id & NOTHING) {
		detoured = false;
	} else if (wc->status == IBV_WC_SUCCESS && wc->wr_id & FAR) {
		reached_one(wc->wr_id & ~FAR);
	} else if (wc->status == IBV_WC_SUCCESS) {
		CHECK_EQ(flushed_sends, 0);
		CHECK_EQ(wc->wr_id, completed);
		rec->of[me].completed = ++completed;
	} else {
		/* of requests the first may say what has ended the connection */
		ended = true;
		if (wc->wr_id & NOTHING)
			return;
		if (wc->opcode & IBV_WC_RECV) {
			CHECK_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
			CHECK_EQ(wc->wr_id, received + flushed_recvs++);
		} else if (wc->wr_id & FAR) {
			CHECK_EQ(wc->wr_id & ~FAR, rec->of[me].reached + flushed_fars++);
		} else {
			CHECK_EQ(wc->wr_id, completed + flushed_sends++);
		}
	}
}

static int poll(void)
{
	struct ibv_wc wc[8];
	int i, n = ibv_poll_cq(s->rcq, 1 + rnd(8), wc);

	CHECK(n >= 0);
	for (i = 0; i < n; i++)
		completed_one(&wc[i]);
	return n;
}

static void look_for_end(int ms)
{
	struct rdma_cm_event *ev;

	if (daemon_gone || !vt_readable(s->ch->fd, ms))
		return;
	ended = true;
	if (rdma_get_cm_event(s->ch, &ev)) {
		daemon_gone = true;
		return;
	}
	CHECK_EQ(ev->event, RDMA_CM_EVENT_DISCONNECTED);
	rdma_ack_cm_event(ev);
}

/* The first has messages left, or it ends the connection: there is an event for who has receives. */
static void wait_for_event(void)
{
	struct ibv_cq *cq;
	void *ctx;

	CHECK_EQ(ibv_req_notify_cq(s->rcq, 0), 0);
	if (poll() || ended || received + flushed_recvs == posted_recvs)
		return;
	if (polls)
		vt_readable(s->cc->fd, -1);
	if (ibv_get_cq_event(s->cc, &cq, &ctx)) {
		ended = true;
		return;
	}
	CHECK(cq == s->rcq);
	ibv_ack_cq_events(cq, 1);
}

static void run(void)
{
	struct vt_opts o = { .send_wr = 2 * DEPTH, .recv_wr = DEPTH, .one_cq = true, .channel = true,
			     .len = 2 * DEPTH * LONGEST };
	uint64_t late;
	unsigned int i;

	s = me ? &pair.b : &pair.a;
	vt_meet(&pair, s, me, &o, &rec->port);
	if (getenv("LENT"))
		lend();
	asleep = me && getenv("ASLEEP");
	if (asleep && !strcmp(getenv("ASLEEP"), "poll")) {
		polls = true;
		CHECK_EQ(fcntl(s->cc->fd, F_SETFL, fcntl(s->cc->fd, F_GETFL) | O_NONBLOCK), 0);
	}
	for (i = 1; !ended; i++) {
		receive();
		if (rnd(3))
			send_one();
		if (rnd(2))
			poll();
		if (asleep && !rnd(4))
			wait_for_event();
		if (i % 256 == 0)
			look_for_end(0);
		if (me && rec->take && !rec->of[me].taking)
			take_back();
		if (me && rec->quit > 1) {
			struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

			CHECK_EQ(ibv_modify_qp(s->qp, &error, IBV_QP_STATE), 0);
			break;
		}
		if (me ? rec->quit : completed == MESSAGES) {
			if (rdma_disconnect(s->id) && errno != EIO) /* the daemon has died */
				FAIL("rdma_disconnect: %s", strerror(errno));
			break;
		}
	}
	late = vt_now_ms() + VT_PATIENCE;
	while (received + flushed_recvs < posted_recvs ||
	       outstanding()) {
		poll();
		if (vt_now_ms() > late)
			FAIL("%lu receives: %lu received, %lu flushed; %lu sends: %lu completed, %lu flushed",
			     posted_recvs, received, flushed_recvs, rec->of[me].posting, completed,
			     flushed_sends);
	}
	if (mine)
		look_at_mine();
	if (me && rec->quit)
		rdma_destroy_qp(s->id);
	rec->of[me].over = 1;
}

int main(int argc, char **argv)
{
	const char *text = getenv("MARK");

	CHECK(argc == 2);
	me = argv[1][0] == 'b';
	state = getpid();
	rec = vt_record(sizeof(*rec));
	if (text)
		CHECK(sscanf(text, "%d %lu %d", &mark, &in_marks, &signal_no) == 3);
	run();
	return 0;
}
