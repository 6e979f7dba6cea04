/* librdmacm: ids, from their creation to their end. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cm.h"

int cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context,
		 enum rdma_port_space ps,
		 enum ibv_qp_type type)
{
	struct vrnic_session *s = channel ? to_cm_chan(channel)->s : vrnic_session();
	struct cm_chan *ch;
	struct cm_id *id;
	int err;

	if (!s)
		return -1;
	ch = channel ? to_cm_chan(channel) : cm_chan_new(s);
	if (!ch)
		return -1;
	err = cm_id_new(ch, context, ps, type, &id);
	if (err)
		goto no_id;
	id->sync = !channel;
	err = cm_default_options(id);
	if (err) {
		rdma_destroy_id(&id->id);
		return cm_return(err);
	}
	*out = &id->id;
	return 0;
no_id:
	if (!channel)
		cm_chan_destroy(ch);
	return cm_return(err);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
		   enum rdma_port_space ps)
{
	switch (ps) {
	case RDMA_PS_TCP:
	case RDMA_PS_IB:
		return cm_create_id(channel, id, context, ps, IBV_QPT_RC);
	case RDMA_PS_UDP:
	case RDMA_PS_IPOIB:
		return cm_create_id(channel, id, context, ps, IBV_QPT_UD);
	}
	return cm_return(EINVAL);
}

/* id->qp may have been destroyed by ibv_destroy_qp, or be so afterwards: it is not looked at. */
int rdma_destroy_id(struct rdma_cm_id *rid)
{
	struct cm_id *id = to_cm_id(rid);
	struct cm_chan *own;
	int err, state = cm_enter();

	err = cm_id_end(id);
	if (!err)
		id->removed = true; /* nothing is made up for it any more, should the session die now */
	cm_leave(state);
	if (err)
		return cm_return(err);
	cm_drop_event(id);
	cm_wait_acks(id);
	state = cm_enter();
	own = id->sync ? id->chan : NULL;
	cm_id_free(id);
	if (own)
		cm_chan_destroy_locked(own);
	cm_leave(state);
	return 0;
}

/*
 * Blocks until the events of the id that came through the old channel have been acknowledged, so
 * that nobody works on one of them when it returns.
 */
int rdma_migrate_id(struct rdma_cm_id *rid, struct rdma_event_channel *channel)
{
	struct cm_id *id = to_cm_id(rid);
	struct cm_chan *to, *own = NULL;
	int err, state;

	if (id->sync && !channel)
		return cm_return(EINVAL);
	to = channel ? to_cm_chan(channel) : cm_chan_new(id->s);
	if (!to)
		return -1;
	state = cm_enter();
	if (id->sync)
		own = id->chan;
	err = cm_id_move(id, to);
	if (!err)
		id->sync = !channel;
	if (err && !channel)
		cm_chan_destroy_locked(to);
	cm_leave(state);
	if (err)
		return cm_return(err);
	if (own)
		cm_drop_event(id);
	cm_wait_acks(id);
	if (own)
		cm_chan_destroy(own);
	return 0;
}

/*
 * The port of a program that has just ended is free on Linux when the program is gone; the daemon
 * hears of that a moment later. So a port that is taken is asked for again: 1 ms later, then 2, up
 * to 31 in all.
 */
static int try_bind(struct cm_id *id, const struct vrnic_cm_bind_request *req)
{
	struct timespec t = { .tv_nsec = 1000000 };
	int err, state;

	for (;; t.tv_nsec *= 2) {
		err = vrnic_rpc(id->s, VRNIC_OP_CM_BIND, req, sizeof(*req), NULL, 0, -1, NULL, 0);
		if (err != EADDRINUSE || t.tv_nsec > 16000000)
			return err;
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		nanosleep(&t, NULL);
		pthread_setcancelstate(state, NULL);
	}
}

static int bind_to(struct cm_id *id, const struct vrnic_sock_addr *a)
{
	struct vrnic_cm_bind_request req = { .id = id->handle, .addr = *a };
	struct vrnic_sock_addr shown = *a;
	int err;

	if (!id->handle)
		return ENODEV;
	err = cm_source(id->s, &req.addr, NULL);
	if (!err)
		err = try_bind(id, &req);
	if (err)
		return err;
	id->bound = true;
	err = cm_query(id);
	/* the program finds the address of the loopback interface if it has given that */
	if (!err && cm_any(id->s, a)) {
		shown.port = ntohs(rdma_get_src_port(&id->id));
		cm_from_ring(&shown, &id->id.route.addr.src_storage);
	}
	return err;
}

int rdma_bind_addr(struct rdma_cm_id *rid, struct sockaddr *addr)
{
	struct vrnic_sock_addr a;

	if (!addr || !cm_to_ring(addr, &a))
		return cm_return(EINVAL);
	return cm_return(bind_to(to_cm_id(rid), &a));
}

int rdma_resolve_addr(struct rdma_cm_id *rid, struct sockaddr *src, struct sockaddr *dst,
		      int timeout_ms)
{
	struct cm_id *id = to_cm_id(rid);
	struct vrnic_cm_resolve_addr_request req = { .id = id->handle, .timeout_ms = timeout_ms > 0
						    ? timeout_ms : 0 };
	struct vrnic_sock_addr own = { 0 };
	bool sync = id->sync;
	int err;

	if (!dst || !cm_to_ring(dst, &req.dst) || (src && !cm_to_ring(src, &req.src)))
		return cm_return(EINVAL);
	if (!id->handle)
		return cm_return(ENODEV);
	if (!src && id->bound)
		cm_to_ring(&rid->route.addr.src_addr, &own);
	err = cm_local_destination(id->s, src ? &req.src : &own, &req.dst);
	if (!err && (!own.family || cm_any(id->s, &own)))
		err = cm_source(id->s, &req.src, &req.dst);
	if (err)
		return cm_return(err);
	/* before another thread can have the event */
	cm_from_ring(&req.dst, &rid->route.addr.dst_storage);
	err = vrnic_rpc(id->s, VRNIC_OP_CM_RESOLVE_ADDR, &req, sizeof(req), NULL, 0, -1, NULL, 0);
	if (err)
		return cm_return(err);
	/* who has the event may have destroyed the id */
	return sync ? cm_complete(id, RDMA_CM_EVENT_ADDR_RESOLVED) : 0;
}

int rdma_resolve_route(struct rdma_cm_id *rid, int timeout_ms)
{
	struct cm_id *id = to_cm_id(rid);
	struct vrnic_cm_resolve_route_request req = { .id = id->handle, .timeout_ms = timeout_ms > 0
						     ? timeout_ms : 0 };
	bool sync = id->sync;
	int err = EINVAL;

	if (id->handle)
		err = vrnic_rpc(id->s, VRNIC_OP_CM_RESOLVE_ROUTE, &req, sizeof(req), NULL, 0, -1, NULL, 0);
	if (err)
		return cm_return(err);
	return sync ? cm_complete(id, RDMA_CM_EVENT_ROUTE_RESOLVED) : 0;
}

/* What Linux takes a backlog for that is none, or more than that. */
#define MAX_BACKLOG 1024

int rdma_listen(struct rdma_cm_id *rid, int backlog)
{
	struct cm_id *id = to_cm_id(rid);
	struct vrnic_cm_listen_request req = {
		.id = id->handle, .backlog = backlog > 0 && backlog < MAX_BACKLOG ? backlog : MAX_BACKLOG,
	};
	struct vrnic_sock_addr any = { .family = VRNIC_AF_INET };
	int err = 0;

	if (!id->bound)
		err = bind_to(id, &any);
	if (!err)
		err = vrnic_rpc(id->s, VRNIC_OP_CM_LISTEN, &req, sizeof(req), NULL, 0, -1, NULL, 0);
	return cm_return(err);
}

/*
 * The event is kept in the new id, until that is accepted or destroyed, and counts for it: the
 * listener can be destroyed before.
 */
int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **out)
{
	struct cm_id *id = to_cm_id(listen);
	struct rdma_cm_event *ev;
	struct ibv_qp_init_attr attr;
	struct rdma_cm_id *child;
	int err;

	if (!id->sync || !out)
		return cm_return(EINVAL);
	cm_drop_event(id);
	if (rdma_get_cm_event(listen->channel, &ev))
		return -1;
	if (ev->event != RDMA_CM_EVENT_CONNECT_REQUEST || ev->status) {
		err = ev->status < 0 ? -ev->status : ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL ? ENODEV : EINVAL;
		rdma_ack_cm_event(ev);
		return cm_return(err);
	}
	child = ev->id;
	cm_own_event(to_cm_id(child), ev);
	if (id->ep_attr) {
		attr = *id->ep_attr;
		if (rdma_create_qp(child, id->ep_pd, &attr)) {
			err = errno;
			rdma_destroy_id(child);
			return cm_return(err);
		}
	}
	*out = child;
	return 0;
}
