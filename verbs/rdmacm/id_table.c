/*
 * librdmacm: the table of ids, and what the daemon is told of their beginning, their channel and
 * their end.
 */
#include <stdlib.h>

#include "cm.h"

/* All ids of the daemon's, by handle; cm_lock. */
static struct vrnic_table ids;

static struct cm_id *id_of(struct vrnic_entry *e)
{
	return e ? container_of(e, struct cm_id, entry) : NULL;
}

struct cm_id *cm_id_find(struct vrnic_session *s, uint32_t handle)
{
	struct vrnic_entry *e = vrnic_table_find(&ids, handle);

	while (e && id_of(e)->s != s)
		e = vrnic_table_again(e);
	return id_of(e);
}

struct cm_id *cm_id_each(struct cm_chan *ch, struct cm_id *after)
{
	struct vrnic_entry *e = after ? &after->entry : NULL;

	while ((e = vrnic_table_each(&ids, e)) && id_of(e)->chan != ch)
		;
	return id_of(e);
}

void cm_id_free(struct cm_id *id)
{
	if (id->handle)
		vrnic_table_remove(&ids, &id->entry);
	cm_chan_drop_id(id->chan);
	cm_groups_free(id);
	free(id->ep_attr);
	free(id->connect);
	free(id);
}

/* cm_lock is held. handle 0: an id that the daemon does not know. */
static struct cm_id *new_id(struct cm_chan *ch, uint32_t handle, void *context,
			    enum rdma_port_space ps,
			    enum ibv_qp_type type)
{
	struct cm_id *id = calloc(1, sizeof(*id));

	if (!id)
		return NULL;
	id->s = ch->s;
	id->handle = handle;
	id->id.context = context;
	id->id.ps = ps;
	id->id.qp_type = type;
	cm_chan_add_id(ch, id);
	if (handle)
		vrnic_table_add(&ids, &id->entry, handle);
	return id;
}

int cm_id_new(struct cm_chan *ch, void *context, enum rdma_port_space ps, enum ibv_qp_type type,
	      struct cm_id **out)
{
	struct vrnic_cm_create_id_request req = { .chan = ch->handle, .ps = ps, .type = type };
	struct vrnic_cm_create_id_reply rep = { 0 };
	int err = 0, state = cm_enter();

	if ((ps == RDMA_PS_TCP && type == IBV_QPT_RC) || (ps == RDMA_PS_UDP && type == IBV_QPT_UD)) {
		err = vrnic_rpc(ch->s, VRNIC_OP_CM_CREATE_ID, &req, sizeof(req), &rep, sizeof(rep), -1, NULL, 0);
		if (err == ENODEV) {
			vrnic_complain(VRNIC_CAUSE_DATAGRAMS,
				       "no device of this daemon has datagrams (RDMA_PS_UDP), which iWARP does not know: add "
				       VRNIC_ROCE_DEVICE);
			err = 0;
			rep.id = 0;
		} else if (!err && (!rep.id || cm_id_find(ch->s, rep.id))) {
			vrnic_corrupt(ch->s, "handle of a connection id");
			err = EIO;
		}
	}
	if (!err) {
		*out = new_id(ch, rep.id, context, ps, type);
		if (!*out) {
			err = ENOMEM;
			if (rep.id)
				vrnic_rpc_handle(ch->s, VRNIC_OP_CM_DESTROY_ID, rep.id, NULL, 0);
		}
	}
	cm_leave(state);
	return err;
}

int cm_id_move(struct cm_id *id, struct cm_chan *to)
{
	struct vrnic_cm_migrate_request req = { .id = id->handle, .chan = to->handle };
	struct vrnic_cm_migrate_reply rep = { 0 };
	struct cm_chan *from = id->chan;
	int err;

	if (to->s != id->s)
		return vrnic_dead(id->s) ? EIO : EINVAL;
	if (id->handle) {
		err = vrnic_rpc(id->s, VRNIC_OP_CM_MIGRATE, &req, sizeof(req), &rep, sizeof(rep), -1, NULL, 0);
		if (err)
			return err;
		if (!from->gone)
			vrnic_take_tokens(from->ch.fd, rep.tokens);
	}
	cm_chan_add_id(to, id);
	cm_chan_drop_id(from);
	return 0;
}

/* The id of a listener with a channel of its own has one, too. */
static int own_channel(struct cm_id *id)
{
	struct cm_chan *ch = cm_chan_new(id->s);
	int err = ch ? cm_id_move(id, ch) : errno;

	if (!err)
		id->sync = true;
	else if (ch)
		cm_chan_destroy_locked(ch);
	return err;
}

int cm_id_child(struct cm_id *listener, uint32_t handle, struct cm_id **child)
{
	struct cm_id *id;
	int err;

	if (!handle || cm_id_find(listener->s, handle)) {
		vrnic_corrupt(listener->s, "handle of a connection request");
		return EAGAIN;
	}
	id = new_id(listener->chan, handle, listener->id.context, listener->id.ps, listener->id.qp_type);
	if (!id) {
		vrnic_rpc_handle(listener->s, VRNIC_OP_CM_DESTROY_ID, handle, NULL, 0);
		return ENOMEM;
	}
	if (listener->sync) {
		err = own_channel(id);
		if (err) {
			cm_id_refuse(id);
			return err;
		}
	}
	*child = id;
	return 0;
}

int cm_id_end(struct cm_id *id)
{
	struct vrnic_cm_destroy_id_reply rep;
	int err;

	if (!id->handle || vrnic_dead(id->s))
		return 0;
	err = vrnic_rpc_handle(id->s, VRNIC_OP_CM_DESTROY_ID, id->handle, &rep, sizeof(rep));
	if (!err && !id->chan->gone)
		vrnic_take_tokens(id->chan->ch.fd, rep.tokens);
	return vrnic_dead(id->s) ? 0 : err;
}

void cm_id_refuse(struct cm_id *id)
{
	struct cm_chan *own = id->sync ? id->chan : NULL;

	cm_id_end(id);
	cm_id_free(id);
	if (own)
		cm_chan_destroy_locked(own);
}
