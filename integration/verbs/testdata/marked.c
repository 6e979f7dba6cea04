/*
 * One of two programs that send each other numbered messages for as long as they can, and say in a
 * file that they share with the test what they have sent and received:
 *
 *   marked a|b
 *
 * $RECORD names the file. $MARK, as in "5 17 9", has the program get a signal, 9, when it passes a
 * mark, 5, for the 17th time; verbs/pair/mark.h has marks. Whoever is left when the other has died,
 * or the daemon, wants all that is outstanding to complete or to be flushed, in order.
 */
#include "vt.h"

#include <signal.h>

#define DEPTH 16
#define LONGEST 8192 /* that goes directly; what has immediate data goes by the daemon */
#define MESSAGES 3000

static struct record {
	struct {
		volatile uint64_t posting, completed, received, marks, over;
	} of[2];
	volatile uint64_t port;
} *rec;

static int me, mark, signal_no;
static uint64_t in_marks;
static struct vt_pair pair;
static struct vt_side *s;
static uint64_t posted_recvs, received, flushed_recvs, completed, flushed_sends;
static bool ended, daemon_gone;
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

static void send_one(void)
{
	uint64_t n = rec->of[me].posting;
	size_t at = n % DEPTH * LONGEST;

	if (ended || n == MESSAGES || n - completed - flushed_sends == DEPTH)
		return;
	vt_fill(s->buf + at, length_of(n), n * 2 + me);
	rec->of[me].posting = n + 1;
	CHECK_EQ(vt_try_send(s, n, length_of(n) ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM, at, length_of(n),
			     IBV_SEND_SIGNALED, 0, 0), 0);
}

static void completed_one(const struct ibv_wc *wc)
{
	if (wc->status == IBV_WC_SUCCESS && wc->opcode & IBV_WC_RECV) {
		CHECK_EQ(flushed_recvs, 0);
		CHECK_EQ(wc->wr_id, received);
		CHECK_EQ(wc->byte_len, length_of(received));
		vt_verify(s->buf + (DEPTH + received % DEPTH) * LONGEST, wc->byte_len, received * 2 + !me);
		rec->of[me].received = ++received;
	} else if (wc->status == IBV_WC_SUCCESS) {
		CHECK_EQ(flushed_sends, 0);
		CHECK_EQ(wc->wr_id, completed);
		rec->of[me].completed = ++completed;
	} else {
		/* of requests the first may say what has ended the connection */
		ended = true;
		if (wc->opcode & IBV_WC_RECV) {
			CHECK_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
			CHECK_EQ(wc->wr_id, received + flushed_recvs++);
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

static void run(void)
{
	struct vt_opts o = { .send_wr = DEPTH, .recv_wr = DEPTH, .one_cq = true,
			     .len = 2 * DEPTH * LONGEST };
	uint64_t late;
	unsigned int i;

	s = me ? &pair.b : &pair.a;
	vt_meet(&pair, s, me, &o, &rec->port);
	for (i = 1; !ended; i++) {
		receive();
		if (rnd(3))
			send_one();
		if (rnd(2))
			poll();
		if (i % 256 == 0)
			look_for_end(0);
		if (me == 0 && completed == MESSAGES) {
			CHECK_EQ(rdma_disconnect(s->id), 0);
			break;
		}
	}
	late = vt_now_ms() + VT_PATIENCE;
	while (received + flushed_recvs < posted_recvs ||
	       completed + flushed_sends < rec->of[me].posting) {
		poll();
		if (vt_now_ms() > late)
			FAIL("%lu receives: %lu received, %lu flushed; %lu sends: %lu completed, %lu flushed",
			     posted_recvs, received, flushed_recvs, rec->of[me].posting, completed,
			     flushed_sends);
	}
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
