/*
 * The states of queue pairs. Those of an RNIC have few, and are connected by the connection
 * manager; those of RoCE have InfiniBand's, which a program goes through by itself, with the
 * attributes that each step wants (docs/verbs.md).
 */
#include <errno.h>
#include <string.h>

#include "queue.h"

/*
 * On iWARP INIT is all that comes before RTS, as programs know it of siw: no QP of a living session
 * is in RESET. On RoCE it may be.
 */
static enum ibv_qp_state state_of(struct vrnic_qp *qp)
{
	uint32_t state;

	if (vrnic_dead(qp->s))
		return IBV_QPS_ERR;
	state = load_acquire(qp->state);
	if (state == IBV_QPS_RESET) { /* or the daemon has emptied the memory */
		if (vrnic_peer_gone(qp->s))
			return IBV_QPS_ERR;
		return qp->roce ? IBV_QPS_RESET : IBV_QPS_INIT;
	}
	return state < IBV_QPS_UNKNOWN ? state : IBV_QPS_UNKNOWN;
}

/*
 * What goes with a new state, on an RNIC: nothing that connects, for that is the connection
 * manager's.
 */
static int allowed(enum ibv_qp_state state)
{
	switch (state) {
	case IBV_QPS_INIT:
		return IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	case IBV_QPS_RTS:
		return IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
	case IBV_QPS_SQD:
		return IBV_QP_EN_SQD_ASYNC_NOTIFY;
	default:
		return 0;
	}
}

static int set_state(struct vrnic_qp *qp, enum ibv_qp_state state)
{
	struct vrnic_modify_qp_request req = {
		.qp = qp->qp.handle,
		.mask = VRNIC_MODIFY_QP_STATE,
		.state = state,
	};
	int err;

	err = vrnic_rpc(qp->s, VRNIC_OP_MODIFY_QP, &req, sizeof(req), NULL, 0, -1, NULL, 0);
	if (err && vrnic_dead(qp->s) && state == IBV_QPS_ERR)
		err = 0; /* it is in it */
	return err;
}

struct vrnic_ah_attr vrnic_to_ah_attr(const struct ibv_ah_attr *a)
{
	struct vrnic_ah_attr r = {
		.flow_label = a->grh.flow_label,
		.flags = a->is_global ? VRNIC_AH_GLOBAL : 0,
		.gid_index = a->grh.sgid_index,
		.hop_limit = a->grh.hop_limit,
		.traffic_class = a->grh.traffic_class,
		.s_l = a->sl,
		.port = a->port_num,
	};

	memcpy(r.gid, a->grh.dgid.raw, sizeof(r.gid));
	return r;
}

void vrnic_from_ah_attr(const struct vrnic_ah_attr *r, struct ibv_ah_attr *a)
{
	memset(a, 0, sizeof(*a));
	memcpy(a->grh.dgid.raw, r->gid, sizeof(r->gid));
	a->grh.flow_label = r->flow_label;
	a->grh.sgid_index = r->gid_index;
	a->grh.hop_limit = r->hop_limit;
	a->grh.traffic_class = r->traffic_class;
	a->sl = r->s_l;
	a->port_num = (uint8_t)r->port;
	a->is_global = !!(r->flags & VRNIC_AH_GLOBAL);
}

struct vrnic_qp_attr vrnic_to_qp_attr(const struct ibv_qp_attr *a)
{
	return (struct vrnic_qp_attr){
		.cur_state = a->cur_qp_state,
		.path_mtu = a->path_mtu,
		.mig_state = a->path_mig_state,
		.qkey = a->qkey,
		.rq_psn = a->rq_psn,
		.sq_psn = a->sq_psn,
		.dest_qpn = a->dest_qp_num,
		.access = a->qp_access_flags & ~VRNIC_ACCESS_PAGING,
		.path = vrnic_to_ah_attr(&a->ah_attr),
		.pkey_index = a->pkey_index,
		.port = a->port_num,
		.max_read = a->max_rd_atomic,
		.max_dest_read = a->max_dest_rd_atomic,
		.min_rnr_timer = a->min_rnr_timer,
		.timeout = a->timeout,
		.retry_count = a->retry_cnt,
		.rnr_retry = a->rnr_retry,
		.drained_event = a->en_sqd_async_notify,
	};
}

void vrnic_from_qp_attr(const struct vrnic_qp_attr *r, struct ibv_qp_attr *a)
{
	a->cur_qp_state = r->cur_state;
	a->path_mtu = r->path_mtu;
	a->path_mig_state = r->mig_state;
	a->qkey = r->qkey;
	a->rq_psn = r->rq_psn;
	a->sq_psn = r->sq_psn;
	a->dest_qp_num = r->dest_qpn;
	a->qp_access_flags = r->access;
	vrnic_from_ah_attr(&r->path, &a->ah_attr);
	a->pkey_index = (uint16_t)r->pkey_index;
	a->port_num = r->port;
	a->max_rd_atomic = r->max_read;
	a->max_dest_rd_atomic = r->max_dest_read;
	a->min_rnr_timer = r->min_rnr_timer;
	a->timeout = r->timeout;
	a->retry_cnt = r->retry_count;
	a->rnr_retry = r->rnr_retry;
	a->en_sqd_async_notify = r->drained_event;
	a->sq_draining = (uint8_t)r->draining;
}

/* Nothing of what was posted, or has completed, is there any more. */
static void forget(struct vrnic_qp *qp)
{
	vrnic_cq_forget(to_vcq(qp->qp.send_cq), qp);
	if (qp->qp.recv_cq != qp->qp.send_cq)
		vrnic_cq_forget(to_vcq(qp->qp.recv_cq), qp);
}

/*
 * All attributes go to the daemon, which has the table of what each step wants and may have. It
 * finds out where the peer is on the way to RTR, and answers when it knows.
 */
static int modify_roce(struct vrnic_qp *qp, const struct ibv_qp_attr *attr, uint32_t mask)
{
	struct vrnic_modify_qp_request req = {
		.qp = qp->qp.handle,
		.mask = mask,
		.state = attr->qp_state,
		.attr = vrnic_to_qp_attr(attr),
	};
	int err = vrnic_rpc(qp->s, VRNIC_OP_MODIFY_QP, &req, sizeof(req), NULL, 0, -1, NULL, 0);

	if (err && vrnic_dead(qp->s) && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR)
		err = 0; /* it is in it */
	if (err || !(mask & IBV_QP_STATE))
		return err;
	if (attr->qp_state == IBV_QPS_RESET) {
		vrnic_direct_free(qp); /* with what is left to be polled */
		forget(qp);
	}
	if (attr->qp_state == IBV_QPS_RTS && qp->qp.state != IBV_QPS_RTS)
		vrnic_direct_begin(qp);
	qp->qp.state = attr->qp_state;
	return 0;
}

/* What a program needs to know that connects as on InfiniBand. */
static int not_connected_so(const struct vrnic_qp *qp)
{
	vrnic_complain(VRNIC_CAUSE_CONNECT,
		       "%s speaks iWARP, where rdma_cm connects queue pairs, not ibv_modify_qp: have the "
		       "program use rdma_cm (perftest: -R), or a device of " VRNIC_ROCE_DEVICE,
		       qp->qp.context->device->name);
	return EINVAL;
}

/*
 * RTR and RTS are reached by connecting. A program that connects as on InfiniBand, by telling its
 * peer the number of its QP, is told at once that it cannot be; one that follows the connection
 * manager's advice (rdma_init_qp_attr) asks for nothing there, and gets it. SQD disconnects, as
 * with siw, and INIT is for a QP that is not connected: docs/qp-states.md.
 */
int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct vrnic_qp *qp = to_vqp(ibqp);
	enum ibv_qp_state now;
	int err;

	if (qp->roce)
		return modify_roce(qp, attr, (uint32_t)mask);
	if (!mask)
		return 0;
	now = state_of(qp);
	if (mask & IBV_QP_CUR_STATE && attr->cur_qp_state != now &&
	    (attr->cur_qp_state != IBV_QPS_RESET || now != IBV_QPS_INIT))
		return EINVAL;
	mask &= ~IBV_QP_CUR_STATE;
	if (!(mask & IBV_QP_STATE))
		return mask & ~(IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER) ? EINVAL : 0;
	if (attr->qp_state == IBV_QPS_RTR && mask & IBV_QP_AV)
		return not_connected_so(qp);
	if (mask & ~(IBV_QP_STATE | allowed(attr->qp_state)) ||
	    (mask & IBV_QP_PORT && attr->port_num != 1))
		return EINVAL;
	if (attr->qp_state == IBV_QPS_RTS) {
		if (now != IBV_QPS_RTS)
			return EINVAL;
	} else {
		err = set_state(qp, attr->qp_state);
		if (err)
			return err;
	}
	ibqp->state = attr->qp_state;
	return 0;
}

int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask,
		 struct ibv_qp_init_attr *init)
{
	struct vrnic_qp *qp = to_vqp(ibqp);
	struct vrnic_query_qp_reply rep = { 0 };
	int err;

	(void)mask; /* what more there is does no harm */
	err = vrnic_rpc_handle(qp->s, VRNIC_OP_QUERY_QP, ibqp->handle, &rep, sizeof(rep));
	if (err && !vrnic_dead(qp->s))
		return err;
	memset(attr, 0, sizeof(*attr));
	if (qp->roce) {
		vrnic_from_qp_attr(&rep.attr, attr);
	} else {
		attr->path_mtu = IBV_MTU_4096;
		attr->qp_access_flags = rep.access;
		attr->max_rd_atomic = rep.ord < 255 ? rep.ord : 255;
		attr->max_dest_rd_atomic = rep.ird < 255 ? rep.ird : 255;
		attr->port_num = 1;
	}
	ibqp->state = attr->qp_state = attr->cur_qp_state = state_of(qp);
	attr->cap = qp->cap;
	memset(init, 0, sizeof(*init));
	init->qp_context = ibqp->qp_context;
	init->send_cq = ibqp->send_cq;
	init->recv_cq = ibqp->recv_cq;
	init->srq = ibqp->srq;
	init->cap = qp->cap;
	init->qp_type = ibqp->qp_type;
	init->sq_sig_all = qp->sig_all;
	return 0;
}

/* Octets are placed in order as far as DDP segments go, but not within one. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp, (void)op, (void)flags;
	return 0;
}

