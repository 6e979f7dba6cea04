/* librdmacm: joining multicast groups, and leaving them. */
#include <stdlib.h>
#include <string.h>

#include "cm.h"

static uint64_t last_uid; /* cm_lock */

static bool same(const struct vrnic_sock_addr *a, const struct vrnic_sock_addr *b)
{
	return a->family == b->family && !memcmp(a->addr, b->addr, sizeof(a->addr));
}

static int join(struct cm_id *id, const struct sockaddr *addr, uint32_t flags, void *context)
{
	struct vrnic_cm_join_multicast_request req = { .id = id->handle, .flags = flags };
	bool sync = id->sync;
	struct cm_group *g;
	int err, state;

	if (!cm_is_roce(id))
		return cm_return(EOPNOTSUPP);
	if (!addr || !cm_to_ring(addr, &req.addr) || !cm_is_ud(id))
		return cm_return(EINVAL);
	req.addr.port = 0;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -1;
	g->id = id;
	g->context = context;
	g->addr = req.addr;
	state = cm_enter(); /* another thread may have the event before this one returns */
	req.uid = g->uid = ++last_uid;
	g->next = id->groups;
	id->groups = g;
	err = vrnic_rpc(id->s, VRNIC_OP_CM_JOIN_MULTICAST, &req, sizeof(req), NULL, 0, -1, NULL, 0);
	if (err) {
		cm_group_unlink(g);
		free(g);
	}
	cm_leave(state);
	if (err)
		return cm_return(err);
	return sync ? cm_complete(id, RDMA_CM_EVENT_MULTICAST_JOIN) : 0;
}

int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
{
	return join(to_cm_id(id), addr, RDMA_MC_JOIN_FLAG_FULLMEMBER, context);
}

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr,
			   void *context)
{
	uint32_t flags = 0;

	if (!attr || !(attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS) ||
	    attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED)
		return cm_return(EINVAL);
	if (attr->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS)
		flags = attr->join_flags;
	if (flags >= RDMA_MC_JOIN_FLAG_RESERVED)
		return cm_return(EINVAL);
	return join(to_cm_id(id), attr->addr, flags, context);
}

static void unlock(void *lock) { pthread_mutex_unlock(lock); }

/* Waits until all events of the group have been acknowledged: a cancellation point. */
static void wait_acks(struct cm_group *g)
{
	pthread_mutex_lock(&cm_lock);
	pthread_cleanup_push(unlock, &cm_lock);
	while ((int32_t)(g->given - g->acked) > 0)
		pthread_cond_wait(&cm_acked, &cm_lock);
	pthread_cleanup_pop(1);
}

/* Blocks until the events of the group have been acknowledged. */
int rdma_leave_multicast(struct rdma_cm_id *rid, struct sockaddr *addr)
{
	struct cm_id *id = to_cm_id(rid);
	struct vrnic_cm_leave_multicast_request req = { .id = id->handle };
	struct vrnic_cm_leave_multicast_reply rep = { 0 };
	struct cm_group *g;
	int err, state;

	if (!cm_is_roce(id))
		return cm_return(EOPNOTSUPP);
	if (!addr || !cm_to_ring(addr, &req.addr))
		return cm_return(EINVAL);
	req.addr.port = 0;
	state = cm_enter();
	for (g = id->groups; g && !same(&g->addr, &req.addr); g = g->next)
		;
	err = g ? 0 : EADDRNOTAVAIL;
	if (g && g->attached && id->id.qp)
		ibv_detach_mcast(id->id.qp, &g->gid, 0);
	if (g)
		err = vrnic_rpc(id->s, VRNIC_OP_CM_LEAVE_MULTICAST, &req, sizeof(req), &rep, sizeof(rep), -1,
				NULL, 0);
	if (g && vrnic_dead(id->s))
		err = 0;
	if (!err) {
		if (!id->chan->gone)
			vrnic_take_tokens(id->chan->ch.fd, rep.tokens);
		cm_group_unlink(g);
	}
	cm_leave(state);
	if (err)
		return cm_return(err);
	if (id->sync && rid->event && to_cm_event(rid->event)->group == g)
		cm_drop_event(id);
	wait_acks(g);
	free(g);
	return 0;
}
