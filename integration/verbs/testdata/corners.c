/* The connection manager where programs seldom go: channels shared and lost, synchronous ids, names, options. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "vt.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>

#include <rdma/rdma_verbs.h>

static const char *host(const struct sockaddr_storage *ss)
{
	static _Thread_local char text[64];

	inet_ntop(ss->ss_family, ss->ss_family == AF_INET ? (void *)&((struct sockaddr_in *)ss)->sin_addr
	      : (void *)&((struct sockaddr_in6 *)ss)->sin6_addr, text, sizeof(text));
	return text;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *id;

	CHECK_EQ(rdma_create_id(ch, &id, ch, RDMA_PS_TCP), 0);
	return id;
}

static void set_flags(int fd, bool nonblocking)
{
	int flags = fcntl(fd, F_GETFL);

	CHECK_EQ(fcntl(fd, F_SETFL, nonblocking ? flags | O_NONBLOCK : flags & ~O_NONBLOCK), 0);
}

/* An id of a service that an RNIC has not is an id, but nothing comes of it. */
static void datagrams(void)
{
	static const enum rdma_port_space spaces[] = { RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB };
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_storage ss;
	uint8_t tos = 8;

	for (int i = 0; i < 3; i++) {
		CHECK_EQ(rdma_create_id(ch, &id, NULL, spaces[i]), 0);
		CHECK_EQ(id->qp_type, i < 2 ? IBV_QPT_UD : IBV_QPT_RC);
		CHECK_EQ(id->ps, spaces[i]);
		CHECK_ERRNO(rdma_bind_addr(id, vt_addr(&vt_server, 0, &ss)), ENODEV);
		CHECK_ERRNO(rdma_resolve_addr(id, NULL, vt_addr(&vt_server, 1, &ss), 100), ENODEV);
		CHECK_ERRNO(rdma_listen(id, 1), ENODEV);
		CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)), 0);
		CHECK_ERRNO(rdma_join_multicast(id, vt_addr(&vt_server, 0, &ss), NULL), EOPNOTSUPP);
		CHECK_ERRNO(rdma_leave_multicast(id, vt_addr(&vt_server, 0, &ss)), EOPNOTSUPP);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	CHECK_ERRNO(rdma_create_id(ch, &id, NULL, 0x999), EINVAL);
	rdma_destroy_event_channel(ch);
}

#define READERS 4
#define RESOLVED 200

static atomic_int seen[RESOLVED], total;

static void *reader(void *arg)
{
	struct rdma_cm_event *ev;

	for (;;) {
		CHECK_EQ(rdma_get_cm_event(arg, &ev), 0);
		CHECK_EQ(ev->event, RDMA_CM_EVENT_ADDR_RESOLVED);
		atomic_fetch_add(&seen[(intptr_t)ev->id->context], 1);
		CHECK_EQ(rdma_ack_cm_event(ev), 0);
		atomic_fetch_add(&total, 1);
	}
	return NULL;
}

/*
 * Several threads wait at one channel: each event is given to one of them. They can be cancelled, in the wait and
 * between; nothing is held then.
 */
static void readers(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *ids[RESOLVED];
	struct sockaddr_storage ss;
	pthread_t t[READERS];
	void *ret;

	for (int i = 0; i < READERS; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, reader, ch), 0);
	for (intptr_t i = 0; i < RESOLVED; i++) {
		CHECK_EQ(rdma_create_id(ch, &ids[i], (void *)i, RDMA_PS_TCP), 0);
		CHECK_EQ(rdma_resolve_addr(ids[i], NULL, vt_addr(&vt_server, 1, &ss), 1000), 0);
	}
	for (uint64_t end = vt_now_ms() + VT_PATIENCE; atomic_load(&total) < RESOLVED;) {
		CHECK(vt_now_ms() < end);
		usleep(1000);
	}
	for (int i = 0; i < RESOLVED; i++)
		CHECK_EQ(atomic_load(&seen[i]), 1);
	for (int i = 0; i < READERS; i++)
		CHECK_EQ(pthread_cancel(t[i]), 0);
	for (int i = 0; i < READERS; i++) {
		CHECK_EQ(pthread_join(t[i], &ret), 0);
		CHECK(ret == PTHREAD_CANCELED);
	}
	for (int i = 0; i < RESOLVED; i++)
		CHECK_EQ(rdma_destroy_id(ids[i]), 0);
	vt_no_event(ch);
	rdma_destroy_event_channel(ch);
}

static void *wait_for_ever(void *arg)
{
	struct rdma_cm_event *ev;

	rdma_get_cm_event(arg, &ev);
	FAIL("a wait at a channel that is gone has returned");
}

/* A channel, and ids with events on it, go while a thread waits there: it does not wake, but can be cancelled. */
static void channel_with_reader(void)
{
	for (int i = 0; i < 20; i++) {
		struct rdma_event_channel *ch = rdma_create_event_channel(), *more[8];
		struct rdma_cm_id *id = new_id(ch);
		pthread_t t;
		void *ret;

		CHECK_EQ(pthread_create(&t, NULL, wait_for_ever, ch), 0);
		usleep(i % 2 ? 20000 : 0);
		CHECK_EQ(rdma_destroy_id(id), 0);
		rdma_destroy_event_channel(ch);
		for (int k = 0; k < 8; k++) /* its number is used again */
			CHECK(more[k] = rdma_create_event_channel());
		usleep(10000);
		CHECK_EQ(pthread_cancel(t), 0);
		CHECK_EQ(pthread_join(t, &ret), 0);
		CHECK(ret == PTHREAD_CANCELED);
		for (int k = 0; k < 8; k++)
			rdma_destroy_event_channel(more[k]);
	}
}

static void *acknowledge_late(void *arg)
{
	usleep(100000);
	atomic_store(&total, 1);
	CHECK_EQ(rdma_ack_cm_event(arg), 0);
	return NULL;
}

/* A migration waits until nobody works on an event of the old channel. */
static void migration_waits(void)
{
	struct rdma_event_channel *from = rdma_create_event_channel(), *to = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(from);
	struct sockaddr_storage ss;
	pthread_t t;

	CHECK_EQ(rdma_resolve_addr(id, NULL, vt_addr(&vt_server, 1, &ss), 1000), 0);
	atomic_store(&total, 0);
	CHECK_EQ(pthread_create(&t, NULL, acknowledge_late, vt_event(from, RDMA_CM_EVENT_ADDR_RESOLVED)), 0);
	CHECK_EQ(rdma_migrate_id(id, to), 0);
	CHECK_EQ(atomic_load(&total), 1);
	CHECK_EQ(pthread_join(t, NULL), 0);
	/* To a channel of its own, and back: it is a synchronous id meanwhile. */
	CHECK_EQ(rdma_migrate_id(id, NULL), 0);
	CHECK(id->channel && id->channel != to);
	CHECK_ERRNO(rdma_migrate_id(id, NULL), EINVAL);
	CHECK_EQ(rdma_resolve_route(id, 1000), 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK_EQ(rdma_migrate_id(id, from), 0);
	CHECK(id->channel == from && !id->event);
	vt_no_event(from);
	vt_no_event(to);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(from);
	rdma_destroy_event_channel(to);
}

/* The channel of a synchronous id that does not block: calls begin what they are asked for, and the event tells. */
static void synchronous_nonblocking(void)
{
	struct sockaddr_storage ss;
	struct rdma_cm_id *id, *listen, *child;
	struct rdma_cm_event *ev;

	CHECK_EQ(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	CHECK(id->channel && id->channel->fd >= 0);
	CHECK_EQ(rdma_create_id(NULL, &listen, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_bind_addr(listen, vt_addr(&vt_server, 0, &ss)), 0);
	CHECK_EQ(rdma_listen(listen, 1), 0);
	set_flags(listen->channel->fd, true);
	CHECK_ERRNO(rdma_get_request(listen, &child), EAGAIN);
	CHECK_ERRNO(rdma_get_request(listen, &child), EAGAIN);

	set_flags(id->channel->fd, true);
	if (rdma_resolve_addr(id, NULL, vt_addr(&vt_server, rdma_get_src_port(listen), &ss), 1000)) {
		int err = errno;

		CHECK_EQ(err, EAGAIN);
		CHECK(!id->event);
		ev = vt_event(id->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK_EQ(rdma_ack_cm_event(ev), 0);
	}
	set_flags(id->channel->fd, false);
	CHECK_EQ(rdma_resolve_route(id, 1000), 0);
	CHECK_EQ(rdma_destroy_id(id), 0);
	CHECK_EQ(rdma_destroy_id(listen), 0);
}

static struct rdma_cm_id *endpoint(bool passive, uint16_t port, struct ibv_qp_init_attr *attr)
{
	struct rdma_addrinfo hints = { .ai_flags = passive ? RAI_PASSIVE : 0, .ai_port_space = RDMA_PS_TCP }, *ai;
	struct rdma_cm_id *id;
	char service[8];

	snprintf(service, sizeof(service), "%d", port);
	CHECK_EQ(rdma_getaddrinfo(host(&vt_server), service, &hints, &ai), 0);
	CHECK_EQ(rdma_create_ep(&id, ai, NULL, attr), 0);
	rdma_freeaddrinfo(ai);
	return id;
}

static void *connect_and_be_refused(void *arg)
{
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_cm_id *id = endpoint(false, *(int *)arg, &attr);

	CHECK_ERRNO(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED);
	CHECK_ERRNO(rdma_disconnect(id), EINVAL); /* it does not wait for what will not come */
	rdma_destroy_ep(id);
	return NULL;
}

/* A listener goes before what it has heard of is answered; the request stays, and can be refused with a word. */
static void listener_goes_first(void)
{
	for (int reject = 0; reject < 2; reject++) {
		struct rdma_cm_id *listen = endpoint(true, 0, NULL), *child;
		int port = ntohs(rdma_get_src_port(listen));
		pthread_t t;

		CHECK_EQ(rdma_listen(listen, 4), 0);
		CHECK_EQ(pthread_create(&t, NULL, connect_and_be_refused, &port), 0);
		CHECK_EQ(rdma_get_request(listen, &child), 0);
		CHECK(child->event && child->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && child->channel != listen->channel);
		rdma_destroy_ep(listen);
		if (reject)
			CHECK_EQ(rdma_reject(child, "no", 2), 0);
		rdma_destroy_ep(child);
		CHECK_EQ(pthread_join(t, NULL), 0);
	}
}

/* rdma_listen of an id that is bound to nothing takes any address and a free port. */
static void unbound_listener(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(ch);

	CHECK_EQ(rdma_listen(id, -1), 0);
	CHECK(rdma_get_src_port(id) != 0);
	CHECK(!id->verbs);
	CHECK_ERRNO(rdma_listen(id, 1), EINVAL);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

/* The address of the loopback interface stands for any: a listener there is heard by all, and this host has a device. */
static void loopback(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *listen = new_id(ch), *id = new_id(ch);
	struct sockaddr_storage ss, lo = { .ss_family = vt_server.ss_family };
	char zero[sizeof(struct in6_addr)] = "";

	if (lo.ss_family == AF_INET)
		((struct sockaddr_in *)&lo)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		((struct sockaddr_in6 *)&lo)->sin6_addr = in6addr_loopback;
	CHECK_EQ(rdma_bind_addr(listen, vt_addr(&lo, 0, &ss)), 0);
	CHECK(!listen->verbs && !listen->port_num);
	CHECK(!strcmp(host(&listen->route.addr.src_storage), lo.ss_family == AF_INET ? "127.0.0.1" : "::1"));
	CHECK_EQ(rdma_listen(listen, 4), 0);
	CHECK_EQ(rdma_resolve_addr(id, NULL, vt_addr(&lo, rdma_get_src_port(listen), &ss), 1000), 0);
	vt_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(id->verbs && rdma_get_src_port(id) != 0);
	CHECK_EQ(rdma_get_dst_port(id), rdma_get_src_port(listen));
	CHECK(!strcmp(host(&id->route.addr.src_storage), strdup(host(&id->route.addr.dst_storage))));
	CHECK(memcmp(&id->route.addr.addr.ibaddr.sgid, zero, sizeof(zero)));
	CHECK_EQ(rdma_destroy_id(id), 0);
	CHECK_EQ(rdma_destroy_id(listen), 0);
	rdma_destroy_event_channel(ch);
}

/* Names, and what hints say of them. */
static void names(void)
{
	struct rdma_addrinfo hints = { 0 }, *ai;
	struct sockaddr_storage ss;

	CHECK_ERRNO(rdma_getaddrinfo(NULL, NULL, NULL, &ai), EINVAL);
	/* no hints at all */
	CHECK_EQ(rdma_getaddrinfo(host(&vt_server), "7471", NULL, &ai), 0);
	CHECK(!ai->ai_src_len && ai->ai_dst_len && ai->ai_port_space == RDMA_PS_TCP && ai->ai_qp_type == IBV_QPT_RC);
	CHECK_EQ(ai->ai_dst_addr->sa_family, vt_server.ss_family);
	CHECK_EQ(ai->ai_family, vt_server.ss_family);
	CHECK_EQ(((struct sockaddr_in *)ai->ai_dst_addr)->sin_port, htons(7471)); /* in the same place for both families */
	rdma_freeaddrinfo(ai);
	/* a server at any address */
	hints.ai_flags = RAI_PASSIVE | RAI_FAMILY;
	hints.ai_family = AF_INET6;
	CHECK_EQ(rdma_getaddrinfo(NULL, "7471", &hints, &ai), 0);
	CHECK_EQ(ai->ai_src_addr->sa_family, AF_INET6);
	CHECK(!ai->ai_dst_len && !ai->ai_dst_addr);
	CHECK_EQ(ai->ai_flags, hints.ai_flags);
	rdma_freeaddrinfo(ai);
	/* the family of the hints is one only with the flag */
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK_EQ(rdma_getaddrinfo("127.0.0.1", "1", &hints, &ai), 0);
	CHECK_EQ(ai->ai_family, AF_INET);
	rdma_freeaddrinfo(ai);
	hints.ai_flags = RAI_NUMERICHOST | RAI_FAMILY;
	CHECK(rdma_getaddrinfo("127.0.0.1", "1", &hints, &ai) == EAI_ADDRFAMILY ||
	      rdma_getaddrinfo("127.0.0.1", "1", &hints, &ai) == EAI_NONAME);
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK_EQ(rdma_getaddrinfo("localhost", "1", &hints, &ai), EAI_NONAME);
	hints.ai_flags = RAI_NOROUTE;
	CHECK_EQ(rdma_getaddrinfo("localhost", "1", &hints, &ai), 0);
	CHECK(ai->ai_dst_canonname && !ai->ai_route_len);
	rdma_freeaddrinfo(ai);
	CHECK_EQ(rdma_getaddrinfo("127.0.0.1", "no such service", &hints, &ai), EAI_SERVICE);
	hints.ai_flags = 0x800;
	CHECK_EQ(rdma_getaddrinfo("127.0.0.1", "1", &hints, &ai), EAI_BADFLAGS);
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_FAMILY, .ai_family = AF_UNIX };
	CHECK_EQ(rdma_getaddrinfo("127.0.0.1", "1", &hints, &ai), EAI_FAMILY);
	/* kinds */
	hints = (struct rdma_addrinfo){ .ai_qp_type = IBV_QPT_UD };
	CHECK_EQ(rdma_getaddrinfo("127.0.0.1", "1", &hints, &ai), 0);
	CHECK_EQ(ai->ai_port_space, RDMA_PS_UDP);
	rdma_freeaddrinfo(ai);
	hints.ai_port_space = RDMA_PS_TCP;
	CHECK(rdma_getaddrinfo("127.0.0.1", "1", &hints, &ai) != 0);
	/* no name: what the hints have */
	vt_addr(&vt_server, htons(5), &ss);
	hints = (struct rdma_addrinfo){ .ai_dst_addr = (struct sockaddr *)&ss, .ai_dst_len = sizeof(struct sockaddr_in6),
		.ai_src_addr = (struct sockaddr *)&ss, .ai_src_len = sizeof(struct sockaddr_in6), .ai_port_space = RDMA_PS_TCP };
	CHECK_EQ(rdma_getaddrinfo(NULL, NULL, &hints, &ai), 0);
	CHECK(ai->ai_dst_addr != hints.ai_dst_addr && ai->ai_dst_len == hints.ai_dst_len && ai->ai_src_len == hints.ai_src_len);
	CHECK(!memcmp(ai->ai_dst_addr, &ss, ai->ai_dst_len));
	rdma_freeaddrinfo(ai);
	/* a source along with a name */
	hints.ai_dst_len = 0;
	CHECK_EQ(rdma_getaddrinfo(host(&vt_server), "5", &hints, &ai), 0);
	CHECK(ai->ai_src_len && ai->ai_dst_len);
	rdma_freeaddrinfo(ai);
	rdma_freeaddrinfo(NULL);
}

static void options(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(ch);
	uint8_t octet = 14;
	int on = 1, mpa = 1, junk = 77;

	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &octet, 1), 0);
	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &octet, 1), 0);
	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), 0);
	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)), 0);
	CHECK_ERRNO(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof(on)), EINVAL);
	CHECK_ERRNO(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &octet, 1), EINVAL);
	CHECK_ERRNO(rdma_set_option(id, RDMA_OPTION_ID, 99, &on, sizeof(on)), ENOSYS);
	CHECK_ERRNO(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, sizeof(on)), ENOSYS);
	CHECK_EQ(rdma_set_option(id, 0x5652, 1, &mpa, sizeof(mpa)), 0); /* MPA revision 1 */
	CHECK_ERRNO(rdma_set_option(id, 0x5652, 1, &junk, sizeof(junk)), EINVAL);
	CHECK_ERRNO(rdma_set_option(id, 0x5652, 1, &mpa, 3), EINVAL);
	CHECK_ERRNO(rdma_set_option(id, 0x5652, 999, &mpa, sizeof(mpa)), ENOSYS);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

/* What InfiniBand only has a use for. */
static void infiniband(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(ch);
	struct ibv_ece ece = { .vendor_id = 1, .options = 2 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct sockaddr_storage ss;
	int mask = -1;

	CHECK_ERRNO(rdma_establish(id), EINVAL);
	CHECK_ERRNO(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	CHECK_EQ(rdma_bind_addr(id, vt_addr(&vt_server, 0, &ss)), 0);
	CHECK_EQ(rdma_notify(id, IBV_EVENT_COMM_EST), 0);
	CHECK_ERRNO(rdma_set_local_ece(id, &ece), EOPNOTSUPP);
	CHECK_ERRNO(rdma_get_remote_ece(id, &ece), EOPNOTSUPP);
	CHECK_EQ(rdma_init_qp_attr(id, &attr, &mask), 0);
	CHECK_EQ(mask, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
	CHECK(attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_EQ(rdma_init_qp_attr(id, &attr, &mask), 0);
	CHECK_EQ(mask, 0);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT"));
	CHECK(!strcmp(rdma_event_str(99), "UNKNOWN EVENT"));
}

static int server_port;
static int64_t private_seen;

static void *echo_server(void *arg)
{
	struct rdma_cm_id *listen = arg, *id;
	struct ibv_wc wc;
	char buf[16];
	struct ibv_mr *mr;

	CHECK_EQ(rdma_get_request(listen, &id), 0);
	private_seen = id->event->param.conn.private_data_len;
	if (private_seen)
		CHECK(!memcmp(id->event->param.conn.private_data, "headtail", 8));
	CHECK(mr = rdma_reg_msgs(id, buf, sizeof(buf)));
	CHECK_EQ(rdma_post_recv(id, NULL, buf, sizeof(buf), mr), 0);
	CHECK_EQ(rdma_accept(id, NULL), 0);
	CHECK_EQ(rdma_get_recv_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	/* The other end disconnects: this one finds it so, however late it asks. */
	CHECK_EQ(rdma_post_recv(id, NULL, buf, sizeof(buf), mr), 0);
	CHECK_EQ(rdma_get_recv_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(rdma_disconnect(id), 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	CHECK_EQ(rdma_disconnect(id), 0);
	CHECK_EQ(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
	return NULL;
}

/* What rdma_getaddrinfo wants to be sent goes before the program's private data. Receives come from an SRQ of the id. */
static void connect_data(void)
{
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 10, .max_sge = 1 } };
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *ai;
	struct rdma_conn_param param = { .private_data = "tail", .private_data_len = 4, .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *listen = endpoint(true, 0, &attr), *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	char service[8], buf[16] = "hello";
	pthread_t t;

	server_port = ntohs(rdma_get_src_port(listen));
	CHECK_EQ(rdma_listen(listen, 0), 0);
	CHECK_EQ(pthread_create(&t, NULL, echo_server, listen), 0);
	snprintf(service, sizeof(service), "%d", server_port);
	CHECK_EQ(rdma_getaddrinfo(host(&vt_server), service, &hints, &ai), 0);
	CHECK(ai->ai_connect = malloc(4));
	memcpy(ai->ai_connect, "head", 4);
	ai->ai_connect_len = 4;
	CHECK_EQ(rdma_create_ep(&id, ai, NULL, NULL), 0);
	rdma_freeaddrinfo(ai);
	CHECK_EQ(rdma_create_srq(id, NULL, &srq), 0);
	CHECK(id->srq && id->pd && srq.attr.max_wr >= 10);
	CHECK_ERRNO(rdma_create_srq(id, NULL, &srq), EINVAL);
	attr = (struct ibv_qp_init_attr){ .cap = { 4, 0, 1, 0, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	CHECK_EQ(rdma_create_qp(id, NULL, &attr), 0);
	CHECK(attr.srq == id->srq && attr.recv_cq && attr.recv_cq == id->recv_cq && attr.recv_cq->cqe >= 10);
	CHECK_ERRNO(rdma_create_qp(id, NULL, &attr), EINVAL);
	CHECK(mr = rdma_reg_msgs(id, buf, sizeof(buf)));
	CHECK_EQ(rdma_post_recv(id, NULL, buf, sizeof(buf), mr), 0);
	param.initiator_depth = 254; /* more than a device has */
	CHECK_ERRNO(rdma_connect(id, &param), EINVAL);
	param.initiator_depth = 1;
	CHECK_ERRNO(rdma_disconnect(id), EINVAL);
	CHECK_EQ(rdma_connect(id, &param), 0);
	CHECK_EQ(rdma_post_send(id, NULL, buf, 6, mr, 0), 0);
	CHECK_EQ(rdma_get_send_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(rdma_disconnect(id), 0);
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(private_seen, 8);
	CHECK_EQ(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listen);
}

#define MANY 150

static void *accept_many(void *arg)
{
	struct rdma_cm_id *ids[MANY];

	for (int i = 0; i < MANY; i++) {
		CHECK_EQ(rdma_get_request(arg, &ids[i]), 0);
		CHECK_EQ(rdma_accept(ids[i], NULL), 0);
	}
	for (int i = 0; i < MANY; i++) {
		CHECK_EQ(rdma_disconnect(ids[i]), 0);
		rdma_destroy_ep(ids[i]);
	}
	return NULL;
}

/* Each synchronous id has three channels, if it is given no CQs. */
static void many(void)
{
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_cm_id *listen = endpoint(true, 0, &attr), *ids[MANY];
	int port = ntohs(rdma_get_src_port(listen));
	pthread_t t;

	CHECK_EQ(rdma_listen(listen, 0), 0);
	CHECK_EQ(pthread_create(&t, NULL, accept_many, listen), 0);
	for (int i = 0; i < MANY; i++) {
		attr = (struct ibv_qp_init_attr){ .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
		ids[i] = endpoint(false, port, &attr);
		CHECK_EQ(rdma_connect(ids[i], NULL), 0);
	}
	CHECK_EQ(pthread_join(t, NULL), 0);
	for (int i = 0; i < MANY; i++) {
		CHECK_EQ(rdma_disconnect(ids[i]), 0);
		rdma_destroy_ep(ids[i]);
	}
	rdma_destroy_ep(listen);
}

/* With $VRNIC_DEVICE of several: the others are not there. $VT_SERVER is of another, $VT_CLIENT of ours. */
static void one_device(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(ch);
	struct sockaddr_storage ss, dst;
	struct ibv_context **list;
	int n;

	CHECK(list = rdma_get_devices(&n));
	CHECK_EQ(n, 1);
	CHECK(!strcmp(ibv_get_device_name(list[0]->device), getenv("VRNIC_DEVICE")));
	CHECK_ERRNO(rdma_bind_addr(id, vt_addr(&vt_server, 0, &ss)), ENODEV);
	CHECK_ERRNO(rdma_resolve_addr(id, vt_addr(&vt_server, 0, &ss), vt_addr(&vt_client, 9, &dst), 1000), ENODEV);
	CHECK_EQ(rdma_bind_addr(id, vt_addr(&vt_client, 0, &ss)), 0);
	CHECK(id->verbs == list[0]);
	CHECK_EQ(rdma_destroy_id(id), 0);
	/* Another's address is reached from ours, as if it were on another host. */
	id = new_id(ch);
	CHECK_EQ(rdma_resolve_addr(id, NULL, vt_addr(&vt_server, 9, &dst), 1000), 0);
	vt_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(id->verbs == list[0]);
	CHECK(!strcmp(host(&id->route.addr.src_storage), strdup(host(&vt_client))));
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_free_devices(list);
	rdma_destroy_event_channel(ch);
}

/* $VRNIC_CM makes no sense: no id is made with other settings than were asked for. */
static void bad_environment(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;

	CHECK_ERRNO(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), EINVAL);
	rdma_destroy_event_channel(ch);
}

static const struct vt_case cases[] = {
	{ "datagrams", datagrams }, { "readers", readers }, { "channel_with_reader", channel_with_reader },
	{ "migration_waits", migration_waits }, { "synchronous_nonblocking", synchronous_nonblocking },
	{ "listener_goes_first", listener_goes_first }, { "unbound_listener", unbound_listener }, { "loopback", loopback },
	{ "names", names }, { "options", options }, { "infiniband", infiniband }, { "connect_data", connect_data }, { "many", many },
	{ "one_device", one_device }, { "bad_environment", bad_environment }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
