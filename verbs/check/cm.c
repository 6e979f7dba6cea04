/* librdmacm: ids, their channels and events. */
#include "check.h"

/* What InfiniBand and RoCE carry with a request and with its answer. */
#define CONNECT_DATA 56
#define ACCEPT_DATA 196

CHECK_EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct rdma_event_channel *ch = next_cm()->rdma_create_event_channel();
	struct object *o;
	struct site site;

	if (!ch)
		return NULL;
	site_take(&site);
	book_lock();
	o = book_add(KIND_EVENT_CHANNEL, ch, sizeof(*o), &site);
	if (o)
		o->internal = site_from_cm(&site);
	book_unlock();
	return ch;
}

CHECK_EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *ch)
{
	struct object *o;
	struct site site;

	site_take(&site);
	book_lock();
	o = book_find(KIND_EVENT_CHANNEL, ch);
	if (o && !o->internal)
		destroy_tell("closed", "rdma_destroy_event_channel", o, &site);
	if (o)
		book_remove(o);
	book_unlock();
	next_cm()->rdma_destroy_event_channel(ch);
}

struct id {
	struct object o;
	uint32_t qpn; /* of a queue pair that the program has made without it; 0: of none */
};

/* With the lock held. */
static struct object *add_id(struct rdma_cm_id *id, const struct site *site)
{
	struct object *o = book_add(KIND_ID, id, sizeof(struct id), site);

	if (!o)
		return NULL;
	o->internal = site_from_cm(site);
	if (id->channel)
		book_use(o, book_find(KIND_EVENT_CHANNEL, id->channel));
	return o;
}

CHECK_EXPORT int rdma_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **id,
				void *context, enum rdma_port_space ps)
{
	int err = next_cm()->rdma_create_id(ch, id, context, ps);
	struct site site;

	if (err)
		return err;
	site_take(&site);
	book_lock();
	add_id(*id, &site);
	book_unlock();
	return 0;
}

/* What librdmacm has made is the program's to end. */
static void claim(struct object *o, const struct site *site)
{
	if (!o || site_from_cm(site))
		return;
	o->internal = false;
	o->made = *site;
}

/* With the lock held. */
static void claim_qp(struct rdma_cm_id *id, const struct site *site)
{
	struct object *qp = id->qp ? book_find(KIND_QP, id->qp) : NULL;

	if (!qp)
		return;
	claim(qp, site);
	book_use(qp, book_find(KIND_ID, id));
}

CHECK_EXPORT int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res,
				struct ibv_pd *pd,
				struct ibv_qp_init_attr *attr)
{
	int err = next_cm()->rdma_create_ep(id, res, pd, attr);
	struct site site;

	if (err)
		return err;
	site_take(&site);
	book_lock();
	add_id(*id, &site);
	claim_qp(*id, &site);
	book_unlock();
	return 0;
}

CHECK_EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd,
				struct ibv_qp_init_attr *attr)
{
	int err = next_cm()->rdma_create_qp(id, pd, attr);
	struct site site;

	site_take(&site);
	book_lock();
	if (!err)
		claim_qp(id, &site);
	book_unlock();
	return err;
}

CHECK_EXPORT int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	int err = next_cm()->rdma_create_qp_ex(id, attr);
	struct site site;

	site_take(&site);
	book_lock();
	if (!err)
		claim_qp(id, &site);
	book_unlock();
	return err;
}

/* With the lock held: what is posted to a QP comes back from now on. */
static void end_connection(struct rdma_cm_id *id)
{
	struct id *known = id ? book_find(KIND_ID, id) : NULL;
	struct object *o = NULL;
	struct qp *qp = id && id->qp ? book_find(KIND_QP, id->qp) : NULL;

	if (qp)
		early_qp_ended(qp);
	if (!known || !known->qpn)
		return;
	while ((o = book_number(KIND_QP, known->qpn, o)))
		if (container_of(o, struct qp, o)->context == id->verbs)
			early_qp_ended(container_of(o, struct qp, o));
}

/* Connects the program's own queue pair, if it names one. */
static void name_qp(struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	struct id *known;

	book_lock();
	known = book_find(KIND_ID, id);
	if (known)
		known->qpn = id->qp || !param ? 0 : param->qp_num;
	book_unlock();
}

CHECK_EXPORT int rdma_disconnect(struct rdma_cm_id *id)
{
	book_lock();
	end_connection(id);
	book_unlock();
	return next_cm()->rdma_disconnect(id);
}

static void check_data(const char *call, const struct rdma_conn_param *param, uint64_t most)
{
	struct report r;
	struct site site;

	if (!param || !param->private_data || param->private_data_len <= most)
		return;
	site_take(&site);
	book_lock();
	if (report_begin(&r, "long-private-data", &site)) {
		report_text(&r, "call", call);
		report_number(&r, "length", param->private_data_len);
		report_number(&r, "room", most);
		report_site(&r, "here", &site);
		report_send(&r);
	}
	book_unlock();
}

CHECK_EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	check_data("rdma_connect", param, CONNECT_DATA);
	name_qp(id, param);
	return next_cm()->rdma_connect(id, param); /* it gets the events that it waits for by this */
}

CHECK_EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	check_data("rdma_accept", param, ACCEPT_DATA);
	name_qp(id, param);
	return next_cm()->rdma_accept(id, param);
}

/* ---- events ---- */

static void got(struct rdma_cm_event *ev, const struct site *site)
{
	bool request = ev->event == RDMA_CM_EVENT_CONNECT_REQUEST;
	struct object *owner = book_find(KIND_ID, request ? ev->listen_id : ev->id), *o;

	if (request)
		add_id(ev->id, site);
	switch (ev->event) {
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		end_connection(ev->id);
		break;
	default:
		break;
	}
	o = owner ? book_add(KIND_EVENT, ev, sizeof(*o), site) : NULL;
	if (!o)
		return;
	book_use(o, owner);
	owner->unacked++;
	owner->event = *site;
}

CHECK_EXPORT int rdma_get_cm_event(struct rdma_event_channel *ch, struct rdma_cm_event **ev)
{
	int err = next_cm()->rdma_get_cm_event(ch, ev);
	struct site site;

	if (err)
		return err;
	site_take(&site);
	book_lock();
	got(*ev, &site);
	book_unlock();
	return 0;
}

/* With the lock held. */
static void disown(struct object *ev)
{
	struct object *owner = ev->uses[0];

	if (owner && owner->unacked)
		owner->unacked--;
	ev->uses[0] = NULL;
}

CHECK_EXPORT int rdma_ack_cm_event(struct rdma_cm_event *ev)
{
	struct object *o;

	book_lock();
	o = book_find(KIND_EVENT, ev);
	if (o) {
		disown(o);
		book_remove(o);
	}
	book_unlock();
	return next_cm()->rdma_ack_cm_event(ev);
}

/* The event of a request is kept in the new id, which acknowledges it. */
CHECK_EXPORT int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	int err = next_cm()->rdma_get_request(listen, id);
	struct object *o;
	struct site site;

	if (err)
		return err;
	site_take(&site);
	book_lock();
	claim(book_find(KIND_ID, *id), &site);
	claim_qp(*id, &site);
	o = (*id)->event ? book_find(KIND_EVENT, (*id)->event) : NULL;
	if (o)
		disown(o);
	book_unlock();
	return 0;
}

CHECK_EXPORT int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *ch)
{
	int err = next_cm()->rdma_migrate_id(id, ch);
	struct object *o;

	book_lock();
	o = err ? NULL : book_find(KIND_ID, id);
	if (o)
		o->uses[0] = ch ? book_find(KIND_EVENT_CHANNEL, ch) : NULL;
	book_unlock();
	return err;
}

CHECK_EXPORT int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct object *o, *kept;
	struct site site;
	int err;

	site_take(&site);
	book_lock();
	o = book_find(KIND_ID, id);
	if (o && !o->internal)
		destroy_tell("closed", "rdma_destroy_id", o, &site);
	/* which it acknowledges itself */
	kept = id->event ? book_find(KIND_EVENT, id->event) : NULL;
	if (kept)
		disown(kept);
	book_unlock();
	event_wait(KIND_ID, id, "rdma_destroy_id", &site);
	err = next_cm()->rdma_destroy_id(id);
	book_lock();
	if (o && !err)
		book_remove(o);
	book_unlock();
	return err;
}
