/*
 * A thousand queue pairs that complete on one CQ at either end, which both are in this process. All
 * have a direct path: the test looks.
 */
#include "vt.h"

#include <pthread.h>
#include <signal.h>

#define DEPTH 4
#define OCTETS 16
#define CQE 32768 /* all that the queues can complete */
#define MOST 1000

/* One end of a connection, and how many it has posted, sent, received and had completed. */
struct end {
	struct rdma_cm_id *id;
	uint32_t posted, sent, got, over;
};

/* One of the two sides. */
static struct side {
	struct rdma_event_channel *ch;
	struct ibv_pd *pd;
	struct ibv_comp_channel *cc;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint64_t buf[MOST][2 * DEPTH][2]; /* what comes, and what is sent: the QP, and the message's number */
	struct end ends[MOST];
} sides[2];

static struct rdma_cm_id *listener;
static uint32_t qps, state;
static bool ended[MOST]; /* the connection has had an error */
static volatile sig_atomic_t told;

static void tell(int sig)
{
	(void)sig;
	told = 1;
}

static uint32_t rnd(uint32_t n)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % n;
}

static void make_side(struct side *s, struct ibv_context *ctx)
{
	CHECK(s->pd = ibv_alloc_pd(ctx));
	CHECK(s->cc = ibv_create_comp_channel(ctx));
	CHECK(s->cq = ibv_create_cq(ctx, CQE, NULL, s->cc, 0));
	CHECK(s->mr = ibv_reg_mr(s->pd, s->buf, sizeof(s->buf), IBV_ACCESS_LOCAL_WRITE));
}

static void make_qp(struct side *s, struct rdma_cm_id *id, uint32_t i)
{
	struct ibv_qp_init_attr attr = { .send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
					 .cap = { DEPTH, DEPTH, 1, 1, OCTETS }, .sq_sig_all = 1 };

	memset(&s->ends[i], 0, sizeof(s->ends[i]));
	s->ends[i].id = id;
	CHECK_EQ(rdma_create_qp(id, s->pd, &attr), 0);
}

static void connect_one(uint32_t i)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct sockaddr_storage to, from;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;

	CHECK_EQ(rdma_create_id(sides[0].ch, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_resolve_addr(id, vt_addr(&vt_client, 0, &from),
				   vt_addr(&vt_server, rdma_get_src_port(listener), &to), 5000), 0);
	vt_expect(sides[0].ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK_EQ(rdma_resolve_route(id, 5000), 0);
	vt_expect(sides[0].ch, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	if (!sides[0].pd)
		make_side(&sides[0], id->verbs);
	make_qp(&sides[0], id, i);
	CHECK_EQ(rdma_connect(id, &param), 0);
	ev = vt_event(sides[1].ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!sides[1].pd)
		make_side(&sides[1], ev->id->verbs);
	make_qp(&sides[1], ev->id, i);
	CHECK_EQ(rdma_accept(ev->id, &param), 0);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	vt_expect(sides[0].ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	vt_expect(sides[1].ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void open_all(uint32_t n)
{
	struct sockaddr_storage at;
	uint32_t i;

	qps = n;
	state = 1;
	for (i = 0; i < 2; i++)
		CHECK(sides[i].ch = rdma_create_event_channel());
	CHECK_EQ(rdma_create_id(sides[1].ch, &listener, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_bind_addr(listener, vt_addr(&vt_server, 0, &at)), 0);
	CHECK_EQ(rdma_listen(listener, 8), 0);
	for (i = 0; i < n; i++)
		connect_one(i);
}

static void close_all(void)
{
	uint32_t i, k;

	for (k = 0; k < 2; k++)
		for (i = 0; i < qps; i++) {
			rdma_destroy_qp(sides[k].ends[i].id);
			CHECK_EQ(rdma_destroy_id(sides[k].ends[i].id), 0);
		}
	CHECK_EQ(rdma_destroy_id(listener), 0);
	for (k = 0; k < 2; k++) {
		CHECK_EQ(ibv_dereg_mr(sides[k].mr), 0);
		CHECK_EQ(ibv_destroy_cq(sides[k].cq), 0);
		CHECK_EQ(ibv_destroy_comp_channel(sides[k].cc), 0);
		CHECK_EQ(ibv_dealloc_pd(sides[k].pd), 0);
		rdma_destroy_event_channel(sides[k].ch);
	}
	memset(sides, 0, sizeof(sides));
	memset(ended, 0, sizeof(ended));
}

/* The octets of message or receive n of QP i. */
static uint64_t *octets(struct side *s, uint32_t i, uint32_t n, bool sent)
{
	return s->buf[i][n % DEPTH + (sent ? DEPTH : 0)];
}

static void post(uint32_t k, uint32_t i)
{
	struct end *e = &sides[k].ends[i];
	struct ibv_sge sge = { (uintptr_t)octets(&sides[k], i, e->posted, false), OCTETS, sides[k].mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)i << 32 | e->posted, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	if (ended[i] || e->posted - e->got == DEPTH)
		return;
	CHECK_EQ(ibv_post_recv(e->id->qp, &wr, &bad), 0);
	e->posted++;
}

/* Sends the next message, if there is a receive for it. */
static void send_one(uint32_t k, uint32_t i)
{
	struct end *e = &sides[k].ends[i];
	uint64_t *b = octets(&sides[k], i, e->sent, true);
	struct ibv_sge sge = { (uintptr_t)b, OCTETS, sides[k].mr->lkey };
	struct ibv_send_wr wr = { .wr_id = (uint64_t)i << 32 | e->sent, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = rnd(2) ? IBV_SEND_INLINE : 0 }, *bad;

	if (ended[i] || e->sent - e->over == DEPTH || e->sent == sides[!k].ends[i].posted)
		return;
	b[0] = i;
	b[1] = e->sent;
	CHECK_EQ(ibv_post_send(e->id->qp, &wr, &bad), 0);
	e->sent++;
}

/* Polls up to n: each is the next of its kind, whole, and comes once. */
static int poll_some(uint32_t k, int n)
{
	struct ibv_wc wc[8];
	int j, got = ibv_poll_cq(sides[k].cq, n, wc);

	CHECK(got >= 0 && got <= n);
	for (j = 0; j < got; j++) {
		uint32_t i = wc[j].wr_id >> 32, id = (uint32_t)wc[j].wr_id;
		struct end *e = &sides[k].ends[i];
		const uint64_t *b = octets(&sides[k], i, id, false);

		CHECK(i < qps);
		CHECK_EQ(wc[j].qp_num, e->id->qp->qp_num);
		CHECK(!wc[j].status || (ended[i] && wc[j].status == IBV_WC_WR_FLUSH_ERR));
		if (wc[j].opcode == IBV_WC_RECV) {
			CHECK_EQ(id, e->got);
			if (!wc[j].status) {
				CHECK(b[0] == i && b[1] == id);
				CHECK(sides[!k].ends[i].sent > e->got);
			}
			e->got++;
		} else {
			CHECK_EQ(id, e->over);
			e->over++;
		}
	}
	return got;
}

/* All has come, but what the end that pauses has sent. */
static bool is_drained(const struct end *pauses)
{
	uint32_t i, k;

	for (k = 0; k < 2; k++)
		for (i = 0; i < qps; i++) {
			const struct end *e = &sides[k].ends[i], *peer = &sides[!k].ends[i];

			if (e != pauses && e->over != e->sent)
				return false;
			if (peer != pauses && e->got != (ended[i] ? e->posted : peer->sent))
				return false;
		}
	return true;
}

static void drain_but(const struct end *pauses)
{
	uint64_t until = vt_now_ms() + VT_PATIENCE;

	while (!is_drained(pauses)) {
		CHECK(vt_now_ms() < until);
		poll_some(0, 8);
		poll_some(1, 8);
	}
}

static void drain(void)
{
	drain_but(NULL);
	CHECK(!poll_some(0, 8) && !poll_some(1, 8));
}

static void step(void)
{
	uint32_t k = rnd(2), i = rnd(qps);

	if (!rnd(4)) {
		poll_some(k, 1 + rnd(7));
		return;
	}
	post(!k, i);
	send_one(k, i);
}

/* Both ends ask for the direct path with some of these. */
static void warm_up(void)
{
	uint32_t i, k, n;

	for (n = 0; n < 6; n++) {
		for (k = 0; k < 2; k++)
			for (i = 0; i < qps; i++) {
				post(!k, i);
				send_one(k, i);
			}
		drain();
	}
}

/* Until the test has seen that all are direct. */
static void thousand(void)
{
	uint32_t n;

	signal(SIGUSR1, tell);
	open_all(MOST);
	warm_up();
	puts("warm");
	fflush(stdout);
	for (n = 0; n < 100000 || !told; n++)
		step();
	drain();
	close_all();
}

static void move_to(struct end *e, enum ibv_qp_state to)
{
	struct ibv_qp_attr attr = { .qp_state = to };

	CHECK_EQ(ibv_modify_qp(e->id->qp, &attr, IBV_QP_STATE), 0);
}

/* Some of them come to an end amid the traffic, and all that is posted there is flushed. */
static void errors(void)
{
	uint32_t n, i;

	open_all(60);
	warm_up();
	for (n = 0; n < 20000; n++) {
		step();
		if (n % 500 == 499) {
			i = n / 500;
			move_to(&sides[n % 2].ends[i], IBV_QPS_ERR);
			ended[i] = true;
		}
	}
	drain();
	close_all();
}

/* What was begun before SQD has ended. */
static void wait_quiet(struct end *e)
{
	uint64_t until = vt_now_ms() + VT_PATIENCE;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	do {
		CHECK(vt_now_ms() < until);
		poll_some(0, 8);
		poll_some(1, 8);
		CHECK_EQ(ibv_query_qp(e->id->qp, &attr, IBV_QP_STATE, &init), 0);
		CHECK_EQ(attr.qp_state, IBV_QPS_SQD);
	} while (attr.sq_draining);
}

/* Each of some stops sending for a while, and takes what comes meanwhile. RoCE has that. */
static void pauses(void)
{
	struct end *e;
	uint32_t n, k, i;
	int m;

	open_all(60);
	warm_up();
	for (n = 0; n < 120; n++) {
		k = n % 2;
		i = n / 2;
		for (m = 0; m < 50; m++)
			step();
		e = &sides[k].ends[i];
		move_to(e, IBV_QPS_SQD);
		for (m = 0; m < 50; m++)
			step();
		drain_but(e);
		post(k, i);
		send_one(!k, i);
		post(!k, i);
		send_one(k, i);
		drain_but(e);
		CHECK(e->over != e->sent);
		wait_quiet(e);
		move_to(e, IBV_QPS_RTS);
		drain();
	}
	close_all();
}

static pthread_barrier_t turn;

static void *sends(void *arg)
{
	uint32_t n;

	for (n = 0; n < 300; n++) {
		pthread_barrier_wait(&turn);
		send_one(0, n * 7 % qps);
		pthread_barrier_wait(&turn);
	}
	return arg;
}

/* Who waits for an event has one for each message, of whichever QP. */
static void events(void)
{
	pthread_t thread;
	struct ibv_cq *cq;
	void *context;
	uint32_t n;

	open_all(60);
	warm_up();
	CHECK_EQ(pthread_barrier_init(&turn, NULL, 2), 0);
	CHECK_EQ(pthread_create(&thread, NULL, sends, NULL), 0);
	for (n = 0; n < 300; n++) {
		post(1, n * 7 % qps);
		CHECK_EQ(ibv_req_notify_cq(sides[1].cq, 0), 0);
		CHECK_EQ(poll_some(1, 8), 0);
		pthread_barrier_wait(&turn);
		if (n % 2) /* in the library, or by the descriptor */
			CHECK(vt_readable(sides[1].cc->fd, VT_PATIENCE));
		CHECK_EQ(ibv_get_cq_event(sides[1].cc, &cq, &context), 0);
		ibv_ack_cq_events(cq, 1);
		pthread_barrier_wait(&turn);
		CHECK_EQ(poll_some(1, 8), 1);
		drain();
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(pthread_barrier_destroy(&turn), 0);
	close_all();
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = {
		{ "thousand", thousand }, { "errors", errors }, { "events", events },
		{ "pauses", pauses }, { NULL, NULL },
	};

	return vt_main(argc, argv, cases);
}
