/* rdma_cm on devices of RoCE, where it has more than on iWARP: queue pairs that a program moves itself. */
#include "vt.h"

#include <arpa/inet.h>
#include <pthread.h>

static void own_qp(struct vt_side *s, const struct vt_opts *o)
{
	struct ibv_qp_init_attr attr = {
		.qp_context = s, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 }, .sq_sig_all = 1,
	};

	vt_objects(s, o, false);
	attr.send_cq = s->scq;
	attr.recv_cq = s->rcq;
	CHECK(s->qp = ibv_create_qp(s->pd, &attr));
}

static void drop_qp(struct vt_side *s)
{
	CHECK_EQ(ibv_destroy_qp(s->qp), 0);
	s->qp = NULL;
}

static void move(struct vt_side *s, enum ibv_qp_state to)
{
	struct ibv_qp_attr attr;
	int mask = 0;

	memset(&attr, 0xff, sizeof(attr));
	attr.qp_state = to;
	CHECK_EQ(rdma_init_qp_attr(s->id, &attr, &mask), 0);
	CHECK_EQ(attr.qp_state, to);
	CHECK(mask & IBV_QP_STATE);
	CHECK_EQ(ibv_modify_qp(s->qp, &attr, mask), 0);
	CHECK_EQ(vt_state(s->qp), to);
}

static struct rdma_conn_param param_of(const struct vt_side *s)
{
	return (struct rdma_conn_param){ .responder_resources = 3, .initiator_depth = 3, .retry_count = 6,
					 .rnr_retry_count = 7, .qp_num = s->qp->qp_num };
}

/* b has the request, and a QP that is in RESET. */
static void take(struct vt_pair *p, const struct vt_opts *o)
{
	struct rdma_cm_event *ev = vt_event(p->lch, RDMA_CM_EVENT_CONNECT_REQUEST);

	CHECK_EQ(ev->param.conn.qp_num, p->a.qp->qp_num);
	p->b.id = ev->id;
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK(p->b.ch = rdma_create_event_channel());
	CHECK_EQ(rdma_migrate_id(p->b.id, p->b.ch), 0);
	own_qp(&p->b, o);
}

static void climb(struct vt_side *s)
{
	move(s, IBV_QPS_INIT);
	move(s, IBV_QPS_RTR);
	move(s, IBV_QPS_RTS);
}

/* Both sides up to the request: a's QP is in INIT, b's in RESET. */
static void ask(struct vt_pair *p, const struct vt_opts *o)
{
	struct rdma_conn_param param;

	memset(p, 0, sizeof(*p));
	vt_listen(p);
	vt_resolve(p, &p->a, rdma_get_src_port(p->listen));
	own_qp(&p->a, o);
	move(&p->a, IBV_QPS_INIT);
	param = param_of(&p->a);
	CHECK_ERRNO(rdma_establish(p->a.id), EINVAL);
	CHECK_EQ(rdma_connect(p->a.id, &param), 0);
	take(p, o);
}

/* As rping -q and its kin connect. */
static void connect_own(struct vt_pair *p, const struct vt_opts *o)
{
	struct rdma_conn_param param;
	struct rdma_cm_event *ev;

	ask(p, o);
	climb(&p->b);
	param = param_of(&p->b);
	CHECK_EQ(rdma_accept(p->b.id, &param), 0);
	ev = vt_event(p->a.ch, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK_EQ(ev->status, 0);
	CHECK_EQ(ev->param.conn.qp_num, p->b.qp->qp_num);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	vt_no_event(p->b.ch);
	CHECK_EQ(vt_state(p->a.qp), IBV_QPS_INIT);
	climb(&p->a); /* from INIT to INIT with the rights that were agreed on */
	CHECK_EQ(rdma_establish(p->a.id), 0);
	vt_expect(p->b.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void own_qps(void)
{
	struct ibv_qp_init_attr init;
	struct vt_opts o = { 0 };
	struct ibv_qp_attr a, b;
	struct vt_pair p;

	connect_own(&p, &o);
	CHECK_ERRNO(rdma_establish(p.a.id), EINVAL);
	CHECK_EQ(ibv_query_qp(p.a.qp, &a, ~0, &init), 0);
	CHECK_EQ(ibv_query_qp(p.b.qp, &b, ~0, &init), 0);
	CHECK_EQ(a.dest_qp_num, p.b.qp->qp_num);
	CHECK_EQ(b.dest_qp_num, p.a.qp->qp_num);
	CHECK_EQ(a.max_rd_atomic, b.max_dest_rd_atomic);
	CHECK_EQ(a.retry_cnt, 6);
	CHECK_EQ(b.retry_cnt, 6);
	CHECK(a.qp_access_flags & IBV_ACCESS_REMOTE_READ);
	vt_recv(&p.b, 1, 0, 4096);
	vt_fill(p.a.buf, 4096, 7);
	vt_send(&p.a, 2, 0, 4096);
	vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_verify(p.b.buf, 4096, 7);
	/* The QPs are the program's: a disconnect says so to the peer, and leaves them as they are. */
	vt_disconnect(&p);
	CHECK_EQ(vt_state(p.a.qp), IBV_QPS_RTS);
	CHECK_EQ(vt_state(p.b.qp), IBV_QPS_RTS);
	CHECK_EQ(rdma_disconnect(p.b.id), 0);
	drop_qp(&p.a);
	drop_qp(&p.b);
	vt_free(&p);
}

/* Either end refuses, and the other one is told. */
static void own_rejects(void)
{
	struct vt_opts o = { 0 };
	struct vt_pair p;

	for (int active = 0; active < 2; active++) {
		struct rdma_cm_event *ev;

		ask(&p, &o);
		if (active) {
			struct rdma_conn_param param = param_of(&p.b);

			CHECK_EQ(rdma_accept(p.b.id, &param), 0);
			vt_expect(p.a.ch, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
		}
		CHECK_EQ(rdma_reject(active ? p.a.id : p.b.id, "no", 3), 0);
		ev = vt_event(active ? p.b.ch : p.a.ch, RDMA_CM_EVENT_REJECTED);
		CHECK_EQ(ev->status, 28); /* the consumer's */
		CHECK(!memcmp(ev->param.conn.private_data, "no", 3));
		CHECK_EQ(rdma_ack_cm_event(ev), 0);
		CHECK_ERRNO(rdma_establish(p.a.id), EINVAL);
		drop_qp(&p.a);
		drop_qp(&p.b);
		vt_free(&p);
	}
}

/* The end that has accepted says by itself that its QP is in use. */
static void own_notify(void)
{
	struct vt_opts o = { 0 };
	struct rdma_conn_param param;
	struct vt_pair p;

	ask(&p, &o);
	CHECK_ERRNO(rdma_notify(p.b.id, IBV_EVENT_COMM_EST), EINVAL);
	param = param_of(&p.b);
	CHECK_EQ(rdma_accept(p.b.id, &param), 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	CHECK_ERRNO(rdma_notify(p.b.id, IBV_EVENT_PATH_MIG), EINVAL);
	CHECK_ERRNO(rdma_notify(p.a.id, IBV_EVENT_COMM_EST), EINVAL);
	CHECK_EQ(rdma_notify(p.b.id, IBV_EVENT_COMM_EST), 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK_ERRNO(rdma_notify(p.b.id, IBV_EVENT_COMM_EST), EISCONN);
	CHECK_EQ(rdma_establish(p.a.id), 0);
	vt_no_event(p.b.ch);
	vt_disconnect(&p);
	drop_qp(&p.a);
	drop_qp(&p.b);
	vt_free(&p);
}

static void *answer(void *arg)
{
	struct rdma_conn_param param;
	struct vt_opts o = { 0 };
	struct vt_pair *p = arg;

	take(p, &o);
	climb(&p->b);
	param = param_of(&p->b);
	CHECK_EQ(rdma_accept(p->b.id, &param), 0);
	vt_expect(p->b.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	vt_expect(p->b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	return NULL;
}

/* An id with a channel of its own waits for the answer, and has it as its event. */
static void own_waits(void)
{
	struct sockaddr_storage dst;
	struct rdma_conn_param param;
	struct vt_opts o = { 0 };
	struct vt_pair p = {};
	pthread_t peer;

	vt_listen(&p);
	CHECK_EQ(rdma_create_id(NULL, &p.a.id, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_resolve_addr(p.a.id, NULL, vt_addr(&vt_server, rdma_get_src_port(p.listen), &dst), 2000), 0);
	CHECK_EQ(rdma_resolve_route(p.a.id, 2000), 0);
	own_qp(&p.a, &o);
	move(&p.a, IBV_QPS_INIT);
	param = param_of(&p.a);
	param.qp_num ^= 1; /* nobody's */
	CHECK_ERRNO(rdma_connect(p.a.id, &param), EINVAL);
	CHECK_EQ(pthread_create(&peer, NULL, answer, &p), 0);
	param = param_of(&p.a);
	CHECK_EQ(rdma_connect(p.a.id, &param), 0);
	CHECK(p.a.id->event);
	CHECK_EQ(p.a.id->event->event, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK_EQ(p.a.id->event->param.conn.qp_num, p.b.qp->qp_num);
	climb(&p.a);
	CHECK_EQ(rdma_establish(p.a.id), 0);
	CHECK_EQ(rdma_disconnect(p.a.id), 0);
	CHECK_EQ(pthread_join(peer, NULL), 0);
	drop_qp(&p.a);
	drop_qp(&p.b);
	vt_free(&p);
}

/* An id of s's channel with an option, if one is named. */
static struct rdma_cm_id *sharing(struct vt_side *s, int option, int value)
{
	struct rdma_cm_id *id;

	if (!s->ch)
		CHECK(s->ch = rdma_create_event_channel());
	CHECK_EQ(rdma_create_id(s->ch, &id, s, RDMA_PS_TCP), 0);
	if (option)
		CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof(value)), 0);
	return id;
}

/* What an id was told before it is connected its queue pair has. */
static void options(void)
{
	uint8_t tos = 0x68, timeout = 17;
	struct rdma_conn_param param;
	struct ibv_qp_init_attr init;
	struct vt_opts o = { 0 };
	struct ibv_qp_attr attr;
	struct vt_pair p;

	memset(&p, 0, sizeof(p));
	vt_listen(&p);
	vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
	CHECK_EQ(rdma_set_option(p.a.id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)), 0);
	CHECK_EQ(rdma_set_option(p.a.id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
				 sizeof(timeout)), 0);
	own_qp(&p.a, &o);
	move(&p.a, IBV_QPS_INIT);
	param = param_of(&p.a);
	CHECK_EQ(rdma_connect(p.a.id, &param), 0);
	take(&p, &o);
	climb(&p.b);
	param = param_of(&p.b);
	CHECK_EQ(rdma_accept(p.b.id, &param), 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	climb(&p.a);
	CHECK_EQ(rdma_establish(p.a.id), 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK_EQ(ibv_query_qp(p.a.qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT, &init), 0);
	CHECK_EQ(attr.ah_attr.grh.traffic_class, tos);
	CHECK_EQ(attr.timeout, timeout);
	CHECK_EQ(ibv_query_qp(p.b.qp, &attr, IBV_QP_AV, &init), 0);
	CHECK_EQ(attr.ah_attr.grh.traffic_class, tos); /* the request says it */
	drop_qp(&p.a);
	drop_qp(&p.b);
	vt_free(&p);
}

/* A port is shared by ids that have said so, until one of them listens. */
static void reuse(void)
{
	struct rdma_cm_id *one, *two, *alone;
	struct sockaddr_storage at;
	struct vt_side s = { 0 };
	int off = 0;

	one = sharing(&s, RDMA_OPTION_ID_REUSEADDR, 1);
	two = sharing(&s, RDMA_OPTION_ID_REUSEADDR, 1);
	alone = sharing(&s, 0, 0);
	CHECK_EQ(rdma_bind_addr(one, vt_addr(&vt_server, 0, &at)), 0);
	vt_addr(&vt_server, rdma_get_src_port(one), &at);
	CHECK_ERRNO(rdma_bind_addr(alone, (struct sockaddr *)&at), EADDRINUSE);
	CHECK_EQ(rdma_bind_addr(two, (struct sockaddr *)&at), 0);
	CHECK_ERRNO(rdma_listen(one, 1), EADDRINUSE);
	CHECK_ERRNO(rdma_set_option(two, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &off,
				    sizeof(off)), EADDRINUSE);
	CHECK_ERRNO(rdma_set_option(two, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &off, 1), EINVAL);
	CHECK_EQ(rdma_destroy_id(two), 0);
	CHECK_EQ(rdma_listen(one, 1), 0);
	two = sharing(&s, RDMA_OPTION_ID_REUSEADDR, 1);
	CHECK_ERRNO(rdma_bind_addr(two, (struct sockaddr *)&at), EADDRINUSE);
	CHECK_EQ(rdma_destroy_id(one), 0);
	CHECK_EQ(rdma_destroy_id(two), 0);
	CHECK_EQ(rdma_destroy_id(alone), 0);
	rdma_destroy_event_channel(s.ch);
}

/* A listener at any address of IPv6 leaves IPv4 to another one. */
static void one_family(void)
{
	struct sockaddr_in any4 = { .sin_family = AF_INET };
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6 };
	struct rdma_cm_id *four, *both, *six;
	struct rdma_conn_param param;
	struct vt_side s = { 0 };
	struct vt_opts o = { 0 };
	struct rdma_cm_event *ev;
	struct vt_pair p = {};
	int off = 0;

	four = sharing(&s, RDMA_OPTION_ID_AFONLY, 1); /* as it is anyway */
	both = sharing(&s, 0, 0);
	six = sharing(&s, RDMA_OPTION_ID_AFONLY, 1);
	CHECK_EQ(rdma_bind_addr(four, (struct sockaddr *)&any4), 0);
	any6.sin6_port = rdma_get_src_port(four);
	CHECK_ERRNO(rdma_bind_addr(both, (struct sockaddr *)&any6), EADDRINUSE);
	CHECK_EQ(rdma_bind_addr(six, (struct sockaddr *)&any6), 0);
	CHECK_EQ(rdma_listen(six, 1), 0);
	CHECK_EQ(rdma_listen(four, 1), 0);
	CHECK_ERRNO(rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &off, sizeof(off)),
		    EINVAL);
	vt_resolve(&p, &p.a, any6.sin6_port);
	own_qp(&p.a, &o);
	param = param_of(&p.a);
	CHECK_EQ(rdma_connect(p.a.id, &param), 0);
	ev = vt_event(s.ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(ev->listen_id == four);
	CHECK_EQ(rdma_destroy_id(six), 0);
	CHECK_EQ(rdma_destroy_id(both), 0);
	p.b.id = ev->id;
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK_EQ(rdma_reject(p.b.id, NULL, 0), 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_REJECTED, 28);
	drop_qp(&p.a);
	vt_free(&p);
	CHECK_EQ(rdma_destroy_id(four), 0);
	rdma_destroy_event_channel(s.ch);
}

static const struct vt_case cases[] = {
	{ "own_qps", own_qps },
	{ "own_rejects", own_rejects },
	{ "own_notify", own_notify },
	{ "own_waits", own_waits },
	{ "options", options },
	{ "reuse", reuse },
	{ "one_family", one_family },
	{ 0 },
};

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
