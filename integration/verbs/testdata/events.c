/* Descriptors and the events behind them: readable when there is one, never otherwise; waits that are cancelled; acknowledgements. */
#include "vt.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>

static void set_nonblocking(int fd)
{
	CHECK_EQ(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

/* Each of the three kinds of descriptor says EAGAIN when there is nothing, and works in poll and epoll. */
static void nonblocking(void)
{
	struct vt_pair p;
	struct ibv_async_event aev;
	struct rdma_cm_event *ev;
	struct ibv_cq *cq;
	struct epoll_event got;
	void *ctx;
	int ep = epoll_create1(0);

	vt_open(&p, &(struct vt_opts){ .channel = true });
	int fds[] = { p.b.ch->fd, p.b.cc->fd, p.b.id->verbs->async_fd };
	for (int i = 0; i < 3; i++) {
		struct epoll_event e = { .events = EPOLLIN, .data.fd = fds[i] };

		CHECK(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
		CHECK(!(fcntl(fds[i], F_GETFL) & O_NONBLOCK));
		set_nonblocking(fds[i]);
		CHECK(!vt_readable(fds[i], 0));
		CHECK_EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e), 0);
	}
	CHECK_ERRNO(rdma_get_cm_event(p.b.ch, &ev), EAGAIN);
	CHECK_ERRNO(ibv_get_cq_event(p.b.cc, &cq, &ctx), EAGAIN);
	CHECK_ERRNO(ibv_get_async_event(p.b.id->verbs, &aev), EAGAIN);
	CHECK_EQ(epoll_wait(ep, &got, 1, 0), 0);

	/* A completion: an event only if one was asked for. */
	vt_recv(&p.b, 1, 0, 10);
	vt_recv(&p.b, 2, 0, 10);
	vt_send(&p.a, 1, 0, 10);
	vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	CHECK_EQ(epoll_wait(ep, &got, 1, 50), 0);
	CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 0), 0);
	vt_send(&p.a, 2, 0, 10);
	CHECK_EQ(epoll_wait(ep, &got, 1, VT_PATIENCE), 1);
	CHECK_EQ(got.data.fd, p.b.cc->fd);
	CHECK_EQ(ibv_get_cq_event(p.b.cc, &cq, &ctx), 0);
	CHECK(cq == p.b.rcq && ctx == &p.b);
	CHECK_EQ(epoll_wait(ep, &got, 1, 0), 0);
	CHECK_ERRNO(ibv_get_cq_event(p.b.cc, &cq, &ctx), EAGAIN);
	ibv_ack_cq_events(p.b.rcq, 1);
	vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);

	CHECK_EQ(epoll_ctl(ep, EPOLL_CTL_DEL, p.b.id->verbs->async_fd, NULL), 0); /* that send queues have drained, too */
	CHECK_EQ(rdma_disconnect(p.a.id), 0);
	CHECK_EQ(epoll_wait(ep, &got, 1, VT_PATIENCE), 1);
	CHECK_EQ(got.data.fd, p.b.ch->fd);
	CHECK_EQ(rdma_get_cm_event(p.b.ch, &ev), 0);
	CHECK_EQ(ev->event, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK_EQ(epoll_wait(ep, &got, 1, 0), 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	close(ep);
	vt_free(&p);
}

/* Solicited only: plain messages wake nobody; errors do. */
static void solicited(void)
{
	struct vt_pair p;
	struct ibv_cq *cq;
	void *ctx;

	vt_open(&p, &(struct vt_opts){ .channel = true });
	for (int i = 0; i < 4; i++)
		vt_recv(&p.b, i, 0, 10);
	CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 1), 0);
	vt_send(&p.a, 0, 0, 10);
	vt_wc(p.b.rcq, 0, IBV_WC_SUCCESS, IBV_WC_RECV);
	CHECK(!vt_readable(p.b.cc->fd, 50));
	CHECK_EQ(vt_try_send(&p.a, 1, IBV_WR_SEND, 0, 10, IBV_SEND_SOLICITED, 0, 0), 0);
	CHECK(vt_readable(p.b.cc->fd, VT_PATIENCE));
	CHECK_EQ(ibv_get_cq_event(p.b.cc, &cq, &ctx), 0);
	ibv_ack_cq_events(cq, 1);
	vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	/* Once per request for a notice, however many complete. */
	vt_send(&p.a, 2, 0, 10);
	vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
	CHECK(!vt_readable(p.b.cc->fd, 50));
	CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 1), 0);
	vt_disconnect(&p);
	CHECK(vt_readable(p.b.cc->fd, VT_PATIENCE));
	CHECK_EQ(ibv_get_cq_event(p.b.cc, &cq, &ctx), 0);
	ibv_ack_cq_events(cq, 1);
	vt_wc(p.b.rcq, 3, IBV_WC_WR_FLUSH_ERR, -1);
	vt_free(&p);
}

/* What any program that waits does, a thousand times, with the reader always one step behind: no event is lost. */
static void *sends_slowly(void *arg)
{
	struct vt_side *s = arg;

	for (int i = 0; i < 1000; i++) {
		vt_send(s, i, 0, 8);
		vt_wc(s->scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
		if (i % 7 == 0)
			usleep(100);
	}
	return NULL;
}

static void no_lost_event(void)
{
	struct vt_pair p;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	pthread_t t;
	void *ctx;
	int got = 0, n;

	vt_open(&p, &(struct vt_opts){ .channel = true, .recv_wr = 1000, .cqe = 1100 });
	for (int i = 0; i < 1000; i++)
		vt_recv(&p.b, i, 0, 8);
	CHECK_EQ(pthread_create(&t, NULL, sends_slowly, &p.a), 0);
	while (got < 1000) {
		CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 0), 0);
		while ((n = ibv_poll_cq(p.b.rcq, 1, &wc)) == 1) {
			CHECK_EQ(wc.wr_id, got);
			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			got++;
		}
		CHECK_EQ(n, 0);
		if (got == 1000)
			break;
		if (!vt_readable(p.b.cc->fd, VT_PATIENCE))
			FAIL("no event after %d of 1000 messages", got);
		CHECK_EQ(ibv_get_cq_event(p.b.cc, &cq, &ctx), 0);
		ibv_ack_cq_events(cq, 1);
	}
	CHECK_EQ(pthread_join(t, NULL), 0);
	vt_close(&p);
}

struct destroyer {
	void *what;
	int kind;
	int done;
};

static void *destroy(void *arg)
{
	struct destroyer *d = arg;

	switch (d->kind) {
	case 0:
		CHECK_EQ(ibv_destroy_cq(d->what), 0);
		break;
	case 1:
		CHECK_EQ(rdma_destroy_id(d->what), 0);
		break;
	default:
		CHECK_EQ(ibv_destroy_qp(d->what), 0);
	}
	__atomic_store_n(&d->done, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* starts a destroy that must not end before ack has been called */
static void blocks(struct destroyer *d, pthread_t *t)
{
	CHECK_EQ(pthread_create(t, NULL, destroy, d), 0);
	usleep(100000);
	CHECK_EQ(__atomic_load_n(&d->done, __ATOMIC_SEQ_CST), 0);
}

static void unblocked(struct destroyer *d, pthread_t t)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;

	while (!__atomic_load_n(&d->done, __ATOMIC_SEQ_CST))
		CHECK(vt_now_ms() < late);
	CHECK_EQ(pthread_join(t, NULL), 0);
}

/* An object is not destroyed before its events have been acknowledged. */
static void acknowledging(void)
{
	struct vt_pair p;
	struct destroyer d;
	struct rdma_cm_event *ev;
	struct ibv_async_event aev;
	struct ibv_cq *cq;
	pthread_t t;
	void *ctx;

	/* a CQ with two events that were taken */
	vt_open(&p, &(struct vt_opts){ .channel = true });
	for (int i = 0; i < 2; i++) {
		vt_recv(&p.b, i, 0, 10);
		CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 0), 0);
		vt_send(&p.a, i, 0, 10);
		CHECK(vt_readable(p.b.cc->fd, VT_PATIENCE));
		CHECK_EQ(ibv_get_cq_event(p.b.cc, &cq, &ctx), 0);
		vt_wc(p.b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
	}
	vt_disconnect(&p);
	rdma_destroy_qp(p.b.id);
	p.b.qp = NULL;
	d = (struct destroyer){ p.b.rcq, 0, 0 };
	blocks(&d, &t);
	ibv_ack_cq_events(p.b.rcq, 1);
	usleep(50000);
	CHECK_EQ(__atomic_load_n(&d.done, __ATOMIC_SEQ_CST), 0);
	ibv_ack_cq_events(p.b.rcq, 1);
	unblocked(&d, t);
	p.b.rcq = NULL;
	vt_free(&p);

	/* an id with an event that was taken */
	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK_EQ(rdma_disconnect(p.b.id), 0);
	ev = vt_event(p.a.ch, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(p.a.id);
	p.a.qp = NULL;
	d = (struct destroyer){ p.a.id, 1, 0 };
	blocks(&d, &t);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	unblocked(&d, t);
	p.a.id = NULL;
	vt_free(&p);

	/* a QP with an asynchronous event */
	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK_EQ(vt_try_send(&p.a, 1, IBV_WR_RDMA_READ, 0, 10, IBV_SEND_SIGNALED, 1, p.b.mr->rkey), 0);
	vt_wc(p.a.scq, 1, IBV_WC_REM_ACCESS_ERR, -1);
	CHECK(vt_readable(p.b.id->verbs->async_fd, VT_PATIENCE));
	for (;;) { /* the other end's are here too */
		CHECK_EQ(ibv_get_async_event(p.b.id->verbs, &aev), 0);
		if (aev.element.qp == p.b.qp)
			break;
		ibv_ack_async_event(&aev);
	}
	CHECK_EQ(aev.event_type, IBV_EVENT_QP_ACCESS_ERR);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	d = (struct destroyer){ p.b.qp, 2, 0 };
	p.b.qp = NULL;
	blocks(&d, &t);
	ibv_ack_async_event(&aev);
	unblocked(&d, t);
	p.b.id->qp = NULL;
	vt_free(&p);
}

/* fio destroys a CQ before its QP, and acknowledges more events than it got: it must not wait. */
static void too_many_acks(void)
{
	struct vt_pair p;
	struct ibv_cq *cq;
	void *ctx;

	vt_open(&p, &(struct vt_opts){ .channel = true });
	for (int i = 0; i < 4; i++)
		vt_recv(&p.b, i, 0, 10);
	CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 0), 0);
	for (int i = 0; i < 4; i++)
		vt_send(&p.a, i, 0, 10);
	CHECK_EQ(ibv_get_cq_event(p.b.cc, &cq, &ctx), 0);
	for (int i = 0; i < 4; i++) {
		vt_wc(p.b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
		ibv_ack_cq_events(p.b.rcq, 1);
	}
	CHECK_EQ(ibv_destroy_cq(p.b.rcq), EBUSY);
	vt_close(&p);
}

/* Events that nobody has taken go with their object: the descriptor is not readable for them. */
static void undelivered(void)
{
	struct vt_pair p;
	struct rdma_cm_event *ev;
	struct ibv_async_event aev;
	struct ibv_cq *cq;
	void *ctx;

	vt_open(&p, &(struct vt_opts){ .channel = true });
	vt_recv(&p.b, 1, 0, 10);
	CHECK_EQ(ibv_req_notify_cq(p.b.rcq, 0), 0);
	CHECK_EQ(ibv_req_notify_cq(p.b.scq, 0), 0);
	vt_send(&p.a, 1, 0, 10);
	CHECK(vt_readable(p.b.cc->fd, VT_PATIENCE));
	CHECK_EQ(vt_try_send(&p.a, 2, IBV_WR_RDMA_READ, 0, 10, IBV_SEND_SIGNALED, 1, p.b.mr->rkey), 0);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.a.scq, 2, IBV_WC_REM_ACCESS_ERR, -1);
	CHECK(vt_readable(p.b.id->verbs->async_fd, VT_PATIENCE));
	CHECK(vt_readable(p.b.ch->fd, VT_PATIENCE));
	set_nonblocking(p.b.ch->fd);
	set_nonblocking(p.b.cc->fd);
	set_nonblocking(p.b.id->verbs->async_fd);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_destroy_qp(p.a.id); /* both ends have events on this context */
	p.a.qp = NULL;
	rdma_destroy_qp(p.b.id);
	p.b.qp = NULL;
	CHECK(!vt_readable(p.b.id->verbs->async_fd, 0));
	CHECK_ERRNO(ibv_get_async_event(p.b.id->verbs, &aev), EAGAIN);
	CHECK_EQ(ibv_destroy_cq(p.b.rcq), 0);
	p.b.rcq = NULL;
	CHECK(!vt_readable(p.b.cc->fd, 0));
	CHECK_ERRNO(ibv_get_cq_event(p.b.cc, &cq, &ctx), EAGAIN);
	CHECK_EQ(fcntl(p.b.id->verbs->async_fd, F_SETFL, 0), 0);
	{
		struct rdma_cm_id *id = p.b.id;
		struct ibv_context *verbs = id->verbs;

		CHECK_EQ(rdma_destroy_id(id), 0);
		p.b.id = NULL;
		CHECK(verbs);
	}
	CHECK(!vt_readable(p.b.ch->fd, 0));
	CHECK_ERRNO(rdma_get_cm_event(p.b.ch, &ev), EAGAIN);
	vt_free(&p);
}

static struct vt_pair waiting;
static int woken;

static void *waits(void *arg)
{
	struct rdma_cm_event *ev;
	struct ibv_async_event aev;
	struct ibv_cq *cq;
	void *ctx;

	switch ((intptr_t)arg) {
	case 0:
		rdma_get_cm_event(waiting.a.ch, &ev);
		break;
	case 1:
		ibv_get_cq_event(waiting.a.cc, &cq, &ctx);
		break;
	default:
		ibv_get_async_event(waiting.a.id->verbs, &aev);
	}
	__atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* Threads that wait are cancelled, with nothing locked: everything works afterwards. */
static void cancelled(void)
{
	pthread_t t[3];
	void *how;

	vt_open(&waiting, &(struct vt_opts){ .channel = true });
	for (int round = 0; round < 20; round++) {
		for (intptr_t i = 0; i < 3; i++)
			CHECK_EQ(pthread_create(&t[i], NULL, waits, (void *)i), 0);
		usleep(round * 500);
		for (int i = 0; i < 3; i++)
			CHECK_EQ(pthread_cancel(t[i]), 0);
		for (int i = 0; i < 3; i++) {
			CHECK_EQ(pthread_join(t[i], &how), 0);
			CHECK(how == PTHREAD_CANCELED);
		}
	}
	CHECK_EQ(woken, 0);
	vt_recv(&waiting.b, 1, 0, 10);
	CHECK_EQ(ibv_req_notify_cq(waiting.a.scq, 0), 0);
	vt_send(&waiting.a, 1, 0, 10);
	CHECK(vt_readable(waiting.a.cc->fd, VT_PATIENCE));
	{
		struct ibv_cq *cq;
		void *ctx;

		CHECK_EQ(ibv_get_cq_event(waiting.a.cc, &cq, &ctx), 0);
		ibv_ack_cq_events(cq, 1);
	}
	vt_wc(waiting.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_close(&waiting);
}

/* A channel is destroyed while a thread waits in it: the thread stays where it is, and the process may end. */
static void *waits_in_channel(void *arg)
{
	struct rdma_cm_event *ev;

	rdma_get_cm_event(arg, &ev);
	FAIL("a thread came back from a channel that was destroyed");
	return NULL;
}

static void channel_goes(void)
{
	struct rdma_event_channel *ch;
	pthread_t t;

	for (int i = 0; i < 6; i++) {
		CHECK(ch = rdma_create_event_channel());
		if (i < 3) {
			CHECK_EQ(pthread_create(&t, NULL, waits_in_channel, ch), 0);
			usleep(20000);
		}
		rdma_destroy_event_channel(ch);
		if (i >= 3) /* nor does it if it comes too late, as rping's does at times */
			CHECK_EQ(pthread_create(&t, NULL, waits_in_channel, ch), 0);
		/* The number of its descriptor is used again at once, by something with events. */
		CHECK(ch = rdma_create_event_channel());
		usleep(20000);
		rdma_destroy_event_channel(ch);
	}
	usleep(100000);
}

/*
 * Two threads sleep, each on a channel of its own, and the CQ that one waits for has the sends of
 * the QP whose messages the other waits for: neither takes what wakes the other.
 */
#define BOTH 300

static unsigned heard[2];

struct listener {
	struct vt_side *s;
	unsigned *heard;
};

static void *hears(void *arg)
{
	struct listener *l = arg;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	unsigned got = 0;
	void *ctx;

	for (;;) {
		CHECK_EQ(ibv_req_notify_cq(l->s->rcq, 0), 0);
		while (ibv_poll_cq(l->s->rcq, 1, &wc) == 1) {
			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			if (wc.opcode != IBV_WC_RECV)
				continue;
			vt_recv(l->s, 0, 0, 8);
			__atomic_store_n(l->heard, ++got, __ATOMIC_SEQ_CST);
		}
		if (got == BOTH)
			return NULL;
		CHECK_EQ(ibv_get_cq_event(l->s->cc, &cq, &ctx), 0);
		CHECK(cq == l->s->rcq);
		ibv_ack_cq_events(cq, 1);
	}
}

static void two_channels(void)
{
	struct vt_pair p;
	struct listener l[2] = { { &p.a, &heard[0] }, { &p.b, &heard[1] } };
	pthread_t t[2];

	if (memcmp(&vt_server, &vt_client, sizeof(vt_server)))
		return; /* two devices, perhaps */
	vt_open(&p, &(struct vt_opts){ .channel = true, .crossed = true, .unsignaled = true });
	for (int i = 0; i < 2; i++) {
		for (int k = 0; k < 8; k++)
			vt_recv(l[i].s, 0, 0, 8);
		CHECK_EQ(pthread_create(&t[i], NULL, hears, &l[i]), 0);
	}
	for (unsigned n = 1; n <= BOTH; n++) {
		uint64_t late = vt_now_ms() + VT_PATIENCE;
		int flags = n % 32 ? 0 : IBV_SEND_SIGNALED;

		CHECK_EQ(vt_try_send(&p.b, n, IBV_WR_SEND, 0, 8, flags, 0, 0), 0);
		CHECK_EQ(vt_try_send(&p.a, n, IBV_WR_SEND, 0, 8, flags, 0, 0), 0);
		for (int i = 0; i < 2; i++)
			while (__atomic_load_n(&heard[i], __ATOMIC_SEQ_CST) != n) {
				if (vt_now_ms() > late)
					FAIL("message %u has not woken who waits for it, %d", n, i);
				sched_yield();
			}
		if (flags)
			vt_wc(p.a.scq, n, IBV_WC_SUCCESS, IBV_WC_SEND);
	}
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
	vt_disconnect(&p);
	rdma_destroy_qp(p.b.id);
	p.b.qp = NULL;
	vt_free(&p);
}

static const struct vt_case cases[] = {
	{ "nonblocking", nonblocking }, { "solicited", solicited }, { "no_lost_event", no_lost_event },
	{ "acknowledging", acknowledging }, { "too_many_acks", too_many_acks }, { "undelivered", undelivered },
	{ "cancelled", cancelled }, { "channel_goes", channel_goes }, { "two_channels", two_channels }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
