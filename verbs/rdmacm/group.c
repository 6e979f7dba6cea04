/* librdmacm: the multicast groups that ids have joined, and their events. */
#include <stdlib.h>
#include <string.h>

#include "cm.h"

struct cm_group *cm_group_find(struct cm_id *id, uint64_t uid)
{
	struct cm_group *g;

	for (g = id->groups; g && g->uid != uid; g = g->next)
		;
	return g;
}

void cm_group_unlink(struct cm_group *g)
{
	struct cm_group **p = &g->id->groups;

	while (*p != g)
		p = &(*p)->next;
	*p = g->next;
}

void cm_groups_free(struct cm_id *id)
{
	struct cm_group *g;

	while ((g = id->groups)) {
		id->groups = g->next;
		free(g);
	}
}

void cm_group_event(struct cm_group *g, const struct vrnic_cm_event *e, struct cm_event *ev)
{
	struct ibv_qp *qp = g->id->id.qp;
	int err;

	ev->ev.param.ud.private_data = g->context;
	ev->ev.param.ud.private_data_len = 0;
	if (e->type != VRNIC_EV_MULTICAST_JOIN || e->status || !qp)
		return;
	memcpy(&g->gid, e->path.gid, sizeof(g->gid));
	err = ibv_attach_mcast(qp, &g->gid, 0);
	g->attached = !err;
	if (err) {
		ev->ev.event = RDMA_CM_EVENT_MULTICAST_ERROR;
		ev->ev.status = -err;
	}
}
