/* The connection manager: addresses, events, their order, private data, refusals. */
#include "vt.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>

#include <rdma/rdma_verbs.h>

static uint16_t port_of(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)sa)->sin6_port : ((const struct sockaddr_in *)sa)->sin_port;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *id;

	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	return id;
}

/* All of a process's ids, and rdma_get_devices, share one context per device. */
static void one_context(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *a = new_id(ch), *b = new_id(ch);
	struct sockaddr_storage ss;
	struct ibv_context **list, **again;
	int n = -1, found = 0;

	CHECK_EQ(rdma_bind_addr(a, vt_addr(&vt_server, 0, &ss)), 0);
	CHECK_EQ(rdma_bind_addr(b, vt_addr(&vt_server, 0, &ss)), 0);
	CHECK(a->verbs && a->verbs == b->verbs);
	CHECK(list = rdma_get_devices(&n));
	CHECK(again = rdma_get_devices(NULL));
	CHECK(n >= 1 && !list[n]);
	for (int i = 0; i < n; i++) {
		found += list[i] == a->verbs;
		CHECK(list[i] == again[i]);
	}
	CHECK_EQ(found, 1);
	rdma_free_devices(list);
	rdma_free_devices(again);
	/* And one PD by default. */
	CHECK(a->pd && a->pd == b->pd);
	CHECK(a->pd->context == a->verbs);
	CHECK_EQ(rdma_destroy_id(a), 0);
	CHECK_EQ(rdma_destroy_id(b), 0);
	rdma_destroy_event_channel(ch);
}

static void binding(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_storage ss, any = { .ss_family = vt_server.ss_family };
	struct sockaddr_in foreign = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x01020304) };
	struct rdma_cm_id *id, *other;
	uint16_t port;

	CHECK(ch && ch->fd >= 0);
	CHECK(fcntl(ch->fd, F_GETFD) & FD_CLOEXEC);

	/* An address of a device: the id is on it, with a port at once. */
	id = new_id(ch);
	CHECK(!id->verbs && id->channel == ch && id->ps == RDMA_PS_TCP);
	CHECK_EQ(rdma_bind_addr(id, vt_addr(&vt_server, 0, &ss)), 0);
	CHECK(id->verbs && id->pd);
	CHECK_EQ(id->port_num, 1);
	CHECK((port = rdma_get_src_port(id)) != 0);
	CHECK_EQ(port_of(rdma_get_local_addr(id)), port);
	CHECK_EQ(rdma_get_local_addr(id)->sa_family, vt_server.ss_family);

	/* A port is one id's. */
	other = new_id(ch);
	CHECK_ERRNO(rdma_bind_addr(other, vt_addr(&vt_server, port, &ss)), EADDRINUSE);
	CHECK_EQ(rdma_destroy_id(other), 0);
	CHECK_EQ(rdma_destroy_id(id), 0);
	/* And free again when that is gone. */
	id = new_id(ch);
	CHECK_EQ(rdma_bind_addr(id, vt_addr(&vt_server, port, &ss)), 0);
	CHECK_EQ(rdma_get_src_port(id), port);
	CHECK_EQ(rdma_destroy_id(id), 0);

	/* Any address: on no device, and with a port as well. */
	id = new_id(ch);
	CHECK_EQ(rdma_bind_addr(id, vt_addr(&any, 0, &ss)), 0);
	CHECK(!id->verbs && !id->pd);
	CHECK(rdma_get_src_port(id) != 0);
	CHECK_EQ(rdma_listen(id, 0), 0);
	CHECK_EQ(rdma_destroy_id(id), 0);

	/* No address of a device. */
	id = new_id(ch);
	CHECK_ERRNO(rdma_bind_addr(id, (struct sockaddr *)&foreign), ENODEV);
	CHECK_EQ(rdma_destroy_id(id), 0);

	/* Datagrams there are not. */
	if (!rdma_create_id(ch, &id, NULL, RDMA_PS_UDP)) {
		CHECK_ERRNO(rdma_bind_addr(id, vt_addr(&vt_server, 0, &ss)), ENODEV);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	rdma_destroy_event_channel(ch);
}

/* An IPv4 address in the form that getaddrinfo(3) gives it where the kernel has none of IPv4 itself. */
static void mapped(void)
{
	const struct sockaddr_in *v4 = (const void *)&vt_server;
	struct sockaddr_in6 sa = { .sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr.s6_addr = { [10] = 0xff, 0xff } };
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(ch);

	if (vt_server.ss_family != AF_INET)
		return;
	memcpy(sa.sin6_addr.s6_addr + 12, &v4->sin_addr, 4);
	sa.sin6_addr.s6_addr[15] = 99; /* a neighbour's */
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&sa, 1000), 0);
	vt_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(id->verbs);
	CHECK_EQ(rdma_destroy_id(id), 0);
	id = new_id(ch);
	sa.sin6_port = 0;
	memcpy(sa.sin6_addr.s6_addr + 12, &v4->sin_addr, 4);
	CHECK_EQ(rdma_bind_addr(id, (struct sockaddr *)&sa), 0);
	CHECK(id->verbs && rdma_get_src_port(id));
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

/* A listener at any address takes connections at each, and the new ids are on the device. */
static void wildcard(void)
{
	struct vt_pair p = {};
	struct sockaddr_storage ss, any = { .ss_family = vt_server.ss_family };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *ev;
	struct vt_opts o = { 0 };

	CHECK(p.lch = rdma_create_event_channel());
	CHECK_EQ(rdma_create_id(p.lch, &p.listen, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_bind_addr(p.listen, vt_addr(&any, 0, &ss)), 0);
	CHECK_EQ(rdma_listen(p.listen, 3), 0);
	vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
	CHECK(p.a.id->verbs);
	CHECK_EQ(p.a.id->port_num, 1);
	vt_objects(&p.a, &o, false);
	vt_qp(&p.a, &o);
	CHECK_EQ(rdma_connect(p.a.id, &param), 0);
	ev = vt_event(p.lch, RDMA_CM_EVENT_CONNECT_REQUEST);
	p.b.id = ev->id;
	CHECK(ev->listen_id == p.listen);
	CHECK(p.b.id->verbs && p.b.id->pd && p.b.id->port_num == 1);
	CHECK(p.b.id->channel == p.lch);
	CHECK_EQ(rdma_get_local_addr(p.b.id)->sa_family, vt_server.ss_family);
	CHECK_EQ(rdma_get_src_port(p.b.id), rdma_get_src_port(p.listen));
	CHECK_EQ(rdma_get_dst_port(p.a.id), rdma_get_src_port(p.listen));
	CHECK_EQ(rdma_get_src_port(p.a.id), rdma_get_dst_port(p.b.id));
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	vt_objects(&p.b, &o, false);
	vt_qp(&p.b, &o);
	CHECK_EQ(rdma_accept(p.b.id, &param), 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_ESTABLISHED, 0);
	vt_expect(p.lch, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK_EQ(rdma_disconnect(p.a.id), 0);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.lch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_free(&p);
}

/* ESTABLISHED is there before the first message, and the QP sends as soon as it is; DISCONNECTED comes once. */
static void events_in_order(void)
{
	for (int i = 0; i < 20; i++) {
		struct vt_pair p;

		vt_open(&p, &(struct vt_opts){ 0 }); /* ESTABLISHED is the next event on both sides */
		CHECK_EQ(vt_state(p.a.qp), IBV_QPS_RTS);
		CHECK_EQ(vt_state(p.b.qp), IBV_QPS_RTS);
		vt_recv(&p.b, 1, 0, 10);
		vt_send(&p.a, 2, 0, 10);
		vt_wc(p.b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
		/* The message is there: whoever disconnects right behind it takes nothing back. */
		vt_recv(&p.b, 3, 0, 10);
		vt_send(&p.a, 4, 0, 10);
		vt_wc(p.a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_wc(p.a.scq, 4, IBV_WC_SUCCESS, IBV_WC_SEND);
		vt_recv(&p.b, 5, 0, 10);
		CHECK_EQ(rdma_disconnect(i % 2 ? p.a.id : p.b.id), 0);
		vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
		if (i % 2) {
			vt_wc(p.b.rcq, 3, IBV_WC_SUCCESS, IBV_WC_RECV);
		} else {
			struct ibv_wc wc = vt_poll(p.b.rcq); /* its own side disconnected: the message was here, or not yet */

			CHECK(wc.wr_id == 3 && (wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR));
		}
		vt_wc(p.b.rcq, 5, IBV_WC_WR_FLUSH_ERR, -1);
		if (i < 2) {
			vt_no_event(p.a.ch);
			vt_no_event(p.b.ch);
		}
		vt_free(&p);
	}
}

/* Private data of each length there and back, and with a refusal. */
static void private_data(void)
{
	static const int lens[] = { 0, 1, 56, 57, 196, 200, 251, 255 };
	struct vt_opts o = { 0 };

	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
		for (int reject = 0; reject < 2; reject++) {
			struct vt_pair p = {};
			unsigned char out[256], back[256];
			struct rdma_conn_param param = { .private_data = out, .private_data_len = lens[i], .responder_resources = 3, .initiator_depth = 2 };
			struct rdma_cm_event *ev;

			vt_fill(out, 256, i);
			vt_fill(back, 256, i + 100);
			vt_listen(&p);
			vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
			vt_objects(&p.a, &o, false);
			vt_qp(&p.a, &o);
			CHECK_EQ(rdma_connect(p.a.id, &param), 0);
			ev = vt_event(p.lch, RDMA_CM_EVENT_CONNECT_REQUEST);
			CHECK(ev->param.conn.private_data_len >= lens[i]);
			vt_verify(ev->param.conn.private_data, lens[i], i);
			/* each side's depths from the other's point of view */
			CHECK_EQ(ev->param.conn.initiator_depth, 3);
			CHECK_EQ(ev->param.conn.responder_resources, 2);
			p.b.id = ev->id;
			CHECK_EQ(rdma_ack_cm_event(ev), 0);
			if (reject) {
				CHECK_EQ(rdma_reject(p.b.id, back, lens[i]), 0);
				ev = vt_event(p.a.ch, RDMA_CM_EVENT_REJECTED);
				/* what Linux says depends on the driver */
				CHECK(ev->status == -ECONNREFUSED || ev->status == -ECONNRESET);
			} else {
				vt_objects(&p.b, &o, false);
				vt_qp(&p.b, &o);
				param.private_data = back;
				CHECK_EQ(rdma_accept(p.b.id, &param), 0);
				ev = vt_event(p.a.ch, RDMA_CM_EVENT_ESTABLISHED);
				CHECK_EQ(ev->status, 0);
			}
			CHECK(ev->param.conn.private_data_len >= lens[i]);
			if (lens[i])
				vt_verify(ev->param.conn.private_data, lens[i], i + 100);
			CHECK_EQ(rdma_ack_cm_event(ev), 0);
			if (!reject) {
				vt_expect(p.lch, RDMA_CM_EVENT_ESTABLISHED, 0);
				CHECK_EQ(rdma_disconnect(p.a.id), 0);
				vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
				vt_expect(p.lch, RDMA_CM_EVENT_DISCONNECTED, 0);
			}
			vt_free(&p);
		}
}

static void connect_to(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct vt_side s = { .id = id };
	struct vt_opts o = { 0 };

	vt_objects(&s, &o, false);
	vt_qp(&s, &o);
	CHECK_EQ(rdma_connect(id, &param), 0);
	/* The objects are left to the end of the process. */
}

/* Nobody listens. */
static void refused(void)
{
	struct vt_pair p = {};

	vt_resolve(&p, &p.a, htons(1));
	connect_to(p.a.id);
	vt_expect(p.a.ch, RDMA_CM_EVENT_REJECTED, -ECONNREFUSED);
	rdma_destroy_qp(p.a.id);
	vt_free(&p);
}

/* Nobody is there: the address is not resolved, or the connection times out. */
static void unreachable(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(ch);
	struct sockaddr_in dst = { .sin_family = AF_INET, .sin_port = htons(7174), .sin_addr.s_addr = inet_addr("10.77.0.99") };
	struct rdma_cm_event *ev;

	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&dst, 1000), 0);
	ev = vt_any_event(ch);
	if (ev->event == RDMA_CM_EVENT_ADDR_RESOLVED) {
		CHECK_EQ(rdma_ack_cm_event(ev), 0);
		CHECK_EQ(rdma_resolve_route(id, 1000), 0);
		vt_expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
		connect_to(id);
		for (int i = 0; i < 6 && !vt_readable(ch->fd, 10000); i++)
			;
		ev = vt_event(ch, RDMA_CM_EVENT_UNREACHABLE);
		CHECK(ev->status == -ETIMEDOUT || ev->status == -EHOSTUNREACH);
		rdma_destroy_qp(id);
	} else {
		CHECK_EQ(ev->event, RDMA_CM_EVENT_ADDR_ERROR);
		CHECK(ev->status < 0);
	}
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	CHECK_EQ(rdma_destroy_id(id), 0);

	/* Where no device has a route to. */
	id = new_id(ch);
	dst.sin_addr.s_addr = inet_addr("203.0.113.9");
	if (!rdma_resolve_addr(id, NULL, (struct sockaddr *)&dst, 1000)) {
		ev = vt_event(ch, RDMA_CM_EVENT_ADDR_ERROR);
		CHECK(ev->status < 0);
		CHECK_EQ(rdma_ack_cm_event(ev), 0);
	} else {
		int err = errno;

		if (err != ENODEV && err != ENETUNREACH && err != EHOSTUNREACH)
			FAIL("rdma_resolve_addr: %s", strerror(err));
	}
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

/* What is called in the wrong state. */
static void wrong_states(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(ch);
	struct rdma_conn_param param = {};

	CHECK_ERRNO(rdma_resolve_route(id, 1000), EINVAL);
	CHECK_ERRNO(rdma_connect(id, &param), EINVAL);
	CHECK_ERRNO(rdma_accept(id, &param), EINVAL);
	CHECK_ERRNO(rdma_disconnect(id), EINVAL);
	vt_no_event(ch);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

/* An id moves to another channel, and the events that are queued move with it. */
static void migrating(void)
{
	struct rdma_event_channel *from = rdma_create_event_channel(), *to = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(from);
	struct sockaddr_storage src, dst;
	struct vt_pair p = {};
	struct rdma_cm_event *ev;

	vt_listen(&p);
	CHECK_EQ(rdma_resolve_addr(id, vt_addr(&vt_client, 0, &src), vt_addr(&vt_server, rdma_get_src_port(p.listen), &dst), 1000), 0);
	CHECK(vt_readable(from->fd, VT_PATIENCE)); /* ADDR_RESOLVED is queued there */
	CHECK_EQ(rdma_migrate_id(id, to), 0);
	CHECK(id->channel == to);
	ev = vt_event(to, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(ev->id == id);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
	vt_no_event(from);
	CHECK_EQ(rdma_resolve_route(id, 1000), 0);
	vt_expect(to, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	vt_no_event(from);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(from);
	rdma_destroy_event_channel(to);
	vt_free(&p);
}

/* Ids without a channel: each call waits for what it has begun. */
static void *synchronous_server(void *arg)
{
	struct rdma_cm_id *listen = arg, *id;
	char buf[64] = "";
	struct ibv_mr *mr;
	struct ibv_wc wc;

	CHECK_EQ(rdma_get_request(listen, &id), 0);
	CHECK(id->qp && id->pd && id->recv_cq && id->send_cq);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(mr = rdma_reg_msgs(id, buf, sizeof(buf)));
	CHECK_EQ(rdma_post_recv(id, NULL, buf, 32, mr), 0);
	CHECK_EQ(rdma_accept(id, NULL), 0);
	CHECK_EQ(rdma_get_recv_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK(!strcmp(buf, "hello"));
	strcpy(buf + 32, "and back");
	CHECK_EQ(rdma_post_send(id, NULL, buf + 32, 32, mr, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(rdma_get_send_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(rdma_disconnect(id), 0);
	CHECK_EQ(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void synchronous(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *ai;
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct rdma_cm_id *listen, *id;
	char buf[64] = "hello", port[8] = "", host[64];
	struct ibv_mr *mr;
	struct ibv_wc wc;
	pthread_t t;

	inet_ntop(vt_server.ss_family, vt_server.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&vt_server)->sin_addr
	      : (void *)&((struct sockaddr_in6 *)&vt_server)->sin6_addr, host, sizeof(host));
	hints.ai_flags = RAI_PASSIVE;
	CHECK_EQ(rdma_getaddrinfo(host, "0", &hints, &ai), 0);
	CHECK(ai->ai_src_len && ai->ai_src_addr && ai->ai_port_space == RDMA_PS_TCP && ai->ai_qp_type == IBV_QPT_RC);
	CHECK_EQ(rdma_create_ep(&listen, ai, NULL, &attr), 0);
	rdma_freeaddrinfo(ai);
	CHECK_EQ(rdma_listen(listen, 0), 0);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listen)));
	CHECK_EQ(pthread_create(&t, NULL, synchronous_server, listen), 0);

	hints.ai_flags = 0;
	CHECK_EQ(rdma_getaddrinfo(host, port, &hints, &ai), 0);
	CHECK(ai->ai_dst_len && ai->ai_dst_addr);
	attr = (struct ibv_qp_init_attr){ .cap = { 4, 4, 1, 1, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	CHECK_EQ(rdma_create_ep(&id, ai, NULL, &attr), 0);
	CHECK(id->qp && id->verbs && id->send_cq_channel && id->recv_cq_channel);
	CHECK(attr.cap.max_inline_data >= 16);
	CHECK(mr = rdma_reg_msgs(id, buf, sizeof(buf)));
	CHECK_EQ(rdma_post_recv(id, NULL, buf + 32, 32, mr), 0);
	CHECK_EQ(rdma_connect(id, NULL), 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK_EQ(rdma_post_send(id, NULL, buf, 32, NULL, IBV_SEND_INLINE), attr.cap.max_inline_data >= 32 ? 0 : -1);
	CHECK_EQ(rdma_get_send_comp(id, &wc), 1);
	CHECK_EQ(rdma_get_recv_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK(!strcmp(buf + 32, "and back"));
	CHECK_EQ(rdma_disconnect(id), 0);
	CHECK_EQ(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
	CHECK_EQ(pthread_join(t, NULL), 0);

	/* The listener has gone: what is an event elsewhere is errno here. */
	rdma_destroy_ep(listen);
	attr = (struct ibv_qp_init_attr){ .cap = { 4, 4, 1, 1, 16 }, .qp_type = IBV_QPT_RC };
	CHECK_EQ(rdma_create_ep(&id, ai, NULL, &attr), 0);
	CHECK_ERRNO(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(ai);
	/* EAI_ codes, as of getaddrinfo */
	CHECK(rdma_getaddrinfo("no such host.invalid", "1", NULL, &ai) != 0);
}

static void rejected(struct rdma_event_channel *ch)
{
	struct rdma_cm_event *ev = vt_event(ch, RDMA_CM_EVENT_REJECTED);

	CHECK(ev->status == -ECONNREFUSED || ev->status == -ECONNRESET);
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
}

/* Ids go while things are under way: nothing of them is heard of any more. */
static void abandoned(void)
{
	for (int i = 0; i < 30; i++) {
		struct vt_pair p = {};
		struct vt_opts o = { 0 };
		struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

		vt_listen(&p);
		if (i % 5 == 0) { /* while its address is resolved */
			struct sockaddr_storage src, dst;

			CHECK(p.a.ch = rdma_create_event_channel());
			CHECK_EQ(rdma_create_id(p.a.ch, &p.a.id, NULL, RDMA_PS_TCP), 0);
			CHECK_EQ(rdma_resolve_addr(p.a.id, vt_addr(&vt_client, 0, &src), vt_addr(&vt_server, 7, &dst), 1000), 0);
			CHECK_EQ(rdma_destroy_id(p.a.id), 0);
			p.a.id = NULL;
			vt_no_event(p.a.ch);
			vt_free(&p);
			continue;
		}
		vt_resolve(&p, &p.a, rdma_get_src_port(p.listen));
		vt_objects(&p.a, &o, false);
		vt_qp(&p.a, &o);
		CHECK_EQ(rdma_connect(p.a.id, &param), 0);
		if (i % 5 == 1) { /* the request is queued and nobody takes it */
			CHECK(vt_readable(p.lch->fd, VT_PATIENCE));
			CHECK_EQ(rdma_destroy_id(p.listen), 0);
			p.listen = NULL;
			CHECK(!vt_readable(p.lch->fd, 0));
			rejected(p.a.ch);
		} else if (i % 5 == 2) { /* the request's id goes unanswered */
			struct rdma_cm_event *ev = vt_event(p.lch, RDMA_CM_EVENT_CONNECT_REQUEST);
			struct rdma_cm_id *id = ev->id;

			CHECK_EQ(rdma_ack_cm_event(ev), 0);
			CHECK_EQ(rdma_destroy_id(id), 0);
			rejected(p.a.ch);
		} else { /* the one who asks goes */
			rdma_destroy_qp(p.a.id);
			p.a.qp = NULL;
			CHECK_EQ(rdma_destroy_id(p.a.id), 0);
			p.a.id = NULL;
		}
		if (p.a.qp) {
			rdma_destroy_qp(p.a.id);
			p.a.qp = NULL;
		}
		/* A request that came all the same is refused by the listener's end. */
		vt_free(&p);
	}
}

static const struct vt_case cases[] = {
	{ "one_context", one_context }, { "binding", binding }, { "mapped", mapped }, { "wildcard", wildcard }, { "events_in_order", events_in_order },
	{ "private_data", private_data }, { "refused", refused }, { "unreachable", unreachable }, { "wrong_states", wrong_states },
	{ "migrating", migrating }, { "synchronous", synchronous }, { "abandoned", abandoned }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
