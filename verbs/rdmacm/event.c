/*
 * librdmacm: events. The daemon queues them by channel and writes one octet into the channel's pipe
 * for each. Whoever reads an octet fetches one event, which may be another than the one that the
 * octet was written for.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cm.h"

/*
 * Reads are an octet to programs. What is not negotiated (MPA of revision 1) is what the device
 * allows, and a peer that offers more is told so by the answer (RFC 6581, section 9.1): programs
 * accept with what they have read here, and rdma_accept refuses what the device does not have.
 */
static uint8_t reads(uint16_t n, uint8_t max) { return n < max ? n : max; }

static void fill_private(struct cm_event *ev, const struct vrnic_conn_param *p,
			 const void **data, uint8_t *len)
{
	if (!p->private_len)
		return;
	*len = p->private_len < CM_MAX_PRIVATE ? p->private_len : CM_MAX_PRIVATE;
	memcpy(ev->private, p->private, *len);
	*data = ev->private;
}

/* Of datagrams: where they go to. */
static void fill_ud_param(struct cm_event *ev, const struct vrnic_cm_event *e)
{
	struct rdma_ud_param *u = &ev->ev.param.ud;

	fill_private(ev, &e->param, &u->private_data, &u->private_data_len);
	vrnic_from_ah_attr(&e->path, &u->ah_attr);
	u->qp_num = e->param.qpn;
	u->qkey = e->qkey;
}

/*
 * ird and ord of a request are the peer's: its Reads are those that the local side responds to.
 * Later ones are what was agreed on, seen from here.
 */
static void fill_param(struct cm_event *ev, const struct vrnic_cm_event *e, const struct cm_id *id)
{
	struct ibv_context *verbs = id->id.verbs;
	const struct vrnic_conn_param *p = &e->param;
	struct rdma_conn_param *c = &ev->ev.param.conn;
	bool request = e->type == VRNIC_EV_CONNECT_REQUEST;

	if (cm_is_ud(id)) {
		fill_ud_param(ev, e);
		return;
	}
	fill_private(ev, p, &c->private_data, &c->private_data_len);
	if (!verbs)
		return;
	c->responder_resources = reads(request ? p->ord : p->ird, cm_max_ird(verbs));
	c->initiator_depth = reads(request ? p->ird : p->ord, cm_max_ord(verbs));
	c->flow_control = p->flow_control;
	c->retry_count = p->retry;
	c->rnr_retry_count = p->rnr_retry;
	c->srq = p->srq;
	c->qp_num = p->qpn;
}

static void fill_addrs(struct cm_id *id, const struct vrnic_cm_event *e)
{
	if (e->src.family)
		cm_from_ring(&e->src, &id->id.route.addr.src_storage);
	if (e->dst.family)
		cm_from_ring(&e->dst, &id->id.route.addr.dst_storage);
}

/*
 * A new id for a request. It is the listener's event: the program may destroy the new id before it
 * acknowledges.
 */
static int connect_request(struct cm_id *listener, const struct vrnic_cm_event *e,
			   struct cm_event *ev)
{
	struct cm_id *child;
	int err = cm_id_child(listener, e->child, &child);

	if (err)
		return err;
	fill_addrs(child, e);
	err = cm_attach(child, e->device);
	if (err) {
		cm_id_refuse(child);
		return err;
	}
	fill_param(ev, e, child);
	cm_fill_route(child);
	if (!cm_is_ud(child)) {
		child->responder_resources = ev->ev.param.conn.responder_resources;
		child->initiator_depth = ev->ev.param.conn.initiator_depth;
	}
	ev->ev.id = &child->id;
	ev->ev.listen_id = &listener->id;
	return 0;
}

/* What an event does to its id. */
static void apply(struct cm_id *id, const struct vrnic_cm_event *e, struct cm_event *ev)
{
	int err;

	switch (e->type) {
	case VRNIC_EV_ADDR_RESOLVED:
		fill_addrs(id, e);
		err = cm_attach(id, e->device);
		if (err) {
			ev->ev.event = RDMA_CM_EVENT_ADDR_ERROR;
			ev->ev.status = -err;
		}
		break;
	case VRNIC_EV_ROUTE_RESOLVED:
		cm_fill_route(id);
		break;
	case VRNIC_EV_ESTABLISHED: /* a port of its own comes with the connection */
		fill_addrs(id, e);
		id->connected = !cm_is_ud(id);
		if (id->connected && id->id.verbs)
			vrnic_qp_connected(id->id.verbs, id->qpn);
		break;
	case VRNIC_EV_DISCONNECTED: /* status is for what did not come about */
		ev->ev.status = 0;
		id->connected = false;
		id->disconnected = true;
		break;
	case VRNIC_EV_DEVICE_REMOVAL:
		id->removed = true;
		break;
	}
	fill_param(ev, e, id);
	if (ev->group)
		cm_group_event(ev->group, e, ev);
}

static void give(struct cm_event *ev, struct cm_id *owner)
{
	ev->owner = owner;
	owner->given++;
	if (ev->group)
		ev->group->given++;
}

/* Fetches one event: 0, EAGAIN if there is none, or an errno. cm_lock is held. */
static int fetch(struct cm_chan *ch, struct cm_event *ev)
{
	struct vrnic_cm_event e;
	struct cm_id *id;
	int err = vrnic_rpc_handle(ch->s, VRNIC_OP_CM_GET_EVENT, ch->handle, &e, sizeof(e));

	if (err)
		return vrnic_dead(ch->s) ? EAGAIN : err; /* what is made up comes next */
	id = cm_id_find(ch->s, e.id);
	if (!id || e.type > VRNIC_EV_TIMEWAIT_EXIT || e.param.private_len > VRNIC_MAX_PRIVATE) {
		vrnic_corrupt(ch->s, "connection event");
		return EAGAIN;
	}
	ev->ev.id = &id->id;
	ev->ev.event = e.type;
	ev->ev.status = e.status;
	if (e.type == VRNIC_EV_MULTICAST_JOIN || e.type == VRNIC_EV_MULTICAST_ERROR) {
		ev->group = cm_group_find(id, e.group);
		if (!ev->group)
			return EAGAIN; /* it has been left */
	}
	if (e.type == VRNIC_EV_CONNECT_REQUEST)
		err = connect_request(id, &e, ev);
	else
		apply(id, &e, ev);
	if (!err)
		give(ev, id);
	return err;
}

/*
 * A session that has died tells each of its ids, once: a connection that it is over, and then that
 * the device is gone. The id that has something to be told, or NULL.
 */
static struct cm_id *untold(struct cm_chan *ch)
{
	struct cm_id *id = NULL;

	while ((id = cm_id_each(ch, id)) && (!id->handle || id->removed))
		;
	return id;
}

static void make_up(struct cm_id *id, struct cm_event *ev)
{
	if (id->connected) {
		id->connected = false;
		id->disconnected = true;
		ev->ev.event = RDMA_CM_EVENT_DISCONNECTED;
	} else {
		id->removed = true;
		ev->ev.event = RDMA_CM_EVENT_DEVICE_REMOVAL;
	}
	ev->ev.id = &id->id;
	give(ev, id);
}

/*
 * An event of a session that has died. Behind the last one the channel is silent, as after the
 * removal of a device. A channel that never had one is told of by EIO, once.
 */
static int last_events(struct cm_chan *ch, struct cm_event *ev)
{
	struct cm_id *id;
	int err;

	if (ch->silent)
		return EAGAIN;
	id = untold(ch);
	if (id)
		make_up(id, ev);
	if (untold(ch))
		return 0;
	err = cm_chan_silence(ch);
	return id ? 0 : err ? err : EIO;
}

/* A thread in rdma_get_cm_event. */
struct waiter {
	struct cm_chan *ch;
	struct cm_event *ev;
};

/* Runs also when the thread is cancelled. */
static void stop_waiting(void *arg)
{
	struct waiter *w = arg;
	int state = cm_enter();

	cm_chan_put(w->ch);
	cm_leave(state);
	free(w->ev);
}

/* Does not return if the channel has been destroyed: as if the thread were still waiting. */
static void park_if_gone(struct cm_chan *ch)
{
	int state = cm_enter();
	bool gone = ch->gone;

	cm_leave(state);
	while (gone)
		pause();
}

static int take(struct waiter *w)
{
	struct cm_chan *ch = w->ch;
	int err = EAGAIN, state = cm_enter();

	if (!ch->gone)
		err = vrnic_dead(ch->s) ? last_events(ch, w->ev) : fetch(ch, w->ev);
	cm_leave(state);
	return err;
}

/* Waits for a token, or for the end of the session: 0 or an errno. */
static int wait_token(struct cm_chan *ch)
{
	char c;

	if (!atomic_load(&ch->silent))
		return vrnic_wait_token(ch->s, ch->ch.fd) < 0 ? errno : 0;
	/* nobody writes there: it waits until the channel is destroyed, which is then seen */
	return read(ch->ch.fd, &c, 1) < 0 && errno != EBADF ? errno : 0;
}

static int next_event(struct waiter *w)
{
	struct cm_chan *ch = w->ch;
	int err;

	do {
		park_if_gone(ch);
		err = wait_token(ch);
		park_if_gone(ch);
		if (err)
			return err;
		err = take(w); /* a token without an event: it was another thread's, or its id was destroyed */
	} while (err == EAGAIN);
	return err;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct waiter w;
	int err, state;

	if (!channel || !event)
		return cm_return(EINVAL);
	w.ev = calloc(1, sizeof(*w.ev));
	if (!w.ev)
		return -1;
	w.ch = to_cm_chan(channel);
	state = cm_enter();
	w.ch->refs++;
	cm_leave(state);

	pthread_cleanup_push(stop_waiting, &w);
	err = next_event(&w);
	if (!err) {
		*event = &w.ev->ev;
		w.ev = NULL;
	}
	pthread_cleanup_pop(1);
	return cm_return(err);
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	struct cm_event *ev;
	int state;

	if (!event)
		return cm_return(EINVAL);
	ev = to_cm_event(event);
	state = cm_enter();
	ev->owner->acked++;
	if (ev->group)
		ev->group->acked++;
	pthread_cond_broadcast(&cm_acked);
	cm_leave(state);
	free(ev);
	return 0;
}

static void unlock(void *lock) { pthread_mutex_unlock(lock); }

void cm_wait_acks(struct cm_id *id)
{
	pthread_mutex_lock(&cm_lock);
	pthread_cleanup_push(unlock, &cm_lock);
	while ((int32_t)(id->given - id->acked) > 0)
		pthread_cond_wait(&cm_acked, &cm_lock);
	pthread_cleanup_pop(1);
}

void cm_own_event(struct cm_id *id, struct rdma_cm_event *event)
{
	struct cm_event *ev = to_cm_event(event);
	int state = cm_enter();

	ev->owner->given--;
	pthread_cond_broadcast(&cm_acked);
	give(ev, id);
	cm_leave(state);
	id->id.event = event;
}

void cm_drop_event(struct cm_id *id)
{
	struct rdma_cm_event *ev = id->id.event;

	id->id.event = NULL;
	if (ev)
		rdma_ack_cm_event(ev);
}

/* What an event says that is not the one that was waited for. */
static int failure(const struct rdma_cm_event *ev)
{
	if (ev->event == RDMA_CM_EVENT_REJECTED)
		return ECONNREFUSED;
	if (ev->status)
		return ev->status < 0 ? -ev->status : ev->status;
	switch (ev->event) {
	case RDMA_CM_EVENT_DISCONNECTED:
		return ECONNRESET;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		return ENODEV;
	default:
		return ECONNABORTED;
	}
}

int cm_complete(struct cm_id *id, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *ev;

	if (!id->sync)
		return 0;
	for (;;) {
		cm_drop_event(id);
		if (rdma_get_cm_event(id->id.channel, &ev))
			return -1;
		id->id.event = ev;
		if (ev->event == want && !ev->status)
			return 0;
		if (want == RDMA_CM_EVENT_DISCONNECTED && ev->event == RDMA_CM_EVENT_ESTABLISHED)
			continue; /* of a call that did not wait for it */
		return cm_return(failure(ev));
	}
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
	switch (event) {
#define NAME(e) case RDMA_CM_EVENT_##e: return "RDMA_CM_EVENT_" #e
	NAME(ADDR_RESOLVED);
	NAME(ADDR_ERROR);
	NAME(ROUTE_RESOLVED);
	NAME(ROUTE_ERROR);
	NAME(CONNECT_REQUEST);
	NAME(CONNECT_RESPONSE);
	NAME(CONNECT_ERROR);
	NAME(UNREACHABLE);
	NAME(REJECTED);
	NAME(ESTABLISHED);
	NAME(DISCONNECTED);
	NAME(DEVICE_REMOVAL);
	NAME(MULTICAST_JOIN);
	NAME(MULTICAST_ERROR);
	NAME(ADDR_CHANGE);
	NAME(TIMEWAIT_EXIT);
#undef NAME
	}
	return "UNKNOWN EVENT";
}
