/* librdmacm: QPs and SRQs of ids, and the completion queues that are made for them. */
#include <stddef.h>
#include <string.h>

#include "cm.h"

/*
 * A CQ of an id, with a channel of its own, as rdma_get_send_comp and rdma_get_recv_comp want it.
 */
static int make_cq(struct rdma_cm_id *id, uint32_t entries, struct ibv_comp_channel **ch,
		   struct ibv_cq **cq)
{
	int err;

	*ch = ibv_create_comp_channel(id->verbs);
	if (!*ch)
		return errno;
	*cq = ibv_create_cq(id->verbs, entries ? entries : 1, id, *ch, 0);
	if (*cq)
		return 0;
	err = errno;
	ibv_destroy_comp_channel(*ch);
	*ch = NULL;
	return err;
}

static void drop_cq(struct ibv_comp_channel **ch, struct ibv_cq **cq)
{
	if (*cq)
		ibv_destroy_cq(*cq);
	if (*ch)
		ibv_destroy_comp_channel(*ch);
	*cq = NULL;
	*ch = NULL;
}

static void drop_cqs(struct rdma_cm_id *id)
{
	drop_cq(&id->recv_cq_channel, &id->recv_cq);
	drop_cq(&id->send_cq_channel, &id->send_cq);
}

/* How many receives may wait: those of the SRQ if there is one. */
static uint32_t recv_entries(const struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_srq_attr srq;

	if (attr->srq && !ibv_query_srq(attr->srq, &srq) && srq.max_wr > attr->cap.max_recv_wr)
		return srq.max_wr;
	return attr->cap.max_recv_wr;
}

/* Makes the CQs that neither attr nor the id has. */
static int make_cqs(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	bool made = false;
	int err = 0;

	if (!attr->recv_cq && !id->recv_cq) {
		err = make_cq(id, recv_entries(attr), &id->recv_cq_channel, &id->recv_cq);
		made = !err;
	}
	if (!err && !attr->send_cq && !id->send_cq) {
		err = make_cq(id, attr->cap.max_send_wr, &id->send_cq_channel, &id->send_cq);
		if (err && made)
			drop_cq(&id->recv_cq_channel, &id->recv_cq);
	}
	if (err)
		return err;
	if (!attr->send_cq)
		attr->send_cq = id->send_cq;
	if (!attr->recv_cq)
		attr->recv_cq = id->recv_cq;
	return 0;
}

/*
 * A QP of an id takes receives at once. The later states are entered with the connection; one of
 * datagrams, which has none, is ready to send.
 */
static int to_init(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask, err;

	if (rdma_init_qp_attr(id, &attr, &mask))
		return errno;
	err = ibv_modify_qp(qp, &attr, mask);
	if (err || id->qp_type != IBV_QPT_UD)
		return err;
	attr.qp_state = IBV_QPS_RTR;
	err = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	if (err)
		return err;
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 0;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static struct ibv_qp *make_qp(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	struct vrnic_context *c = to_vctx(id->verbs);

	if (attr->comp_mask == IBV_QP_INIT_ATTR_PD)
		return ibv_create_qp(attr->pd, (struct ibv_qp_init_attr *)attr);
	return c->v.create_qp_ex(id->verbs, attr);
}

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	bool own_recv = !id->recv_cq, own_send = !id->send_cq;
	struct ibv_qp *qp;
	int err;

	if (id->qp || !id->verbs || !to_cm_id(id)->handle)
		return cm_return(EINVAL);
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
		attr->pd = id->pd;
	} else if (attr->pd->context != id->verbs) {
		return cm_return(EINVAL);
	}
	if (attr->qp_type != id->qp_type ||
	    (id->recv_cq && attr->recv_cq && id->recv_cq != attr->recv_cq) ||
	    (id->send_cq && attr->send_cq && id->send_cq != attr->send_cq))
		return cm_return(EINVAL);
	if (id->srq && !attr->srq)
		attr->srq = id->srq;
	err = make_cqs(id, attr);
	if (err)
		return cm_return(err);
	qp = make_qp(id, attr);
	if (!qp) {
		err = errno;
		goto no_qp;
	}
	err = to_init(id, qp);
	if (err)
		goto no_init;
	id->pd = qp->pd;
	id->qp = qp;
	return 0;
no_init:
	ibv_destroy_qp(qp);
no_qp:
	if (own_recv)
		drop_cq(&id->recv_cq_channel, &id->recv_cq);
	if (own_send)
		drop_cq(&id->send_cq_channel, &id->send_cq);
	return cm_return(err);
}

/*
 * The two structures have one beginning; the padding of the short one is where the long one goes
 * on.
 */
#define SHARED_LEN offsetof(struct ibv_qp_init_attr_ex, comp_mask)

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = { 0 };
	int ret;

	memcpy(&ex, attr, SHARED_LEN);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD;
	ex.pd = pd;
	ret = rdma_create_qp_ex(id, &ex);
	if (!ret)
		memcpy(attr, &ex, SHARED_LEN);
	return ret;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	if (id->qp)
		ibv_destroy_qp(id->qp);
	id->qp = NULL;
	drop_cqs(id);
}

int rdma_init_qp_attr(struct rdma_cm_id *rid, struct ibv_qp_attr *attr, int *mask)
{
	struct cm_id *id = to_cm_id(rid);
	struct vrnic_cm_init_qp_attr_request req = { .id = id->handle, .state = attr->qp_state };
	struct vrnic_cm_init_qp_attr_reply rep;
	int err = EINVAL;

	if (id->handle)
		err = vrnic_rpc(id->s, VRNIC_OP_CM_INIT_QP_ATTR, &req, sizeof(req), &rep, sizeof(rep), -1, NULL,
				0);
	if (err)
		return cm_return(err);
	memset(attr, 0, sizeof(*attr));
	/*
	 * rping -q wants to take its QP to INIT when it is connected: on iWARP that is the connection
	 * manager's business from here on.
	 */
	if (cm_is_roce(id)) {
		vrnic_from_qp_attr(&rep.attr, attr);
		*mask = (int)rep.mask;
	} else {
		attr->qp_access_flags = rep.access;
		attr->port_num = rep.port;
		*mask = rep.mask & (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
		if (id->connecting)
			*mask &= ~IBV_QP_STATE;
	}
	attr->qp_state = req.state;
	return 0;
}

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	struct ibv_srq_init_attr basic;
	struct ibv_srq *srq;

	if (id->srq || !id->verbs || !(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE))
		return cm_return(EINVAL);
	if (attr->srq_type != IBV_SRQT_BASIC)
		return cm_return(EOPNOTSUPP);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
		attr->pd = id->pd;
	} else if (attr->pd->context != id->verbs) {
		return cm_return(EINVAL);
	}
	basic.srq_context = attr->srq_context;
	basic.attr = attr->attr;
	srq = ibv_create_srq(attr->pd, &basic);
	if (!srq)
		return -1;
	attr->attr = basic.attr;
	id->pd = attr->pd;
	id->srq = srq;
	return 0;
}

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex ex = {
		.srq_context = attr->srq_context, .attr = attr->attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_BASIC, .pd = pd,
	};
	int ret = rdma_create_srq_ex(id, &ex);

	if (!ret)
		attr->attr = ex.attr;
	return ret;
}

void rdma_destroy_srq(struct rdma_cm_id *id)
{
	if (id->srq)
		ibv_destroy_srq(id->srq);
	id->srq = NULL;
}
